//! What a guest may ask to be invalidated: by a descriptor of its queue, or by a register
//! (VT-d 5.0, 6.5.2, 11.4.6 and 11.4.8).

use super::registers::MOST_PAGES;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// What devices are in may have changed.
    Contexts,
    /// What this range of domains maps, or all that they map.
    Mappings {
        /// One domain, or all.
        domain: Option<u16>,
        /// First and last address.
        first: u64,
        last: u64,
    },
    /// Entries for interrupts.
    Interrupts,
    /// To write a word when all before is done, if one is to be written.
    Wait(Option<(u64, u32)>),
}

/// What a descriptor asks for; `None`: it is none of those that are offered.
pub fn read([low, high]: [u64; 2]) -> Option<Asked> {
    let granularity = low >> 4 & 3;
    match (low & 0xF, low >> 9 & 7) {
        (1, 0) if granularity != 0 => Some(Asked::Contexts),
        (2, 0) => mappings(granularity, (low >> 16) as u16, high),
        (4, 0) => Some(Asked::Interrupts),
        (5, 0) => {
            let writes = low & 1 << 5 != 0;
            Some(Asked::Wait(writes.then_some((high & !3, (low >> 32) as u32))))
        }
        _ => None,
    }
}

/// All (1), a domain's (2), or pages of a domain (3).
pub fn mappings(granularity: u64, id: u16, pages: u64) -> Option<Asked> {
    let (first, last) = (0, u64::MAX);
    match granularity {
        1 => Some(Asked::Mappings { domain: None, first, last }),
        2 => Some(Asked::Mappings { domain: Some(id), first, last }),
        3 => {
            let order = (pages & 0x3F) as u32;
            if order > MOST_PAGES {
                return None;
            }
            let size = 1_u64 << (12 + order);
            let first = pages & !(size - 1);
            Some(Asked::Mappings { domain: Some(id), first, last: first + (size - 1) })
        }
        _ => None,
    }
}
