//! Interrupts that a device posts to the guest of this kernel, by a unit of its own: the guest
//! takes and completes them itself, and neither this kernel nor its host hears of them.
//!
//! What must hold besides: one that comes while the guest doesn't run waits in its backing page;
//! all go by priority, whoever sends them; this kernel's own interrupts come to this kernel,
//! whatever the guest does with its table, its flag and its completions.

mod chaos;
mod code;
mod executes;
mod hostile;
mod lost;
mod moves;
mod others;
mod own;
mod restart;

use super::block::{self, Frame, Guest, exit, let_in};
use super::{begin, end, inside, paging};
use crate::amdvi::AmdVi;
use crate::amdvi::guests::Posted;
use crate::counters::{Counted, Window};
use crate::edu::{self as device, Edu};
use crate::tests::viommu::endpoint;
use crate::tests::{edu, unit::started};
use crate::unit::{Ask, Place, Unit};
use crate::{boot::Boot, console::check, cpu, idt, wait, x2apic};
use core::sync::atomic::Ordering::SeqCst;
use ledger::Reason;

pub use chaos::chaos;
pub use hostile::hostile;
pub use lost::{kept, offline, rerouted};
pub use moves::moves;
pub use others::{others, smp};
pub use restart::restart;

/// The device's, for the guest; and a lower one.
const VECTOR: u8 = 0xA1;
const LOW: u8 = 0x71;
/// This kernel's.
const TIMER: u8 = 0x52;
const LOGGED: u8 = 0x53;
/// What this kernel puts into the backing page.
const HIGHEST: u8 = 0xF5;
const LOWEST: u8 = 0x61;
const TAG: u32 = 0xB00_0071;
const INDEX: u64 = 9;
const TIMES: u64 = 100;

/// The host has a look at most so often, in ticks of the time-stamp counter: a millisecond or more.
const LOOKS_APART: u64 = 1_000_000;

/// In a control block: AVIC, and x2APIC mode of it; the address of the backing page.
const AVIC: u64 = 3 << 30;
const BACKING_PAGE: usize = 0xE0;
const RFLAGS_IF: u64 = 1 << 9;
const X2APIC_EOI: u32 = 0x80B;
/// Offsets in the backing page.
const IN_SERVICE: usize = 0x100;
const REQUEST: usize = 0x200;
const TASK_PRIORITY: usize = 0x80;

static BACKING: Frame = Frame::new();
static LOG: Frame = Frame::new();

/// A vector's bit in the backing page.
fn bit(first: usize, vector: u8) -> (usize, u64) {
    ((first + 16 * usize::from(vector / 32)) / 8, 1 << (vector % 32))
}

fn has(first: usize, vector: u8) -> bool {
    is_in(&BACKING, first, vector)
}

fn is_in(page: &Frame, first: usize, vector: u8) -> bool {
    let (word, mask) = bit(first, vector);
    page.0[word].load(SeqCst) & mask != 0
}

/// Puts an interrupt there.
fn request(vector: u8) {
    let (word, mask) = bit(REQUEST, vector);
    BACKING.0[word].fetch_or(mask, SeqCst);
}

/// Is nothing there?
fn is_empty(first: usize) -> bool {
    (0..=u8::MAX).all(|vector| !has(first, vector))
}

/// A guest that has the device, whose registers are here.
fn guest(device: u64) -> Guest {
    let guest = paging::guest();
    paging::map_at(0, device, paging::ALL);
    code::put(code::DEVICE, paging::AREA);
    block::let_msr(X2APIC_EOI, true, true);
    guest.block().put(block::INT_CTL, block::MASKING | AVIC);
    guest.block().put(BACKING_PAGE, BACKING.address());
    guest
}

/// It is at the beginning of this.
fn begin_at(guest: &mut Guest, rip: u64) {
    guest.restart(rip);
    let block = guest.block();
    block.put(block::IDTR, 0xFFF << 32);
    block.put(block::IDTR + 8, code::TABLE.address());
    guest.registers.rsi = paging::AREA;
    guest.registers.rdi = code::DATA.address();
}

