//! What a sidecore does by a time: interrupts that were held back are sent, and what guests' IOMMUs
//! have wait is torn down.
//!
//! Guarantees: the time that is kept is never later than the first of them. One that is gone
//! meanwhile costs a look.

use crate::iommu::guest::GuestIommu;
use crate::sidecore::polling_core::PollingCore;

impl PollingCore {
    /// Is the time of something over?
    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| now.wrapping_sub(deadline) as i64 >= 0)
    }

    /// What a guest's IOMMU has wait is done by then. What the queue holds back is told by then;
    /// not while its device may not access memory, by which the driver says whether it wants to be
    /// told.
    pub(super) fn keep_deadline(&mut self, place: usize) {
        let Some(queue) = self.queues.all.get(place) else { return };
        let due = queue.work.iommu().and_then(GuestIommu::due);
        let device = self.devices.get(queue.device);
        let tells = device.is_some_and(|device| device.order.may_access);
        let held = queue.signal.deadline().filter(|_| tells);
        for deadline in due.into_iter().chain(held) {
            self.note_deadline(deadline);
        }
    }

    fn note_deadline(&mut self, deadline: u64) {
        let is_first = self.deadline.is_none_or(|d| (deadline.wrapping_sub(d) as i64) < 0);
        self.deadline = if is_first { Some(deadline) } else { self.deadline };
    }

    pub(super) fn tell_due(&mut self, now: u64) {
        self.deadline = None;
        for place in 0..self.queues.all.len() {
            let Some(queue) = self.queues.all.get_mut(place) else { continue };
            if let Some(iommu) = queue.work.iommu()
                && iommu.due().is_some_and(|due| now.wrapping_sub(due) as i64 >= 0)
            {
                iommu.tear_down(now);
            }
            if queue.signal.is_due(now) {
                self.call(place);
            }
            self.keep_deadline(place);
        }
    }
}
