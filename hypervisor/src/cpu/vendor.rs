//! What the rest of the hypervisor asks of a CPU vendor's virtualisation extension.
//!
//! Small on purpose: one virtual CPU that can be entered, exits in terms both vendors
//! share, and the few controls that the delivery policies need. Generic code is written
//! against [`VirtualCpu`] and compiled once per vendor, so the exit path has no dynamic
//! dispatch. An implementation guarantees that after [`VirtualCpu::enter`] returns the
//! host's segment, task and system-call registers are the host's again and that
//! interrupts and NMIs are held until the next entry or [`VirtualCpu::take_interrupts`].

use delivery::{Interruption, Mode, Raised};
use paging::walk::Paging;

/// Why the guest was left, in terms both vendors share.
#[derive(Clone, Copy, Debug)]
pub enum Exit {
    /// A physical interrupt is pending (injection mode).
    Interrupt,
    /// The guest's NMI handler returns, or just has, if [`VirtualCpu::nmi_possible`] waits for that.
    NmiDone,
    /// An NMI is pending: another core wants this one's attention.
    Nmi,
    /// A fault that the delivery of an event may have caused: #NP always; while an interrupt is on
    /// offer #TS, #SS, #GP and #PF too; #GP where the limit of its IDT keeps vectors from the guest.
    Fault {
        /// The fault.
        raised: Raised,
        /// The event being delivered, if any.
        interruption: Interruption,
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
        /// First port.
        port: u16,
        /// Bytes: 1, 2 or 4.
        size: u8,
        /// IN rather than OUT.
        input: bool,
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
    /// An instruction that mustn't be executed in direct mode, not yet executed.
    DirectEnds,
    /// HLT, not yet executed.
    Halt,
    /// MOV to CR8, not yet executed.
    TaskPriority,
    /// MOV to CR0 or to DR4 to DR7, or LMSW, not yet executed.
    ControlLoad,
    /// An instruction the guest isn't offered: #UD.
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
        /// The event being delivered, if any.
        interruption: Interruption,
    },
    /// #MC: the machine's, whoever runs.
    MachineCheck,
    /// A hardware task switch.
    TaskSwitch,
    /// Triple fault.
    Shutdown,
    /// The state isn't one a CPU can be entered in.
    InvalidState {
        /// It may have been entered all the same, and the instruction that it is at would have made such
        /// a state.
        entered: bool,
    },
    /// Anything else: the vendor's exit code and its two words of information.
    Unknown(u64, u64, u64),
}

/// Where a vCPU starts, and in what state.
#[derive(Clone, Copy)]
pub enum Start {
    /// As a boot loader enters a kernel, in flat protected mode or in long mode.
    Kernel {
        /// First instruction.
        rip: u64,
        /// Long mode with these page tables, else flat 32-bit protected mode.
        page_tables: Option<u64>,
        /// Guest-physical address of the GDT the selectors below refer to, and its limit.
        gdt: (u64, u16),
        /// Selectors of code and data.
        selectors: (u16, u16),
        /// RAX, RBX, RSI.
        registers: (u64, u64, u64),
    },
    /// As a start-up interrupt has it: real mode at this 4 KiB page.
    StartUp {
        /// Its number.
        page: u8,
    },
}

/// One virtual CPU of a vendor's extension, used on the core that it was made on.
pub trait VirtualCpu: decode::Registers {
    /// The state of a CPU at its start; nothing pending, injection mode.
    fn reset(&mut self, start: Start);
    /// Makes this core ready to enter the guest; interrupts and NMIs are held from here on.
    fn prepare_core(&mut self);
    /// Ends that; the guest isn't entered again.
    fn release_core(&mut self);
    /// Enters the guest and comes back when it was left.
    fn enter(&mut self);
    /// Whether it was left for a write to an MSR: an answer at hand, for those in a hurry.
    fn wrote_msr(&self) -> bool;
    /// Why it was left; to be asked once for each time, unless for a write to an MSR.
    fn exit(&mut self) -> Exit;
    /// Lets the host take the interrupts and NMIs that are pending on this core.
    fn take_interrupts(&mut self);
    /// Lets the host take NMIs only; interrupts stay pending for the guest.
    fn take_nmi(&mut self);

