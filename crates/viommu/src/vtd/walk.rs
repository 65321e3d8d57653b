//! The guest's tables: which domain a device is in, and a walk through what a domain maps, after
//! which the real unit's tables map the same (VT-d 5.0, 9.1 to 9.8).
//!
//! Guarantees: each word is read once, and what it leads to is the guest's memory or isn't mapped.
//! A walk goes on where it was, and reads no more words in all than it was given; what is mapped as
//! it should be isn't touched.

use crate::{Domain, Done, LARGE_PAGE, PAGE, Status, Tables, Viommu};
use paging::Access;
use window::Window;

const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
const LARGE: u64 = 1 << 7;
/// Types of translation of a context entry: by tables, or passing through.
const BY_TABLES: u64 = 0;
const PASSES: u64 = 2;
/// A domain that passes through, by its number.
const BYPASS: u64 = 1 << 63;

/// A word of the guest's memory.
fn word(window: &Window, at: u64) -> Option<u64> {
    window.span(at, 8)?.load_u64(0).ok()
}

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

/// The guest's own number of a domain.
pub fn id(domain: u64) -> u16 {
    domain as u16
}

/// What is the same for a run of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    /// Mapped as it should be.
    Right,
    /// Not to be mapped.
    Gone,
    /// To be mapped to the machine's memory from here on.
    At(u64, Access),
}

/// A walk through a range of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The domain's place.
    pub place: usize,
    /// Where it goes on.
    at: u64,
    /// The last address.
    last: u64,
    /// Words that it may read.
    left: u64,
    /// It began with the first address and ends with the last one of all.
    pub whole: bool,
}

/// Ranges that are changed at once.
const MOST_CHANGES: u32 = 8;

/// A table of the last level: which range it is of, and where it is.
type Leaves = Option<(u64, u64)>;

impl Walk {
    /// Through the range `first` to `last`, of which as much counts as is translated.
    pub fn new(device: &Viommu, place: usize, first: u64, last: u64) -> Walk {
        let end = device.shape.last;
        // Twice what could be mapped at all, and so much for a guest whose pool is small.
        let left = 2 * device.shape.pages + (1 << 14);
        let whole = first == 0 && last >= end;
        Walk { place, at: first, last: last.min(end), left, whole }
    }

    /// Goes on for about so many words, or changes of the tables, since the unit is waited for at
    /// each; `words` counts those that are read. True: it is through.
    pub fn advance(
        &mut self,
        (device, tables): (&mut Viommu, &mut dyn Tables),
        window: &Window,
        (most, words): (u64, &mut u64),
    ) -> Result<bool, Status> {
        let domain = device.of(self.place).ok_or(Status::NoEntry)?;
        let root = domain.number >> 4 & ADDRESS;
        let levels = (device.shape.last + 1).trailing_zeros() / 9 - 1;
        let stop = words.saturating_add(most);
        let mut leaves: Leaves = None;
        let mut run: Option<(u64, u64, Is)> = None;
        let mut changes = 0;
        while self.at <= self.last && *words < stop && changes < MOST_CHANGES {
            let before = *words;
            let (size, leads) = look(window, (root, levels), self.at, (&mut leaves, words));
            self.left = self.left.checked_sub(*words - before).ok_or(Status::NoMemory)?;
            // What the guest maps in part of it alone has a larger page.
            let first = self.at & !(size - 1);
            let end = first + size;
            let (at, bytes) = match leads {
                Some(_) => (first, size),
                None => (self.at, end.min(self.last + 1) - self.at),
            };
            let is = of(device, tables, (self.place, at, bytes), leads);
            run = match run.take() {
                Some((from, len, was)) if goes_on(was, len, is) => Some((from, len + bytes, was)),
                other => {
                    changes += u32::from(other.is_some_and(|(_, _, is)| is != Is::Right));
                    carry_out(device, tables, self.place, other)?;
                    Some((at, bytes, is))
                }
            };
            self.at = end.min(self.last.saturating_add(1)).max(self.at + 1);
        }
        carry_out(device, tables, self.place, run)?;
        Ok(self.at > self.last)
    }
}

/// Is a run of `len` bytes the longer by what `is`?
fn goes_on(was: Is, len: u64, is: Is) -> bool {
    match (was, is) {
        (Is::At(to, access), Is::At(next, same)) => to + len == next && access == same,
        _ => was == is,
    }
}

/// What `at` is in: bytes, and where all of it leads and how.
fn look(
    window: &Window,
    (root, levels): (u64, u32),
    at: u64,
    (leaves, words): (&mut Leaves, &mut u64),
) -> (u64, Option<(u64, u64)>) {
    let mut rights = 3;
    let (mut table, mut level) = (root, levels);
    if let Some((of, known)) = *leaves
        && of == at / LARGE_PAGE
    {
        // The rights of the levels above are in the lowest bits.
        (table, rights, level) = (known & ADDRESS, known & 3, 1);
    }
    loop {
        let size = PAGE << (9 * (level - 1));
        *words += 1;
        let index = at / size % 512;
        let entry = table.checked_add(8 * index).and_then(|at| word(window, at)).unwrap_or(0);
        rights &= entry & 3;
        let to = entry & ADDRESS;
        if rights == 0 || level == 3 && entry & LARGE != 0 {
            return (size, None);
        }
        if level == 1 || level == 2 && entry & LARGE != 0 {
            return (size, Some((to & !(size - 1), rights)));
        }
        (table, level) = (to, level - 1);
        if level == 1 {
            *leaves = Some((at / LARGE_PAGE, to | rights));
        }
    }
}

/// What is to be done with a range that leads there.
fn of(
    device: &mut Viommu,
    tables: &mut dyn Tables,
    (place, at, bytes): (usize, u64, u64),
    leads: Option<(u64, u64)>,
) -> Is {
    let Some((to, rights)) = leads else { return Is::Gone };
    let Some(host) = device.host(to, bytes).filter(|_| !device.is_reserved(at, at + bytes - 1))
    else {
        return Is::Gone;
    };
    let mut access = Access::empty();
    access.set(Access::READ, rights & 1 != 0);
    access.set(Access::WRITE, rights & 2 != 0);
    match tables.run(place, at, bytes) {
        Some(now) if now == (host, access) && device.come_back(tables, (place, at, bytes)) => {
            Is::Right
        }
        _ => Is::At(host, access),
    }
}

/// Has a run be so.
fn carry_out(
    device: &mut Viommu,
    tables: &mut dyn Tables,
    place: usize,
    run: Option<(u64, u64, Is)>,
) -> Done {
    match run {
        None | Some((_, _, Is::Right)) => Ok(()),
        Some((at, bytes, Is::Gone)) => device.unmap_run(tables, (place, at, bytes)),
        Some((at, bytes, Is::At(host, access))) => {
            // What it led to before is gone when the guest is told of this.
            device.unmap_now(tables, (place, at, bytes))?;
            device.map_memory(tables, (place, at, bytes), host, access)
        }
    }
}
