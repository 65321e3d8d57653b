//! From plan to VM: devices found and confined, memory filled, the vCPU at its entry.
//!
//! Runs on core 0 at boot. Whatever is wrong with the plan, a kernel or a device ends in one
//! sentence that names it; nothing has run by then.

mod functions;
mod identity;
pub mod lacking;
mod placement;
mod policy;

use crate::cpu::PerCpu;
use crate::cpu::vendor::{Start, VirtualCpu};
use crate::cpu::{Posting, Traits, VendorCpu, VendorOutline};
use crate::pci::Pci;
use crate::pci::assignment::Assignment;
use crate::sched::fiber::Suspended;
use crate::sched::host_core::HostCore;
use crate::sched::run_queue::Member;
use crate::sched::shared_core::SharedCore;
use crate::sidecore::build::Sidecores;
use crate::vm::board::Board;
use crate::vm::contents::Contents;
use crate::vm::core_sharing::core_slot::CoreSlot;
use crate::vm::core_sharing::cores::{self, Members};
use crate::vm::counters::CounterPage;
use crate::vm::devices;
use crate::vm::exits::cpuid::physical_cpuid;
use crate::vm::exits::msr_state::MsrState;
use crate::vm::guest::Guest;
use crate::vm::interrupts::injection::delivery_mode::DeliveryMode;
use crate::vm::interrupts::ipi::remote::VcpuRemote;
use crate::vm::interrupts::shadow_idt::pages::Shadows;
use crate::vm::interrupts::shadow_idt::vcpu_shadow::Shadow;
use crate::vm::interrupts::timer::guest_timer::GuestTimer;
use crate::vm::memory::{Memory, Tables};
use crate::vm::offered::Offered;
use crate::vm::pc::Pc;
use crate::vm::{LEDGER_PAGES, Vcpu, Vm};
use crate::{console, cpu, iommu, watchdog};
use ::iommu::Bdf;
use acpi::Machine;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use delivery::{LocalApic, Mode};
use functions::{Functions, Made};
use identity::identity;
use ledger::Page;
use loader::{EntryMode, GuestMachine, Load, MemoryRegion, RegionKind};
use paging::Access;
use plan::image::Image;
use plan::{GuestIommu, IommuUnit, OnReset};
use proto::{Policy, Record};
use routing::calls::PARAVIRTUAL_SEGMENT;
use spin::Mutex;
use viommu::amdvi;
use viommu::unit::{self, Model};
use virtual_pc::cpuid::efer_offered;
use virtual_pc::msr::Msrs;
use virtual_pc::pci::{ECAM, ECAM_AT, IOMMU_CAPABILITY, IOMMU_FUNCTION};

const LOW_MEMORY_END: u64 = virtual_pc::bios_data::EXTENSION_AT;
const MIB: u64 = 1 << 20;
/// A vCPU and the core that is to run it.
type Placed = (usize, Box<Vcpu<VendorCpu>>);