/// This kernel's guest, the unit and the device.
struct Posts {
    guest: Guest,
    unit: AmdVi,
    edu: Edu,
    source: u16,
}

impl Posts {
    /// All of it, set up; or a failed check.
    fn new(test: &str, boot: &Boot) -> Option<Posts> {
        let (edu, unit) = (edu(test)?, started::<AmdVi>(test, boot)?);
        check!(test, unit.posts(), "it posts to guests of its guest's");
        let id = endpoint(edu.function);
        unit.lead(id, Place::Through);
        let runs = unit.begin(id) && unit.remap(true);
        check!(test, runs, "it translates and remaps");
        if !unit.posts() || !runs || !begin(test) {
            return None;
        }
        idt::on(TIMER, |_| x2apic::complete());
        idt::on(LOGGED, |_| x2apic::complete());
        code::set_up();
        BACKING.0.iter().for_each(|word| word.store(0, SeqCst));
        let guest = guest(edu.base());
        let posts = Posts { guest, unit, edu, source: id as u16 };
        let is_set = posts.post(VECTOR, true, None);
        let (address, data) = AmdVi::message(INDEX);
        posts.edu.program(address, data, true);
        check!(test, is_set, "an entry for the guest's backing page");
        is_set.then_some(posts)
    }

    /// As without it all.
    fn end(self, test: &str) {
        self.edu.silence();
        let off = self.unit.remap(false) && self.unit.translate(false);
        check!(test, off, "it remaps and translates no more");
        end();
    }

    /// The device's interrupts have this vector in the guest from here on.
    fn post(&self, vector: u8, runs: bool, tag: Option<u32>) -> bool {
        self.post_to(Posted { vector, page: BACKING.address(), cpu: 0, runs, tag }) && self.ask()
    }

    /// The same, to whom this says; the unit isn't told.
    fn post_to(&self, to: Posted) -> bool {
        code::put(code::VECTOR, to.vector.into());
        self.unit.post(INDEX, self.source, to)
    }

    fn ask(&self) -> bool {
        self.unit.ask(&[Ask::Device(self.source.into()), Ask::Interrupts(self.source)])
    }

    /// The guest is at the beginning of this.
    fn at(&mut self, rip: u64) -> &mut Self {
        begin_at(&mut self.guest, rip);
        self
    }

    /// RCX as given, RDX as [`code::waits`] wants it.
    fn with(&mut self, rcx: u64) -> &mut Self {
        self.guest.registers.rcx = rcx;
        self.guest.registers.rdx = code::get(code::HANDLED);
        self
    }

    /// Runs it until it is left for something else than an interrupt, or for a tick after some
    /// seconds. The exit code, what was counted.
    ///
    /// The host tells of an interrupt that is none of this kernel's, too, while the guest doesn't
    /// take its own itself.
    fn measure(&mut self) -> (u64, Counted) {
        let before = idt::count(TIMER);
        x2apic::start_timer(TIMER, false, u32::MAX);
        let window = Window::open();
        self.guest.enter_open();
        while self.guest.code() == exit::INTR && idt::count(TIMER) == before {
            self.let_in();
            self.guest.enter_open();
        }
        let counted = window.close();
        x2apic::stop_timer();
        self.let_in();
        (self.guest.code(), counted)
    }

    /// Runs it until it is left for anything.
    fn once(&mut self) -> u64 {
        x2apic::start_timer(TIMER, false, u32::MAX);
        self.guest.enter_open();
        x2apic::stop_timer();
        self.let_in();
        self.guest.code()
    }

    /// As [`Posts::measure`].
    fn run(&mut self) -> u64 {
        self.measure().0
    }

    /// This kernel's own interrupts.
    fn let_in(&self) {
        let_in();
        cpu::enable_interrupts();
        cpu::disable_interrupts();
    }

    /// The device raises its interrupt while this kernel runs, and it is in the backing page.
    fn raised(&self, vector: u8) -> bool {
        device::raise();
        wait::until(|| has(REQUEST, vector))
    }
}

