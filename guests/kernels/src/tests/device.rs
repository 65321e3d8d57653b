//! An assigned device's own settings: its MSI, its BAR, its DMA.

use super::edu;
use crate::{
    boot::Boot, console, console::check, counters, counters::Policy, counters::Window, cpu, edu,
    edu::Edu, idt, nvme::Nvme, pci, random::Random, wait, x2apic,
};
use ledger::Reason;

/// The largest address the device's DMA engine can name (28 bits).
const DMA_LIMIT: u64 = 1 << 28;
const PAGE: u64 = 4096;
/// A place for the BAR inside the window of guests and of QEMU's q35.
pub const INSIDE: u32 = 0xD000_0000;
const IOAPIC: u32 = 0xFEC0_0000;
const LOCAL_APIC: u32 = 0xFEE0_0000;

/// Vectors and destinations, good and bad.
pub fn msi_program(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    cpu::enable_interrupts();
    for vector in [0x41, 0x61, 0x41, 0xFE, 0x20] {
        edu.aim_handled(vector);
        let before = idt::count(vector);
        let window = Window::open();
        let n = edu.raise_and_wait(vector, 10) - before;
        let counted = window.close();
        check!(test, n == 10, "at {vector:#x}: {n} of 10");
        // On a shared core class F is the host's, and the guest's there come by injection.
        let own = if counters::shared() && vector >= 0xF0 { 10..=10 } else { 0..=0 };
        let most = 2 * own.end();
        counted.expect(test, Reason::DeviceInterrupt, 10..=10, own);
        counted.expect_few(test, most);
    }
    // Vectors a host might want for itself: delivered all the same, at whatever cost.
    for vector in 0xF0..=0xFE {
        edu.aim_handled(vector);
        let before = idt::count(vector);
        let n = edu.raise_and_wait(vector, 3) - before;
        wait::settle();
        let late = idt::count(vector) - before - n;
        check!(test, n == 3 && late == 0, "at {vector:#x}: {n} of 3, {late} later");
    }
    let here = edu::message_address(x2apic::id());
    refused(test, &edu, "disabled", here, 0x41, false);
    refused(test, &edu, "to a CPU that isn't there", edu::message_address(0x55), 0x41, true);
    if counters::policy() != Policy::Bare {
        // A machine without remapping does what these say: write to memory, reset.
        refused(test, &edu, "to memory", 0x20_0000, 0x41, true);
        refused(test, &edu, "beyond 4 GiB", 1 << 40 | here, 0x41, true);
        refused(test, &edu, "at an exception's vector", here, 0x0E, true);
        for (mode, name) in [(2, "SMI"), (4, "NMI"), (5, "INIT"), (7, "ExtINT")] {
            refused(test, &edu, name, here, mode << 8 | 0x41, true);
        }
        remappable(test, &edu);
    }
    edu.aim_handled(0x41);
    let before = idt::count(0x41);
    let n = edu.raise_and_wait(0x41, 10) - before;
    check!(test, n == 10, "programmed well again: {n} of 10");
    edu.silence();
}

/// An interrupt at the vector that spurious ones have is one like any other: in service,
/// and to be completed.
pub fn spurious_vector(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(x2apic::SPURIOUS_VECTOR);
    cpu::enable_interrupts();
    let n = edu.raise_and_wait(x2apic::SPURIOUS_VECTOR, 10);
    wait::settle();
    let late = idt::count(x2apic::SPURIOUS_VECTOR) - n;
    check!(test, n == 10 && late == 0, "{n} of 10, {late} later");
    let completed = !x2apic::in_service(x2apic::SPURIOUS_VECTOR);
    check!(test, completed, "none is left in service");
    edu.aim_handled(0x41);
    let n = edu.raise_and_wait(0x41, 10);
    check!(test, n == 10, "a lower vector comes afterwards: {n} of 10");
    edu.silence();
}

fn refused(test: &str, edu: &Edu, what: &str, address: u64, data: u32, enabled: bool) {
    let before = idt::everything();
    edu.program(address, data, enabled);
    edu::raise();
    wait::settle();
    let n = idt::everything() - before;
    check!(test, n == 0, "{what}: {n} interrupts");
    edu::acknowledge();
}

/// Addresses in VT-d's remappable format (VT-d 5.1.2.2): no handle is the guest's to use.
fn remappable(test: &str, edu: &Edu) {
    let before = idt::everything();
    for handle in 0..64 {
        edu.program(0xFEE0_0000 | handle << 5 | 1 << 4, 0, true);
        edu::raise();
    }
    wait::settle();
    let n = idt::everything() - before;
    check!(test, n == 0, "handles of the host's remapping table: {n} interrupts");
}

