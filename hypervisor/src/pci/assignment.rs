//! Which functions the plan's VMs may have.
//!
//! Guarantees: a function that was given out is there, is an endpoint, is behind an IOMMU that
//! tells it from all others, isn't used by firmware, and belongs to one VM; and it can be kept
//! apart from those of every other VM and of the host. Doesn't keep a VM's functions apart from
//! each other, if it hasn't guests of its own, nor from functions that nobody has, but those that
//! no IOMMU serves, which may be all of them: they neither reach memory nor send messages from here
//! on. Boot only.

use super::reset::Method;
use super::room::Placed;
use super::{
    BRIDGE_CLASS, Bar, CAPABILITY_EXPRESS, COMMAND, COMMAND_BUS_MASTER, COMMAND_INTX_DISABLE,
    Config, Function, Pci, acs, msi, room, sriov,
};
use crate::iommu;
use ::iommu::Bdf;
use ::pci::{mirrors_configuration, together};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use plan::{Class, DeviceName, Plan};
use proto::offer::Function as Offered;

/// Class and subclass of IOMMUs (PCI Code and ID Assignment 1.15, 1.9): their tables are in memory.
const IOMMU_CLASS: u32 = 0x0806;

/// Who has the functions that disks are cut from, and those that are switches' uplinks: no VM has
/// such a name.
const DISKS: &str = "the host, for disks,";
const UPLINK: &str = "the host, as a switch's uplink,";
/// The vendor and device id of the network controller that can be one: Intel's 82576.
const UPLINKS: (u16, u16) = (0x8086, 0x10C9);

/// Who it is, in a sentence.
fn shown(owner: &str) -> String {
    if [DISKS, UPLINK].contains(&owner) { owner.into() } else { format!("VM {owner:?}") }
}

/// The machine's functions, and who has them.
pub struct Assignment {
    pci: Pci,
    functions: Vec<Function>,
    survey: Vec<::pci::Function>,
    placed: Placed,
    /// With the name of the VM, and the one that it has there.
    taken: Vec<(Bdf, String, DeviceName)>,
}

impl Assignment {
    /// Finds the functions, gives BARs addresses where firmware didn't, has the functions send
    /// everything through the IOMMU as far as they can, and makes the virtual ones that the plan
    /// asks for. The error is a sentence.
    #[cold]
    pub fn new(pci: Pci, plan: &Plan) -> Result<Self, String> {
        let functions = pci.scan();
        silence(&pci, &functions);
        room::keep_clear_of_units(iommu::registers_of_units());
        room::place_unplaced(&pci, &functions);
        functions.iter().for_each(|f| acs::enable(&pci, f.bdf));
        sriov::enable(&pci, &functions, plan)?;
        sriov::functions().for_each(|f| acs::enable(&pci, f.bdf));
        let survey = acs::survey(&pci, &functions);
        let placed = Placed::find(&pci, &functions);
        Ok(Assignment { pci, functions, survey, placed, taken: Vec::new() })
    }

    /// Finds the controllers that the host is to drive for VMs' disks; no VM gets them. The error
    /// is a sentence.
    pub fn keep(
        &mut self,
        names: impl Iterator<Item = DeviceName>,
    ) -> Result<Vec<(DeviceName, Bdf)>, String> {
        let is_fit = |f: &Function| Class::Nvme.matches(f.class, 0, 0);
        self.keep_for(DISKS, names, is_fit, "is no NVMe controller, and disks are cut from those")
    }

    /// The same of those that are to be uplinks of switches.
    pub fn keep_uplinks(
        &mut self,
        names: impl Iterator<Item = DeviceName>,
    ) -> Result<Vec<(DeviceName, Bdf)>, String> {
        let is_fit = |f: &Function| (f.vendor, f.device) == UPLINKS;
        let otherwise = "is no Intel 82576 (8086:10c9), and a switch's uplink is one";
        self.keep_for(UPLINK, names, is_fit, otherwise)
    }

    fn keep_for(
        &mut self,
        what: &str,
        names: impl Iterator<Item = DeviceName>,
        is_fit: impl Fn(&Function) -> bool,
        otherwise: &str,
    ) -> Result<Vec<(DeviceName, Bdf)>, String> {
        let mut kept = Vec::new();
        for name in names {
            for bdf in self.resolve(what, &[name])? {
                if !self.functions.iter().any(|f| f.bdf == bdf && is_fit(f)) {
                    return Err(format!("device {name} ({bdf}) {otherwise}"));
                }
                kept.push((name, bdf));
            }
        }
        Ok(kept)
    }

    /// The same for a VM that may hand them on to guests of its own: it sees each as a device of
    /// its own, so that it couldn't know which can't be kept apart.
    pub fn resolve_apart(&mut self, vm: &str, names: &[DeviceName]) -> Result<Vec<Bdf>, String> {
        let found = self.resolve(vm, names)?;
        for (n, bdf) in found.iter().enumerate() {
            for other in found.iter().take(n) {
                if let Some(why) = together(&self.survey, *bdf, *other) {
                    return Err(format!(
                        "device {bdf} can't be kept apart from {other}, as {why}, and its own hypervisor, which may give them to different guests, can't see that; give it only one of them"
                    ));
                }
            }
        }
        Ok(found)
    }

    /// Finds the functions that `vm` names, refusing those that it can't have. The error is a
    /// sentence.
    pub fn resolve(&mut self, vm: &str, names: &[DeviceName]) -> Result<Vec<Bdf>, String> {
        let mut found = Vec::new();
        for name in names {
            let Some(f) = self.find(name) else {
                let have: Vec<_> = self.functions.iter().map(|f| f.bdf.to_string()).collect();
                return Err(format!(
                    "device {name} isn't in this machine; it has {}",
                    have.join(", ")
                ));
            };
            if let Some(why) = self.refusal(vm, &f) {
                return Err(format!("device {name} ({}) {why}", f.bdf));
            }
            self.taken.push((f.bdf, vm.into(), *name));
            found.push(f.bdf);
        }
        Ok(found)
    }