/// Everything that is to run.
pub struct Built {
    /// The VMs, by index.
    pub vms: Vec<&'static Vm>,
    /// vCPUs with a core of their own.
    pub alone: Vec<Placed>,
    /// Shared cores with theirs, which are in their run queues.
    pub shared: Vec<(&'static SharedCore, Members)>,
    /// The cores that serve paravirtual functions.
    pub sidecores: Sidecores,
    /// Where to look at what every vCPU is entered with: its VM, its id there.
    pub outlines: Vec<(&'static Vm, usize, VendorOutline)>,
    /// Where the counters of every vCPU are.
    pub pages: Vec<CounterPage>,
    /// The longest time slice on a shared core, in TSC ticks.
    pub slice: u64,
    pub host: plan::Host,
}

/// Reads the boot image.
pub fn image(bytes: &'static [u8]) -> Result<Image<'static>, String> {
    plan::image::parse(bytes).map_err(|e| format!("the boot image can't be used: {e}"))
}

/// Builds every VM of the boot image.
pub fn all(machine: &Machine, image: &Image<'static>) -> Result<Built, String> {
    let pci = Pci::new(machine);
    let mut assignment = Assignment::new(pci, &image.plan)?;
    let slice = cpu::tsc_hz() / 1_000_000 * u64::from(image.plan.slice_us);
    let shared = shared_cores(&image.plan, slice);
    if let Some(core) = shared.first().filter(|_| !iommu::remaps()) {
        return Err(format!(
            "core {} is to be shared, and the IOMMU has no interrupt remapping, by which interrupts of devices are kept from whoever else has the core: give each vCPU a core of its own",
            core.queue.index
        ));
    }
    let apart = |index| cpu::get(index).is_some_and(|cpu| !cpu.has_common_tsc());
    if let Some(core) = shared.iter().find(|core| apart(core.queue.index)) {
        return Err(format!(
            "core {} is to be shared, and its TSC isn't core 0's, by which its time slices end: give each vCPU a core of its own",
            core.queue.index
        ));
    }
    let mut sidecores = Sidecores::new(&image.plan)?;
    let of_disks = assignment.keep(image.plan.part_devices())?;
    let uplinks = assignment.keep_uplinks(image.plan.uplinks().map(|(device, _)| device))?;
    let free = image.plan.vms.len() as u16 + 1;
    let free_then = free + of_disks.len() as u16;
    // From here on, those of guests' own IOMMUs.
    let mut domains = free_then + uplinks.len() as u16;
    sidecores.drive(&image.plan, &pci, of_disks, free)?;
    sidecores.wire(&image.plan, &pci, uplinks, free_then)?;
    let taken = machine.ecams.iter().any(|ecam| ecam.segment == PARAVIRTUAL_SEGMENT);
    if taken && !image.plan.sidecores.is_empty() {
        return Err(format!(
            "the machine has a PCI segment {PARAVIRTUAL_SEGMENT:#x}, by which paravirtual functions are told from devices: it can have no sidecores"
        ));
    }
    let (mut vms, mut placed, mut pages) = (Vec::new(), Vec::new(), Vec::new());
    let mut outlines = Vec::new();
    for (index, vm) in image.plan.vms.iter().enumerate() {
        // Memory of many gigabytes takes long to clear.
        watchdog::feed();
        let name = vm.name.as_str();
        let of = |e: String| format!("VM {name:?}: {e}");
        let hands_on = vm.nested && vm.iommu != GuestIommu::None;
        let devices = match hands_on {
            true => assignment.resolve_apart(name, &vm.devices),
            false => assignment.resolve(name, &vm.devices),
        };
        let devices = devices.map_err(of)?;
        let builder = Builder { machine, image, pci, index, vm, shared: &shared };
        let served = (&mut sidecores, &mut domains);
        let (vm, mut vcpus) = builder.build(devices, served, &mut pages).map_err(of)?;
        vms.push(vm);
        outlines.extend(vcpus.iter().map(|(_, vcpu)| (vm, vcpu.id, vcpu.cpu.outline())));
        placed.append(&mut vcpus);
    }
    sidecores.finish()?;
    let sources = vms.iter().map(|vm| vm.pc.lock().pci().sources()).sum();
    let of_core = |core: &'static SharedCore| {
        let mut members = Members::new();
        let mut queue = Vec::new();
        for (_, vcpu) in placed.extract_if(.., |(index, _)| *index == core.queue.index) {
            let remote = vcpu.remote;
            let weight = image.plan.vms.get(vcpu.vm.guest.index).map_or(1, |vm| vm.weight);
            let stack = cpu::fiber_stack()?;
            let vcpu = Box::into_raw(vcpu);
            // SAFETY: the stack was just made, and the vCPU is the fiber's and its core's alone.
            let fiber = unsafe { Suspended::new(stack, cores::share, vcpu as usize) };
            queue.push(Member { mailbox: &remote.mailbox, weight, fiber });
            members.push(vcpu);
        }
        core.routes.reserve(sources);
        core.queue.fill(queue);
        Some((core, members))
    };
    let shared: Option<_> = shared.into_iter().map(of_core).collect();
    let shared = shared.ok_or("no memory is left for the stacks of vCPUs that share a core")?;
    let host = image.plan.host;
    Ok(Built { vms, alone: placed, shared, sidecores, outlines, pages, slice, host })
}

/// The cores that several vCPUs are to share.
fn shared_cores(plan: &plan::Plan, slice: u64) -> Vec<&'static SharedCore> {
    let cores = cpu::all().filter_map(|cpu| {
        let slots = plan.shares(cpu.index as u32);
        let core = || SharedCore::new(cpu, slots, slice);
        (slots > 1).then(|| &*Box::leak(Box::new(core())))
    });
    cores.collect()
}

struct Builder<'a> {
    machine: &'a Machine,
    image: &'a Image<'static>,
    pci: Pci,
    index: usize,
    vm: &'a plan::Vm,
    shared: &'a [&'static SharedCore],
}

