//! L1's global interrupt flag, and its interrupts while that is clear.
//!
//! | the flag | is | an interrupt of L1's |
//! |---|---|---|
//! | open | set; CLGI exits | is L1's without an exit |
//! | kept by the CPU | either; neither of the two exits | exits if IF lets it in, and is guarded |
//! | held | clear; STGI exits | waits for the task priority, wherever the vCPU's mode keeps that |
//!
//! The first CLGI has the flag kept, so that an L1 that runs its guests exits for neither. The
//! second interrupt without a VMRUN between ends that, and the flag, which is set, is open. What
//! can't be guarded ends it, too: with the flag clear it is held until STGI. Without a virtual
//! flag, and in injection mode, it is open or held. It isn't kept for good, since an L1 that runs
//! no guests would have an exit for each interrupt.

use super::Nesting;
use crate::cpu::svm::SvmCpu;
use delivery::Mode;
use vendor::VirtualCpu as _;

/// No interrupt is of a higher class.
const HOLDS_ALL: u8 = 0xFF;

impl SvmCpu {
    /// The flag is clear from here on.
    pub(super) fn clear_flag(&mut self) {
        if self.holds() || self.mode == Mode::Passthrough && self.vcpu.keep_flag() {
            return;
        }
        self.hold();
    }

    /// The same, and what comes waits.
    pub(super) fn hold(&mut self) {
        self.withdraw();
        self.vcpu.take_flag();
        if self.holds() {
            return;
        }
        let priority = self.task_priority();
        if let Some(nesting) = self.nesting.as_deref_mut() {
            nesting.held = Some(priority);
            self.set_task_priority(HOLDS_ALL);
        }
    }

    /// Interrupts aren't held any more.
    pub(super) fn let_interrupts(&mut self) {
        if let Some(priority) = self.nesting.as_deref_mut().and_then(|n| n.held.take()) {
            self.set_task_priority(priority);
        }
    }

    /// The CPU isn't to keep the flag any more.
    #[cold]
    #[inline(never)]
    pub(in crate::cpu::svm) fn end_kept_flag(&mut self) {
        self.withdraw();
        // While L2 runs L1's is set, whatever it is afterwards.
        if self.vcpu.take_flag() == Some(false) && !self.runs_inner() {
            self.hold();
        }
    }

    /// Is it? Then STGI exits from here on.
    pub(in crate::cpu::svm) fn flag_is_clear(&mut self) -> bool {
        if self.vcpu.flag() == Some(false) {
            self.end_kept_flag();
        }
        self.nesting.as_deref().is_some_and(Nesting::holds)
    }

    pub(super) fn holds(&self) -> bool {
        self.nesting.as_deref().is_none_or(Nesting::holds)
    }
}
