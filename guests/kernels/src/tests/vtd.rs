//! The guest's own VT-d unit: what it has that no other vendor's has.

use super::unit::AT;
use super::unit_faults;
use crate::edu::Edu;
use crate::unit::{Told, Unit};
use crate::vtd::Vtd;
use crate::{boot::Boot, console::check, wait};

const PAGE: u64 = 4096;

/// What a device tries and isn't let: there are as many records as its registers have.
pub fn faults(test: &str, boot: &Boot) {
    unit_faults::faults::<Vtd>(test, boot, |unit, edu| overflow(test, unit, edu));
}

/// More than there are records for, one after the other as the host looks.
fn overflow(test: &str, unit: &Vtd, edu: &Edu) {
    let flooded = wait::until(|| edu.dma_to_memory(AT, PAGE) && unit.overflows());
    let (first, found) = unit.take_told();
    let right = matches!(first, Some(Told { is_read: false, address: AT, .. })) && found > 1;
    check!(test, flooded && right, "{found} records, and it says that there was one more");
    // Behind the last record is an empty one, where a driver stops; the rest is told again.
    let emptied = wait::until(|| {
        unit.take_told();
        wait::until(|| unit.has_answered()) && !unit.has_told()
    });
    check!(test, emptied, "all of it is cleared");
}
