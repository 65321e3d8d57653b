//! Rows of the table: attacks by interrupts, on the local APIC, the IDT and other CPUs.

use crate::{
    Attack, Shown,
    rows::{attack, eli, own, shared, shown},
};
use ledger::Reason::*;

pub const INTERRUPTS: &[Attack] = &[
    attack(
        "off",
        "keeps interrupts off for seconds while its device raises them",
        &[shared(SliceEnd, 1)],
    )
    .taking(1),
    attack("no-eoi", "never completes, thirteen handlers deep", &[shared(SliceEnd, 1)]).taking(13),
    attack("eoi-storm", "completes nothing, 100,000 times", &[]),
    attack("eoi-twice", "completes each interrupt twenty times", &[shared(SliceEnd, 1)])
        .taking(300),
    attack(
        "priority",
        "task priority at 15 with interrupts pending, then up and down",
        &[shared(SliceEnd, 1)],
    )
    .taking(2000),
    attack("cr8", "the same by CR8", &[shared(SliceEnd, 1)]).taking(20000),
    // On a shared core a vCPU may be in injection mode from a switch to its next exit.
    attack("int-n", "INT n for every n", &[own(Exception, 1)]).taking(4960),
    attack("self-storm", "every vector to itself, interrupts off and on", &[eli(Ipi, 4000)])
        .taking(4460),
    attack("nmi-storm", "NMIs to itself, faster than it handles them", &[shown(Ipi, 1500)])
        .taking(1000),
    attack("device-storm", "its device's interrupt as fast as it can be raised", &[]).taking(5000),
    attack("shadow", "STI and CLI back to back under interrupts", &[]).taking(2000),
    // On a core of its own the ticks come without an exit, unless under `trap`. On a shared core,
    // where a periodic timer is virtual, one that is due when it exits anyway, or when another has
    // the core, has none of its own.
    attack(
        "timer-storm",
        "a periodic timer with the smallest count",
        &[shared(TimerInterrupt, 1), Shown { shared: 0, ..shown(TimerProgram, 8) }],
    )
    .taking(1000),
    attack("timer-program", "sets and stops timers without end", &[shown(TimerProgram, 5000)]),
];

pub const APIC: &[Attack] = &[
    attack(
        "commands",
        "every delivery mode to every shorthand and to others' ids",
        &[shown(Ipi, 1000)],
    )
    .taking(300),
    attack(
        "command-noise",
        "interrupt commands with reserved bits and noise",
        &[shown(MsrWrite, 1000)],
    )
    .taking(1000),
    attack("base", "switches the APIC off, on, elsewhere", &[shown(MsrWrite, 3000)]).taking(2000),
    attack(
        "disabled",
        "disables it by software with interrupts under way",
        &[shown(MsrWrite, 200)],
    )
    .taking(200),
    attack(
        "registers",
        "every register read and written with noise",
        &[shown(MsrRead, 200), shown(MsrWrite, 3000)],
    )
    .taking(3000),
    attack(
        "local-vectors",
        "SMI, NMI, INIT and ExtINT in the local vectors",
        &[shown(TimerProgram, 20)],
    ),
    attack("page", "commands through the page of the xAPIC", &[shown(NestedPageFault, 500)]),
    attack(
        "xapic",
        "in xAPIC mode, commands to others and noise in every register, modes changed meanwhile",
        &[shown(Ipi, 500), shown(ApicPage, 2000), shown(MsrWrite, 200)],
    ),
];

pub const IDT: &[Attack] = &[
    attack(
        "anywhere",
        "tables across pages, in device registers, where nothing is, not canonical",
        &[eli(IdtLoad, 1)],
    )
    .taking(100),
    attack(
        "limits",
        "limits that leave out the host's vectors, the device's, or half a gate",
        &[eli(IdtLoad, 1)],
    )
    .taking(250),
    attack(
        "gates",
        "gates of every type and none, for the device's and the host's vectors",
        &[eli(Exception, 100)],
    )
    .taking(750),
    // On a shared core its table has no shadow, whose page would be watched.
    attack("stores", "stores to the table's page under interrupts", &[own(IdtWrite, 100)])
        .taking(700),
    attack("not-present", "INT n on gates that it keeps not present", &[eli(Exception, 1000)])
        .taking(3000),
    attack("double-faults", "the fault's own handler not present", &[eli(Exception, 500)])
        .taking(1200),
    attack(
        "remapped",
        "the page behind the table's address exchanged under interrupts",
        &[shown(TimerProgram, 2), eli(IdtLoad, 1)],
    )
    .taking(500),
    attack("by-device", "its device writes the table's page", &[shown(PciConfig, 1)]),
];

pub const CPUS: &[Attack] = &[
    attack("commands", "interrupt commands from all CPUs at once", &[shown(Ipi, 1000)])
        .taking(2000),
    attack("starts", "INIT and start-up IPIs without end", &[shown(Ipi, 300)]),
    attack(
        "tables",
        "one CPU rewrites the table that the other takes interrupts through",
        &[own(Exception, 1), shared(IdtLoad, 1)],
    )
    .taking(2000),
    attack("bars", "one CPU moves the registers that the other reads", &[shown(PciConfig, 300)]),
    attack("remapped", "one CPU exchanges the page behind the other's table", &[eli(IdtLoad, 1)])
        .taking(2000),
    attack(
        "unmapped",
        "one CPU unmaps a page of the other's table and maps it again",
        &[eli(IdtLoad, 1)],
    )
    .taking(2000),
    attack(
        "asleep",
        "one CPU interrupts the other, which sleeps, and moves registers without end",
        // On a shared core it isn't bothered before it has looked.
        &[Shown { shared: 0, ..shown(Kick, 1000) }, shared(Halt, 1)],
    ),
    attack(
        "low-nmis",
        "one CPU leaves vector 2 behind and switches its local APIC off, the other sends it NMIs",
        // On a shared core it isn't bothered while another is resident.
        &[shown(MsrWrite, 1200), Shown { shared: 0, ..shown(Kick, 50) }],
    ),
];
