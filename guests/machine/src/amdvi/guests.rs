//! Entries for guests of the guest's: interrupts that are posted to them, and the log of those that
//! came while none of them ran (AMD IOMMU spec 48882, 2.2.5.3 and 2.7).

use super::registers::*;
use super::{AmdVi, PAGE};
use crate::cpu::{mmio_read, mmio_read64, mmio_write, mmio_write64};
use crate::unit::{BASE, Unit as _};
use crate::virtqueue::{get, put};
use crate::wait;

/// Of an entry, RemapEn, GALogIntr, IsRun and GuestMode.
const REMAPS: u64 = 1 << 0;
const LOGS_POSTED: u64 = 1 << 2;
const IS_RUN: u64 = 1 << 6;
const GUEST_MODE: u64 = 1 << 7;
/// Of FEATURES: GASup for local APICs of guests (GAMSup).
const POSTS: u64 = 1 << 21;
/// Of CONTROL: GALogEn, GAIntEn. Of STATUS: GALogRun, GALogInt.
const GUEST_LOGS: u64 = 1 << 28;
const GUEST_INTERRUPTS: u64 = 1 << 29;
const GUEST_LOG_RUNS: u32 = 1 << 8;
const GUEST_LOGGED: u32 = 1 << 10;
/// Registers of that log: of 512 entries, of 8 bytes each.
const GUEST_LOG: u64 = 0xE0;
const GUEST_INTERRUPT: u64 = 0x180;
const GUEST_LOG_HEAD: u64 = 0x2040;
const GUEST_LOG_TAIL: u64 = 0x2048;
const LENGTH_512: u64 = 9 << 56;

/// An interrupt for a guest's guest.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// Its vector there.
    pub vector: u8,
    /// Where that guest's backing page is.
    pub page: u64,
    /// That guest runs.
    pub runs: bool,
    /// What is logged of one that comes while it doesn't.
    pub tag: Option<u32>,
}

impl AmdVi {
    /// Does it post to guests of the guest's?
    pub fn posts(&self) -> bool {
        mmio_read64(BASE + FEATURES) & POSTS != 0
    }

    /// Has this source's entry at this index be for a guest of the guest's; the unit isn't told.
    /// False: there is no table for it.
    pub fn post(&self, index: u64, source: u16, to: Posted) -> bool {
        let Some((table, _)) = self.entries(source) else { return false };
        let runs = if to.runs { IS_RUN } else { 0 };
        let logs = to.tag.map_or(0, |tag| LOGS_POSTED | u64::from(tag) << 32);
        put(table + 16 * index + 8, to.page | u64::from(to.vector));
        put(table + 16 * index, REMAPS | GUEST_MODE | runs | logs);
        self.put_interrupts(source.into(), self.interrupts(source));
        true
    }

    /// Has it log what it posts to nobody who runs, in this page, and tell of it by this vector.
    pub fn log_posted(&self, page: u64, vector: u8) -> bool {
        (0..PAGE / 8).for_each(|n| put(page + 8 * n, 0u64));
        mmio_write64(BASE + GUEST_LOG, page | LENGTH_512);
        mmio_write(BASE + GUEST_LOG_HEAD, 0);
        mmio_write(BASE + GUEST_LOG_TAIL, 0);
        mmio_write64(BASE + GUEST_INTERRUPT, u64::from(vector) << 32);
        self.set(OWN_INTERRUPT | GUEST_LOGS | GUEST_INTERRUPTS, true);
        self.ask(&[]) && wait::until(|| mmio_read(BASE + STATUS) & GUEST_LOG_RUNS != 0)
    }

    /// Takes the oldest entry of that log, and has it tell of the next one again.
    pub fn take_posted(&self, page: u64) -> Option<u64> {
        let (head, tail) = (mmio_read(BASE + GUEST_LOG_HEAD), mmio_read(BASE + GUEST_LOG_TAIL));
        let entry = (head != tail).then(|| get(page + u64::from(head) % PAGE));
        if entry.is_some() {
            mmio_write(BASE + STATUS, GUEST_LOGGED);
            mmio_write(BASE + GUEST_LOG_HEAD, (head + 8) % PAGE as u32);
        }
        entry
    }
}
