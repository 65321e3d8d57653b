//! A core's work from the end of boot on, if the plan gave it vCPUs: one for good, or several in
//! turn.

use crate::cpu::VendorCpu;
use crate::cpu::vendor::VirtualCpu;
use crate::cpu::{self, rdtsc};
use crate::iommu::fault_interrupt;
use crate::sched::shared_core::SharedCore;
use crate::vm::Vcpu;
use arrayvec::ArrayVec;
use core::sync::atomic::Ordering;

/// The vCPUs of a shared core.
pub type Members = ArrayVec<*mut Vcpu<VendorCpu>, { schedule::MAX }>;

/// The life of a core that several vCPUs share.
pub fn enter_shared(argument: usize) -> ! {
    // SAFETY: `start` passes each core's members to it, once, and keeps them until the last has
    // ended; nobody else knows of the vCPUs but the fibers that run on this core, and none runs
    // now.
    unsafe {
        let (core, vcpus) = &*(argument as *const (&SharedCore, Members));
        vcpus.iter().for_each(|vcpu| (**vcpu).cpu.prepare_core());
        core.queue.serve(|vector| _ = core.receive(vector, None));
        fault_interrupt::leave(core.queue.apic_id);
        vcpus.iter().take(1).for_each(|vcpu| (**vcpu).cpu.release_core());
    }
    cpu::park()
}

/// The life of a vCPU that shares its core, on a stack of its own.
pub extern "C" fn share(vcpu: usize) -> ! {
    // SAFETY: `build` made this fiber for the vCPU alone.
    let vcpu = unsafe { &mut *(vcpu as *mut Vcpu<VendorCpu>) };
    let slot = vcpu.slot().expect("a vCPU with a fiber has a slot");
    vcpu.return_to_core(slot);
    vcpu.started = rdtsc();
    vcpu.live();
    vcpu.leave_for_good(slot)
}

/// A core's life with its vCPU.
pub fn enter(vcpu: usize) -> ! {
    // SAFETY: `start` passes each `Box` of a vCPU to one core, once.
    let vcpu = unsafe { &mut *(vcpu as *mut Vcpu<VendorCpu>) };
    cpu::this().vm.store(vcpu.vm.guest.index, Ordering::Relaxed);
    vcpu.started = rdtsc();
    vcpu.live();
    cpu::this().vm.store(cpu::NO_VM, Ordering::Relaxed);
    cpu::park()
}
