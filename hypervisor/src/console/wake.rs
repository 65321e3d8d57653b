//! How other cores get core 0's attention for what they left in their rings.

use crate::cpu::{self, x2apic};
use crate::interrupts;

/// Wakes core 0, if it sleeps in [`serve`](super::serve).
pub fn wake() {
    if let Some(host) = cpu::get(0) {
        x2apic::send_ipi(host.apic_id, interrupts::WAKE);
    }
}