/// Sized, moved where it may and where it may not.
pub fn bar_move(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    let home = edu.base() as u32;
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    edu.function.write(pci::BAR0, 0xFFFF_FFFF);
    let size = edu.function.read(pci::BAR0);
    edu.move_to(home);
    check!(test, size == 0xFFF0_0000, "sizing reads {size:#x}, 1 MiB");
    answers(test, &edu, "back at its first address");

    let memory = 0x100_0000u64 as *mut u64;
    let ledger = counters::address() as u32;
    for target in [memory as u32, IOAPIC, LOCAL_APIC, ledger, 0, 0xFFF0_0000] {
        // SAFETY: 16 MiB up, far above this kernel; a test VM has 32 MiB or more.
        unsafe { memory.write_volatile(0x600D_F00D) }
        let ioapic = cpu::mmio_read(u64::from(IOAPIC));
        edu.function.write(pci::BAR0, target);
        // SAFETY: as above.
        let kept = unsafe { memory.read_volatile() } == 0x600D_F00D;
        let ioapic = cpu::mmio_read(u64::from(IOAPIC)) == ioapic;
        let good = kept && ioapic && counters::page_is_sane();
        check!(test, good, "BAR at {target:#x}: memory, IOAPIC and ledger stay");
    }
    for target in [INSIDE, INSIDE + 0x100_0000, home] {
        edu.move_to(target);
        check!(test, edu.base() == u64::from(target), "BAR at {target:#x} reads back");
        answers(test, &edu, "moved");
    }
    edu.function.write(pci::COMMAND, 0);
    edu.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    answers(test, &edu, "turned off and on");
    edu.silence();
}

fn answers(test: &str, edu: &Edu, what: &str) {
    let id = edu.read(0);
    let before = idt::count(0x40);
    let window = Window::open();
    let n = edu.raise_and_wait(0x40, 5) - before;
    let counted = window.close();
    let good = id == edu::IDENTIFICATION && n == 5;
    check!(test, good, "{what}: identifies as {id:#x}, {n} of 5 interrupts");
    counted.expect_none(test);
}

/// DMA inside the guest's memory works, outside it does nothing.
pub fn dma_confine(test: &str, boot: &Boot) {
    let Some(edu) = edu(test) else { return };
    if boot.option("after") == Some("typed") {
        let typed = wait::patiently(|| console::typed().is_some());
        check!(test, typed, "a byte was typed");
    }
    // It takes its interrupts itself, but lets none in: the host's have to arrive all the same.
    if boot.option("deaf").is_some() {
        edu.aim_handled(0x40);
        cpu::set_cr8(15);
    }
    let free = boot.free_memory();
    let (source, target) = (free.start, free.start + PAGE);
    let mut random = Random::new(7);
    for i in 0..PAGE / 8 {
        store(source + i * 8, random.number());
    }
    let done = edu.dma_from_memory(source, PAGE) && copy_out(&edu, target);
    let same = (0..PAGE / 8).all(|i| load(source + i * 8) == load(target + i * 8));
    check!(test, done && same, "a page there and back is the same");

    let end = boot.memory_end().next_multiple_of(1 << 20);
    // Each takes the device four tenths of a second, however fast the machine is.
    let step = ((DMA_LIMIT - end.min(DMA_LIMIT)) / 8).max(PAGE) & !(PAGE - 1);
    let (mut leaks, mut tries, mut stuck) = (0, 0, 0);
    for outside in (end..DMA_LIMIT).step_by(step as usize) {
        tries += 1;
        stuck += u32::from(!edu.dma_from_memory(source, PAGE));
        stuck += u32::from(!edu.dma_from_memory(outside, PAGE));
        stuck += u32::from(!copy_out(&edu, target));
        leaks += u32::from(!says_nothing(source, target));
        stuck += u32::from(!edu.dma_to_memory(outside, PAGE));
    }
    check!(test, leaks == 0, "{leaks} of {tries} reads outside showed anything");
    check!(test, stuck == 0, "the device's engine stuck {stuck} times");
    if boot.option("until") == Some("typed") {
        let told = wait::patiently(|| console::typed().is_some());
        check!(test, told, "the host has told of it while this guest lets nothing in");
    }
    let done = edu.dma_from_memory(source, PAGE) && copy_out(&edu, target);
    let same = (0..PAGE / 8).all(|i| load(source + i * 8) == load(target + i * 8));
    check!(test, done && same, "DMA inside works as before");
}

