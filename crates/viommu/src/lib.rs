//! The guest's own IOMMU: virtio-iommu (virtio 1.2, 5.13) as the device has it. Its guest makes
//! *domains*, attaches devices of its own (*endpoints*) to them, and maps addresses in them to its
//! memory. What it asks is done in the tables of the real IOMMU ([`Tables`]).
//!
//! Guarantees, whatever a guest asks:
//! - What is mapped leads into one run of the guest's own memory, as a whole, and nothing else is
//!   ever mapped. What an endpoint reaches is that memory as it is, or a domain of this guest's,
//!   or nothing.
//! - A domain has tables from its first endpoint to its last, so there are never more of them than
//!   endpoints, and what is left in one is gone before another one has its tables.
//! - An answer comes after the thing is done: when an `UNMAP` or a `DETACH` is answered, no cache
//!   of the real IOMMU has the old translation (the mode that drivers call strict). An `UNMAP` may
//!   wait, if the device was made so, and no longer than it was made for ([`Viommu::tear_down`]).
//! - Nothing panics, nothing allocates once it is made, and a request takes time that is bounded by
//!   the pool that the tables are made from. What is too much for that is answered with `NOMEM`.
//!
//! Doesn't guarantee: that a range which cuts a mapping is refused. An `UNMAP` takes out the pages
//! that it names, and no others, where the standard would have a device refuse what isn't whole
//! mappings; no driver that keeps to the standard sees a difference. Faults aren't told to the
//! guest: the event queue stays empty.
//!
//! | file | is |
//! |---|---|
//! | `lib` | what is known of endpoints and domains, and how they change |
//! | `request` | requests as they are read, and answers |
//! | `config` | features, the device's registers |
//! | `reserved` | addresses that nothing may be mapped at |
//! | `teardown` | unmappings that wait |
//! | `domains` | the tables of the domains, in the real IOMMU's format |
//! | `unit` | a unit with registers in place of requests, whichever vendor's |
//! | `vtd`, `amdvi` | Intel's, AMD's |
//! | `follow` | what such a unit's endpoints are in, as the guest's tables say |
//! | `walk` | a walk through those that map |
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod amdvi;
mod config;
mod domains;
#[cfg(test)]
mod domains_tests;
mod follow;
mod request;
mod reserved;
mod teardown;
#[cfg(test)]
mod tests;
pub mod unit;
pub mod vtd;
mod walk;

pub use config::{BYPASS, BYPASS_CONFIG, CONFIG_BYTES, FEATURES, config};
pub use domains::{Acting, Domains, Hardware};
pub use request::{LONGEST, PROBE_BYTES, queue, serve};
pub use reserved::{HYPER_TRANSPORT, MESSAGES, Reserved};
pub use teardown::{MOST, Teardowns};

use arrayvec::ArrayVec;
use paging::Access;
use teardown::Teardown;

/// The most endpoints.
pub const MAX_ENDPOINTS: usize = 8;
/// The most runs of memory.
pub const MAX_REGIONS: usize = 2;
/// The granularity of mappings.
pub const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;

/// What an endpoint reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nothing.
    Nothing,
    /// The guest's memory, at the guest's own addresses.
    Memory,
    /// What is mapped in the tables of this place.
    Domain(usize),
}

/// Why something isn't done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The pool has no frames for it.
    Full,
    /// Something is mapped there.
    Taken,
    /// The unit didn't do it. What was to be taken away may still be reached.
    Failed,
}

/// The tables of the real IOMMU: as many as there are endpoints, all empty at first.
///
/// Each call returns when the unit goes by it.
pub trait Tables {
    /// Has an endpoint reach this, and nothing of what it reached before.
    fn lead(&mut self, endpoint: usize, to: Reach) -> Result<(), Refused>;
    /// Maps a run of the machine's memory.
    fn map(
        &mut self,
        place: usize,
        at: u64,
        to: u64,
        bytes: u64,
        access: Access,
    ) -> Result<(), Refused>;
    /// Unmaps what is mapped in a range.
    fn unmap(&mut self, place: usize, at: u64, bytes: u64) -> Result<(), Refused>;
    /// Where a range leads and how, if all of it is mapped to one run.
    fn run(&mut self, place: usize, at: u64, bytes: u64) -> Option<(u64, Access)>;
    /// Unmaps everything; no endpoint reaches these tables.
    fn clear(&mut self, place: usize);
}

/// A run of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its first address as the guest has it.
    pub guest: u64,
    /// The machine's.
    pub host: u64,
    /// Bytes.
    pub len: u64,
}

/// What there is.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The endpoints' ids: the places of the devices on the guest's bus.
    pub endpoints: ArrayVec<u32, MAX_ENDPOINTS>,
    /// The guest's memory.
    pub memory: ArrayVec<Region, MAX_REGIONS>,
    /// The last address that the tables translate.
    pub last: u64,
    /// Where nothing can be mapped.
    pub reserved: &'static [Reserved],
    /// The most pages of 4 KiB that all tables together can have.
    pub pages: u64,
    /// The unit takes larger ones, too.
    pub large: bool,
}

