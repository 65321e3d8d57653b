//! Registers of this kernel's device that it maps for its guest: what it reaches without an exit
//! itself, the guest does, and nothing else, wherever this kernel says that it is.

use super::block::{self, Frame, Guest, exit};
use super::paging::{self, ALL, AREA, LARGE_AREA};
use super::{SVME, ahead, begin, end, inside, rewritten, smp::turn_on};
use crate::counters::{self, Window};
use crate::{boot::Boot, console::check, cpu, nvme::Nvme, pci, smp, wait};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use ledger::Reason;

const EFER: u32 = 0xC000_0080;
/// #UD, #GP, #PF.
const EXCEPTIONS: [usize; 3] = [6, 13, 14];
const CODE_SEGMENT: u64 = 8;
const GATE: u64 = 0x8E00;
const PAGE: u64 = 4096;
const MIB_2: u64 = 2 << 20;
/// Another place for the controller's registers.
pub(super) const ELSEWHERE: u32 = 0xD900_0000;
/// Where memory ends.
const BEHIND_MEMORY: u64 = 0x8000_0000;
/// A page of the guest's addresses that has no memory behind it.
const OPEN: u64 = 100;

static TABLE: Frame = Frame::new();
static SEEN: AtomicU64 = AtomicU64::new(0);
static GONE: AtomicU64 = AtomicU64::new(0);

/// Where nothing is.
pub(super) const NOTHING: Came = Came::Done(u32::MAX);

/// What came of an access of the guest's.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// It was done, and this is what a load gave.
    Done(u32),
    /// An exception.
    Refused,
    /// Another exit.
    Told(u64),
}

/// The guest's exceptions are its own, and it tells them.
pub(super) fn prepare(guest: &mut Guest, code: u64, address: u64, value: u64) {
    let at = inside::refuses();
    let gate = at & 0xFFFF | CODE_SEGMENT << 16 | GATE << 32 | (at >> 16 & 0xFFFF) << 48;
    for vector in EXCEPTIONS {
        TABLE.0[2 * vector].store(gate, SeqCst);
        TABLE.0[2 * vector + 1].store(at >> 32, SeqCst);
    }
    guest.restart(code);
    guest.block().put(block::IDTR, 0xFFF << 32);
    guest.block().put(block::IDTR + 8, TABLE.address());
    (guest.registers.rsi, guest.registers.rdi) = (address, value);
}

fn came(guest: &Guest) -> Came {
    match (guest.code(), guest.registers.rdx) {
        (exit::VMMCALL, inside::REFUSED) => Came::Refused,
        (exit::VMMCALL, _) => Came::Done(guest.registers.rcx as u32),
        (code, _) => Came::Told(code),
    }
}

/// Runs the guest's `code` on an address of its.
pub(super) fn access(guest: &mut Guest, code: u64, address: u64, value: u64) -> Came {
    prepare(guest, code, address, value);
    guest.run();
    came(guest)
}

/// The same load, with how many translations the host put in for it.
fn counted(guest: &mut Guest, address: u64) -> (Came, u64) {
    let window = Window::open();
    let came = access(guest, inside::touches(), address, 0);
    (came, window.close().of(Reason::NestedFill))
}

/// Two CPUs, and a controller.
pub fn registers(test: &str, boot: &Boot) {
    let (Some(_), Some(mut nvme)) = (super::super::cpus(test, boot), Nvme::find()) else {
        return check!(test, false, "two CPUs and an NVMe controller");
    };
    if !begin(test) {
        return;
    }
    let mut guest = paging::guest();
    open(test, &mut guest, &nvme);
    everywhere(test, &mut guest, &nvme);
    moved(test, &mut guest, &mut nvme);
    ahead::devices(test, &mut guest, &mut nvme, counters::address());
    watched(test, &mut nvme);
    rewritten::rewritten(test);
    end();
}

/// What is open to this kernel is to its guest, with two exits for a page (the host looks for it,
/// then puts it in), as this kernel allows it.
fn open(test: &str, guest: &mut Guest, nvme: &Nvme) {
    let own = Came::Done(cpu::mmio_read(nvme.base()));
    let address = AREA + OPEN * PAGE;
    // What the guest itself is, before anything is counted.
    paging::map(0, 0, ALL);
    access(guest, inside::touches(), AREA, 0);
    paging::map_at(OPEN, nvme.base(), ALL);
    let first = counted(guest, address);
    let right = first.0 == own && first.1 == 2;
    check!(test, right, "a register: {:x?}, {} translations", first.0, first.1);
    let again = counted(guest, address);
    check!(test, again.0 == own && again.1 == 0, "and without an exit: {}", again.1);
    paging::flush(guest);
    let kept = counted(guest, address);
    paging::flushed(guest);
    check!(test, kept.0 == own && kept.1 == 0, "nor after a flush: {}", kept.1);

    // A doorbell of a controller that is off.
    let behind = address + PAGE;
    paging::map_at(OPEN + 1, nvme.base() + PAGE, ALL);
    let window = Window::open();
    for _ in 0..50 {
        let rung = access(guest, inside::stores(), behind, 0);
        check!(test, rung == Came::Done(0), "a doorbell: {rung:x?}");
    }
    let filled = window.close().of(Reason::NestedFill);
    check!(test, filled == 2, "50 doorbells took {filled} translations");

    let fetched = access(guest, inside::jumps(), address, 0);
    check!(test, fetched == Came::Refused, "code there: {fetched:x?}");
    paging::map_at(OPEN, nvme.base(), ALL & !2);
    paging::flush(guest);
    let stored = access(guest, inside::stores(), address, 0);
    check!(test, stored == Came::Told(exit::NPF), "what is read-only here: {stored:x?}");
    paging::flushed(guest);
}

