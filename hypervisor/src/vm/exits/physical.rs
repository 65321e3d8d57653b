//! The physical memory of what runs: the guest's own, or that of its inner guest.
//!
//! Guarantees: of an inner guest's no byte is read that the guest's tables don't let it read.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::memory::Memory;
use paging::walk::GuestMemory;

/// Where an inner guest's physical addresses are in the guest's memory.
pub trait Addresses {
    /// Of one, for a store or a load.
    fn find(&self, memory: &Memory, address: u64, write: bool) -> Option<u64>;
}

impl<C: VirtualCpu> Addresses for C {
    fn find(&self, memory: &Memory, address: u64, write: bool) -> Option<u64> {
        self.inner_address(memory, address, write)
    }
}

/// The physical memory of what runs. One type for all, so that a walk is compiled once.
pub struct Physical<'a> {
    memory: &'a Memory,
    inner: Option<&'a dyn Addresses>,
}

impl<'a> Physical<'a> {
    /// The guest's own.
    pub fn of(memory: &'a Memory) -> Self {
        Physical { memory, inner: None }
    }

    /// The inner guest's, if there is one.
    pub fn within(memory: &'a Memory, inner: Option<&'a dyn Addresses>) -> Self {
        Physical { memory, inner }
    }

    /// Where an address is in the guest's memory.
    pub fn find(&self, address: u64, write: bool) -> Option<u64> {
        match self.inner {
            Some(inner) => inner.find(self.memory, address, write),
            None => Some(address),
        }
    }
}

impl GuestMemory for Physical<'_> {
    fn read_u64(&self, address: u64) -> Option<u64> {
        self.memory.read_u64(self.find(address, false)?)
    }

    fn read_u32(&self, address: u64) -> Option<u32> {
        self.memory.read_u32(self.find(address, false)?)
    }
}
