//! AMD's Secure Virtual Machine as a [`VirtualCpu`]: the instructions of it. What they work on is
//! `crates/svm`'s.
//!
//! Guarantees: the host's FS, GS, TR, LDTR and system-call registers are back before any Rust code
//! runs, and before an NMI is let in. The FPU and the debug address registers stay the guest's at
//! an exit, since the host uses neither; they are switched when another vCPU gets the core.

mod made;
mod nesting;
mod registers;
mod supported;
mod switch;

use super::extra::{self, Extra, Fresh};
use super::vendor::{
    ApicAnswer, Attempt, Entry, Exit, GuestPages, Inner, Notice, Start, VirtualCpu,
};
use super::{msr, rdtsc, x2apic};
use alloc::boxed::Box;
use core::arch::asm;
use core::sync::atomic::AtomicU32;
use delivery::{Event, Mode, VectorSet};
use nesting::Nesting;
pub use nesting::post_to_inner;
use paging::Mapping;
use paging::walk::Paging;
pub use supported::{locked_off, supported};
pub use svm::Outline;
use svm::{EFER_SVME, Vcpu, Vmcb};
use switch::{InnerBlocks, switch, switch_inner};

const VM_HSAVE_PA: u32 = 0xC001_0117;

/// One virtual CPU.
pub struct SvmCpu {
    vcpu: Vcpu,
    /// Physical address of the page for the host's segments and system-call registers.
    host_vmcb: u64,
    /// Physical address of the page for VM_HSAVE_PA.
    host_save: u64,
    mode: Mode,
    /// Registers that VMRUN doesn't switch, and the host does.
    extra: Extra,
    shared: bool,
    /// Which of these are set to their reset values when the core is next prepared.
    fresh: Fresh,
    outline: Outline,
    /// Its guests.
    nesting: Option<Box<Nesting>>,
}

impl SvmCpu {
    /// Does the local APIC's in-service bit say whether a vector is an interrupt that the guest
    /// took itself?
    fn owns_in_service(&self) -> impl Fn(u8) -> bool + use<> {
        let own = self.mode != Mode::Injection;
        move |vector| own && x2apic::in_service(vector)
    }
}

impl VirtualCpu for SvmCpu {
    type Outline = Outline;

    fn outline(&self) -> Outline {
        self.outline
    }

    fn reset(&mut self, start: Start) {
        if let Some(nesting) = &mut self.nesting {
            nesting.reset();
        }
        self.vcpu.reset(start);
        self.mode = Mode::Injection;
        self.fresh = match start {
            Start::Kernel { .. } => Fresh::Reset,
            Start::StartUp { .. } => self.fresh.max(Fresh::StartUp),
        };
    }

    fn prepare_core(&mut self) {
        crate::interrupts::load();
        // SAFETY: `supported` was checked at boot; HSAVE gets a page of its own; VMSAVE writes
        // only to the page allocated for it.
        unsafe {
            msr::write(msr::EFER, msr::read(msr::EFER) | EFER_SVME);
            msr::write(VM_HSAVE_PA, self.host_save);
            asm!("cli", "vmsave rax", in("rax") self.host_vmcb, options(nostack));
        }
        match core::mem::replace(&mut self.fresh, Fresh::No) {
            Fresh::No => {}
            Fresh::StartUp => extra::clear_debug_addresses(),
            Fresh::Reset => {
                self.extra.reset();
                self.extra.load();
            }
        }
    }

    fn release_core(&mut self) {
        if let Some(nesting) = &mut self.nesting {
            nesting.release();
        }
        self.set_mode(Mode::Injection);
        crate::interrupts::drain();
    }

    #[inline(always)]
    fn enter(&mut self, requests: &AtomicU32) -> Entry {
        let page = core::ptr::from_mut::<Vmcb>(self.vcpu.vmcb) as u64;
        // SAFETY: `prepare_core` ran on this core and IF is clear since, the control blocks are
        // pages of our own, and everything the guest can change outside its memory is switched or
        // intercepted.
        if !unsafe { switch(&mut self.vcpu.registers, page, self.host_vmcb, requests) } {
            return Entry::Aborted;
        }
        Entry::Exited
    }

    fn leave_at_once(&mut self) {
        // SAFETY: GIF is clear until the next entry, which is near, and nothing waits before it.
        unsafe { asm!("clgi", options(nostack)) };
        super::this().kick();
    }

    #[inline(always)]
    fn leave_at(&mut self, _at: u64) -> bool {
        false
    }

    #[inline(always)]
    fn wrote_msr(&self) -> bool {
        svm::is_msr_write(self.vcpu.vmcb)
    }

    #[inline(always)]
    fn halted(&self) -> bool {
        svm::is_halt(self.vcpu.vmcb)
    }

