//! From plan to VM: devices found and confined, memory filled, the vCPU at its entry.
//!
//! Runs on core 0 at boot. Whatever is wrong with the plan, a kernel or a device ends in one
//! sentence that names it; nothing has run by then.

use super::devices::Device;
use super::io::physical_cpuid;
use super::memory::Memory;
use super::shadow::Shadow;
use super::vcpu::host_vectors;
use super::{LEDGER_PAGE, Vm};
use crate::cpu::svm::{Start, SvmCpu};
use crate::pci::{Function, Pci};
use crate::{console, cpu, iommu};
use ::iommu::Bdf;
use acpi::Machine;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use delivery::{LocalApic, Mode, Routes, VectorSet};
use ledger::{Delivery, Page, Record};
use loader::{EntryMode, GuestMachine, Load, MemoryRegion, RegionKind};
use paging::Access;
use plan::image::Image;
use plan::{Choice, DeviceName};
use platform::cpuid::efer_offered;
use platform::msr::{Identity, Msrs, Vendor};
use platform::pci::{Addresses, Bus};

/// PCI base class of bridges.
const BRIDGE_CLASS: u32 = 6;
const LOW_MEMORY_END: u64 = 0xA0000;
const MIB: u64 = 1 << 20;
/// The time of day the guests' clock chips show; nothing keeps the time across boots.
const CLOCK: u64 = 1_767_225_600;

/// A VM and the core that is to run it.
pub type Placed = (usize, Box<Vm<SvmCpu>>);

/// Builds every VM of the boot image.
pub fn all(machine: &Machine, bytes: &'static [u8]) -> Result<Vec<Placed>, String> {
    if bytes.is_empty() {
        return Err("no boot image was loaded: the boot loader must pass the file that `exitless image` makes as the one module".into());
    }
    let image =
        plan::image::parse(bytes).map_err(|e| format!("the boot image can't be used: {e}"))?;
    let ecam = machine.ecam.ok_or(
        "the machine's ACPI tables have no MCFG: PCI configuration space in memory is needed (q35 has it, i440fx doesn't)",
    )?;
    let pci = Pci::new(ecam);
    let functions = pci.scan();
    let mut taken = Vec::new();
    let mut vms = Vec::new();
    for (index, vm) in image.plan.vms.iter().enumerate() {
        let name = vm.name.as_str();
        let of = |e: String| format!("VM {name:?}: {e}");
        let devices = resolve(&pci, &functions, &vm.devices, &mut taken).map_err(of)?;
        let built =
            Builder { machine, image: &image, pci, index, vm }.build(devices).map_err(of)?;
        vms.push(built);
    }
    Ok(vms)
}

/// Finds the functions a VM names, refusing those that aren't there, can't be confined or
/// belong to another VM.
fn resolve(
    pci: &Pci,
    functions: &[Function],
    names: &[DeviceName],
    taken: &mut Vec<Bdf>,
) -> Result<Vec<Bdf>, String> {
    let mut found = Vec::new();
    for name in names {
        let function = match name {
            DeviceName::Address { bus, device, function } => {
                let bdf = Bdf::new(*bus, *device, *function);
                functions.iter().find(|f| Some(f.bdf) == bdf)
            }
            DeviceName::Named { class, index } => functions
                .iter()
                .filter(|f| class.matches(f.class, f.vendor, f.device))
                .nth(*index as usize),
            DeviceName::Virtual { .. } => None,
        };
        let Some(f) = function else {
            let have: Vec<_> = functions.iter().map(|f| f.bdf.to_string()).collect();
            return Err(format!("device {name} isn't in this machine; it has {}", have.join(", ")));
        };
        let bdf = f.bdf;
        if f.class >> 16 == BRIDGE_CLASS {
            return Err(format!(
                "device {name} ({bdf}) is a bridge (class {:#08x}) and part of the machine; only endpoints can be assigned",
                f.class
            ));
        }
        if taken.contains(&bdf) {
            return Err(format!(
                "device {name} ({bdf}) is assigned twice; a device can belong to one VM only"
            ));
        }
        if !iommu::serves(bdf) {
            return Err(format!(
                "device {name} ({bdf}) is behind no IOMMU and can't be confined to the VM's memory"
            ));
        }
        if bdf.bus() != 0 && pci.capability(bdf, 0x10).is_none() {
            return Err(format!(
                "device {name} ({bdf}) is a conventional PCI device behind a bridge: it shares its requester id with its neighbours, so the IOMMU can't tell it from them"
            ));
        }
        taken.push(bdf);
        found.push(bdf);
    }
    Ok(found)
}

