//! The parts of a plan, as errors name them.

use crate::shown::Shown;
use alloc::{format, string::String};
use core::fmt;

/// A part of a plan: a table of `vm.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// All of it.
    Plan,
    /// The VM of this name.
    Vm(String),
    /// What it says of the network controller of this name.
    Network(String),
    /// A disk of a VM.
    Disk {
        /// The VM's name.
        vm: String,
        /// Which of its disks, counted from 0.
        index: usize,
    },
    /// A network interface of a VM.
    Interface {
        /// The VM's name.
        vm: String,
        /// Which of its interfaces, counted from 0.
        index: usize,
    },
    /// What it says of the host.
    Host,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Plan => Ok(()),
            Place::Vm(name) => write!(f, "[vm.{}]", Shown(name)),
            Place::Network(name) => write!(f, "[network.{}]", Shown(name)),
            Place::Disk { vm, index } => write!(f, "[vm.{}] disk{index}", Shown(vm)),
            Place::Interface { vm, index } => write!(f, "[vm.{}] network{index}", Shown(vm)),
            Place::Host => f.write_str("[host]"),
        }
    }
}

/// What stands before a problem to say where it is: `[vm.web] cpus: `.
pub(crate) fn before(place: &Place, key: &str) -> String {
    match (place, key) {
        // The one key that is in no table; its tables' names are in what is said of them.
        (Place::Plan, "slice") => String::from("slice: "),
        (Place::Plan, _) => String::new(),
        (place, "") => format!("{place}: "),
        (place, key) => format!("{place} {key}: "),
    }
}