    fn exit(&mut self) -> Exit {
        let in_service = self.owns_in_service();
        self.vcpu.exit(in_service)
    }

    #[inline]
    fn acknowledge_exit(&mut self) {
        self.vcpu.acknowledge_exit();
    }

    fn take_interrupts(&mut self) {
        // Of one that runs guests of its own.
        if self.vcpu.flag().is_some() {
            return self.interrupt_kept();
        }
        // SAFETY: host state is complete here (segments restored by VMLOAD), so the host's own
        // handlers may run; IF is as before afterwards.
        unsafe { asm!("sti", "nop", "cli") };
    }

    fn set_mode(&mut self, mode: Mode) {
        match mode {
            Mode::Eli | Mode::Passthrough if self.vcpu.in_injection() => {
                let priority = self.vcpu.set_exitless(mode);
                if priority != 0 {
                    x2apic::set_tpr(priority);
                }
                self.mode = mode;
            }
            Mode::Injection if !self.vcpu.in_injection() => {
                if self.vcpu.flag().is_some() {
                    self.end_kept_flag();
                }
                let priority = x2apic::tpr();
                if priority != 0 {
                    x2apic::set_tpr(0);
                }
                self.vcpu.set_injection(priority);
                self.mode = mode;
            }
            _ => {}
        }
    }

    fn kept_interrupts(&self) -> Option<[VectorSet; 2]> {
        None
    }

    fn keep_interrupts(&mut self, _: &VectorSet, _: &VectorSet, _: &VectorSet) {}

    fn watch_idt(&mut self, on: bool) {
        self.vcpu.watch_idt(on);
    }

    fn open_timer(&mut self, open: bool) {
        self.vcpu.open_timer(self.mode, open);
    }

    fn lend_timer(&mut self, lent: bool) {
        self.vcpu.lend_timer(self.mode, lent);
    }

    fn timer_forgets(&self) -> bool {
        self.vcpu.timer_forgets()
    }

    fn show_x2apic(&mut self, on: bool) {
        self.vcpu.show_x2apic(self.mode, on);
    }

    fn watch_halt(&mut self, on: bool) {
        self.vcpu.watch_halt(on);
    }

    fn interrupts_enabled(&self) -> bool {
        self.vcpu.vmcb.interrupts_enabled()
    }

    fn leave_core(&mut self) {
        if self.shared {
            self.extra.save();
        }
    }

    fn return_to_core(&mut self) {
        if self.shared {
            self.extra.load();
        }
    }

    fn offer_interrupt(&mut self, vector: Option<u8>) {
        self.vcpu.offer(vector);
    }

    fn offer_accepted(&mut self) -> bool {
        self.vcpu.offer_accepted()
    }

    fn delivers(&self, vector: u8) -> bool {
        self.vcpu.delivers(vector)
    }

    fn inject(&mut self, vector: u8, error_code: Option<u32>) {
        self.vcpu.inject(Event::exception(vector, error_code));
    }

    fn inject_page_fault(&mut self, address: u64, error_code: u32) {
        const PAGE_FAULT: u8 = 14;
        self.vcpu.vmcb.cr2 = address;
        self.inject(PAGE_FAULT, Some(error_code));
    }

    fn inject_nmi(&mut self) {
        self.vcpu.inject(Event::nmi());
    }

    fn nmi_possible(&mut self) -> bool {
        // With STGI it is asked again.
        !self.flag_is_clear() && self.vcpu.nmi_possible()
    }

    fn injects(&self) -> bool {
        self.vcpu.injects()
    }

    fn redeliver(&mut self, event: Event) {
        if let Some(event) = event.again() {
            self.vcpu.inject(event);
        }
    }

    fn task_priority(&self) -> u8 {
        if self.vcpu.in_injection() { self.vcpu.virtual_priority() } else { x2apic::tpr() }
    }

    fn set_task_priority(&mut self, priority: u8) {
        if self.serves() && self.set_inner_priority(priority) {
            return;
        }
        if self.vcpu.in_injection() {
            self.vcpu.set_virtual_priority(priority);
        } else {
            // Of one that runs guests of its own: what waits for its flag waits for this, too.
            self.withdraw();
            x2apic::set_tpr(priority);
        }
    }

    #[inline]
    fn next_rip(&self) -> Option<u64> {
        self.vcpu.next_rip()
    }

    fn instruction_bytes(&self) -> Option<&[u8]> {
        self.vcpu.instruction_bytes()
    }

    #[inline]
    fn advance(&mut self, next: u64) {
        self.vcpu.vmcb.advance(next);
    }

    fn idtr(&self) -> (u64, u16) {
        self.vcpu.idtr()
    }

    #[inline]
    fn paging(&self) -> Paging {
        self.vcpu.vmcb.paging()
    }

