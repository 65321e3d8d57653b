//! Nonsense in registers: MSRs, I/O ports, PCI configuration. The numbers repeat;
//! the seed is printed. On the bare machine only what can't break it is written.

use super::edu;
use crate::counters::{Policy, Window, policy, shared};
use crate::{
    acpi, boot::Boot, console::check, console::println, cpu, edu, idt, pci, random::Random, wait,
    x2apic,
};
use core::ops::RangeInclusive;
use machine::cpu::MSRS;

const SEED: u64 = 0x0E81_71E5_5000_0001;
const PROTECTION: u8 = 13;

/// MSRs that a guest reaches without an exit under every policy (design.md, "What a guest
/// reaches"); those that it reads so when its local APIC is its own, or the CPU keeps one for it;
/// and those when its core's timer is its own, too.
const OPEN: [RangeInclusive<u32>; 8] = [
    0x48..=0x49,
    0x174..=0x176,
    0x10B..=0x10B,
    0x1D9..=0x1D9,
    0x277..=0x277,
    0xC000_0081..=0xC000_0084,
    0xC000_0100..=0xC000_0103,
    x2apic::CURRENT_COUNT..=x2apic::CURRENT_COUNT,
];
const OPEN_TO_ITS_OWNER: [RangeInclusive<u32>; 3] = [0x808..=0x808, 0x80A..=0x80A, 0x810..=0x827];
const TIMER: [RangeInclusive<u32>; 2] = [0x838..=0x838, 0x83E..=0x83E];
/// MSRs that no guest has: SVM's, VMX's, reserved ones of x2APIC mode, and where nothing is.
const ABSENT: [u32; 8] =
    [0xC001_0117, 0xC001_011A, 0x480, 0x48B, 0x80E, 0x8FF, 0x1FFF, 0xFFFF_FFFF];
/// Registers of the local APIC whose writes exit under every policy, and harmless values: the
/// spurious vector, CMCI and all local vectors.
const LOCAL_VECTORS: [u32; 8] = [0x80F, 0x82F, 0x832, 0x833, 0x834, 0x835, 0x836, 0x837];
const MASKED: u64 = 1 << 16;

/// Exactly these exit.
fn exact_exits(test: &str) {
    if policy() == Policy::Bare {
        return;
    }
    let open = |msr: &u32| {
        let in_any = |ranges: &[RangeInclusive<u32>]| ranges.iter().any(|r| r.contains(msr));
        let direct = policy() == Policy::Direct;
        let count = !shared() && policy() != Policy::Posted || *msr != x2apic::CURRENT_COUNT;
        in_any(&OPEN) && count
            || (direct || policy() == Policy::Posted) && in_any(&OPEN_TO_ITS_OWNER)
            || direct && in_any(&TIMER)
    };
    let wanted = MSRS.into_iter().flatten().filter(|msr| !open(msr)).count() as u64;
    let window = Window::open();
    MSRS.into_iter().flatten().for_each(|msr| {
        let _ = cpu::try_rdmsr(msr);
    });
    let n = window.close().own();
    check!(test, n == wanted, "{n} exits to read every register, {wanted} wanted");
    let window = Window::open();
    for msr in LOCAL_VECTORS {
        let _ = cpu::try_wrmsr(msr, if msr == 0x80F { 0x1FF } else { MASKED });
    }
    let (n, wanted) = (window.close().own(), LOCAL_VECTORS.len() as u64);
    check!(test, n == wanted, "{n} exits to write local vectors, {wanted} wanted");
    for msr in ABSENT {
        let refused = cpu::try_rdmsr(msr).is_err() && cpu::try_wrmsr(msr, 0).is_err();
        check!(test, refused, "{msr:#x} is refused");
    }
}

