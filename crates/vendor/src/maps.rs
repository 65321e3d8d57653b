//! Which MSRs and I/O ports a guest reaches without an exit.
//!
//! Everything exits unless it is opened here, and each opening is argued: what the guest can do
//! with the register reaches no further than its own state. How a map of them looks in memory is
//! each vendor's.

use delivery::Mode;
use virtual_pc::msr::PASSED_THROUGH;

/// What the CPU records for a debugger.
const DEBUG_CONTROL: u32 = 0x1D9;
/// x2APIC task priority: in ELI mode the physical one is the guest's.
const TASK_PRIORITY: u32 = 0x808;
/// x2APIC processor priority.
const PROCESSOR_PRIORITY: u32 = 0x80A;
/// x2APIC end of interrupt: exitless completion (paper 4.4).
const EOI: u32 = 0x80B;
/// x2APIC in service, trigger mode and requested: on a dedicated core all of it is the guest's.
const INTERRUPT_STATE: core::ops::RangeInclusive<u32> = 0x810..=0x827;
/// x2APIC timer: initial count and divider. Not its LVT entry: it has no delivery mode by the
/// manuals, but QEMU obeys one that is written there, SMI among them.
const TIMER: [u32; 2] = [0x838, 0x83E];
/// x2APIC current count. On a core of its own the core's timer runs with the guest's values in
/// every mode, so that an exit would read the same register.
const TIMER_CURRENT: u32 = 0x839;
/// x2APIC self-IPI: reaches no further than the core.
const SELF_IPI: u32 = 0x83F;
/// The PM timer has so many ports (ACPI 4.8.3.3).
const PM_TIMER_PORTS: u16 = 4;

/// The accesses to one MSR that need no exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Open {
    /// The register.
    pub msr: u32,
    /// RDMSR.
    pub read: bool,
    /// WRMSR.
    pub write: bool,
}

/// The MSR permission maps of a vCPU, one for each situation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Injection mode.
    Injection,
    /// ELI mode, the timer virtual.
    Eli,
    /// Passthrough mode.
    Passthrough,
    /// Passthrough mode, with the core's timer periodic: count and divider exit. A period of some
    /// ticks would leave neither its core nor, on an emulated machine, any other time for more than
    /// the timer.
    Periodic,
    /// The guest's local APIC isn't in x2APIC mode: it has no such registers, whatever the mode.
    Hidden,
    /// ELI mode, and the core's timer is the guest's, one-shot. Its initial count isn't open to be
    /// read: on a shared core the host may have started it from another one.
    EliTimer,
    /// Posted mode: these registers are the CPU's virtual ones, and so would be each that is open.
    Posted,
}

impl Map {
    /// Those that each vendor has, in the order of their numbers.
    pub const ALL: [Map; 6] =
        [Map::Injection, Map::Eli, Map::Passthrough, Map::Periodic, Map::Hidden, Map::EliTimer];

    /// Those of VMX, in the order of their numbers.
    pub const OF_VMX: [Map; 7] = {
        let [injection, eli, passthrough, periodic, hidden, timer] = Map::ALL;
        [injection, eli, passthrough, periodic, hidden, timer, Map::Posted]
    };

    /// The map for a mode; `timer_open`: in passthrough mode the guest sets its timer without an
    /// exit; `timer_lent`: it does so in ELI mode; `x2apic`: its local APIC is in x2APIC mode.
    pub const fn of(mode: Mode, timer_open: bool, timer_lent: bool, x2apic: bool) -> Map {
        match mode {
            _ if !x2apic => Map::Hidden,
            Mode::Injection => Map::Injection,
            Mode::Eli if timer_lent => Map::EliTimer,
            Mode::Eli => Map::Eli,
            Mode::Passthrough if timer_open => Map::Passthrough,
            Mode::Passthrough => Map::Periodic,
            Mode::Posted => Map::Posted,
        }
    }

    /// What is open in it, each register once. `completions_exit`: EOI exits in ELI mode, too;
    /// `shared`: the count of the core's timer isn't the guest's, unless it is lent.
    pub fn open(self, completions_exit: bool, shared: bool) -> impl Iterator<Item = Open> {
        let core = matches!(self, Map::Passthrough | Map::Periodic);
        let posted = self == Map::Posted;
        let owns = core || posted;
        let lent = self == Map::EliTimer;
        let takes = owns || lent || self == Map::Eli;
        let both = |msr| Open { msr, read: true, write: true };
        let read = |msr| Open { msr, read: true, write: false };
        let write = |msr| Open { msr, read: false, write: true };
        // Guest state that is switched with the guest, PAT, which is the guest's own copy with
        // nested paging (APM vol. 2, 15.25.8; VMX's entry and exit), and controls of speculation
        // that end with the core.
        let state = PASSED_THROUGH.into_iter().map(both);
        let count = lent || !shared && self != Map::Hidden && !posted;
        let count = count.then_some(read(TIMER_CURRENT));
        let eoi = (owns || takes && !completions_exit).then_some(write(EOI));
        let priority = takes.then_some(both(TASK_PRIORITY));
        // Reads as 0: the host never writes it, nor does a guest. KVM reads it at each entry.
        let debug = Some(read(DEBUG_CONTROL));
        let interrupts =
            INTERRUPT_STATE.chain([PROCESSOR_PRIORITY]).map(read).filter(move |_| owns);
        let timer = move |msr| if self == Map::Passthrough { both(msr) } else { read(msr) };
        let timer = TIMER.into_iter().map(timer).filter(move |_| core);
        let started = lent.then_some(write(TIMER[0]));
        let own = owns.then_some(write(SELF_IPI));
        let single = [count, eoi, priority, debug, started, own].into_iter().flatten();
        state.chain(interrupts).chain(timer).chain(single)
    }
}

/// The ports that are open, the PM timer's: it is only ever read on a real machine, and tells
/// nothing but the time.
pub fn open_ports(pm_timer: Option<u16>) -> impl Iterator<Item = u16> {
    let ports = |first: u16| first..first.saturating_add(PM_TIMER_PORTS);
    pm_timer.map(ports).into_iter().flatten()
}
