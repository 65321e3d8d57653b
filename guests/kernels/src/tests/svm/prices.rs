//! What each thing is worth that makes a guest of this kernel's cheap for the host: the same
//! windows for the counting plugin with all of them, and with each of them switched off.
//!
//! In the host's image that is made for it, where INVLPGA does that; in any other all is on.

use super::block::{self, Guest, exit};
use super::cost::edge;
use super::paging::{self, OTHER_ROOT, PAGES, ROOT};
use super::turns::{NOTHING, by};
use super::{begin, end, inside};
use crate::{boot::Boot, console::check};
use core::arch::asm;
use core::sync::atomic::Ordering::SeqCst;

/// The harness knows the numbers.
const PAIRS: u64 = 1000;
const TURNS: u64 = 100;
/// The bits of what is switched off (`hypervisor/src/cpu/svm/nesting/switches.rs`), in the order
/// in which the harness names it.
const OFF: [u64; 6] = [0, 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4];
/// RAX of INVLPGA.
const CHOOSES: u64 = u64::from_le_bytes(*b"SWITCHED");

/// For each: a CPUID told, with VMRUN; first touches of pages, told, with a call; turns of two
/// guests by tables of their own, with a call each.
pub fn prices(test: &str, _: &Boot) {
    if !begin(test) {
        return;
    }
    for off in OFF {
        // SAFETY: there is no translation that it could forget.
        unsafe { asm!("invlpga rax, ecx", in("rax") CHOOSES, in("rcx") off) }
        let mut guest = paging::guest();
        let right = pairs(&mut guest);
        check!(test, right == PAIRS, "without {off:#x}: {right} of {PAIRS} exits for CPUID");
        let came = touches(&mut guest);
        check!(test, came == PAGES, "without {off:#x}: {came} of {PAGES} pages came");
        let came = turns(&mut guest);
        check!(test, came == 2 * TURNS, "without {off:#x}: {came} calls in {TURNS} turns");
    }
    block::let_in();
    end();
}

/// Its tables have what it needs for that, then.
fn pairs(guest: &mut Guest) -> u64 {
    guest.restart(inside::cpuids());
    let mut right = 0;
    let mut once = || {
        guest.enter_open();
        guest.skip(2);
        u64::from(guest.code() == exit::CPUID)
    };
    (0..100).for_each(|_| _ = once());
    edge!("0x45580001");
    (0..PAIRS).for_each(|_| right += once());
    edge!("0x45580002");
    right
}

fn touches(guest: &mut Guest) -> u64 {
    let mut came = 0;
    edge!("0x45580001");
    for page in 0..PAGES {
        came += touch(guest, page, || paging::map(page, page, paging::ALL));
    }
    edge!("0x45580002");
    came
}

/// It touches a page, which is told; then that is mapped.
fn touch(guest: &mut Guest, page: u64, map: impl FnOnce()) -> u64 {
    guest.restart(inside::touches());
    guest.registers.rsi = paging::AREA + (page << 12);
    guest.enter_open();
    map();
    guest.enter_open();
    u64::from(guest.code() == exit::VMMCALL)
}

fn turns(guest: &mut Guest) -> u64 {
    OTHER_ROOT.0[0].store(ROOT.0[0].load(SeqCst), SeqCst);
    let mut turn = || {
        [false, true].map(|second| {
            by(guest, second, NOTHING);
            guest.restart(inside::touches());
            guest.registers.rsi = paging::AREA;
            guest.enter_open();
            u64::from(guest.code() == exit::VMMCALL)
        })
    };
    turn();
    let mut came = 0;
    edge!("0x45580001");
    (0..TURNS).for_each(|_| came += turn().iter().sum::<u64>());
    edge!("0x45580002");
    came
}