/// Configuration space in memory, as the MCFG of these guests has it.
const CONFIGURATION: u64 = 0xE000_0000;

/// Whatever this kernel maps: the guest has what this kernel has, and without an exit where this
/// kernel has none.
fn everywhere(test: &str, guest: &mut Guest, nvme: &Nvme) {
    let around = nvme.base() & !(MIB_2 - 1);
    let coarse = (BEHIND_MEMORY..1 << 32).step_by(MIB_2 as usize);
    let fine = (around..around + MIB_2).step_by(PAGE as usize);
    let (mut open, mut others, mut wrong) = (0, 0, 0);
    // This kernel reads the host's counters without an exit; they are no device's.
    let ledger = counters::address();
    // Eight bytes of configuration space aren't four of it (PCIe 5.0, 7.2.2).
    for at in coarse.chain(fine).filter(|at| ![ledger, CONFIGURATION].contains(at)) {
        let window = Window::open();
        let own = cpu::mmio_read(at);
        let exits = window.close().own();
        paging::map_at(OPEN, at, ALL);
        paging::flush(guest);
        match access(guest, inside::touches(), AREA + OPEN * PAGE, 0) {
            Came::Done(seen) if exits == 0 && seen == own => open += 1,
            Came::Done(seen) if exits > 0 && seen == own => others += 1,
            _ => wrong += 1,
        }
    }
    paging::map_at(OPEN, ledger, ALL);
    paging::flush(guest);
    let seen = access(guest, inside::touches(), AREA + OPEN * PAGE, 0);
    paging::flushed(guest);
    let right = wrong == 0 && open >= 2 && others > 1000;
    check!(test, right, "{open} pages without an exit, {others} with one, {wrong} else");
    check!(test, seen == NOTHING, "the host's counters: {seen:x?}");

    // All of it as one page.
    paging::map_large(around);
    let (_, table) = nvme.table().unwrap_or_default();
    let own = |at| Came::Done(cpu::mmio_read(at));
    for (what, at, wanted) in [
        ("registers", nvme.base(), own(nvme.base())),
        ("the table of its interrupts", table, own(table)),
        ("nothing", around + MIB_2 - PAGE, NOTHING),
    ] {
        let seen = access(guest, inside::touches(), LARGE_AREA + (at - around), 0);
        check!(test, seen == wanted, "in a large page, {what}: {seen:x?}");
    }
}

/// Where this kernel's device isn't any more, its guest has nothing, and this kernel needn't flush.
fn moved(test: &str, guest: &mut Guest, nvme: &mut Nvme) {
    let (home, own) = (nvme.base(), Came::Done(cpu::mmio_read(nvme.base())));
    let address = AREA + OPEN * PAGE;
    paging::map_at(OPEN, home, ALL);
    paging::flush(guest);
    let before = access(guest, inside::touches(), address, 0);
    paging::flushed(guest);
    nvme.move_to(ELSEWHERE);
    let after = access(guest, inside::touches(), address, 0);
    let right = before == own && after == NOTHING;
    check!(test, right, "moved away: {before:x?}, {after:x?}");
    nvme.move_to(home as u32);
    let back = access(guest, inside::touches(), address, 0);
    check!(test, back == own, "and back: {back:x?}");
    nvme.function.write(pci::COMMAND, 0);
    let off = access(guest, inside::touches(), address, 0);
    nvme.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    let on = access(guest, inside::touches(), address, 0);
    check!(test, off == NOTHING && on == own, "off: {off:x?}, and on: {on:x?}");
}

/// A guest on the second CPU that reads the first register until it isn't there.
fn watch(_: usize) {
    turn_on();
    let mut guest = paging::guest();
    paging::map_at(OPEN, SEEN.swap(0, SeqCst), ALL);
    let seen = (&raw const SEEN) as u64;
    prepare(&mut guest, inside::watches(), AREA + OPEN * PAGE, seen);
    guest.enter_through();
    block::let_in();
    GONE.store(u64::from(came(&guest) == NOTHING), SeqCst);
    cpu::wrmsr(EFER, cpu::rdmsr(EFER) & !SVME);
}

/// The device goes while a guest on another CPU reads it.
fn watched(test: &str, nvme: &mut Nvme) {
    let (home, own) = (nvme.base(), cpu::mmio_read(nvme.base()));
    SEEN.store(home, SeqCst);
    let mut late = true;
    let ended = smp::others(2, watch, || {
        let reads = wait::patiently(|| SEEN.load(SeqCst) as u32 == own);
        nvme.move_to(ELSEWHERE);
        SEEN.store(0, SeqCst);
        wait::settle();
        late = SEEN.load(SeqCst) != 0;
        reads
    });
    let gone = GONE.load(SeqCst) == 1;
    check!(test, ended && gone && !late, "gone under a guest: {gone}, late: {late}");
    nvme.move_to(home as u32);
}
