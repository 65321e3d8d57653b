//! Sidecores: cores of the host that serve the paravirtual functions of all VMs (ELVIS: Har'El and
//! others, USENIX ATC 2013). A guest asks by writing memory, which a sidecore polls; the sidecore
//! answers by an interrupt, which needs no exit where the guest takes its interrupts itself.
//!
//! | file | is |
//! |---|---|
//! | `build` | at boot: which device is served by which core, and what it is made of |
//! | `disk`, `views` | what a disk is made of; views of memory |
//! | `port` | what a paravirtual function and its sidecore say to each other |
//! | `entries` | the MSI-X entries, by which sidecores send |
//! | `backing` | what is behind a disk |
//! | `controller` | an NVMe controller that disks are cut from |
//! | `uplink` | a network controller that is a switch's way out |
//! | `taken` | what both have: registers, memory, a domain |
//! | `device` | a device as its sidecore has it: orders followed, queues made and given up |
//! | `queue` | one queue, of a disk or of a switch's port: a piece of its work |
//! | `guest_iommu` | the queue of a guest's IOMMU, with a sidecore or without |
//! | `signal` | which completions of a queue are told to the guest |
//! | `polling_core` | the loop of a sidecore: turns, and what is told at their end |
//! | `deadlines` | what it does by a time |
//! | `shutdown` | the machine's end, for controllers |
//! | `places` | places of devices and queues |
//! | `listeners` | sidecores that are rung, and sleep |
//! | `movable`, `moving` | devices that can move, and how they do |
//! | `balancer` | which moves when, by load |
//! | `counts` | what a sidecore did with its time |
//!
//! Guarantees: a sidecore waits for nobody, takes no lock that a waiter holds, and does a bounded
//! piece of work between two looks at what it is ordered. Of a VM it reaches the memory alone, by
//! checked spans of it, and only as long as the VM's port orders that. What one VM's queues hold
//! breaks that VM's queues and no others. A sidecore with a device polls for ever: it takes all of
//! its core, though nothing is to do. One without, where devices move, sleeps.

mod backing;
mod balancer;
pub mod build;
mod controller;
pub mod counts;
mod deadlines;
mod device;
mod disk;
pub mod entries;
pub mod guest_iommu;
mod listeners;
mod movable;
mod moving;
mod places;
mod polling_core;
pub mod port;
mod queue;
pub mod shutdown;
mod signal;
mod taken;
mod uplink;
pub mod views;
