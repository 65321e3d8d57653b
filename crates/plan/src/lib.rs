//! The plan: which VMs a machine runs, with which cores, memory, kernels and
//! devices. A person writes it as `vm.toml` ([`file`], feature `file`); the
//! command line packs it with the kernels into a boot image ([`image`]), which
//! the hypervisor reads back at boot.
//!
//! Guarantees: a [`Plan`] that comes out of [`file::parse`] or [`image::parse`]
//! has passed [`Plan::check`]; no input panics. It doesn't guarantee that the
//! machine has what the plan names: cores, memory and devices are found by
//! probing, so the hypervisor checks those.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod at_end;
mod bounds;
mod check;
mod control;
mod device;
mod disk;
mod interface;
mod limit;
mod sharing;
mod shown;
mod size;
mod uplink;
mod vm;

#[cfg(any(test, feature = "file"))]
pub mod file;
#[cfg(any(test, feature = "file"))]
mod file_error;
pub mod image;
mod moving;
#[cfg(any(test, feature = "file"))]
mod nearest;
mod network;
mod owned;
mod part;
mod place;
mod problem;
#[cfg(test)]
mod sample;

pub use at_end::AtEnd;
pub use bounds::{MAX_CMDLINE, MAX_CORE, MAX_MEMORY, MAX_VCPUS, MIN_MEMORY};
pub use control::{COALESCE_RATES, Coalesce, CoalesceProblem, Coalescing, Control, EPOCHS};
pub use device::{Class, DeviceError, DeviceName};
pub use disk::{
    Backing, Disk, MAX_DISK, MAX_DISKS, MAX_LATENCY, MAX_QUEUES, MAX_RAM_DISK, MAX_SERIAL,
    MAX_SERVED, MAX_SIDECORES, SECTOR,
};
pub use interface::{
    BadInterface, DEFAULT_MTU, Interface, MAX_INTERFACES, MAX_PAIRS, MTUS, VLANS, may_have,
};
pub use limit::Limit;
pub use moving::{LATENCIES, Moving, MovingProblem};
#[cfg(any(test, feature = "file"))]
pub use nearest::nearest;
pub use network::{Mac, MacError, Network, Shared};
pub use owned::Owner;
pub use part::{MAX_PARTS, PART_ALIGNMENT, Part, PartProblem};
pub use place::Place;
pub use problem::{Error, Problem};
pub use proto::{Policy, frame::MAX_VMS};
pub use sharing::{
    DEFAULT_SLICE, DEFAULT_WEIGHT, Host, MAX_SHARES, MAX_WEIGHT, Micros, MicrosError, Protection,
    SLICES, WithoutRemapping, parse_micros,
};
pub use shown::{Escaped, Shown};
pub use size::{RateError, Size, SizeError, parse_rate, parse_size};
pub use uplink::UplinkProblem;
pub use vm::{
    Blob, CHOICES, Choice, GuestIommu, IommuUnit, OPTIMISM_US, OnReset, Plan, Vm, choice_label,
};
