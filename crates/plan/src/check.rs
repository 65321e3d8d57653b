//! What must hold in every plan, wherever it comes from: a file, the command line,
//! or a boot image that may be damaged.

use crate::{
    Class, Coalesce, DeviceName, GuestIommu, Network, Place, Plan, UplinkProblem,
    bounds::{
        LARGE_PAGE, MAX_BEHIND_IOMMU, MAX_CMDLINE, MAX_CORE, MAX_DEVICES, MAX_MEMORY, MAX_NAME,
        MAX_NETWORKS, MAX_VCPUS, MAX_VFS, MIN_MEMORY,
    },
    problem::{Error, Problem},
};
use alloc::{format, string::ToString};
use proto::frame::MAX_VMS;

impl<F> Plan<F> {
    /// Whether the plan can be run, as far as the plan alone tells; the first problem if not.
    pub fn check(&self) -> Result<(), Error> {
        let whole = |problem| Error { place: Place::Plan, key: "", problem };
        match self.vms.len() {
            0 => return Err(whole(Problem::NoVm)),
            n if n > MAX_VMS => return Err(whole(Problem::ManyVms(n))),
            _ => {}
        }
        self.check_slice()?;
        self.check_screen()?;
        self.check_sidecores()?;
        self.check_moving()?;
        for index in 0..self.vms.len() {
            self.check_vm(index)?;
        }
        self.check_served()?;
        self.check_parts()?;
        if self.networks.len() > MAX_NETWORKS {
            return Err(whole(Problem::ManyNetworks(self.networks.len())));
        }
        for index in 0..self.networks.len() {
            self.check_network(index)?;
        }
        self.check_functions()
    }

    fn check_vm(&self, index: usize) -> Result<(), Error> {
        let (before, Some(vm)) = (self.vms.iter().take(index), self.vms.get(index)) else {
            return Ok(());
        };
        if !name_is_good(&vm.name) {
            return Err(Error {
                place: Place::Plan,
                key: "",
                problem: Problem::Name(vm.name.clone()),
            });
        }
        let error = |key, problem| Err(Error { place: Place::Vm(vm.name.clone()), key, problem });
        if before.clone().any(|other| other.name == vm.name) {
            return error("", Problem::NameTaken);
        }

        match vm.cpus.len() {
            0 => return error("cpus", Problem::NoCore),
            n if n > MAX_VCPUS => return error("cpus", Problem::ManyCores(n)),
            _ => {}
        }
        for &core in &vm.cpus {
            match core {
                0 => return error("cpus", Problem::HostCore),
                c if c > MAX_CORE => return error("cpus", Problem::CoreRange(c)),
                _ => {}
            }
        }
        self.check_sharing(vm).or_else(|(key, problem)| error(key, problem))?;
        self.check_limit(vm)?;

        match vm.memory {
            m if m < MIN_MEMORY => return error("memory", Problem::LittleMemory(m)),
            m if m > MAX_MEMORY => return error("memory", Problem::MuchMemory(m)),
            m if !m.is_multiple_of(LARGE_PAGE) => return error("memory", Problem::OddMemory(m)),
            _ => {}
        }

        if vm.cmdline.len() > MAX_CMDLINE {
            return error("cmdline", Problem::LongCmdline(vm.cmdline.len()));
        }
        if vm.cmdline.contains('\0') {
            return error("cmdline", Problem::ZeroInCmdline);
        }

        if vm.iommu != GuestIommu::None && vm.devices.is_empty() {
            return error("iommu", Problem::NothingBehindIommu);
        }
        if vm.iommu != GuestIommu::None && vm.devices.len() > MAX_BEHIND_IOMMU {
            return error("iommu", Problem::ManyBehindIommu(vm.devices.len()));
        }
        let shared = vm.cpus.iter().find(|core| self.shares(**core) > 1);
        if vm.iommu != GuestIommu::None && self.sidecores.is_empty() {
            if vm.iommu.optimism_us() > 0 {
                return error("iommu", Problem::IommuByExits(vm.iommu.strict()));
            }
            if let Some(core) = shared {
                return error("iommu", Problem::IommuShared(*core));
            }
        }
        let own = vm.iommu.functions();
        let slots = own + vm.devices.len() + vm.disks.len() + vm.interfaces.len();
        if slots > MAX_DEVICES {
            return error("devices", Problem::ManyDevices(slots));
        }
        self.check_disks(vm)?;
        self.check_interfaces(index)?;
        for (i, device) in vm.devices.iter().enumerate() {
            if !device.is_possible() {
                return error("devices", Problem::NoSuchAddress(*device));
            }
            let mine = vm.devices.iter().take(i).any(|d| d == device);
            let owner = before.clone().find(|other| other.devices.contains(device));
            if let Some(by) = owner.map(|o| &o.name).or(mine.then_some(&vm.name)) {
                return error(
                    "devices",
                    Problem::DeviceTaken { device: *device, by: by.to_string() },
                );
            }
        }
        Ok(())
    }

