//! The physical CPUs: found, started once, parked until they are given work.

pub mod control;
pub mod descriptors;
mod extra;
pub mod machine_check;
pub mod msr;
mod parking;
mod percpu;
pub mod port;
mod setup;
mod startup;
mod svm;
mod time;
pub mod vectors;
mod vendor_cpu;
mod vmx;
pub mod x2apic;

pub use ::vendor;
pub use control::apic_id;
pub use nested::Offer as VendorOffer;
pub use parking::{park, run_on};
pub use percpu::{NO_VM, PerCpu, all, count, find, get, taken_at_most, this};
pub use setup::{fiber_stack, init, setup_boot_cpu};
pub use startup::start_others;
pub use svm::post_to_inner;
pub use time::{Clock, delay_us, measure, rdtsc, timer_hz, timer_ticks, tsc_hz};
pub use vendor_cpu::{
    Posting, Traits, VendorCpu, VendorOutline, choose, errata, lacks, posts, second_level,
};
pub use vmx::again;