impl Builder<'_> {
    #[cold]
    fn build(
        &self,
        devices: Vec<Bdf>,
        (sidecores, domains): (&mut Sidecores, &mut u16),
        pages: &mut Vec<CounterPage>,
    ) -> Result<(&'static Vm, Vec<Placed>), String> {
        let vm = self.vm;
        let cores = self.cores()?;
        let (policy, why) = self.policy();
        if let Some(lack) = cpu::lacks(vm.nested, policy) {
            return Err(lack);
        }
        let spent = crate::memory::host_bytes();
        let format = iommu::page_format();
        let (memory, mut tables) = Memory::new(&vm.name, vm.memory, &self.near(&cores), format)
            .map_err(|e| e.to_string())?;
        let posts = posts(vm, policy);
        let contents = self.load(&memory, posts)?;
        let start = start(&contents.load);
        let mut functions = Functions::new((self.index, &vm.name), self.pci);
        let place = self.image.plan.sidecore_of_iommu(self.index);
        let longest = vm.iommu.optimism_us() * (cpu::tsc_hz() / 1_000_000);
        if let Some(unit) = vm.iommu.unit() {
            let own = ((model(unit), posts), &*devices, longest);
            let of = (&memory, &mut tables);
            *domains = functions.add_unit(own, of, sidecores, place, *domains)?;
        } else if vm.iommu.is_virtio() {
            let (own, of) = ((&*devices, longest), (&memory, tables.dma_root()));
            *domains = functions.add_iommu(own, of, sidecores, place, *domains)?;
        }
        functions.assign(devices, tables.dma_root(), format)?;
        functions.add_served(vm, self.image, &memory, sidecores)?;
        let Made { bus: pci, served, iommu } = functions.done();
        let mut ledgers = Vec::new();
        let mut frames = Vec::new();
        let mut postings = Vec::new();
        for (id, core) in cores.iter().enumerate() {
            if policy == Policy::Posted {
                let posting = Posting::new(core.apic_id);
                postings.push(posting.ok_or("no memory is left for what is posted")?);
            }
            ledgers.push(ledger(&mut tables, id)?);
            let frame = crate::memory::allocate(4096, 4096);
            frames.push(frame.ok_or("no memory is left for its shadow IDT")?);
        }
        let nested_root = tables.nested_root();
        tables.close();
        let remote = |(id, cpu): (usize, &&'static PerCpu)| {
            let shared = self.shared.iter().find(|core| core.queue.index == cpu.index);
            let core = shared.map_or(HostCore::Dedicated(cpu), |core| HostCore::shared(core));
            VcpuRemote::new(core, policy, id == 0, postings.get(id).copied(), posts)
        };
        let board = Board::new(tables, Shadows::new(frames), iommu);
        let (pc, bus) = Pc::new(board, pci, devices::emulated());
        let remotes = cores.iter().enumerate().map(remote).collect();
        let efer = efer_offered(physical_cpuid(0x8000_0001, 0), physical_cpuid(0x8000_0021, 0));
        let nesting = vm.nested.then(|| Offered::new(efer, |leaf| physical_cpuid(leaf, 0)));
        let shared: &'static Vm = Box::leak(Box::new(Vm {
            guest: Guest::new(self.index, vm.name.clone(), policy, memory, remotes),
            pc: Mutex::new(pc),
            bus,
            cpuid_limits: (physical_cpuid(0, 0).eax, physical_cpuid(0x8000_0000, 0).eax),
            efer_offered: nesting.as_ref().map_or(efer, |nesting| nesting.offer.efer),
            nesting,
            ending: Default::default(),
            contents,
            served,
            iommu,
            restarts: vm.reset == OnReset::Restart,
            told_unanswered: Default::default(),
            told_restart: Default::default(),
        }));
        iommu.into_iter().for_each(|iommu| iommu.belongs_to(&shared.guest));
        let mut vcpus = Vec::new();
        for (id, (core, ledger)) in cores.iter().zip(ledgers).enumerate() {
            // SAFETY: `ledger` took a page for good, and its vCPU only counts in it.
            let page = unsafe { CounterPage::new(self.index, id, core.index, &raw const *ledger) };
            pages.push(page);
            let vcpu = self.vcpu(shared, id, nested_root, start, ledger)?;
            vcpus.push((core.index, Box::new(vcpu)));
        }
        console::attach(self.index, &vm.name);
        let overhead = crate::memory::host_bytes() - spent - vm.memory;
        console::record(&Record::Started {
            vm: self.index as u32,
            name: vm.name.clone(),
            policy,
            why: why.into(),
            memory: vm.memory,
            overhead,
            now: crate::cpu::rdtsc(),
        });
        Ok((shared, vcpus))
    }

    fn vcpu(
        &self,
        vm: &'static Vm,
        id: usize,
        nested_root: u64,
        start: Start,
        ledger: &'static mut Page,
    ) -> Result<Vcpu<VendorCpu>, String> {
        let pm_timer = self.machine.pm_timer.map(|timer| timer.port);
        // An ASID for each vCPU of a core: two may be of one VM, and have other page tables.
        let remote = &vm.guest.remotes[id];
        let (shared, asid, timer) = match remote.core.slot() {
            None => (false, 1, GuestTimer::of_core()),
            Some(slot) => (true, slot.index as u16 + 1, GuestTimer::of_slot()),
        };
        let traits = Traits {
            completions_exit: vm.guest.policy == Policy::EliDelivery,
            shared,
            hides_gates: matches!(vm.guest.policy, Policy::Eli | Policy::EliDelivery),
            takes: match vm.guest.policy {
                Policy::Trap => Mode::Injection,
                Policy::EliDelivery | Policy::Eli => Mode::Eli,
                Policy::Direct => Mode::Passthrough,
                Policy::Posted => Mode::Posted,
            },
            posting: remote.posting,
            posts: remote.posted_to(),
            offer: vm.nesting.as_ref().map(|nesting| nesting.offer),
        };
        let cpu = VendorCpu::new(nested_root, asid, pm_timer, traits, start)
            .ok_or("no memory is left for its vCPUs")?;
        Ok(Vcpu {
            vm,
            id,
            cpu,
            remote,
            slot: CoreSlot::of(&remote.core),
            start,
            code_pages: Default::default(),
            serves: false,
            ledger,
            mode: DeliveryMode::new(),
            waits: Default::default(),
            apic: LocalApic::new(id as u32),
            shadow: Shadow::default(),
            timer,
            msrs: MsrState::new(Msrs::new(identity(vm.nesting.is_some()))),
            started: 0,
            unanswered: Default::default(),
        })
    }

    /// Puts kernel, initrd and tables into the guest's memory.
    fn load(&self, memory: &Memory, posts: bool) -> Result<Contents, String> {
        let regions = memory_map(memory);
        let machine = GuestMachine { regions: &regions, rsdp: acpi::guest::BASE };
        let initrd = self.image.initrd(self.vm);
        let kernel = self.image.kernel(self.vm);
        let load = loader::load(kernel, initrd.map(|i| i.len() as u64), &self.vm.cmdline, &machine)
            .map_err(|e| format!("it can't be loaded: {e}"))?;
        let tables = acpi::guest::build(&acpi::guest::GuestConfig {
            vcpus: self.vm.cpus.len() as u32,
            pm_timer: self.machine.pm_timer,
            configuration_space: ECAM_AT,
            iommu: described(self.vm, posts),
        })
        .map_err(|e| format!("its ACPI tables can't be made: {e}"))?;
        let contents = Contents { load, initrd, tables };
        // Guest memory starts zeroed, so the zeros after a segment are there already.
        match contents.put(memory, || {}) {
            true => Ok(contents),
            false => Err("its kernel doesn't fit its memory".into()),
        }
    }
}

