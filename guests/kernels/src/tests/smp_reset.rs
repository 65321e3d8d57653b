//! A function-level reset by one CPU, during which another rewrites the device's MSI-X table:
//! afterwards the device is as after a reset, and what the table says is what it does.

use crate::{
    boot::Boot, console::check, cpu, edu::message_address, idt, nvme::Nvme, pci, smp, wait, x2apic,
};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// PCI Express capability, its device control register, and Initiate Function Level Reset there.
const EXPRESS: u8 = 0x10;
const CONTROL: u8 = 8;
const INITIATE: u32 = 1 << 15;
const CAPABLE: u32 = 1 << 28;
const MSIX_ENABLE: u32 = 1 << 31;
const PAGE: u64 = 4096;
/// Of entry 1 before the reset, and of entry 0 as it is written during the reset.
const BEFORE: u8 = 0x44;
const MEANWHILE: u8 = 0x45;

static TABLE: AtomicU64 = AtomicU64::new(0);
static LEAVE: AtomicU64 = AtomicU64::new(0);
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Writes an entry of the table: a message, not masked.
fn write_entry(table: u64, entry: u64, vector: u8) {
    let at = table + entry * 16;
    cpu::mmio_write(at + 12, 1);
    cpu::mmio_write(at, message_address(0) as u32);
    cpu::mmio_write(at + 4, 0);
    cpu::mmio_write(at + 8, u32::from(vector));
    cpu::mmio_write(at + 12, 0);
}

fn rewrite(_: usize) {
    while LEAVE.load(SeqCst) == 0 {
        write_entry(TABLE.load(SeqCst), 0, MEANWHILE);
        WRITTEN.fetch_add(1, SeqCst);
    }
}

/// The reset, and what is found afterwards.
pub fn rewritten(test: &str, boot: &Boot) {
    if super::cpus(test, boot).is_none() {
        return;
    }
    let Some(mut nvme) = Nvme::find() else { return check!(test, false, "no NVMe controller") };
    let Some((msix, table)) = nvme.table() else { return check!(test, false, "no MSI-X") };
    let function = nvme.function;
    let express = function.capability(EXPRESS);
    let Some(express) = express.filter(|at| function.read(at + 4) & CAPABLE != 0) else {
        return check!(test, false, "no function-level reset");
    };
    for vector in [BEFORE, MEANWHILE] {
        idt::on(vector, |_| x2apic::complete());
    }
    let target = boot.free_memory().start.next_multiple_of(PAGE);
    cpu::enable_interrupts();
    write_entry(table, 0, BEFORE);
    write_entry(table, 1, BEFORE);
    function.write(msix, function.read(msix) | MSIX_ENABLE);
    let works = nvme.start() && nvme.identify_to(target) == Some(0);
    let came = wait::until(|| idt::count(BEFORE) == 1);
    check!(test, works && came, "before: it works, and interrupts");

    TABLE.store(table, SeqCst);
    let mut during = 0;
    let came = smp::others(2, rewrite, || {
        let begun = wait::patiently(|| WRITTEN.load(SeqCst) > 0);
        let control = function.read(express + CONTROL);
        let before = WRITTEN.load(SeqCst);
        function.write(express + CONTROL, control | INITIATE);
        during = WRITTEN.load(SeqCst) - before;
        LEAVE.store(1, SeqCst);
        begun
    });
    check!(test, came && during > 1, "entry 0 was written {during} times during the reset");
    let gone = cpu::mmio_read(table + 12);
    check!(test, gone == u32::MAX, "its registers are off: {gone:#x}");
    let control = (function.read(pci::COMMAND) & 6, function.read(msix) & MSIX_ENABLE);
    check!(test, control == (0, 0), "DMA, registers and MSI-X are off: {control:x?}");

    let Some(mut nvme) = Nvme::find() else { return check!(test, false, "it doesn't come back") };
    check!(test, !nvme.is_enabled(), "the controller isn't enabled");
    let masked = cpu::mmio_read(table + 16 + 12) & 1 == 1;
    check!(test, masked, "entry 1, of before, is masked");
    function.write(msix, function.read(msix) | MSIX_ENABLE);
    // The other CPU may have been amid an entry when the registers went away: masked, then.
    cpu::mmio_write(table + 12, 0);
    let says = (cpu::mmio_read(table + 8) as u8, cpu::mmio_read(table + 12) & 1);
    let works = nvme.start() && nvme.identify_to(target) == Some(0);
    let came = wait::until(|| idt::count(MEANWHILE) == 1);
    let right = says == (MEANWHILE, 0) && works && came && idt::count(BEFORE) == 1;
    check!(test, right, "entry 0 says {says:x?}, and that it does");
    write_entry(table, 0, BEFORE);
    let works = nvme.identify_to(target) == Some(0);
    let came = wait::until(|| idt::count(BEFORE) == 2);
    check!(test, works && came && idt::count(MEANWHILE) == 1, "written anew: it does that");
    nvme.stop();
}
