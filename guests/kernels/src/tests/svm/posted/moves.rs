//! A guest that two CPUs of this kernel's have in turns, as a scheduler has it: its entry says
//! where it is, and whether it runs, without an invalidation. Each interrupt of its device's comes
//! once.

use super::super::block::{self, Guest, exit, let_in};
use super::super::end as turn_off;
use super::super::smp::turn_on;
use super::{INDEX, LOG, LOGGED, Posts, TAG, VECTOR, begin_at, by_itself, code, guest};
use crate::edu as device;
use crate::random::Random;
use crate::{boot::Boot, console::check, cpu, idt, smp as cpus, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const TIMES: u64 = 600;
/// Ends a turn.
const LEAVE: u8 = 0x61;
/// Nobody has it any more.
const OVER: u64 = 99;
/// A guest that never came so far.
const STUCK: u64 = 98;

/// Whose turn it is, how many turns there were, and why the guest was left last.
static TURN: AtomicU64 = AtomicU64::new(0);
static TURNS: AtomicU64 = AtomicU64::new(0);
static LEFT: AtomicU64 = AtomicU64::new(0);
/// Where the entry is: its lower word.
static ENTRY: AtomicU64 = AtomicU64::new(0);
/// RCX, RDX, RSI, RDI of the guest.
static REGISTERS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Where the guest is, and whether it runs there: one store.
fn is_at(cpu: u64, runs: bool) {
    const IS_RUN: u64 = 1 << 6;
    const DESTINATION: u64 = 0xFF_FFFF << 8;
    // SAFETY: an aligned word of the unit's tables, which this kernel has made.
    let word = unsafe { AtomicU64::from_ptr(ENTRY.load(SeqCst) as *mut u64) };
    let rest = word.load(SeqCst) & !(IS_RUN | DESTINATION);
    word.store(rest | cpu << 8 | if runs { IS_RUN } else { 0 }, SeqCst);
}

/// A CPU's part: its turns.
fn turns(me: usize) {
    turn_on();
    let me = me as u64;
    let mut guest = Guest::as_it_is();
    while TURN.load(SeqCst) != OVER {
        if TURN.load(SeqCst) != me {
            cpu::pause();
            continue;
        }
        let [rcx, rdx, rsi, rdi] = REGISTERS.each_ref().map(|r| r.load(SeqCst));
        let registers = &mut guest.registers;
        (registers.rcx, registers.rdx, registers.rsi, registers.rdi) = (rcx, rdx, rsi, rdi);
        is_at(me, true);
        let before = idt::count_on(me as usize, LEAVE);
        guest.block().put(block::CLEAN, 0);
        loop {
            guest.enter_open();
            let_in();
            cpu::enable_interrupts();
            cpu::disable_interrupts();
            if guest.code() != exit::INTR || idt::count_on(me as usize, LEAVE) > before {
                break;
            }
        }
        is_at(me, false);
        let registers = &guest.registers;
        let now = [registers.rcx, registers.rdx, registers.rsi, registers.rdi];
        REGISTERS.iter().zip(now).for_each(|(r, value)| r.store(value, SeqCst));
        LEFT.store(guest.code(), SeqCst);
        TURNS.fetch_add(1, SeqCst);
        TURN.store(if guest.code() == exit::INTR { 3 - me } else { STUCK }, SeqCst);
    }
    turn_off();
}

/// Three CPUs.
pub fn moves(test: &str, boot: &Boot) {
    let count = super::super::super::cpus(test, boot);
    check!(test, count == Some(3), "three CPUs: {count:?}");
    let Some(mut posts) = Posts::new(test, boot) else { return };
    by_itself(test, &mut posts);
    idt::on(LEAVE, |_| x2apic::complete());
    let logs = posts.unit.log_posted(LOG.address(), LOGGED);
    check!(test, logs && posts.post(VECTOR, false, Some(TAG)), "the log runs");
    let Some((table, _)) = posts.unit.entries(posts.source) else { return };
    ENTRY.store(table + 16 * INDEX, SeqCst);
    let mut first = guest(device::base());
    begin_at(&mut first, code::stays());
    let registers = first.registers;
    REGISTERS[2].store(registers.rsi, SeqCst);
    REGISTERS[3].store(registers.rdi, SeqCst);
    code::put(code::STAYS, 0);
    let mut random = Random::new(1);
    let (mut came, mut longest) = (0, 0);
    let done = cpus::others(3, turns, || {
        TURN.store(1, SeqCst);
        cpu::enable_interrupts();
        for _ in 0..TIMES {
            let (handled, n) = (code::get(code::HANDLED), random.number());
            if n & 3 != 0 {
                let whose = TURN.load(SeqCst) as u32;
                x2apic::send(whose & 3, LEAVE.into());
            }
            wait::ticks(n >> 8 & 0xF_FFFF);
            let began = cpu::tsc();
            device::raise();
            if !wait::until(|| code::get(code::HANDLED) > handled) {
                break;
            }
            longest = longest.max(cpu::tsc() - began);
            came += code::get(code::HANDLED) - handled;
            posts.unit.take_posted(LOG.address());
        }
        cpu::disable_interrupts();
        code::put(code::STAYS, 2);
        wait::until(|| TURN.load(SeqCst) == STUCK);
        TURN.store(OVER, SeqCst);
        true
    });
    let (turns, left) = (TURNS.load(SeqCst), LEFT.load(SeqCst));
    check!(test, done && left == exit::VMMCALL, "the guest went: {left:#x}");
    check!(test, came == TIMES, "{came} of {TIMES} came, in {turns} turns, after {longest}");
    check!(test, turns > TIMES / 4, "it went to and fro");
    check!(test, posts.post(VECTOR, true, None), "at this CPU again");
    posts.guest = guest(posts.edu.base());
    by_itself(test, &mut posts);
    posts.end(test);
}
