//! Every mode of the local APIC, and every way between two: what the manuals allow happens, what
//! they refuse raises #GP, interrupts come in each mode as they must, and in x2APIC mode without an
//! exit again.

use super::edu;
use crate::counters::{Policy, Window, policy};
use crate::xapic::{self, Mode};
use crate::{boot::Boot, console::check, cpu, edu as device, idt, wait, x2apic};
use ledger::Reason;

const MODES: [Mode; 4] = [Mode::Off, Mode::Invalid, Mode::Xapic, Mode::X2apic];
const PROTECTION: u8 = 13;
const SHORT: u32 = 1_000_000;
const CURRENT_COUNT: u32 = 0x839;
const SPURIOUS: u32 = 0x80F;
const ERROR_ENTRY: u32 = 0x837;

/// Brings this CPU to a mode that there is.
fn bring(mode: Mode) {
    x2apic::init_cpu();
    if matches!(mode, Mode::Off | Mode::Xapic) {
        cpu::wrmsr(xapic::BASE, cpu::rdmsr(xapic::BASE) & 0x100 | xapic::PAGE);
    }
    if mode == Mode::Xapic {
        xapic::enter();
    }
}

fn set_priority(priority: u32) {
    xapic::write(x2apic::TPR, priority);
}

fn shown() -> bool {
    cpu::cpuid(1).edx >> 9 & 1 == 1
}

/// The manual's figure, arrow by arrow, and reserved bits.
pub fn transitions(test: &str, _: &Boot) {
    let allowed = |from, to| {
        to != Mode::Invalid
            && !matches!((from, to), (Mode::Off, Mode::X2apic) | (Mode::X2apic, Mode::Xapic))
    };
    for from in [Mode::Off, Mode::Xapic, Mode::X2apic] {
        for to in MODES {
            bring(from);
            let done = xapic::try_mode(to);
            let now = if allowed(from, to) { to } else { from };
            let right = done.err().map(|f| f.vector) == (!allowed(from, to)).then_some(PROTECTION)
                && xapic::mode() == now as u64
                && shown() == (now != Mode::Off);
            check!(
                test,
                right,
                "{from:?} to {to:?}: {}",
                if done.is_ok() { "done" } else { "#GP" }
            );
        }
    }
    bring(Mode::X2apic);
    let home = cpu::rdmsr(xapic::BASE);
    for reserved in [1, 1 << 7, 1 << 9, 1 << 52, 1 << 63] {
        let refused = cpu::try_wrmsr(xapic::BASE, home | reserved).is_err();
        check!(test, refused && cpu::rdmsr(xapic::BASE) == home, "reserved bit {reserved:#x}: #GP");
    }
    if policy() != Policy::Bare {
        relocated(test);
    }
    bring(Mode::X2apic);
}

/// The page at another place: where nothing is, but not over memory.
fn relocated(test: &str) {
    const ELSEWHERE: u64 = 0xFED4_0000;
    bring(Mode::Xapic);
    let (base, version) = (cpu::rdmsr(xapic::BASE) & 0xFFF, xapic::read(0x803));
    let moved = cpu::try_wrmsr(xapic::BASE, base | ELSEWHERE).is_ok();
    let there = cpu::mmio_read(ELSEWHERE + 0x30);
    check!(test, moved && there == version, "the page moves to where nothing is");
    let gone = cpu::mmio_read(xapic::PAGE + 0x30);
    check!(test, gone == u32::MAX, "and is gone from where it was: {gone:#x}");
    for taken in [0x10_0000, 0xC000_0000, 0xFEC0_0000] {
        let refused = cpu::try_wrmsr(xapic::BASE, base | taken).is_err();
        check!(test, refused, "it doesn't move over what is at {taken:#x}");
    }
    cpu::wrmsr(xapic::BASE, base | xapic::PAGE);
}

