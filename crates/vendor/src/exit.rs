//! Why a guest was left, in terms that all vendors share.

use delivery::{Event, Raised};

/// An access to I/O ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAccess {
    /// First port.
    pub port: u16,
    /// Bytes: 1, 2 or 4.
    pub size: u8,
    /// IN rather than OUT.
    pub input: bool,
}

impl PortAccess {
    /// The accumulator behind an IN of `value`: one of four bytes clears the upper half.
    pub const fn loaded(self, accumulator: u64, value: u32) -> u64 {
        match self.size {
            1 => accumulator & !0xFF | value as u64 & 0xFF,
            2 => accumulator & !0xFFFF | value as u64 & 0xFFFF,
            _ => value as u64,
        }
    }
}

/// Why an emulated CPU needs help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quirk {
    /// MOV to CR8, not yet executed: the CPU can't do it while an interrupt is on offer or held
    /// back.
    TaskPriority,
    /// MOV to DR4 to DR7, not yet executed: the CPU would take values that it can't be entered
    /// with.
    DebugControl,
    /// The CPU wouldn't go on behind what may be a MOV to CR3 or CR4 with reserved bits, for which
    /// it should have raised #GP.
    ControlRefused,
}

/// Why the guest was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A physical interrupt is pending (injection mode).
    Interrupt,
    /// The guest's NMI handler returns, or just has, if
    /// [`VirtualCpu::nmi_possible`](crate::VirtualCpu::nmi_possible) waits for that.
    NmiDone,
    /// An NMI came: another core wants this one's attention, or the machine has to tell something.
    /// The host's handler has had it already.
    Nmi,
    /// The time of [`VirtualCpu::leave_at`](crate::VirtualCpu::leave_at) has come.
    TimeUp,
    /// A fault that the delivery of an event may have caused.
    Fault {
        /// The fault.
        raised: Raised,
        /// The event that was being delivered, if any.
        event: Option<Event>,
    },
    /// Another intercepted exception, to be given back to the guest.
    Exception {
        /// Its vector.
        vector: u8,
        /// Its error code, where the exception has one.
        error_code: Option<u32>,
    },
    /// IN or OUT.
    Io {
        /// The access.
        access: PortAccess,
        /// INS or OUTS, or IN or OUT with a repeat prefix.
        string: bool,
        /// Address of the next instruction.
        next: u64,
    },
    /// RDMSR.
    MsrRead,
    /// WRMSR.
    MsrWrite,
    /// CPUID.
    Cpuid,
    /// XSETBV.
    Xsetbv,
    /// VMMCALL or VMCALL.
    Hypercall,
    /// INVD or WBINVD: neither must reach caches that others share.
    FlushCaches,
    /// LIDT, not yet executed.
    IdtLoad,
    /// An instruction that mustn't be executed in ELI mode, not yet executed.
    LeaveEli,
    /// HLT, not yet executed.
    Halt,
    /// MOV to CR0, or LMSW, not yet executed.
    ControlLoad,
    /// An emulated CPU needs help; a real one is never left for it.
    Emulator(Quirk),
    /// The CPU waits for an interrupt, since the guest has an unmasked x87 fault and CR0.NE clear.
    Frozen,
    /// The guest lets the interrupt in that is on offer
    /// ([`VirtualCpu::offer_interrupt`](crate::VirtualCpu::offer_interrupt)). Only of a CPU that
    /// has to be entered anew for that.
    Window,
    /// In posted mode: the guest completed this interrupt, whose completion was to be told.
    Completed(u8),
    /// In posted mode: the guest sent itself an interrupt with a vector that none can have, by the
    /// register for that. The instruction is done.
    SentItself,
    /// HLT, which is done: the guest sleeps from the next entry on, unless something wakes it.
    Slept,
    /// There is nothing to do.
    Nothing,
    /// An instruction the guest isn't offered: #UD. Or one of the extension's own, which some are:
    /// [`VirtualCpu::attempt`](crate::VirtualCpu::attempt) knows.
    Undefined,
    /// An instruction the guest isn't allowed: #GP.
    Forbidden,
    /// Guest-physical memory that isn't there, or not for this access.
    NestedFault {
        /// Guest-physical address.
        address: u64,
        /// An instruction fetch.
        fetch: bool,
        /// On the guest's own page tables.
        table: bool,
        /// The event that was being delivered, if any.
        event: Option<Event>,
    },
    /// #MC: the machine's, whoever runs.
    MachineCheck,
    /// A hardware task switch.
    TaskSwitch,
    /// Triple fault.
    Shutdown,
    /// The state isn't one a CPU can be entered in.
    InvalidState,
    /// Anything else: the vendor's exit code and its two words of information.
    Unknown(u64, u64, u64),
}

#[cfg(test)]
mod tests {
    use super::PortAccess;

    #[test]
    fn an_in_leaves_what_it_does_not_load() {
        let loaded = |size| {
            PortAccess { port: 0, size, input: true }.loaded(0x1111_2222_3333_4444, 0x5566_7788)
        };
        assert_eq!(loaded(1), 0x1111_2222_3333_4488);
        assert_eq!(loaded(2), 0x1111_2222_3333_7788);
        assert_eq!(loaded(4), 0x5566_7788, "as every write of 32 bits");
    }
}
