//! The table.

use crate::{
    Attack,
    Device::{Edu, Nvme},
    Ends::{Never, Resets, Stopped},
    RESETS, Shown, Subject,
    disks::{DISK, DISK_CPUS, FAULT, NET, PACKED, REBOOT},
    emulation::{BORDERS, RINGS, TRAPS},
    interrupts::{APIC, CPUS, IDT, INTERRUPTS},
    rows::{alone, attack, dma, eli, end, exactly, last, own, shown},
};
use ledger::Reason::*;

/// Everything that is tried.
pub const SUBJECTS: &[Subject] = &[
    Subject { name: "interrupts", cpus: 1, attacks: INTERRUPTS },
    Subject { name: "apic", cpus: 1, attacks: APIC },
    Subject { name: "idt", cpus: 1, attacks: IDT },
    Subject { name: "cpus", cpus: 2, attacks: CPUS },
    Subject { name: "msrs", cpus: 1, attacks: MSRS },
    Subject { name: "ports", cpus: 1, attacks: PORTS },
    Subject { name: "pci", cpus: 1, attacks: PCI },
    Subject { name: "msix", cpus: 1, attacks: MSIX },
    Subject { name: "dma", cpus: 1, attacks: DMA },
    Subject { name: "memory", cpus: 1, attacks: MEMORY },
    Subject { name: "control", cpus: 1, attacks: CONTROL },
    Subject { name: "exits", cpus: 1, attacks: EXITS },
    Subject { name: "console", cpus: 1, attacks: CONSOLE },
    Subject { name: "rings", cpus: 1, attacks: RINGS },
    Subject { name: "traps", cpus: 1, attacks: TRAPS },
    Subject { name: "borders", cpus: 1, attacks: BORDERS },
    Subject { name: "disk-reboot", cpus: 1, attacks: REBOOT },
    Subject { name: "disk", cpus: 1, attacks: DISK },
    Subject { name: "disk-packed", cpus: 1, attacks: PACKED },
    Subject { name: "disk-cpus", cpus: 3, attacks: DISK_CPUS },
    Subject { name: "disk-fault", cpus: 1, attacks: FAULT },
    Subject { name: "net", cpus: 1, attacks: NET },
    end(
        "triple-fault",
        &[last(
            "now",
            "faults without an interrupt table",
            Stopped("triple fault"),
            &[shown(Shutdown, 1)],
        )],
    ),
    end(
        "wild-jump",
        &[last(
            "now",
            "runs code where it has no memory",
            Stopped("90000000"),
            &[shown(NestedPageFault, 1)],
        )],
    ),
    end(
        "wild-tables",
        &[last(
            "now",
            "uses page tables where it has no memory",
            Stopped("90000000"),
            &[shown(NestedPageFault, 1)],
        )],
    ),
    end(
        "wild-idt",
        &[last(
            "now",
            "takes an interrupt through a table where it has no memory",
            Stopped("90000"),
            &[shown(NestedPageFault, 1)],
        )],
    ),
    end(
        "bad-cr4",
        // A CPU with VMX looks at CR3 itself.
        &[attack(
            "now",
            "sets reserved bits of CR3 and CR4, 1000 times",
            &[Shown { alone: 0, ..shown(Other, 2000) }, alone(RefusedInstruction, 1000)],
        )],
    ),
    end(
        "unmapped-idt",
        &[last(
            "now",
            "unmaps its interrupt table and takes an interrupt",
            Stopped("triple fault"),
            &[shown(Shutdown, 1)],
        )],
    ),
    Subject {
        cpus: 2,
        ..end(
            "unmapped-idt-smp",
            &[last(
                "now",
                "one CPU unmaps the table that the other takes interrupts through, amid them",
                Stopped("triple fault"),
                &[shown(Shutdown, 1)],
            )],
        )
    },
    end(
        "unemulated",
        &[last(
            "now",
            "reaches device registers by an instruction that isn't emulated",
            Stopped("must be emulated"),
            &[shown(Ioapic, 1)],
        )],
    ),
    end("off-for-ever", &[last("now", "spins with interrupts off, for ever", Never, &[])]),
    end("idle-for-ever", &[last("now", "halts with interrupts off, for ever", Never, &[])]),
    end(
        "storm-for-ever",
        &[last("now", "sends itself the next interrupt from each handler, for ever", Never, &[])],
    ),
    end(
        "alignment-for-ever",
        &[last("now", "has the delivery of #AC raise #AC, for ever", Never, &[])],
    ),
    end(
        "debug-for-ever",
        &[last("now", "has the delivery of #DB raise #DB, for ever", Never, &[])],
    ),
    end(
        "task-gate",
        &[last(
            "now",
            "takes an interrupt through a task gate",
            Stopped("switched tasks"),
            &[shown(Other, 1)],
        )],
    ),
    end(
        "reboot-loop",
        &[last(
            "now",
            "resets as soon as it runs, again and again",
            Resets,
            // Two at its start, and the reset.
            &[shown(PortIo, 3 * RESETS as u64)],
        )],
    ),
];