    fn check_network(&self, index: usize) -> Result<(), Error> {
        let (before, Some(network)) = (self.networks.iter().take(index), self.networks.get(index))
        else {
            return Ok(());
        };
        let Network { nic, vfs, macs, uplink, coalesce } = network;
        let place = || Place::Network(format!("nic{nic}"));
        let error = |key, problem| Err(Error { place: place(), key, problem });
        if before.clone().any(|other| other.nic == *nic) {
            return error("", Problem::NetworkTwice);
        }
        match *vfs {
            Some(0) => return error("vfs", Problem::NoFunction),
            Some(n) if n > MAX_VFS => return error("vfs", Problem::ManyFunctions(n)),
            Some(vfs) if macs.len() > vfs.into() => {
                return error("macs", Problem::ManyMacs { macs: macs.len(), vfs });
            }
            None if macs.len() > MAX_VFS.into() => {
                return error("macs", Problem::ManyMacs { macs: macs.len(), vfs: MAX_VFS });
            }
            _ => {}
        }
        for (i, mac) in macs.iter().enumerate() {
            if !mac.is_a_stations() {
                return error("macs", Problem::GroupMac(*mac));
            }
            let earlier = before.clone().flat_map(|other| &other.macs).chain(macs.iter().take(i));
            if earlier.into_iter().any(|other| other == mac) {
                return error("macs", Problem::MacTwice(*mac));
            }
        }
        self.check_uplink(index).or_else(|problem| error("uplink", problem.into()))?;
        if let Coalesce::On(coalescing) = coalesce {
            if uplink.is_some() {
                return error("coalesce", UplinkProblem::Interrupts.into());
            }
            coalescing.check().or_else(|(key, problem)| error(key, problem.into()))?;
        }
        if uplink.is_none() && self.shared_nic(*nic).is_none() {
            return error("", Problem::NoFunction);
        }
        Ok(())
    }

    /// Virtual functions and their controllers, where VMs name them.
    fn check_functions(&self) -> Result<(), Error> {
        for vm in &self.vms {
            for &device in &vm.devices {
                let problem = match device {
                    DeviceName::Virtual { nic, function } => {
                        let vfs = self.shared_nic(nic).map_or(0, |shared| shared.vfs);
                        match (function < vfs, function < MAX_VFS) {
                            (true, true) => continue,
                            (true, false) => Problem::FunctionRange(device),
                            (false, _) => Problem::NoSuchFunction { device, nic, vfs },
                        }
                    }
                    DeviceName::Named { class: Class::Nic, index }
                        if self.shared_nic(index).is_some() =>
                    {
                        Problem::SharedNic(index)
                    }
                    _ => continue,
                };
                return Err(Error { place: Place::Vm(vm.name.clone()), key: "devices", problem });
            }
        }
        Ok(())
    }
}

pub(crate) fn name_is_good(name: &str) -> bool {
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    letters && first && name.len() <= MAX_NAME
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
