//! The hypervisor's contract with a CPU vendor's virtualisation extension.
//!
//! Small on purpose: one virtual CPU that can be entered, exits in terms that vendors share, and
//! the few controls that the delivery policies need. Generic code is written against [`VirtualCpu`]
//! and compiled once per vendor, so the exit path has no dynamic dispatch.
//!
//! # The last look
//! Whoever asks something of a vCPU stores the request first and sends an NMI to its core then. An
//! implementation of [`VirtualCpu::enter`] guarantees that the request is seen before the guest
//! next runs. It looks at the requests once more, behind the point from which on an NMI makes the
//! guest exit at once. An NMI that comes before this point was preceded by its request, so the look
//! finds it. An NMI that comes behind this point ends the entry. On SVM this point is CLGI, which
//! holds NMIs until VMRUN. On VMX it is the start of a region that the NMI's handler restarts.
//!
//! Everywhere else the host runs with NMIs and machine checks let in, and with interrupts held.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod audit;
mod exit;
pub mod maps;
mod nesting;
mod posted_to;
mod start;
pub mod xsave;

use core::sync::atomic::AtomicU32;
use delivery::{Event, Mode, VectorSet};
pub use exit::{Exit, PortAccess, Quirk};
pub use nesting::{ApicAnswer, Attempt, GuestPages, Inner, Notice};
use paging::Mapping;
use paging::walk::Paging;
pub use posted_to::PostedTo;
pub use start::{PAT_AT_RESET, Start};

/// #UD.
const UNDEFINED: u8 = 6;

/// The result of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The guest ran, and was left.
    Exited,
    /// Something is asked for: the guest didn't run.
    Aborted,
}

/// Something that is done with a virtual CPU in one go.
pub trait Visit {
    /// What comes of it.
    type Output;
    /// Does it.
    fn visit(self, cpu: &mut impl VirtualCpu) -> Self::Output;
}

/// One virtual CPU of a vendor's extension, used on the core that it was made on.
pub trait VirtualCpu: decode::Registers + Sized {
    /// Where another core looks to see that the guest is confined.
    type Outline: audit::Outline;
    /// That, while booting.
    fn outline(&self) -> Self::Outline;
    /// Does all of `visit` for one look at which vendor's this is.
    #[inline(always)]
    fn visited<V: Visit>(&mut self, visit: V) -> V::Output {
        visit.visit(self)
    }

    /// The state of a CPU at its start; nothing pending, injection mode.
    fn reset(&mut self, start: Start);
    /// Makes this core ready to enter the guest; interrupts are held from here on.
    fn prepare_core(&mut self);
    /// Ends that; the guest isn't entered again.
    fn release_core(&mut self);
    /// Enters the guest and comes back when it was left, unless `requests` isn't zero: then the
    /// guest isn't entered (see [the last look](crate#the-last-look)). The host's segment, task and
    /// system-call registers are the host's again afterwards.
    fn enter(&mut self, requests: &AtomicU32) -> Entry;
    /// Has the next entry end as soon as what is injected is delivered, before the guest's next
    /// instruction: the exit is [`Exit::Nmi`].
    fn leave_at_once(&mut self);
    /// On a shared core: has the guest left at this time of the TSC, whatever it does
    /// ([`Exit::TimeUp`]); `u64::MAX`: no more. False: the CPU can't, and the host's timers are to.
    fn leave_at(&mut self, at: u64) -> bool;
    /// Whether it was left for a write to an MSR: an answer at hand, for those in a hurry.
    fn wrote_msr(&self) -> bool;
    /// Whether it was left for HLT, likewise.
    fn halted(&self) -> bool;
    /// Why it was left; to be asked once for each time, unless for one of these two.
    fn exit(&mut self) -> Exit;
    /// It was left for one of these two, and why isn't asked: what was let for one entry is over.
    fn acknowledge_exit(&mut self);
    /// Lets the host take the interrupts that are pending on this core.
    fn take_interrupts(&mut self);

