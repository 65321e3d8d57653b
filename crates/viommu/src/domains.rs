//! The tables of a guest's domains, in the format of the real IOMMU.
//!
//! Guarantees: a table's frames are used again only when no unit can have anything cached of them;
//! where a unit fails, they aren't used again at all.

use crate::{
    HYPER_TRANSPORT, MAX_ENDPOINTS, MAX_REGIONS, MESSAGES, Reach, Refused, Region, Reserved, Shape,
    Tables,
};
use arrayvec::ArrayVec;
use dma::DmaTable;
use paging::audit::Outline;
use paging::{Access, Dma, Error, Format, Memory, PageSize};

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
        Ok(Domains { memory, format, largest, own })
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
        let (id, table) = self.domains.own.get_mut(place).ok_or(Refused::Failed)?;
        table.map(self.memory, at, to, bytes, access).map_err(refused)?;
        done(self.hardware.flush(*id, (at, bytes), true))
    }

    fn unmap(&mut self, place: usize, at: u64, bytes: u64) -> Result<(), Refused> {
        let (id, table) = self.domains.own.get_mut(place).ok_or(Refused::Failed)?;
        let duty = table.unmap(self.memory, at, bytes).map_err(refused)?;
        if let Some(range) = duty.range() {
            done(self.hardware.flush(*id, range, false))?;
        }
        DmaTable::reuse(self.memory, duty);
        Ok(())
    }

    fn run(&mut self, place: usize, at: u64, bytes: u64) -> Option<(u64, Access)> {
        self.domains.own.get(place)?.1.run(self.memory, at, bytes)
    }

    fn clear(&mut self, place: usize) {
        let all = self.domains.last() + 1;
        if let Some((_, table)) = self.domains.own.get_mut(place)
            && let Ok(duty) = table.unmap(self.memory, 0, all)
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
