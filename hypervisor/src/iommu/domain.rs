//! A domain of the host's own: what a device may reach that a sidecore drives for guests.
//!
//! Addresses for the device are physical addresses, and mapped are the memory of the VMs that it
//! serves and the rings of its driver, and nothing else. Guarantees: whatever the device does, or
//! its driver has it do, it reaches no memory of the host's and of no other VM. It doesn't keep the VMs
//! that it serves apart from each other: for that its driver is trusted, and the device.

use super::{PageFormat, attach, coherent, detach, largest_page, page_format, write_back};
use crate::memory::{PAGE, allocate};
use ::iommu::{Bdf, Domain, DomainId};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use paging::{Access, Format, Table};
use spin::mutex::TicketMutex as Mutex;

/// Each device with its domain.
static ALL: Mutex<Vec<(Bdf, Domain)>> = Mutex::new(Vec::new());

/// Frames of the tables. Boot only.
struct Frames {
    write_back: bool,
}

impl paging::Memory for Frames {
    fn read(&self, pa: u64) -> u64 {
        // SAFETY: `Table` passes aligned words of frames from `allocate`, identity-mapped.
        unsafe { core::ptr::read_volatile(pa as *const u64) }
    }

    fn write(&mut self, pa: u64, value: u64) {
        // SAFETY: as in `read`; the unit may walk the table meanwhile, hence one whole store.
        unsafe { core::ptr::write_volatile(pa as *mut u64, value) }
        if self.write_back {
            write_back(pa, 8);
        }
    }

    fn allocate(&mut self) -> Option<u64> {
        let frame = allocate(PAGE, PAGE)?;
        if self.write_back {
            write_back(frame, PAGE);
        }
        Some(frame)
    }

    fn free(&mut self, _: u64) {}
}

/// A device's domain. Boot only.
pub struct HostDomain {
    device: Bdf,
    id: u16,
    table: Table<PageFormat>,
    frames: Frames,
    mapped: Vec<u64>,
}

impl HostDomain {
    /// Nothing is mapped, and the device not attached. No other domain has this id.
    pub fn new(device: Bdf, id: u16) -> Result<Self, String> {
        let mut frames = Frames { write_back: !coherent() };
        let table = Table::new(&mut frames, page_format(), largest_page());
        let table = table.map_err(|e| e.to_string())?;
        Ok(HostDomain { device, id, table, frames, mapped: Vec::new() })
    }

    /// Maps a run of memory, unless it is mapped already. The device may reach it when it is
    /// attached anew.
    pub fn map(&mut self, at: u64, len: u64) -> Result<(), String> {
        if self.mapped.contains(&at) {
            return Ok(());
        }
        self.table
            .map(&mut self.frames, at, at, len, Access::READ | Access::WRITE)
            .map_err(|e| format!("the memory at {at:#x} can't be mapped for it: {e}"))?;
        self.mapped.push(at);
        Ok(())
    }

    /// Has the device reach what is mapped now, and nothing else. It is idle.
    pub fn attach(&self) -> Result<(), String> {
        let (root, format) = (self.table.root(), page_format());
        let mut all = ALL.lock();
        if all.iter().any(|(device, _)| *device == self.device) {
            detach(self.device).map_err(|e| e.to_string())?;
        } else {
            let levels = format.levels() as u8;
            all.push((self.device, Domain { id: DomainId(self.id), root, levels }));
        }
        attach(self.device, self.id, root, format)
    }
}

/// The devices that are attached to domains of the host's, with those.
pub fn attached() -> Vec<(Bdf, Domain)> {
    ALL.lock().clone()
}
