//! What a guest does with the interrupts that it takes itself.

use crate::ground;
use machine::{boot::Boot, cpu, edu, wait};

/// How often the device raises its interrupt at deaf ears.
const RAISES: u32 = 2000;
/// Some seconds in all.
const PAUSE: u64 = 2_000_000;

/// Interrupts off for seconds, while the device raises them.
pub fn off(_: &str, _: &Boot) {
    let Some(device) = ground::device() else { return };
    device.aim_handled(ground::VECTOR);
    cpu::disable_interrupts();
    for _ in 0..RAISES {
        edu::raise();
        wait::ticks(PAUSE);
    }
}