/// Does a VM's own unit post interrupts to guests of the VM's? Its own exit, and come by vectors
/// that its guests' IDTs can't have.
fn posts(vm: &plan::Vm, policy: Policy) -> bool {
    vm.nested && vm.iommu.unit() == Some(IommuUnit::AmdVi) && policy == Policy::Trap
}

/// A unit as who makes it knows it.
fn model(unit: IommuUnit) -> Model {
    match unit {
        IommuUnit::VtD => Model::VtD,
        IommuUnit::AmdVi => Model::AmdVi,
    }
}

/// A VM's own IOMMU as its ACPI tables are to describe it.
fn described(vm: &plan::Vm, posts: bool) -> Option<acpi::guest::Iommu> {
    use acpi::guest::{AmdVi, Iommu};
    let Some(unit) = vm.iommu.unit() else {
        return vm.iommu.is_virtio().then_some(Iommu::Virtio(vm.devices.len() as u8));
    };
    let (registers, model) = (unit::BASE, model(unit));
    let ioapic = model.ioapic();
    Some(match model {
        Model::VtD => Iommu::VtD { registers, width: model.width(), ioapic },
        Model::AmdVi => Iommu::AmdVi(AmdVi {
            function: IOMMU_FUNCTION.into(),
            capability: IOMMU_CAPABILITY.into(),
            registers,
            features: amdvi::extended_features(posts),
            ioapic,
        }),
    })
}

