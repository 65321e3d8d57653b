//! A hypervisor that writes anything into its control block and its tables, with guests that
//! execute anything. What must hold: every VMRUN comes back, this kernel is what it was, and the
//! neighbour's heart goes on.
//!
//! On the bare machine QEMU would have to withstand it, which isn't asked.

use super::block::{self, Block, Frame, Guest, MASKING, exit};
use super::{avic, begin, disturbed, end, inside};
use crate::random::{self, Random};
use crate::{boot::Boot, console::check, console::println, cpu, idt, x2apic};
use core::sync::atomic::Ordering::SeqCst;

/// With this one the delivery of an exception needs a page that is nobody's, which raises another
/// one, without end.
const SEED: u64 = 0x0E81_71E5_5000_0706;
const ROUNDS: u64 = 1500;
/// Blocks are right but for so many words at the most.
const WRONG: u64 = 6;
const TIMER: u8 = 0x52;
const EFER: u32 = 0xC000_0080;
/// Half a millisecond. QEMU's main loop holds its lock while it lets a timer tick: at 50,000 ticks
/// a second it had the lock most of the time, the CPUs waited for it at each exit, and fewer ticks
/// came than of this one.
const TICKS: u32 = 500_000;
/// A VMRUN that doesn't come back can be told by them from a machine that is slow.
const TOLD: u64 = 500;

/// Where the guest has its memory.
pub(super) const AREA: u64 = 0xFFE0_0000;
const PAGES: usize = 16;
/// INTR and SHUTDOWN: without them the guest could keep the core, or end the VM.
const EVENTS: u64 = 1 << 32 | 1 << 63;

pub(super) static ROOT: Frame = Frame::new();
static THIRD: Frame = Frame::new();
static SECOND: Frame = Frame::new();
pub(super) static FIRST: Frame = Frame::new();
pub(super) static BACKING: [Frame; PAGES] = [const { Frame::new() }; PAGES];

/// What has an exit of the host's alone, among what is random: RDMSR, WRMSR, XSETBV, for registers
/// that this kernel lets the guest have; MOV to CR0 and LMSW; INS, OUTS, MOVS and STOS; loads and
/// stores where [`ELSEWHERE`] may be; VMSAVE and VMLOAD.
const SERVED: [[u8; 8]; 6] = [
    [0x0F, 0x32, 0x0F, 0x30, 0x0F, 0x01, 0xD1, 0x90],
    [0xB9, 0xFF, 0x02, 0x00, 0x00, 0x0F, 0x32, 0x90],
    [0x0F, 0x22, 0xC0, 0x0F, 0x01, 0x36, 0x0F, 0x06],
    [0xF3, 0x6C, 0xF3, 0x6E, 0xF3, 0xA5, 0xF3, 0xAA],
    [0xBE, 0x00, 0x00, 0xF0, 0xFF, 0xAD, 0xA5, 0xAB],
    [0x89, 0xF8, 0x0F, 0x01, 0xDB, 0x0F, 0x01, 0xDA],
];

/// Addresses that are nobody's memory, or not this guest's.
pub(super) const ELSEWHERE: [u64; 6] =
    [0x9000_0000, 0xFEB0_0000, 0xFEC0_0000, 0xFEE0_0000, 0xFF_FFFF_F000, 0xF_FFFF_FFFF_F000];

/// An entry: mostly of a frame, with any bits.
fn entry(random: &mut Random) -> u64 {
    let n = random.number();
    let bits = if n & 3 == 0 { random.number() & !0x000F_FFFF_FFFF_F000 | 1 } else { 7 };
    let at = (n >> 8) as usize;
    match n >> 60 {
        0 => ELSEWHERE[at % ELSEWHERE.len()] | bits,
        1 => 0,
        // A table may be a page, too, and lead to itself.
        2 => [&ROOT, &THIRD, &SECOND, &FIRST][at % 4].address() | bits,
        _ => BACKING[at % PAGES].address() | bits,
    }
}

