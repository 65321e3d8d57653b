//! What the standard says of a virtio-iommu, as a model, and tables that remember what the real
//! unit may have cached.

use crate::*;
use std::collections::{BTreeMap, BTreeSet};

pub const LAST: u64 = (1 << 48) - 1;
pub const ENDPOINTS: [u32; 3] = [0x10, 0x18, 0x20];
pub const LOW: Region = Region { guest: 0, host: 0x1_0000_0000, len: 8 << 20 };
pub const HIGH: Region = Region { guest: 1 << 32, host: 0x8_0020_0000, len: 4 << 20 };

pub fn shape() -> Shape {
    Shape {
        endpoints: ENDPOINTS.into_iter().collect(),
        memory: [LOW, HIGH].into_iter().collect(),
        last: LAST,
        reserved: const { &[MESSAGES, HYPER_TRANSPORT] },
        pages: 4096,
        large: true,
    }
}

/// Page, and what it leads to with which access.
pub type Pages = BTreeMap<u64, (u64, Access)>;

/// Tables, and a unit that caches all that it can translate.
pub struct Unit {
    pub places: [Pages; MAX_ENDPOINTS],
    pub reach: [Reach; MAX_ENDPOINTS],
    pub cached: [BTreeSet<(u64, u64)>; MAX_ENDPOINTS],
    pub most: usize,
    /// How often something was mapped or unmapped.
    pub changes: u64,
    /// Calls from here on fail, as those of a unit that doesn't answer.
    pub fails: bool,
    /// Pages that were taken away, whoever asked.
    pub taken: BTreeSet<u64>,
}

impl Unit {
    pub fn new(most: usize) -> Unit {
        let reach = [Reach::Memory; MAX_ENDPOINTS];
        let (places, cached, taken) = Default::default();
        Unit { places, reach, cached, most, changes: 0, fails: false, taken }
    }

    /// Page and frame of all that an endpoint reaches through a domain.
    pub fn translations(&self, endpoint: usize) -> BTreeSet<(u64, u64)> {
        match self.reach[endpoint] {
            Reach::Domain(place) => self.places[place].iter().map(|(p, (f, _))| (*p, *f)).collect(),
            _ => BTreeSet::new(),
        }
    }
}

impl Tables for Unit {
    fn lead(&mut self, endpoint: usize, to: Reach) -> Result<(), Refused> {
        if self.fails {
            return Err(Refused::Failed);
        }
        self.reach[endpoint] = to;
        self.cached[endpoint].clear();
        Ok(())
    }

    fn map(
        &mut self,
        place: usize,
        at: u64,
        to: u64,
        bytes: u64,
        access: Access,
    ) -> Result<(), Refused> {
        assert!(bytes > 0 && [at, to, bytes].iter().all(|word| word % PAGE == 0));
        let pages = (0..bytes / PAGE).map(|n| (at + n * PAGE, (to + n * PAGE, access)));
        let used: usize = self.places.iter().map(Pages::len).sum();
        if used + (bytes / PAGE) as usize > self.most {
            return Err(Refused::Full);
        }
        if pages.clone().any(|(page, _)| self.places[place].contains_key(&page)) {
            return Err(Refused::Taken);
        }
        self.places[place].extend(pages);
        self.changes += 1;
        Ok(())
    }

    fn unmap(&mut self, place: usize, at: u64, bytes: u64) -> Result<(), Refused> {
        self.changes += 1;
        let range = at..at + bytes;
        self.taken.extend(self.places[place].range(range.clone()).map(|(page, _)| *page));
        self.places[place].retain(|page, _| !range.contains(page));
        for (cached, reach) in self.cached.iter_mut().zip(&self.reach) {
            if *reach == Reach::Domain(place) {
                cached.retain(|(page, _)| !range.contains(page));
            }
        }
        Ok(())
    }

    fn run(&mut self, place: usize, at: u64, bytes: u64) -> Option<(u64, Access)> {
        let pages = &self.places[place];
        let (to, access) = *pages.get(&at)?;
        let is_run = |n| pages.get(&(at + n * PAGE)) == Some(&(to + n * PAGE, access));
        (0..bytes / PAGE).all(is_run).then_some((to, access))
    }

    fn clear(&mut self, place: usize) {
        assert!(!self.reach.contains(&Reach::Domain(place)), "an endpoint still reaches {place}");
        self.places[place].clear();
    }
}

/// What a guest asks.
#[derive(Clone, Debug)]
pub enum Ask {
    Attach(u32, u32, u32),
    Detach(u32, u32),
    Map(u32, u64, u64, u64, u32),
    Unmap(u32, u64, u64),
    Bypass(bool),
    Reset,
    Close,
    Restart,
    Bytes([u8; LONGEST], u32),
}

pub fn request(kind: u8, fields: &[&[u8]]) -> ([u8; LONGEST], u32) {
    let mut bytes = [0; LONGEST];
    let all = [kind, 0, 0, 0].into_iter().chain(fields.concat());
    let len = bytes.iter_mut().zip(all).map(|(to, byte)| *to = byte).count();
    (bytes, len as u32)
}

