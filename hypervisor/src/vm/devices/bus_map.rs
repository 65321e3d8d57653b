//! Which device of a guest's PC answers at which port or address, and what an exit for that counts
//! as.
//!
//! Guarantees: an access has one answer, or none, by its address and size alone.

use alloc::vec::Vec;
use core::ops::Range;
use ledger::Reason;
use virtual_pc::ports::{Answers, Ports};

/// Something that a device answers.
pub enum Claim {
    /// I/O ports.
    Ports(Ports, Reason),
    /// Guest-physical addresses.
    Memory(Range<u64>, Reason),
}

/// Whom an access is for.
#[derive(Clone, Copy)]
pub struct Target {
    /// The device's place in the PC.
    pub device: usize,
    /// The reason that the exit counts as.
    pub reason: Reason,
    /// Which accesses to ports are answered. Of memory the device says it, access by access.
    pub answers: Answers,
}

/// The places of all devices. The map is made at boot and never changes, so it is read without the
/// VM's lock.
pub struct BusMap {
    ports: Vec<(Ports, Target)>,
    memory: Vec<(Range<u64>, Target)>,
}

impl BusMap {
    /// Of what each device claims, by place; the first one that claims an address has it.
    pub fn new(claims: impl Iterator<Item = Vec<Claim>>) -> Self {
        let mut map = BusMap { ports: Vec::new(), memory: Vec::new() };
        for (device, claims) in claims.enumerate() {
            for claim in claims {
                match claim {
                    Claim::Ports(ports, reason) => {
                        let answers = ports.answers;
                        map.ports.push((ports, Target { device, reason, answers }));
                    }
                    Claim::Memory(range, reason) => {
                        let answers = Answers::All;
                        map.memory.push((range, Target { device, reason, answers }));
                    }
                }
            }
        }
        map
    }

    /// The device that answers an access of `size` bytes at `port`.
    pub fn port(&self, port: u16, size: u8) -> Option<Target> {
        self.ports.iter().find(|(ports, _)| ports.contain(port, size)).map(|(_, target)| *target)
    }

    /// The device that answers an access at guest-physical `address`.
    pub fn memory(&self, address: u64) -> Option<Target> {
        self.memory.iter().find(|(range, _)| range.contains(&address)).map(|(_, target)| *target)
    }
}
