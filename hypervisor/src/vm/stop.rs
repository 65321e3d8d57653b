//! Why a VM stops, and what it did wrong without stopping.
//!
//! What is here only says so; the sentences are made by `report`.

use crate::cpu::vendor::audit as controls;
use ::iommu::Bdf;
use ::iommu::audit as unit;
use ::pci::Resized;
use paging::audit as table;
use thiserror::Error;

/// How a VM stopped; the sentence of a fault is made by whoever reports it.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    PowerOff,
    Reset,
    DebugExit(u32),
    Fault(Fault),
    /// The host found what confines it wrong.
    Audit(Finding),
}

impl Stop {
    /// A machine is reset by it: a guest that has no other way to reset its machine shuts its CPU
    /// down on purpose.
    pub fn resets(self) -> bool {
        matches!(self, Self::Reset | Self::Fault(Fault::Shutdown))
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Stop::Fault(fault)
    }
}

/// The guest's own deed that ends it.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Triple fault.
    Shutdown,
    InvalidState,
    /// The machine reported an error of its own.
    MachineCheck,
    /// A hardware task switch, which isn't emulated.
    TaskSwitch,
    /// A call of a firmware's service.
    Service,
    /// Code of guest-physical memory that isn't there.
    Fetch(u64),
    /// An access to device registers by an instruction that isn't emulated.
    Instruction {
        address: u64,
        why: decode::Error,
    },
    /// The instruction behind an exit couldn't be read.
    Unreadable {
        address: u64,
    },
    /// An event was being delivered through memory that isn't there.
    Delivery {
        address: u64,
        vector: u8,
    },
    /// The host's page tables refuse what must be done.
    Tables(paging::Error),
    Unknown(u64, u64, u64),
}

impl Fault {
    /// Is it for an instruction that isn't emulated, rather than one that can't be the one that
    /// exited?
    pub fn is_unknown_instruction(&self) -> bool {
        use decode::Error::{StringComparison, Unsupported};
        matches!(self, Fault::Instruction { why: Unsupported(_) | StringComparison(_), .. })
    }
}

/// What the audit finds that must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Finding {
    #[error("in the nested page tables of VM {vm:?}, {what}")]
    Nested { vm: &'static str, what: table::Finding },
    #[error("in the page tables of the guests of VM {vm:?}'s vCPU {vcpu}, {what}")]
    Inner { vm: &'static str, vcpu: usize, what: table::Finding },
    #[error("in the DMA page tables of VM {vm:?}, {what}")]
    Dma { vm: &'static str, what: table::Finding },
    #[error("in the page tables of {device}, which a sidecore drives, {what}")]
    Driven { device: Bdf, what: table::Finding },
    #[error("of IOMMU {unit}, {what}")]
    Unit { unit: usize, what: unit::Finding },
    #[error("of a device of VM {vm:?}, {what}")]
    Device { vm: &'static str, what: DeviceFinding },
    #[error("of VM {vm:?}, vCPU {vcpu}, {what}")]
    Controls { vm: &'static str, vcpu: usize, what: controls::Finding },
    #[error(
        "on the core of VM {vm:?}, vCPU {vcpu}, the local interrupt source at MSR {register:#x} reads {value:#x}, which the host didn't write"
    )]
    Source { vm: &'static str, vcpu: usize, register: u32, value: u32 },
}

/// What the audit finds in the configuration space of an assigned device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeviceFinding {
    #[error(
        "the BAR register at {at:#x} of {device} holds {found:#x}, and {kept:#x} was written there"
    )]
    Bar { device: Bdf, at: u16, found: u32, kept: u32 },
    #[error(
        "by the register at {:#x} a BAR of {device} has 2^{} MiB, and it had 2^{} when it was measured",
        what.at, what.found, what.kept
    )]
    Size { device: Bdf, what: Resized },
    #[error(
        "the command register of {device} is {found:#x}: more than its guest switched on, or INTx"
    )]
    Command { device: Bdf, found: u16 },
}

/// Something a guest did that was refused while it goes on.
#[derive(Clone, Copy, Debug)]
pub enum Incident {
    /// An interrupt message that isn't one, or not for this VM.
    Message(Bdf),
    /// The remapping table refused a route, or no message leads there.
    Route(Bdf),
    /// A BAR was put where it can't be.
    Bar(Bdf),
    /// An access to guest-physical memory that isn't there.
    Memory(u64),
}
