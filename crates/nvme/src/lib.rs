//! An NVMe controller (NVM Express Base Specification 2.0, NVM Command Set Specification 1.0, the
//! Memory-Based Transport's), driven by polling and cut into disks.
//!
//! A [`Controller`] has one pair of I/O queues and no interrupts. Each [`Disk`] is a part of its
//! first namespace and a back end of a virtio disk ([`blk::Backend`]); the data of commands is the
//! guests' own memory, which the controller reaches by the addresses that spans have for devices.
//!
//! Guarantees, whatever the guests do:
//! - A command reads and writes its disk's part alone, and the spans of its operation.
//! - Each disk can have its share of the commands under way, whatever the others have.
//!
//! Guarantees, whatever the controller does, and writes:
//! - No panic, no wait, no loop longer than the commands there are; each access of ours is inside
//!   of the memory that we share with it and the spans of operations under way.
//! - Each operation that was accepted ends once. It ends well only by a completion of each of its
//!   commands; else it ends when the controller has stopped, or was cut off from memory.
//! - A completion that nobody waits for is counted, and nothing else.
//!
//! Not guaranteed, as nobody can: that the data is what was written; that a controller that lies
//! doesn't complete commands that it didn't carry out, or doesn't access the memory of one guest
//! for another's: its IOMMU domain bounds what it reaches, not which of it. See
//! `docs/security.md`.
//!
//! | file | is |
//! |---|---|
//! | `registers` | the trait, the registers, CAP |
//! | `command`, `ring` | entries of queues, and the queues |
//! | `prp` | spans of memory as a command's data |
//! | `bounce` | data that has to be copied |
//! | `identify`, `fault` | what a controller says of itself; what is wrong with it |
//! | `part` | which blocks a disk has |
//! | `slots` | commands under way, and whose they are |
//! | `memory` | what is where in the memory that is shared with the controller |
//! | `controller` | operations and completions |
//! | `phase` | start, watch and reset |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod bounce;
mod command;
mod controller;
mod disk;
mod fault;
mod identify;
mod memory;
mod part;
mod phase;
mod prp;
mod registers;
mod ring;
mod slots;

pub use controller::{Controller, Statistics};
pub use disk::{Abilities, Disk};
pub use fault::{Fault, Unfit};
pub use identify::Namespace;
pub use memory::BYTES as MEMORY;
pub use part::{BadPart, Part};
pub use phase::{State, Times};
pub use registers::{Capabilities, Registers};
pub use slots::MOST_DISKS;