/// Of 25,105 registers 15 are open (`docs/design.md`, "What a guest reaches"); the local APIC's
/// aren't among them. DEBUGCTL is open to be read alone.
const MSRS_THAT_EXIT: u64 = 25_105 - 15;
/// Of 42,717 accesses 13 stay in the PM timer's four ports, 9 are for PCI configuration and 8 for
/// the console.
const PORT_ACCESSES: u64 = 42_717 - 13 - 9 - 8;
/// On Bochs' machine the PM timer's ports are others, of which the attack tries none by itself.
const PORTS_THAT_EXIT: Shown =
    Shown { alone: PORT_ACCESSES + 13, ..exactly(PortIo, PORT_ACCESSES) };

const MSRS: &[Attack] = &[
    attack(
        "all",
        "every register read and written with a random value",
        &[exactly(MsrRead, MSRS_THAT_EXIT - 1), exactly(MsrWrite, MSRS_THAT_EXIT)],
    ),
    attack("efer", "EFER bit by bit", &[shown(MsrWrite, 128)]),
    attack("virtualization", "the registers of SVM and VMX", &[shown(MsrWrite, 200)]),
    attack("machine-check", "machine-check banks, and errors in them", &[shown(MsrWrite, 1000)]),
    attack("time", "the time-stamp counter", &[shown(MsrWrite, 10)]),
    attack("platform", "memory types, microcode, SMM, power", &[shown(MsrWrite, 200)]),
    attack("storm", "open registers, tens of thousands of times", &[]),
];

const PORTS: &[Attack] = &[
    attack("all", "every port read and written", &[PORTS_THAT_EXIT]),
    attack("smi", "every value to the ports that raise an SMI", &[shown(PortIo, 512)]),
    attack("resets", "reset controls with all values that don't reset", &[shown(PortIo, 500)]),
    attack("legacy", "8259s, interval timer, DMA controller", &[shown(PortIo, 500)]),
    attack("strings", "INS and OUTS from memory that isn't there", &[shown(PortIo, 20)]),
];

const PCI: &[Attack] = &[
    attack("absent", "functions and buses that aren't there", &[shown(PciConfig, 2000)]),
    attack(
        "mechanism",
        "the configuration ports by every width, unaligned, with noise",
        &[shown(PciConfig, 1000)],
    ),
    attack("noise", "every register of every function, with noise", &[shown(PciConfig, 6000)]),
    attack(
        "memory",
        "configuration space in memory by every width, unaligned, with noise",
        &[shown(PciConfig, 2000)],
    ),
    attack("bars", "BARs over memory, APICs, the IOMMU", &[shown(PciConfig, 20)]),
    attack(
        "overlaid",
        "BARs on top of each other, whole and in part, during DMA",
        &[shown(PciConfig, 300), shown(MsixTable, 2000)],
    ),
    attack(
        "under-way",
        "BARs sized and moved, DMA switched off, in the middle of it",
        &[shown(PciConfig, 1000)],
    ),
    attack(
        "capabilities",
        "power states, function-level reset, SR-IOV, MSI, hidden ones too",
        &[shown(PciConfig, 200)],
    ),
    attack("rewritten", "MSI aimed anew at every interrupt", &[shown(PciConfig, 5000)]),
    attack(
        "messages",
        "messages to every CPU, in every mode, at every kind of vector",
        &[shown(PciConfig, 5000)],
    ),
];

