//! A hypervisor of which one CPU does anything to what is posted, while a guest on another one does
//! anything with it: entries for any page, CPU and vector, the unit's log anywhere, the guest's
//! backing page and control block written as it runs, its CPU reset in the midst.
//!
//! Nobody else hears of it, and in the end all is as it was.

use super::super::block::{self, Block, Guest, exit, let_in};
use super::super::smp::turn_on;
use super::super::{inside, paging};
use super::others::{DEVICE, OTHER, Pair, SECOND};
use super::{
    AVIC, BACKING, BACKING_PAGE, INDEX, LOG, LOGGED, Posts, REQUEST, TIMER, VECTOR, X2APIC_EOI,
    begin_at, by_itself, code, guest,
};
use crate::amdvi::AmdVi;
use crate::amdvi::guests::Posted;
use crate::amdvi::registers::{DEVICES, TRANSLATES, WIDE, X2APIC};
use crate::edu as device;
use crate::pci;
use crate::random::{self, Random};
use crate::unit::{BASE, Unit};
use crate::{boot::Boot, console::check, console::println, cpu, idt, smp as cpus, wait, x2apic};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const ROUNDS: u64 = 15_000;
/// The guest comes back so often in each way that counts; on a slow machine after more rounds.
const CAME_OFTEN: u64 = 100;
const MOST_ROUNDS: u64 = 20 * ROUNDS;
/// Every so many the guest's CPU is reset.
const LIFE: u64 = 1_000;
const NMI: u8 = 2;
const SOON: u32 = 200_000;
const DOORBELL: u32 = 0xC001_011B;
const GUEST_LOG: u64 = 0xE0;
/// Of CONTROL: GAMEn, GALogEn, GAIntEn.
const GUEST_APICS: u64 = 1 << 25;
const GUEST_LOGS: u64 = 1 << 28;
const GUEST_INTERRUPTS: u64 = 1 << 29;
const NOBODYS: u64 = 6;
const ABSENT: u64 = 5;
/// Where no memory is.
const OUTSIDE: [u64; 5] = [0x9000_0000, 0xFEE0_0000, BASE, 1 << 51, 0x000F_FFFF_FFFF_F000];
/// A local APIC's registers as MSRs.
const REGISTERS: core::ops::Range<u32> = 0x800..0x840;
const SELF_IPI: u32 = 0x83F;

/// Times that the guest came back, in each way, and seeds of its CPU's lives.
static CAME: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
static SEED: AtomicU64 = AtomicU64::new(1);
static OVER: AtomicU64 = AtomicU64::new(0);
/// Where the second device is.
static SECOND_AT: AtomicU64 = AtomicU64::new(0);

/// Where a backing page, or what is taken for one, may be.
fn page(random: &mut Random) -> u64 {
    let n = random.number();
    match n % 16 {
        0 => LOG.address(),
        1 => Block::address(),
        2 => block::host_save(),
        3 => OUTSIDE[(n >> 8) as usize % OUTSIDE.len()],
        4 => random.number(),
        5..10 => OTHER.address(),
        _ => BACKING.address(),
    }
}

fn posted(random: &mut Random) -> Posted {
    let n = random.number();
    let cpu = match n % 16 {
        0 => (n >> 32) as u32,
        1 => u32::MAX,
        2 => 2,
        n => n as u32 & 1,
    };
    let vector = if n >> 8 & 7 == 0 { (n >> 16) as u8 } else { VECTOR };
    let tag = (n >> 11 & 1 != 0).then_some((n >> 24) as u32);
    Posted { vector, page: page(random), cpu, runs: n >> 12 & 1 != 0, tag }
}

/// What the guest does, until this kernel's timer comes at the latest.
fn program(random: &mut Random) -> u64 {
    match random.number() % 15 {
        0 | 1 => code::raises(),
        2 | 3 => code::tries(),
        4 => code::takes(),
        5 => code::completes(),
        6 => code::strays(),
        7 => code::stops(),
        8 => code::asks(),
        9 => code::calls(),
        10 => code::tables(),
        11 => code::prefers(),
        12 => code::reads(),
        13 => code::clears(),
        _ => inside::spins(),
    }
}

