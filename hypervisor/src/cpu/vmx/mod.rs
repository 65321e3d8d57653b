//! Intel's VMX as a [`VirtualCpu`]: the instructions of it. What they work on is `crates/vmx`'s.
//!
//! Guarantees: segments, tables, EFER and PAT are the host's again after an exit, by the exit
//! itself. What the host doesn't use stays the guest's: the FPU, the debug address registers, and
//! what is in [`kept`]; it is switched when another vCPU gets the core.
//!
//! None of it is inlined: it would be once for each place of generic code, for whose sake the other
//! vendor's is.
//!
//! Not here: guests of guests, for which a plan is refused.

mod current;
mod kept;
mod made;
mod pae;
mod posts;
mod registers;
mod supported;
mod switch;

use super::extra::{self, Extra, Fresh};
use super::vendor::{Entry, Exit, GuestPages, Start, VirtualCpu};
use super::{rdtsc, x2apic};
use crate::interrupts;
use core::arch::asm;
use core::sync::atomic::AtomicU32;
use current::Current;
use delivery::{Event, Mode, VectorSet};
use kept::Kept;
use paging::walk::Paging;
pub use posts::Posts;
pub use supported::{errata, locked_off, posts, supported};
pub use switch::again;
use switch::{Came, switch};
use vmx::{Area, Capabilities, Outline, Vcpu, field};

/// Of an exit's interruption information: valid, an NMI.
const NMI: u64 = 1 << 31 | 2 << 8 | 2;
const NMI_BITS: u64 = 1 << 31 | 7 << 8 | 0xFF;

/// One virtual CPU.
pub struct VmxCpu {
    vcpu: Vcpu<Current>,
    /// Physical address of its control structure.
    structure: u64,
    /// Of a page for VMXON, used if it is the first on its core.
    on: u64,
    /// Where the host's stack is at an exit, as the control structure has it.
    stack: u64,
    /// The control structure was entered since it was made.
    launched: bool,
    /// What names its cached translations.
    flushed: (u64, u16),
    capabilities: &'static Capabilities,
    mode: Mode,
    /// Registers that nothing switches, and the host does.
    extra: Extra,
    kept: Kept,
    shared: bool,
    /// Which of these are set to their reset values when the core is next prepared.
    fresh: Fresh,
    outline: Outline,
}

impl VmxCpu {
    /// What the host's NMI handler does is done: the exit took the NMI, and blocks others until an
    /// IRET (SDM vol. 3, 28.2.1), which is the handler's.
    fn handle_nmi(&self) {
        if self.vcpu.area.read(field::EXIT_INTERRUPTION) & NMI_BITS == NMI {
            // SAFETY: the host's table is loaded; its gate leads to the handler, on a stack that
            // nobody uses while NMIs are blocked.
            unsafe { asm!("int 2") };
        }
    }
}

impl VirtualCpu for VmxCpu {
    type Outline = Outline;

    fn outline(&self) -> Outline {
        self.outline
    }

    #[inline(never)]
    fn reset(&mut self, start: Start) {
        self.vcpu.reset(start);
        self.mode = Mode::Injection;
        self.fresh = match start {
            Start::Kernel { .. } => Fresh::Reset,
            Start::StartUp { .. } => self.fresh.max(Fresh::StartUp),
        };
    }

    #[inline(never)]
    fn prepare_core(&mut self) {
        interrupts::load();
        interrupts::disable();
        self.have_core();
        match core::mem::replace(&mut self.fresh, Fresh::No) {
            Fresh::No => {}
            Fresh::StartUp => {
                extra::clear_debug_addresses();
                kept::start_up();
            }
            Fresh::Reset => {
                self.extra.reset();
                self.extra.load();
                self.kept = Kept::AT_RESET;
                self.kept.load();
            }
        }
    }

    #[inline(never)]
    fn release_core(&mut self) {
        self.set_mode(Mode::Injection);
        interrupts::drain();
    }

