//! A vCPU's part in the shadows of its VM.

use delivery::VectorSet;

/// Whether a vCPU takes its interrupts through a shadow.
#[derive(Default)]
pub struct Shadow {
    /// Guest-physical page of its IDT, while the page's shadow is in place for it.
    page: Option<u64>,
    /// The vectors that are hidden in it.
    hidden: VectorSet,
    /// It was just removed, for an instruction of the guest's that the host doesn't emulate. The
    /// guest executes it at the next entry; the shadow isn't placed again before that.
    hold: bool,
}

impl Shadow {
    /// Is it in place?
    pub fn placed(&self) -> bool {
        self.page.is_some()
    }

    /// The vectors that are hidden in it.
    pub fn hidden(&self) -> VectorSet {
        self.hidden
    }

    /// Was it just removed, and must it stay away for one entry? Asked once.
    #[inline]
    pub fn take_hold(&mut self) -> bool {
        core::mem::take(&mut self.hold)
    }

    /// From here on it is in the place of the guest's `page`.
    pub fn set(&mut self, page: u64, hidden: VectorSet) {
        self.page = Some(page);
        self.hidden = hidden;
    }

    /// It is gone, or about to be. True: it was in place.
    pub fn clear(&mut self) -> bool {
        self.hold = true;
        self.hidden = VectorSet::EMPTY;
        self.page.take().is_some()
    }
}
