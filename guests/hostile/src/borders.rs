//! String instructions over the borders between memory, what the host emulates, what it watches and
//! nothing.

use crate::tables;
use core::arch::asm;
use machine::{
    boot::Boot,
    cpu, edu, idt,
    x2apic::{self, command},
    xapic,
};

const PAGE: u64 = 4096;
const IOAPIC: u64 = 0xFEC0_0000;
const LEDGER: u64 = 0xFED0_0000;
const NOWHERE: u64 = 0x9000_0000;
const CONFIG_ADDRESS: u16 = 0xCF8;
/// A function that isn't there.
const ABSENT: u32 = 1 << 31 | 0xFF << 16;

/// String instructions from the page of xAPIC mode to itself, into it from ports and out of it to
/// ports: each element is an access of a register.
pub fn strings_to_apic(_: &str, _: &Boot) {
    for _ in 0..4 {
        xapic::enter();
        x2apic::send(0, command::SELF | 0x62);
        cpu::outl(CONFIG_ADDRESS, ABSENT);
        // SAFETY: registers of the local APIC, which is put in order afterwards.
        unsafe {
            asm!("rep movsd", inout("rsi") xapic::PAGE => _, inout("rdi") xapic::PAGE => _,
                 inout("rcx") 1024u64 => _);
            asm!("rep movsq", inout("rsi") xapic::PAGE => _, inout("rdi") xapic::PAGE + 4 => _,
                 inout("rcx") 512u64 => _);
            asm!("std", "rep movsb", "cld", inout("rsi") xapic::PAGE + 0xFFF => _,
                 inout("rdi") xapic::PAGE + 0xFFF => _, inout("rcx") 512u64 => _);
            asm!("rep outsd", in("dx") CONFIG_ADDRESS, inout("rsi") xapic::PAGE => _,
                 inout("rcx") 256u64 => _);
            asm!("rep insd", in("dx") CONFIG_ADDRESS + 4, inout("rdi") xapic::PAGE => _,
                 inout("rcx") 1024u64 => _);
            asm!("rep lodsd", inout("rsi") xapic::PAGE => _, inout("rcx") 1100u64 => _,
                 out("rax") _);
            asm!("rep stosd", inout("rdi") xapic::PAGE + 0x400 => _, inout("rcx") 700u64 => _,
                 in("rax") 0x1_0062u64);
        }
        let _ = cpu::try_wrmsr(xapic::BASE, 0);
        x2apic::init_cpu();
    }
}

/// Elements that the host moves into the page of the table in use, over its ends, too, under
/// interrupts; and from one page into another of a different kind.
pub fn strings_to_table(_: &str, boot: &Boot) {
    let table = idt::arena(0x2000);
    tables::fill(table);
    cpu::load_idt(table, (idt::TABLE_BYTES - 1) as u16);
    cpu::enable_interrupts();
    let end = boot.memory_end();
    for i in 0..200u64 {
        edu::raise();
        // The first gate is #DE's, which nothing raises, the last nobody's.
        for at in [table - 1, table - 3, table + PAGE - 1, table + PAGE - 5, end - 3, end - 7] {
            // SAFETY: pages for tables, the end of memory, which nothing uses, and beyond.
            unsafe {
                asm!("rep insw", in("dx") 0x80u16, inout("rdi") at => _, inout("rcx") 1u64 => _);
                asm!("rep movsq", inout("rsi") IOAPIC + i % 64 => _, inout("rdi") at => _,
                     inout("rcx") 1u64 => _);
                asm!("rep outsd", in("dx") 0x80u16, inout("rsi") at => _, inout("rcx") 2u64 => _);
            }
        }
        for from in [end - 4, LEDGER + PAGE - 4, IOAPIC + PAGE - 4, NOWHERE - 4, IOAPIC - 4] {
            // SAFETY: from one end into another, where nothing is used.
            unsafe {
                asm!("rep movsq", inout("rsi") from => _, inout("rdi") IOAPIC - 4 => _,
                     inout("rcx") 1u64 => _);
                asm!("rep movsq", inout("rsi") IOAPIC => _, inout("rdi") from => _,
                     inout("rcx") 1u64 => _);
            }
        }
    }
    cpu::disable_interrupts();
    idt::load();
}