/// The page's registers, by the manual.
pub fn registers(test: &str, _: &Boot) {
    bring(Mode::X2apic);
    let (id, version) = (cpu::rdmsr(0x802) as u32, cpu::rdmsr(0x803) as u32);
    bring(Mode::Xapic);
    let msrs = (0x800..0x900).filter(|msr| cpu::try_rdmsr(*msr).is_ok()).count();
    check!(test, msrs == 0, "{msrs} x2APIC registers can be read in xAPIC mode");
    let written = cpu::try_wrmsr(x2apic::TPR, 0).is_ok();
    check!(test, !written, "nor written");
    check!(test, xapic::read(0x802) == id << 24, "the id is in the upper eight bits");
    check!(test, xapic::read(0x803) as u8 == version as u8, "the version is the same");
    for (what, register, value, reads) in [
        ("logical destination", xapic::LOGICAL_DESTINATION, 0x4200_0000, 0x4200_0000),
        ("cluster model", xapic::FORMAT, 0x0FFF_FFFF, 0x0FFF_FFFF),
        ("flat model", xapic::FORMAT, 0xFFFF_FFFF, 0xFFFF_FFFF),
        ("command's destination", xapic::COMMAND_HIGH, 0x0300_0000, 0x0300_0000),
        ("divider", 0x83E, 0xB, 0xB),
        ("task priority", x2apic::TPR, 0x30, 0x30),
        ("timer's entry", 0x832, 0x3_00EC, 0x3_00EC),
        ("error's entry", ERROR_ENTRY, 0x1_00E1, 0x1_00E1),
    ] {
        xapic::write(register, value);
        let now = xapic::read(register);
        check!(test, now == reads, "{what}: {value:#x} reads {now:#x}");
    }
    check!(test, cpu::cr8() == 3, "the task priority is CR8's");
    cpu::set_cr8(0);
    check!(test, xapic::read(x2apic::TPR) == 0, "and the other way round");
    xapic::write(0x832, 0x1_0000);
    if policy() != Policy::Bare {
        errors(test);
    }
    bring(Mode::X2apic);
}

/// A register that isn't there, a vector that can't be: noted, and told of by an interrupt.
fn errors(test: &str) {
    for (what, bit, wrong) in [
        ("a register that isn't there", 7, (|| xapic::write(0x840, 1)) as fn()),
        ("a vector below 16", 5, || x2apic::send(0, 3)),
    ] {
        idt::on(0xE1, |_| x2apic::complete());
        xapic::write(xapic::ERROR_STATUS, 0);
        xapic::write(ERROR_ENTRY, 0xE1);
        let before = idt::count(0xE1);
        cpu::enable_interrupts();
        wrong();
        let told = wait::until(|| idt::count(0xE1) == before + 1);
        cpu::disable_interrupts();
        xapic::write(xapic::ERROR_STATUS, 0);
        let status = xapic::read(xapic::ERROR_STATUS);
        check!(test, told && status == 1 << bit, "{what}: told of, status {status:#x}");
    }
    xapic::write(ERROR_ENTRY, 0x1_0000);
}

/// Timer, commands to itself, devices: in xAPIC mode, and in x2APIC mode afterwards.
pub fn interrupts(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(0x40);
    bring(Mode::Xapic);
    for vector in [0x50, 0x60, 0x70] {
        idt::on(vector, |_| x2apic::complete());
    }
    cpu::enable_interrupts();
    let handled = edu.raise_and_wait(0x40, 50);
    check!(test, handled == 50, "xAPIC: {handled} of 50 device interrupts");

    x2apic::start_timer(0x50, false, SHORT);
    let fired = wait::until(|| idt::count(0x50) == 1);
    wait::settle();
    let once = idt::count(0x50) == 1 && x2apic::timer_count() == 0;
    check!(test, fired && once, "xAPIC: a one-shot timer fires once");
    x2apic::start_timer(0x50, true, 2 * SHORT);
    let fired = wait::until(|| idt::count(0x50) >= 11);
    x2apic::stop_timer();
    check!(test, fired, "xAPIC: a periodic timer fires");

    for n in 1..=20 {
        x2apic::self_ipi(0x60);
        wait::until(|| idt::count(0x60) == n);
    }
    check!(test, idt::count(0x60) == 20, "xAPIC: {} of 20 from itself", idt::count(0x60));
    set_priority(0x70);
    x2apic::self_ipi(0x70);
    wait::settle();
    let held = idt::count(0x70) == 0 && x2apic::requested(0x70);
    set_priority(0x60);
    let came = wait::until(|| idt::count(0x70) == 1);
    set_priority(0);
    check!(test, held && came, "xAPIC: the task priority holds one back and lets it in");

    idt::on(0x61, |_| {});
    x2apic::self_ipi(0x61);
    wait::until(|| idt::count(0x61) == 1);
    check!(test, x2apic::in_service(0x61), "xAPIC: it is in service until its EOI");
    // It stays so in x2APIC mode.
    xapic::leave();
    check!(test, x2apic::in_service(0x61), "x2APIC: it still is");
    device::raise();
    wait::settle();
    let held = !x2apic::in_service(0x40);
    x2apic::complete();
    check!(test, held && !x2apic::in_service(0x61), "x2APIC: until its EOI");
    cpu::enable_interrupts();
    wait::until(|| idt::count(0x40) == 51);
    exitless_again(test, &edu);
    edu.silence();
}

