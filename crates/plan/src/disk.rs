//! What a plan says of disks that the host makes and a sidecore serves (virtio-blk), and of the
//! sidecores.
//!
//! Guarantees: a disk that passes [`Plan::check`] has a size in whole sectors, a serial number that
//! fits its field (virtio 1.2, 5.2.6.1) and queues that the host can serve; a sidecore runs no
//! guest. It doesn't guarantee that the machine has the memory and the cores.

use crate::{Coalesce, Control, Error, MAX_CORE, Part, Place, Plan, Problem, Vm};
use alloc::string::{String, ToString};
#[cfg(any(test, feature = "file"))]
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Disks of one VM.
pub const MAX_DISKS: usize = 4;
/// The largest disk.
pub const MAX_DISK: u64 = 1 << 48;
/// The largest disk in memory: no machine with SVM has more.
pub const MAX_RAM_DISK: u64 = 16 << 40;
/// Bytes of a sector, in which virtio-blk counts whatever the block size is (5.2.4).
pub const SECTOR: u64 = 512;
/// Bytes of a serial number (5.2.6, VIRTIO_BLK_T_GET_ID).
pub const MAX_SERIAL: usize = 20;
/// Request queues of one disk.
pub const MAX_QUEUES: u16 = 16;
/// Cores of a machine that may serve devices.
pub const MAX_SIDECORES: usize = 16;
/// Microseconds that a null disk's requests wait at most: some drivers give up a request after 30
/// s.
pub const MAX_LATENCY: u32 = 1_000_000;
/// Queues that one sidecore serves.
pub const MAX_SERVED: usize = 128;
/// Memory of RAM disks is given out in pages of this size.
const LARGE_PAGE: u64 = 2 << 20;

/// A disk that the host makes and a sidecore serves. `F` is where its first content is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk<F = crate::Blob> {
    /// Bytes, a multiple of [`SECTOR`].
    pub size: u64,
    /// What is behind it.
    pub backing: Backing,
    /// Whether every write is refused.
    pub read_only: bool,
    /// What it answers when it is asked for its serial number: printable ASCII.
    pub serial: String,
    /// Request queues, which may be more than the VM has vCPUs.
    pub queues: u16,
    /// What a RAM disk holds at first, from its start on; the rest is zero.
    pub image: Option<F>,
    /// For measurements: what is different about how it is served.
    pub control: Control,
}

/// What is behind a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Memory of the machine; what is written is kept until the run ends.
    #[default]
    Ram,
    /// Nothing: writes are forgotten, and reads store nothing. To measure only: a guest's program
    /// finds in its buffer what its kernel had there.
    Null,
    /// A part of an NVMe controller's namespace, which its sidecore drives.
    Part(Part),
}