/// Every MSR read and written.
pub fn bad_msr(test: &str, _: &Boot) {
    exact_exits(test);
    let mut random = Random::new(SEED);
    println!("  seed {SEED:#x}");
    let (mut faults, mut strange) = (0u32, 0u32);
    let mut note = |fault: Option<idt::Fault>| {
        faults += u32::from(fault.is_some());
        strange += u32::from(fault.is_some_and(|f| f.vector != PROTECTION));
    };
    idt::on(2, |_| {});
    for msr in MSRS.into_iter().flatten() {
        note(cpu::try_rdmsr(msr).err());
        let own = policy() == Policy::Direct && x2apic::OWN.contains(&msr);
        if policy() == Policy::Bare || own {
            continue;
        }
        note(cpu::try_wrmsr(msr, survivable(msr, random.number())).err());
        if (0x800..0x900).contains(&msr) {
            // Small values too: they pass the reserved-bit checks and mean something.
            cpu::enable_interrupts();
            note(cpu::try_wrmsr(msr, survivable(msr, random.number() & 0xFFF)).err());
            note(cpu::try_wrmsr(msr, survivable(msr, random.number() & 0xC_0FFF)).err());
            cpu::disable_interrupts();
        }
    }
    check!(test, strange == 0, "{faults} refused by #GP, {strange} otherwise");
    let _ = cpu::try_wrmsr(0x80F, 0x1FF);
    let _ = cpu::try_wrmsr(x2apic::TPR, 0);
    x2apic::stop_timer();
    check!(test, x2apic::enabled(), "x2APIC mode is still on");
}

/// The value, unless it is an INIT or start-up command, which could rightly stop this CPU.
fn survivable(msr: u32, value: u64) -> u64 {
    let mode = value >> 8 & 7;
    if msr == x2apic::ICR && (mode == 5 || mode == 6) { value & !0x700 } else { value }
}

/// Ports whose writes end the VM, drive the console or choose configuration registers,
/// each with the three before it, from which a wide write reaches it.
const KEPT_PORTS: [RangeInclusive<u16>; 6] =
    [0x61..=0x64, 0xF1..=0xF7, 0x3F5..=0x3FF, 0x5FD..=0x604, 0xCF5..=0xCFF, 0xFFFD..=0xFFFF];

/// Below this a PC has its devices.
const DEVICE_PORTS: u16 = 0x1000;

/// Every port exits but those of the PM timer: that many, and no other.
fn exact_port_exits(test: &str, boot: &Boot) {
    const TIMER_PORTS: u64 = 4;
    let Some(fadt) = acpi::Tables::find(boot.rsdp).and_then(|t| t.fadt()) else {
        return check!(test, false, "no FADT");
    };
    let timer = fadt.timer_port;
    check!(test, timer != 0, "the PM timer's ports begin at {timer:#x}");
    let window = Window::open();
    (0..=u16::MAX).for_each(|port| {
        cpu::inb(port);
    });
    let (n, wanted) = (window.close().own(), (1 << 16) - TIMER_PORTS);
    check!(test, n == wanted, "{n} exits to read every port, {wanted} wanted");
    read_timer(test, boot, timer);
}

/// The PM timer's ports, by bytes, words and the whole. Option `timer=whole`: on this machine bytes
/// and words of it say nothing.
fn read_timer(test: &str, boot: &Boot, timer: u16) {
    let parts = boot.option("timer") != Some("whole");
    let window = Window::open();
    for i in 0..4 {
        cpu::inb(timer + i);
    }
    let (before, low, after) = (cpu::inl(timer), cpu::inw(timer), cpu::inl(timer));
    let n = window.close().own();
    check!(test, n == 0, "{n} exits to read the PM timer");
    // It has 24 bits, and takes five seconds for them; the lower half a fiftieth of one.
    let ran = after.wrapping_sub(before) & 0xFF_FFFF;
    let half = u32::from(low.wrapping_sub(before as u16));
    check!(
        test,
        (half <= ran || !parts) && ran < 1 << 22,
        "it runs: {before:#x}, {low:#x}, {after:#x}"
    );
}

/// The only ports that don't exit.
pub fn open_port(test: &str, boot: &Boot) {
    let fadt = acpi::Tables::find(boot.rsdp).and_then(|t| t.fadt());
    fadt.iter().for_each(|fadt| read_timer(test, boot, fadt.timer_port));
    check!(test, fadt.is_some(), "there is a FADT");
}

