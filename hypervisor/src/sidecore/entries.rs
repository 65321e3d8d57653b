//! The MSI-X entries of all paravirtual functions, which stand where a remapping table's entries
//! stand for devices, and the turns of the sidecores that send by them.
//!
//! Guarantees: an entry is one paravirtual function's, for good, and one sidecore's at a time; a
//! route that was replaced sends nothing any more when [`settle`] is over. The rules are in
//! `routing::calls`.

use crate::cpu::{self, rdtsc};
use ::iommu::{Bdf, Delivery, InterruptRoute};
use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use plan::{GuestIommu, MAX_DISKS, MAX_INTERFACES, MAX_SERVED, MAX_SIDECORES, MAX_VMS};
use routing::calls::{Entry, PARAVIRTUAL_SEGMENT, Target, Turn};
use spin::Once;

/// All there can be: of every queue that sidecores may serve, and of every function for its
/// configuration.
const ENTRIES: usize = MAX_SIDECORES * MAX_SERVED
    + MAX_VMS * (MAX_DISKS + MAX_INTERFACES + 1 + GuestIommu::Virtio.queues());
/// Seconds that a sidecore is waited for at most: it may be stopped by the machine alone, for a
/// machine check or an SMI.
const PATIENCE: u64 = 10;

struct Entries {
    entries: Box<[Entry]>,
    /// Entries and functions that were given out.
    given: AtomicUsize,
    functions: AtomicUsize,
    turns: Box<[Turn]>,
}

static ALL: Once<Entries> = Once::new();

/// While booting, before any function is made: so many sidecores will send.
pub fn init(sidecores: usize) {
    ALL.call_once(|| Entries {
        entries: (0..ENTRIES).map(|_| Entry::new()).collect(),
        given: AtomicUsize::new(0),
        functions: AtomicUsize::new(0),
        turns: (0..sidecores).map(|_| Turn::new()).collect(),
    });
}

/// While booting: the id of a new paravirtual function, by which its entries' routes name it.
pub fn new_function() -> Option<Bdf> {
    let all = ALL.get()?;
    let id = u16::try_from(all.functions.fetch_add(1, Ordering::Relaxed)).ok()?;
    Some(Bdf::from_requester_id(id).in_segment(PARAVIRTUAL_SEGMENT))
}

/// While booting: the first of `count` entries in a row that are its own.
pub fn allocate(count: usize) -> Option<u16> {
    let all = ALL.get()?;
    let first = all.given.fetch_add(count, Ordering::Relaxed);
    (first + count <= ENTRIES).then(|| u16::try_from(first).ok()).flatten()
}

/// An entry.
#[inline]
pub fn get(entry: u16) -> Option<&'static Entry> {
    ALL.get()?.entries.get(usize::from(entry))
}

/// The entry of this vector of the function that has these.
#[inline]
pub fn of(own: &Range<u16>, vector: u16) -> Option<&'static Entry> {
    let entry = own.start.checked_add(vector)?;
    get(entry).filter(|_| own.contains(&entry))
}

/// The turns of a sidecore.
pub fn turn(sidecore: usize) -> Option<&'static Turn> {
    ALL.get()?.turns.get(sidecore)
}

/// Has the sidecores look for calls that wait in entries that were opened.
pub fn ask() {
    ALL.get().into_iter().flat_map(|all| &all.turns).for_each(Turn::ask);
}

/// Sends the calls of an entry by this route from now on; by the old one none is begun after
/// [`settle`].
pub fn route(entry: u16, route: InterruptRoute) -> bool {
    let Delivery::Fixed(vector) = route.delivery else { return false };
    let target = Target { destination: route.destination, vector };
    get(entry).inspect(|entry| entry.route(Some(target))).is_some()
}

/// Sends them nowhere.
pub fn clear(entry: u16) -> bool {
    get(entry).inspect(|entry| entry.route(None)).is_some()
}

/// Waits until every sidecore goes by the entries as they are now: as long as a call takes. False:
/// one doesn't come round.
pub fn settle() -> bool {
    let start = rdtsc();
    let patience = cpu::tsc_hz() * PATIENCE;
    let wait = || {
        core::hint::spin_loop();
        rdtsc().wrapping_sub(start) < patience
    };
    ALL.get().is_none_or(|all| all.turns.iter().all(|turn| turn.settle(wait)))
}
