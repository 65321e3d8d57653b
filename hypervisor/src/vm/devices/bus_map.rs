//! Which device of a guest's PC answers at which port or address, and what an exit for that counts
//! as.
//!
//! Guarantees: an access has one answer, or none, by its address and size alone.

use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};
use ledger::Reason;

/// Sizes of port accesses that a claim is for: bits 0, 1 and 2 for 1, 2 and 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sizes(u8);

impl Sizes {
    /// Bytes only.
    pub const BYTE: Sizes = Sizes(1);
    /// Words of 32 bits only.
    pub const DWORD: Sizes = Sizes(4);
    /// 1, 2 or 4 bytes.
    pub const ALL: Sizes = Sizes(7);

    fn contains(self, size: u8) -> bool {
        self.0 & size != 0
    }
}

/// Something that a device answers.
pub enum Claim {
    /// I/O ports, for accesses of these sizes that begin there.
    Ports(RangeInclusive<u16>, Sizes, Reason),
    /// Guest-physical addresses.
    Memory(Range<u64>, Reason),
}

/// Whom an access is for.
#[derive(Clone, Copy)]
pub struct Target {
    /// The device's place in the PC.
    pub device: usize,
    /// What the exit counts as.
    pub reason: Reason,
}

/// What is where. Made at boot, and the same from then on: it is read without the VM's lock.
pub struct BusMap {
    ports: Vec<(RangeInclusive<u16>, Sizes, Target)>,
    memory: Vec<(Range<u64>, Target)>,
}

impl BusMap {
    /// Of what each device claims, by place; the first one that claims an address has it.
    pub fn new(claims: impl Iterator<Item = Vec<Claim>>) -> Self {
        let mut map = BusMap { ports: Vec::new(), memory: Vec::new() };
        for (device, claims) in claims.enumerate() {
            for claim in claims {
                match claim {
                    Claim::Ports(ports, sizes, reason) => {
                        map.ports.push((ports, sizes, Target { device, reason }));
                    }
                    Claim::Memory(range, reason) => {
                        map.memory.push((range, Target { device, reason }));
                    }
                }
            }
        }
        map
    }

    /// Who answers an access of `size` bytes at `port`.
    pub fn port(&self, port: u16, size: u8) -> Option<Target> {
        let found = self.ports.iter().find(|(p, s, _)| p.contains(&port) && s.contains(size));
        found.map(|(.., target)| *target)
    }

    /// Who answers an access at guest-physical `address`.
    pub fn memory(&self, address: u64) -> Option<Target> {
        self.memory.iter().find(|(range, _)| range.contains(&address)).map(|(_, target)| *target)
    }
}
