//! What devices tried and weren't let, and errors of the queue, as the registers tell the guest of
//! them, with the interrupt for it (VT-d 5.0, 7 and 11.4: FSTS, FECTL, FRCD).
//!
//! Guarantees: what is told of is in the records in the order in which it was tried, until the
//! guest clears it; what there was no record for is told as an overflow. An interrupt is sent when
//! something is told of and nothing was before, and when the guest clears the status register and
//! something is left. While it is masked it waits. A step goes through the records once.
//!
//! Doesn't guarantee that a driver clears a record by writing back the very word that it read:
//! where no write exits that can't be seen. Linux and Xen write the one bit that clears. That no
//! record is left stands in the status register at once where writes exit, else when the driver
//! next writes there, as both do.

use super::registers::{
    self as at, FAULT_ADDRESS, FAULT_CONTROL, FAULT_DATA, FAULT_STATUS, FULL, LOOKED, MASKED,
    OVERFLOW, PENDING, REASON, RECORDS, Registers, WAITS, number, record,
};
use crate::unit::Fault;

/// Why, in the manual's codes (VT-d 5.0, 7.2): there is no context; it may not write; nor read.
pub(super) const NO_CONTEXT: u32 = 2;
pub(super) const NO_WRITE: u32 = 5;
pub(super) const NO_READ: u32 = 6;

/// What the guest is told of.
#[derive(Debug)]
pub(super) struct Faults {
    /// Bits of the status register that stand until the guest clears them.
    bits: u32,
    /// The record that is next.
    next: usize,
    /// There may be a record that isn't cleared: else none is looked at.
    recorded: bool,
    /// The interrupt waits until it isn't masked.
    waits: bool,
    /// It is to be sent.
    sends: bool,
}

impl Faults {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Faults { bits: 0, next: 1, recorded: false, waits: false, sends: false }
    }

    /// Does the queue stand because of an error?
    pub(super) fn stops_queue(&self) -> bool {
        self.bits & at::QUEUE_ERROR != 0
    }

    /// The queue has an error.
    pub(super) fn set_queue_error(&mut self, page: Registers<'_>) {
        self.set(page, |faults| faults.bits |= at::QUEUE_ERROR);
    }

    /// The endpoint with this id tried this.
    pub(super) fn record(&mut self, page: Registers<'_>, id: u16, fault: Fault, reason: u32) {
        // Until it is cleared, nothing more is recorded.
        if self.bits & OVERFLOW != 0 {
            return;
        }
        self.set(page, |faults| {
            if is_full(page, faults.next) {
                faults.bits |= OVERFLOW;
                return;
            }
            let to = record(faults.next);
            let kind = if fault.is_write { 0 } else { 1 << 30 };
            page.set64(to, fault.address & !0xFFF);
            page.set(to + 8, id.into());
            page.set(to + 12, FULL | kind | reason);
            faults.next = faults.next % (RECORDS - 1) + 1;
            faults.recorded = true;
        });
    }

    /// Has something be told of.
    fn set(&mut self, page: Registers<'_>, change: impl FnOnce(&mut Self)) {
        forget_cleared(page);
        let was = self.status(page);
        change(self);
        self.show(page);
        if was == 0 {
            self.notify(page);
        }
    }

    /// The guest wrote this to the status register.
    pub(super) fn clear(&mut self, page: Registers<'_>, written: u32) {
        self.bits &= !written;
        forget_cleared(page);
        self.recorded = self.first(page).is_some();
        page.replace(FAULT_STATUS, written, self.status(page));
        // A driver that went through the records from the first one that it was told of may have
        // missed those that came since.
        if self.recorded {
            self.notify(page);
        }
    }

    /// Has the status register say what there is, if the guest didn't write to it.
    #[inline]
    pub(super) fn show(&self, page: Registers<'_>) {
        let stands = page.get(FAULT_STATUS);
        if stands != 0 || self.bits != 0 || self.recorded {
            self.put(page, stands);
        }
    }

    #[cold]
    fn put(&self, page: Registers<'_>, stands: u32) {
        if page.cleared().is_none() {
            page.replace(FAULT_STATUS, stands, self.status(page));
        }
    }

    fn notify(&mut self, page: Registers<'_>) {
        self.waits = true;
        self.follow_mask(page);
    }

    /// The guest may have cleared the last record, or let the interrupt go. There is no interrupt
    /// for what it has cleared.
    pub(super) fn look_again(&mut self, page: Registers<'_>) {
        self.waits &= self.status(page) != 0;
        self.follow_mask(page);
        self.show(page);
    }

    /// Goes by the register that masks the interrupt.
    fn follow_mask(&mut self, page: Registers<'_>) {
        let control = page.get(FAULT_CONTROL);
        let masked = control & MASKED;
        if self.waits && masked == 0 {
            (self.waits, self.sends) = (false, true);
        }
        let waits = if self.waits { WAITS } else { 0 };
        page.replace(FAULT_CONTROL, control, masked | waits | LOOKED);
    }

    /// The interrupt's address and data, if it is to be sent. Once.
    #[inline]
    pub(super) fn take_interrupt(&mut self, page: Registers<'_>) -> Option<(u64, u32)> {
        let sends = core::mem::take(&mut self.sends);
        sends.then(|| (page.get64(FAULT_ADDRESS), page.get(FAULT_DATA)))
    }

    /// As the status register has it.
    fn status(&self, page: Registers<'_>) -> u32 {
        let first = self.first(page);
        let pending = if first.is_some() { PENDING } else { 0 };
        number(self.bits | pending, first.unwrap_or(1))
    }

    /// The oldest record that isn't cleared.
    fn first(&self, page: Registers<'_>) -> Option<usize> {
        let places = (self.next..RECORDS).chain(1..self.next).filter(|_| self.recorded);
        places.into_iter().find(|place| is_full(page, *place))
    }
}

/// Has the guest not cleared this record? In what it writes to do so, there is no reason.
fn is_full(page: Registers<'_>, place: usize) -> bool {
    let word = page.get(record(place) + 12);
    word & FULL != 0 && word & REASON != 0
}

/// Records that the guest cleared are empty.
fn forget_cleared(page: Registers<'_>) {
    for place in 0..RECORDS {
        if !is_full(page, place) {
            page.set(record(place) + 12, 0);
        }
    }
}
