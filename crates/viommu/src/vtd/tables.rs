//! The guest's tables: which domain a device is in, and what an entry of the second level says
//! (VT-d 5.0, 9.1 to 9.8).

use crate::walk::{Entry, Format, Root, word};
use crate::{Domain, LARGE_PAGE, PAGE};
use window::Window;

const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
const LARGE: u64 = 1 << 7;
/// Types of translation of a context entry: by tables, or passing through.
const BY_TABLES: u64 = 0;
const PASSES: u64 = 2;
/// A domain that passes through, by its number.
const BYPASS: u64 = 1 << 63;

/// The domain that the device of this id is in by the tables at `root`; `None`: in none.
pub fn context(window: &Window, root: u64, id: u32, levels: u32) -> Option<Domain> {
    let (bus, function) = (u64::from(id >> 8), u64::from(id & 0xFF));
    let table = word(window, (root & ADDRESS).checked_add(16 * bus)?)?;
    let at = (table & ADDRESS).checked_add(16 * function).filter(|_| table & 1 != 0)?;
    let [low, high] = window.span(at, 16)?.load_u64_pair(0).ok()?;
    let (width, id) = (high & 7, high >> 8 & 0xFFFF);
    let tables = (low & ADDRESS) << 4;
    match low >> 2 & 3 {
        _ if low & 1 == 0 => None,
        BY_TABLES if width == u64::from(levels - 2) => {
            Some(Domain { number: tables | id, bypass: false, blocked: true })
        }
        PASSES => Some(Domain { number: BYPASS | id, bypass: true, blocked: false }),
        _ => None,
    }
}

/// Tables of the second level. A domain's number has the root in bits 55:16, and the guest's own in
/// 15:0.
#[derive(Debug)]
pub enum SecondLevel {}

impl Format for SecondLevel {
    fn root(domain: u64, last: u64) -> Root {
        let level = (last + 1).trailing_zeros() / 9 - 1;
        Root { table: domain >> 4 & ADDRESS, level, rights: 3 }
    }

    fn entry(word: u64, level: u32) -> Entry {
        let (rights, to) = (word & 3, word & ADDRESS);
        match level {
            1 => Entry::Leaf(PAGE, to, rights),
            2 if word & LARGE != 0 => Entry::Leaf(LARGE_PAGE, to, rights),
            3 if word & LARGE != 0 => Entry::Nothing,
            _ => Entry::Table(level - 1, to, rights),
        }
    }
}
