//! Interrupts of L1 held back: by the task priority, wherever the vCPU's mode keeps that.

use super::Nesting;
use crate::cpu::svm::SvmCpu;
use vendor::VirtualCpu as _;

/// No interrupt is of a higher class.
const HOLDS_ALL: u8 = 0xFF;

impl SvmCpu {
    /// Interrupts are held back from here on.
    pub(super) fn hold_interrupts(&mut self) {
        if self.nesting.as_deref().is_none_or(Nesting::holds) {
            return;
        }
        let priority = self.task_priority();
        if let Some(nesting) = self.nesting.as_deref_mut() {
            nesting.held = Some(priority);
            self.set_task_priority(HOLDS_ALL);
        }
    }

    /// They aren't any more.
    pub(super) fn let_interrupts(&mut self) {
        if let Some(priority) = self.nesting.as_deref_mut().and_then(|n| n.held.take()) {
            self.set_task_priority(priority);
        }
    }
}
