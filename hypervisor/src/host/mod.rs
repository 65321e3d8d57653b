//! Core 0's own work: what it watches, reports and looks over while the other cores run guests.

pub mod audit;
pub mod errors;
pub mod intx;
pub mod inventory;
pub mod iommu_faults;
pub mod live;
pub mod outputs;
pub mod pauses;
#[cfg(feature = "plant")]
pub mod plant;

use crate::cpu::{self, rdtsc};
use crate::panic::finish;
use crate::pci::{Pci, sriov};
use crate::refusal::refuse;
use crate::sched::clock::{self, Alarmed};
use crate::vm::build::lacking;
use crate::vm::core_sharing::cores;
use crate::vm::{build, life};
use crate::{console, interrupts, iommu, sidecore, watchdog};
use alloc::boxed::Box;
use alloc::vec::Vec;
use audit::Audit;
use core::ops::ControlFlow;
use delivery::VectorSet;
use errors::ErrorPolls;
use intx::IntxReports;
use iommu_faults::FaultReports;
use live::LiveRecords;
use pauses::Pauses;

/// How often core 0 looks for input and after what it watches, at the least.
const TICKS_PER_SECOND: u64 = 100;

/// Builds the VMs of the boot image, runs them, and ends when the last has ended.
#[cold]
pub fn start(machine: &acpi::Machine, image: &'static [u8]) -> ! {
    if let Err(missing) = cpu::choose() {
        refuse(missing);
    }
    cpu::errata().for_each(|what| log::warn!("of the processor: {what}"));
    let image = build::image(image).unwrap_or_else(|reason| refuse(reason));
    outputs::show(&image.plan);
    let found = iommu::find(machine, image.plan.host.without_remapping);
    let no_unit = found.as_ref().err().map(|why| why.as_str());
    let lacks: Vec<_> = Pci::new(machine).lack().into_iter().chain(no_unit).collect();
    lacking::check(&image.plan, &lacks).unwrap_or_else(|reason| refuse(reason));
    if let Some(Err(lack)) = found.ok().map(iommu::enable) {
        lacking::check(&image.plan, &[&lack]).unwrap_or_else(|reason| refuse(reason));
    }
    let built = build::all(machine, &image).unwrap_or_else(|reason| refuse(reason));
    let build::Built { vms, alone, shared, sidecores, outlines, pages, slice, host } = built;
    let core = shared.first().map(|(core, _)| core.queue.apic_id);
    let guest = core.unwrap_or(vms[0].guest.remotes[0].apic_id);
    let mut faults =
        FaultReports::new(host.iommu_faults, core, guest).unwrap_or_else(|reason| refuse(reason));
    let mut audit = Audit::new(&vms, outlines, &pages).unwrap_or_else(|reason| refuse(reason));
    let mut intx = IntxReports::new(&vms);
    let live = LiveRecords { pages, sidecores: sidecores.counts() };
    let queues = shared.iter().map(|(core, _)| &core.queue as &dyn Alarmed).collect();
    clock::build(queues, slice.min(cpu::tsc_hz() / TICKS_PER_SECOND));
    crate::memory::freeze();
    sidecores.start();
    for (core, vcpu) in alone {
        cpu::run_on(core, cores::enter, Box::into_raw(vcpu) as usize);
    }
    for members in &shared {
        cpu::run_on(
            members.0.queue.index,
            cores::enter_shared,
            core::ptr::from_ref(members) as usize,
        );
    }
    cpu::x2apic::let_platform_nmis_in();
    let mut pauses = Pauses::new();
    let mut errors = ErrorPolls::new();
    let round = |arrived: &VectorSet| {
        faults.round(arrived.contains(interrupts::FAULTS));
        interrupts::nmi::report();
        live.answer(&vms);
        sriov::serve();
        shared.iter().for_each(|(core, _)| core.report_strays());
        // By the clock, and not as often as guests have core 0 wake up.
        if clock::ticked() {
            pauses.tick();
            watchdog::feed();
            errors.look();
            sriov::throttle();
            vms.iter().flat_map(|vm| &vm.guest.remotes).for_each(|vcpu| vcpu.resend_kick(rdtsc()));
            cpu::all().for_each(|core| core.watch_taking(rdtsc()));
            audit.look();
            intx.look();
        }
        if life::ended() == vms.len() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let input = |vm: usize| vms.get(vm).iter().for_each(|vm| vm.guest.remotes[0].console());
    let watch = || shared.iter().for_each(|(core, _)| core.queue.watch(rdtsc()));
    clock::start();
    console::serve(watch, input, round);
    clock::stop();
    sidecore::shutdown::all();
    audit.report();
    sriov::report();
    live.report_sidecores();
    finish(host.at_end)
}