    #[inline(never)]
    fn enter(&mut self, requests: &AtomicU32) -> Entry {
        if self.vcpu.take_flush() {
            current::flush(self.flushed.0, self.flushed.1);
        }
        self.vcpu.prepare(rdtsc);
        // SAFETY: `prepare_core` ran on this core, with the host's state as it is, and IF is clear
        // since; everything the guest can change outside its memory is switched or exits.
        match unsafe { switch(&mut self.vcpu.registers, requests, self.launched, &mut self.stack) }
        {
            Came::Left => {
                self.launched = true;
                self.vcpu.entered();
                Entry::Exited
            }
            Came::Aborted => {
                self.vcpu.aborted();
                Entry::Aborted
            }
            Came::Failed => current::failed(),
        }
    }

    #[inline(never)]
    fn leave_at_once(&mut self) {
        self.vcpu.leave_at_once();
    }

    #[inline(never)]
    fn leave_at(&mut self, at: u64) -> bool {
        self.vcpu.leave_at(at);
        true
    }

    #[inline]
    fn wrote_msr(&self) -> bool {
        vmx::is_msr_write(&self.vcpu.area)
    }

    #[inline]
    fn halted(&self) -> bool {
        self.vcpu.halted()
    }

    #[inline]
    fn exit(&mut self) -> Exit {
        let exit = self.vcpu.exit();
        match exit {
            Exit::Nmi => self.handle_nmi(),
            Exit::Interrupt => {
                self.vcpu.acknowledged().into_iter().for_each(interrupts::arrived);
            }
            Exit::InvalidState => current::tell_of_refusal(),
            _ if Vcpu::<Current>::is_debug(exit) => {
                kept::set_dr6(self.vcpu.take_debug_status(kept::dr6()));
            }
            _ => {}
        }
        exit
    }

    #[inline(never)]
    fn acknowledge_exit(&mut self) {
        self.vcpu.acknowledge_exit();
    }

    #[inline(never)]
    fn take_interrupts(&mut self) {
        // SAFETY: host state is complete, so the host's own handlers may run; IF is as before
        // afterwards.
        unsafe { asm!("sti", "nop", "cli") };
    }

    #[inline(never)]
    fn set_mode(&mut self, mode: Mode) {
        match mode {
            Mode::Eli | Mode::Passthrough if self.vcpu.in_injection() => {
                let held = self.vcpu.set_exitless(mode);
                if held != 0 {
                    x2apic::set_tpr(held);
                }
                self.mode = mode;
            }
            Mode::Posted => {
                self.vcpu.set_posted();
                self.mode = mode;
            }
            Mode::Injection if self.vcpu.in_posted() => {
                self.vcpu.set_injection(self.vcpu.virtual_priority());
                self.mode = mode;
            }
            Mode::Injection if !self.vcpu.in_injection() => {
                let held = x2apic::tpr();
                if held != 0 {
                    x2apic::set_tpr(0);
                }
                self.vcpu.set_injection(held);
                self.mode = mode;
            }
            _ => {}
        }
    }

    #[inline(never)]
    fn kept_interrupts(&self) -> Option<[VectorSet; 2]> {
        self.vcpu.kept()
    }

    #[inline(never)]
    fn keep_interrupts(
        &mut self,
        pending: &VectorSet,
        in_service: &VectorSet,
        watched: &VectorSet,
    ) {
        self.vcpu.keep(pending, in_service, watched);
    }

    #[inline(never)]
    fn watch_idt(&mut self, on: bool) {
        self.vcpu.watch_idt(on);
    }

    #[inline(never)]
    fn open_timer(&mut self, open: bool) {
        self.vcpu.open_timer(self.mode, open);
    }

    #[inline(never)]
    fn lend_timer(&mut self, lent: bool) {
        self.vcpu.lend_timer(self.mode, lent);
    }

    #[inline(never)]
    fn timer_forgets(&self) -> bool {
        false
    }

    #[inline(never)]
    fn show_x2apic(&mut self, on: bool) {
        self.vcpu.show_x2apic(self.mode, on);
    }

    #[inline(never)]
    fn watch_halt(&mut self, on: bool) {
        self.vcpu.watch_halt(on);
    }

    #[inline(never)]
    fn interrupts_enabled(&self) -> bool {
        self.vcpu.interrupts_enabled()
    }

    #[inline(never)]
    fn leave_core(&mut self) {
        if self.shared {
            self.extra.save();
            self.kept.save();
        }
    }