/// What happens to the device besides its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The driver wrote the register `bypass`.
    Bypass(bool),
    /// The driver reset it: there is no domain any more.
    Reset,
    /// The guest doesn't run any more, or not yet: no endpoint reaches anything.
    Close,
    /// As the machine starts.
    Restart,
}

/// A domain of the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Domain {
    /// What the front end knows it by.
    number: u64,
    /// Its endpoints reach the guest's memory; nothing can be mapped in it.
    bypass: bool,
    /// Its endpoints reach nothing, whatever is mapped in it.
    blocked: bool,
}

/// Where an endpoint is attached.
type Attached = Option<usize>;

/// The device.
#[derive(Debug)]
pub struct Viommu {
    shape: Shape,
    attached: [Attached; MAX_ENDPOINTS],
    domains: [Option<Domain>; MAX_ENDPOINTS],
    /// Endpoints that are attached to no domain reach the guest's memory, by the register.
    bypass: bool,
    /// They reach nothing, whatever the register says: the guest doesn't run.
    closed: bool,
    teardown: Teardown,
}

/// Answers (5.13.6): VIRTIO_IOMMU_S_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The device failed.
    DeviceError = 3,
    /// A field is wrong.
    Invalid = 4,
    /// An address is out of range.
    Range = 5,
    /// There is no such endpoint or domain.
    NoEntry = 6,
    /// There are no resources for it.
    NoMemory = 8,
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Status {
        match refused {
            Refused::Full => Status::NoMemory,
            Refused::Taken => Status::Invalid,
            Refused::Failed => Status::DeviceError,
        }
    }
}

/// An answer that isn't "done" ends the work.
type Done = Result<(), Status>;

impl Viommu {
    /// As the machine starts: all endpoints reach the guest's memory, which the tables know. What
    /// is unmapped may stay so for so many ticks; 0: it is gone when that is answered.
    pub fn new(shape: Shape, longest: u64) -> Viommu {
        let (attached, domains) = ([None; MAX_ENDPOINTS], [None; MAX_ENDPOINTS]);
        let teardown = Teardown::new(longest);
        Viommu { shape, attached, domains, bypass: true, closed: false, teardown }
    }

    /// What there is.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What an endpoint reaches by all that was asked.
    pub fn reach(&self, endpoint: usize) -> Reach {
        match self.attached.get(endpoint).copied().flatten() {
            Some(place) if self.is_bypass(place) => Reach::Memory,
            Some(place) if self.is_blocked(place) => Reach::Nothing,
            Some(place) => Reach::Domain(place),
            None if self.bypass && !self.closed => Reach::Memory,
            None => Reach::Nothing,
        }
    }

    fn of(&self, place: usize) -> Option<Domain> {
        self.domains.get(place).copied().flatten()
    }

    fn is_bypass(&self, place: usize) -> bool {
        self.of(place).is_some_and(|domain| domain.bypass)
    }

    fn is_blocked(&self, place: usize) -> bool {
        self.of(place).is_some_and(|domain| domain.blocked)
    }

    /// Something happens to it besides requests. A unit that fails leaves an endpoint where it was,
    /// which is the guest's own memory.
    #[inline(never)]
    pub fn change(&mut self, tables: &mut dyn Tables, what: Change) {
        match what {
            Change::Bypass(on) => self.bypass = on,
            Change::Reset => {}
            Change::Close => self.closed = true,
            Change::Restart => (self.bypass, self.closed) = (true, false),
        }
        for endpoint in 0..self.shape.endpoints.len() {
            if !matches!(what, Change::Bypass(_)) {
                let _ = self.leave(tables, endpoint);
            }
            if matches!(self.attached.get(endpoint), Some(None)) {
                let _ = tables.lead(endpoint, self.reach(endpoint));
            }
        }
    }

    /// Takes an endpoint out of its domain: it reaches nothing. The domain ends with its last one.
    fn leave(&mut self, tables: &mut dyn Tables, endpoint: usize) -> Done {
        let Some(attached) = self.attached.get_mut(endpoint) else { return Ok(()) };
        let Some(place) = *attached else { return Ok(()) };
        tables.lead(endpoint, Reach::Nothing)?;
        *attached = None;
        if !self.attached.contains(&Some(place)) {
            self.teardown.forget(place);
            tables.clear(place);
            if let Some(domain) = self.domains.get_mut(place) {
                *domain = None;
            }
        }
        Ok(())
    }

    fn endpoint(&self, id: u32) -> Result<usize, Status> {
        self.shape.endpoints.iter().position(|known| *known == id).ok_or(Status::NoEntry)
    }

    /// The place of a domain.
    fn domain(&self, number: u64) -> Result<usize, Status> {
        let of = |domain: &Option<Domain>| domain.is_some_and(|domain| domain.number == number);
        self.domains.iter().position(of).ok_or(Status::NoEntry)
    }

