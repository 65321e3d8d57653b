//! A vCPU's interrupts: a folder for each mechanism (`docs/design.md`, "Rooms", has them beside
//! the paper's names).

pub mod exitless_eoi;
pub mod injection;
pub mod iommu_units;
pub mod ipi;
pub mod local_apic;
pub mod shadow_idt;
pub mod timer;
