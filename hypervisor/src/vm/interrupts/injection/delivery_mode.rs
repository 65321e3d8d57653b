//! A vCPU's delivery mode, and the virtual interrupt that is on offer.

use delivery::Mode;

/// The mode, and the interrupt on offer.
pub struct DeliveryMode {
    mode: Mode,
    /// The virtual interrupt that the guest will take at the first chance.
    offered: Option<u8>,
}

impl DeliveryMode {
    /// Injection mode, with nothing on offer: as a vCPU starts.
    pub fn new() -> Self {
        DeliveryMode { mode: Mode::Injection, offered: None }
    }

    /// The mode that the vCPU is in.
    #[inline]
    pub fn current(&self) -> Mode {
        self.mode
    }

    /// It changes. In a mode that isn't injection nothing is on offer.
    pub fn set(&mut self, mode: Mode) {
        self.mode = mode;
        if mode != Mode::Injection {
            self.offered = None;
        }
    }

    /// The virtual interrupt on offer.
    #[inline]
    pub fn offered(&self) -> Option<u8> {
        self.offered
    }

    /// Another is on offer from here on, or none.
    pub fn offer(&mut self, vector: Option<u8>) {
        self.offered = vector;
    }
}
