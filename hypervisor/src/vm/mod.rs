//! Virtual machines: built from the plan on core 0, each vCPU run by the core the plan gives it.
//!
//! Guarantees: everything a VM is made of is allocated before the first guest starts; from
//! then on a VM belongs to its cores, and cores of different VMs share nothing but the console
//! rings, the IOMMU and the list of endings. The vCPUs of a VM share its [`Pc`], behind a lock
//! of its own. A VM that ends gives its devices back silenced, when all its vCPUs are out of the
//! guest.

mod build;
mod contents;
pub mod devices;
pub mod exits;
pub mod interrupts;
pub mod life;
pub mod memory;
pub mod pc;
mod report;
pub mod time_slice;

use crate::cpu::svm::{self, SvmCpu};
use crate::cpu::vendor::{Start, VirtualCpu};
use crate::cpu::{self, rdtsc};
use crate::host::{
    audit::Audit,
    iommu_faults::{self, Critical},
    live,
    pauses::Pauses,
};
use crate::panic::{finish, refuse};
use crate::pci::sriov;
use crate::sched::shared::{SharedCore, Yield};
use crate::{console, interrupts as host_interrupts, iommu};
use alloc::boxed::Box;
use alloc::string::String;
use contents::Contents;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use delivery::{LocalApic, Mode, VectorSet, VirtualTimer};
use exits::fetch::CodePages;
use interrupts::mailbox::Link;
use interrupts::shadow::Shadow;
use ledger::{Delivery, Page};
use life::Ending;
use memory::Memory;
use pc::Pc;
use platform::msr::Msrs;
use platform::pci::Bus;
use spin::Mutex;

/// Where a guest finds the ledger page of its first vCPU; those of the others follow
/// (CPUID 0x4000_0001 on each).
pub const LEDGER_PAGES: u64 = 0xFED4_0000;

/// A VM: what its vCPUs share.
pub struct Vm {
    pub(crate) index: usize,
    pub(crate) name: String,
    policy: Delivery,
    pub(crate) memory: Memory,
    /// One for each vCPU, by its APIC id.
    pub(crate) links: Box<[Link]>,
    pub(crate) pc: Mutex<Pc>,
    /// Taking interrupts itself would gain the guest something: the policy lets it, and some source of an
    /// assigned device is routed.
    direct_gains: AtomicBool,
    /// EAX of the physical CPUID leaves 0 and 0x8000_0000.
    cpuid_limits: (u32, u32),
    /// Bits of EFER that the guest may set.
    efer_offered: u64,
    pub(crate) ending: Ending,

    // As it starts, and starts again.
    contents: Contents,
    bus: Bus,
    restarts: bool,
}

/// A vCPU: what belongs to its core alone.
pub struct Vcpu<C: VirtualCpu> {
    vm: &'static Vm,
    /// Its APIC id and its place among the links.
    id: usize,
    cpu: C,
    start: Start,
    code_pages: CodePages,
    ledger: &'static mut Page,

    // Interrupts.
    mode: Mode,
    apic: LocalApic,
    shadow: Shadow,
    /// The virtual interrupt the guest will take at the first chance.
    offered: Option<u8>,
    /// MOV to CR8 exits, since there is an interrupt for it to hold back or let in.
    priority_watched: bool,
    /// The vector under which the timer's last interrupt waits.
    timer_requested: Option<u8>,
    /// The guest's timer, where the core's isn't its own.
    timer: VirtualTimer,

    msrs: Msrs,
    /// As they are at the start of the VM.
    first_msrs: Msrs,
    started: u64,
}

impl<C: VirtualCpu> Vcpu<C> {
    fn link(&self) -> &'static Link {
        &self.vm.links[self.id]
    }
}

static ENDED: AtomicUsize = AtomicUsize::new(0);

/// Builds the VMs of the boot image, runs them, and ends when the last has ended.
pub fn start(machine: &acpi::Machine, image: &'static [u8]) -> ! {
    if let Err(missing) = svm::supported() {
        refuse(missing);
    }
    let image = build::image(image).unwrap_or_else(|reason| refuse(reason));
    let without = image.plan.host.without_remapping;
    iommu::enable(machine, without).unwrap_or_else(|reason| refuse(reason));
    let built = build::all(machine, &image).unwrap_or_else(|reason| refuse(reason));
    let build::Built { vms, alone, shared, slice, host } = built;
    let core = shared.first().map(|(core, _)| *core);
    let guest = core.map_or_else(|| vms[0].links[0].apic_id, |core| core.apic_id);
    let mut critical =
        Critical::new(host.iommu_faults, core, guest).unwrap_or_else(|reason| refuse(reason));
    let mut audit = Audit::new(&vms).unwrap_or_else(|reason| refuse(reason));
    crate::memory::freeze();
    for (core, vcpu) in alone {
        cpu::run_on(core, enter, Box::into_raw(vcpu) as usize);
    }
    for members in &shared {
        cpu::run_on(members.0.index, enter_shared, core::ptr::from_ref(members) as usize);
    }
    let mut pauses = Pauses::new();
    let round = |arrived: &VectorSet| {
        critical.round(arrived.contains(host_interrupts::FAULTS));
        live::answer();
        sriov::serve();
        shared.iter().for_each(|(core, _)| core.tell_of_strays());
        // By the clock, and not as often as guests have core 0 wake up.
        if arrived.contains(host_interrupts::TIMER) {
            pauses.tick();
            vms.iter().flat_map(|vm| &vm.links).for_each(|link| link.remind(rdtsc()));
            audit.look();
        }
        if ENDED.load(Ordering::Acquire) == vms.len() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let input = |vm: usize| vms.get(vm).iter().for_each(|vm| vm.links[0].console());
    let watch = || shared.iter().for_each(|(core, _)| core.watch(rdtsc()));
    console::serve(slice, watch, input, round);
    audit.tell();
    finish()
}

/// The life of a core that several vCPUs share.
fn enter_shared(argument: usize) -> ! {
    // SAFETY: `start` passes each core's members to it, once, and keeps them until the last has
    // ended; nobody else knows of the vCPUs but the fibers that run on this core, and none runs now.
    unsafe {
        let (core, vcpus) = &*(argument as *const (&SharedCore, build::Members));
        vcpus.iter().for_each(|vcpu| (**vcpu).cpu.prepare_core());
        core.serve::<SvmCpu>();
        iommu_faults::leave(core.apic_id);
        vcpus.iter().take(1).for_each(|vcpu| (**vcpu).cpu.release_core());
    }
    cpu::park()
}

/// The life of a vCPU that shares its core, on a stack of its own.
extern "C" fn share(vcpu: usize) -> ! {
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
fn enter(vcpu: usize) -> ! {
    // SAFETY: `start` passes each `Box` of a vCPU to one core, once.
    let vcpu = unsafe { &mut *(vcpu as *mut Vcpu<SvmCpu>) };
    cpu::this().vm.store(vcpu.vm.index, Ordering::Relaxed);
    vcpu.started = rdtsc();
    vcpu.live();
    cpu::this().vm.store(cpu::NO_VM, Ordering::Relaxed);
    cpu::park()
}