    /// Has an endpoint join the domain of this number, which is made as `new` if there is none.
    fn join(&mut self, t: &mut dyn Tables, endpoint: usize, new: Domain) -> Done {
        let known = self.domain(new.number).ok();
        if known.is_some_and(|place| self.is_bypass(place) != new.bypass) {
            return Err(Status::Invalid);
        }
        if known.is_some() && self.attached.get(endpoint) == Some(&known) {
            return Ok(());
        }
        self.leave(t, endpoint)?;
        // There is one: this endpoint is in none, and each other one in one at most.
        let free = || self.domains.iter().position(Option::is_none);
        let place = known.or_else(free).ok_or(Status::NoMemory)?;
        if let Some(domain) = self.domains.get_mut(place).filter(|domain| domain.is_none()) {
            *domain = Some(new);
        }
        if let Some(attached) = self.attached.get_mut(endpoint) {
            *attached = Some(place);
        }
        self.tear_down_all(t, place);
        let led = t.lead(endpoint, self.reach(endpoint));
        if led.is_err() {
            let _ = self.leave(t, endpoint);
        }
        Ok(led?)
    }

    /// Has the endpoints of a domain reach nothing, or what is mapped in it. What is mapped in one
    /// that is blocked is forgotten.
    fn block(&mut self, t: &mut dyn Tables, place: usize, blocked: bool) -> Done {
        if let Some(Some(domain)) = self.domains.get_mut(place) {
            domain.blocked = blocked;
        }
        for endpoint in 0..self.shape.endpoints.len() {
            if self.attached.get(endpoint) == Some(&Some(place)) {
                t.lead(endpoint, self.reach(endpoint))?;
            }
        }
        if blocked {
            self.teardown.forget(place);
            t.clear(place);
        }
        Ok(())
    }

    /// `ATTACH`: makes the domain, if there is none of this number.
    fn attach(&mut self, t: &mut dyn Tables, number: u32, id: u32, bypass: bool) -> Done {
        let endpoint = self.endpoint(id)?;
        self.join(t, endpoint, Domain { number: number.into(), bypass, blocked: false })
    }

    /// `DETACH`.
    fn detach(&mut self, t: &mut dyn Tables, number: u32, id: u32) -> Done {
        let (endpoint, place) = (self.endpoint(id)?, self.domain(number.into())?);
        if self.attached.get(endpoint) != Some(&Some(place)) {
            return Err(Status::Invalid);
        }
        self.leave(t, endpoint)?;
        Ok(t.lead(endpoint, self.reach(endpoint))?)
    }

    /// The domain's place, if something can be mapped in it; and the bytes of this range, first to
    /// last, if it is of whole pages that the tables translate.
    fn range(&self, number: u32, first: u64, last: u64) -> Result<(usize, u64), Status> {
        let place = self.domain(number.into())?;
        if self.is_bypass(place) || last < first {
            return Err(Status::Invalid);
        }
        // One too many for a word is beyond what is translated.
        let bytes = (last - first).checked_add(1).ok_or(Status::Range)?;
        let aligned = first.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
        if !aligned || last > self.shape.last {
            return Err(Status::Range);
        }
        Ok((place, bytes))
    }

    /// `MAP`.
    fn map(
        &mut self,
        tables: &mut dyn Tables,
        number: u32,
        (first, last): (u64, u64),
        to: u64,
        access: Access,
    ) -> Done {
        let (place, bytes) = self.range(number, first, last)?;
        if self.is_reserved(first, last) {
            return Err(Status::Invalid);
        }
        if !to.is_multiple_of(PAGE) {
            return Err(Status::Range);
        }
        let host = self.host(to, bytes).ok_or(Status::Range)?;
        self.map_memory(tables, (place, first, bytes), host, access)
    }

    /// Can't all of this range, first to last, be mapped?
    fn is_reserved(&self, first: u64, last: u64) -> bool {
        self.shape.reserved.iter().any(|range| range.overlaps(first, last))
    }

    /// Where so many bytes of the guest's memory are in the machine's, if they are one run.
    fn host(&self, at: u64, bytes: u64) -> Option<u64> {
        let of = |region: &Region| {
            let offset = at.checked_sub(region.guest)?;
            let end = offset.checked_add(bytes)?;
            (end <= region.len).then(|| region.host + offset)
        };
        self.shape.memory.iter().find_map(of)
    }

    /// Maps a run of the guest's memory, which is at `host` in the machine's.
    fn map_memory(
        &mut self,
        tables: &mut dyn Tables,
        (place, first, bytes): (usize, u64, u64),
        host: u64,
        access: Access,
    ) -> Done {
        // More small pages than all tables have entries would take long to be refused.
        let small = !self.shape.large || !(first ^ host).is_multiple_of(LARGE_PAGE);
        if small && bytes / PAGE > self.shape.pages {
            return Err(Status::NoMemory);
        }
        self.map_run(tables, (place, first, bytes), host, access)
    }

    /// `UNMAP`.
    fn unmap(&mut self, tables: &mut dyn Tables, number: u32, first: u64, last: u64) -> Done {
        let (place, bytes) = self.range(number, first, last)?;
        self.unmap_run(tables, (place, first, bytes))
    }
}
