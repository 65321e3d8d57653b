//! Why a `vm.toml` is refused: one sentence each.

use crate::{
    CHOICES, DeviceError, MacError, MicrosError, Place, RateError, SizeError, bounds,
    place::before,
    problem,
    shown::{Escaped, Shown},
};
use alloc::{boxed::Box, string::String};
use core::fmt;

/// Why a file was refused. Displays as `vm.toml:3: [vm.web] cpus: …`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {}{problem}", before(.place, .key))]
pub struct Error {
    /// The file's name as the caller gave it.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The table.
    pub place: Place,
    /// The key; empty when it is about the table itself.
    pub key: String,
    /// What is wrong.
    pub problem: Box<Problem>,
}

/// What can be wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not TOML.
    #[error("not valid TOML: {}", Escaped(.0))]
    Toml(String),
    /// A text whose quote isn't closed.
    #[error(
        "a text in quotes begins in this line and doesn't end in it; close it with another {0}"
    )]
    Unclosed(char),
    /// A VM, a table or a key that is there already.
    #[error("`{}` is given twice; each table and key is given once", Shown(.0))]
    Twice(String),
    /// A key that means nothing.
    #[error("unknown key `{}`; {hint}", Shown(.found))]
    UnknownKey {
        /// The key.
        found: String,
        /// What is known.
        hint: String,
    },
    /// A key of a table within a table that means nothing.
    #[error("unknown key `{}` of `{of}`; {hint}", Shown(.found))]
    UnknownKeyOf {
        /// The key.
        found: String,
        /// The table's key.
        of: &'static str,
        /// What is known.
        hint: String,
    },
    /// A key of another table.
    #[error("`{}` doesn't belong here; it belongs {table}", Shown(.found))]
    Elsewhere {
        /// The key.
        found: String,
        /// Where it belongs.
        table: &'static str,
    },
    /// A table that means nothing; perhaps a VM's name alone.
    #[error("unknown table [{name}]; a VM's is [vm.{name}]", name = Shown(.0))]
    UnknownTable(String),
    /// A value of the wrong type.
    #[error("this is {found}, but it has to be {needed}")]
    Type {
        /// The type found.
        found: &'static str,
        /// The type needed, with an example.
        needed: &'static str,
    },
    /// A number that is no core.
    #[error("`{}` is no core; cores are numbered 0, 1, 2 …", Shown(.0))]
    Core(String),
    /// A number that is no weight.
    #[error("`{}` is no weight; give a number from 1 to {max}", Shown(.0), max = crate::MAX_WEIGHT)]
    Weight(String),
    /// A map that there isn't.
    #[error("`{}` is no map from requests in flight to interrupts; use \"paper\" or \"adapted\"", Shown(.0))]
    Map(String),
    /// A number that is no limit.
    #[error("`{}` is no number of requests a second; give one such as 20000", Shown(.0))]
    Iops(String),
    /// A limit of nothing.
    #[error(
        "it limits nothing; give iops, rate or both, such as {{ iops = 20000, rate = \"100M/s\" }}, or leave `limit` out"
    )]
    EmptyLimit,
    /// A time that is none.
    #[error("a time of 0 is none; give one such as \"2ms\", or leave `{0}` out")]
    NoTime(&'static str),
    /// Not given, and there is no default.
    #[error("it has no `{0}`; give the path of one, such as {0} = \"vmlinuz\"")]
    Missing(&'static str),
    /// An empty path.
    #[error("the path is empty; give the path of a file")]
    EmptyPath,
    /// Not a policy.
    #[error("\"{}\" is no interrupt policy; {hint}", Shown(.found))]
    UnknownPolicy {
        /// The word.
        found: String,
        /// What is known.
        hint: String,
    },
    /// Not a way to take a reset.
    #[error("\"{}\" is nothing that a reset can lead to; use \"restart\" or \"stop\"", Shown(.0))]
    Reset(String),
    /// Not an IOMMU that a guest can have.
    #[error("\"{}\" is no IOMMU that a guest can have; use \"none\", \"virtio\", \"virtio-optimistic\", \"vt-d\", \"vt-d-optimistic\", \"amd-vi\" or \"amd-vi-optimistic\"", Shown(.0))]
    GuestIommu(String),
    /// Not a way to keep an interrupt safe.
    #[error("\"{}\" is no protection; use \"elsewhere\", \"nmi\" or \"limit\"", Shown(.0))]
    Protection(String),
    /// Not what to do without interrupt remapping.
    #[error("\"{}\" is nothing to do without interrupt remapping; use \"refuse\" or \"trust-every-guest\"", Shown(.0))]
    WithoutRemapping(String),
    /// Not a VM of the plan.
    #[error("\"{}\" is no VM of this plan; {hint}", Shown(.found))]
    UnknownVm {
        /// The word.
        found: String,
        /// What is known.
        hint: String,
    },
    /// Not an end.
    #[error("\"{}\" is nothing that the machine can end with; use \"stay\", \"power-off\" or \"reset\"", Shown(.0))]
    AtEnd(String),
    /// Not what can be behind a disk.
    #[error("\"{}\" is nothing that can be behind a disk; use \"ram\" or \"null\"", Shown(.0))]
    Backing(String),
    /// A disk in two places.
    #[error("a disk on a device has no `backing`; leave one of the two out")]
    TwoBackings,
    /// A place on nothing.
    #[error("a disk has an offset on a device alone; name one, such as device = \"nvme0\"")]
    OffsetOfNothing,
    /// A disk of no size.
    #[error("it has no `size`; give one, such as size = \"64M\"")]
    NoSize,
    /// An interface at no switch.
    #[error(
        "it has no `switch`; name one, such as switch = \"lan\", and VMs that name the same can reach each other"
    )]
    NoSwitch,
    /// A number that isn't one of those that can be.
    #[error("`{}` is out of range; use {first} to {last}", Shown(.found))]
    Range {
        /// The number.
        found: String,
        /// The least that can be.
        first: u64,
        /// The most that can be.
        last: u64,
    },
    /// Not a rate.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// A number that isn't one of queues.
    #[error("`{}` is no number of queues; give one from 1 to {max}", Shown(.0), max = crate::MAX_QUEUES)]
    Queues(String),
    /// A number that isn't one of sidecores.
    #[error("`{}` is no number of sidecores; give one from 0 to {max}, or a list of cores such as [1]", Shown(.0), max = crate::MAX_SIDECORES)]
    Sidecores(String),
    /// Not a time.
    #[error(transparent)]
    Micros(#[from] MicrosError),
    /// Not a size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Not a device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A table for something that isn't a network controller.
    #[error("`{}` is no network controller; tables are named after those, such as [network.nic0]", Shown(.0))]
    Nic(String),
    /// A number that isn't one of virtual functions.
    #[error("`{}` is no number of virtual functions; give one from 1 to {max}", Shown(.0), max = bounds::MAX_VFS)]
    Functions(String),
    /// Not an Ethernet address.
    #[error(transparent)]
    Mac(#[from] MacError),
    /// The file reads well, but can't be run.
    #[error(transparent)]
    Check(problem::Problem),
}

/// Displays every policy that can be asked for: `"auto", "trap" or "eli"`.
#[derive(Clone, Copy, Debug)]
pub struct Policies;

impl fmt::Display for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = CHOICES.len() - 1;
        CHOICES.iter().enumerate().try_for_each(|(i, name)| match i {
            0 => write!(f, "\"{name}\""),
            i if i == last => write!(f, " or \"{name}\""),
            _ => write!(f, ", \"{name}\""),
        })
    }
}
