//! What a plan consists of. Generic over where a kernel is: a path in a file
//! (`Plan<String>`), its bytes before packing (`Plan<Vec<u8>>`), its place in the
//! boot image ([`Plan`], that is `Plan<Blob>`).

use crate::{DEFAULT_SLICE, DeviceName, Disk, Host, Interface, Limit, Network};
use alloc::{string::String, vec::Vec};
use proto::Policy;
use serde::{Deserialize, Serialize};

/// The VMs of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan<F = Blob> {
    /// At least one, at most [`crate::MAX_VMS`]; a VM's index is its place here.
    pub vms: Vec<Vm<F>>,
    /// What is special about network controllers, at most one for each.
    pub networks: Vec<Network>,
    /// Cores that serve paravirtual devices and run no guest; the file says so under `[host]`.
    pub sidecores: Vec<u32>,
    /// Microseconds that a vCPU runs at most while another one waits for its core.
    pub slice_us: u32,
    /// What the host does for itself.
    pub host: Host,
}

/// One VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm<F = Blob> {
    /// Letters, digits, `-` and `_`; unique in the plan.
    pub name: String,
    /// Physical cores by index in the order the machine lists them, one vCPU for each entry.
    /// Several vCPUs, of this or other VMs, may share a core.
    pub cpus: Vec<u32>,
    /// Its vCPUs' weight on a shared core: the time they get there goes by it.
    pub weight: u32,
    /// The most that sidecores serve it.
    pub limit: Limit,
    /// Bytes of guest memory, a multiple of 2 MiB.
    pub memory: u64,
    /// bzImage, ELF with a PVH note, or multiboot1.
    pub kernel: F,
    /// The initial RAM disk, or a multiboot module.
    pub initrd: Option<F>,
    /// The kernel's command line.
    pub cmdline: String,
    /// Devices the VM owns, in the order the guest sees them.
    pub devices: Vec<DeviceName>,
    /// Disks that the host makes for it and a sidecore serves, after `devices` in that order.
    pub disks: Vec<Disk<F>>,
    /// Network interfaces that the host makes for it and a sidecore serves, after the disks.
    pub interfaces: Vec<Interface>,
    /// How its devices' interrupts are to be delivered.
    pub interrupts: Choice,
    /// The consequence of a reset of its own.
    pub reset: OnReset,
    /// Whether it may run guests of its own.
    pub nested: bool,
    /// The IOMMU that it has itself, with its devices behind it.
    pub iommu: GuestIommu,
}

/// An IOMMU of a guest's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestIommu {
    /// None: its devices reach its memory, and all of it.
    #[default]
    None,
    /// A virtio-iommu, before its devices on its bus. What the guest unmaps is gone when that is
    /// answered.
    Virtio,
    /// The same, and what it unmaps may stay for [`OPTIMISM_US`], so that it comes back for
    /// nothing.
    VirtioOptimistic,
    /// A VT-d unit in caching mode, with all that is on its bus behind it, and their interrupts.
    VtD,
    /// The same, and what is unmapped may stay as with [`GuestIommu::VirtioOptimistic`].
    VtDOptimistic,
    /// An AMD-Vi unit that has drivers invalidate what they map, with the same behind it.
    AmdVi,
    /// The same, and what is unmapped may stay as with [`GuestIommu::VirtioOptimistic`].
    AmdViOptimistic,
}

/// Whose unit an IOMMU with registers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IommuUnit {
    /// Intel's.
    VtD,
    /// AMD's.
    AmdVi,
}

/// For how long unmappings wait, in µs: the vIOMMU paper's.
pub const OPTIMISM_US: u64 = 10_000;

impl GuestIommu {
    /// Every choice with the name it has in `vm.toml`.
    pub const ALL: [(&'static str, GuestIommu); 7] = [
        ("none", GuestIommu::None),
        ("virtio", GuestIommu::Virtio),
        ("virtio-optimistic", GuestIommu::VirtioOptimistic),
        ("vt-d", GuestIommu::VtD),
        ("vt-d-optimistic", GuestIommu::VtDOptimistic),
        ("amd-vi", GuestIommu::AmdVi),
        ("amd-vi-optimistic", GuestIommu::AmdViOptimistic),
    ];

    /// Whose unit it is, if it is one with registers.
    pub const fn unit(self) -> Option<IommuUnit> {
        match self {
            GuestIommu::None | GuestIommu::Virtio | GuestIommu::VirtioOptimistic => None,
            GuestIommu::VtD | GuestIommu::VtDOptimistic => Some(IommuUnit::VtD),
            GuestIommu::AmdVi | GuestIommu::AmdViOptimistic => Some(IommuUnit::AmdVi),
        }
    }

    /// The name of the one that does the same, and leaves nothing mapped.
    pub const fn strict(self) -> &'static str {
        match self {
            GuestIommu::None => "none",
            GuestIommu::Virtio | GuestIommu::VirtioOptimistic => "virtio",
            GuestIommu::VtD | GuestIommu::VtDOptimistic => "vt-d",
            GuestIommu::AmdVi | GuestIommu::AmdViOptimistic => "amd-vi",
        }
    }

