//! Two guests of this kernel's, each with a backing page of its own and a device that posts to it.
//!
//! Neither takes the other's interrupts, though both have the same CPU; and one that is at another
//! CPU by now hears of what comes to the one where it was. Not tried: that both have the same
//! vector on one CPU, where each has what is the other's besides.

use super::super::block::{Frame, exit, let_in};
use super::super::smp::turn_on;
use super::super::{end as turn_off, paging};
use super::{
    BACKING, BACKING_PAGE, IN_SERVICE, LOW, Posts, REQUEST, VECTOR, begin_at, by_itself, code,
    guest, is_in,
};
use crate::amdvi::AmdVi;
use crate::amdvi::guests::Posted;
use crate::counters::{Counted, Window};
use crate::edu::{self as device, Edu};
use crate::tests::viommu::endpoint;
use crate::unit::{Ask, Place, Unit};
use crate::{boot::Boot, console::check, cpu, idt, smp as cpus, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use ledger::Reason;

/// The second device's entry.
pub(super) const SECOND: u64 = 11;
/// Of the guest's physical addresses: the page where it has the second device.
pub(super) const DEVICE: u64 = 7;
const ROUNDS: u64 = 10;

pub(super) static OTHER: Frame = Frame::new();
/// Why the guest on the second CPU was left.
static LEFT: AtomicU64 = AtomicU64::new(0);

/// Both devices' interrupts, and the unit.
pub(super) struct Pair {
    pub(super) posts: Posts,
    pub(super) second: Edu,
    pub(super) source: u16,
}

impl Pair {
    /// All of it, set up; or a failed check. The second device has no entry yet.
    pub(super) fn new(test: &str, boot: &Boot) -> Option<Pair> {
        let posts = Posts::new(test, boot)?;
        let second = Edu::find_second();
        check!(test, second.is_some(), "a second edu device");
        let second = second?;
        let source = endpoint(second.function) as u16;
        OTHER.0.iter().for_each(|word| word.store(0, SeqCst));
        posts.unit.lead(source.into(), Place::Through);
        paging::map_at(DEVICE, second.bar(), paging::ALL);
        let (address, data) = AmdVi::message(SECOND);
        second.program(address, data, true);
        Some(Pair { posts, second, source })
    }

    /// The first device posts to this page, at this CPU.
    pub(super) fn first(&self, page: &Frame, cpu: u32) -> bool {
        let to = Posted { vector: VECTOR, page: page.address(), cpu, runs: true, tag: None };
        self.posts.post_to(to)
    }

    /// The same of the second one.
    pub(super) fn second(&self, page: &Frame, cpu: u32) -> bool {
        let to = Posted { vector: LOW, page: page.address(), cpu, runs: true, tag: None };
        self.posts.unit.post(SECOND, self.source, to) && self.ask_second()
    }

    pub(super) fn ask_second(&self) -> bool {
        self.posts.unit.ask(&[Ask::Device(self.source.into()), Ask::Interrupts(self.source)])
    }

    /// The guest to be run has this page.
    pub(super) fn page(&self, page: &Frame) {
        self.posts.guest.block().put(BACKING_PAGE, page.address());
    }

    pub(super) fn end(self, test: &str) {
        let (address, data) = AmdVi::message(SECOND);
        self.second.program(address, data, false);
        self.posts.end(test);
    }

    /// A guest with this page has a device send its interrupt, the second one if it is `second`.
    fn tries(&mut self, page: &Frame, second: bool) -> (u64, Counted) {
        self.page(page);
        let posts = self.posts.at(code::tries());
        if second {
            posts.guest.registers.rsi = paging::AREA + (DEVICE << 12);
        }
        self.posts.measure()
    }
}

/// Nothing is requested there, or in service.
pub(super) fn is_empty(page: &Frame) -> bool {
    (0..=u8::MAX).all(|vector| !is_in(page, REQUEST, vector) && !is_in(page, IN_SERVICE, vector))
}

/// Forgets what waits there.
pub(super) fn forget(page: &Frame) {
    page.0.iter().for_each(|word| word.store(0, SeqCst));
    device::acknowledge();
}

/// One CPU.
pub fn others(test: &str, boot: &Boot) {
    let Some(mut pair) = Pair::new(test, boot) else { return };
    by_itself(test, &mut pair.posts);
    not_its_own(test, &mut pair);
    // It is the other one's, and nobody else's.
    check!(test, pair.first(&OTHER, 0) && pair.posts.ask(), "the first device is the other's");
    pair.page(&OTHER);
    by_itself(test, &mut pair.posts);
    pair.page(&BACKING);
    check!(test, pair.first(&BACKING, 0) && pair.posts.ask(), "and the first one's again");
    by_itself(test, &mut pair.posts);
    both(test, &mut pair);
    // Both are one guest's.
    let is_set = pair.second(&BACKING, 0);
    check!(test, is_set, "both are the first one's");
    pair.page(&BACKING);
    by_itself(test, &mut pair.posts);
    let before = code::count(LOW);
    let (left, _) = pair.tries(&BACKING, true);
    let came = code::count(LOW) - before;
    check!(test, left == exit::VMMCALL && came == 1, "the second device's: {came}, {left:#x}");
    pair.end(test);
}

/// The first device's interrupt comes while the other guest runs.
fn not_its_own(test: &str, pair: &mut Pair) {
    for round in 0..ROUNDS {
        let (before, seen) = (code::count(VECTOR), idt::everything());
        let (left, counted) = pair.tries(&OTHER, false);
        let (came, seen) = (code::count(VECTOR) - before, idt::everything() - seen);
        let waits = is_in(&BACKING, REQUEST, VECTOR) && is_empty(&OTHER);
        let right = left == exit::VMMCALL && (came, seen) == (0, 0) && waits;
        check!(test, right, "{round}: {came} to the other, {seen} to this kernel, waits: {waits}");
        let told = counted.of(Reason::NestedReflected);
        check!(test, told == 1, "and this kernel is told nothing but VMMCALL: {told}");
        pair.page(&BACKING);
        let left = pair.posts.at(code::waits()).with(0).run();
        let came = code::count(VECTOR) - before;
        check!(test, left == exit::VMMCALL && came == 1, "its own guest takes it: {left:#x}");
    }
}

/// Each has a device of its own on the same CPU.
fn both(test: &str, pair: &mut Pair) {
    let is_set = pair.second(&OTHER, 0);
    check!(test, is_set, "the second device is the other's");
    for round in 0..ROUNDS {
        for (runs, own, waits, wrong) in
            [(&BACKING, VECTOR, &OTHER, LOW), (&OTHER, LOW, &BACKING, VECTOR)]
        {
            let before = code::count(wrong);
            let (left, _) = pair.tries(runs, wrong == LOW);
            let came = code::count(wrong) - before;
            let right = is_in(waits, REQUEST, wrong) && is_empty(runs);
            let right = right && left == exit::VMMCALL && came == 0;
            check!(test, right, "{round}, {wrong:#x}: {came} came to who runs: {left:#x}");
            forget(waits);
            // What is its own comes.
            let before = code::count(own);
            let (left, _) = pair.tries(runs, own == LOW);
            let came = code::count(own) - before;
            check!(test, left == exit::VMMCALL && came == 1, "its own: {came}, {left:#x}");
        }
    }
}

/// The second CPU's part: a guest with the first page, until it is to go.
pub(super) fn stay(_: usize) {
    turn_on();
    let mut guest = guest(device::base());
    begin_at(&mut guest, code::stays());
    guest.enter_open();
    while guest.code() == exit::INTR {
        let_in();
        cpu::enable_interrupts();
        cpu::disable_interrupts();
        guest.enter_open();
    }
    let_in();
    LEFT.store(guest.code(), SeqCst);
    turn_off();
}

/// Two CPUs.
pub fn smp(test: &str, boot: &Boot) {
    if super::super::super::cpus(test, boot).is_none() {
        return;
    }
    let Some(mut pair) = Pair::new(test, boot) else { return };
    ipis(test);
    // As it is known here, the guest runs at this CPU.
    by_itself(test, &mut pair.posts);
    code::put(code::STAYS, 0);
    let done = cpus::others(2, stay, || {
        let is_there = wait::patiently(|| code::get(code::STAYS) == 1);
        moved(test, &pair);
        beside(test, &pair);
        code::put(code::STAYS, 2);
        is_there
    });
    let left = LEFT.load(SeqCst);
    check!(test, done && left == exit::VMMCALL, "the guest on the second CPU: {left:#x}");
    check!(test, is_empty(&BACKING) && is_empty(&OTHER), "nothing is left");
    pair.end(test);
}

/// This kernel's own, by vectors of the class that the host has on its CPUs.
const IPIS: [u8; 4] = [0xF0, 0xF8, 0xFC, 0xFD];

fn ipis(test: &str) {
    IPIS.iter().for_each(|vector| idt::on(*vector, |_| x2apic::complete()));
    let hears = |_| {
        cpu::enable_interrupts();
        wait::patiently(|| IPIS.iter().all(|vector| idt::count(*vector) >= ROUNDS));
        cpu::disable_interrupts();
    };
    let done = cpus::others(2, hears, || {
        (1..=ROUNDS).all(|round| {
            IPIS.iter().all(|vector| {
                x2apic::send(1, u64::from(*vector));
                wait::patiently(|| idt::count_on(1, *vector) == round)
            })
        })
    });
    let counts = IPIS.map(|vector| idt::count_on(1, vector));
    let right = done && counts == [ROUNDS; 4];
    check!(test, right, "IPIs by F0h, F8h, FCh and FDh: {counts:?} of {ROUNDS} came");
}

/// The guest is at another CPU by now, which its entry says and the unit wasn't told.
fn moved(test: &str, pair: &Pair) {
    check!(test, pair.first(&BACKING, 1), "its entry");
    let mut came = 0;
    let mut raise = |times: u64| {
        for _ in 0..times {
            let before = code::get(code::HANDLED);
            device::raise();
            came += u64::from(wait::patiently(|| code::get(code::HANDLED) == before + 1));
        }
    };
    // The first one comes by this CPU, and the second one ends what L2 does without.
    raise(3);
    let (here, there) = (Window::open(), Window::of(1));
    raise(ROUNDS);
    let (here, there) = (here.close(), there.close());
    check!(test, came == ROUNDS + 3, "{came} of {} came to the second CPU", ROUNDS + 3);
    let by_here = here.of(Reason::DeviceInterrupt);
    let exits = there.of(Reason::DeviceInterrupt);
    let looks = there.of(Reason::Kick);
    check!(test, by_here == 0, "{by_here} of {ROUNDS} by this CPU");
    check!(test, exits <= looks, "{exits} exits there, {looks} times the host had a look");
}

/// Waits until the guest there takes what the first device posts without an exit. An exit is
/// counted when the next one comes: of three interrupts.
pub(super) fn takes_itself() -> bool {
    wait::patiently(|| {
        let window = Window::of(1);
        let came = (0..3).all(|_| {
            let before = code::get(code::HANDLED);
            device::raise();
            wait::patiently(|| code::get(code::HANDLED) > before)
        });
        came && window.close().all() == 0
    })
}

/// While the guest takes its own there, the second device posts to the other page, at that CPU.
fn beside(test: &str, pair: &Pair) {
    for round in 0..ROUNDS {
        let before = code::count(LOW);
        // Nothing is said between: the host has it left when it has run for some milliseconds.
        let takes = takes_itself();
        let is_set = pair.second(&OTHER, 1);
        pair.second.raise();
        check!(test, takes && is_set, "{round}: it takes its own itself, and the second entry");
        let waits = wait::patiently(|| is_in(&OTHER, REQUEST, LOW));
        wait::settle();
        let came = code::count(LOW) - before;
        check!(test, waits && came == 0, "{round}: it waits: {waits}, {came} to the wrong guest");
        forget(&OTHER);
        check!(test, pair.second(&BACKING, 1), "its own");
        pair.second.raise();
        let came = wait::patiently(|| code::count(LOW) == before + 1);
        check!(test, came, "{round}: its own comes");
    }
}