/// Interrupts that are the guest's.
pub fn posted(test: &str, boot: &Boot) {
    let Some(mut posts) = Posts::new(test, boot) else { return };
    by_itself(test, &mut posts);
    outside(test, &mut posts);
    logged(test, &mut posts);
    in_service(test, &mut posts);
    by_priority(test, &mut posts);
    executes::all(test, &mut posts);
    own::interrupts(test, &mut posts);
    by_itself(test, &mut posts);
    posts.end(test);
}

/// Many inside one VMRUN, of which none has an exit.
fn by_itself(test: &str, posts: &mut Posts) {
    // The way is known then.
    let first = posts.at(code::raises()).with(1).run();
    check!(test, first == exit::VMMCALL, "the first: {first:#x}");
    posts.at(inside::hypercall()).run();
    let (_, alone) = posts.at(inside::hypercall()).measure();
    let before = (code::get(code::HANDLED), code::count(VECTOR));
    let began = cpu::tsc();
    let (left, counted) = posts.at(code::raises()).with(TIMES).measure();
    let took = cpu::tsc() - began;
    let handled = code::get(code::HANDLED) - before.0;
    check!(test, left == exit::VMMCALL, "{TIMES} in one VMRUN: {left:#x}");
    let right = handled == TIMES && code::count(VECTOR) - before.1 == TIMES;
    check!(test, right, "{handled} were handled");
    let is_calm = is_empty(IN_SERVICE) && is_empty(REQUEST);
    check!(test, is_calm, "nothing is in service or waits");
    // The host has a look now and then: the interrupt behind it comes by the host, is told, and so
    // does its completion.
    let looks = counted.of(Reason::Kick);
    let exits = counted.own() - alone.own();
    let right = exits <= 6 * looks && looks <= 1 + took / LOOKS_APART;
    check!(test, right, "{exits} exits, and {looks} times the host had a look, in {took} ticks");
    if !right {
        counted.print();
    }
}

/// One that comes while this kernel runs waits for the guest, and is nothing to this kernel.
fn outside(test: &str, posts: &mut Posts) {
    let (before, mut right, mut taken) = (idt::everything(), 0, 0);
    for _ in 0..10 {
        cpu::enable_interrupts();
        let waits = posts.raised(VECTOR) && is_empty(IN_SERVICE);
        cpu::disable_interrupts();
        right += u64::from(waits);
        let handled = code::get(code::HANDLED);
        let left = posts.at(code::waits()).with(0).run();
        let came = code::get(code::HANDLED) == handled + 1;
        let is_calm = is_empty(IN_SERVICE) && is_empty(REQUEST);
        taken += u64::from(left == exit::VMMCALL && came && is_calm);
    }
    let seen = idt::everything() - before;
    check!(test, right == 10, "{right} of 10 wait in the backing page");
    check!(test, seen == 0, "{seen} interrupts came to this kernel");
    check!(test, taken == 10, "{taken} of 10 are taken when the guest runs");
    // Several are one, as in any local APIC.
    let handled = code::get(code::HANDLED);
    (0..3).for_each(|_| {
        posts.raised(VECTOR);
    });
    let left = posts.at(code::takes()).run();
    let came = code::get(code::HANDLED) - handled;
    check!(test, left == exit::VMMCALL && came == 1, "three are {came}: {left:#x}");
}

/// Of one that comes while the guest doesn't run, its tag is logged, and an interrupt says so.
fn logged(test: &str, posts: &mut Posts) {
    let page = LOG.address();
    check!(test, posts.unit.log_posted(page, LOGGED), "the log of what is posted runs");
    let mut tells = |runs: bool, tag: Option<u32>| {
        let is_set = posts.post(VECTOR, runs, tag);
        let before = idt::count(LOGGED);
        cpu::enable_interrupts();
        let waits = is_set && posts.raised(VECTOR);
        let came = match (runs, tag) {
            (false, Some(_)) => wait::until(|| idt::count(LOGGED) > before),
            _ => {
                wait::settle();
                false
            }
        };
        cpu::disable_interrupts();
        let (told, entry) = (idt::count(LOGGED) - before, posts.unit.take_posted(page));
        let left = posts.at(code::waits()).with(0).run();
        check!(test, waits && left == exit::VMMCALL, "it waits, and is taken: {left:#x}");
        (came, told, entry)
    };
    for _ in 0..2 {
        let found = tells(false, Some(TAG));
        let right = found == (true, 1, Some(1 << 60 | u64::from(TAG)));
        check!(test, right, "not running: the tag is logged and told: {found:x?}");
        let found = tells(true, Some(TAG));
        check!(test, found == (false, 0, None), "running: it isn't: {found:x?}");
        let found = tells(false, None);
        check!(test, found == (false, 0, None), "without GALogIntr: it isn't: {found:x?}");
    }
    check!(test, posts.post(VECTOR, true, None), "as before");
}

