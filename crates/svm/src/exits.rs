//! Exit codes (APM vol. 2, appendix C) in the terms that vendors share.

use crate::events;
use crate::vmcb::{Vmcb, exit};
use crate::{Features, emulator};
use delivery::{Event, Raised};
use vendor::{Exit, PortAccess, Quirk};

const INVALID_TSS: u32 = 10;
const NOT_PRESENT: u32 = 11;
const STACK: u32 = 12;
const GENERAL_PROTECTION: u32 = 13;
const PAGE_FAULT: u32 = 14;
const ALIGNMENT_CHECK: u32 = 17;
const MACHINE_CHECK: u32 = 18;

/// Was it left for a write to an MSR?
#[inline]
pub fn is_msr_write(v: &Vmcb) -> bool {
    v.exit_code as u32 == exit::MSR && v.exit_info1 & 1 != 0
}

/// Was it left for HLT?
#[inline]
pub fn is_halt(v: &Vmcb) -> bool {
    v.exit_code as u32 == exit::HLT
}

/// The ports that an exit for IN or OUT is about, by its first word of information.
fn access(info: u64) -> PortAccess {
    let (port, size) = ((info >> 16) as u16, (info >> 4 & 7) as u8);
    PortAccess { port, size, input: info & 1 != 0 }
}

/// Is it INS, OUTS, or repeated?
fn is_string(info: u64) -> bool {
    info & 0b1100 != 0
}

/// After an exit for IN or OUT: the access; none: it is a string's.
pub fn port_access(v: &Vmcb) -> Option<PortAccess> {
    (!is_string(v.exit_info1)).then(|| access(v.exit_info1))
}

/// The exit for an instruction that a guest's guest may execute as if the guest had. The others
/// are those that the guest isn't offered either, or that need what is its own: CLGI and STGI.
pub fn instruction(v: &Vmcb) -> Option<Exit> {
    let (info1, info2) = (v.exit_info1, v.exit_info2);
    Some(match v.exit_code as u32 {
        exit::IOIO => Exit::Io { access: access(info1), string: is_string(info1), next: info2 },
        exit::MSR if info1 & 1 != 0 => Exit::MsrWrite,
        exit::MSR => Exit::MsrRead,
        exit::CPUID => Exit::Cpuid,
        exit::XSETBV => Exit::Xsetbv,
        exit::INVD | exit::WBINVD => Exit::FlushCaches,
        exit::CR0_SELECTIVE => Exit::ControlLoad,
        exit::VMLOAD | exit::VMSAVE | exit::INVLPGA => Exit::Undefined,
        _ => return None,
    })
}

/// Why the guest was left. `in_service`: is this vector in service in the local APIC that the guest
/// owns? Asked on emulated CPUs alone.
#[inline]
pub fn decode(v: &mut Vmcb, features: &Features, in_service: impl Fn(u8) -> bool) -> Exit {
    let (info1, info2) = (v.exit_info1, v.exit_info2);
    match v.exit_code as u32 {
        exit::INTR => Exit::Interrupt,
        exit::NMI => Exit::Nmi,
        code @ exit::EXCEPTION_BASE..=exit::EXCEPTION_LAST => {
            let vector = (code - exit::EXCEPTION_BASE) as u8;
            match u32::from(vector) {
                INVALID_TSS | NOT_PRESENT | STACK | GENERAL_PROTECTION | PAGE_FAULT => {
                    let raised = Raised { vector, error_code: info1 as u32, address: info2 };
                    Exit::Fault { raised, event: event(v, features, in_service) }
                }
                MACHINE_CHECK => Exit::MachineCheck,
                n => {
                    let error_code = (n == ALIGNMENT_CHECK).then_some(info1 as u32);
                    Exit::Exception { vector, error_code }
                }
            }
        }
        exit::IOIO => Exit::Io { access: access(info1), string: is_string(info1), next: info2 },
        exit::MSR if info1 & 1 != 0 => Exit::MsrWrite,
        exit::MSR => Exit::MsrRead,
        exit::IRET => Exit::NmiDone,
        exit::CPUID => Exit::Cpuid,
        exit::XSETBV => Exit::Xsetbv,
        exit::VMMCALL => Exit::Hypercall,
        exit::INVD | exit::WBINVD => Exit::FlushCaches,
        exit::TASK_SWITCH => Exit::TaskSwitch,
        exit::IDTR_WRITE => Exit::IdtLoad,
        exit::IDTR_READ => Exit::LeaveEli,
        exit::CR0_SELECTIVE => Exit::ControlLoad,
        exit::HLT => Exit::Halt,
        exit::CR8_WRITE => Exit::Emulator(Quirk::TaskPriority),
        exit::DR4_WRITE..=exit::DR7_WRITE => Exit::Emulator(Quirk::DebugControl),
        exit::FERR_FREEZE => Exit::Frozen,
        exit::RDPMC => Exit::Forbidden,
        // The one of them that is frequent has no range to be looked for in.
        exit::VMRUN | exit::INVLPGA | exit::RDPRU => Exit::Undefined,
        exit::VMRUN..=exit::SKINIT | exit::MONITOR..=exit::MWAIT_ARMED => Exit::Undefined,
        exit::NPF => Exit::NestedFault {
            address: info2,
            fetch: info1 & 16 != 0,
            table: info1 >> 33 & 1 != 0,
            event: event(v, features, in_service),
        },
        exit::SHUTDOWN => Exit::Shutdown,
        exit::INVALID if features.emulated && emulator::mend(v) => Exit::Nothing,
        // An event that was to be injected and wasn't: it couldn't be entered.
        exit::INVALID if features.emulated && events::interrupted(v.exit_int_info).is_none() => {
            Exit::Emulator(Quirk::ControlRefused)
        }
        exit::INVALID => Exit::InvalidState,
        code => Exit::Unknown(u64::from(code), info1, info2),
    }
}

/// The event that was being delivered. `in_service`: as in [`decode`].
pub fn event(v: &Vmcb, features: &Features, in_service: impl Fn(u8) -> bool) -> Option<Event> {
    let reported = events::interrupted(v.exit_int_info)?;
    Some(if features.emulated { emulator::true_event(reported, in_service) } else { reported })
}

/// The same of a guest's guest, whose offer isn't any more if it was that
/// ([`emulator::withdraw_taken`]).
pub fn inner_event(
    v: &mut Vmcb,
    features: &Features,
    in_service: impl Fn(u8) -> bool,
) -> Option<Event> {
    let reported = events::interrupted(v.exit_int_info)?;
    if !features.emulated {
        return Some(reported);
    }
    emulator::withdraw_taken(v, reported);
    Some(emulator::true_event(reported, in_service))
}

#[cfg(test)]
mod tests;
