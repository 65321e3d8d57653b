//! An event whose delivery the host interrupted, and then put right: L2 has it after all.

use crate::Nest;
use crate::check::VALID;
use delivery::Event;
use svm::Vmcb;

/// Of EVENTINJ and EXITINTINFO: valid, the kind, the vector.
const SAME: u64 = VALID | 0x7FF;

impl Nest {
    /// Has 02 inject the event, if L2 doesn't come to it again by itself.
    ///
    /// It executes an instruction again that raised an interrupt or a trap (15.7.2). One that L1
    /// injected it doesn't (15.20): RIP is as L1 set it, behind the instruction on a CPU that knows
    /// no next RIP.
    pub fn redeliver(&self, v02: &mut Vmcb, event: Event) {
        if let Some(event) = event.again() {
            v02.event_inj = svm::injected(event);
        } else if self.is_injected(v02, event) {
            v02.event_inj = self.control().event_inj;
            v02.next_rip = self.control().next_rip;
        }
    }

    /// Has L1 injected this one at its VMRUN, and L2 executed nothing since?
    fn is_injected(&self, v02: &Vmcb, event: Event) -> bool {
        let same = (svm::injected(event) ^ self.control().event_inj) & SAME == 0;
        same && self.injected_at == (v02.rip, v02.rsp)
    }
}
