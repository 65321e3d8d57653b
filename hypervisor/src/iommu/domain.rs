//! A domain of the host's own: what a device may reach that a sidecore drives for guests.
//!
//! Addresses for the device are physical addresses, and mapped are the memory of the VMs that it
//! serves and the rings of its driver, and nothing else. Guarantees: whatever the device does, or
//! its driver has it do, it reaches no memory of the host's and of no other VM. It doesn't keep the
//! VMs that it serves apart from each other: for that its driver is trusted, and the device.

use super::pool::Pool;
use super::{PageFormat, attach, detach, largest_page, page_format};
use ::iommu::{Bdf, Domain, DomainId};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use dma::DmaTable;
use paging::audit::Outline;
use paging::{Access, Format};
use spin::mutex::TicketMutex as Mutex;

/// What each device that is attached is confined by.
static ALL: Mutex<Vec<Confinement>> = Mutex::new(Vec::new());

/// The tables of a device's domain, as they were made, and what they are to lead to.
#[derive(Clone)]
pub struct Confinement {
    pub device: Bdf,
    pub domain: Domain,
    pub outline: Outline<PageFormat>,
    /// The tables' frames, ascending.
    pub frames: Vec<u64>,
    /// Physical address and bytes of what is mapped, one to one.
    pub mapped: Vec<(u64, u64)>,
}

/// A device's domain. Boot only.
pub struct HostDomain {
    device: Bdf,
    id: u16,
    table: DmaTable,
    frames: Pool,
    mapped: Vec<(u64, u64)>,
}

impl HostDomain {
    /// Nothing is mapped, and the device not attached. No other domain has this id.
    pub fn new(device: Bdf, id: u16) -> Result<Self, String> {
        let mut frames = Pool::new();
        let table = DmaTable::new(&mut frames, page_format(), largest_page());
        let table = table.map_err(|e| e.to_string())?;
        Ok(HostDomain { device, id, table, frames, mapped: Vec::new() })
    }

    /// Maps a run of memory, unless it is mapped already. The device may reach it when it is
    /// attached anew.
    pub fn map(&mut self, at: u64, len: u64) -> Result<(), String> {
        if self.mapped.contains(&(at, len)) {
            return Ok(());
        }
        self.table
            .map(&mut self.frames, at, at, len, Access::READ | Access::WRITE)
            .map_err(|e| format!("the memory at {at:#x} can't be mapped for it: {e}"))?;
        self.mapped.push((at, len));
        Ok(())
    }

    /// Has the device reach what is mapped now, and nothing else. It is idle.
    pub fn attach(&self) -> Result<(), String> {
        let (device, root, format) = (self.device, self.table.root(), page_format());
        let mut all = ALL.lock();
        if all.iter().any(|one| one.device == device) {
            detach(device).map_err(|e| e.to_string())?;
            all.retain(|one| one.device != device);
        }
        let domain = Domain { id: DomainId(self.id), root, levels: format.levels() as u8 };
        let frames = self.frames.all();
        let (outline, mapped) = (self.table.outline(), self.mapped.clone());
        all.push(Confinement { device, domain, outline, frames, mapped });
        attach(device, self.id, root, format)
    }
}

/// The devices that are attached to domains of the host's, with those. While booting, when all of
/// them are.
pub fn attached() -> Vec<Confinement> {
    ALL.lock().clone()
}

/// Where the tables of one of them begin, and the last run of memory that they lead to.
#[cfg(feature = "plant")]
pub fn root_and_last_run() -> Option<(u64, u64)> {
    let all = ALL.lock();
    let one = all.first()?;
    Some((one.domain.root, one.mapped.last()?.0))
}
