//! Rows of the table: attacks on what the host does in the place of an instruction.

use crate::{
    Attack,
    rows::{attack, shown},
};
use ledger::Reason::*;

pub const RINGS: &[Attack] = &[
    attack(
        "privileged",
        "SVM's, VMX's and all privileged instructions from rings 1 to 3, with and without ports",
        &[shown(PortIo, 480)],
    ),
    attack(
        "accesses",
        "a user's loads, stores and strings in device registers and the interrupt table's page",
        &[shown(Ioapic, 20)],
    ),
    attack(
        "read-only",
        "a user's stores and read-modify-writes to device registers that it may only read",
        &[shown(Ioapic, 150)],
    ),
    attack(
        "unemulated",
        "a user's FXSAVE, CMPS and CMPXCHG8B on device registers, and jumps there",
        &[shown(Ioapic, 15)],
    ),
    attack(
        "shadows",
        "a user's INT1, VMCALL and CPUID right behind MOV SS and STI, single-stepped",
        &[],
    ),
];

pub const TRAPS: &[Attack] = &[
    attack("steps", "single steps through exits of every reason", &[shown(Cpuid, 100)])
        .taking(6000),
    attack("late", "MOV SS at a breakpoint, then what exits", &[shown(Cpuid, 200)]).taking(200),
    attack("gateless", "ICEBP, INT3 and #DB without their gates", &[shown(Exception, 1000)])
        .taking(3000),
];

pub const BORDERS: &[Attack] = &[
    attack(
        "strings-to-apic",
        "string instructions over the page of xAPIC mode, from it, into it, by ports",
        &[shown(ApicPage, 800)],
    ),
    attack(
        "strings-to-table",
        "string instructions over the ends of the interrupt table's page and of memory",
        &[shown(Ioapic, 1000)],
    ),
];