/// Tables that lead to frames of this test, or to nothing.
pub(super) fn tables(random: &mut Random, served: bool) {
    for frame in &BACKING {
        frame.0.iter().for_each(|word| {
            let n = random.number();
            let code = u64::from_le_bytes(SERVED[(n >> 8) as usize % SERVED.len()]);
            word.store(if served && n & 3 == 0 { code } else { n }, SeqCst);
        });
    }
    FIRST.0.iter().for_each(|word| word.store(entry(random), SeqCst));
    for (n, word) in SECOND.0.iter().enumerate() {
        let table = FIRST.address() | 7;
        word.store(if n % 64 == 63 { table } else { entry(random) & !0x80 }, SeqCst);
    }
    THIRD.0.iter().for_each(|word| word.store(SECOND.address() | 7, SeqCst));
    ROOT.0.iter().for_each(|word| word.store(THIRD.address() | 7, SeqCst));
}

/// A block that is right but for some words, and what this test can't do without.
pub(super) fn spoil(random: &mut Random, block: &Block) {
    for _ in 0..random.number() % WRONG {
        let n = random.number();
        // The control area as often as the state.
        let at = if n >> 63 == 0 { n % 26 * 8 } else { 0x400 + n % 78 * 8 } as usize;
        let value = random.number();
        let before = block.get(at);
        block.put(at, if n >> 62 & 1 == 0 { value } else { before ^ 1 << (value & 63) });
    }
    block.put(block::EXCEPTIONS, block.get(block::EXCEPTIONS) | EVENTS);
    // Interrupts are this kernel's, and so is its memory.
    block.put(block::INT_CTL, block.get(block::INT_CTL) | MASKING);
    block.put(block::NESTED, 1);
    let root = if random.number().is_multiple_of(16) { ELSEWHERE[5] } else { ROOT.address() };
    block.put(block::NESTED_CR3, root);
}

/// Random blocks, tables and code; `seed=` for others than those of every test.
pub fn hostile(test: &str, boot: &Boot) {
    if !begin(test) {
        return;
    }
    let seed = random::seed(boot).unwrap_or(SEED);
    println!("  seed {seed:#x}");
    idt::on(TIMER, |_| x2apic::complete());
    let mut random = Random::new(seed);
    rounds(test, &mut random, false);
    rounds(test, &mut random, true);
    disturbed::disturbed(test, &mut random);
    avic::hostile(test, &mut random);
    let mut guest = Guest::new(inside::cpuids());
    guest.run();
    check!(test, guest.code() == exit::CPUID, "a sound guest runs still: {:#x}", guest.code());
    end();
}

/// `served`: the guests execute much that has an exit of the host's alone.
fn rounds(test: &str, random: &mut Random, served: bool) {
    let (mut invalid, mut faults, mut ticks, mut others) = (0, 0, 0, 0);
    x2apic::start_timer(TIMER, true, TICKS);
    for round in 0..ROUNDS {
        if round.is_multiple_of(TOLD) {
            println!("  round {round}");
        }
        if round.is_multiple_of(16) {
            tables(random, served);
        }
        let mut guest = Guest::new(AREA + random.number() % (64 << 10));
        let block = guest.block();
        // Of 32 bits, without page tables.
        block.put(0x410, 8 | 0xC9B << 16 | 0xFFFF_FFFF << 32);
        block.put(block::CR0, 0x11);
        block.put(block::EFER, 1 << 12);
        block.put(block::MISC2, 0x7F | random.number() & 0x7FFF);
        spoil(random, block);
        if served {
            for msr in [0, 0x2FF, EFER] {
                block::let_msr(msr, true, true);
            }
            block::open_port(0, true);
        }
        for again in 0..4 {
            guest.enter_open();
            block::let_in();
            cpu::enable_interrupts();
            cpu::disable_interrupts();
            match guest.code() {
                exit::INVALID => invalid += 1,
                exit::NPF => faults += 1,
                exit::INTR => ticks += 1,
                _ => others += 1,
            }
            // The tables change under what is kept of them, and clean bits lie.
            FIRST.0[again * 7].store(entry(random), SeqCst);
            guest.block().put(block::CLEAN, random.number());
            if random.number().is_multiple_of(4) {
                guest.block().put(block::ASID, random.number());
            }
            guest.block().put(block::INT_CTL, guest.block().get(block::INT_CTL) | MASKING);
        }
    }
    x2apic::stop_timer();
    println!("  {invalid} refused, {faults} faults, {ticks} ticks, {others} others");
    let all = invalid + faults + ticks + others;
    check!(test, all == 4 * ROUNDS, "{all} times VMRUN came back");
    check!(test, invalid > 100 && faults > 100 && others > 50, "in each way");
}
