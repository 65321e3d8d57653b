//! How the hypervisor ends: done, refused to boot, or panicked.

use crate::{console::uart, cpu::port};
use core::panic::PanicInfo;

/// Exit code: every VM ended and was reported.
pub const DONE: u32 = 0x10;
/// Exit code: a bug in the hypervisor.
pub const PANICKED: u32 = 0x11;

/// The debug-exit device; where there is none, the machine stands still.
const DEBUG_EXIT: u16 = 0xF4;

/// Ends the machine with `code`.
pub fn exit(code: u32) -> ! {
    uart::drain();
    port::write32(DEBUG_EXIT, code);
    loop {
        // SAFETY: stopping for good is what is wanted; nothing is left half done that matters.
        unsafe { core::arch::asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    uart::raw(format_args!("exitless: {info}\n"));
    exit(PANICKED)
}