    /// Physical interrupts and EOI as this mode has them; moves the task priority to
    /// where the mode keeps it.
    fn set_mode(&mut self, mode: Mode);
    /// Exits on LIDT, or not.
    fn watch_idt(&mut self, on: bool);
    /// Exits on MOV to CR8, or not.
    fn watch_task_priority(&mut self, on: bool);
    /// Exits on HLT, or not.
    fn watch_halt(&mut self, on: bool);
    /// Does the guest let interrupts in?
    fn interrupts_enabled(&self) -> bool;
    /// On a shared core: takes what the guest has on it, for another vCPU to have it.
    fn leave_core(&mut self);
    /// Brings that back.
    fn return_to_core(&mut self);
    /// Between [`VirtualCpu::prepare_core`] and [`VirtualCpu::release_core`]: sleeps in the host until
    /// an interrupt arrives.
    fn sleep();
    /// The virtual interrupt to be taken as soon as the guest can, or none. While one is on offer
    /// what its delivery can fail with exits ([`Exit::Fault`]).
    fn offer_interrupt(&mut self, vector: Option<u8>);
    /// Has the offered interrupt been taken (or is none on offer)?
    fn offer_taken(&self) -> bool;
    /// Raises an exception in the guest at the next entry.
    fn raise(&mut self, vector: u8, error_code: Option<u32>);
    /// Raises #PF at the next entry, with `address` in CR2.
    fn raise_page_fault(&mut self, address: u64, error_code: u32);
    /// Raises an NMI in the guest at the next entry. [`Exit::NmiDone`] follows when its handler is
    /// through.
    fn raise_nmi(&mut self);
    /// Could the guest take an NMI, or is it still handling one? Asked by who wants to raise one: if
    /// the answer is no, [`Exit::NmiDone`] follows when it is yes.
    fn nmi_possible(&mut self) -> bool;
    /// Is an event to be raised at the next entry already?
    fn raising(&self) -> bool;

    /// The guest's task priority.
    fn task_priority(&self) -> u8;
    /// Sets it.
    fn set_task_priority(&mut self, priority: u8);

    /// Delivers again the event whose delivery the exit interrupted, if nothing else raises it.
    fn redeliver(&mut self, event: Interruption);

    /// Continues at `rip`: the instruction that exited is done.
    fn resume_at(&mut self, rip: u64);
    /// Base and limit of the guest's IDT.
    fn idtr(&self) -> (u64, u16);
    /// What a walk of the guest's page tables needs.
    fn paging(&self) -> Paging;
    /// Is the guest in long mode?
    fn long_mode(&self) -> bool;
    /// The width code runs at.
    fn code_mode(&self) -> decode::Mode;
    /// CR4.
    fn cr4(&self) -> u64;
    /// Sets CR0, which may begin or end long mode; only what the caller found possible.
    fn set_cr0(&mut self, value: u64);
    /// Lets the guest write DR4 to DR7 until the next exit.
    fn let_debug_control(&mut self);
    /// Takes out of the debug controls what no CPU would have let in; was there anything?
    fn mend(&mut self) -> bool;
    /// Current privilege level.
    fn privilege(&self) -> u8;
    /// EFER as the guest sees it.
    fn efer(&self) -> u64;
    /// Sets it; only bits checked by the caller.
    fn set_efer(&mut self, value: u64);
    /// What RDTSC gives the guest now.
    fn tsc(&self) -> u64;
    /// Makes RDTSC give `value` now.
    fn set_tsc(&mut self, value: u64);
    /// Drops what the core may have cached of the guest's nested translations.
    fn flush_translations(&mut self);
}
