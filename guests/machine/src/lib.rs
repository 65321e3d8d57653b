//! The bare machine under every test kernel: from the loader's jump to `kernel`, with a console,
//! an interrupt table for all 256 vectors, the local APIC, further CPUs, PCI and the `edu` device.
//!
//! A kernel defines `kernel` (see [`kernel!`]) and its build script links with `kernel.ld`.
//! Guarantees: code here runs bare and as a guest alike, and doesn't know which; a panic is a line
//! `FAIL panic: …` and the debug-exit value [`power::FAILED`].
#![no_std]

extern crate alloc;

pub mod acpi;
pub mod alias;
pub mod amdvi;
pub mod boot;
pub mod console;
pub mod counters;
pub mod cpu;
pub mod edu;
mod entry;
pub mod idt;
pub mod legacy;
pub mod lives;
pub mod nvme;
pub mod pci;
pub mod power;
pub mod random;
pub mod smp;
pub mod state;
pub mod unit;
pub mod viommu;
pub mod virtio;
pub mod virtio_blk;
pub mod virtio_net;
pub mod virtqueue;
pub mod vtd;
pub mod wait;
pub mod x2apic;
pub mod xapic;

use core::alloc::{GlobalAlloc, Layout};

/// Makes a function what runs once the machine is set up: `kernel!(main)` for `fn main(&Boot) ->
/// !`.
#[macro_export]
macro_rules! kernel {
    ($main:path) => {
        /// Called by the machine's entry.
        #[unsafe(no_mangle)]
        fn kernel(boot: &$crate::boot::Boot) -> ! {
            $main(boot)
        }
    };
}

unsafe extern "Rust" {
    safe fn kernel(boot: &boot::Boot) -> !;
}

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

fn begin(info: u64) -> ! {
    let boot = boot::Boot::read(info);
    idt::init();
    x2apic::note_left_over();
    x2apic::init();
    counters::init(boot.option("policy"), boot.option("shared").is_some());
    kernel(&boot)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    println!("FAIL panic: {info}");
    power::debug_exit(power::FAILED)
}
