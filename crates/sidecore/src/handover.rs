//! How a device goes from one sidecore to another while vCPUs give orders, mask entries and change
//! routes; and how a sidecore without devices sleeps.
//!
//! The rules:
//!
//! 1. **One owner.** What a device is made of is one sidecore's, or in its [`Slot`]. The owner
//!    hands it over between two turns: nothing of it is half done, and what is held back goes
//!    along. Then it rings the other one's [`Bell`], which takes it ([`Slot::receive`]).
//! 2. **Who is told.** Whoever has news of a device stores them, and rings the bell of the sidecore
//!    that [`Home::tell`] names. That may be the one that was the owner until now. So the new owner
//!    says that it is at home ([`Home::arrive`]), and only then looks at what there is: orders,
//!    kicks, and calls that wait in entries that were opened.
//! 3. **Interrupts.** Each sidecore has a turn of its own (`routing::calls`). Whoever changes a
//!    word waits for the turns of all, and who unmasks asks all: whichever has the device, and had
//!    it.
//! 4. **Sleep.** A sidecore without devices says that it falls asleep, and then looks at its bell
//!    once more ([`Bell::may_sleep`]). Who rings looks whether it does, and wakes it by an
//!    interrupt, which has to be one that is kept until the core halts.
//!
//! Guarantees: news are seen by whoever has the device when they came, or by the one that it goes
//! to; nobody sleeps behind a bell that was rung; nobody waits for anybody. All of it runs under
//! loom, together with the calls, with variants (`handover_model`). Not guaranteed: that a bell is
//! rung for something. Who hears it and finds nothing goes on.

use sync::{AtomicBool, AtomicUsize, Ordering, SpinMutex, fence};

/// A line of its own: one side writes it, the other reads it.
#[derive(Debug)]
#[repr(align(64))]
struct Line<T>(T);

/// What has a sidecore look at what is new.
#[derive(Debug)]
pub struct Bell {
    rung: Line<AtomicBool>,
    asleep: AtomicBool,
}

impl Default for Bell {
    fn default() -> Self {
        Bell::new()
    }
}

impl Bell {
    /// Not rung; its sidecore is awake.
    pub fn new() -> Self {
        Bell { rung: Line(AtomicBool::new(false)), asleep: AtomicBool::new(false) }
    }

    /// Anybody, after storing what is new. True: the sidecore may sleep, and is to be woken.
    #[must_use = "a sidecore that sleeps hears nothing"]
    pub fn ring(&self) -> bool {
        self.rung.0.store(true, Ordering::Release);
        // Pairs with the fence of `may_sleep`: that sees the bell, or this sees the sleep.
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed)
    }

    /// Was it rung? One load of a line that is rarely written.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.rung.0.load(Ordering::Relaxed)
    }

    /// The sidecore, before it looks at what is new: from here on the bell can be rung again.
    pub fn answer(&self) -> bool {
        self.is_rung() && self.rung.0.swap(false, Ordering::AcqRel)
    }

    /// The sidecore, with nothing to do: may it sleep until it is woken? When it is awake again, or
    /// doesn't sleep after all, it says so ([`Bell::wake_up`]).
    pub fn may_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.is_rung()
    }

    /// The sidecore is awake.
    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Does it sleep? For whoever watches.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }
}

/// The sidecore that is told of a device's news.
#[derive(Debug)]
pub struct Home(AtomicUsize);

impl Home {
    /// At this sidecore from the start.
    pub fn new(at: usize) -> Self {
        Home(AtomicUsize::new(at))
    }

    /// Anybody, after storing what is new: the sidecore whose bell is to be rung.
    pub fn tell(&self) -> usize {
        // Pairs with the fence of `arrive`: who comes sees the news, or this sees who came.
        fence(Ordering::SeqCst);
        self.at()
    }

    /// Its new owner, before it looks at what is new.
    pub fn arrive(&self, at: usize) {
        self.0.store(at, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// For whoever watches: the owner, or the one that was it until now.
    pub fn at(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a device is made of, on its way; empty else. `T` is made at the start and stays.
#[derive(Debug)]
pub struct Slot<T> {
    /// One more than the sidecore that is to take it. 0: it is empty, or being filled.
    to: AtomicUsize,
    /// Never contended: the owner has it, then the one that it is for.
    content: SpinMutex<T>,
}

impl<T> Slot<T> {
    /// Empty: `content` has room for a device.
    pub fn new(content: T) -> Self {
        Slot { to: AtomicUsize::new(0), content: SpinMutex::new(content) }
    }

    /// Makes more room in it, before anybody else knows the slot.
    pub fn prepare(&mut self, more: impl FnOnce(&mut T)) {
        if let Some(mut content) = self.content.try_lock() {
            more(&mut content);
        }
    }

    /// The owner hands the device over: `fill` puts it in. Then it rings that one's bell. False:
    /// `fill` wasn't called.
    pub fn hand(&self, to: usize, fill: impl FnOnce(&mut T)) -> bool {
        if self.to.load(Ordering::Acquire) != 0 {
            return false;
        }
        let Some(mut content) = self.content.try_lock() else { return false };
        fill(&mut content);
        drop(content);
        self.to.store(to.wrapping_add(1), Ordering::Release);
        true
    }

    /// Is there something for this sidecore?
    pub fn is_for(&self, own: usize) -> bool {
        self.to.load(Ordering::Acquire) == own.wrapping_add(1)
    }

    /// This sidecore takes what is for it: `take` takes it out. False: there is nothing.
    pub fn receive(&self, own: usize, take: impl FnOnce(&mut T)) -> bool {
        if !self.is_for(own) {
            return false;
        }
        // The lock is free: whoever filled the slot is done.
        let Some(mut content) = self.content.try_lock() else { return false };
        take(&mut content);
        drop(content);
        self.to.store(0, Ordering::Release);
        true
    }
}

#[cfg(test)]
#[cfg(loom)]
#[path = "handover_model.rs"]
mod model;
#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_over_is_taken_once_by_the_one_it_is_for() {
        let slot = Slot::new(None);
        assert!(!slot.receive(0, |_| panic!("it is empty")));
        assert!(slot.hand(1, |content| *content = Some(7)));
        assert!(!slot.hand(2, |_| panic!("it is full")));
        assert!(!slot.receive(0, |_| panic!("it is for another")) && slot.is_for(1));
        let mut taken = None;
        assert!(slot.receive(1, |content| taken = content.take()));
        assert_eq!(taken, Some(7));
        assert!(!slot.receive(1, |_| panic!("it is empty")));
        assert!(slot.hand(0, |content| *content = Some(8)) && slot.is_for(0));
    }

    #[test]
    fn a_bell_is_heard_once_and_keeps_its_sidecore_awake() {
        let bell = Bell::new();
        assert!(!bell.is_rung() && !bell.answer());
        assert!(!bell.ring() && !bell.ring(), "it is awake");
        assert!(!bell.may_sleep(), "it was rung");
        bell.wake_up();
        assert!(bell.is_rung() && bell.answer() && !bell.answer());
        assert!(bell.may_sleep() && bell.is_asleep());
        assert!(bell.ring(), "it is to be woken");
        bell.wake_up();
        assert!(!bell.ring());
    }

    #[test]
    fn the_new_owner_is_told() {
        let home = Home::new(2);
        assert_eq!((home.tell(), home.at()), (2, 2));
        home.arrive(0);
        assert_eq!(home.tell(), 0);
    }
}
