//! Exit reasons (SDM vol. 3, appendix C) and their qualifications (28.2.1), in the terms that
//! vendors share.

use crate::{Area, Delivered, Kind, field};
use delivery::Raised;
use vendor::{Exit, PortAccess};

/// The numbers of the reasons that are told apart.
pub(crate) mod reason {
    pub const EXCEPTION: u32 = 0;
    pub const INTERRUPT: u32 = 1;
    pub const TRIPLE_FAULT: u32 = 2;
    pub const INTERRUPT_WINDOW: u32 = 7;
    pub const NMI_WINDOW: u32 = 8;
    pub const TASK_SWITCH: u32 = 9;
    pub const CPUID: u32 = 10;
    pub const GETSEC: u32 = 11;
    pub const HLT: u32 = 12;
    pub const INVD: u32 = 13;
    pub const RDPMC: u32 = 15;
    pub const VMCALL: u32 = 18;
    pub const VMCLEAR: u32 = 19;
    pub const VMXON: u32 = 27;
    pub const CR_ACCESS: u32 = 28;
    pub const IO: u32 = 30;
    pub const RDMSR: u32 = 31;
    pub const WRMSR: u32 = 32;
    pub const INVALID_STATE: u32 = 33;
    pub const MWAIT: u32 = 36;
    pub const MONITOR: u32 = 39;
    pub const MACHINE_CHECK_AT_ENTRY: u32 = 41;
    pub const TPR_BELOW_THRESHOLD: u32 = 43;
    pub const VIRTUALIZED_EOI: u32 = 45;
    pub const GDTR_IDTR: u32 = 46;
    pub const LDTR_TR: u32 = 47;
    pub const EPT_VIOLATION: u32 = 48;
    pub const INVEPT: u32 = 50;
    pub const PREEMPTION_TIMER: u32 = 52;
    pub const INVVPID: u32 = 53;
    pub const WBINVD: u32 = 54;
    pub const XSETBV: u32 = 55;
    pub const APIC_WRITE: u32 = 56;
    pub const VMFUNC: u32 = 59;
    pub const ENCLS: u32 = 60;
    pub const SEAMCALL: u32 = 76;
    pub const TDCALL: u32 = 77;
}

const INVALID_TSS: u8 = 10;
const NOT_PRESENT: u8 = 11;
const STACK: u8 = 12;
const GENERAL_PROTECTION: u8 = 13;
const PAGE_FAULT: u8 = 14;
const MACHINE_CHECK: u8 = 18;

/// Of the instruction information of SGDT, SIDT, LGDT and LIDT, bits 29:28.
const LIDT: u64 = 3;

/// Bits 15:0 of the reason are its number; bit 31 says that the entry failed.
fn basic(area: &impl Area) -> u32 {
    area.read(field::EXIT_REASON) as u32 & 0xFFFF
}

/// Was it left for a write to an MSR?
pub fn is_msr_write(area: &impl Area) -> bool {
    basic(area) == reason::WRMSR
}

/// Was it left for HLT?
pub fn is_halt(area: &impl Area) -> bool {
    basic(area) == reason::HLT
}

/// The interrupt that the exit took from the local APIC, where it was to.
pub(crate) fn acknowledged(area: &impl Area) -> Option<u8> {
    let exited = Delivered::exited(area).filter(|event| event.kind == Kind::Interrupt);
    exited.map(|event| event.vector)
}

/// After a MOV to CR4: the general register that it is from.
pub fn cr4_source(area: &impl Area) -> Option<u8> {
    let qualification = area.read(field::QUALIFICATION);
    let is_load = basic(area) == reason::CR_ACCESS && qualification & 0x3F == 4;
    is_load.then_some((qualification >> 8 & 0xF) as u8)
}

