//! The live counters of one vCPU as they lie in memory: one page, written by the
//! host on that vCPU's core only, mapped read-only into the guest.
//!
//! Layout (little endian, all fields u64 unless said): see [`Page`]. A guest
//! program finds the page through CPUID leaf 0x4000_0001.

use crate::Reason;
use alloc::vec::Vec;
use core::cmp::Reverse;
use serde::{Deserialize, Serialize};

/// First field of a [`Page`]: "EXITLEDG" read as a little-endian number.
pub const PAGE_MAGIC: u64 = u64::from_le_bytes(*b"EXITLEDG");
/// Version of the layout; grows when a field moves, not when a reason is appended.
pub const PAGE_VERSION: u32 = 1;

/// Room for reasons in a page, so that appending one moves nothing.
const REASON_SLOTS: usize = 64;
/// Buckets of [`Page::waits`].
pub const WAITS: usize = 48;
const _: () = assert!(Reason::COUNT <= REASON_SLOTS);

/// The counters of one vCPU. Offsets are part of the interface with guests:
/// magic 0, version 8 (u32), reason count 12 (u32), entries 16, host cycles 24,
/// injected 32, device 40, timer 48, slices 56, exits 64 + 8 × reason, waits 576 + 8 × bucket,
/// merged 960.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Page {
    /// [`PAGE_MAGIC`].
    pub magic: u64,
    /// [`PAGE_VERSION`].
    pub version: u32,
    /// How many slots of `exits` mean something.
    pub reasons: u32,
    /// Guest entries (VMRUN) so far; equals the exits so far while the guest looks.
    pub entries: u64,
    /// TSC cycles between an exit and the next entry, summed.
    pub host_cycles: u64,
    /// Virtual interrupts given to the guest by the host.
    pub injected: u64,
    /// Of these, assigned devices' interrupts that came through the host.
    pub device_injected: u64,
    /// Of these, timer interrupts.
    pub timer_injected: u64,
    /// On a shared core: how often the vCPU was given it.
    pub slices: u64,
    /// Exits by [`Reason`] index.
    pub exits: [u64; REASON_SLOTS],
    /// On a shared core: how long interrupts of devices waited for the vCPU to get the core, the
    /// first of each absence. Bucket n counts waits of 2ⁿ to 2ⁿ⁺¹ − 1 TSC ticks, 0 also those of
    /// none, the last all that are longer.
    pub waits: [u64; WAITS],
    /// Assigned devices' interrupts that came through the host while the same vector was pending:
    /// a local APIC keeps one of them, so the guest takes both at once.
    pub device_merged: u64,
}

const _: () = assert!(core::mem::size_of::<Page>() <= 4096);
const _: () = assert!(core::mem::offset_of!(Page, entries) == 16);
const _: () = assert!(core::mem::offset_of!(Page, exits) == 64);
const _: () = assert!(core::mem::offset_of!(Page, waits) == 576);
const _: () = assert!(core::mem::offset_of!(Page, device_merged) == 960);

impl Page {
    /// A page with nothing counted yet.
    pub const fn new() -> Self {
        Page {
            magic: PAGE_MAGIC,
            version: PAGE_VERSION,
            reasons: Reason::COUNT as u32,
            entries: 0,
            host_cycles: 0,
            injected: 0,
            device_injected: 0,
            timer_injected: 0,
            slices: 0,
            exits: [0; REASON_SLOTS],
            waits: [0; WAITS],
            device_merged: 0,
        }
    }

    /// Counts a wait of so many TSC ticks.
    #[cold]
    pub fn waited(&mut self, ticks: u64) {
        let bucket = (ticks.max(1).ilog2() as usize).min(WAITS - 1);
        if let Some(slot) = self.waits.get_mut(bucket) {
            *slot = slot.wrapping_add(1);
        }
    }

    /// Counts one exit.
    pub fn count(&mut self, reason: Reason) {
        let slot = &mut self.exits[reason as usize];
        *slot = slot.wrapping_add(1);
    }

    /// A copy for the record `Counters` of the crate `proto`.
    pub fn counters(&self) -> Counters {
        Counters {
            entries: self.entries,
            host_cycles: self.host_cycles,
            injected: self.injected,
            device_injected: self.device_injected,
            timer_injected: self.timer_injected,
            slices: self.slices,
            exits: self.exits[..Reason::COUNT].to_vec(),
        }
    }
}

