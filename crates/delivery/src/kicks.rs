//! Telling the NMIs that one core sends another (kicks) from those of the platform: an NMI itself
//! doesn't say who sent it.
//!
//! Guarantees: whoever sends a kick counts it first, in memory that the receiver looks at. A
//! receiver takes an NMI for the platform's only if it can't be a kick. Several kicks may arrive as
//! one NMI, since a CPU keeps one pending. Doesn't tell a platform's NMI that arrives together with
//! a kick: the CPU makes one NMI of the two. Nor for sure any on a core where kicks have come
//! together: for each kick beyond the first, one NMI more may be a late kick, at any time, since
//! nothing says whether it still comes. So platform NMIs go to a core that nobody kicks.

use core::sync::atomic::{AtomicU32, Ordering};

/// The kicks of one core.
#[derive(Debug, Default)]
pub struct Kicks {
    sent: AtomicU32,
    /// Those sent before the last NMI that was a kick. Changed by the receiver alone.
    seen: AtomicU32,
    /// So many NMIs may be on their way for kicks that are seen already: their senders had counted
    /// them and not sent them yet. Changed by the receiver alone.
    late: AtomicU32,
}

/// The source of an NMI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NmiSource {
    /// A kick that wasn't seen before.
    Kick,
    /// Maybe a kick that came after the NMI of another, when it was seen already.
    MaybeKick,
    /// No known sender.
    Platform,
}

impl Kicks {
    /// None yet.
    pub const fn new() -> Self {
        Kicks { sent: AtomicU32::new(0), seen: AtomicU32::new(0), late: AtomicU32::new(0) }
    }

    /// A kick is about to be sent.
    #[inline]
    pub fn count(&self) {
        self.sent.fetch_add(1, Ordering::SeqCst);
    }

    /// An NMI arrived.
    #[inline]
    pub fn arrived(&self) -> NmiSource {
        let sent = self.sent.load(Ordering::SeqCst);
        let new = sent.wrapping_sub(self.seen.load(Ordering::Relaxed));
        let late = self.late.load(Ordering::Relaxed);
        if new != 0 {
            self.seen.store(sent, Ordering::Relaxed);
            self.late.store(late.saturating_add(new - 1), Ordering::Relaxed);
            NmiSource::Kick
        } else if late != 0 {
            self.late.store(late - 1, Ordering::Relaxed);
            NmiSource::MaybeKick
        } else {
            NmiSource::Platform
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NmiSource::{Kick, MaybeKick, Platform};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_is_told() {
        let kicks = Kicks::new();
        assert_eq!(kicks.arrived(), Platform);
        kicks.count();
        assert_eq!([kicks.arrived(), kicks.arrived()], [Kick, Platform]);
        kicks.count();
        kicks.count();
        assert_eq!(
            [kicks.arrived(), kicks.arrived(), kicks.arrived()],
            [Kick, MaybeKick, Platform]
        );
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Count,
        Send,
        Platform,
        Take,
    }

    proptest! {
        /// Senders count and then send; the CPU keeps one NMI pending. The platform is named as
        /// often as it sent one at the most, and an NMI behind a new kick is always a kick.
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn the_platform_isnt_blamed(steps in proptest::collection::vec(
            prop_oneof![Just(Step::Count), Just(Step::Send), Just(Step::Platform), Just(Step::Take)],
            0..200,
        )) {
            let kicks = Kicks::new();
            // Counted and not sent; pending, and for how many of the platform's; how often it was
            // named.
            let (mut counted, mut pending, mut platform, mut named) = (0u32, false, 0u32, 0u32);
            let mut new = false;
            for step in steps {
                match step {
                    Step::Count => {
                        kicks.count();
                        counted += 1;
                        new = true;
                    }
                    Step::Send if counted > 0 => {
                        counted -= 1;
                        pending = true;
                    }
                    Step::Platform => {
                        pending = true;
                        platform += 1;
                    }
                    Step::Take if pending => {
                        let source = kicks.arrived();
                        prop_assert_eq!(source == Kick, new);
                        named += u32::from(source == Platform);
                        prop_assert!(named <= platform);
                        (pending, new) = (false, false);
                    }
                    _ => {}
                }
            }
        }
    }
}