/// The guest is left in the midst of a handler: what it has in service is in the backing page, and
/// holds back what is lower until the guest completes it.
fn in_service(test: &str, posts: &mut Posts) {
    let (high, low) = (u64::from(VECTOR), u64::from(LOW));
    for round in 0..3 {
        code::put(code::MODE, code::TELLS | code::OPENS);
        code::forget_notes();
        let left = posts.at(code::raises()).with(1).run();
        let serves = has(IN_SERVICE, VECTOR) && !has(REQUEST, VECTOR);
        check!(test, left == exit::CPUID && serves, "{round}, in its handler: {left:#x}, {serves}");
        let others = (0..=u8::MAX).filter(|v| *v != VECTOR).any(|v| has(IN_SERVICE, v));
        check!(test, !others, "nothing else is in service");
        // A lower one, while it is at it; and by this kernel, the lowest.
        code::put(code::MODE, code::OPENS);
        let waits = posts.post(LOW, true, None) && posts.raised(LOW);
        request(LOWEST);
        check!(test, waits && has(IN_SERVICE, VECTOR), "a lower one waits");
        // It is neither acknowledged nor counted as the device's, as the vector is another's now.
        code::put(code::VECTOR, high);
        posts.guest.skip(2);
        let left = posts.run();
        check!(test, left == exit::VMMCALL, "it goes on: {left:#x}");
        let left = posts.at(code::takes()).run();
        device::acknowledge();
        let is_calm = is_empty(IN_SERVICE) && is_empty(REQUEST);
        check!(test, left == exit::VMMCALL && is_calm, "nothing is left: {left:#x}, {is_calm}");
        let ends = |vector: u64| vector | code::ENDS;
        let lowest = u64::from(LOWEST);
        let right = code::noted(&[high, ends(high), low, ends(low), lowest, ends(lowest)]);
        check!(test, right, "the lower ones came when it was completed: {:x?}", code::notes());
        code::put(code::MODE, 0);
        check!(test, posts.post(VECTOR, true, None), "the higher one again");
    }
}

/// What this kernel puts into the backing page, and the device's.
fn by_priority(test: &str, posts: &mut Posts) {
    let mut right = 0;
    for round in 0..20 {
        code::forget_notes();
        code::put(code::MODE, if round % 2 == 0 { 0 } else { code::OPENS });
        request(LOWEST);
        let waits = posts.raised(VECTOR);
        request(HIGHEST);
        let left = posts.at(code::takes()).run();
        let steps = [HIGHEST, VECTOR, LOWEST].map(u64::from);
        let [a, b, c] = steps;
        let ends = code::ENDS;
        let came = code::noted(&[a, a | ends, b, b | ends, c, c | ends]);
        let is_calm = is_empty(IN_SERVICE) && is_empty(REQUEST);
        right += u64::from(left == exit::VMMCALL && waits && came && is_calm);
    }
    check!(test, right == 20, "{right} of 20 times all three, by priority: {:x?}", code::notes());
    code::put(code::MODE, 0);
    let before = [VECTOR, HIGHEST, LOWEST].map(code::count);
    let mut calls = 0;
    for _ in 0..20 {
        request(HIGHEST);
        request(LOWEST);
        let left = posts.at(code::raises()).with(5).run();
        calls += u64::from(left == exit::VMMCALL);
    }
    let after = [VECTOR, HIGHEST, LOWEST].map(code::count);
    let came = core::array::from_fn(|n| after[n] - before[n]);
    let right = calls == 20 && came == [100, 20, 20];
    check!(test, right, "{calls} of 20 times meanwhile: {came:?}");
}