/// DMA with bus mastering off does nothing; on, it does what it did before.
pub fn bus_master(test: &str, boot: &Boot) {
    const REGISTERS_ONLY: u32 = pci::MEMORY_AND_MASTER & !4;
    const MARK: u64 = 0x1111_1111_1111_1111;
    let Some(edu) = edu(test) else { return };
    let free = boot.free_memory();
    let (source, target) = (free.start, free.start + PAGE);
    let mut random = Random::new(11);
    (0..PAGE / 8).for_each(|i| store(source + i * 8, random.number()));
    for (command, on) in [(REGISTERS_ONLY, false), (pci::MEMORY_AND_MASTER, true)] {
        // What a former round left in its buffer must not do in place of what it reads.
        edu.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        (0..PAGE / 8).for_each(|i| store(target + i * 8, MARK));
        check!(test, edu.dma_from_memory(target, PAGE), "its buffer is known");
        edu.function.write(pci::COMMAND, command);
        let ended = edu.dma_from_memory(source, PAGE) && edu.dma_to_memory(target, PAGE);
        let all = |wanted: fn(u64, u64) -> bool| {
            (0..PAGE / 8).all(|i| wanted(load(source + i * 8), load(target + i * 8)))
        };
        let right = if on { all(|s, t| s == t) } else { all(|_, t| t == MARK) };
        check!(test, ended && right, "command register {command:#x}: DMA {on}");
    }
    // Off while it reads, on while it writes: the buffer must be as before.
    edu.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    let known = edu.dma_from_memory(target, PAGE);
    (0..PAGE / 8).for_each(|i| store(target + i * 8, MARK));
    edu.function.write(pci::COMMAND, REGISTERS_ONLY);
    let ended = edu.dma_from_memory(target, PAGE);
    edu.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    let written = edu.dma_to_memory(target, PAGE);
    let leaked = (0..PAGE / 8).any(|i| load(target + i * 8) == MARK);
    check!(test, known && ended && written && !leaked, "it read nothing while it was off");
}

/// A device in use without MSI, until the host has told of it.
pub fn intx(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.silence();
    let told = wait::patiently(|| console::typed().is_some());
    check!(test, told, "the host has told that no interrupts come");
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let n = edu.raise_and_wait(0x40, 3);
    check!(test, n == 3, "by MSI they do: {n} of 3");
    edu.silence();
}

/// A controller whose queues are in foreign memory, told of commands there as fast as it goes: each
/// is a read that the IOMMU blocks, and the host is interrupted at most a hundred times a second
/// for it, on this core.
pub fn fault_storm(test: &str, boot: &Boot) {
    const SECOND: u32 = 1_000_000_000;
    /// Of a hundred looks a second; a machine that has much else to do comes to fewer.
    const LEAST: u64 = 10;
    const MOST: u64 = 100;
    let Some(mut nvme) = Nvme::find() else { return check!(test, false, "no NVMe controller") };
    let foreign = boot.memory_end().next_multiple_of(1 << 20) + (64 << 20);
    let window = Window::open();
    x2apic::start_timer(0x50, false, SECOND);
    let mut tries = 0;
    while x2apic::timer_count() != 0 {
        if tries % 64 == 0 {
            nvme.start_at(foreign, foreign);
        }
        tries += 1;
        nvme.ring(tries, 0);
    }
    let n = window.close().of(Reason::HostInterrupt);
    nvme.stop();
    let right = (LEAST..=MOST + 1).contains(&n);
    check!(test, right, "{n} interrupts of the host's for {tries} blocked reads in a second");
}

/// Ends its VM while the device is at work: DMA and a computation that would tell of its end go on
/// for a tenth of a second.
pub fn end_at_work(test: &str, boot: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let n = edu.raise_and_wait(0x40, 3);
    check!(test, n == 3, "{n} of 3 interrupts came");
    edu.compute(500_000_000);
    edu.start_from_memory(boot.free_memory().start, PAGE);
}

/// The device's buffer to memory that was cleared with something else before.
fn copy_out(edu: &Edu, target: u64) -> bool {
    for i in 0..PAGE / 8 {
        store(target + i * 8, 0x1111_1111_1111_1111);
    }
    edu.dma_to_memory(target, PAGE)
}

/// Whether a refused read left the buffer as it was, or one constant all over.
fn says_nothing(before: u64, after: u64) -> bool {
    let words = || (0..PAGE / 8).map(move |i| (load(before + i * 8), load(after + i * 8)));
    words().all(|(b, a)| a == b) || words().all(|(_, a)| a == 0) || words().all(|(_, a)| a == !0)
}

fn store(address: u64, value: u64) {
    // SAFETY: two pages of memory that the loader says is free.
    unsafe { (address as *mut u64).write_volatile(value) }
}

fn load(address: u64) -> u64 {
    // SAFETY: as above.
    unsafe { (address as *const u64).read_volatile() }
}

/// Forbidden DMA, some times a second.
pub fn dma_slow(test: &str, boot: &Boot) {
    const TICKS: u64 = 8_000_000_000;
    const BETWEEN: u64 = 700_000_000;
    let Some(edu) = edu(test) else { return };
    let outside = boot.memory_end().next_multiple_of(1 << 20) + (1 << 20);
    let start = cpu::tsc();
    let mut times = 0;
    while cpu::tsc().wrapping_sub(start) < TICKS {
        edu.start_from_memory(outside + times % 16 * PAGE, PAGE);
        wait::ticks(BETWEEN);
        times += 1;
    }
    check!(test, times > 0, "{times} times");
}
