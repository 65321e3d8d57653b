//! Tells in the log of a guest that loops on memory or ports that nothing answers.
//!
//! At most one line a second and VM, and only while it loops; nothing here is on the way of an
//! access that something answers.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::{rdtsc, tsc_hz};
use crate::vm::Vcpu;
use virtual_pc::unanswered::Place;

impl<C: VirtualCpu> Vcpu<C> {
    /// Nothing is at a place that the guest read or wrote.
    #[cold]
    pub(in crate::vm) fn note_unanswered(&mut self, place: Place, write: bool) {
        let now = rdtsc();
        if let Some(looped) = self.unanswered.note(place, write, now, tsc_hz())
            && self.vm.told_unanswered.claim(now)
        {
            let (name, vcpu) = (&self.vm.guest.name, self.id);
            crate::memory::while_reporting(|| {
                log::info!("VM {name:?}, vCPU {vcpu}: {looped}");
            });
        }
    }
}
