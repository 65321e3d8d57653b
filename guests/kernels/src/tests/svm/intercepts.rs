//! Each intercept of a guest's instruction: with it the guest is left in front of the instruction,
//! and without it the instruction is done, or is the exception that it is.
//!
//! An intercept's bit, counted from the block's first one, is its exit code (APM vol. 2, appendix
//! C).

use super::block::{self, Frame, Guest, exit};
use super::{begin, end, inside};
use crate::boot::Boot;
use crate::console::check;
use core::sync::atomic::Ordering::SeqCst;

/// VMMCALL.
const CALL: [u8; 3] = [0x0F, 0x01, 0xD9];
const MOST_BYTES: usize = 16;

static CODE: Frame = Frame::new();

/// An instruction, the exit code of its intercept, and whether it is done where nobody intercepts
/// it.
type Case = (&'static str, u64, &'static [u8], bool);

/// QEMU looks at no intercept of MOV from CR3, CR4 and CR8, of INVD and RDTSCP.
const CASES: [Case; 26] = [
    ("MOV from CR0", 0x00, &[0x0F, 0x20, 0xC2], true),
    ("MOV to CR0", 0x10, &[0x0F, 0x20, 0xC2, 0x0F, 0x22, 0xC2], true),
    ("MOV to CR3", 0x13, &[0x0F, 0x20, 0xDA, 0x0F, 0x22, 0xDA], true),
    ("MOV to CR4", 0x14, &[0x0F, 0x20, 0xE2, 0x0F, 0x22, 0xE2], true),
    ("MOV to CR8", 0x18, &[0x31, 0xD2, 0x44, 0x0F, 0x22, 0xC2], true),
    ("MOV from DR0", 0x20, &[0x0F, 0x21, 0xC2], true),
    ("MOV from DR7", 0x27, &[0x0F, 0x21, 0xFA], true),
    ("MOV to DR0", 0x30, &[0x31, 0xD2, 0x0F, 0x23, 0xC2], true),
    ("MOV to DR7", 0x37, &[0x0F, 0x21, 0xFA, 0x0F, 0x23, 0xFA], true),
    (
        "MOV to DR0 behind one to DR7",
        0x30,
        &[0x0F, 0x21, 0xFA, 0x0F, 0x23, 0xFA, 0x31, 0xD2, 0x0F, 0x23, 0xC2],
        true,
    ),
    ("SIDT", 0x66, &[0x0F, 0x01, 0x4C, 0x24, 0xE0], true),
    ("SGDT", 0x67, &[0x0F, 0x01, 0x44, 0x24, 0xE0], true),
    ("SLDT", 0x68, &[0x0F, 0x00, 0xC2], true),
    ("STR", 0x69, &[0x0F, 0x00, 0xCA], true),
    ("LIDT", 0x6A, &[0x0F, 0x01, 0x4C, 0x24, 0xE0, 0x0F, 0x01, 0x5C, 0x24, 0xE0], true),
    ("LGDT", 0x6B, &[0x0F, 0x01, 0x44, 0x24, 0xE0, 0x0F, 0x01, 0x54, 0x24, 0xE0], true),
    ("LLDT", 0x6C, &[0x31, 0xD2, 0x0F, 0x00, 0xD2], true),
    ("RDTSC", 0x6E, &[0x0F, 0x31], true),
    ("PUSHF", 0x70, &[0x9C], true),
    ("POPF", 0x71, &[0x9C, 0x9D], true),
    ("INT 60h", 0x75, &[0xCD, 0x60], true),
    ("PAUSE", 0x77, &[0xF3, 0x90], true),
    ("INVLPG", 0x79, &[0x0F, 0x01, 0x39], true),
    ("INVLPGA", 0x7A, &[0x31, 0xC0, 0x31, 0xC9, 0x0F, 0x01, 0xDF], false),
    ("VMSAVE", 0x83, &[0x0F, 0x01, 0xDB], false),
    ("CLGI", 0x85, &[0x0F, 0x01, 0xDD], false),
];

/// Of the intercepts: VMRUN, and what ends a case.
const VMRUN: u64 = 1 << 0;
const VMMCALL: u64 = 1 << 1;

fn wanted(guest: &Guest, code: Option<u64>) {
    let mut words = [0, 0, VMRUN | VMMCALL];
    if let Some(code) = code {
        words[code as usize / 64] |= 1 << (code % 64);
    }
    // The first words of the block.
    words.iter().enumerate().for_each(|(n, word)| guest.block().put(8 * n, *word));
}

fn put(code: &[u8]) {
    let mut bytes = [0x90; 8 * MOST_BYTES];
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
    for (name, code, bytes, is_done) in CASES {
        put(bytes);
        guest.restart(CODE.address());
        guest.count_interrupts();
        guest.registers.rcx = CODE.address();
        wanted(&guest, Some(code));
        guest.run();
        let at = guest.block().get(block::RIP) - CODE.address();
        let right = guest.code() == code && at < bytes.len() as u64;
        check!(test, right, "{name}, intercepted: {:#x}, at byte {at}", guest.code());
        if is_done {
            guest.restart(CODE.address());
            guest.count_interrupts();
            guest.registers.rcx = CODE.address();
            wanted(&guest, None);
            guest.run();
            let at = guest.block().get(block::RIP) - CODE.address();
            let right = guest.code() == exit::VMMCALL && at == bytes.len() as u64;
            check!(test, right, "and else it is done: {:#x}, at byte {at}", guest.code());
        }
    }
    end();
}
