//! What a guest that runs guests of its own does, in terms that vendors share: `guest` is the VM's,
//! `inner` what it runs.

use crate::Exit;

/// A guest's memory, by the page.
pub trait GuestPages {
    /// The machine's address of the guest's page of 4 KiB that has this guest-physical address in
    /// it, if it is memory of the guest's. The host has it mapped there for as long as the guest
    /// lives.
    fn page(&self, gpa: u64) -> Option<u64>;
}

/// An instruction of the extension's, or one that isn't offered, was executed by the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It raises an exception, which is injected.
    Refused,
    /// It is done; without prefixes it is these bytes.
    Done(&'static [u8; 3]),
    /// It is done, and the inner guest is to run.
    Enter(&'static [u8; 3]),
}

/// Why the inner guest was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// The guest is told, and goes on.
    Told,
    /// A translation of its memory was missing, and is there now.
    Filled,
    /// It used this guest-physical address of the guest's, which isn't memory: what the guest has
    /// there is asked for ([`VirtualCpu::inner_registers`](crate::VirtualCpu::inner_registers)).
    Elsewhere(u64),
    /// What the guest lets it do, and nobody does without an exit: it is done as the guest's own,
    /// for which the vCPU's registers are the inner guest's until
    /// [`VirtualCpu::served`](crate::VirtualCpu::served).
    Own(Exit),
    /// An NMI came, as in [`Exit::Nmi`](crate::Exit::Nmi).
    Nmi,
    /// This physical interrupt came, and was completed: the host is to hand it on.
    Arrived(u8),
    /// A physical interrupt is pending, which the host is to take.
    Interrupt,
    /// What it did is done, or it has an exception for it.
    Done,
    /// It shut down, and the guest doesn't intercept that: the guest shuts down.
    Shutdown,
    /// #MC: the machine's.
    MachineCheck,
    /// Anything else: as in [`Exit::Unknown`](crate::Exit::Unknown).
    Unknown(u64, u64, u64),
}

/// What an access of the inner guest's to the local APIC that the guest has accelerated for it
/// comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApicAnswer {
    /// This is read.
    Value(u64),
    /// It is done.
    Done,
    /// #GP.
    Refused,
    /// It isn't done, and the guest is told: the instruction isn't stepped over.
    Undone,
}

/// An event for the guest, while its inner guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An interrupt waits for it.
    Interrupt,
    /// An NMI does.
    Nmi,
    /// INIT does.
    Init,
}