/// In x2APIC mode a device's interrupts cost what they cost before.
fn exitless_again(test: &str, edu: &device::Edu) {
    wait::settle();
    edu.aim_handled(0x48);
    cpu::enable_interrupts();
    // The first one may find the vCPU on its way.
    let first = edu.raise_and_wait(0x48, 1);
    let before = idt::count(0x48);
    let window = Window::open();
    let handled = edu.raise_and_wait(0x48, 50) - before;
    let counted = window.close();
    check!(test, first >= 1 && handled == 50, "x2APIC: {handled} of 50 device interrupts");
    counted.expect(test, Reason::DeviceInterrupt, 50..=50, 0..=0);
    counted.expect(test, Reason::DeviceEoi, 50..=50, 0..=0);
    counted.expect_none(test);
}

/// Off, and disabled by software: nothing comes, nothing is left, and then all is as before.
pub fn disabled(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    bring(Mode::X2apic);
    edu.aim_handled(0x40);
    idt::on(0x50, |_| x2apic::complete());
    for (what, from) in [("x2APIC", Mode::X2apic), ("xAPIC", Mode::Xapic)] {
        bring(from);
        cpu::disable_interrupts();
        let all = || [0x40, 0x50, 0x60].map(idt::count).iter().sum::<u64>();
        let before = all();
        x2apic::self_ipi(0x60);
        x2apic::start_timer(0x50, true, SHORT);
        device::raise();
        wait::until(|| x2apic::requested(0x60) && x2apic::requested(0x50));
        let off = xapic::try_mode(Mode::Off).is_ok();
        let gone = policy() == Policy::Bare || cpu::try_rdmsr(CURRENT_COUNT).is_err();
        let page = policy() == Policy::Bare || cpu::mmio_read(xapic::PAGE + 0x30) == u32::MAX;
        check!(test, off && gone && page, "{what} off: neither MSRs nor page");
        cpu::enable_interrupts();
        device::raise();
        wait::settle();
        let came = all() - before;
        check!(test, came == 0, "{what} off: {came} interrupts come");
        bring(Mode::X2apic);
        cpu::enable_interrupts();
        wait::settle();
        let (came, left) = (all() - before, x2apic::left_over());
        // A divider isn't an interrupt.
        check!(test, came == 0 && left == 0, "{what} on again: {came} come, {left:#x} is left");
        edu.aim_handled(0x40);
        let n = idt::count(0x40);
        let handled = edu.raise_and_wait(0x40, 20) - n;
        check!(test, handled == 20, "{what} on again: {handled} of 20");
    }
    by_software(test, &edu);
    exitless_again(test, &edu);
    edu.silence();
}

fn by_software(test: &str, edu: &device::Edu) {
    for (what, mode) in [("x2APIC", Mode::X2apic), ("xAPIC", Mode::Xapic)] {
        bring(mode);
        cpu::disable_interrupts();
        let set = |value: u32| match mode {
            Mode::Xapic => xapic::write(SPURIOUS, value),
            _ => cpu::wrmsr(SPURIOUS, value.into()),
        };
        idt::on(0x60, |_| x2apic::complete());
        let (device, own) = (idt::count(0x40), idt::count(0x60));
        x2apic::self_ipi(0x60);
        wait::until(|| x2apic::requested(0x60));
        set(0xFF);
        device::raise();
        wait::settle();
        let kept = x2apic::requested(0x60) && !x2apic::requested(0x40);
        check!(test, kept, "{what} disabled by software: keeps what it has, accepts no more");
        set(0x1FF);
        cpu::enable_interrupts();
        let came = wait::until(|| idt::count(0x60) == own + 1);
        wait::settle();
        let lost = idt::count(0x40) == device;
        check!(test, came && lost, "{what} enabled: what waited comes, what was refused doesn't");
        edu.aim_handled(0x40);
        let handled = edu.raise_and_wait(0x40, 5) - device;
        check!(test, handled == 5, "{what} enabled: {handled} of 5");
    }
    bring(Mode::X2apic);
}
