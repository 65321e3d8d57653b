//! The tables of a guest's domains, in the format of the real IOMMU.
//!
//! An unmapping leaves a table that it empties where it is, since a guest maps where it unmapped:
//! neither looks through a table, or takes a frame. What is empty is looked for when the pool is,
//! in all domains of the guest, and where a large page is to be; and whatever a domain has is given
//! back with its last endpoint.
//!
//! Guarantees: a table's frames are used again only when no unit can have anything cached of them,
//! its way to an empty one included; where a unit fails, they aren't used again at all. A guest
//! with little mapped is refused nothing for the tables that it left empty, and who is refused
//! because the pool is empty has all of them looked through once at most for each time that it
//! unmaps.

use crate::{
    HYPER_TRANSPORT, MAX_ENDPOINTS, MAX_REGIONS, MESSAGES, PAGE, Reach, Refused, Region, Reserved,
    Shape, Tables,
};
use arrayvec::ArrayVec;
use dma::DmaTable;
use paging::audit::Outline;
use paging::{Access, Dma, Error, Flush, Format, Memory, PageSize};

const OF_INTEL: &[Reserved] = &[MESSAGES];
const OF_AMD: &[Reserved] = &[MESSAGES, HYPER_TRANSPORT];
/// Pages that a frame of a table maps.
const ENTRIES: u64 = 512;

/// The units that serve the endpoints. Each call returns when they go by it; false: one failed.
pub trait Hardware {
    /// Has an endpoint reach what the tables of this root map, which are a unit's domain of this
    /// id, and nothing else; or nothing at all.
    fn lead(&mut self, endpoint: usize, to: Option<(u16, u64)>) -> bool;
    /// Has them forget what they cached of a range of a domain: what was there, or, if something
    /// was `added`, that nothing was.
    fn flush(&mut self, id: u16, range: (u64, u64), added: bool) -> bool;
}

/// The tables, each with the id that units know it by.
#[derive(Debug)]
pub struct Domains {
    memory: (u16, u64),
    format: Dma,
    largest: PageSize,
    /// Some may have empty tables: something was unmapped since all were looked through.
    vacated: bool,
    own: ArrayVec<(u16, DmaTable), MAX_ENDPOINTS>,
}

impl Domains {
    /// Of a guest with so many endpoints, [`MAX_ENDPOINTS`] at most. `memory`: id and root of the
    /// domain that is its memory. Ids from `first` on are its own. Takes a frame for each.
    #[inline(never)]
    pub fn new(
        mem: &mut dyn Memory,
        (format, largest): (Dma, PageSize),
        endpoints: usize,
        memory: (u16, u64),
        first: u16,
    ) -> Result<Self, Error> {
        let mut own = ArrayVec::new();
        for id in (first..).take(endpoints.min(MAX_ENDPOINTS)) {
            own.push((id, DmaTable::new(mem, format, largest)?));
        }
        Ok(Domains { memory, format, largest, vacated: false, own })
    }

    /// The last address that they translate.
    pub fn last(&self) -> u64 {
        (1 << (12 + 9 * self.format.levels())) - 1
    }

    /// The device's shape, of which no more is taken than it can have: with so many frames for
    /// tables later.
    #[inline(never)]
    pub fn shape(&self, endpoints: &[u32], memory: &[Region], frames: u64) -> Shape {
        Shape {
            endpoints: endpoints.iter().copied().take(MAX_ENDPOINTS).collect(),
            memory: memory.iter().copied().take(MAX_REGIONS).collect(),
            last: self.last(),
            reserved: if matches!(self.format, Dma::Amd(_)) { OF_AMD } else { OF_INTEL },
            pages: frames * ENTRIES,
            large: self.largest >= PageSize::Size2M,
        }
    }

    /// How many words of tables were read and written since this was last asked: what requests
    /// cost whoever does them.
    pub fn take_words(&mut self) -> u64 {
        self.own.iter_mut().map(|(_, table)| table.take_words()).sum()
    }

    /// Id, root and outline of one.
    #[inline(never)]
    pub fn outline(&self, place: usize) -> Option<(u16, u64, Outline<Dma>)> {
        self.own.get(place).map(|(id, table)| (*id, table.root(), table.outline()))
    }
}

/// The tables with what they are changed by.
pub struct Acting<'a> {
    /// The tables.
    pub domains: &'a mut Domains,
    /// Their frames.
    pub memory: &'a mut dyn Memory,
    /// The units that walk them.
    pub hardware: &'a mut dyn Hardware,
}

