//! Interrupts whose handler's stack can't be had: its slot lies beyond the TSS (#TS), its address
//! is no address (#SS), or nothing is mapped there (#PF). A CPU has acknowledged the interrupt by
//! then: it is in service, its handler hasn't run, and it doesn't come again.

use super::edu;
use super::nested::{self, DEVICE, PAGE_FAULT, PROTECTION, catch, restore};
use crate::{boot::Boot, console::check, cpu, edu, idt, x2apic};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

const TASK: u8 = 10;
const STACK: u8 = 12;
/// Beyond the identity map.
const UNMAPPED: u64 = 0x12_3456_7000;
const NOT_CANONICAL: u64 = 1 << 63;
/// The error code of a store, by the kernel, to a page that isn't there.
const STORE: u64 = 2;

/// Null, code, data, and the TSS's two halves.
static DESCRIPTORS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
const SELECTOR: u16 = 3 * 8;
/// A TSS in its words of four bytes (SDM 3A, 8.7).
static TASK_STATE: [AtomicU32; 26] = [const { AtomicU32::new(0) }; 26];
/// Its last byte: that of interrupt stack 6, so that number 7 isn't there.
const LIMIT: u64 = 0x53;

/// Loads descriptors like those in force, and a TSS with its interrupt stacks 1 and 2.
fn load_task(stacks: [u64; 2]) {
    for (i, stack) in stacks.into_iter().enumerate() {
        TASK_STATE[9 + 2 * i].store(stack as u32, SeqCst);
        TASK_STATE[10 + 2 * i].store((stack >> 32) as u32, SeqCst);
    }
    let base = TASK_STATE.as_ptr() as u64;
    let task = LIMIT | (base & 0xFF_FFFF) << 16 | 0x89 << 40 | (base >> 24 & 0xFF) << 56;
    let all = [0, 0x00AF_9B00_0000_FFFF, 0x00CF_9300_0000_FFFF, task, base >> 32];
    DESCRIPTORS.iter().zip(all).for_each(|(to, descriptor)| to.store(descriptor, SeqCst));
    cpu::load_task(DESCRIPTORS.as_ptr() as u64, 5 * 8 - 1, SELECTOR);
}

/// The device's interrupt on each of the stacks.
pub fn stackless(test: &str, _: &Boot) {
    let Some(edu) = edu(test) else { return };
    edu.aim_handled(DEVICE);
    load_task([UNMAPPED + 0x800, NOT_CANONICAL]);
    let page =
        Fails { what: "a stack that isn't mapped", slot: 1, as_any: &[PAGE_FAULT], code: STORE };
    page.check(test, &edu);
    let pushed = cpu::cr2();
    let right = (UNMAPPED..UNMAPPED + 0x800).contains(&pushed);
    check!(test, right, "{}: CR2 {pushed:#x}", page.what);
    // QEMU has #GP for it.
    let what = "a stack at no address";
    Fails { what, slot: 2, as_any: &[STACK, PROTECTION], code: 0 }.check(test, &edu);
    let what = "a stack beyond the TSS";
    Fails { what, slot: 7, as_any: &[TASK], code: u64::from(SELECTOR) }.check(test, &edu);
    edu.silence();
}

/// A stack that an interrupt can't have.
struct Fails {
    what: &'static str,
    /// Its number in the gate.
    slot: u64,
    /// The exceptions that say so.
    as_any: &'static [u8],
    /// Their error code, but for its EXT bit: QEMU leaves it out, hardware sets it.
    code: u64,
}

impl Fails {
    fn check(&self, test: &str, edu: &edu::Edu) {
        let what = self.what;
        nested::settle(edu);
        let [low, high] = idt::gate(DEVICE, true);
        idt::write_gate(idt::arena(0), DEVICE, [low | self.slot << 32, high]);
        self.as_any.iter().for_each(|vector| catch(*vector));
        nested::exit();
        nested::request(edu, DEVICE);
        let handled = idt::count(DEVICE);
        let came = nested::interrupt();
        let served = x2apic::in_service(DEVICE);
        edu::acknowledge();
        x2apic::complete();
        let right =
            came.times == 1 && came.error & !1 == self.code && idt::count(DEVICE) == handled;
        check!(test, right, "{what}: {} time(s), error code {:#x}", came.times, came.error);
        let over = !x2apic::in_service(DEVICE);
        check!(test, served && over, "{what}: in service {served}, then completed {over}");
        restore(DEVICE);
        self.as_any.iter().for_each(|vector| restore(*vector));
        nested::never_again(test, what, DEVICE);
        // And the vector still works.
        cpu::enable_interrupts();
        let again = edu.raise_and_wait(DEVICE, 1) - handled;
        cpu::disable_interrupts();
        check!(test, again == 1, "{what}: with its stack the next one comes {again} time(s)");
    }
}
