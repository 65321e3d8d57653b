//! When an event index asks for a notification (2.7.7.2, 2.7.10, 2.8.10).
//!
//! Guarantees: no index that the other side writes makes it panic or miss an index that was passed.

/// VIRTQ_AVAIL_F_NO_INTERRUPT, VIRTQ_USED_F_NO_NOTIFY: no notification is wanted.
pub const NONE: u16 = 1;
/// How far ahead the event index of kicks that nobody wants is: half of all indices.
pub const FAR: u16 = 1 << 15;
/// It is written anew after this many chains: it is ahead by as much at least.
pub const RENEW: u16 = 1 << 14;

/// Whether the step to `index` from `steps` before it passed the wish: made the element of index
/// `event` available, or used. `index` is that of the next element, and all of them wrap at 2^16.
#[inline]
pub fn passed(event: u16, index: u16, steps: u32) -> bool {
    u32::from(index.wrapping_sub(event).wrapping_sub(1)) < steps
}

/// What was published and not asked about: how many elements, and how many the last answer was for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calls {
    due: u32,
    answered: u32,
}

impl Calls {
    /// So many elements more were published. Beyond 2^16 they pass any index.
    #[inline]
    pub fn published(&mut self, elements: u16) {
        self.due = self.due.saturating_add(elements.into());
    }

    /// Whether there is something to ask for.
    #[inline]
    pub fn due(&self) -> bool {
        self.due != 0
    }

    /// What is asked for now; it isn't due any more.
    #[inline]
    pub fn ask(&mut self) -> u32 {
        self.answered = self.due;
        self.due = 0;
        self.answered
    }

    /// What was asked for last is due again.
    #[inline]
    pub fn withheld(&mut self) {
        self.due = self.due.saturating_add(self.answered);
        self.answered = 0;
    }
}