impl Default for Page {
    fn default() -> Self {
        Self::new()
    }
}

/// The counters of one vCPU as a record carries them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Guest entries.
    pub entries: u64,
    /// TSC cycles spent in the host between exit and entry.
    pub host_cycles: u64,
    /// Virtual interrupts given by the host.
    pub injected: u64,
    /// Of these, of assigned devices.
    pub device_injected: u64,
    /// Of these, of the timer.
    pub timer_injected: u64,
    /// How often it was given a core that it shares.
    pub slices: u64,
    /// Exits by [`Reason`] index; a newer hypervisor may send more than we know.
    pub exits: Vec<u64>,
}

impl Counters {
    /// Exits for `reason`; zero when the sender didn't know it.
    pub fn of(&self, reason: Reason) -> u64 {
        self.exits.get(reason as usize).copied().unwrap_or(0)
    }

    /// All exits.
    pub fn total(&self) -> u64 {
        self.exits.iter().fold(0, |a, b| a.wrapping_add(*b))
    }

    /// Adds another vCPU's; a sum that doesn't fit stays at the largest number.
    pub fn add(&mut self, other: &Counters) {
        let add = |sum: &mut u64, n: u64| *sum = sum.saturating_add(n);
        add(&mut self.entries, other.entries);
        add(&mut self.host_cycles, other.host_cycles);
        add(&mut self.injected, other.injected);
        add(&mut self.device_injected, other.device_injected);
        add(&mut self.timer_injected, other.timer_injected);
        add(&mut self.slices, other.slices);
        self.exits.resize(self.exits.len().max(other.exits.len()), 0);
        self.exits.iter_mut().zip(&other.exits).for_each(|(sum, n)| add(sum, *n));
    }

    /// The reasons that occurred, with their counts, largest first.
    pub fn by_reason(&self) -> Vec<(Reason, u64)> {
        let mut v: Vec<_> =
            Reason::ALL.iter().map(|r| (*r, self.of(*r))).filter(|(_, n)| *n > 0).collect();
        sort::by_key(&mut v, |(reason, n)| (Reverse(*n), *reason));
        v
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_shows_in_its_slot_only() {
        let mut p = Page::new();
        p.count(Reason::Cpuid);
        p.count(Reason::Cpuid);
        p.count(Reason::Shutdown);
        let c = p.counters();
        assert_eq!(c.of(Reason::Cpuid), 2);
        assert_eq!(c.total(), 3);
        assert_eq!(c.by_reason(), [(Reason::Cpuid, 2), (Reason::Shutdown, 1)]);
    }

    #[test]
    fn a_wait_is_in_the_bucket_of_its_length() {
        let mut p = Page::new();
        [0, 1, 2, 3, 1023, 1024, u64::MAX].into_iter().for_each(|ticks| p.waited(ticks));
        let counted = |n: usize| p.waits[n];
        assert_eq!([0, 1, 9, 10, WAITS - 1].map(counted), [2, 2, 1, 1, 1]);
        assert_eq!(p.waits.iter().sum::<u64>(), 7);
    }

    #[test]
    fn sums_have_the_reasons_of_both() {
        let part =
            |exits: &[u64]| Counters { entries: 2, exits: exits.to_vec(), ..Counters::default() };
        let mut sum = part(&[1]);
        sum.add(&part(&[1, 5]));
        sum.add(&part(&[u64::MAX]));
        assert_eq!((sum.entries, sum.exits), (6, alloc::vec![u64::MAX, 5]));
    }

    #[test]
    fn sums_have_every_counter() {
        let ones = Counters {
            entries: 1,
            host_cycles: 1,
            injected: 1,
            device_injected: 1,
            timer_injected: 1,
            slices: 1,
            exits: alloc::vec![1],
        };
        let mut sum = Counters::default();
        sum.add(&ones);
        assert_eq!(sum, ones);
    }

    #[test]
    fn counters_of_an_older_sender_read_as_zero() {
        let c = Counters { exits: alloc::vec![5], ..Counters::default() };
        assert_eq!(c.of(Reason::DeviceInterrupt), 5);
        assert_eq!(c.of(Reason::Other), 0);
    }
}