    #[inline(never)]
    fn return_to_core(&mut self) {
        if self.shared {
            current::make_current(self.structure);
            self.extra.load();
            self.kept.load();
        }
    }

    #[inline(never)]
    fn offer_interrupt(&mut self, vector: Option<u8>) {
        self.vcpu.offer(vector);
    }

    #[inline(never)]
    fn offer_accepted(&mut self) -> bool {
        self.vcpu.offer_accepted()
    }

    #[inline(never)]
    fn delivers(&self, vector: u8) -> bool {
        self.vcpu.offered() == Some(vector)
    }

    #[inline(never)]
    fn inject(&mut self, vector: u8, error_code: Option<u32>) {
        self.vcpu.inject(Event::exception(vector, error_code));
    }

    #[inline(never)]
    fn inject_page_fault(&mut self, address: u64, error_code: u32) {
        const PAGE_FAULT: u8 = 14;
        kept::set_cr2(address);
        self.inject(PAGE_FAULT, Some(error_code));
    }

    #[inline(never)]
    fn inject_nmi(&mut self) {
        self.vcpu.inject(Event::nmi());
    }

    #[inline(never)]
    fn nmi_possible(&mut self) -> bool {
        self.vcpu.nmi_possible()
    }

    #[inline(never)]
    fn injects(&self) -> bool {
        self.vcpu.injects()
    }

    #[inline(never)]
    fn redeliver(&mut self, event: Event) {
        if let Some(event) = event.again() {
            self.vcpu.inject(event);
        }
    }

    #[inline(never)]
    fn task_priority(&self) -> u8 {
        if self.vcpu.in_injection() { self.vcpu.virtual_priority() } else { x2apic::tpr() }
    }

    #[inline(never)]
    fn set_task_priority(&mut self, priority: u8) {
        if self.vcpu.in_injection() {
            self.vcpu.set_virtual_priority(priority);
        } else {
            x2apic::set_tpr(priority);
        }
    }

    #[inline]
    fn next_rip(&self) -> Option<u64> {
        Some(self.vcpu.next_rip())
    }

    #[inline(never)]
    fn instruction_bytes(&self) -> Option<&[u8]> {
        None
    }

    #[inline(never)]
    fn advance(&mut self, next: u64) {
        self.vcpu.advance(next);
    }

    #[inline(never)]
    fn idtr(&self) -> (u64, u16) {
        self.vcpu.idtr()
    }

    #[inline(never)]
    fn paging(&self) -> Paging {
        self.vcpu.paging()
    }

    #[inline(always)]
    fn cr3(&self) -> u64 {
        self.vcpu.area.read(field::GUEST_CR3)
    }

    #[inline(never)]
    fn long_mode(&self) -> bool {
        self.vcpu.long_mode()
    }

    #[inline(never)]
    fn code_mode(&self) -> decode::Mode {
        self.vcpu.code_mode()
    }

    #[inline(never)]
    fn cs_long(&self) -> bool {
        self.vcpu.cs_long()
    }

    #[inline]
    fn cr4(&self) -> u64 {
        self.vcpu.cr4()
    }

    #[inline(never)]
    fn set_cr0(&mut self, value: u64, memory: &dyn GuestPages) -> bool {
        self.vcpu.set_cr0(value, |cr3| pae::pointers(cr3, memory))
    }

    #[inline(never)]
    fn privilege(&self) -> u8 {
        self.vcpu.privilege()
    }

    #[inline(never)]
    fn efer(&self) -> u64 {
        self.vcpu.efer()
    }

    #[inline(never)]
    fn set_efer(&mut self, value: u64) {
        self.vcpu.set_efer(value);
    }

    #[inline(never)]
    fn tsc(&self) -> u64 {
        rdtsc().wrapping_add(self.vcpu.area.read(field::TSC_OFFSET))
    }

    #[inline(never)]
    fn set_tsc(&mut self, value: u64) {
        self.vcpu.area.write(field::TSC_OFFSET, value.wrapping_sub(rdtsc()));
    }

    #[inline(never)]
    fn flush_translations(&mut self) {
        self.vcpu.flush();
    }
}