    /// What the machine offers to a plan that asks for one function: all of them.
    pub fn offers(&self) -> Vec<Offered> {
        self.functions.iter().map(|f| self.offer(f)).collect()
    }

    fn offer(&self, f: &Function) -> Offered {
        let (bdf, pci) = (f.bdf, &self.pci);
        let unplaced = |bar: &Bar| !bar.kind.is_io() && bar.address == 0;
        let refused = self.refusal("", f).or_else(|| {
            let bar = pci.bars(bdf).into_iter().find(unplaced)?;
            Some(format!("its BAR {} has no address from the firmware, and no window of a bridge above it has room", bar.index))
        });
        let endpoint = |f: &&Function| f.class >> 16 != BRIDGE_CLASS && f.bdf != bdf;
        let others = self.functions.iter().filter(endpoint);
        let together = others.filter(|other| together(&self.survey, bdf, other.bdf).is_some());
        Offered {
            address: bdf.address(),
            ids: (f.vendor, f.device),
            class: f.class,
            name: self.name(f),
            msix: msi::entries(pci, bdf),
            msi: msi::messages(pci, bdf),
            reset: Method::of(pci, bdf).name().map(Into::into),
            together: together.map(|other| other.bdf.address()).collect(),
            refused,
        }
    }

    /// The name of its kind and number, if it has one.
    fn name(&self, f: &Function) -> Option<String> {
        let of = |f: &Function| {
            Class::ALL.into_iter().find(|class| class.matches(f.class, f.vendor, f.device))
        };
        let class = of(f)?;
        let mut before = self.functions.iter().take_while(|other| other.bdf != f.bdf);
        let index = before.by_ref().filter(|other| of(other) == Some(class)).count();
        Some(DeviceName::Named { class, index: index.try_into().ok()? }.to_string())
    }

    fn find(&self, name: &DeviceName) -> Option<Function> {
        let mut functions = self.functions.iter();
        match name {
            DeviceName::Address { segment, bus, device, function } => {
                let bdf = Bdf::new(*bus, *device, *function)?.in_segment(*segment);
                functions.find(|f| f.bdf == bdf).copied().or_else(|| sriov::function(bdf))
            }
            DeviceName::Named { class, index } => functions
                .filter(|f| class.matches(f.class, f.vendor, f.device))
                .nth(*index as usize)
                .copied(),
            DeviceName::Virtual { nic, function } => sriov::named(*nic, *function),
        }
    }

    /// Why a VM can't have a function: the end of a sentence.
    fn refusal(&self, vm: &str, f: &Function) -> Option<String> {
        let bdf = f.bdf;
        if f.class >> 16 == BRIDGE_CLASS {
            return Some(format!(
                "is a bridge (class {:#08x}) and part of the machine; only endpoints can be assigned",
                f.class
            ));
        }
        if mirrors_configuration(f.vendor, f.device, f.class) {
            return Some("shows its own configuration space in its registers, by which a guest could move them over others' memory".into());
        }
        if sriov::is_shared(bdf) {
            return Some("has virtual functions, as [network] asks, and so stays the host's; assign those, such as nic0.vf0".into());
        }
        if let Some((_, owner, name)) = self.taken.iter().find(|(taken, ..)| *taken == bdf) {
            return Some(format!(
                "is assigned twice: {} has it as {name}; a device can belong to one VM only",
                shown(owner)
            ));
        }
        if let Some(why) = self.pci.lack() {
            return Some(format!("can't be assigned: {why}"));
        }
        if !iommu::serves(bdf) {
            return Some("is behind no IOMMU and can't be confined to the VM's memory".into());
        }
        if let Some(why) = iommu::reserved(bdf) {
            return Some(format!("can't be assigned: {why}"));
        }
        if let Some(why) = self.placed.misplaced(&self.pci, &self.functions, bdf) {
            return Some(why);
        }
        if bdf.bus() != 0 && self.pci.capability(bdf, CAPABILITY_EXPRESS).is_none() {
            return Some("is a conventional PCI device behind a bridge: it shares its requester id with its neighbours, so the IOMMU can't tell it from them".into());
        }
        let others = self.taken.iter().filter(|(_, owner, _)| owner != vm);
        let others = others.map(|(other, owner, _)| (*other, format!("of {}", shown(owner))));
        let mut others = others.chain(sriov::shared().iter().map(|pf| (*pf, "of the host".into())));
        others.find_map(|(other, whose)| {
            let why = together(&self.survey, bdf, other)?;
            Some(format!(
                "can't be kept apart from {other} {whose}, as {why}; give both to one VM, or only one of them to any"
            ))
        })
    }
}

/// Switches bus mastering off, and with it memory and messages, and INTx, for endpoints that no
/// IOMMU would deny anything.
fn silence(pci: &Pci, functions: &[Function]) {
    let is_open = |f: &&Function| {
        f.class >> 16 != BRIDGE_CLASS && f.class >> 8 != IOMMU_CLASS && !iommu::serves(f.bdf)
    };
    let mut names = Vec::new();
    for bdf in functions.iter().filter(is_open).map(|f| f.bdf) {
        let command = pci.read16(bdf, COMMAND) & !COMMAND_BUS_MASTER;
        pci.write16(bdf, COMMAND, command | COMMAND_INTX_DISABLE);
        names.push(bdf.to_string());
    }
    if !names.is_empty() {
        log::warn!(
            "no IOMMU serves {}, whose bus mastering is off from now on: they reach no memory",
            names.join(", ")
        );
    }
}
