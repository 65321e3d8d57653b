//! Addresses that were learned at ports of any address: where each was seen last (802.1Q, 8.8).
//!
//! The table has a fixed size. An address has its place in one set of it, which anybody can work
//! out: so a port that makes up addresses can fill a set that it chooses. What isn't learned goes
//! to all ports of any address, the one that made them up among them.
//!
//! Guarantees: no port has more than half of all places. In a full set a port with two places less
//! than another gets one of that one's; so up to [`WAYS`] ports have a place in each, and who makes
//! up addresses takes none of a port's last ones.
use crate::Mac;
use alloc::boxed::Box;

/// Places of a set.
pub(crate) const WAYS: usize = 8;
/// Sets, a power of two.
const SETS: usize = 128;
/// The most places of one port.
const QUOTA: u16 = (WAYS * SETS / 2) as u16;
/// Ports that can be told apart.
const PORTS: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    mac: Mac,
    vlan: u16,
    port: u8,
    /// When a frame came from there last.
    seen: u64,
}

/// The table.
#[derive(Debug)]
pub struct Table {
    sets: Box<[[Option<Entry>; WAYS]]>,
    /// By ports: how many places it has.
    counts: [u16; PORTS],
    /// How long an entry holds, in the unit of the caller's clock.
    ageing: u64,
}

impl Table {
    /// An empty one, whose entries hold so long (802.1Q recommends 300 s).
    pub fn new(ageing: u64) -> Table {
        let sets = (0..SETS).map(|_| [None; WAYS]).collect();
        Table { sets, counts: [0; PORTS], ageing }
    }

    /// The port at which the address is.
    pub fn find(&self, mac: Mac, vlan: u16, now: u64) -> Option<u8> {
        let set = self.sets.get(place(mac, vlan))?;
        let mut entries = set.iter().flatten();
        let entry = entries.find(|entry| entry.mac == mac && entry.vlan == vlan)?;
        self.holds(entry, now).then_some(entry.port)
    }

    /// A frame came from this address at this port. If there is no place, nothing is learned.
    pub fn learn(&mut self, mac: Mac, vlan: u16, port: u8, now: u64) {
        let ageing = self.ageing;
        let Some(own) = self.counts.get(usize::from(port)).copied() else { return };
        let Some(set) = self.sets.get_mut(place(mac, vlan)) else { return };
        let entry = Entry { mac, vlan, port, seen: now };
        let same = |entry: &Option<Entry>| entry.is_some_and(|e| e.mac == mac && e.vlan == vlan);
        let is_free = |entry: &Option<Entry>| {
            entry.is_none_or(|entry| now.saturating_sub(entry.seen) > ageing)
        };
        let free = || set.iter().position(is_free).filter(|_| own < QUOTA);
        let crowded = || crowded(set, port).filter(|_| own < QUOTA);
        let found = set.iter().position(same).or_else(free).or_else(crowded);
        let Some(at) = found.or_else(|| oldest(set, port)) else { return };
        let Some(slot) = set.get_mut(at) else { return };
        // A station that moved to a port which has its fill isn't learned there.
        if own >= QUOTA && slot.is_none_or(|before| before.port != port) {
            return;
        }
        let before = slot.replace(entry);
        if let Some(before) = before
            && let Some(count) = self.counts.get_mut(usize::from(before.port))
        {
            *count = count.saturating_sub(1);
        }
        if let Some(count) = self.counts.get_mut(usize::from(port)) {
            *count += 1;
        }
    }

    /// Forgets all that was learned at a port.
    pub fn forget(&mut self, port: u8) {
        for entry in self.sets.iter_mut().flatten() {
            if entry.is_some_and(|entry| entry.port == port) {
                *entry = None;
            }
        }
        if let Some(count) = self.counts.get_mut(usize::from(port)) {
            *count = 0;
        }
    }

    /// How many places a port has, those that are too old included.
    pub fn count(&self, port: u8) -> u16 {
        self.counts.get(usize::from(port)).copied().unwrap_or(0)
    }

    fn holds(&self, entry: &Entry, now: u64) -> bool {
        now.saturating_sub(entry.seen) <= self.ageing
    }
}

/// The place in a set of a port's oldest entry.
fn oldest(set: &[Option<Entry>; WAYS], port: u8) -> Option<usize> {
    let entries = set.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.as_ref()?)));
    let own = entries.filter(|(_, entry)| entry.port == port);
    own.min_by_key(|(_, entry)| entry.seen).map(|(at, _)| at)
}

/// The place in a set that this port gets of another's: of the one with most, if that has two more.
fn crowded(set: &[Option<Entry>; WAYS], port: u8) -> Option<usize> {
    let of = |port| set.iter().flatten().filter(|entry| entry.port == port).count();
    let most = set.iter().flatten().max_by_key(|entry| of(entry.port))?.port;
    oldest(set, most).filter(|_| of(most) > of(port) + 1)
}

/// The set of an address.
pub(crate) fn place(mac: Mac, vlan: u16) -> usize {
    let [a, b, c, d, e, f] = mac.0;
    let [g, h] = vlan.to_be_bytes();
    let word = u64::from_be_bytes([g, h, a, b, c, d, e, f]);
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % SETS
}
