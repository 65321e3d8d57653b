//! What a guest of this kernel's costs the host: windows for the counting plugin.

use super::block::{self, Guest, exit};
use super::paging::{self, PAGES};
use super::{begin, end, inside};
use crate::{boot::Boot, console::check};

/// The harness knows the number.
const MEASURED: u64 = 1000;

/// IA32_FEATURE_CONTROL.
const MSR: u64 = 0x3A;

/// The plugin's marker (bench/plugin): a window opens or closes here.
macro_rules! edge {
    ($number:literal) => {
        // SAFETY: a NOP.
        unsafe { core::arch::asm!(".byte 0x0F, 0x1F, 0x84, 0x00", concat!(".long ", $number)) }
    };
}

pub(super) use edge;

/// CPUID of the guest's, told, and VMRUN; the same with clean bits; a port's and an MSR's; then
/// first touches of pages, each with a fault that is told, and a call.
pub fn instructions(test: &str, _: &Boot) {
    if !begin(test) {
        return;
    }
    let mut guest = Guest::new(inside::cpuids());
    let mut right = 0;
    // As hypervisors do, which let their interrupts in.
    let mut once = |guest: &mut Guest| {
        guest.enter_open();
        right += u64::from(guest.code() == exit::CPUID);
        guest.skip(2);
    };
    (0..100).for_each(|_| once(&mut guest));
    edge!("0x45580001");
    (0..MEASURED).for_each(|_| once(&mut guest));
    edge!("0x45580002");
    // As a hypervisor does that marks what it changed: nothing, here.
    edge!("0x45580001");
    (0..MEASURED).for_each(|_| {
        guest.block().put(block::CLEAN, u64::MAX);
        once(&mut guest);
    });
    edge!("0x45580002");
    check!(test, right == 2 * MEASURED + 100, "{right} exits for CPUID");
    let once = |guest: &mut Guest, at, code| {
        guest.block().put(block::RIP, at);
        guest.block().put(block::CLEAN, 0);
        guest.registers.rcx = MSR;
        guest.enter_open();
        assert!(guest.code() == code, "{:#x} isn't {code:#x}", guest.code());
    };
    let [(port, ioio), (msr, read)] =
        [(inside::writes_port(), exit::IOIO), (inside::reads_msr(), exit::MSR)];
    (0..100).for_each(|_| once(&mut guest, port, ioio));
    edge!("0x45580001");
    (0..MEASURED).for_each(|_| once(&mut guest, port, ioio));
    edge!("0x45580002");
    (0..100).for_each(|_| once(&mut guest, msr, read));
    edge!("0x45580001");
    (0..MEASURED).for_each(|_| once(&mut guest, msr, read));
    edge!("0x45580002");

    let mut guest = paging::guest();
    let mut came = 0;
    edge!("0x45580001");
    for page in 0..PAGES {
        guest.restart(inside::touches());
        guest.registers.rsi = paging::AREA + (page << 12);
        guest.enter_open();
        paging::map(page, page, paging::ALL);
        guest.enter_open();
        came += u64::from(guest.code() == exit::VMMCALL);
    }
    edge!("0x45580002");
    block::let_in();
    check!(test, came == PAGES, "{came} of {PAGES} pages came");
    end();
}
