//! Each intercept of a guest's instruction: with it the guest is left in front of the instruction,
//! and without it the instruction is done, or is the exception that it is.
//!
//! An intercept's bit, counted from the block's first one, is its exit code (APM vol. 2, appendix
//! C).

use super::block::{self, Frame, Guest, exit};
use super::{begin, end, inside};
use crate::counters::{Policy, policy};
use crate::{boot::Boot, console::check};
use core::sync::atomic::Ordering::SeqCst;

/// VMMCALL.
const CALL: [u8; 3] = [0x0F, 0x01, 0xD9];
/// Of code.
const WORDS: usize = 16;

static CODE: Frame = Frame::new();

/// What comes of an instruction that this kernel doesn't intercept.
#[derive(Clone, Copy)]
enum Else {
    /// It is done.
    Done,
    /// It raises what has this exit code.
    Raises(u64),
    /// It raises that in a guest of Exitless', which hasn't got it. The bare machine has it, or
    /// makes another exception of it.
    Refused(u64),
    /// `svm-open` asks.
    Unasked,
}

use Else::{Done, Raises, Refused, Unasked};

/// Exceptions by their exit codes.
const UNDEFINED: u64 = 0x46;
const PROTECTION: u64 = 0x4D;

/// An instruction, the exit code of its intercept, and what comes of it without.
type Case = (&'static str, u64, &'static [u8], Else);

/// QEMU looks at no intercept of MOV from CR2, CR3, CR4 and CR8, nor of RDTSCP, which exits as
/// RDTSC.
/// `svm-exits` has those of CPUID, HLT, RDMSR, OUT, VMMCALL and VMLOAD.
const CASES: [Case; 48] = [
    ("MOV from CR0", 0x00, &[0x0F, 0x20, 0xC2], Done),
    ("MOV to CR0", 0x10, &[0x0F, 0x20, 0xC2, 0x0F, 0x22, 0xC2], Done),
    ("MOV to CR2", 0x12, &[0x0F, 0x20, 0xD2, 0x0F, 0x22, 0xD2], Done),
    ("MOV to CR3", 0x13, &[0x0F, 0x20, 0xDA, 0x0F, 0x22, 0xDA], Done),
    ("MOV to CR4", 0x14, &[0x0F, 0x20, 0xE2, 0x0F, 0x22, 0xE2], Done),
    ("MOV to CR8", 0x18, &[0x31, 0xD2, 0x44, 0x0F, 0x22, 0xC2], Done),
    ("MOV from DR0", 0x20, &[0x0F, 0x21, 0xC2], Done),
    ("MOV from DR1", 0x21, &[0x0F, 0x21, 0xCA], Done),
    ("MOV from DR2", 0x22, &[0x0F, 0x21, 0xD2], Done),
    ("MOV from DR3", 0x23, &[0x0F, 0x21, 0xDA], Done),
    ("MOV from DR6", 0x26, &[0x0F, 0x21, 0xF2], Done),
    ("MOV from DR7", 0x27, &[0x0F, 0x21, 0xFA], Done),
    ("MOV to DR0", 0x30, &[0x31, 0xD2, 0x0F, 0x23, 0xC2], Done),
    ("MOV to DR1", 0x31, &[0x31, 0xD2, 0x0F, 0x23, 0xCA], Done),
    ("MOV to DR2", 0x32, &[0x31, 0xD2, 0x0F, 0x23, 0xD2], Done),
    ("MOV to DR3", 0x33, &[0x31, 0xD2, 0x0F, 0x23, 0xDA], Done),
    ("MOV to DR6", 0x36, &[0x0F, 0x21, 0xF2, 0x0F, 0x23, 0xF2], Done),
    ("MOV to DR7", 0x37, &[0x0F, 0x21, 0xFA, 0x0F, 0x23, 0xFA], Done),
    (
        "MOV to DR0 behind one to DR7",
        0x30,
        &[0x0F, 0x21, 0xFA, 0x0F, 0x23, 0xFA, 0x31, 0xD2, 0x0F, 0x23, 0xC2],
        Done,
    ),
    ("MOV to CR0 of more than TS", 0x65, &CR0_OF_MORE, Done),
    ("SIDT", 0x66, &[0x0F, 0x01, 0x4C, 0x24, 0xE0], Done),
    ("SGDT", 0x67, &[0x0F, 0x01, 0x44, 0x24, 0xE0], Done),
    ("SLDT", 0x68, &[0x0F, 0x00, 0xC2], Done),
    ("STR", 0x69, &[0x0F, 0x00, 0xCA], Done),
    ("LIDT", 0x6A, &[0x0F, 0x01, 0x4C, 0x24, 0xE0, 0x0F, 0x01, 0x5C, 0x24, 0xE0], Done),
    ("LGDT", 0x6B, &[0x0F, 0x01, 0x44, 0x24, 0xE0, 0x0F, 0x01, 0x54, 0x24, 0xE0], Done),
    ("LLDT", 0x6C, &[0x31, 0xD2, 0x0F, 0x00, 0xD2], Done),
    ("LTR of a code segment", 0x6D, &[0x6A, 8, 0x5A, 0x0F, 0x00, 0xDA], Raises(PROTECTION)),
    ("RDTSC", 0x6E, &[0x0F, 0x31], Done),
    ("RDPMC", 0x6F, &[0x31, 0xC9, 0x0F, 0x33], Refused(PROTECTION)),
    ("PUSHF", 0x70, &[0x9C], Done),
    ("POPF", 0x71, &[0x9C, 0x9D], Done),
    ("RSM", 0x73, &[0x0F, 0xAA], Raises(UNDEFINED)),
    ("IRET", 0x74, &IRET, Done),
    ("INT 60h", 0x75, &[0xCD, 0x60], Done),
    ("INVD", 0x76, &[0x0F, 0x08], Done),
    ("PAUSE", 0x77, &[0xF3, 0x90], Done),
    ("INVLPG", 0x79, &[0x0F, 0x01, 0x39], Done),
    ("INVLPGA", 0x7A, &[0x31, 0xC0, 0x31, 0xC9, 0x0F, 0x01, 0xDF], Done),
    ("VMSAVE", 0x83, &[0x0F, 0x01, 0xDB], Unasked),
    ("STGI", 0x84, &[0x0F, 0x01, 0xDC], Refused(UNDEFINED)),
    ("CLGI", 0x85, &[0x0F, 0x01, 0xDD], Refused(UNDEFINED)),
    ("SKINIT", 0x86, &[0x31, 0xC0, 0x0F, 0x01, 0xDE], Refused(UNDEFINED)),
    ("INT1", 0x88, &[0xF1], Done),
    ("WBINVD", 0x89, &[0x0F, 0x09], Done),
    ("MONITOR", 0x8A, &[0x48, 0x89, 0xE0, 0x31, 0xC9, 0x0F, 0x01, 0xC8], Refused(UNDEFINED)),
    ("MWAIT", 0x8B, &[0x31, 0xC0, 0x31, 0xC9, 0x0F, 0x01, 0xC9], Refused(UNDEFINED)),
    ("XSETBV", 0x8D, &XSETBV, Done),
];

