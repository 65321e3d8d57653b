//! Core 0 looks over what confines the guests while they run: every VM's nested and DMA page
//! tables, those of devices that sidecores drive (`driven`), every entry by which an IOMMU passes
//! interrupts or DMA on, and whether the IOMMUs go by these; what each vCPU may do without an exit
//! (`vcpus`).
//!
//! Guarantees: what is right is taken from what each VM was given at boot, from what its guest
//! asked of its devices and from what its cores take vectors for, never from the tables; an entry
//! that is wrong for longer than a pass is found, reported once, and its VM stopped, since nothing
//! may hold it any more. Core 0 waits for nobody: it reads the tables without a lock, takes those
//! that it needs to judge a present interrupt entry, or to look again at what looks wrong, only if
//! they are free, and else comes back. At most [`read::ENTRIES`] entries, [`DEVICES`] of a table of
//! devices, or one map of a vCPU, are looked at in a call. Doesn't see what caches hold, nor what
//! is wrong for a moment only.

mod driven;
mod inner;
mod read;
mod vcpus;

use crate::cpu::{self, VendorOutline, rdtsc};
use crate::vm::counters::CounterPage;
use crate::vm::devices::pci_bus::interface::PciFunction;
use crate::vm::ending::Cause;
use crate::vm::memory::Outlines;
use crate::vm::pc::Pc;
use crate::vm::stop::Finding;
use crate::vm::stop::Stop;
use crate::vm::{LEDGER_PAGES, Vm};
use crate::{console, iommu};
use ::iommu::audit::{self as unit, Expected};
use ::iommu::{Bdf, Domain, DomainId, InterruptRoute};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use driven::Driven;
use paging::audit::{self as table, Region};
use paging::{Access, Format};
use proto::Record;
use read::{ENTRIES, Looked, looked, word};
use routing::ExpectedVectors;
use spin::MutexGuard;
use viommu::unit::BASE;

/// The same for entries of devices: AMD-Vi's table has one for each of 65,536, there or not.
const DEVICES: u32 = 512;
/// The most findings that are reported one by one.
const REPORTED: usize = 32;
const PAGE: u64 = 4096;

/// A VM, and what it may reach.
struct Confined {
    vm: &'static Vm,
    tables: Outlines,
    /// The memory that its vCPUs may reach, and its devices.
    nested: Vec<Region>,
    dma: Vec<Region>,
    /// The same by the guest's own IOMMU: at whatever address.
    translated: Vec<Region>,
    nested_at: table::Cursor,
    dma_at: table::Cursor,
    /// The tables for DMA that are looked at: the VM's, or those of its own IOMMU, from 1 on.
    dma_of: usize,
}

/// A device, and the page tables for its DMA; without a VM it is the host's.
struct Attached {
    vm: Option<&'static Vm>,
    device: Bdf,
    domain: Domain,
}

/// A unit, and whose its entries are.
struct Watched {
    outline: iommu::Outline,
    /// By entry, ascending.
    owners: Vec<Owner>,
    interrupts_at: unit::Cursor,
    contexts_at: unit::Cursor,
}

/// The owner of an entry of the remapping table: a source of a device of a VM.
struct Owner {
    entry: u16,
    vm: &'static Vm,
    bdf: Bdf,
    device: usize,
    source: usize,
}

