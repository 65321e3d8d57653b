//! How a vCPU is started, reset and stopped by others: INIT, SIPI (SDM vol. 3, 9.4; APM
//! vol. 2, 15.27) and the end of its VM, as transitions of one word.
//!
//! The word is shared: any vCPU sends, the owner alone acknowledges. Guarantees: a start-up
//! that follows an INIT is never lost, however late the owner notices the INIT; one that
//! finds the vCPU running is ignored; a vCPU that waits is woken exactly once for each time
//! it leaves waiting, so that no wake-up is left over to interrupt its guest.

/// The signal that the sender of an INIT, a start-up or a stop owes to the owner's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Nothing.
    None,
    /// Get it out of its guest (NMI).
    Kick,
    /// End its sleep (the host's wake-up interrupt), once.
    Wake,
}

/// The state that the owner finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing changed.
    Running,
    /// It was reset and waits for a start-up.
    Waiting,
    /// It was reset and starts at once, in real mode at this page.
    StartUp(u8),
}

/// The state of one vCPU, to be kept in an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Startup(u32);

const PHASE: u32 = 0b11;
const WAITING: u32 = 0;
/// A start-up or a stop was accepted, and the wake-up is on its way.
const WOKEN: u32 = 1;
const RUNNING: u32 = 2;
const LEFT: u32 = 3;
const INIT: u32 = 1 << 2;
const START: u32 = 1 << 3;
const PAGE_SHIFT: u32 = 8;
const PAGE: u32 = 0xFF << PAGE_SHIFT;

impl Startup {
    /// As every processor but the first is after reset.
    pub const WAITING: Startup = Startup(WAITING);
    /// As the first one is.
    pub const RUNNING: Startup = Startup(RUNNING);

    /// From the atomic's value.
    pub const fn from_bits(bits: u32) -> Self {
        Startup(bits)
    }

    /// To the atomic's value.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Does it take interrupts?
    pub const fn running(self) -> bool {
        self.0 & PHASE == RUNNING
    }

    /// Has the owner something to look at?
    pub const fn init_pending(self) -> bool {
        self.0 & INIT != 0
    }

    const fn phase(self, phase: u32) -> Startup {
        Startup(self.0 & !PHASE | phase)
    }

    /// INIT. While it waits already, INIT changes nothing; after its VM ended neither.
    pub const fn init(self) -> (Startup, Signal) {
        match self.0 & PHASE {
            RUNNING => (Startup(self.0 & !(START | PAGE) | INIT), Signal::Kick),
            // It looks before it enters its guest.
            WOKEN => (Startup(self.0 & !(START | PAGE) | INIT), Signal::None),
            _ => (self, Signal::None),
        }
    }

    /// Start-up at `page`.
    pub const fn start_up(self, page: u8) -> (Startup, Signal) {
        let started = self.0 & !PAGE | START | (page as u32) << PAGE_SHIFT;
        match self.0 & PHASE {
            WAITING => (Startup(started).phase(WOKEN), Signal::Wake),
            // The first one behind the INIT counts: it would run by the time of the second.
            RUNNING | WOKEN if self.0 & (INIT | START) == INIT => (Startup(started), Signal::None),
            _ => (self, Signal::None),
        }
    }

    /// The VM ends: whatever it does, it is to look.
    pub const fn stop(self) -> (Startup, Signal) {
        match self.0 & PHASE {
            WAITING => (self.phase(WOKEN), Signal::Wake),
            RUNNING => (self, Signal::Kick),
            _ => (self, Signal::None),
        }
    }

    /// The owner looks, out of its guest.
    pub const fn acknowledge(self) -> (Startup, Found) {
        if self.0 & (INIT | START) == 0 {
            // Not every interrupt that ends a sleep is the wake-up.
            let waits = self.0 & PHASE == WAITING;
            return (self, if waits { Found::Waiting } else { Found::Running });
        }
        if self.0 & START != 0 {
            let page = (self.0 >> PAGE_SHIFT) as u8;
            return (Startup(RUNNING), Found::StartUp(page));
        }
        (Startup(WAITING), Found::Waiting)
    }

    /// The owner took the wake-up.
    pub const fn woken(self) -> Startup {
        match self.0 & PHASE {
            WOKEN => self.phase(RUNNING),
            _ => self,
        }
    }

