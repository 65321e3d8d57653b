//! A core that several vCPUs share: its run queue, and the routes of its interrupts.

use crate::cpu::PerCpu;
use crate::interrupts::{self, FAULTS, vectors::host_vectors};
use crate::iommu::fault_interrupt;
use crate::sched::run_queue::RunQueue;
use delivery::Arrived;
use proto::Policy;
use routing::CoreRoutes;

/// A core with several vCPUs.
pub struct SharedCore {
    pub queue: RunQueue,
    pub routes: CoreRoutes,
}

impl SharedCore {
    /// A core for so many vCPUs, none there yet; `slice` in TSC ticks.
    pub fn new(cpu: &'static PerCpu, slots: usize, slice: u64) -> Self {
        let mut host = host_vectors(Policy::Eli);
        host.insert(FAULTS);
        let routes = CoreRoutes::new(cpu.apic_id, host, slots);
        SharedCore { queue: RunQueue::new(cpu, slice), routes }
    }

    /// A physical interrupt that arrived while no vCPU had the core.
    pub fn receive_idle(&self, vector: u8) {
        match self.routes.arrived(vector) {
            Arrived::Host if vector == interrupts::TIMER => self.queue.fired(),
            Arrived::Host if vector == FAULTS => fault_interrupt::arrived(),
            Arrived::Host => {}
            Arrived::Of { slot, vectors } => self.queue.post(slot, vectors.iter()),
            Arrived::Nobody => self.routes.note_stray(),
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
