//! Rows of the table: attacks on a core that serves paravirtual disks and networks.

use crate::{
    Attack,
    Ends::Stopped,
    rows::{attack, last, shown},
};
use ledger::Reason::*;

pub const REBOOT: &[Attack] =
    &[attack("now", "resets its VM five times with all queues full", &[])];

pub const DISK: &[Attack] = &[
    attack(
        "places",
        "rings where no memory is, across its end, unaligned, of sizes that none has",
        &[shown(PciConfig, 10)],
    ),
    attack("indices", "indices that jump, heads that don't exist, amid requests", &[]),
    attack(
        "chains",
        "chains that loop, tables in tables and of any length, buffers that are no memory",
        &[],
    ),
    attack("largest", "discards and write-zeroes of the whole disk, flushes, in all queues", &[]),
    attack("resets", "resets amid requests, registers of a queue that runs", &[]),
    attack("bus-master", "bus mastering off and on amid requests", &[shown(PciConfig, 1000)]),
    attack(
        "bars",
        "its BAR moved, overlaid and switched off amid requests",
        &[shown(PciConfig, 300)],
    ),
    attack(
        "window",
        "configuration space's window: every kind of offset and length",
        &[shown(PciConfig, 4000)],
    ),
    attack("noise", "noise in all of its registers, kicks without end", &[]),
    attack(
        "messages",
        "its interrupts at every vector, for every CPU, in every mode, amid requests",
        &[shown(MsixTable, 8000)],
    ),
    attack("switched", "its entries and MSI-X masked and switched amid requests", &[]),
];

pub const PACKED: &[Attack] = &[attack(
    "rings",
    "packed rings: wrap counters, chains round the ring, tables over it, rewritten at once",
    &[],
)];

pub const DISK_CPUS: &[Attack] = &[
    attack("rewritten", "CPUs rewrite the chains that another offers", &[]),
    attack("everything", "all CPUs do anything to one disk, at random", &[shown(PciConfig, 200)]),
    attack(
        "starts",
        "CPUs that its interrupts are for stopped and started amid requests and moves",
        &[shown(MsixTable, 600), shown(Ipi, 500)],
    ),
];

pub const FAULT: &[Attack] =
    &[last("now", "faults with all queues full", Stopped("triple fault"), &[shown(Shutdown, 1)])];

pub const NET: &[Attack] = &[
    attack("frames", "frames of every length, header, tag and address, in pieces", &[]),
    attack("buffers", "receive buffers that are no memory, too small, in loops", &[]),
    attack("commands", "commands of every class and length, for others' addresses", &[]),
    attack("flood", "frames for all as fast as they go, resets amid them", &[]),
];
