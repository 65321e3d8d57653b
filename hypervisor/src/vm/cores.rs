//! What a core does that was given vCPUs: one for good, or several in turn.

use crate::cpu::svm::SvmCpu;
use crate::cpu::vendor::VirtualCpu;
use crate::cpu::{self, rdtsc};
use crate::iommu::fault_interrupt;
use crate::sched::shared::{SharedCore, Yield};
use crate::vm::{Vcpu, build};
use core::sync::atomic::Ordering;

/// The life of a core that several vCPUs share.
pub fn enter_shared(argument: usize) -> ! {
    // SAFETY: `start` passes each core's members to it, once, and keeps them until the last has
    // ended; nobody else knows of the vCPUs but the fibers that run on this core, and none runs now.
    unsafe {
        let (core, vcpus) = &*(argument as *const (&SharedCore, build::Members));
        vcpus.iter().for_each(|vcpu| (**vcpu).cpu.prepare_core());
        core.serve();
        fault_interrupt::leave(core.apic_id);
        vcpus.iter().take(1).for_each(|vcpu| (**vcpu).cpu.release_core());
    }
    cpu::park()
}

/// The life of a vCPU that shares its core, on a stack of its own.
pub extern "C" fn share(vcpu: usize) -> ! {
    // SAFETY: `build` made this fiber for the vCPU alone.
    let vcpu = unsafe { &mut *(vcpu as *mut Vcpu<SvmCpu>) };
    let (core, place) = vcpu.seat().expect("a vCPU with a fiber has a seat");
    vcpu.return_to_core(core, place);
    vcpu.started = rdtsc();
    vcpu.live();
    loop {
        vcpu.give_way(core, place, Yield::Gone);
    }
}

/// A core's life with its vCPU.
pub fn enter(vcpu: usize) -> ! {
    // SAFETY: `start` passes each `Box` of a vCPU to one core, once.
    let vcpu = unsafe { &mut *(vcpu as *mut Vcpu<SvmCpu>) };
    cpu::this().vm.store(vcpu.vm.index, Ordering::Relaxed);
    vcpu.started = rdtsc();
    vcpu.live();
    cpu::this().vm.store(cpu::NO_VM, Ordering::Relaxed);
    cpu::park()
}
