//! What the IOMMUs blocked, told to the guest whose device tried it, if it has a unit of its own.
//!
//! Guarantees: core 0, which calls it, waits for nobody. What it can't tell at once it keeps, as
//! much as a unit has records for; the guest learns of the rest as an overflow. A guest learns of
//! its own devices alone.

use super::guest::GuestIommu;
use ::iommu::{Bdf, Request};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use spin::Mutex;
use viommu::unit::Fault;

/// A unit has seven records, and one more has it overflow.
const MOST: usize = 8;

/// A guest's unit.
struct Unit {
    iommu: &'static GuestIommu,
    /// What is behind it, by place.
    devices: Vec<Bdf>,
    untold: ArrayVec<Fault, MOST>,
}

/// Core 0 alone uses it.
static UNITS: Mutex<Vec<Unit>> = Mutex::new(Vec::new());

/// These devices are behind this unit of a guest's. Boot only.
pub fn add(iommu: &'static GuestIommu, devices: &[Bdf]) {
    UNITS.lock().push(Unit { iommu, devices: devices.to_vec(), untold: ArrayVec::new() });
}

/// A device tried this. [`tell`] tells of it.
pub fn note(fault: &::iommu::Fault) {
    let (is_write, address) = match fault.request {
        Request::Read(address) => (false, address),
        Request::Write(address) => (true, address),
        // A guest's entries aren't those that it is told by here.
        _ => return,
    };
    for unit in UNITS.lock().iter_mut() {
        let at = unit.devices.iter().position(|device| *device == fault.source);
        if let Some(endpoint) = at {
            let _ = unit.untold.try_push(Fault { endpoint, is_write, address });
        }
    }
}

/// Tells of what was noted; whose unit somebody is at is told the next time.
pub fn tell() {
    for Unit { iommu, untold, .. } in UNITS.lock().iter_mut().filter(|u| !u.untold.is_empty()) {
        if iommu.tell(untold.iter().copied()) {
            untold.clear();
        }
    }
}
