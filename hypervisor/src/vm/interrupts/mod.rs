//! A vCPU's interrupts: from devices, from other vCPUs, from its timer.

pub mod ipi;
pub mod local_apic;
pub mod mailbox;
pub mod requests;
pub mod shadow;
pub mod this_core;