    fn long_mode(&self) -> bool {
        self.vcpu.vmcb.long_mode()
    }

    #[inline]
    fn code_mode(&self) -> decode::Mode {
        self.vcpu.vmcb.code_mode()
    }

    fn cs_long(&self) -> bool {
        self.vcpu.vmcb.cs_long()
    }

    fn cr4(&self) -> u64 {
        self.vcpu.vmcb.cr4
    }

    fn set_cr0(&mut self, value: u64, _memory: &dyn GuestPages) -> bool {
        // The CPU reads the pointers of PAE paging when it needs them.
        self.vcpu.set_cr0(value);
        true
    }

    fn let_debug_control(&mut self) {
        self.vcpu.let_debug_control();
    }

    fn privilege(&self) -> u8 {
        self.vcpu.vmcb.cpl
    }

    fn efer(&self) -> u64 {
        let own = self.nesting.as_deref().map_or(0, Nesting::efer);
        self.vcpu.vmcb.efer & !EFER_SVME | own
    }

    fn set_efer(&mut self, value: u64) {
        self.vcpu.set_efer(value);
        if self.serves() {
            // L2's SVME stays as VMRUN wants it, whatever it writes there.
            return;
        }
        if let Some(nesting) = &mut self.nesting {
            let on = nesting.set_efer(value);
            self.vcpu.open_loads(on);
            if !on {
                self.end_kept_flag();
            }
        }
    }

    fn tsc(&self) -> u64 {
        let inner = self.nesting.as_deref().and_then(Nesting::served_tsc_offset);
        rdtsc().wrapping_add(inner.unwrap_or(self.vcpu.vmcb.tsc_offset))
    }

    fn set_tsc(&mut self, value: u64) {
        self.vcpu.vmcb.tsc_offset = value.wrapping_sub(rdtsc());
    }

    fn flush_translations(&mut self) {
        self.vcpu.flush();
        if let Some(nesting) = &mut self.nesting {
            nesting.own_changed();
        }
    }

    fn attempt(&mut self, memory: &dyn GuestPages) -> Attempt {
        self.attempt_one(memory)
    }

    fn enter_inner(&mut self, requests: &AtomicU32) -> Entry {
        let Some(nesting) = self.nesting.as_deref_mut() else { return Entry::Aborted };
        if nesting.has_inner_apic() {
            nesting.offer_to_inner();
        }
        let Some(page) = nesting.block() else { return Entry::Aborted };
        let own = core::ptr::from_mut::<Vmcb>(self.vcpu.vmcb) as u64;
        let blocks = InnerBlocks { own, inner: page, host: self.host_vmcb };
        // SAFETY: as in `enter`; what L2 can change outside of its memory is what L1 can, and the
        // tables by which it runs map no more than L1's.
        if !unsafe { switch_inner(&mut self.vcpu.registers, &blocks, requests) } {
            // What is kept of L1's is what was there before.
            if let Some(nesting) = self.nesting.as_deref_mut() {
                nesting.end_taking();
            }
            return Entry::Aborted;
        }
        Entry::Exited
    }

    fn inner_exit(&mut self, memory: &dyn GuestPages) -> Inner {
        self.left_inner(memory)
    }

    fn inner_registers(&mut self, at: u64, registers: Option<Mapping>) -> Inner {
        self.registers_of_l1(at, registers)
    }

    fn served(&mut self, memory: &dyn GuestPages) {
        self.end_serving(memory);
    }

    fn inner_address(&self, memory: &dyn GuestPages, address: u64, write: bool) -> Option<u64> {
        self.address_of_l2(memory, address, write)
    }

    fn inner_missing(&mut self, memory: &dyn GuestPages, address: u64, write: bool, table: bool) {
        self.miss_of_l2(memory, address, write, table);
    }

    fn inner_apic(&mut self, register: u8, write: Option<u64>, page: bool) -> Option<ApicAnswer> {
        self.access_inner_apic(register, write, page)
    }

    fn inner_is_told(&self) -> bool {
        self.nesting.as_deref().is_some_and(Nesting::tells_of_apic)
    }

    fn inner_again(&mut self) {
        self.forget_tables_of_l2();
    }

    fn inner_injects(&self) -> bool {
        self.nesting.as_deref().is_some_and(Nesting::injects)
    }

    fn notify(&mut self, notice: Notice) -> bool {
        self.notify_inner(notice)
    }

    fn holds_init(&mut self) -> bool {
        self.holds_back_init()
    }

    fn exit_instead(&mut self) -> bool {
        let translated = self.vcpu.vmcb.other_virtualization != 0;
        self.vcpu.open_loads(false);
        translated
    }

    fn runs_inner(&self) -> bool {
        self.nesting.as_deref().is_some_and(Nesting::runs_inner)
    }
}
