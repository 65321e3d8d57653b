//! A hypervisor that writes anything into the fields of AVIC, with a backing page that is memory of
//! the inner guest's, a table, the control block itself or nothing, and an inner guest that
//! accesses any register of it, and writes the page.

use super::super::block::{self, Block, Guest, MASKING, exit};
use super::super::hostile::{AREA, BACKING as MEMORY, ELSEWHERE, FIRST, ROOT, spoil, tables};
use super::inside::{self, AVIC, BACKING, BAR, X2APIC, X2AVIC};
use crate::random::Random;
use crate::{console::check, console::println, cpu, x2apic};
use core::sync::atomic::Ordering::SeqCst;

const ROUNDS: u64 = 1500;
const AGAIN: u64 = 6;
const TIMER: u8 = 0x52;
/// Half a millisecond, as in `hostile`.
const TICKS: u32 = 500_000;
/// Where a block has the tables of AVIC: of logical ids, of physical ones.
const TABLES: [usize; 2] = [0xF0, 0xF8];
const MSR_MAP: usize = 0x48;

/// Where the page may be.
fn page(random: &mut Random, block: &Block) -> u64 {
    let n = random.number();
    let at = (n >> 8) as usize;
    match n % 12 {
        0 => Block::address(),
        1 => block.get(MSR_MAP) + (n >> 8 & 1) * 4096,
        2 => FIRST.address(),
        3 => ROOT.address(),
        4 => block::host_save(),
        5 => ELSEWHERE[at % ELSEWHERE.len()],
        6 => random.number(),
        7 => inside::PAGE.address(),
        _ => MEMORY[at % MEMORY.len()].address(),
    }
}

/// Where the registers may be.
fn bar(random: &mut Random) -> u64 {
    let n = random.number();
    match n % 4 {
        0 => random.number(),
        1 => ELSEWHERE[(n >> 8) as usize % ELSEWHERE.len()],
        _ => AREA + (n >> 8) % 16 * 4096,
    }
}

/// All words of a page that count.
fn fill(random: &mut Random, address: u64) {
    let frames = MEMORY.iter().chain([&inside::PAGE]);
    for frame in frames.filter(|frame| frame.address() == address) {
        frame.0.iter().step_by(2).for_each(|word| word.store(random.number(), SeqCst));
    }
}

/// Those that there are.
const REGISTERS: [u8; 16] = [
    0x02, 0x08, 0x0B, 0x0F, 0x10, 0x20, 0x28, 0x30, 0x30, 0x32, 0x35, 0x38, 0x39, 0x3E, 0x3F, 0x3F,
];

/// Code of 32 bits: MOV to ECX of such an MSR, or of any, and RDMSR or WRMSR; a store to the
/// registers in memory, and a load.
fn code(random: &mut Random) -> [u8; 16] {
    let n = random.number();
    let [any, value, at, page, ..] = n.to_le_bytes();
    let msr = if n >> 56 & 3 == 0 { any } else { REGISTERS[usize::from(any % 16)] };
    let [mov, write, read, sti] = [0xB9, 0x30, 0x32, 0xFB];
    let mut bytes = [0x90; 16];
    let code: &[u8] = match n >> 60 & 3 {
        // A small value: MOV to EAX, XOR of EDX.
        0 => &[mov, msr, 8, 0, 0, 0xB8, value, 0, 0, 0, 0x31, 0xD2, 0x0F, write, sti],
        // What was read, and MOV to CR0, which is served, too.
        1 => &[mov, msr, 8, 0, 0, 0x0F, read, 0x0F, write, sti, 0x90, 0x0F, 0x22, 0xC0],
        // MOV to EDI, stores and loads there; STOS, MOVS, REP STOS.
        2 => &[
            0xBF,
            at & 0xF0,
            page & 0xF3,
            0xE0,
            0xFF,
            0x89,
            0x07,
            0x8B,
            0x07,
            sti,
            0xAB,
            0xA5,
            0xF3,
            0xAB,
        ],
        // Whatever is in EBX.
        _ => &[mov, msr, 8, 0, 0, 0x89, 0xD8, 0x89, 0xDA, 0x0F, write, sti, 0x0F, read],
    };
    bytes.iter_mut().zip(code).for_each(|(to, byte)| *to = *byte);
    bytes
}

