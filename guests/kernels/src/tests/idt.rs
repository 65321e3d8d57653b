//! The guest's interrupt descriptor table moves, shrinks, changes under way and is
//! mapped elsewhere; interrupts follow it each time.

use super::{edu, exceptions};
use crate::{
    boot::Boot,
    console::check,
    counters::{Window, shared},
    cpu, edu, idt, wait, x2apic,
};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use ledger::Reason;
use machine::alias::{ALIAS, map_alias};

const NOT_PRESENT: u8 = 11;
const PROTECTION: u8 = 13;
const WHOLE: u16 = (idt::TABLE_BYTES - 1) as u16;

/// SIDT shows what LIDT took while device interrupts come by the table, whatever limit is in force.
pub fn shown(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    for limit in [WHOLE, 0xF7F, 0xFFFF] {
        cpu::load_idt(idt::arena(0), limit);
        let mut right = 0;
        for _ in 0..20 {
            let before = idt::count(0x40);
            let came = edu.raise_and_wait(0x40, 1) > before;
            right += u32::from(came && cpu::stored_idt() == (idt::arena(0), limit));
        }
        check!(test, right == 20, "a limit of {limit:#x} is shown {right} of 20 times");
    }
    idt::load();
    edu.silence();
}

/// LIDT to tables at all kinds of places.
pub fn moved(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(0x40);
    cpu::enable_interrupts();
    let places = [
        (0x1000, WHOLE, "page-aligned"),
        (0x2008, WHOLE, "across two pages"),
        (0x0A50, 0xFFFF, "with the largest limit"),
        (0x20C3, WHOLE, "at an odd address"),
        (0, WHOLE, "back where it was"),
    ];
    let mut old = idt::arena(0);
    for (offset, limit, what) in places {
        let aligned = offset % idt::TABLE_BYTES == 0;
        let base = idt::arena(offset);
        fill(base);
        let window = Window::open();
        cpu::load_idt(base, limit);
        let loads = window.close();
        let stored = cpu::stored_idt();
        check!(test, stored == (base, limit), "{what}: SIDT gives what LIDT took");
        loads.expect(test, Reason::IdtLoad, 0..=1, 0..=1);
        for vector in 0..=255 {
            idt::write_gate(old, vector, [0; 2]);
        }
        // A table that isn't one page may be served at a cost.
        interrupts_come(test, &edu, what, if aligned { 0 } else { u64::MAX });
        old = base;
    }
    edu.silence();
}

fn fill(base: u64) {
    for vector in 0..=255 {
        idt::write_gate(base, vector, idt::gate(vector, true));
    }
}

/// Checks that interrupts come, with `eli` at most `exits` exits, and with `direct` none.
fn interrupts_come(test: &str, edu: &edu::Edu, what: &str, exits: u64) {
    let before = idt::count(0x40);
    let window = Window::open();
    let n = edu.raise_and_wait(0x40, 5) - before;
    let counted = window.close();
    check!(test, n == 5, "{what}: {n} of 5 interrupts");
    counted.expect_few(test, exits);
}

/// A limit that leaves the device's vector out.
pub fn limited(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    let base = idt::arena(0x2E00);
    for vector in 0..0x40 {
        idt::write_gate(base, vector, idt::gate(vector, true));
    }
    cpu::load_idt(base, 0x40 * 16 - 1);
    idt::on(PROTECTION, exceptions::complete_in_service);
    edu.aim_handled(0x50);
    cpu::enable_interrupts();
    edu::raise();
    let came = wait::until(|| idt::count(PROTECTION) == 1);
    let error = idt::last_error(PROTECTION);
    // QEMU leaves the EXT bit out, hardware sets it.
    let right = came && error | 1 == 0x50 * 8 + 3 && idt::count(0x50) == 0;
    check!(test, right, "an interrupt beyond the limit: #GP, error code {error:#x}");
    check!(test, !x2apic::in_service(0x50), "it was in service and completes");

    idt::on(PROTECTION, exceptions::skip_software_interrupt);
    idt::software_interrupt(0x51);
    let error = idt::last_error(PROTECTION);
    // QEMU before 10.0.8 leaves the IDT bit out for INT n.
    let right = idt::count(PROTECTION) == 2 && error | 2 == 0x51 * 8 + 2;
    check!(test, right, "INT n beyond the limit: #GP, error code {error:#x}");

    edu.aim_handled(0x3F);
    let n = edu.raise_and_wait(0x3F, 10);
    check!(test, n == 10, "the last vector inside the limit: {n} of 10");
    edu.aim_handled(0x40);
    cpu::load_idt(idt::arena(0), WHOLE);
    interrupts_come(test, &edu, "with the whole table again", 2);
    edu.silence();
}

