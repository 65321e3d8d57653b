//! The physical local APIC of this core, as far as it holds its guest's state: what the
//! virtual one shows of it while the guest takes its interrupts itself.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic;
use crate::interrupts;
use crate::vm::interrupts::timer::guest_timer::GuestTimer;
use delivery::{Core, VectorSet};
use routing::VcpuRoutes;

/// The core as the virtual local APIC sees it: the parts of the physical one that hold
/// guest state.
pub struct ThisCore<'a, C: VirtualCpu> {
    pub cpu: &'a mut C,
    pub exitless: bool,
    pub routes: &'static VcpuRoutes,
    pub timer: &'a GuestTimer,
}

impl<C: VirtualCpu> Core for ThisCore<'_, C> {
    fn task_priority(&self) -> u8 {
        self.cpu.task_priority()
    }

    fn set_task_priority(&mut self, priority: u8) {
        self.cpu.set_task_priority(priority);
    }

    fn in_service(&self) -> VectorSet {
        self.physical(in_service())
    }

    fn requested(&self, timer: Option<u8>) -> VectorSet {
        let pending = registers(x2apic::request_bitmap());
        let mut guest = self.physical(pending);
        // A tick that waits under the host's vector for the guest to take interrupts.
        let host = self.timer.is_cores() && self.routes.host_vectors().contains(interrupts::TIMER);
        if let Some(v) = timer.filter(|_| host && pending.contains(interrupts::TIMER)) {
            guest.insert(v);
        }
        guest
    }

    fn timer_count(&self) -> u32 {
        self.timer.count().unwrap_or_else(x2apic::timer_count)
    }
}

impl<C: VirtualCpu> ThisCore<'_, C> {
    fn physical(&self, vectors: VectorSet) -> VectorSet {
        match self.exitless {
            true => vectors.without(&self.routes.host_vectors()),
            false => VectorSet::EMPTY,
        }
    }
}

fn registers(bitmap: [u32; 8]) -> VectorSet {
    VectorSet::from_registers(|i| bitmap[i as usize & 7])
}

/// Vectors in service in the physical local APIC of this core.
pub fn in_service() -> VectorSet {
    registers(x2apic::in_service_bitmap())
}
