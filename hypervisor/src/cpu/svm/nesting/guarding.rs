//! Guarded delivery of L1's interrupts, while the CPU keeps L1's flag.
//!
//! One that exits is taken by the host and not completed, so that it is in service in the core's
//! local APIC as if L1 had taken it, and the CPU delivers it as a virtual interrupt: that the
//! virtual flag does hold back. L1's EOI, which doesn't exit, completes it. So it costs one exit,
//! and if L2 ran that is the one that L1 is told.
//!
//! Guarantees: at most one waits so, the highest, and only while the CPU keeps the flag and L1
//! runs. For anything else (VMRUN, an NMI, a higher interrupt, another mode, a change of the task
//! priority by CR8) it is made pending again first, as if it had never been taken. If L1 completes
//! it before it was delivered, it has it all the same.

use super::Nesting;
use crate::cpu::svm::SvmCpu;
use crate::cpu::x2apic;
use crate::interrupts;
use delivery::Mode;
use vendor::{Notice, VirtualCpu as _};

impl SvmCpu {
    /// L2 was left for an interrupt of L1's, whose flag is clear now. False: it is pending still,
    /// and nobody holds it.
    pub(super) fn guard_told(&mut self) -> bool {
        self.mode == Mode::Passthrough && !self.holds() && self.vcpu.keep_flag() && self.guard()
    }

    /// L2 was left with the one pending still that was withdrawn for it: with L1's IF set it would
    /// exit at once, at each exit of an L2 that masks it.
    #[cold]
    #[inline(never)]
    pub(super) fn guard_left(&mut self) {
        let would_exit = self.vcpu.flag() == Some(false) && self.vcpu.vmcb.interrupts_enabled();
        if would_exit && x2apic::is_any_let_in() {
            self.guard();
        }
    }

    /// An interrupt of L1's came while the CPU keeps its flag.
    #[cold]
    #[inline(never)]
    pub(in crate::cpu::svm) fn interrupt_kept(&mut self) {
        let set = self.vcpu.flag() == Some(true);
        let goes_on = !self.runs_inner()
            && self.nesting.as_deref_mut().is_some_and(|nesting| nesting.keep.goes_on(set));
        if !(goes_on && self.guard()) {
            self.end_kept_flag();
        }
    }

    /// Guards the highest that is pending. False: there is none that could be.
    fn guard(&mut self) -> bool {
        self.withdraw();
        let Some(vector) = interrupts::acknowledge() else { return false };
        self.vcpu.guard(vector);
        true
    }

    /// The same at VMRUN.
    #[cold]
    #[inline(never)]
    pub(super) fn withdraw_for_inner(&mut self) -> bool {
        if let Some(nesting) = self.nesting.as_deref_mut() {
            nesting.keep.ran();
        }
        let waits = self.withdraw();
        if waits {
            // As VMRUN has it; and who leaves L2 sees that one may be left.
            self.vcpu.set_flag();
        }
        waits
    }

    /// L2 is ready, and one waits that was guarded before. Tells L1 so, if L2 would be left for it
    /// at once: but first it would have what is injected, and KVM lets an interrupt wait where it
    /// has more to inject. One that the task priority holds back by now leaves L2 alone.
    #[cold]
    #[inline(never)]
    pub(super) fn tells_at_once(&mut self) -> bool {
        let injects = self.nesting.as_deref().is_none_or(Nesting::injects);
        !injects && x2apic::is_any_let_in() && self.notify_inner(Notice::Interrupt)
    }

    /// The one that is guarded and wasn't taken is pending again. Was there one?
    #[cold]
    #[inline(never)]
    pub(in crate::cpu::svm) fn withdraw(&mut self) -> bool {
        let Some(vector) = self.vcpu.end_guard() else { return false };
        // The highest in service: it was when it was taken, and L1 has taken none since.
        if x2apic::in_service(vector) {
            x2apic::eoi();
        }
        x2apic::self_ipi(vector);
        true
    }
}
