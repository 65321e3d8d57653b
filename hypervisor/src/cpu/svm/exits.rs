//! Exit codes (APM vol. 2, appendix C) in the terms that vendors share.

use super::events::{ALIGNMENT_CHECK, DELIVERY_FAULTS, MACHINE_CHECK, NOT_PRESENT};
use super::vmcb::{Vmcb, exit};
use crate::cpu::vendor::Exit;
use delivery::{Interruption, Raised};

/// Why the guest was left, by its VMCB.
#[inline]
pub fn decode(v: &Vmcb) -> Exit {
    let (info1, info2) = (v.exit_info1, v.exit_info2);
    let interruption = Interruption(v.exit_int_info);
    match v.exit_code as u32 {
        exit::INTR => Exit::Interrupt,
        exit::NMI => Exit::Nmi,
        code @ exit::EXCEPTION_BASE..=exit::EXCEPTION_LAST => {
            let vector = (code - exit::EXCEPTION_BASE) as u8;
            if 1 << vector & (1 << NOT_PRESENT | DELIVERY_FAULTS) != 0 {
                let raised = Raised { vector, error_code: info1 as u32, address: info2 };
                return Exit::Fault { raised, interruption };
            }
            if vector == MACHINE_CHECK {
                return Exit::MachineCheck;
            }
            let error_code = (vector == ALIGNMENT_CHECK).then_some(info1 as u32);
            Exit::Exception { vector, error_code }
        }
        exit::IOIO => Exit::Io {
            port: (info1 >> 16) as u16,
            size: (info1 >> 4 & 7) as u8,
            input: info1 & 1 != 0,
            string: info1 & 0b1100 != 0,
            next: info2,
        },
        exit::MSR if info1 & 1 != 0 => Exit::MsrWrite,
        exit::MSR => Exit::MsrRead,
        exit::IRET => Exit::NmiDone,
        exit::CPUID => Exit::Cpuid,
        exit::XSETBV => Exit::Xsetbv,
        exit::VMMCALL => Exit::Hypercall,
        exit::INVD | exit::WBINVD => Exit::FlushCaches,
        exit::TASK_SWITCH => Exit::TaskSwitch,
        exit::IDTR_WRITE => Exit::IdtLoad,
        exit::IDTR_READ => Exit::DirectEnds,
        exit::CR0_SELECTIVE | exit::DR4_WRITE..=exit::DR7_WRITE => Exit::ControlLoad,
        exit::HLT => Exit::Halt,
        exit::CR8_WRITE => Exit::TaskPriority,
        exit::RDPMC => Exit::Forbidden,
        exit::INVLPGA | exit::RDPRU => Exit::Undefined,
        exit::VMRUN..=exit::SKINIT | exit::MONITOR..=exit::MWAIT_ARMED => Exit::Undefined,
        exit::NPF => Exit::NestedFault {
            address: info2,
            fetch: info1 & 16 != 0,
            table: info1 >> 33 & 1 != 0,
            interruption,
        },
        exit::SHUTDOWN => Exit::Shutdown,
        // An event that was to be injected and wasn't: it couldn't be entered.
        exit::INVALID => Exit::InvalidState { entered: !interruption.valid() },
        code => Exit::Unknown(code as u64, info1, info2),
    }
}
