//! A core that several vCPUs share: its run queue, the routes of its interrupts, and whose one is
//! that arrives.

use crate::cpu::PerCpu;
use crate::interrupts::{self, FAULTS, vectors::host_vectors};
use crate::iommu::fault_interrupt;
use crate::sched::run_queue::RunQueue;
use delivery::{Arrived, VectorSet};
use mailbox::Reach;
use proto::Policy;
use routing::CoreRoutes;

/// A core with several vCPUs.
pub struct SharedCore {
    pub queue: RunQueue,
    pub routes: CoreRoutes,
}

/// The meaning of a physical interrupt that arrived on a shared core.
pub enum Received {
    /// The core's timer.
    Timer,
    /// The host's, or nobody's.
    Host,
    /// The resident vCPU's; these vectors of its guest are to become pending.
    Resident(VectorSet),
    /// Another vCPU's, which has it in its inbox.
    Other,
}

impl SharedCore {
    /// A core for so many vCPUs, none there yet; `slice` in TSC ticks.
    pub fn new(cpu: &'static PerCpu, slots: usize, slice: u64) -> Self {
        let mut host = host_vectors(Policy::Eli);
        host.insert(FAULTS);
        let routes = CoreRoutes::new(cpu.apic_id, host, slots);
        SharedCore { queue: RunQueue::new(cpu, slice), routes }
    }

    /// Finds out whose a physical interrupt is that arrived on this core, where the vCPU at
    /// `resident` is, or none. One that is another vCPU's is left in that one's inbox.
    pub fn receive(&self, vector: u8, resident: Option<usize>) -> Received {
        match self.routes.arrived(vector) {
            Arrived::Host if vector == interrupts::TIMER => {
                self.queue.fired();
                Received::Timer
            }
            Arrived::Host => {
                if vector == FAULTS {
                    fault_interrupt::arrived();
                }
                Received::Host
            }
            Arrived::Of { slot, vectors } if Some(slot) == resident => Received::Resident(vectors),
            Arrived::Of { slot, vectors } => {
                self.queue.interrupt_waits(slot);
                self.queue.residency().post_here(&self.queue, slot, vectors.iter());
                Received::Other
            }
            Arrived::Nobody => {
                self.routes.note_stray();
                Received::Host
            }
        }
    }

    /// Core 0: reports interrupts that were nobody's.
    pub fn report_strays(&self) {
        let strays = self.routes.take_strays();
        if strays > 0 {
            log::warn!("core {}: {strays} interrupts arrived that were nobody's", self.queue.index);
        }
    }
}
