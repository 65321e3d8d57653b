//! The bus of a guest's PC: accesses to I/O ports and to guest-physical addresses that aren't memory are
//! dispatched to devices by address.
//!
//! A device says in [`Device::claims`] what it answers and what an exit for that counts as; the bus finds
//! it. A new kind of device is a file with that trait, and a line where the PC is put together
//! (`devices::all`). Guarantees: an access has one answer, or none, by its address and size alone.

use crate::vm::board::Board;
use crate::vm::here::Here;
use crate::vm::stop::Stop;
use alloc::boxed::Box;
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

/// A device of a guest's PC. The VM's lock is held in every call but `claims`.
pub trait Device: Send {
    /// What it answers: the same at every call.
    fn claims(&self) -> Vec<Claim>;

    /// The guest's read of a port that it claims.
    fn read_port(&mut self, _: &mut Board, _: &mut Here, _port: u16, size: u8) -> u32 {
        virtual_pc::ports::unclaimed(size)
    }

    /// The guest's write of a port that it claims.
    fn write_port(
        &mut self,
        _: &mut Board,
        _: &mut Here,
        _port: u16,
        _size: u8,
        _value: u32,
    ) -> Result<(), Stop> {
        Ok(())
    }

    /// The guest's load from an address that it claims; `None`: nothing is there.
    fn load(&mut self, _: &mut Board, _: &mut Here, _address: u64, _size: u8) -> Option<u64> {
        None
    }

    /// The guest's store to an address that it claims; `None`: nothing is there.
    fn store(
        &mut self,
        _: &mut Board,
        _: &mut Here,
        _address: u64,
        _size: u8,
        _value: u64,
    ) -> Option<Result<(), Stop>> {
        None
    }

    /// Input for the guest has arrived.
    fn input(&mut self, _: &mut Board, _: &mut Here) {}

    /// As after power on.
    fn restart(&mut self) {}
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
    /// What these devices claim; the first one that claims an address has it.
    pub fn new<'a>(devices: impl Iterator<Item = &'a dyn Device>) -> Self {
        let mut map = BusMap { ports: Vec::new(), memory: Vec::new() };
        for (device, d) in devices.enumerate() {
            for claim in d.claims() {
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

/// The devices of a PC that aren't assigned, in the order of their places.
pub type Emulated = Vec<Box<dyn Device>>;