/// The second CPU, until it is reset.
fn run(_: usize) {
    turn_on();
    let mut random = Random::new(SEED.load(SeqCst));
    let mut guest = guest(device::base());
    REGISTERS.for_each(|msr| block::let_msr(msr, true, msr == X2APIC_EOI || msr == SELF_IPI));
    paging::map_at(NOBODYS, OUTSIDE[0], paging::ALL);
    paging::map_at(DEVICE, SECOND_AT.load(SeqCst), paging::ALL);
    let page = |n: u64| paging::AREA + (n << 12);
    let tables = [code::TABLE.address(), page(ABSENT), page(NOBODYS), page(0), 1 << 63];
    while OVER.load(SeqCst) == 0 {
        begin_at(&mut guest, program(&mut random));
        let n = random.number();
        if n & 7 == 0 {
            spoil(&guest, &mut random, &tables);
        }
        if n & 0x30 == 0 {
            guest.registers.rsi = paging::AREA + (DEVICE << 12);
        }
        guest.registers.rcx = n >> 8 & 3;
        guest.registers.rdx = n >> 48 & 0xFF | 1;
        code::put(code::MODE, n >> 16 & 3);
        code::put(code::LOADED, tables[(n >> 20) as usize % 3] << 16 | n >> 32 & 0xFFFF);
        code::put(code::LOADED + 1, tables[(n >> 20) as usize % 3] >> 48);
        x2apic::start_timer(TIMER, false, SOON);
        guest.enter_open();
        let came = match guest.code() {
            exit::INVALID => 0,
            exit::INTR => 1,
            exit::VMMCALL => 2,
            _ => 3,
        };
        CAME[came].fetch_add(1, SeqCst);
        let_in();
        cpu::enable_interrupts();
        cpu::disable_interrupts();
        x2apic::stop_timer();
        let block = guest.block();
        block.put(BACKING_PAGE, if n >> 40 & 3 == 0 { OTHER.address() } else { BACKING.address() });
        block.put(block::INT_CTL, block::MASKING | AVIC);
        block.put(block::CLEAN, 0);
    }
}

/// Fields that its hypervisor had better not write.
fn spoil(guest: &Guest, random: &mut Random, tables: &[u64]) {
    let (block, n) = (guest.block(), random.number());
    match n % 7 {
        6 => {
            let wanted = block.get(block::EXCEPTIONS);
            // HLT, CPUID, #GP, #UD.
            let bits = [1 << 56, 1 << 50, 1 << 13, 1 << 6];
            block.put(block::EXCEPTIONS, wanted ^ bits[(n >> 8 & 3) as usize]);
        }
        0 => block.put(BACKING_PAGE, page(random)),
        1 => block.put(block::INT_CTL, block::MASKING | AVIC ^ n & (3 << 30 | 0x0200_0F00)),
        2 => block.put(block::IDTR + 8, tables[(n >> 8) as usize % tables.len()]),
        3 => block.put(block::IDTR, n >> 8 & 0xFFFF << 32),
        4 => block.put(block::EVENT_INJ, 1 << 31 | (n >> 8 & 7) << 8 | n >> 16 & 0xFF),
        _ => block.put(block::CLEAN, random.number()),
    }
}

/// One thing that the first CPU does.
fn attack(pair: &Pair, random: &mut Random) {
    let (posts, n) = (&pair.posts, random.number());
    let unit = &posts.unit;
    match n % 22 {
        0 | 1 => {
            unit.post(INDEX, posts.source, posted(random));
            posts.ask();
        }
        2 => {
            unit.post(INDEX, posts.source, posted(random));
        }
        3 => {
            unit.post(SECOND, pair.source, posted(random));
            pair.ask_second();
        }
        4..8 => device::raise(),
        8 | 9 => pair.second.raise(),
        10 => cpu::wrmsr(DOORBELL, if n & 64 == 0 { 1 } else { random.number() }),
        11 => {
            let frame = if n & 64 == 0 { &BACKING } else { &OTHER };
            let at = [REQUEST, 0x100, 0x80, 0x180][(n >> 8 & 3) as usize] / 8;
            frame.0[at + 2 * (n >> 12 & 7) as usize].store(n >> 32, SeqCst);
        }
        12 => {
            BACKING.0.iter().for_each(|word| word.store(0, SeqCst));
            OTHER.0.iter().for_each(|word| word.store(0, SeqCst));
            device::acknowledge();
        }
        13 => {
            let (address, data) = AmdVi::message(if n & 64 == 0 { INDEX } else { n >> 8 & 0x7FF });
            posts.edu.program(address, data, n & 128 == 0);
        }
        14 => {
            let at = if n & 64 == 0 { LOG.address() } else { OUTSIDE[(n >> 8) as usize % 5] };
            cpu::mmio_write64(BASE + GUEST_LOG, at | (n >> 16 & 15) << 56);
        }
        15 => {
            let vector = 0x20.max((n >> 8) as u8);
            x2apic::send(1, if n & 64 == 0 { x2apic::command::NMI } else { vector.into() });
        }
        16 => spoil(&posts.guest, random, &[code::TABLE.address()]),
        17 => {
            let bits = [GUEST_APICS, WIDE, X2APIC, TRANSLATES, GUEST_LOGS | GUEST_INTERRUPTS];
            let bit = bits[(n >> 8) as usize % bits.len()];
            unit.set(bit, false);
            if n & 64 == 0 {
                device::raise();
            }
            unit.set(bit, true);
        }
        18 => {
            let own = cpu::mmio_read64(BASE + DEVICES);
            cpu::mmio_write64(BASE + DEVICES, OUTSIDE[(n >> 8) as usize % 5] | 0x1FF);
            posts.ask();
            cpu::mmio_write64(BASE + DEVICES, own);
            posts.ask();
        }
        19 => {
            posts.edu.function.write(pci::COMMAND, if n & 64 == 0 { 2 } else { 6 });
        }
        20 => {
            let own = unit.interrupts(posts.source);
            unit.put_interrupts(posts.source.into(), own ^ (n >> 8 & 0x1F | (n & 3) << 60));
            posts.ask();
            unit.put_interrupts(posts.source.into(), own);
        }
        _ if n >> 32 & 7 == 0 => {
            unit.remap(false);
            unit.remap(true);
        }
        _ => {
            unit.set_entry(INDEX, Some(((n >> 8 & 1) as usize, VECTOR)), posts.source);
            posts.ask();
        }
    }
}

