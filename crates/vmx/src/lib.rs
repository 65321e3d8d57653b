//! Intel's VMX (SDM vol. 3, chapters 24 to 31), as far as it is pure: the fields of the control
//! structure, what a CPU's capability MSRs allow, exits in the terms that vendors share, events,
//! the states that a vCPU starts in, and the checks of an entry as a model of the manual's.
//!
//! Guarantees: controls that [`Controls::fit`] makes are those that the CPU allows, with all that
//! the host's safety needs; a control structure made of them and of [`start`] passes
//! [`entry::check`]. Doesn't execute anything: a control structure is an [`Area`], which is read
//! and written field by field.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod area;
mod audit;
mod capabilities;
pub mod controls;
pub mod entry;
mod errata;
mod events;
mod exits;
mod failure;
mod feature_control;
pub mod field;
mod host;
pub mod maps;
mod posted;
mod registers;
pub mod start;
mod state;
mod vcpu;

pub use area::Area;
pub use audit::Outline;
pub use capabilities::{Capabilities, Fixed, Lack, Range};
pub use controls::Controls;
pub use errata::{ARCH_CAPABILITIES, errata};
pub use events::{Delivered, Kind, debug_status, nmi_unblocked};
pub use exits::{decode, is_msr_write};
pub use failure::{Failure, Refused};
pub use feature_control::{FeatureControl, Locked};
pub use field::Field;
pub use host::Host;
pub use posted::{Descriptor, Notification, Registers};
pub use vcpu::{Posting, Setup, Vcpu};