/// Puts it all over the inner guest's memory.
fn plant(random: &mut Random) {
    for frame in &MEMORY {
        for pair in frame.0.chunks(2) {
            if random.number() & 1 == 0 {
                let bytes = u128::from_le_bytes(code(random));
                pair[0].store(bytes as u64, SeqCst);
                pair[1].store((bytes >> 64) as u64, SeqCst);
            }
        }
    }
}

/// Any of it.
pub fn avic(test: &str, random: &mut Random) {
    let (mut invalid, mut told, mut ticks, mut others) = (0, 0, 0, 0);
    x2apic::start_timer(TIMER, true, TICKS);
    for round in 0..ROUNDS {
        if round.is_multiple_of(500) {
            println!("  AVIC, round {round}");
        }
        if round.is_multiple_of(16) {
            tables(random, false);
            plant(random);
            if random.number() & 1 == 0 {
                // Else hardly any gets far.
                let whole = FIRST.0.iter().zip(MEMORY.iter().cycle());
                whole.for_each(|(entry, frame)| entry.store(frame.address() | 7, SeqCst));
            }
        }
        let mut guest = Guest::new(AREA + (random.number() & 0xFFF0));
        let block = guest.block();
        // Of 32 bits, without page tables.
        block.put(0x410, 8 | 0xC9B << 16 | 0xFFFF_FFFF << 32);
        block.put(block::CR0, 0x11);
        block.put(block::EFER, 1 << 12);
        block.put(block::IDTR, 0x7FF << 32);
        block.put(block::IDTR + 8, AREA + (random.number() & 0xF000));
        block.put(block::RSP, AREA + (random.number() & 0xFFFC));
        block.put(block::MISC2, 0x7F | random.number() & 0x7FFF);
        if random.number() & 1 == 0 {
            spoil(random, block);
        } else {
            spoil(&mut Random::new(2), block);
        }
        for _ in 0..AGAIN {
            let n = random.number();
            let modes = if n & 7 == 0 { n << 16 & (AVIC | X2AVIC) } else { AVIC | n & X2AVIC };
            // Without AVIC they are this kernel's own, and so is the timer.
            X2APIC.for_each(|msr| block::let_msr(msr, modes & AVIC != 0, modes & AVIC != 0));
            let block = guest.block();
            let kept = block.get(block::INT_CTL) & !(AVIC | X2AVIC);
            block.put(block::INT_CTL, kept | MASKING | modes | n & 0xF);
            let page = page(random, block);
            block.put(BACKING, page);
            block.put(BAR, bar(random));
            TABLES.iter().for_each(|at| block.put(*at, random.number()));
            if n >> 8 & 1 == 0 {
                fill(random, page);
            }
            block.put(block::RFLAGS, 2 | n & 0x200);
            block.put(block::RIP, AREA + (random.number() & 0xFFF0));
            guest.enter_open();
            block::let_in();
            cpu::enable_interrupts();
            cpu::disable_interrupts();
            match guest.code() {
                exit::INVALID => invalid += 1,
                0x401 | 0x402 => told += 1,
                exit::INTR => ticks += 1,
                _ => others += 1,
            }
            guest.block().put(block::CLEAN, random.number());
        }
    }
    x2apic::stop_timer();
    println!("  {invalid} refused, {told} told of it, {ticks} ticks, {others} others");
    let all = invalid + told + ticks + others;
    check!(test, all == AGAIN * ROUNDS, "{all} times VMRUN came back");
    check!(test, invalid > 100 && told > 40 && others > 50, "in each way");
}
