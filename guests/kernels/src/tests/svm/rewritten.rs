//! Another CPU writes a guest's instruction while the host looks for what it did: a load from a
//! device's register becomes a store there, which this kernel's tables don't allow.

use super::block::exit;
use super::paging::{self, ALL, AREA};
use super::registers::{Came, access};
use super::smp::turn_on;
use crate::{console::check, cpu, smp, wait};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

const EFER: u32 = 0xC000_0080;
const PAGE: u64 = 4096;
/// A register of the I/O APIC's that keeps a byte.
const SELECT: u64 = 0xFEC0_0000;
const KEPT: u32 = 0x5A;
/// Pages of the guest's that lead there, and to its code.
const DEVICE: u64 = 100;
const CODE: u64 = 50;
const ROUNDS: u64 = 3000;
/// A load of 4 bytes at RSI to RCX; a store of EDI there; MOVS from there to there, behind a NOP;
/// an instruction that nobody emulates.
const LOAD: u64 = code([0x8B, 0x0E]);
const OTHERS: [u64; 3] = [code([0x89, 0x3E]), code([0x90, 0xA5]), code([0xDB, 0x2E])];

/// An instruction, and VMMCALL.
const fn code([first, second]: [u8; 2]) -> u64 {
    u64::from_le_bytes([first, second, 0x0F, 0x01, 0xD9, 0x90, 0x90, 0x90])
}

static WRITING: AtomicU64 = AtomicU64::new(0);

fn write(_: usize) {
    turn_on();
    WRITING.store(1, SeqCst);
    for instruction in OTHERS.iter().cycle() {
        paging::word(CODE).store(*instruction, SeqCst);
        paging::word(CODE).store(LOAD, SeqCst);
        if WRITING.load(SeqCst) != 1 {
            break;
        }
    }
    cpu::wrmsr(EFER, cpu::rdmsr(EFER) & !super::SVME);
}

/// The register keeps what it has, and VMRUN comes back each time.
pub fn rewritten(test: &str) {
    let mut guest = paging::guest();
    let device = AREA + DEVICE * PAGE;
    paging::map(CODE, CODE, ALL);
    paging::map_at(DEVICE, SELECT, ALL & !2);
    paging::word(CODE).store(LOAD, SeqCst);
    cpu::mmio_write(SELECT, KEPT);
    let (mut loads, mut faults, mut refused, mut torn, mut other) = (0, 0, 0, 0, 0);
    let ended = smp::others(2, write, || {
        let began = wait::patiently(|| WRITING.load(SeqCst) == 1);
        for _ in 0..ROUNDS {
            match access(&mut guest, AREA + CODE * PAGE, device, device) {
                Came::Done(KEPT) => loads += 1,
                Came::Told(exit::NPF) => faults += 1,
                Came::Refused => refused += 1,
                // Half of one and half of another.
                Came::Done(0) => torn += 1,
                _ => other += 1,
            }
        }
        WRITING.store(2, SeqCst);
        began
    });
    let kept = cpu::mmio_read(SELECT);
    let right = ended && kept == KEPT && loads > 100 && faults > 100 && other == 0;
    check!(
        test,
        right,
        "rewritten: {loads} loads, {faults} stores told, {refused} refused, {torn} torn, {other} \
         else; {kept:#x}"
    );
    paging::word(CODE).store(0xB00 + CODE, SeqCst);
    cpu::mmio_write(SELECT, 0);
    paging::map_at(DEVICE, 0, 0);
}
