//! A vCPU's interrupts, by mechanism (`docs/design.md`, "Rooms", has them beside the paper's
//! names).
//!
//! Two mechanisms have files elsewhere. The sources of devices' interrupts are beside the devices
//! (`vm/devices/assigned/sources.rs`); only the IOMMUs that they are routed by are here. What keeps
//! critical interrupts from guests is the host's (`iommu/fault_interrupt.rs`).

pub mod exitless_eoi;
pub mod injection;
pub mod iommu_units;
pub mod ipi;
pub mod local_apic;
pub mod remapping;
pub mod shadow_idt;
pub mod timer;
pub mod waits;
