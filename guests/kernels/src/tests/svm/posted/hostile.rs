//! A guest that spoils how interrupts come to it: its table is elsewhere, without gates, without
//! room, or has gates for the host's own; it completes without end, or stops for good.
//!
//! This kernel's timer comes to this kernel all the same, and afterwards all is as it was.

use super::super::{block, block::exit, inside, paging};
use super::{BACKING, Posts, RFLAGS_IF, TIMER, VECTOR, code};
use crate::edu as device;
use crate::{boot::Boot, console::check, console::println, idt, wait, x2apic};
use core::sync::atomic::Ordering::SeqCst;

const ROUNDS: u64 = 5;
const SOON: u32 = 300_000;
/// Vectors of the host's class.
const HOSTS: core::ops::RangeInclusive<u8> = 0xF0..=0xFF;
/// Of the guest's physical addresses: a page that this kernel has nothing for, and one for which it
/// has what is nobody's memory.
const ABSENT: u64 = 5;
const NOBODYS: u64 = 6;
/// In the upper half of the word of exceptions.
const HLT: u64 = 1 << (32 + 24);

/// Tables and habits, each beside this kernel's timer.
pub fn hostile(test: &str, boot: &Boot) {
    let Some(mut posts) = Posts::new(test, boot) else { return };
    paging::map_at(NOBODYS, 0x9000_0000, paging::ALL);
    let own = code::TABLE.address();
    let page = |n: u64| paging::AREA + (n << 12);
    for (name, base, limit) in [
        ("beyond what this kernel maps", page(ABSENT), 0xFFF),
        ("in nobody's memory", page(NOBODYS), 0xFFF),
        ("without gates", BACKING.address(), 0xFFF),
        ("at no canonical address", 1 << 63, 0xFFF),
        ("with a limit of 0", own, 0),
        ("that ends before its vector", own, 0xA0F),
        ("with a limit of FFFFh", own, 0xFFFF),
        ("in the device's registers", page(0), 0xFFF),
    ] {
        code::put(code::LOADED, base << 16 | limit);
        code::put(code::LOADED + 1, base >> 48);
        let hosts: u64 = HOSTS.map(code::count).sum();
        withstands(test, &mut posts, name, code::strays(), 2);
        let taken = HOSTS.map(code::count).sum::<u64>() - hosts;
        check!(test, taken == 0, "{name}: {taken} of the host's class came to it");
        // As this kernel has it in the block.
        posts.at(code::raises());
        spoilt(test, &mut posts, name, base, limit);
        restored(test, &mut posts, name);
    }
    for (name, rip, flag) in [
        ("completions without end", code::completes(), RFLAGS_IF),
        ("CLI and HLT, told", code::stops(), 0),
        ("nothing without end", inside::spins(), RFLAGS_IF),
    ] {
        withstands(test, &mut posts, name, rip, 2 | flag);
        restored(test, &mut posts, name);
    }
    let wanted = posts.guest.block().get(block::EXCEPTIONS);
    posts.guest.block().put(block::EXCEPTIONS, wanted & !HLT);
    withstands(test, &mut posts, "CLI and HLT, not told", code::stops(), 2);
    posts.guest.block().put(block::EXCEPTIONS, wanted);
    restored(test, &mut posts, "not told");
    posts.end(test);
}

/// Enters it again and again, until this kernel's timer has come.
fn withstands(test: &str, posts: &mut Posts, name: &str, rip: u64, flags: u64) {
    let (mut came, mut last) = (0, 0);
    for _ in 0..ROUNDS {
        posts.at(rip);
        posts.guest.block().put(block::RFLAGS, flags);
        came += u64::from(ticks(posts, &mut last, |posts| {
            posts.at(rip);
            posts.guest.block().put(block::RFLAGS, flags);
        }));
    }
    check!(test, came == ROUNDS, "{name}: {came} of {ROUNDS} ticks came; left for {last:#x}");
}

/// With a table that this kernel gave it, and an interrupt of the device's that comes meanwhile.
fn spoilt(test: &str, posts: &mut Posts, name: &str, base: u64, limit: u64) {
    let (mut came, mut last) = (0, 0);
    let table = |posts: &mut Posts| {
        posts.at(code::raises()).with(3);
        let block = posts.guest.block();
        block.put(block::IDTR, limit << 32);
        block.put(block::IDTR + 8, base);
    };
    for _ in 0..ROUNDS {
        table(posts);
        came += u64::from(ticks(posts, &mut last, table));
    }
    check!(test, came == ROUNDS, "{name}, from the start: {came} of {ROUNDS}; left for {last:#x}");
}

/// Has a tick come while it runs; what it is told meanwhile is answered by `again`. Did it come?
fn ticks(posts: &mut Posts, last: &mut u64, again: impl Fn(&mut Posts)) -> bool {
    let before = idt::count(TIMER);
    x2apic::start_timer(TIMER, false, SOON);
    let came = wait::until(|| {
        posts.guest.enter_open();
        posts.let_in();
        if posts.guest.code() != exit::INTR {
            *last = posts.guest.code();
            again(posts);
        }
        idt::count(TIMER) > before
    });
    x2apic::stop_timer();
    came && idt::count(TIMER) == before + 1
}

/// The next guest has its interrupts.
fn restored(test: &str, posts: &mut Posts, name: &str) {
    device::acknowledge();
    BACKING.0.iter().for_each(|word| word.store(0, SeqCst));
    code::forget_notes();
    let before = (code::count(VECTOR), idt::everything());
    let left = posts.at(code::raises()).with(10).run();
    let came = code::count(VECTOR) - before.0;
    let seen = idt::everything() - before.1;
    let right = left == exit::VMMCALL && came == 10 && seen == 0;
    check!(test, right, "{name}, and then 10: {left:#x}, {came}, {seen} to this kernel");
    if !right {
        println!("  {:x?}, RDX {:#x}", code::notes(), posts.guest.registers.rdx);
    }
}