struct Builder<'a> {
    machine: &'a Machine,
    image: &'a Image<'static>,
    pci: Pci,
    index: usize,
    vm: &'a plan::Vm,
}

impl Builder<'_> {
    fn build(&self, devices: Vec<Bdf>) -> Result<Placed, String> {
        let vm = self.vm;
        let core = self.core()?;
        let spent = crate::memory::host_bytes();
        let format = iommu::dma_format();
        let mut memory = Memory::new(&vm.name, vm.memory, format).map_err(|e| e.to_string())?;
        let load = self.load(&memory)?;
        let (bus, devices) = self.assign(devices, &memory, format)?;
        let ledger = self.ledger(&mut memory)?;
        let ports = self.machine.pm_timer.map_or(0..0, |t| t.port..t.port.saturating_add(4));
        let shadow =
            crate::memory::allocate(4096, 4096).ok_or("no memory is left for its shadow IDT")?;
        let asid = self.index as u32 + 1;
        let (policy, why) = self.policy();
        let completions_exit = policy == Delivery::EliDelivery;
        let cpu = SvmCpu::new(memory.nested_root(), asid, ports, completions_exit, start(&load))
            .ok_or("no memory is left for its vCPU")?;
        console::attach(self.index, cpu::get(core).map_or(0, |c| c.apic_id));
        memory.close();
        let overhead = crate::memory::host_bytes() - spent - vm.memory;
        console::record(&Record::Started {
            vm: self.index as u32,
            name: vm.name.clone(),
            delivery: policy,
            why: why.into(),
            memory: vm.memory,
            overhead,
        });
        Ok((
            core,
            Box::new(Vm {
                index: self.index,
                name: vm.name.clone(),
                policy,
                cpu,
                memory,
                code_pages: Default::default(),
                ledger,
                mode: Mode::Injection,
                apic: LocalApic::new(0),
                routes: Routes::new(host_vectors(policy)),
                routes_in_use: false,
                device_vectors: VectorSet::EMPTY,
                shadow: Shadow { frame: shadow, page: None, hidden: VectorSet::EMPTY, hold: false },
                offered: None,
                priority_watched: false,
                timer_requested: None,
                cpuid_limits: (physical_cpuid(0, 0).eax, physical_cpuid(0x8000_0000, 0).eax),
                efer_offered: efer_offered(
                    physical_cpuid(0x8000_0001, 0),
                    physical_cpuid(0x8000_0021, 0),
                ),
                msrs: Msrs::new(identity()),
                uart: Default::default(),
                console_input: None,
                ioapic: Default::default(),
                rtc: platform::rtc::Rtc::new(CLOCK),
                bus,
                devices,
                pci: self.pci,
                incident: None,
                started: 0,
            }),
        ))
    }

    fn core(&self) -> Result<usize, String> {
        let [core] = self.vm.cpus.as_slice() else {
            return Err(format!(
                "it has {} vCPUs; this version runs one vCPU per VM",
                self.vm.cpus.len()
            ));
        };
        let core = *core as usize;
        if core == 0 || core >= cpu::count() {
            return Err(format!(
                "core {core} can't run it: the machine has cores 0 to {}, and core 0 is the host's",
                cpu::count() - 1
            ));
        }
        Ok(core)
    }

    fn policy(&self) -> (Delivery, &'static str) {
        match self.vm.interrupts {
            Choice::Trap => (Delivery::Trap, "asked for"),
            Choice::Eli => (Delivery::Eli, "asked for"),
            Choice::EliDelivery => (Delivery::EliDelivery, "asked for"),
            Choice::Direct => (Delivery::Direct, "asked for"),
            Choice::Auto => (
                Delivery::Direct,
                "its core is its own, and the machine has x2APIC and interrupt remapping",
            ),
        }
    }

    /// Puts kernel, initrd and tables into the guest's memory.
    fn load(&self, memory: &Memory) -> Result<Load<'static>, String> {
        let regions = memory_map(memory);
        let machine = GuestMachine { regions: &regions, rsdp: acpi::guest::BASE };
        let initrd = self.image.initrd(self.vm);
        let kernel = self.image.kernel(self.vm);
        let load = loader::load(kernel, initrd.map(|i| i.len() as u64), &self.vm.cmdline, &machine)
            .map_err(|e| format!("its kernel can't be loaded: {e}"))?;
        let outside = || String::from("its kernel doesn't fit its memory");
        let put = |at, bytes: &[u8]| if memory.write(at, bytes) { Ok(()) } else { Err(outside()) };
        // Guest memory starts zeroed, so the zeros after a segment are there already.
        for s in &load.segments {
            put(s.at, s.bytes)?;
        }
        for b in &load.blobs {
            put(b.at, &b.bytes)?;
        }
        if let (Some(at), Some(initrd)) = (load.initrd_at, initrd) {
            put(at, initrd)?;
        }
        let tables = acpi::guest::build(&acpi::guest::GuestConfig {
            vcpus: 1,
            pm_timer: self.machine.pm_timer,
        })
        .map_err(|e| format!("its ACPI tables can't be made: {e}"))?;
        put(acpi::guest::BASE, &tables)?;
        Ok(load)
    }

    /// Confines the devices to the VM's memory and puts them on its PCI bus.
    fn assign(
        &self,
        functions: Vec<Bdf>,
        memory: &Memory,
        format: paging::VtdSecondLevel,
    ) -> Result<(Bus, Vec<Device>), String> {
        let mut bus = Bus::new();
        let mut devices = Vec::new();
        let mut addresses = Addresses::new();
        for bdf in functions {
            let refused = |e: String| format!("device {bdf} can't be assigned: {e}");
            let (mut device, shown) =
                Device::new(&self.pci, bdf, &mut addresses).map_err(refused)?;
            device.reset(&self.pci);
            iommu::attach(bdf, self.index as u16 + 1, memory.dma_root(), format)
                .map_err(refused)?;
            bus.assign(shown).map_err(|e| refused(e.to_string()))?;
            devices.push(device);
        }
        Ok((bus, devices))
    }

    fn ledger(&self, memory: &mut Memory) -> Result<&'static mut Page, String> {
        let frame =
            crate::memory::allocate(4096, 4096).ok_or("no memory is left for its ledger")?;
        memory.map(LEDGER_PAGE, frame, 4096, Access::READ).map_err(|e| e.to_string())?;
        let page = frame as *mut Page;
        // SAFETY: a page of our own, identity-mapped and aligned; the guest can only read it, and
        // only this VM's core writes it.
        unsafe {
            page.write(Page::new());
            Ok(&mut *page)
        }
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
    Start {
        rip: e.rip,
        page_tables,
        gdt,
        code_selector: loader::CODE_SELECTOR,
        data_selector: loader::DATA_SELECTOR,
        rax: e.rax,
        rbx: e.rbx,
        rsi: e.rsi,
    }
}

/// Facts of this machine that its guests are told.
fn identity() -> Identity {
    let id = raw_cpuid::CpuId::new();
    let intel = id.get_vendor_info().is_some_and(|v| v.as_str() == "GenuineIntel");
    Identity {
        vendor: if intel { Vendor::Intel } else { Vendor::Amd },
        physical_bits: physical_cpuid(0x8000_0008, 0).eax as u8,
        boot_processor: true,
        microcode: 0,
        arch_capabilities: 0,
        lfence_serializes: false,
    }
}