    /// Physical interrupts and EOI as this mode has them; moves the task priority to
    /// where the mode keeps it. Out of posted mode, what the CPU kept is forgotten.
    fn set_mode(&mut self, mode: Mode);
    /// What is pending and in service in the local APIC that the CPU keeps in posted mode; none in
    /// other modes.
    fn kept_interrupts(&self) -> Option<[VectorSet; 2]>;
    /// In posted mode: these are pending and in service there, too, and the completion of those in
    /// `watched` is told, once ([`Exit::Completed`]).
    fn keep_interrupts(&mut self, pending: &VectorSet, in_service: &VectorSet, watched: &VectorSet);
    /// Exits on LIDT, or not.
    fn watch_idt(&mut self, on: bool);
    /// Whether the guest may set its core's timer without an exit (passthrough mode): count and
    /// divider.
    fn open_timer(&mut self, open: bool);
    /// Whether the core's timer is the guest's in ELI mode, and one-shot: the guest sets its
    /// initial count, and reads the current one, without an exit.
    fn lend_timer(&mut self, lent: bool);
    /// May a timer of a local APIC that has counted down lose its interrupt if it is set, or
    /// masked, before that is pending?
    fn timer_forgets(&self) -> bool;
    /// Whether the guest's local APIC is in x2APIC mode: else none of its registers is open.
    fn show_x2apic(&mut self, on: bool);
    /// Exits on HLT, or not.
    fn watch_halt(&mut self, on: bool);
    /// Does the guest let interrupts in?
    fn interrupts_enabled(&self) -> bool;
    /// On a shared core: takes what the guest has on it, for another vCPU to have it.
    fn leave_core(&mut self);
    /// Brings that back.
    fn return_to_core(&mut self);
    /// The virtual interrupt to be taken as soon as the guest's IF and task priority let it in, or
    /// none.
    fn offer_interrupt(&mut self, vector: Option<u8>);
    /// Has the guest taken the interrupt that was on offer? Then none is on offer any more.
    fn offer_accepted(&mut self) -> bool;
    /// Would the CPU deliver this interrupt by itself at the next entry, since it is on offer
    /// still? Some CPUs take an offer back when its delivery fails, others don't.
    fn delivers(&self, vector: u8) -> bool;
    /// Injects an exception at the next entry.
    fn inject(&mut self, vector: u8, error_code: Option<u32>);
    /// Injects #PF at the next entry, with `address` in CR2.
    fn inject_page_fault(&mut self, address: u64, error_code: u32);
    /// Injects an NMI at the next entry. [`Exit::NmiDone`] follows when its handler is
    /// through.
    fn inject_nmi(&mut self);
    /// Could the guest take an NMI, or is it still handling one? Asked by who wants to inject one:
    /// if the answer is no, [`Exit::NmiDone`] follows when it is yes.
    fn nmi_possible(&mut self) -> bool;
    /// Is an event to be injected at the next entry already, or a trap of the guest's delivered?
    fn injects(&self) -> bool;

    /// The guest's task priority.
    fn task_priority(&self) -> u8;
    /// Sets it.
    fn set_task_priority(&mut self, priority: u8);

    /// Delivers again the event whose delivery the exit interrupted, if nothing else raises it.
    fn redeliver(&mut self, event: Event);

    /// After an exit for an instruction: the address of the next one, if the CPU tells it.
    fn next_rip(&self) -> Option<u64>;
    /// The bytes of the instruction that exited, if the CPU tells them.
    fn instruction_bytes(&self) -> Option<&[u8]>;
    /// The instruction that exited is done, and the guest goes on at `next`, as the CPU would have
    /// it: `next` is as wide as the instruction pointer is in this mode, the interrupt shadow ends,
    /// RF is cleared, and a single step traps.
    fn advance(&mut self, next: u64);
    /// The same for an exit that was for an instruction of so many bytes, and why it was isn't
    /// asked.
    #[inline(always)]
    fn step_over(&mut self, length: u64) {
        self.acknowledge_exit();
        self.advance(self.rip().wrapping_add(length));
    }
    /// Base and limit of the guest's IDT.
    fn idtr(&self) -> (u64, u16);
    /// The registers that a walk of the guest's page tables needs.
    fn paging(&self) -> Paging;
    /// One of them: where the tables are.
    fn cr3(&self) -> u64 {
        self.paging().cr3
    }
    /// Is the guest in long mode?
    fn long_mode(&self) -> bool;
    /// The width code runs at.
    fn code_mode(&self) -> decode::Mode;
    /// CS.L, whatever the mode: the code segment is one of 64 bits.
    fn cs_long(&self) -> bool;
    /// CR4.
    fn cr4(&self) -> u64;
    /// Sets CR0, which may begin or end long mode; only what the caller found possible. False: the
    /// CPU would refuse it, for a segment in which long mode doesn't begin, or for what stands in
    /// memory at CR3 where it begins PAE paging.
    fn set_cr0(&mut self, value: u64, memory: &dyn GuestPages) -> bool;
    /// After [`Quirk::DebugControl`]: lets the guest write DR4 to DR7 until the next exit.
    fn let_debug_control(&mut self) {}
    /// Current privilege level.
    fn privilege(&self) -> u8;
    /// EFER as the guest sees it.
    fn efer(&self) -> u64;
    /// Sets it; only bits checked by the caller.
    fn set_efer(&mut self, value: u64);
    /// The value that RDTSC gives the guest now.
    fn tsc(&self) -> u64;
    /// Makes RDTSC give `value` now.
    fn set_tsc(&mut self, value: u64);
    /// Drops what the core may have cached of the guest's nested translations.
    fn flush_translations(&mut self);

