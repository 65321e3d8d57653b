//! What the tests of several rules begin with: a VM that keeps to all of them.

use crate::{GuestIommu, Limit, OnReset, Vm};
use alloc::{string::String, vec, vec::Vec};

/// A VM of this name with one vCPU on this core, and nothing that it needn't have.
pub fn vm(name: &str, core: u32) -> Vm<()> {
    Vm {
        name: name.into(),
        cpus: vec![core],
        weight: 100,
        limit: Limit::default(),
        memory: 128 << 20,
        kernel: (),
        initrd: None,
        cmdline: String::new(),
        devices: Vec::new(),
        disks: Vec::new(),
        interfaces: Vec::new(),
        interrupts: None,
        reset: OnReset::Stop,
        nested: false,
        iommu: GuestIommu::None,
    }
}