    /// Is it a virtio-iommu?
    pub const fn is_virtio(self) -> bool {
        matches!(self, GuestIommu::Virtio | GuestIommu::VirtioOptimistic)
    }

    /// How many functions it is among those that the VM is given. A unit is the host bridge's.
    pub const fn functions(self) -> usize {
        if self.is_virtio() { 1 } else { 0 }
    }

    /// How many queues it has: of a virtio-iommu requests, and events.
    pub const fn queues(self) -> usize {
        match self.unit() {
            Some(_) => 1,
            None if self.is_virtio() => 2,
            None => 0,
        }
    }

    /// For how long what it unmaps may stay mapped, in µs.
    pub const fn optimism_us(self) -> u64 {
        match self {
            GuestIommu::VirtioOptimistic
            | GuestIommu::VtDOptimistic
            | GuestIommu::AmdViOptimistic => OPTIMISM_US,
            GuestIommu::None | GuestIommu::Virtio | GuestIommu::VtD | GuestIommu::AmdVi => 0,
        }
    }
}

/// The consequence of a guest's resetting itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnReset {
    /// It starts again, as a machine does: memory cleared, kernel loaded anew, devices reset.
    #[default]
    Restart,
    /// The VM ends.
    Stop,
}

impl OnReset {
    /// Every choice with the name it has in `vm.toml`.
    pub const ALL: [(&'static str, OnReset); 2] =
        [("restart", OnReset::Restart), ("stop", OnReset::Stop)];
}

/// A run of bytes in the boot image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// Bytes from the start of the image; page-aligned.
    pub offset: u64,
    /// Length in bytes; never zero.
    pub len: u64,
}

/// The interrupt policy that a plan asks for. None is "auto": the policy with the fewest exits
/// that the machine and the cores' roles allow.
pub type Choice = Option<Policy>;

/// Every name that a [`Choice`] has in `vm.toml` and on the command line.
pub const CHOICES: [&str; 1 + Policy::ALL.len()] = {
    let mut names = ["auto"; 1 + Policy::ALL.len()];
    let mut i = 0;
    while i < Policy::ALL.len() {
        names[1 + i] = Policy::ALL[i].label();
        i += 1;
    }
    names
};

/// The name of a choice, one of [`CHOICES`].
pub fn choice_label(choice: Choice) -> &'static str {
    choice.map_or(CHOICES[0], Policy::label)
}

impl<F> Plan<F> {
    /// A plan that says nothing but what VMs there are.
    pub const fn new(vms: Vec<Vm<F>>) -> Self {
        let host = Host {
            iommu_faults: crate::Protection::Elsewhere,
            without_remapping: crate::WithoutRemapping::Refuse,
            screen: None,
            at_end: crate::AtEnd::Stay,
            whole_turns: false,
            moving: crate::Moving::Never,
        };
        Plan { vms, networks: Vec::new(), sidecores: Vec::new(), slice_us: DEFAULT_SLICE, host }
    }

    /// The same plan with every kernel, initrd and disk's content replaced by what `f` gives for
    /// it. `f` is told whose it is and which (`"kernel"`, `"initrd"` or `"disk"`), VM by VM.
    pub fn try_map<G, E>(
        self,
        mut f: impl FnMut(&str, &'static str, F) -> Result<G, E>,
    ) -> Result<Plan<G>, E> {
        let Plan { vms, networks, sidecores, slice_us, host } = self;
        let vms = vms.into_iter().map(|vm| {
            Ok(Vm {
                kernel: f(&vm.name, "kernel", vm.kernel)?,
                initrd: vm.initrd.map(|i| f(&vm.name, "initrd", i)).transpose()?,
                disks: vm
                    .disks
                    .into_iter()
                    .map(|mut disk| {
                        let image = disk.image.take();
                        let image = image.map(|i| f(&vm.name, "disk", i)).transpose()?;
                        Ok(disk.with_image(image))
                    })
                    .collect::<Result<_, E>>()?,
                name: vm.name,
                cpus: vm.cpus,
                weight: vm.weight,
                limit: vm.limit,
                memory: vm.memory,
                cmdline: vm.cmdline,
                devices: vm.devices,
                interfaces: vm.interfaces,
                interrupts: vm.interrupts,
                reset: vm.reset,
                nested: vm.nested,
                iommu: vm.iommu,
            })
        });
        Ok(Plan { vms: vms.collect::<Result<_, E>>()?, networks, sidecores, slice_us, host })
    }
}
