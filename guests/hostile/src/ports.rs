//! I/O ports that a guest has no business at.

use core::arch::asm;
use core::ops::RangeInclusive;
use machine::{boot::Boot, cpu, random::Random};

const SEED: u64 = 0x9047;
/// Ports whose writes end this VM or drive its console, each with the three before it, from
/// which a wide write reaches it.
const KEPT: [RangeInclusive<u16>; 6] =
    [0x61..=0x64, 0xF1..=0xF7, 0x3F5..=0x3FF, 0x5FD..=0x604, 0xCF5..=0xCFF, 0xFFFD..=0xFFFF];
/// APM_CNT and APM_STS: writes raise an SMI.
const SMI: [u16; 2] = [0xB2, 0xB3];

/// Every port read and written, wherever that doesn't rightly end this VM.
pub fn all(_: &str, _: &Boot) {
    let mut random = Random::new(SEED);
    for port in 0..=0x1FFF {
        cpu::inb(port);
        cpu::inl(port);
        if KEPT.iter().any(|r| r.contains(&port)) {
            continue;
        }
        let value = random.number();
        cpu::outb(port, value as u8);
        cpu::outw(port, value as u16);
        cpu::outl(port, value as u32);
    }
    for port in (0x2000..=0xFFF0).step_by(61) {
        cpu::outb(port, random.number() as u8);
        cpu::inl(port);
    }
}

/// Every value to the ports that raise an SMI.
pub fn smi(_: &str, _: &Boot) {
    for value in 0..=255 {
        SMI.iter().for_each(|port| cpu::outb(*port, value));
    }
}

/// Reset controls with all the values that don't end this VM, and wide writes across them. Of the
/// ACPI register at 0x604, 1 resets and 2 says that a BIOS was called.
pub fn resets(_: &str, _: &Boot) {
    for value in 0..=255u8 {
        if value & 4 == 0 {
            cpu::outb(0xCF9, value);
        }
        if value & 1 == 0 && value != 0xFE {
            cpu::outb(0x64, value);
            cpu::outb(0x92, value);
        }
        if !matches!(value, 1 | 2) {
            cpu::outb(0x604, value);
        }
        cpu::outw(0xCF8, u16::from(value) << 8);
        cpu::outl(0x603, u32::from(value) << 8);
    }
    cpu::outl(0xCF8, 0);
}

/// The 8259s, the interval timer and the DMA controller of a PC, which aren't there.
pub fn legacy(_: &str, _: &Boot) {
    let ports = (0x00..=0x1F).chain(0x40..=0x43).chain(0x80..=0x8F).chain(0xC0..=0xDF);
    for port in ports.chain([0x20, 0x21, 0xA0, 0xA1, 0x4D0, 0x4D1, 0x61]) {
        for value in [0x11, 0x08, 0x04, 0x01, 0x00, 0x34, 0x20, 0xFF] {
            cpu::outb(port, value);
            cpu::inb(port);
        }
    }
    (0x20..=0x21).chain(0xA0..=0xA1).for_each(|port| cpu::outb(port, 0xFF));
}

/// INS and OUTS from and to memory that isn't there, device registers, the ledger's page, and
/// backwards.
pub fn strings(_: &str, boot: &Boot) {
    let end = boot.memory_end();
    for address in [0x9000_0000, 0xFED0_0000, 0xFEC0_0000, 0xFEE0_0000, end - 4, end - 4096] {
        for port in [0x80u16, 0xCFC, 0x3FD, 0x1F0] {
            // SAFETY: INS may write to the last page of memory, which nothing uses, and elsewhere
            // to none.
            unsafe {
                asm!("rep outsb", in("dx") port, inout("rsi") address => _, inout("rcx") 64u64 => _);
                asm!("rep insb", in("dx") port, inout("rdi") address => _, inout("rcx") 4u64 => _);
                asm!("std", "rep outsd", "cld", in("dx") port, inout("rsi") address => _,
                     inout("rcx") 16u64 => _);
            }
        }
    }
}