/// Why the guest was left. An interrupt window, or a task priority below the threshold, are one to
/// who made an offer: [`Exit::Window`].
pub fn decode(area: &impl Area) -> Exit {
    let qualification = area.read(field::QUALIFICATION);
    match basic(area) {
        reason::EXCEPTION => exception(area, qualification),
        reason::INTERRUPT => Exit::Interrupt,
        reason::TRIPLE_FAULT => Exit::Shutdown,
        reason::INTERRUPT_WINDOW | reason::TPR_BELOW_THRESHOLD => Exit::Window,
        reason::NMI_WINDOW => Exit::NmiDone,
        reason::TASK_SWITCH => Exit::TaskSwitch,
        reason::CPUID => Exit::Cpuid,
        reason::HLT => Exit::Halt,
        reason::INVD | reason::WBINVD => Exit::FlushCaches,
        reason::RDPMC => Exit::Forbidden,
        reason::VMCALL => Exit::Hypercall,
        reason::VMCLEAR..=reason::VMXON
        | reason::GETSEC
        | reason::MWAIT
        | reason::MONITOR
        | reason::INVEPT
        | reason::INVVPID
        | reason::VMFUNC
        | reason::ENCLS
        | reason::SEAMCALL
        | reason::TDCALL => Exit::Undefined,
        reason::CR_ACCESS => control(area, qualification),
        reason::IO => Exit::Io {
            access: PortAccess {
                port: (qualification >> 16) as u16,
                size: (qualification & 7) as u8 + 1,
                input: qualification & 1 << 3 != 0,
            },
            string: qualification & 0b11 << 4 != 0,
            next: next(area),
        },
        reason::RDMSR => Exit::MsrRead,
        reason::WRMSR => Exit::MsrWrite,
        reason::INVALID_STATE => Exit::InvalidState,
        reason::MACHINE_CHECK_AT_ENTRY => Exit::MachineCheck,
        reason::GDTR_IDTR => match area.read(field::INSTRUCTION_INFORMATION) >> 28 & 3 {
            LIDT => Exit::IdtLoad,
            _ => Exit::LeaveEli,
        },
        reason::LDTR_TR => Exit::LeaveEli,
        reason::EPT_VIOLATION => Exit::NestedFault {
            address: area.read(field::GUEST_PHYSICAL_ADDRESS),
            fetch: qualification & 1 << 2 != 0,
            // There was a linear address, and the access wasn't to what it means.
            table: qualification & 0b11 << 7 == 1 << 7,
            event: Delivered::interrupted(area).map(Into::into),
        },
        reason::PREEMPTION_TIMER => Exit::TimeUp,
        reason::XSETBV => Exit::Xsetbv,
        reason::VIRTUALIZED_EOI => Exit::Completed(qualification as u8),
        // Of the registers that are open no other ends so (SDM vol. 3, 30.5).
        reason::APIC_WRITE => Exit::SentItself,
        number => unknown(area, number),
    }
}

/// The address behind the instruction that exited, before it is made as wide as code is.
fn next(area: &impl Area) -> u64 {
    area.read(field::GUEST_RIP).wrapping_add(area.read(field::INSTRUCTION_LENGTH))
}

fn unknown(area: &impl Area, number: u32) -> Exit {
    let more = area.read(field::EXIT_INTERRUPTION);
    Exit::Unknown(number.into(), area.read(field::QUALIFICATION), more)
}

fn exception(area: &impl Area, qualification: u64) -> Exit {
    let Some(Delivered { kind, vector, error_code, .. }) = Delivered::exited(area) else {
        return unknown(area, reason::EXCEPTION);
    };
    match (kind, vector) {
        (Kind::Nmi, _) => Exit::Nmi,
        (_, INVALID_TSS | NOT_PRESENT | STACK | GENERAL_PROTECTION | PAGE_FAULT) => {
            let error_code = error_code.unwrap_or(0);
            // CR2 is as it was.
            let address = if vector == PAGE_FAULT { qualification } else { 0 };
            let event = Delivered::interrupted(area).map(Into::into);
            Exit::Fault { raised: Raised { vector, error_code, address }, event }
        }
        (_, MACHINE_CHECK) => Exit::MachineCheck,
        _ => Exit::Exception { vector, error_code },
    }
}

/// An access to a control register: those that exit by the masks.
fn control(area: &impl Area, qualification: u64) -> Exit {
    let (register, kind) = (qualification & 0xF, qualification >> 4 & 3);
    match (register, kind) {
        // MOV, CLTS and LMSW.
        (0, 0 | 2 | 3) => Exit::ControlLoad,
        // What the guest isn't offered is masked, and MCE: the vCPU looks which it is.
        (4, 0) => Exit::Forbidden,
        _ => unknown(area, reason::CR_ACCESS),
    }
}

#[cfg(test)]
#[path = "exits_tests.rs"]
mod tests;
