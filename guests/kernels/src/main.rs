//! The test kernel: runs the tests named on its command line (`test=a,b`), bare or
//! as a guest of Exitless, and says of each thing checked `ok` or `FAIL`.
//!
//! The same test asserts the same behaviour on both; as a guest it also compares
//! the host's exit counters with what the policy (`policy=trap`, `eli` or `direct`)
//! allows. Ends by the debug-exit port with [`power::PASSED`] or
//! [`power::FAILED`], unless the test is about another end.
#![no_std]
#![no_main]

extern crate alloc;

mod acpi;
mod boot;
mod console;
mod counters;
mod cpu;
mod edu;
mod entry;
mod idt;
mod pci;
mod power;
mod random;
mod smp;
mod tests;
mod wait;
mod x2apic;

use console::println;
use core::alloc::{GlobalAlloc, Layout};

/// The ledger's records want an allocator; nothing here does.
struct NoHeap;

// SAFETY: gives no memory, so it breaks no promise about memory.
unsafe impl GlobalAlloc for NoHeap {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static HEAP: NoHeap = NoHeap;

fn main(info: u64) -> ! {
    let boot = boot::Boot::read(info);
    idt::init();
    x2apic::init();
    counters::init(boot.option("policy"));
    let names = boot.option("test").unwrap_or("hello");
    println!("kernel: {names}, {:?}, by {}", counters::policy(), boot.protocol);
    for name in names.split(',') {
        match tests::ALL.iter().find(|(n, _)| *n == name) {
            Some((name, test)) => {
                idt::reset();
                test(name, &boot);
                cpu::disable_interrupts();
            }
            None => console::check!(name, false, "no such test"),
        }
    }
    power::debug_exit(if console::failed() { power::FAILED } else { power::PASSED })
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    println!("FAIL panic: {info}");
    power::debug_exit(power::FAILED)
}