/// Every port read or written, where a PC has devices both, except where that ends the VM.
pub fn bad_port(test: &str, boot: &Boot) {
    if policy() != Policy::Bare {
        exact_port_exits(test, boot);
    }
    let mut random = Random::new(SEED);
    println!("  seed {SEED:#x}");
    let window = Window::open();
    let mut accesses = 0;
    for port in 0..=u16::MAX {
        let value = random.number();
        if policy() == Policy::Bare {
            cpu::inb(port);
            continue;
        }
        let (thorough, read) = (port < DEVICE_PORTS, value >> 59 & 1 == 0);
        if thorough || read {
            accesses += 1;
            cpu::inb(port);
        }
        if thorough {
            accesses += 2;
            cpu::inw(port);
            cpu::inl(port);
        }
        if KEPT_PORTS.iter().any(|r| r.contains(&port)) || !thorough && read {
            continue;
        }
        accesses += 1;
        match value >> 60 {
            0..5 => cpu::outb(port, value as u8),
            5..10 => cpu::outw(port, value as u16),
            10..15 => cpu::outl(port, value as u32),
            _ => cpu::out_string(port, &value.to_le_bytes()),
        }
    }
    // Bytes of a string exit one by one or together; narrow accesses to the PM timer don't.
    let exits = window.close().own();
    let enough = policy() == Policy::Bare || exits + 16 >= accesses;
    check!(test, enough, "{exits} exits of {accesses} accesses to every port");
}

/// Absent functions, odd accesses, and noise in the assigned device's registers.
pub fn bad_config(test: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    println!("  seed {SEED:#x}");
    let mut answered = 0;
    for function in pci::Function::all().filter(|f| !f.present()) {
        for register in [0, 4, 8, 0x10, 0x34, 0x40, 0xFC] {
            function.write(register, random.number() as u32);
            answered += u32::from(function.read(register) != 0xFFFF_FFFF);
        }
    }
    check!(test, answered == 0, "{answered} registers of absent functions answered");
    odd_accesses(test);

    let Some(edu) = edu(test) else { return };
    let saved: [u32; 64] = core::array::from_fn(|i| edu.function.read(i as u8 * 4));
    let mut functions = pci::Function::all().filter(|f| f.present() && *f != edu.function);
    let other = functions.next().filter(|_| policy() != Policy::Bare);
    for _ in 0..4000 {
        let (register, value) = (random.number() as u8, random.number());
        // Mostly small changes: they get further than noise.
        let value = if value >> 63 == 1 { value as u32 } else { 1 << (value % 32) };
        edu.function.write(register, value);
        if let Some(other) = other {
            other.write(register, value);
            other.read(register);
        }
        edu.function.read(register);
    }
    edu.function.write(pci::COMMAND, 0);
    for i in (4..64).rev() {
        edu.function.write(i as u8 * 4, saved[i]);
    }
    edu.function.write(pci::COMMAND, saved[1]);
    let identity = edu.function.read(0) == saved[0];
    check!(test, identity && edu.read(0) == edu::IDENTIFICATION, "the device is itself again");
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let n = edu.raise_and_wait(0x40, 10);
    check!(test, n == 10, "and interrupts: {n} of 10");
    edu.silence();
}

/// The configuration ports by bytes and words, unaligned, disabled, other buses.
fn odd_accesses(test: &str) {
    cpu::outl(0xCF8, 0x8000_0000);
    let whole = cpu::inl(0xCFC);
    let bytes = (0..4).fold(0, |n, i| n | u32::from(cpu::inb(0xCFC + i)) << (8 * i));
    let words = u32::from(cpu::inw(0xCFC)) | u32::from(cpu::inw(0xCFE)) << 16;
    check!(test, whole == bytes && whole == words, "by bytes and words as by dwords");
    cpu::outl(0xCF8, 0);
    check!(test, cpu::inl(0xCFC) == 0xFFFF_FFFF, "not enabled: all ones");
    let mut found = 0;
    for bus in 1..=255u32 {
        cpu::outl(0xCF8, 0x8000_0000 | bus << 16);
        found += u32::from(cpu::inl(0xCFC) != 0xFFFF_FFFF);
    }
    check!(test, found == 0, "{found} devices on other buses");
    for port in 0xCF8..=0xCFF {
        cpu::inb(port);
        cpu::inw(port);
        cpu::inl(port);
    }
    wait::settle();
}
