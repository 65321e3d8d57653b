//! Interrupts by entries of the guest's own IOMMU with registers, whichever vendor's: of an `edu`'s
//! messages, and of the console's line by the IOAPIC. They go by the guest's entries, and by
//! nothing else; on their way there is no exit.

use super::edu;
use super::unit::started;
use super::viommu::endpoint;
use crate::counters::Window;
use crate::unit::{Ask, Place, Unit};
use crate::{boot::Boot, console::check, cpu, edu as device, idt, smp, wait};

pub const VECTOR: u8 = 0x51;
const OTHER_VECTOR: u8 = 0x62;
const LINE_VECTOR: u8 = 0x73;

/// All of it.
pub fn interrupts<U: Unit>(test: &str, boot: &Boot) {
    let (Some(edu), Some(unit)) = (edu(test), started::<U>(test, boot)) else { return };
    let Some(count) = smp::start_all(boot) else { return check!(test, false, "CPUs start") };
    let source = endpoint(edu.function) as u16;
    let set = |to: Option<(usize, u8)>, of: u16| {
        unit.set_entry(5, to, of) && unit.ask(&[Ask::Interrupts(source)])
    };
    let sent = |vector: u8| {
        let before = idt::total(vector);
        device::raise();
        wait::until(|| idt::total(vector) > before)
    };
    let silent = |vector: u8| {
        let before = idt::total(vector);
        device::raise();
        wait::settle();
        idt::total(vector) == before
    };
    cpu::enable_interrupts();
    idt::on(VECTOR, device::handler);
    idt::on(OTHER_VECTOR, device::handler);
    edu.aim(VECTOR);
    check!(test, sent(VECTOR), "without remapping: as ever");
    // A sidecore polls from then on.
    unit.lead(source.into(), Place::Through);
    check!(test, unit.begin(source.into()), "it translates");
    check!(test, unit.remap(true), "it remaps");
    check!(test, silent(VECTOR), "as without entries: blocked");
    device::acknowledge();
    // Where there was none the unit isn't told of an entry.
    let is_set = unit.set_entry(5, Some((0, VECTOR)), source);
    let (address, data) = U::message(5);
    edu.program(address, data, true);
    check!(test, is_set && sent(VECTOR), "by an entry: {}", idt::total(VECTOR));
    check!(test, set(Some((0, OTHER_VECTOR)), source), "the entry is another");
    check!(test, sent(OTHER_VECTOR), "by the vector that it has now");
    let last = count - 1;
    let before = idt::count_on(last, VECTOR);
    let arrived = set(Some((last, VECTOR)), source) && sent(VECTOR);
    check!(test, arrived && idt::count_on(last, VECTOR) > before, "to the CPU that it has now");
    let blocked = set(Some((0, VECTOR)), source + 8) && silent(VECTOR);
    check!(test, blocked, "of another source: blocked");
    device::acknowledge();
    check!(test, set(None, source) && silent(VECTOR), "not present: blocked");
    device::acknowledge();
    check!(test, set(Some((0, VECTOR)), source) && sent(VECTOR), "present again");
    let wanted = boot.option("exits").and_then(|n| n.parse::<u64>().ok());
    if let Some(wanted) = wanted {
        let window = Window::open();
        let handled = (0..100).filter(|_| sent(VECTOR)).count();
        let counted = window.close();
        let n = counted.own();
        check!(test, handled == 100 && n == wanted, "{n} exits for {handled} interrupts");
        if n != wanted {
            counted.print();
        }
    }
    edu.silence();
    // Each has the host route every interrupt anew, some at an exit.
    let done = unit.ask(&[Ask::Interrupts(source); 200]);
    check!(test, done, "200 invalidations of all entries");
    line(test, &unit);
    let off = unit.remap(false) && unit.translate(false);
    check!(test, off, "it remaps and translates no more");
    edu.aim(VECTOR);
    check!(test, sent(VECTOR), "as at first");
    edu.silence();
}

/// The console's line goes through the IOAPIC by an entry, too, and by its own source alone.
fn line<U: Unit>(test: &str, unit: &U) {
    const IOAPIC: u64 = 0xFEC0_0000;
    const UART_ENABLE: u16 = 0x3F9;
    const UART_CONTROL: u16 = 0x3FC;
    /// A PC's line goes through this.
    const OUT2: u8 = 1 << 3;
    const PIN: u32 = 4;
    const INDEX: u64 = 0xC3;
    let program = |low: u32, high: u32| {
        for (register, word) in [(0x11 + 2 * PIN, high), (0x10 + 2 * PIN, low)] {
            cpu::mmio_write(IOAPIC, register);
            cpu::mmio_write(IOAPIC + 0x10, word);
        }
    };
    // The transmitter is empty, which is an interrupt when it is allowed.
    let arrives = |vector: u8| {
        let before = idt::total(vector);
        cpu::outb(UART_ENABLE, 0);
        cpu::outb(UART_ENABLE, 2);
        let came = wait::until(|| idt::total(vector) > before);
        cpu::outb(UART_ENABLE, 0);
        came
    };
    let blocked = || {
        let before = idt::total(LINE_VECTOR);
        cpu::outb(UART_ENABLE, 2);
        wait::settle();
        cpu::outb(UART_ENABLE, 0);
        idt::total(LINE_VECTOR) == before
    };
    cpu::outb(UART_CONTROL, OUT2);
    let (source, to) = (U::IOAPIC, Some((0, LINE_VECTOR)));
    let set =
        |source: u16| unit.set_entry(INDEX, to, source) && unit.ask(&[Ask::Interrupts(U::IOAPIC)]);
    let is_set = set(source);
    let entry = U::redirection(INDEX, PIN);
    program(entry as u32, (entry >> 32) as u32);
    let arrived = is_set && arrives(LINE_VECTOR);
    check!(test, arrived, "the console's line, by an entry: it arrives");
    check!(test, set(source - 8) && blocked(), "of another source: blocked");
    check!(test, set(source) && arrives(LINE_VECTOR), "its own again: it arrives");
    program(LINE_VECTOR.into(), 0);
    check!(test, blocked(), "as without entries: blocked");
    program(1 << 16, 0);
    cpu::outb(UART_CONTROL, 0);
}
