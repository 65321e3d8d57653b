//! Exit statuses of `exitless run`. What a guest chooses ([`of_guest`]) is never one of
//! the others, nor one of a shell's (126, 127, 128 and above).

/// Every VM powered itself off, or was reset.
pub const OK: u8 = 0;
/// The command line couldn't do what it was asked.
pub const FAILED: u8 = 1;
/// The hypervisor refused the machine or the plan.
pub const REFUSED: u8 = 2;
/// A VM was stopped because of what it did.
pub const FAULT: u8 = 3;
/// The hypervisor failed.
pub const PANIC: u8 = 4;
/// QEMU ended by itself.
pub const QEMU: u8 = 5;
/// `--timeout` was over.
pub const TIMEOUT: u8 = 124;
/// ^C, or the console was left before the VMs had ended.
pub const INTERRUPTED: u8 = 130;
/// What is added to the value that a guest wrote to the debug-exit port.
pub const GUEST: u8 = 20;
/// A guest's value that is too large for a status of its own.
pub const GUEST_LARGE: u8 = 100;

/// The status for a value that a guest wrote to the debug-exit port: 20 to 99 for 0 to 79,
/// 100 for all others.
pub fn of_guest(value: u32) -> u8 {
    let own = u8::try_from(value).ok().and_then(|value| value.checked_add(GUEST));
    own.filter(|status| *status < GUEST_LARGE).unwrap_or(GUEST_LARGE)
}