impl Acting<'_> {
    fn id(&self, place: usize) -> Result<u16, Refused> {
        self.domains.own.get(place).map(|(id, _)| *id).ok_or(Refused::Failed)
    }

    /// Has the units forget what was taken out of the domain that they know by this id, and then
    /// its frames be used again.
    fn settle(&mut self, id: u16, duty: Flush) -> Result<(), Refused> {
        if let Some(range) = duty.range() {
            done(self.hardware.flush(id, range, false))?;
        }
        DmaTable::reuse(self.memory, duty);
        Ok(())
    }

    /// Maps something, if there are frames for it and nothing is in the way.
    fn add(
        &mut self,
        place: usize,
        (at, to, bytes): (u64, u64, u64),
        access: Access,
    ) -> Result<(), Error> {
        match self.domains.own.get_mut(place) {
            Some((_, table)) => table.map(self.memory, at, to, bytes, access),
            None => Ok(()),
        }
    }

    /// Takes out what is mapped in a range.
    fn take(&mut self, place: usize, at: u64, bytes: u64) -> Result<Flush, Error> {
        match self.domains.own.get_mut(place) {
            Some((_, table)) => table.vacate(self.memory, at, bytes),
            None => Ok(Flush::default()),
        }
    }

    /// Takes out the empty tables of a domain in a range.
    #[cold]
    fn prune(&mut self, place: usize, at: u64, bytes: u64) -> Result<(), Refused> {
        let (id, table) = self.domains.own.get_mut(place).ok_or(Refused::Failed)?;
        let (id, duty) = (*id, table.prune(self.memory, at, bytes).map_err(refused)?);
        self.settle(id, duty)
    }

    /// Of all domains, wherever they are.
    #[cold]
    fn prune_all(&mut self) -> Result<(), Refused> {
        let all = self.domains.last() + 1;
        self.domains.vacated = false;
        (0..self.domains.own.len()).try_for_each(|place| self.prune(place, 0, all))
    }
}

impl Tables for Acting<'_> {
    fn lead(&mut self, endpoint: usize, to: Reach) -> Result<(), Refused> {
        let Domains { memory, own, .. } = &*self.domains;
        let to = match to {
            Reach::Nothing => None,
            Reach::Memory => Some(*memory),
            Reach::Domain(place) => {
                Some(own.get(place).map(|(id, table)| (*id, table.root())).ok_or(Refused::Failed)?)
            }
        };
        done(self.hardware.lead(endpoint, to))
    }

    fn map(
        &mut self,
        place: usize,
        at: u64,
        to: u64,
        bytes: u64,
        access: Access,
    ) -> Result<(), Refused> {
        let id = self.id(place)?;
        let mut made = self.add(place, (at, to, bytes), access);
        // A small page is in nobody's way but a mapping's.
        let large = matches!(made, Err(Error::Overlap { size, .. }) if size > PAGE);
        if large && self.domains.vacated {
            self.prune(place, at, bytes)?;
            made = self.add(place, (at, to, bytes), access);
        }
        if matches!(made, Err(Error::NoFrame { .. })) && self.domains.vacated {
            self.prune_all()?;
            made = self.add(place, (at, to, bytes), access);
        }
        made.map_err(refused)?;
        done(self.hardware.flush(id, (at, bytes), true))
    }

    fn unmap(&mut self, place: usize, at: u64, bytes: u64) -> Result<(), Refused> {
        let id = self.id(place)?;
        let mut duty = self.take(place, at, bytes);
        // Of large pages a part stays, which needs frames.
        if matches!(duty, Err(Error::NoFrame { .. })) && self.domains.vacated {
            self.prune_all()?;
            duty = self.take(place, at, bytes);
        }
        let duty = duty.map_err(refused)?;
        self.domains.vacated |= duty.range().is_some();
        self.settle(id, duty)
    }

    fn run(&mut self, place: usize, at: u64, bytes: u64) -> Option<(u64, Access)> {
        self.domains.own.get(place)?.1.run(self.memory, at, bytes)
    }

    fn clear(&mut self, place: usize) {
        let all = self.domains.last() + 1;
        if let Some((_, table)) = self.domains.own.get_mut(place)
            && let Ok(duty) = table.vacate(self.memory, 0, all)
        {
            // Nothing is cached of a domain that its last endpoint has left.
            DmaTable::reuse(self.memory, duty);
        }
    }
}

fn done(done: bool) -> Result<(), Refused> {
    if done { Ok(()) } else { Err(Refused::Failed) }
}

fn refused(error: Error) -> Refused {
    match error {
        Error::NoFrame { .. } => Refused::Full,
        Error::Overlap { .. } => Refused::Taken,
        _ => Refused::Failed,
    }
}
