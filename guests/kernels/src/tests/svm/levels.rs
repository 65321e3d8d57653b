//! The same exits at one level and at two: windows for the counting plugin around this kernel's own
//! instructions that exit, and around its guest's, each told to this kernel.
//!
//! Turtles' micro-benchmarks (Ben-Yehuda et al., OSDI 2010, section 5). `lab/src/bench/nested`
//! knows the windows, their order and how often each is done.

use super::block::{Guest, exit};
use super::paging::{self, PAGES};
use super::{begin, block, end, inside};
use crate::{boot::Boot, console::check, cpu};
use core::arch::asm;

const TIMES: u64 = 1000;
/// Before a window, so that caches of whoever is below are as they stay.
const WARM: u64 = 100;
/// A register that every hypervisor answers itself: the APIC's base.
const OWN_MSR: u32 = 0x1B;
const INNER_MSR: u64 = 0xC000_0102;

/// The plugin's markers (bench/plugin): a window opens, and closes.
macro_rules! marked {
    ($body:expr) => {{
        // SAFETY: a NOP.
        unsafe { asm!(".byte 0x0F, 0x1F, 0x84, 0x00", ".long 0x45580001") }
        $body;
        // SAFETY: a NOP.
        unsafe { asm!(".byte 0x0F, 0x1F, 0x84, 0x00", ".long 0x45580002") }
    }};
}

/// Eight windows: CPUID, a port's and an MSR's read of its own; the guest's CPUID, port, MSR and
/// VMMCALL; then first touches of pages of the guest's.
pub fn levels(test: &str, _: &Boot) {
    if !begin(test) {
        return;
    }
    own(&mut || {
        cpu::cpuid(0);
    });
    own(&mut || {
        // SAFETY: reads the interrupt controller's mask.
        unsafe { asm!("in al, 0x21", out("al") _, options(nomem, nostack)) }
    });
    own(&mut || {
        cpu::rdmsr(OWN_MSR);
    });

    let mut guest = Guest::new(inside::cpuids());
    for (name, at, code) in [
        ("CPUID", inside::cpuids(), exit::CPUID),
        ("OUT", inside::writes_port(), exit::IOIO),
        ("RDMSR", inside::reads_msr(), exit::MSR),
        ("VMMCALL", inside::hypercall(), exit::VMMCALL),
    ] {
        let mut right = 0;
        let mut once = || {
            guest.block().put(block::RIP, at);
            guest.registers.rcx = INNER_MSR;
            guest.enter_open();
            right += u64::from(guest.code() == code);
        };
        (0..WARM).for_each(|_| once());
        marked!((0..TIMES).for_each(|_| once()));
        check!(test, right == WARM + TIMES, "{name}: {right} exits of {}", WARM + TIMES);
    }

    let mut guest = paging::guest();
    let mut came = 0;
    marked!(for page in 0..PAGES {
        guest.restart(inside::touches());
        guest.registers.rsi = paging::AREA + (page << 12);
        guest.enter_open();
        paging::map(page, page, paging::ALL);
        guest.enter_open();
        came += u64::from(guest.code() == exit::VMMCALL);
    });
    block::let_in();
    check!(test, came == PAGES, "{came} of {PAGES} pages came");
    end();
}

/// A window of this kernel's own.
fn own(once: &mut dyn FnMut()) {
    (0..WARM).for_each(|_| once());
    marked!((0..TIMES).for_each(|_| once()));
}
