//! The firmware's boot services, by its own table: to end them.
//!
//! Not by way of the `uefi` crate: that one resets the machine where the firmware refuses twice,
//! and nobody would learn why.

use crate::pages::{REACH, below};
use alloc::string::String;
use core::ptr::null_mut;
use handover::ending::{self, BootServices, Unended};
use uefi::{Handle, Status, boot, mem::memory_map::MemoryDescriptor, table};

/// Bytes for descriptors that come until the map is read for good.
const SPARE: u64 = 16 << 10;

/// The memory map, as the firmware gave it.
pub struct Map {
    pub at: u64,
    pub bytes: u64,
    pub descriptor_size: u32,
}

/// Boot services that run.
pub struct Running {
    program: Handle,
    /// Where the map is put. Nothing is allocated once their end was asked for.
    room: &'static mut [u8],
}

impl Running {
    /// With room for the map.
    pub fn new() -> Result<Self, String> {
        let (_, bytes, _, _) = get(&mut []);
        let room = below(REACH, (bytes as u64).saturating_add(SPARE), "the memory map")?;
        Ok(Running { program: boot::image_handle(), room })
    }

    /// Ends them.
    ///
    /// # Safety
    /// Nothing that boot services own is used afterwards, not even if they go on.
    pub unsafe fn end(mut self) -> Result<Map, Unended> {
        ending::end(&mut self)
    }
}

/// GetMemoryMap: status, bytes, key, bytes of a descriptor.
fn get(room: &mut [u8]) -> (Status, usize, usize, usize) {
    let (mut bytes, mut key, mut descriptor, mut version) = (room.len(), 0, 0, 0);
    let map: *mut MemoryDescriptor =
        if room.is_empty() { null_mut() } else { room.as_mut_ptr().cast() };
    let Some(system) = table::system_table_raw() else {
        return (Status::UNSUPPORTED, 0, 0, 0);
    };
    // SAFETY: the firmware's tables, whose boot services run; `room` is writable, as long as it
    // says, and begins where a page does.
    let status = unsafe {
        let services = (*system.as_ptr()).boot_services;
        ((*services).get_memory_map)(&mut bytes, map, &mut key, &mut descriptor, &mut version)
    };
    (status, bytes, key, descriptor)
}

impl BootServices for Running {
    type Map = Map;

    fn memory_map(&mut self) -> Result<(Map, u64), u64> {
        let (status, bytes, key, descriptor) = get(self.room);
        if status != Status::SUCCESS {
            return Err(status.0 as u64);
        }
        let (at, bytes) = (self.room.as_ptr() as u64, bytes.min(self.room.len()) as u64);
        // What doesn't fit is no size of a descriptor, and refused by the hypervisor.
        let descriptor_size = u32::try_from(descriptor).unwrap_or(0);
        Ok((Map { at, bytes, descriptor_size }, key as u64))
    }

    fn exit(&mut self, key: u64) -> u64 {
        let Some(system) = table::system_table_raw() else {
            return Status::UNSUPPORTED.0 as u64;
        };
        // SAFETY: as above; by the contract of `end`, the only caller, nothing of theirs is used
        // afterwards.
        let status = unsafe {
            let services = (*system.as_ptr()).boot_services;
            ((*services).exit_boot_services)(self.program.as_ptr(), key as usize)
        };
        status.0 as u64
    }
}
