//! A VM that resets itself and looks for what it left: in memory, in its registers, in its devices.
//! All must be as at its first start, which is looked at in the same way.
//!
//! Which life it is tells [`machine::lives`].

use super::state::something_else;
use crate::counters::{Policy, policy};
use crate::nvme::Nvme;
use crate::state::{self, State};
use crate::{
    boot::Boot, console::check, console::println, cpu, edu, idt, pci, random::Random, wait, x2apic,
};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
pub use machine::lives::{lives, reset};

/// What is written all over memory.
const MARK: u64 = 0x4C45_4654_4F56_4552;
/// Low memory that no loader needs once the kernel runs.
const LOW: Range<u64> = 0x1_0000..0x8_0000;
/// Zero in the image, and so not in its file.
static ZEROS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

const UART: u16 = 0x3F8;
const IOAPIC: u64 = 0xFEC0_0000;
const MTRR_DEFAULT: u32 = 0x2FF;
/// Pages that DMA may reach after a reset, if the device wasn't reset.
const PAGE: u64 = 4096;

/// Looks at memory and at the emulated chips, leaves marks everywhere, resets, looks again.
pub fn memory_and_chips(test: &str, boot: &Boot) {
    if policy() == Policy::Bare {
        return check!(test, false, "firmware leaves its own marks");
    }
    let life = lives();
    println!("life {life}");
    // The first life's kernel hasn't been anywhere yet: the same must hold.
    let apic = x2apic::left_over_at_start();
    check!(test, apic == 0, "life {life}: left over in the local APIC: {apic:#x}");
    let default = cpu::rdmsr(MTRR_DEFAULT);
    let chips = [
        ("the UART's interrupts are off", cpu::inb(UART + 1) == 0),
        ("the UART's scratch register", cpu::inb(UART + 7) == 0),
        ("IOAPIC entry 4 is masked", ioapic(0x18) >> 16 & 1 == 1),
    ];
    for (what, good) in chips {
        check!(test, good, "life {life}: {what}");
    }
    let marked = marked(boot);
    check!(test, marked == 0, "life {life}: {marked} words of memory are as the kernel left them");
    if life > 0 {
        check!(test, default != DEFAULT_LEFT, "memory types are as at the start: {default:#x}");
        return;
    }
    leave_marks(boot);
    reset()
}

/// Write-through by default, MTRRs on: not what a PC starts with.
const DEFAULT_LEFT: u64 = 0x804;

fn ioapic(register: u32) -> u32 {
    cpu::mmio_write(IOAPIC, register);
    cpu::mmio_read(IOAPIC + 0x10)
}

/// Memory that nobody uses between two lives.
fn memory(boot: &Boot) -> impl Iterator<Item = *mut u64> {
    let words = |r: Range<u64>| r.step_by(8).map(|a| a as *mut u64);
    words(boot.free_memory()).chain(words(LOW))
}

fn marked(boot: &Boot) -> usize {
    // SAFETY: free by the loader's map.
    let words = memory(boot).filter(|word| unsafe { word.read_volatile() } == MARK).count();
    words + ZEROS.iter().filter(|word| word.load(SeqCst) != 0).count()
}

fn leave_marks(boot: &Boot) {
    // SAFETY: free by the loader's map, and what the loader left there has been read.
    memory(boot).for_each(|word| unsafe { word.write_volatile(MARK) });
    ZEROS.iter().for_each(|word| word.store(MARK, SeqCst));
    let left = marked(boot);
    println!("  {left} words are marked");
    cpu::outb(UART + 7, 0x5A);
    cpu::mmio_write(IOAPIC, 0x18);
    cpu::mmio_write(IOAPIC + 0x10, 0x44);
    cpu::wrmsr(MTRR_DEFAULT, DEFAULT_LEFT);
    idt::on(0x50, |_| x2apic::complete());
    x2apic::start_timer(0x50, true, u32::MAX);
    cpu::set_cr8(15);
    cpu::outb(UART + 1, 0x0F);
    x2apic::self_ipi(0x60);
}

/// The same with all registers that a guest reaches without an exit.
pub fn registers(test: &str, _: &Boot) {
    let life = lives();
    println!("life {life}");
    let xcr0 = state::prepare(true);
    check!(test, xcr0 == 1, "life {life}: XCR0 is {xcr0:#x}");
    let found = State::now();
    found.not_reset().for_each(|what| println!("  {what}"));
    let odd = found.not_reset().count();
    check!(test, odd == 0, "life {life}: {odd} registers aren't as after a reset");
    if life == 0 {
        State::random(&mut Random::new(MARK)).load();
        // On a shared core the host has kept all of it by then.
        let away = something_else();
        check!(test, away, "life {life}: others had the core");
        reset()
    }
}

fn find(identity: u32) -> Option<pci::Function> {
    pci::Function::all().find(|f| f.read(0) == identity)
}

/// Devices at work when their VM resets; in the second life they are as after a reset, and reach
/// nothing.
pub fn devices(test: &str, boot: &Boot) {
    let life = lives();
    println!("life {life}");
    let Some(nvme) = pci::Function::all().find(|f| f.present() && Nvme::is(*f)) else {
        return check!(test, false, "no NVMe controller on bus 0");
    };
    for (name, function, capability) in
        [("NVMe", Some(nvme), pci::MSIX), ("edu", find(edu::IDENTITY), pci::MSI)]
    {
        let Some(function) = function else { return check!(test, false, "no {name}") };
        let command = function.read(pci::COMMAND) & 0x7;
        let control = function.capability(capability).map(|at| function.read(at) >> 16);
        let enabled = if capability == pci::MSIX { 1 << 15 } else { 1 };
        check!(
            test,
            command == 0 && control.is_some_and(|c| c & enabled == 0),
            "life {life}: {name}: command {command:#x}, message control {control:x?}"
        );
    }
    let Some(edu) = super::edu(test) else { return };
    let Some(mut nvme) = Nvme::find() else {
        return check!(test, false, "its registers can't be placed");
    };
    let enabled = nvme.is_enabled();
    check!(test, !enabled, "life {life}: the controller isn't enabled");
    let target = boot.free_memory().start.next_multiple_of(PAGE);
    let word = || {
        // SAFETY: free by the loader's map.
        unsafe { (target as *const u64).read_volatile() }
    };
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let n = edu.raise_and_wait(0x40, 3);
    cpu::disable_interrupts();
    check!(test, n == 3, "life {life}: edu interrupts: {n} of 3");
    if life > 0 {
        // Told to go on where it was: it knows of no queue.
        nvme.leave_commands(target);
        nvme.ring(4, 0);
        wait::settle();
        let silent = !nvme.has_completed() && word() == 0;
        check!(test, silent, "life {life}: the controller does nothing by itself");
        let works = nvme.start() && nvme.identify_to(target) == Some(0) && word() != 0;
        return check!(test, works, "life {life}: set up again, it works");
    }
    let works = nvme.start() && nvme.identify_to(target) == Some(0) && word() != 0;
    check!(test, works, "life {life}: set up, it works");
    reset()
}