    // Guests of guests. What stands here is for an extension that the guest isn't offered.

    /// After [`Exit::Undefined`]: carries the instruction out, but for stepping over it.
    fn attempt(&mut self, _memory: &dyn GuestPages) -> Attempt {
        self.inject(UNDEFINED, None);
        Attempt::Refused
    }
    /// As [`VirtualCpu::enter`], but enters the guest's inner guest: after [`Attempt::Enter`] until
    /// the guest goes on.
    fn enter_inner(&mut self, _requests: &AtomicU32) -> Entry {
        Entry::Aborted
    }
    /// Why the inner guest was left; to be asked once for each time.
    fn inner_exit(&mut self, _memory: &dyn GuestPages) -> Inner {
        Inner::Done
    }
    /// After [`Inner::Elsewhere`]: the guest has these registers there without an exit, or none.
    /// They may be used until [`VirtualCpu::flush_translations`]. Gives what that comes to.
    fn inner_registers(&mut self, _at: u64, _registers: Option<Mapping>) -> Inner {
        Inner::Done
    }
    /// After [`Inner::Own`]: it is done, or has raised an exception, and the vCPU's registers are
    /// the guest's again. The guest may be told instead, and goes on then.
    fn served(&mut self, _memory: &dyn GuestPages) {}
    /// Meanwhile: where a physical address of the inner guest's is in the guest's memory, if the
    /// guest has it there for such an access.
    fn inner_address(&self, _memory: &dyn GuestPages, _address: u64, _write: bool) -> Option<u64> {
        None
    }
    /// Likewise, where it hasn't: the guest is told instead, but if it has by now. `table`: of the
    /// inner guest's page tables.
    fn inner_missing(
        &mut self,
        _memory: &dyn GuestPages,
        _address: u64,
        _write: bool,
        _table: bool,
    ) {
    }
    /// Likewise: it accesses a register of its local APIC, by the number of the MSR, or the
    /// sixteenth of the offset in the `page`. None: the guest has none accelerated for it, or not
    /// so.
    fn inner_apic(
        &mut self,
        _register: u8,
        _write: Option<u64>,
        _page: bool,
    ) -> Option<ApicAnswer> {
        None
    }
    /// Likewise: is the guest told of its local APIC instead?
    fn inner_is_told(&self) -> bool {
        false
    }
    /// Likewise: the inner guest executes the instruction again, by the guest's tables as they are
    /// now.
    fn inner_again(&mut self) {}
    /// Does the inner guest's next entry inject an event?
    fn inner_injects(&self) -> bool {
        false
    }
    /// Leaves the inner guest for this, if the guest wants that. True: the guest goes on.
    fn notify(&mut self, _notice: Notice) -> bool {
        false
    }
    /// INIT has come for the guest. True: the guest holds it back, or is to be told first that its
    /// inner guest is left for it; to be asked again before each entry.
    fn holds_init(&mut self) -> bool {
        false
    }
    /// An instruction that isn't known accessed what isn't there. True: it may be one of the
    /// extension's that needs no exit, and exits for itself if it is executed again.
    fn exit_instead(&mut self) -> bool {
        false
    }
    /// Is it the inner guest that is to run?
    fn runs_inner(&self) -> bool {
        false
    }
}
