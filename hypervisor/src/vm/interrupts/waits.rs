//! The NMI and the INIT that a vCPU can't take yet.

/// What was asked for, and waits until the guest can take it. One byte: it is looked at before each
/// entry.
#[derive(Clone, Copy, Default)]
pub struct Waits(u8);

impl Waits {
    pub const NMI: u8 = 1 << 0;
    /// A guest that runs guests of its own holds it back.
    pub const INIT: u8 = 1 << 1;

    #[inline(always)]
    pub fn any(self) -> bool {
        self.0 != 0
    }

    pub fn has(self, what: u8) -> bool {
        self.0 & what != 0
    }

    pub fn set(&mut self, what: u8, waits: bool) {
        self.0 = if waits { self.0 | what } else { self.0 & !what };
    }
}