impl Ask {
    pub fn request(&self) -> Option<([u8; LONGEST], u32)> {
        let w = |word: &u32| word.to_le_bytes();
        let q = |word: &u64| word.to_le_bytes();
        Some(match self {
            Ask::Attach(number, id, flags) => request(1, &[&w(number), &w(id), &w(flags), &[0; 4]]),
            Ask::Detach(number, id) => request(2, &[&w(number), &w(id), &[0; 8]]),
            Ask::Map(number, first, last, to, flags) => {
                request(3, &[&w(number), &q(first), &q(last), &q(to), &w(flags)])
            }
            Ask::Unmap(number, first, last) => {
                request(4, &[&w(number), &q(first), &q(last), &[0; 4]])
            }
            Ask::Bytes(bytes, len) => (*bytes, *len),
            Ask::Bypass(_) | Ask::Reset | Ask::Close | Ask::Restart => return None,
        })
    }
}

pub fn ask(device: &mut Viommu, unit: &mut Unit, what: &Ask) -> Option<Status> {
    let mut properties = [0; PROBE_BYTES as usize];
    match what {
        Ask::Bypass(on) => device.change(unit, Change::Bypass(*on)),
        Ask::Reset => device.change(unit, Change::Reset),
        Ask::Close => device.change(unit, Change::Close),
        Ask::Restart => device.change(unit, Change::Restart),
        _ => return Some(device.answer(unit, what.request()?, FEATURES, &mut properties)),
    }
    None
}

/// The standard's words, with nothing of how it is done: domains by number, their pages.
#[derive(Default)]
pub struct Model {
    pub domains: BTreeMap<u32, (bool, Pages)>,
    pub attached: BTreeMap<u32, u32>,
    pub bypass: bool,
    pub closed: bool,
}

impl Model {
    pub fn new() -> Model {
        Model { bypass: true, ..Model::default() }
    }

    pub fn leave(&mut self, id: u32) {
        if let Some(number) = self.attached.remove(&id)
            && !self.attached.values().any(|other| *other == number)
        {
            self.domains.remove(&number);
        }
    }

    pub fn follow(&mut self, what: &Ask, most: usize) -> Option<Status> {
        let run = |first: u64, last: u64| {
            let bytes = u128::from(last) + 1 - u128::from(first);
            (first.is_multiple_of(PAGE) && bytes % u128::from(PAGE) == 0 && last <= LAST)
                .then_some(bytes)
        };
        let answer = match what {
            Ask::Attach(number, id, flags) => {
                let bypass = *flags == 1;
                if *flags > 1 {
                    Status::Invalid
                } else if !ENDPOINTS.contains(id) {
                    Status::NoEntry
                } else if self.domains.get(number).is_some_and(|(is, _)| *is != bypass) {
                    Status::Invalid
                } else {
                    if self.attached.get(id) != Some(number) {
                        self.leave(*id);
                        self.domains.entry(*number).or_insert((bypass, Pages::new()));
                        self.attached.insert(*id, *number);
                    }
                    Status::Ok
                }
            }
            Ask::Detach(number, id) => {
                if !ENDPOINTS.contains(id) || !self.domains.contains_key(number) {
                    Status::NoEntry
                } else if self.attached.get(id) != Some(number) {
                    Status::Invalid
                } else {
                    self.leave(*id);
                    Status::Ok
                }
            }
            Ask::Map(number, first, last, to, flags) => {
                let used: usize = self.domains.values().map(|(_, pages)| pages.len()).sum();
                let domain = self.domains.get_mut(number);
                let bits = Access::from_bits_truncate(*flags as u8);
                match domain {
                    _ if *flags == 0 || *flags > 3 => Status::Invalid,
                    None => Status::NoEntry,
                    Some((true, _)) => Status::Invalid,
                    Some(_) if last < first => Status::Invalid,
                    Some((_, pages)) => match run(*first, *last) {
                        None => Status::Range,
                        Some(_)
                            if [MESSAGES, HYPER_TRANSPORT]
                                .iter()
                                .any(|r| *first <= r.last && r.first <= *last) =>
                        {
                            Status::Invalid
                        }
                        Some(bytes) => {
                            let end = u128::from(*to) + bytes;
                            let of = |r: &&Region| {
                                *to >= r.guest && end <= u128::from(r.guest) + u128::from(r.len)
                            };
                            let count = (bytes / u128::from(PAGE)) as usize;
                            let mut all = (*first..=*last).step_by(PAGE as usize);
                            match [LOW, HIGH].iter().find(of).filter(|_| to % PAGE == 0) {
                                None => Status::Range,
                                Some(_) if used + count > most => Status::NoMemory,
                                Some(_) if all.any(|page| pages.contains_key(&page)) => {
                                    Status::Invalid
                                }
                                Some(region) => {
                                    let host = region.host + (to - region.guest);
                                    let all = (*first..=*last).step_by(PAGE as usize);
                                    pages.extend(all.map(|p| (p, (host + (p - first), bits))));
                                    Status::Ok
                                }
                            }
                        }
                    },
                }
            }
            Ask::Unmap(number, first, last) => match self.domains.get_mut(number) {
                None => Status::NoEntry,
                Some((true, _)) => Status::Invalid,
                Some(_) if last < first => Status::Invalid,
                Some((_, pages)) => match run(*first, *last) {
                    None => Status::Range,
                    Some(_) => {
                        pages.retain(|page, _| page < first || page > last);
                        Status::Ok
                    }
                },
            },
            Ask::Bytes(..) => return None,
            Ask::Bypass(on) => {
                self.bypass = *on;
                return None;
            }
            Ask::Reset | Ask::Close | Ask::Restart => {
                (self.domains, self.attached) = Default::default();
                self.closed |= matches!(what, Ask::Close);
                if matches!(what, Ask::Restart) {
                    (self.bypass, self.closed) = (true, false);
                }
                return None;
            }
        };
        Some(answer)
    }
}