const MSIX: &[Attack] = &[
    attack(
        "entries",
        "MSI-X entries with noise, masked and unmasked at speed",
        &[shown(MsixTable, 5000)],
    ),
    attack(
        "reserved",
        "entries at exceptions' vectors, for every CPU, and completions that send them",
        &[shown(MsixTable, 2000)],
    ),
    attack(
        "widths",
        "the table by odd widths, at odd places, beyond its end",
        &[shown(MsixTable, 100)],
    ),
];

const DMA: &[Attack] = &[
    dma("edu", "DMA from and to memory that isn't its own", Edu, "a write of page "),
    dma("nvme", "a controller's answers to addresses all over 64 bits", Nvme, "a write of page "),
    dma(
        "queues",
        "a controller's queues in foreign memory, doorbells that aren't there",
        Nvme,
        "a read of page ",
    ),
    // On QEMU no report of them reaches the host.
    attack(
        "forged",
        "interrupt messages in the IOMMU's own format, with handles that aren't its own",
        &[],
    ),
];

const MEMORY: &[Attack] = &[
    attack("ledger", "stores to the host's counters", &[shown(NestedPageFault, 500)]),
    attack(
        "edges",
        "loads and stores across the ends of memory and of device registers",
        &[shown(NestedPageFault, 100)],
    ),
    attack("widths", "device registers by every width and instruction", &[shown(Ioapic, 100)]),
    attack("tables", "its own page tables with every reserved bit, in use", &[shown(PortIo, 500)]),
];

const CONTROL: &[Attack] = &[
    attack("cr0", "CR0 bit by bit", &[shown(Other, 100)]),
    attack("cr4", "CR4 bit by bit", &[shown(Other, 1)]),
    attack("cr3", "CR3, tens of thousands of times", &[]),
    attack("xcr0", "XCR0 with what no CPU takes", &[shown(Xsetbv, 300)]),
    attack("debug", "breakpoints and single steps through exits", &[shown(Cpuid, 200)]),
    attack(
        "virtualization",
        "the instructions of SVM, VMX, SMX and SGX",
        &[shown(RefusedInstruction, 500)],
    ),
    attack(
        "slow",
        "WBINVD, INVD, MONITOR, PAUSE in loops",
        &[shown(RefusedInstruction, 500), shown(Other, 1000)],
    ),
    attack("mwait", "MWAIT", &[shown(RefusedInstruction, 40)]),
    attack(
        "others",
        "whatever else has an opcode and might be the host's",
        &[shown(RefusedInstruction, 1)],
    ),
];

const EXITS: &[Attack] = &[
    attack("cpuid", "CPUID without end", &[shown(Cpuid, 10_000)]),
    attack("msr", "emulated registers", &[shown(MsrRead, 5000), shown(MsrWrite, 5000)]),
    attack("port", "a port that nobody has", &[shown(PortIo, 10_000)]),
    attack("config", "configuration space", &[shown(PciConfig, 9000)]),
    attack("nowhere", "loads and stores where nothing is", &[shown(NestedPageFault, 10_000)]),
    attack("ioapic", "the IOAPIC's registers, every value", &[shown(Ioapic, 10_000)]),
    attack("msix", "an MSI-X table", &[shown(MsixTable, 10_000)]),
    attack(
        "refused",
        "hypercalls and refused instructions",
        &[shown(Hypercall, 2500), shown(RefusedInstruction, 2500)],
    ),
    attack("table", "LIDT and stores to the table", &[eli(IdtLoad, 1)]),
    attack("command", "interrupt commands to itself", &[shown(Ipi, 5000)]),
    attack("hidden", "INT n of the host's own vectors", &[own(Exception, 1)]),
    attack("halt", "HLT with a timer behind it", &[shown(TimerProgram, 300)]),
];

const CONSOLE: &[Attack] = &[
    attack(
        "forged",
        "frames, records and log lines as the host writes them",
        &[shown(ConsoleIo, 1000)],
    ),
    attack("registers", "every register of the UART, every value", &[shown(ConsoleIo, 3000)]),
    attack("flood", "more than can be sent", &[shown(ConsoleIo, 60_000)]),
];