/// The ledger page of a vCPU, shown to the guest.
fn ledger(tables: &mut Tables, id: usize) -> Result<&'static mut Page, String> {
    let frame = crate::memory::allocate(4096, 4096).ok_or("no memory is left for its ledger")?;
    let gpa = LEDGER_PAGES + ((id as u64) << 12);
    tables.map(gpa, frame, 4096, Access::READ).map_err(|e| e.to_string())?;
    let page = frame as *mut Page;
    // SAFETY: a page of our own, identity-mapped and aligned; the guest can only read it, and
    // only its vCPU's core writes it.
    unsafe {
        page.write(Page::new());
        Ok(&mut *page)
    }
}

fn memory_map(memory: &Memory) -> Vec<MemoryRegion> {
    let mut map = Vec::new();
    let mut add = |start: u64, end: u64, kind| {
        if start < end {
            map.push(MemoryRegion { start, len: end - start, kind });
        }
    };
    for r in memory.regions() {
        if r.gpa == 0 {
            add(0, LOW_MEMORY_END, RegionKind::Ram);
            add(LOW_MEMORY_END, MIB, RegionKind::Reserved);
            add(MIB, r.len, RegionKind::Ram);
            add(ECAM.start, ECAM.end, RegionKind::Reserved);
        } else {
            add(r.gpa, r.gpa + r.len, RegionKind::Ram);
        }
    }
    map
}

fn start(load: &Load) -> Start {
    let e = &load.entry;
    let (page_tables, gdt) = match e.mode {
        EntryMode::Bits32 => (None, (0, 0)),
        EntryMode::Bits64 { cr3, gdt, gdt_limit } => (Some(cr3), (gdt, gdt_limit)),
    };
    Start::Kernel {
        rip: e.rip,
        page_tables,
        gdt,
        selectors: (loader::CODE_SELECTOR, loader::DATA_SELECTOR),
        registers: (e.rax, e.rbx, e.rsi),
    }
}