    /// The owner left its guest for good.
    pub const fn left(self) -> Startup {
        Startup(LEFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_processor_is_started_as_linux_does() {
        let (s, signal) = Startup::WAITING.init();
        assert_eq!((s, signal), (Startup::WAITING, Signal::None));
        let (s, signal) = s.start_up(0x9A);
        assert_eq!(signal, Signal::Wake);
        let (s, signal) = s.start_up(0x9A);
        assert_eq!(signal, Signal::None, "the second start-up is ignored");
        let (s, found) = s.woken().acknowledge();
        assert_eq!((found, s), (Found::StartUp(0x9A), Startup::RUNNING));
        assert_eq!(s.start_up(1), (s, Signal::None), "it runs: ignored");
    }

    #[test]
    fn a_start_up_right_behind_an_init_is_kept() {
        let (s, signal) = Startup::RUNNING.init();
        assert_eq!(signal, Signal::Kick);
        let (s, signal) = s.start_up(7);
        assert_eq!(signal, Signal::None, "it is on its way out of its guest");
        assert_eq!(s.acknowledge(), (Startup::RUNNING, Found::StartUp(7)));
    }

    #[test]
    fn the_first_start_up_behind_an_init_counts() {
        let (s, _) = Startup::RUNNING.init();
        let (s, _) = s.start_up(7);
        let (s, signal) = s.start_up(8);
        assert_eq!(signal, Signal::None);
        assert_eq!(s.acknowledge(), (Startup::RUNNING, Found::StartUp(7)));
    }

    #[test]
    fn a_second_init_before_the_look_changes_nothing() {
        let (woken, _) = Startup::WAITING.start_up(7);
        for s in [Startup::RUNNING, woken] {
            let (once, _) = s.init();
            let (twice, _) = once.init();
            assert!(once.init_pending());
            assert_eq!(twice, once);
        }
    }

    #[test]
    fn an_init_takes_back_the_start_up_before_it() {
        let (s, _) = Startup::RUNNING.init();
        let (s, _) = s.start_up(7);
        let (s, _) = s.init();
        assert_eq!(s.acknowledge(), (Startup::WAITING, Found::Waiting));
    }

    #[test]
    fn an_init_between_wake_up_and_look_begins_anew() {
        let (s, _) = Startup::WAITING.start_up(7);
        assert!(!s.running() && !s.init_pending());
        let (s, signal) = s.init();
        assert_eq!(signal, Signal::None, "it looks before it enters its guest");
        assert!(s.init_pending());
        let (again, signal) = s.start_up(8);
        assert_eq!(signal, Signal::None);
        assert_eq!(again.woken().acknowledge(), (Startup::RUNNING, Found::StartUp(8)));
        let (s, found) = s.woken().acknowledge();
        assert_eq!((s, found), (Startup::WAITING, Found::Waiting), "page 7 is taken back");
    }

    #[test]
    fn a_stop_wakes_who_waits_and_kicks_who_runs_once() {
        let (woken, signal) = Startup::WAITING.stop();
        assert_eq!(signal, Signal::Wake);
        assert_ne!(woken, Startup::WAITING);
        assert_eq!(woken.stop(), (woken, Signal::None), "one wake-up is on its way");
        assert_eq!(woken.woken(), Startup::RUNNING);
        assert_eq!(woken.woken().acknowledge(), (Startup::RUNNING, Found::Running));
        assert_eq!(Startup::RUNNING.stop(), (Startup::RUNNING, Signal::Kick));
        let left = Startup::RUNNING.left();
        assert_eq!((left.stop(), left.init()), ((left, Signal::None), (left, Signal::None)));
        assert_eq!((left.start_up(1), left.woken()), ((left, Signal::None), left));
        let (waiting_start, _) = Startup::WAITING.start_up(3);
        assert_eq!(waiting_start.stop(), (waiting_start, Signal::None));
    }

    proptest! {
        /// Wake-ups sent and taken stay in step: none is left over, none is missing.
        #[test]
        fn one_wake_up_for_each_sleep(ops in proptest::collection::vec((0u8..5, any::<u8>()), 0..200)) {
            let mut s = Startup::WAITING;
            let mut asleep = true;
            let mut wake_ups = 0;
            for (op, page) in ops {
                let signal;
                (s, signal) = match op {
                    0 => s.init(),
                    1 => s.start_up(page),
                    2 => s.stop(),
                    // The owner: asleep it only sees the wake-up, else it looks.
                    _ if asleep => {
                        if wake_ups > 0 {
                            wake_ups -= 1;
                            asleep = false;
                            s = s.woken();
                            prop_assert!(s.running());
                        } else {
                            // Something else ended its sleep.
                            prop_assert_eq!(s.woken().acknowledge(), (s, Found::Waiting));
                        }
                        (s, Signal::None)
                    }
                    _ => {
                        let (next, found) = s.acknowledge();
                        asleep = found == Found::Waiting;
                        prop_assert_eq!(next.running(), !asleep);
                        prop_assert!(!next.init_pending());
                        (next, Signal::None)
                    }
                };
                if signal == Signal::Wake {
                    prop_assert!(asleep);
                    wake_ups += 1;
                }
                prop_assert!(wake_ups <= 1);
                prop_assert!(wake_ups == 0 || asleep);
            }
        }
    }
}