/// Two CPUs, two devices.
pub fn chaos(test: &str, boot: &Boot) {
    if super::super::super::cpus(test, boot).is_none() {
        return;
    }
    let Some(mut pair) = Pair::new(test, boot) else { return };
    by_itself(test, &mut pair.posts);
    (32..=u8::MAX).for_each(|vector| idt::on(vector, |_| x2apic::complete()));
    idt::on(NMI, |_| {});
    SECOND_AT.store(pair.second.bar(), SeqCst);
    check!(test, pair.posts.unit.log_posted(LOG.address(), LOGGED), "the log runs");
    let mut random = Random::new(random::seed(boot).unwrap_or(1));
    let came = || [0, 1, 2, 3].map(|n| CAME[n].load(SeqCst));
    let often = || came()[2..].iter().all(|n| *n > CAME_OFTEN);
    for round in (0..MOST_ROUNDS).take_while(|round| *round < ROUNDS || !often()) {
        if round.is_multiple_of(LIFE) {
            SEED.store(random.number(), SeqCst);
            if round != 0 && !cpus::start(1) {
                return check!(test, false, "round {round}: its CPU is reset");
            }
            cpus::give(1, run);
        }
        if round.is_multiple_of(10 * LIFE) {
            println!("  round {round}");
        }
        attack(&pair, &mut random);
        cpu::enable_interrupts();
        wait::ticks(random.number() & 0x1_FFFF);
        cpu::disable_interrupts();
    }
    OVER.store(1, SeqCst);
    check!(test, cpus::start(1), "its CPU is reset");
    let [invalid, ticks, calls, others] = came();
    println!("  {invalid} refused, {ticks} ticks, {calls} calls, {others} others");
    let all = invalid + ticks + calls + others;
    println!("  {all} times VMRUN came back");
    check!(test, often(), "its guest came back in each way");
    restored(test, &mut pair);
    pair.end(test);
}

/// As it was before.
fn restored(test: &str, pair: &mut Pair) {
    idt::on(TIMER, |_| x2apic::complete());
    code::set_up();
    for frame in [&BACKING, &OTHER] {
        frame.0.iter().for_each(|word| word.store(0, SeqCst));
    }
    device::acknowledge();
    let Posts { guest: of, unit, edu, .. } = &mut pair.posts;
    *of = guest(edu.base());
    paging::map_at(DEVICE, pair.second.bar(), paging::ALL);
    let (address, data) = AmdVi::message(INDEX);
    edu.program(address, data, true);
    edu.function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
    let logs = unit.log_posted(LOG.address(), LOGGED);
    let is_set = unit.remap(true) && pair.second(&OTHER, 1) && pair.posts.post(VECTOR, true, None);
    check!(test, logs && is_set, "an entry for the guest, as before");
    cpu::enable_interrupts();
    wait::settle();
    cpu::disable_interrupts();
    by_itself(test, &mut pair.posts);
}