/// The expectation of an entry, which nobody changes as long as this is held.
struct Held {
    _pc: MutexGuard<'static, Pc>,
    route: Option<(Expected, ExpectedVectors<'static>, u8)>,
}

/// How far the looking is.
pub struct Audit {
    vms: Vec<Confined>,
    vcpus: Vec<vcpus::Confined>,
    devices: Vec<Attached>,
    units: Vec<Watched>,
    driven: Vec<Driven>,
    /// The part that is looked at: three of each VM, one of each vCPU, then three of each unit,
    /// and one of each device that a sidecore drives.
    part: usize,
    passes: u64,
    /// Interrupt entries that were judged.
    interrupts: u64,
    findings: u64,
    known: ArrayVec<Finding, REPORTED>,
    /// When the tally was last reported, and what it was.
    reported: (u64, u64, u64),
}

impl Audit {
    /// While booting, when all VMs are built and none runs. The error is a sentence.
    pub fn new(
        vms: &[&'static Vm],
        entered: Vec<(&'static Vm, usize, VendorOutline)>,
        pages: &[CounterPage],
    ) -> Result<Self, String> {
        let outlines = iommu::outlines().into_iter();
        let watched = |outline| Watched {
            outline,
            owners: Vec::new(),
            interrupts_at: Default::default(),
            contexts_at: Default::default(),
        };
        let mut units: Vec<_> = outlines.map(watched).collect();
        let mut devices = Vec::new();
        for vm in vms {
            let pc = vm.pc.lock();
            let domain = Domain {
                id: DomainId(vm.guest.index as u16 + 1),
                root: pc.board().tables().dma_root(),
                levels: iommu::page_format().levels() as u8,
            };
            for (device, d) in pc.pci().assigned() {
                let bdf = d.bdf();
                devices.push(Attached { vm: Some(vm), device: bdf, domain });
                // Or, where the guest has an IOMMU itself, what it leads them to.
                let own = vm.iommu.into_iter().flat_map(|iommu| iommu.tables());
                devices.extend(own.map(|(domain, _)| Attached {
                    vm: Some(vm),
                    device: bdf,
                    domain: *domain,
                }));
                let owner = |(source, entry)| Owner { entry, vm, bdf, device, source };
                if let Some(unit) = iommu::place(bdf).and_then(|place| units.get_mut(place)) {
                    unit.owners.extend(d.sources().entries().enumerate().map(owner));
                }
            }
        }
        let driven: Vec<_> = iommu::domain::attached();
        let own = driven.iter().map(|one| (one.device, one.domain));
        devices.extend(own.map(|(device, domain)| Attached { vm: None, device, domain }));
        units.iter_mut().for_each(|u| sort::by_key(&mut u.owners, |o| o.entry));
        let vms: Vec<_> = vms.iter().map(|vm| Confined::new(vm, pages)).collect();
        apart(&vms)?;
        Ok(Audit {
            vms,
            vcpus: entered.into_iter().map(vcpus::Confined::new).collect(),
            devices,
            units,
            driven: driven.into_iter().map(Driven::new).collect(),
            part: 0,
            passes: 0,
            interrupts: 0,
            findings: 0,
            known: ArrayVec::new(),
            reported: (rdtsc(), 0, 0),
        })
    }

    /// Core 0: goes on.
    pub fn look(&mut self) {
        let (ended, finding) = self.look_at_part();
        finding.into_iter().for_each(|finding| self.found(finding));
        if ended {
            self.part += 1;
            let parts = 3 * (self.vms.len() + self.units.len()) + self.vcpus.len();
            if self.part >= parts + self.driven.len() {
                self.part = 0;
                self.passes += 1;
            }
        }
        let (at, passes, findings) = self.reported;
        let news = (passes, findings) != (self.passes, self.findings);
        if news && (passes == 0 || rdtsc().wrapping_sub(at) > cpu::tsc_hz()) {
            self.report();
        }
    }

    /// Reports how far it came.
    pub fn report(&mut self) {
        let (passes, interrupts, findings) = (self.passes, self.interrupts, self.findings);
        self.reported = (rdtsc(), passes, findings);
        console::record(&Record::Audit { passes, interrupts, findings });
    }

    fn look_at_part(&mut self) -> Looked {
        if let Some(confined) = self.vms.get_mut(self.part / 3) {
            return match self.part % 3 {
                0 => confined.look_at_nested(),
                1 => confined.look_at_dma(),
                _ => confined.look_at_devices(),
            };
        }
        let part = self.part.saturating_sub(3 * self.vms.len());
        if let Some(confined) = self.vcpus.get_mut(part) {
            return confined.look();
        }
        let part = part.saturating_sub(self.vcpus.len());
        let unit = part / 3;
        let Some(watched) = self.units.get_mut(unit) else {
            let driven = self.driven.get_mut(part.saturating_sub(3 * self.units.len()));
            return driven.map_or((true, None), Driven::look);
        };
        let (ended, what) = match part % 3 {
            0 => (true, watched.outline.audit_unit().err()),
            1 => watched.look_at_interrupts(&mut self.interrupts),
            _ => watched.look_at_contexts(&self.devices),
        };
        (ended, what.map(|what| Finding::Unit { unit, what }))
    }

    /// Tells of what is new, and stops whose it is, if it is somebody's.
    fn found(&mut self, finding: Finding) {
        let is_new = !self.known.contains(&finding);
        if is_new {
            self.findings += 1;
            if self.known.try_push(finding).is_ok() {
                log::error!("audit: {finding}");
            }
        }
        // A unit that confines nobody: whoever has a device behind it reaches everything.
        if let Finding::Unit { unit, what } = finding
            && what.is_open()
        {
            let behind = self.devices.iter().filter(|a| iommu::place(a.device) == Some(unit));
            for vm in behind.filter_map(|a| a.vm).filter(|vm| !vm.ending.begun()) {
                vm.end(Cause { stop: Stop::Audit(finding), vcpu: 0, rip: 0 });
            }
            return;
        }
        let name = match finding {
            Finding::Nested { vm, .. }
            | Finding::Dma { vm, .. }
            | Finding::Device { vm, .. }
            | Finding::Controls { vm, .. }
            | Finding::Inner { vm, .. }
            | Finding::Source { vm, .. } => Some(vm),
            Finding::Driven { device, .. } if is_new => return Driven::cut_off(device),
            Finding::Driven { .. } => return,
            Finding::Unit { unit, what: unit::Finding::Malformed { entry, .. } } => {
                let owner = self.units.get(unit).and_then(|u| owner(&u.owners, entry));
                owner.map(|o| o.vm.guest.name.as_str())
            }
            Finding::Unit { unit, what } => {
                let device = self.units.get(unit).and_then(|u| u.outline.device(&what));
                let of = |a: &&Attached| Some(a.device) == device;
                let vm = self.devices.iter().find(of).and_then(|a| a.vm);
                vm.map(|vm| vm.guest.name.as_str())
            }
        };
        let whose = |c: &&Confined| name == Some(c.vm.guest.name.as_str()) && !c.vm.ending.begun();
        if let Some(confined) = self.vms.iter().find(whose) {
            confined.vm.end(Cause { stop: Stop::Audit(finding), vcpu: 0, rip: 0 });
        }
    }
}

impl Confined {
    fn new(vm: &'static Vm, pages: &[CounterPage]) -> Self {
        let pc = vm.pc.lock();
        let (dma, ram) = (Access::READ | Access::WRITE, vm.guest.memory.regions());
        let ram = |access| {
            ram.iter().map(move |r| Region { va: Some(r.gpa), pa: r.hpa, len: r.len, access })
        };
        let mut nested: Vec<_> = ram(dma | Access::EXECUTE).collect();
        let registers = pc.pci().functions().flat_map(|f| f.placement().open());
        nested.extend(registers.map(|(part, access)| {
            // Wherever the guest wants them.
            Region { va: None, pa: part.start, len: part.end - part.start, access }
        }));
        let unit = pc.pci().unit_pages();
        nested.extend(unit.map(|(pa, len, access)| Region { va: Some(BASE), pa, len, access }));
        let page = |va, pa| Region { va, pa, len: PAGE, access: Access::READ };
        nested.extend(
            (LEDGER_PAGES..)
                .step_by(PAGE as usize)
                .zip(pages.iter().filter(|p| p.vm == vm.guest.index).map(CounterPage::address))
                .map(|(va, pa)| page(Some(va), pa)),
        );
        nested.extend(pc.board().shadow_frames().map(|frame| page(None, frame)));
        let (nested_at, dma_at) = Default::default();
        let (tables, dma) = (pc.board().tables().outlines(), ram(dma).collect::<Vec<_>>());
        let translated = dma.iter().map(|region| Region { va: None, ..*region }).collect();
        Confined { vm, tables, nested, dma, translated, nested_at, dma_at, dma_of: 0 }
    }

    fn look_at_nested(&mut self) -> Looked {
        let Confined { vm, tables, nested, nested_at: at, .. } = self;
        let (is_table, hold) = (|frame| tables.has(frame), || vm.pc.try_lock());
        let result = tables.nested.audit(word, at, ENTRIES, nested, is_table, hold);
        let (ended, what) = looked(result, *at == table::Cursor::default());
        (ended, what.map(|what| Finding::Nested { vm: &vm.guest.name, what }))
    }

    fn look_at_dma(&mut self) -> Looked {
        let own = self.vm.iommu.map_or(&[][..], |iommu| iommu.tables());
        let of_own = self.dma_of.checked_sub(1).and_then(|place| own.get(place));
        let Confined { vm, tables, dma, translated, dma_at: at, .. } = self;
        let frames = vm.iommu.map_or(&[][..], |iommu| iommu.frames());
        let (outline, regions, frames) = match of_own {
            None => (&tables.dma, dma, tables.frames.as_slice()),
            Some((_, outline)) => (outline, translated, frames),
        };
        // The VM's own are changed under its lock, the others under theirs.
        let hold = || {
            let own = vm.iommu.filter(|_| of_own.is_some());
            let pc = if own.is_none() { Some(vm.pc.try_lock()?) } else { None };
            let own = if let Some(iommu) = own { Some(iommu.hold()?) } else { None };
            Some((pc, own))
        };
        let is_table = |frame| frames.binary_search(&frame).is_ok();
        let result = outline.audit(word, at, ENTRIES, regions, is_table, hold);
        let (ended, what) = looked(result, *at == table::Cursor::default());
        if ended {
            self.dma_of = if self.dma_of < own.len() { self.dma_of + 1 } else { 0 };
        }
        let what = what.map(|what| Finding::Dma { vm: &self.vm.guest.name, what });
        (ended && self.dma_of == 0, what)
    }

    /// The registers of its devices that the host keeps, if nobody is at them.
    fn look_at_devices(&mut self) -> Looked {
        let vm = self.vm;
        let Some(pc) = vm.pc.try_lock() else { return (false, None) };
        match pc.pci().audit() {
            Err(what) if !vm.ending.begun() => {
                (true, Some(Finding::Device { vm: &vm.guest.name, what }))
            }
            _ => (true, None),
        }
    }
}

impl Watched {
    fn look_at_interrupts(&mut self, judged: &mut u64) -> Looked<unit::Finding> {
        let Watched { outline, owners, interrupts_at: at, .. } = self;
        let judge = |entry| {
            let held = match owner(owners, entry) {
                Some(owner) => Some(owner.hold()?),
                None => None,
            };
            *judged += 1;
            Some(move |route| held.is_some_and(|held| held.allows(route)))
        };
        let result = outline.audit_interrupts(at, ENTRIES, judge);
        looked(result, *at == unit::Cursor::default())
    }

    fn look_at_contexts(&mut self, devices: &[Attached]) -> Looked<unit::Finding> {
        let allowed = |device, domain| {
            let mut of = devices.iter().filter(|a| a.device == device);
            of.any(|a| a.vm.is_none_or(|vm| !vm.ending.silenced()) && domain == a.domain)
        };
        let at = &mut self.contexts_at;
        let result = self.outline.audit_devices(at, DEVICES, allowed);
        looked(result, *at == unit::Cursor::default())
    }
}

/// Whose an entry is.
fn owner(owners: &[Owner], entry: unit::Entry) -> Option<&Owner> {
    let same = owners.get(owners.partition_point(|o| o.entry < entry.index)..)?.iter();
    let mut same = same.take_while(|o| o.entry == entry.index);
    same.find(|o| entry.table.is_none_or(|device| device == o.bdf))
}

impl Owner {
    /// The expectation of it, if nobody is changing that.
    fn hold(&self) -> Option<Held> {
        let pc = self.vm.pc.try_lock()?;
        let live = pc.pci().function(self.device).filter(|_| !self.vm.ending.silenced());
        let route = live.and_then(|f| f.sources().route(self.source));
        let remotes = &self.vm.guest.remotes;
        let remote = |(vcpu, guest, inner)| Some((remotes.get(vcpu)?, guest, inner));
        let route = match route.and_then(remote) {
            Some((remote, guest, inner)) => {
                let expected = Expected { source: self.bdf, destination: remote.apic_id };
                Some((expected, remote.routes_to(inner).expected()?, guest))
            }
            None => None,
        };
        Some(Held { _pc: pc, route })
    }
}

impl Held {
    fn allows(self, route: InterruptRoute) -> bool {
        self.route.is_some_and(|(expected, vectors, guest)| {
            expected.allows(route, |vector| vectors.is_for(vector, guest))
        })
    }
}

/// No two VMs were given the same memory, nor one a table or the image of the host.
fn apart(vms: &[Confined]) -> Result<(), String> {
    let (start, end) = crate::memory::image();
    let host = |pa, len| Region { va: None, pa, len, access: Access::empty() };
    for (i, one) in vms.iter().enumerate() {
        let others = vms.iter().skip(i + 1).flat_map(|other| &other.nested);
        let own = |any: &Confined| any.vm.iommu.map_or(&[][..], |iommu| iommu.frames());
        let frames = vms.iter().flat_map(|any| any.tables.frames.iter().chain(own(any)));
        let tables = frames.map(|frame| host(*frame, PAGE));
        let not_its = others.copied().chain(tables).chain([host(start, end - start)]);
        for other in not_its {
            if let Some(shared) = one.nested.iter().find(|own| own.overlaps(&other)) {
                return Err(format!(
                    "VM {:?} would reach {:#x} bytes at {:#x}, of which some belong to the host or to another VM; this machine's firmware may have placed devices' registers over each other",
                    one.vm.guest.name, shared.len, shared.pa
                ));
            }
        }
    }
    Ok(())
}
