//! What others post to a vCPU, in memory, and the interrupt that tells its core.

use crate::cpu::x2apic;
use crate::{interrupts, memory};
use vmx::{Descriptor, Notification};

/// A page for each: Bochs 3.0 wants a descriptor to begin one.
const ALIGNMENT: u64 = 4096;

/// The descriptor of one vCPU.
#[derive(Clone, Copy, Debug)]
pub struct Posts(&'static Descriptor);

impl Posts {
    /// For a vCPU on the core with this APIC id; `None` when memory runs out.
    pub fn new(apic_id: u32) -> Option<Posts> {
        let at = memory::allocate(Descriptor::BYTES as u64, ALIGNMENT)?;
        let at = at as *mut Descriptor;
        let to = Notification { destination: apic_id, vector: interrupts::POSTED };
        // SAFETY: just allocated with this size, aligned, identity-mapped, and never freed.
        Some(Posts(unsafe {
            at.write(Descriptor::new(to));
            &*at
        }))
    }

    /// Posts a vector, from any core.
    pub fn post(self, vector: u8) {
        if let Some(Notification { destination, vector }) = self.0.post(vector) {
            x2apic::send_ipi(destination, vector);
        }
    }

    /// The vCPU's core, out of the guest: takes what was posted.
    #[inline]
    pub fn take(self) -> Option<[u64; 4]> {
        self.0.take()
    }

    /// For the control structure: the descriptor, and its physical address.
    pub fn descriptor(self) -> (&'static Descriptor, u64) {
        (self.0, core::ptr::from_ref(self.0) as u64)
    }
}