/// Ways to store, each to the low half of a gate: (name, how).
type Store = (&'static str, fn(u64, u64));

const STORES: [Store; 8] = [
    ("MOV of 8 bytes", |at, value| {
        // SAFETY: the address is a gate of a table in the arena.
        unsafe { asm!("mov [{}], {}", in(reg) at, in(reg) value) }
    }),
    ("MOV of 4 bytes, twice", |at, value| {
        // SAFETY: the address is a gate of a table in the arena.
        unsafe {
            asm!("mov [{a}], {v:e}", "shr {v}, 32", "mov [{a} + 4], {v:e}",
             a = in(reg) at, v = inout(reg) value => _)
        }
    }),
    ("MOV of 2 bytes, four times", |at, value| {
        // SAFETY: the address is a gate of a table in the arena.
        unsafe {
            asm!("mov [{a}], {v:x}", "shr {v}, 16", "mov [{a} + 2], {v:x}", "shr {v}, 16",
             "mov [{a} + 4], {v:x}", "shr {v}, 16", "mov [{a} + 6], {v:x}",
             a = in(reg) at, v = inout(reg) value => _)
        }
    }),
    ("MOV of 1 byte, eight times", |at, value| {
        // SAFETY: the address is a gate of a table in the arena.
        unsafe {
            asm!("mov ecx, 8", "2:", "mov [{a}], {v:l}", "shr {v}, 8", "inc {a}", "dec ecx", "jnz 2b",
             a = inout(reg) at => _, v = inout(reg_abcd) value => _, out("ecx") _)
        }
    }),
    ("XCHG", |at, value| {
        // SAFETY: the address is a gate of a table in the arena.
        unsafe { asm!("xchg [{}], {}", in(reg) at, inout(reg) value => _) }
    }),
    ("STOSQ with REP", |at, value| {
        // SAFETY: the address is a gate of a table in the arena.
        unsafe { asm!("rep stosq", inout("rdi") at => _, in("rax") value, inout("rcx") 1u64 => _) }
    }),
    ("MOVSQ with REP", |at, value| {
        // SAFETY: the address is a gate of a table in the arena.
        unsafe {
            let cell = [value];
            asm!("rep movsq", inout("rdi") at => _, inout("rsi") cell.as_ptr() => _,
             inout("rcx") 1u64 => _)
        }
    }),
    ("MOVSB with REP", |at, value| {
        // SAFETY: the address is a gate of a table in the arena.
        unsafe {
            let cell = [value];
            asm!("rep movsb", inout("rdi") at => _, inout("rsi") cell.as_ptr() => _,
             inout("rcx") 8u64 => _)
        }
    }),
];

/// Gates rewritten while interrupts come.
pub fn written(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    let table = idt::arena(0);
    edu.aim_handled(0x40);
    idt::on(0x62, edu::handler);
    cpu::enable_interrupts();
    interrupts_come(test, &edu, "before any store", 0);
    let window = Window::open();
    for (name, store) in STORES {
        // The device's gate now leads to the stub of another vector, and back.
        for target in [0x62, 0x40] {
            let gate = idt::gate(target, true);
            store(table + 0x40 * 16, gate[0]);
            let kept = idt::read_gate(table, 0x40) == gate;
            let before = idt::count(target);
            edu::raise();
            let came = wait::until(|| idt::count(target) == before + 1);
            check!(test, kept && came, "{name}: read back, and leads to {target:#x}");
        }
    }
    // On a shared core the limit takes the shadow's place, and no page is watched.
    let watched = if shared() { 0..=0 } else { 2 * STORES.len() as u64..=u64::MAX };
    window.close().expect(test, Reason::IdtWrite, 0..=0, watched);
    flags(test, table);
    neighbour(test);
    interrupts_come(test, &edu, "after all stores", 2);
    edu.silence();
}

/// One bit set and cleared in place.
fn flags(test: &str, table: u64) {
    let attributes = table + 0x40 * 16 + 5;
    idt::on(NOT_PRESENT, exceptions::complete_in_service);
    // SAFETY: the attributes byte of a gate in the arena.
    unsafe { asm!("and byte ptr [{}], 0x7F", in(reg) attributes) }
    edu::raise();
    let came = wait::until(|| idt::count(NOT_PRESENT) == 1);
    check!(test, came, "AND clears the present bit: #NP");
    // SAFETY: as above.
    unsafe { asm!("lock or byte ptr [{}], 0x80", in(reg) attributes) }
    let before = idt::count(0x40);
    edu::raise();
    let came = wait::until(|| idt::count(0x40) == before + 1);
    check!(test, came, "OR sets it: the handler");
}

/// Data beside a table that shares a page with it.
fn neighbour(test: &str) {
    static BESIDE: AtomicU64 = AtomicU64::new(0);
    let base = idt::arena(0x1100);
    fill(base);
    cpu::load_idt(base, WHOLE);
    let cell = idt::arena(0x1080) as *mut u64;
    for i in 1..=10 {
        // SAFETY: inside the arena, before the table.
        BESIDE.fetch_add(
            unsafe {
                cell.write_volatile(i);
                cell.read_volatile()
            },
            SeqCst,
        );
    }
    let sum = BESIDE.swap(0, SeqCst);
    check!(test, sum == 55, "stores beside the table, in its page, hold: {sum} of 55");
    cpu::load_idt(idt::arena(0), WHOLE);
}

/// A table at a linear address that isn't its physical one, as Linux has it; then
/// the page behind that address is exchanged.
pub fn remapped(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    let (first, second) = (idt::arena(0x1000), idt::arena(0x2000));
    fill(first);
    fill(second);
    idt::write_gate(second, 0x40, idt::gate(0x63, true));
    edu.aim_handled(0x40);
    idt::on(0x63, edu::handler);
    map_alias(first);
    cpu::load_idt(ALIAS, WHOLE);
    cpu::enable_interrupts();
    interrupts_come(test, &edu, "through an alias", 2);
    idt::write_gate(first, 0x40, idt::gate(0x63, true));
    let (n, alias) = (idt::count(0x63), idt::read_gate(ALIAS, 0x40));
    edu::raise();
    let came = wait::until(|| idt::count(0x63) == n + 1);
    let shown = alias == idt::gate(0x63, true);
    check!(test, came && shown, "a store through the other address shows and counts");
    idt::write_gate(first, 0x40, idt::gate(0x40, true));

    map_alias(second);
    let (old, new) = (idt::count(0x40), idt::count(0x63));
    edu::raise();
    wait::until(|| idt::count(0x40) + idt::count(0x63) > old + new);
    let (old, new) = (idt::count(0x40) - old, idt::count(0x63) - new);
    check!(
        test,
        (old, new) == (0, 1),
        "remapped without LIDT: {old} by the old page, {new} by the new"
    );
    cpu::load_idt(idt::arena(0), WHOLE);
    // After a mapping changed under the host, one interrupt may have to tell it.
    interrupts_come(test, &edu, "the first table loaded again", 2);
    edu.silence();
}
