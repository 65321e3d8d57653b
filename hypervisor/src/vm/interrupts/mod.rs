//! A vCPU's interrupts: from devices, from other vCPUs, from its timer.

pub mod apic_mode;
pub mod delivery_mode;
pub mod guest_timer;
pub mod ipi;
pub mod local_apic;
pub mod local_sources;
pub mod mode;
pub mod receive;
pub mod remote;
pub mod requests;
pub mod routing;
pub mod send;
pub mod shadow;
pub mod shadow_pages;
pub mod this_core;
pub mod timer;
pub mod vcpu_shadow;
