//! What can be wrong with a plan, in sentences that say what would be right.

use crate::{
    BadInterface, CoalesceProblem, DeviceName, MAX_DISK, MAX_DISKS, MAX_LATENCY, MAX_QUEUES,
    MAX_RAM_DISK, MAX_SERIAL, MAX_SERVED, MAX_SHARES, MAX_SIDECORES, MAX_WEIGHT, Mac, Micros,
    MovingProblem, PartProblem, Place, SECTOR, SLICES, Size, UplinkProblem,
    bounds::{
        MAX_BEHIND_IOMMU, MAX_CMDLINE, MAX_CORE, MAX_DEVICES, MAX_MEMORY, MAX_NAME, MAX_NETWORKS,
        MAX_VCPUS, MAX_VFS, MIN_MEMORY,
    },
    place::before,
    shown::Shown,
};
use alloc::string::String;
use proto::{Policy, frame::MAX_VMS};

/// What is wrong with a plan, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", before(.place, .key))]
pub struct Error {
    /// The part of the plan.
    pub place: Place,
    /// The key in `vm.toml`; empty when it is about the place itself.
    pub key: &'static str,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Nothing to run.
    #[error("the plan has no VM; it needs at least one, such as [vm.web]")]
    NoVm,
    /// More than there are console channels.
    #[error("the plan has {0} VMs; it may have at most {MAX_VMS}")]
    ManyVms(usize),
    /// A name that can't be shown or told apart.
    #[error(
        "`{}` can't name a VM; use 1 to {MAX_NAME} letters, digits, `-` and `_`, a letter or digit first",
        Shown(.0)
    )]
    Name(String),
    /// Two VMs of one name.
    #[error("another VM has this name; each needs its own")]
    NameTaken,
    /// A VM without a core.
    #[error("no core is given; name one, such as [1]")]
    NoCore,
    /// More vCPUs than a VM may have.
    #[error("{0} cores are given; a VM may have at most {MAX_VCPUS} vCPUs")]
    ManyCores(usize),
    /// The host's core.
    #[error("core 0 is the host's own; use core 1 or above")]
    HostCore,
    /// A VM that isn't there.
    #[error("the plan has no VM {0}; VMs count from 0")]
    NoSuchVm(u32),
    /// A core no machine has.
    #[error("core {0} is out of range; use 1 to {MAX_CORE}")]
    CoreRange(u32),
    /// More vCPUs than take turns on a core.
    #[error("core {core} is given to {shares} vCPUs; at most {MAX_SHARES} can share one")]
    CrowdedCore {
        /// The core.
        core: u32,
        /// How many there are.
        shares: usize,
    },
    /// The core's own local APIC, where others run, too.
    #[error(
        "other vCPUs run on core {0}, too, and \"direct\" gives its local APIC away; use \"eli\", or a core of its own"
    )]
    DirectShared(u32),
    /// What the CPU delivers by itself, where others run, too.
    #[error(
        "other vCPUs run on core {0}, too, and the CPU delivers by itself to one alone, as \"posted\" has it; use \"eli\", or a core of its own"
    )]
    PostedShared(u32),
    /// A VM that runs guests of its own, where others run, too.
    #[error(
        "other vCPUs run on core {0}, too, and a VM that runs guests of its own has its cores to itself; give it another core"
    )]
    NestedShared(u32),
    /// A VM that runs guests of its own, with a policy for which that isn't made.
    #[error(
        "a VM that runs guests of its own takes its interrupts as \"direct\" has it, not \"{}\"; leave interrupts out, or say \"direct\" (or \"trap\" with iommu = \"amd-vi\")",
        .0.label()
    )]
    NestedPolicy(Policy),
    /// An IOMMU of the guest's own without a device.
    #[error(
        "nothing would be behind the VM's own IOMMU: it is for devices that the VM owns; name one under devices, such as [\"nvme0\"], or leave iommu out"
    )]
    NothingBehindIommu,
    /// An IOMMU of the guest's own that exits serve, on a core that others share.
    #[error(
        "without a sidecore the VM's exits serve its own IOMMU, and that would keep core {0} from the other vCPUs there; give sidecores under [host], or the VM cores of its own"
    )]
    IommuShared(u32),
    /// An optimistic IOMMU of the guest's own that exits serve: nobody looks when the time is over.
    #[error(
        "without a sidecore nobody ends what an optimistic IOMMU leaves mapped; give sidecores under [host], or use \"{0}\""
    )]
    IommuByExits(&'static str),
    /// More devices behind an IOMMU of the guest's own than it takes.
    #[error(
        "{0} devices would be behind the VM's own IOMMU, and it has room for {MAX_BEHIND_IOMMU}; give the others to another VM, or leave iommu out"
    )]
    ManyBehindIommu(usize),
    /// A core that serves devices and is to run a guest.
    #[error(
        "core {core} is VM `{}`'s; a sidecore runs no guest, so give one of them another core", Shown(.by)
    )]
    SidecoreTaken {
        /// The core.
        core: u32,
        /// Whose it is.
        by: String,
    },
    /// A core named twice.
    #[error("core {0} is given twice; name each sidecore once")]
    SidecoreTwice(u32),
    /// More than the host serves devices with.
    #[error("{0} sidecores are given; a plan may have at most {MAX_SIDECORES}")]
    ManySidecores(usize),
    /// More than a sidecore serves.
    #[error(
        "core {core} would have {queues} queues of disks and networks to serve, and a sidecore has at most {MAX_SERVED}; give the host one more, or devices fewer queues"
    )]
    BusySidecore {
        /// The core.
        core: u32,
        /// How many there would be.
        queues: usize,
    },
    /// What moves can't.
    #[error(transparent)]
    Moving(#[from] MovingProblem),
    /// Nothing that would serve a disk or a network.
    #[error(
        "a sidecore serves it, and the plan has none; give it a core with sidecores = 1 in [host]"
    )]
    NoSidecore,
    /// More disks than a VM may have.
    #[error("{0} disks are given; a VM may have at most {MAX_DISKS}")]
    ManyDisks(usize),
    /// A disk without a sector.
    #[error("the disk has no byte; give a size such as \"64M\"")]
    EmptyDisk,
    /// More than any disk has.
    #[error("{size} is too much; a disk may have at most {max}", size = Size(*.0), max = Size(MAX_DISK))]
    LargeDisk(u64),
    /// More than any machine has memory.
    #[error(
        "{size} is more memory than a machine has; a disk in memory may have at most {max}, one cut from a controller (device = \"nvme0\") more",
        size = Size(*.0), max = Size(MAX_RAM_DISK)
    )]
    LargeRamDisk(u64),
    /// Part of a sector.
    #[error("{0} bytes are not a multiple of {SECTOR}, a sector's size")]
    OddDisk(u64),
    /// More than a serial number's field takes.
    #[error("it has {0} bytes; a disk's serial number may have at most {MAX_SERIAL}")]
    LongSerial(usize),
    /// What can't be shown.
    #[error("`{}` is no serial number; use printable ASCII characters", Shown(.0))]
    Serial(String),
    /// No queue, or too many.
    #[error("{0} is out of range; a disk may have 1 to {MAX_QUEUES} queues")]
    Queues(u16),
    /// Content of a disk that keeps none.
    #[error(
        "backing is \"null\", and such a disk holds nothing; use \"ram\", or leave the image out"
    )]
    ImageOfNull,
    /// A time for a device that takes its own.
    #[error(
        "only a null disk has a time of its own to take; use backing = \"null\", or leave it out"
    )]
    LatencyOfOther,
    /// A device too slow to be of use.
    #[error("{} is too much; a request may wait for at most {}", Micros(*.0), Micros(MAX_LATENCY))]
    Latency(u32),
    /// Parameters of coalescing that mean nothing.
    #[error(transparent)]
    Coalesce(#[from] CoalesceProblem),
    /// An interface that can't be.
    #[error(transparent)]
    Interface(#[from] BadInterface),
    /// An uplink that can't be.
    #[error(transparent)]
    Uplink(#[from] UplinkProblem),
    /// A disk that can't be cut from its controller.
    #[error(transparent)]
    Part(PartProblem),
    /// A limit that lets nothing through.
    #[error("with {0} = 0 nothing would be served; leave it out if there is no limit")]
    NoLimit(&'static str),
    /// A limit of a VM that no sidecore serves.
    #[error(
        "sidecores serve this VM nothing: it has no `disk` and no `network`; devices of its own have no limit"
    )]
    LimitOfNothing,
    /// A weight that means nothing.
    #[error("{0} is out of range; use 1 to {MAX_WEIGHT}")]
    Weight(u32),
    /// A slice too short to be worth the switch, or too long to wait for.
    #[error("{} is out of range; use {} to {}", Micros(*.0), Micros(*SLICES.start()), Micros(*SLICES.end()))]
    Slice(u32),
    /// Too little memory.
    #[error("{size} is too little; a VM needs at least {min}", size = Size(*.0), min = Size(MIN_MEMORY))]
    LittleMemory(u64),
    /// Too much memory.
    #[error("{size} is too much; a VM may have at most {max}", size = Size(*.0), max = Size(MAX_MEMORY))]
    MuchMemory(u64),
    /// Memory that doesn't end at a large page.
    #[error("{size} is not a multiple of 2M, the page size that guests' memory is mapped with", size = Size(*.0))]
    OddMemory(u64),
    /// More than Linux reads.
    #[error("the command line has {0} bytes; it may have at most {MAX_CMDLINE}")]
    LongCmdline(usize),
    /// A byte that would end it early.
    #[error("the command line holds a zero byte, where the kernel would stop reading it")]
    ZeroInCmdline,
    /// More than the guest's PCI bus has slots.
    #[error(
        "{0} devices are given, disks and networks among them; a VM may have at most {MAX_DEVICES}"
    )]
    ManyDevices(usize),
    /// An address PCI doesn't have.
    #[error("{0} is not a PCI address; a bus has devices 00 to 1f with functions 0 to 7")]
    NoSuchAddress(DeviceName),
    /// A device with two owners.
    #[error("{device} is VM `{by}`'s already; a device belongs to one VM, once")]
    DeviceTaken {
        /// The device.
        device: DeviceName,
        /// Who has it.
        by: String,
    },
    /// A virtual function beyond those that are made.
    #[error("{device} isn't there: [network.nic{nic}] has vfs = {vfs}, and they count from vf0")]
    NoSuchFunction {
        /// The device.
        device: DeviceName,
        /// Its controller.
        nic: u8,
        /// How many it has.
        vfs: u8,
    },
    /// A virtual function that no controller can have.
    #[error(
        "{0} can't be there: a controller has at most {MAX_VFS} virtual functions, vf0 to vf{last}",
        last = MAX_VFS - 1
    )]
    FunctionRange(DeviceName),
    /// A controller given away whole and in parts.
    #[error(
        "nic{0} is to have virtual functions, so it stays the host's; assign those (\"nic{0}.vf0\"), or the whole controller and none of them"
    )]
    SharedNic(u8),
    /// Too many tables.
    #[error("the plan has tables for {0} network controllers; it may have at most {MAX_NETWORKS}")]
    ManyNetworks(usize),
    /// Two tables for one controller.
    #[error("there are two tables for this network controller; write one")]
    NetworkTwice,
    /// A table that asks for nothing.
    #[error("it makes no virtual function; say how many (vfs = 2), or leave the table out")]
    NoFunction,
    /// More than any plan may ask for.
    #[error("{0} virtual functions are asked for; a plan may ask for 1 to {MAX_VFS}")]
    ManyFunctions(u8),
    /// Addresses for functions that won't be there.
    #[error("{macs} addresses are given; vfs = {vfs} leaves room for {vfs}")]
    ManyMacs {
        /// Addresses given.
        macs: usize,
        /// Functions asked for.
        vfs: u8,
    },
    /// An address that no station can have.
    #[error(
        "{0} can't be a controller's address: it is a group's, or nobody's; with 02 as its first byte it can"
    )]
    GroupMac(Mac),
    /// An address given twice.
    #[error("{0} is given twice; each virtual function needs an address of its own")]
    MacTwice(Mac),
}