/// MOV RDX, CR0; BTC EDX, 18; MOV CR0, RDX.
const CR0_OF_MORE: [u8; 10] = [0x0F, 0x20, 0xC2, 0x0F, 0xBA, 0xFA, 18, 0x0F, 0x22, 0xC2];
/// Of SS, RSP, RFLAGS, CS and the address behind it, each of them by PUSH.
const IRET: [u8; 23] = [
    0x8C, 0xD2, 0x52, 0x48, 0x8D, 0x54, 0x24, 0x08, 0x52, 0x9C, 0x8C, 0xCA, 0x52, 0x48, 0x8D, 0x15,
    0x03, 0x00, 0x00, 0x00, 0x52, 0x48, 0xCF,
];
/// Behind MOV to CR4 with OSXSAVE; of 1 to XCR0.
const XSETBV: [u8; 20] = [
    0x0F, 0x20, 0xE2, 0x0F, 0xBA, 0xEA, 18, 0x0F, 0x22, 0xE2, 0x31, 0xC9, 0x31, 0xD2, 0x8D, 0x41,
    0x01, 0x0F, 0x01, 0xD1,
];

/// Of the intercepts: VMRUN, and what ends a case.
const EXCEPTIONS: u64 = 1 << (UNDEFINED - 0x40) | 1 << (PROTECTION - 0x40);
const VMRUN: u64 = 1 << 0;
const VMMCALL: u64 = 1 << 1;

fn wanted(guest: &Guest, code: Option<u64>) {
    let mut words = [0, EXCEPTIONS, VMRUN | VMMCALL];
    if let Some(code) = code {
        words[code as usize / 64] |= 1 << (code % 64);
    }
    // The first words of the block.
    words.iter().enumerate().for_each(|(n, word)| guest.block().put(8 * n, *word));
}

fn put(code: &[u8]) {
    let mut bytes = [0x90; 8 * WORDS];
    for (to, from) in bytes.iter_mut().zip(code.iter().chain(&CALL)) {
        *to = *from;
    }
    for (word, bytes) in CODE.0.iter().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(bytes);
        word.store(u64::from_le_bytes(eight), SeqCst);
    }
}

/// All of them.
pub fn intercepts(test: &str, _: &Boot) {
    if !begin(test) {
        return;
    }
    let mut guest = Guest::new(inside::hypercall());
    for (name, code, bytes, without) in CASES {
        put(bytes);
        let (told, at) = run(&mut guest, Some(code));
        let right = told == code && at < bytes.len() as u64;
        check!(test, right, "{name}, intercepted: {told:#x}, at byte {at}");
        let end = match without {
            Done => exit::VMMCALL,
            Refused(_) if policy() == Policy::Bare => continue,
            Raises(exception) | Refused(exception) => exception,
            Unasked => continue,
        };
        // An exception leaves it where it was.
        let is_there = |at| (at == bytes.len() as u64) == (end == exit::VMMCALL);
        let (told, at) = run(&mut guest, None);
        let right = told == end && at <= bytes.len() as u64 && is_there(at);
        check!(test, right, "{name}, and else: {told:#x} of {end:#x}, at byte {at}");
    }
    end();
}

/// Why it was left, and where.
fn run(guest: &mut Guest, code: Option<u64>) -> (u64, u64) {
    guest.restart(CODE.address());
    guest.count_interrupts();
    guest.registers.rcx = CODE.address();
    wanted(guest, code);
    guest.run();
    (guest.code(), guest.block().get(block::RIP) - CODE.address())
}
