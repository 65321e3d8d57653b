//! A walk through what a domain maps by the guest's tables, after which the real unit's tables map
//! the same. Whose tables they are says a [`Format`].
//!
//! Guarantees: each word is read once, and what it leads to is the guest's memory or isn't mapped.
//! A walk goes on where it was, and reads no more words in all than it was given; what is mapped as
//! it should be isn't touched.

use crate::{Done, LARGE_PAGE, Status, Tables, Viommu};
use paging::Access;
use window::Window;

const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;

/// Where a domain's tables are: of the highest level, with what may be done by them at all, as
/// [`Entry`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    pub table: u64,
    pub level: u32,
    pub rights: u64,
}

/// What an entry of a table says. Rights: may be read (bit 0), may be written (bit 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing is there.
    Nothing,
    /// There is a table: of a lower level, where, with which rights.
    Table(u32, u64, u64),
    /// There is memory: so many bytes, a power of two that is no less than the entry translates,
    /// where, with which rights.
    Leaf(u64, u64, u64),
}

/// A format of tables. Entries have eight bytes, a table 512 of them; one of level 1 translates
/// pages.
pub trait Format {
    /// The root of the domain of this number, if addresses up to `last` are translated.
    fn root(domain: u64, last: u64) -> Root;
    /// What this word says in a table of this level.
    fn entry(word: u64, level: u32) -> Entry;
}

/// A word of the guest's memory.
pub fn word(window: &Window, at: u64) -> Option<u64> {
    window.span(at, 8)?.load_u64(0).ok()
}

/// The guest's own number of a domain, in either format.
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
    pub fn advance<F: Format>(
        &mut self,
        (device, tables): (&mut Viommu, &mut dyn Tables),
        window: &Window,
        (most, words): (u64, &mut u64),
    ) -> Result<bool, Status> {
        let domain = device.of(self.place).ok_or(Status::NoEntry)?;
        let root = F::root(domain.number, device.shape.last);
        let stop = words.saturating_add(most);
        let mut leaves: Leaves = None;
        let mut run: Option<(u64, u64, Is)> = None;
        let mut changes = 0;
        while self.at <= self.last && *words < stop && changes < MOST_CHANGES {
            let before = *words;
            let (end, leads) = look::<F>(window, root, self.at, (&mut leaves, words));
            self.left = self.left.checked_sub(*words - before).ok_or(Status::NoMemory)?;
            // What the guest maps in part of it alone has a larger page.
            let (at, bytes, leads) = match leads {
                Some(Leads { bytes, to, rights }) => (end - bytes, bytes, Some((to, rights))),
                None => (self.at, end.min(self.last + 1) - self.at, None),
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

/// Where all that an entry translates leads, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leads {
    bytes: u64,
    to: u64,
    rights: u64,
}

/// The bytes that a table of this level translates, or all there are.
fn reach(level: u32) -> u64 {
    1_u64.checked_shl(12 + 9 * level).unwrap_or(u64::MAX)
}

/// What `at` is in: where that ends, and what it leads to.
fn look<F: Format>(
    window: &Window,
    root: Root,
    at: u64,
    (leaves, words): (&mut Leaves, &mut u64),
) -> (u64, Option<Leads>) {
    let Root { mut table, mut level, mut rights } = root;
    if at >= reach(level) {
        *words += 1;
        return (u64::MAX, None);
    }
    if let Some((of, known)) = *leaves
        && of == at / LARGE_PAGE
    {
        // The rights of the levels above are in the lowest bits.
        (table, rights, level) = (known & ADDRESS, known & 3, 1);
    }
    loop {
        let size = reach(level - 1);
        let end = (at & !(size - 1)).saturating_add(size);
        *words += 1;
        let index = at / size % 512;
        let entry = table.checked_add(8 * index).and_then(|at| word(window, at)).unwrap_or(0);
        match F::entry(entry, level) {
            Entry::Leaf(bytes, to, r) if rights & r != 0 => {
                // As much of it as this entry translates.
                let to = to & !(bytes - 1) | (end - size) & (bytes - 1);
                return (end, Some(Leads { bytes: size, to, rights: rights & r }));
            }
            // Where levels are skipped, the bits that they would translate are 0.
            Entry::Table(next, to, r) if rights & r != 0 && at & (size - 1) < reach(next) => {
                (table, level, rights) = (to & ADDRESS, next, rights & r);
            }
            _ => return (end, None),
        }
        if level == 1 {
            *leaves = Some((at / LARGE_PAGE, table | rights));
        }
    }
}

/// What may be done at this address by the tables of a domain.
pub fn rights<F: Format>(window: &Window, domain: u64, last: u64, at: u64) -> u64 {
    let (_, leads) = look::<F>(window, F::root(domain, last), at, (&mut None, &mut 0));
    leads.map_or(0, |leads| leads.rights)
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