impl Backing {
    /// Every choice that has a name in `vm.toml`.
    pub const ALL: [(&'static str, Backing); 2] = [("ram", Backing::Ram), ("null", Backing::Null)];
}

impl<F> Disk<F> {
    /// Bytes of the machine's memory that the disk takes, in whole pages of 2 MiB.
    pub fn memory(&self) -> u64 {
        match self.backing {
            Backing::Ram => self.size.checked_next_multiple_of(LARGE_PAGE).unwrap_or(u64::MAX),
            Backing::Null | Backing::Part(_) => 0,
        }
    }

    /// The same disk with another content.
    pub(crate) fn with_image<G>(self, image: Option<G>) -> Disk<G> {
        Disk {
            size: self.size,
            backing: self.backing,
            read_only: self.read_only,
            serial: self.serial,
            queues: self.queues,
            image,
            control: self.control,
        }
    }
}

/// Request queues of a disk that doesn't say how many: one for each vCPU, as far as there are.
#[cfg(any(test, feature = "file"))]
pub(crate) fn default_queues(vcpus: usize) -> u16 {
    u16::try_from(vcpus).unwrap_or(MAX_QUEUES).clamp(1, MAX_QUEUES)
}

impl<F> Plan<F> {
    /// Bytes of the machine's memory that all disks take.
    pub fn disk_memory(&self) -> u64 {
        self.disks().map(|(_, disk)| disk.memory()).fold(0, u64::saturating_add)
    }

    /// Every disk with its VM, in the plan's order.
    pub fn disks(&self) -> impl Iterator<Item = (&Vm<F>, &Disk<F>)> {
        self.vms.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk)))
    }

    /// The cores that serve devices: what they are, and that no guest runs there.
    pub(crate) fn check_sidecores(&self) -> Result<(), Error> {
        let error = |problem| Err(Error { place: Place::Host, key: "sidecores", problem });
        if self.sidecores.len() > MAX_SIDECORES {
            return error(Problem::ManySidecores(self.sidecores.len()));
        }
        for (i, &core) in self.sidecores.iter().enumerate() {
            match core {
                0 => return error(Problem::HostCore),
                c if c > MAX_CORE => return error(Problem::CoreRange(c)),
                _ => {}
            }
            if self.sidecores.iter().take(i).any(|other| *other == core) {
                return error(Problem::SidecoreTwice(core));
            }
            if let Some(vm) = self.vms.iter().find(|vm| vm.cpus.contains(&core)) {
                return error(Problem::SidecoreTaken { core, by: vm.name.to_string() });
            }
        }
        Ok(())
    }

    /// Whether each sidecore can serve what falls to it.
    pub(crate) fn check_served(&self) -> Result<(), Error> {
        let served = self.sidecores.iter().zip(self.served_queues());
        match served.into_iter().find(|(_, queues)| *queues > MAX_SERVED) {
            None => Ok(()),
            Some((&core, queues)) => {
                let problem = Problem::BusySidecore { core, queues };
                Err(Error { place: Place::Host, key: "sidecores", problem })
            }
        }
    }

    /// What must hold of a VM's disks: `vm` is the plan's.
    pub(crate) fn check_disks(&self, vm: &Vm<F>) -> Result<(), Error> {
        let whole =
            |problem| Err(Error { place: Place::Vm(vm.name.clone()), key: "disk", problem });
        if vm.disks.len() > MAX_DISKS {
            return whole(Problem::ManyDisks(vm.disks.len()));
        }
        if !vm.disks.is_empty() && self.sidecores.is_empty() {
            return whole(Problem::NoSidecore);
        }
        for (index, disk) in vm.disks.iter().enumerate() {
            disk.check().map_err(|(key, problem)| {
                let place = Place::Disk { vm: vm.name.clone(), index };
                Error { place, key, problem }
            })?;
        }
        Ok(())
    }
}

impl<F> Disk<F> {
    fn check(&self) -> Result<(), (&'static str, Problem)> {
        match self.size {
            0 => return Err(("size", Problem::EmptyDisk)),
            n if n > MAX_DISK => return Err(("size", Problem::LargeDisk(n))),
            n if n > MAX_RAM_DISK && self.backing == Backing::Ram => {
                return Err(("size", Problem::LargeRamDisk(n)));
            }
            n if !n.is_multiple_of(SECTOR) => return Err(("size", Problem::OddDisk(n))),
            _ => {}
        }
        if self.serial.len() > MAX_SERIAL {
            return Err(("serial", Problem::LongSerial(self.serial.len())));
        }
        if !self.serial.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
            return Err(("serial", Problem::Serial(self.serial.clone())));
        }
        if !(1..=MAX_QUEUES).contains(&self.queues) {
            return Err(("queues", Problem::Queues(self.queues)));
        }
        if self.control.latency_us > 0 && self.backing != Backing::Null {
            return Err(("latency", Problem::LatencyOfOther));
        }
        if self.control.latency_us > MAX_LATENCY {
            return Err(("latency", Problem::Latency(self.control.latency_us)));
        }
        if let Coalesce::On(coalescing) = self.control.coalesce {
            coalescing.check().map_err(|(key, problem)| (key, problem.into()))?;
        }
        self.check_part().map_err(|(key, problem)| (key, Problem::Part(problem)))?;
        match (&self.image, self.backing) {
            (Some(_), Backing::Null) => Err(("image", Problem::ImageOfNull)),
            _ => Ok(()),
        }
    }
}

/// Cores for so many sidecores that the file doesn't name: the lowest ones that nobody has.
#[cfg(any(test, feature = "file"))]
pub(crate) fn free_cores<F>(plan: &Plan<F>, count: usize) -> Vec<u32> {
    let taken = |core: &u32| plan.vms.iter().any(|vm| vm.cpus.contains(core));
    (1..).filter(|core| !taken(core)).take(count).collect()
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
