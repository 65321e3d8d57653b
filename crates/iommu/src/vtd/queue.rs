//! The invalidation queue (VT-d 6.5.2): requests, and waits until the unit has done them all.

use super::capabilities::Capabilities;
use super::command;
use super::fault;
use super::registers::{FSTS, FSTS_STICKY, IQA, IQE, IQH, IQT, ITE, QIE};
use crate::poll::{POLLS, poll};
use crate::tables::Tables;
use crate::{Bdf, DomainId, Error, Fault, Memory, Registers, Remapping};

/// Descriptors in a queue of one frame (IQA.QS = 0).
const LENGTH: u64 = 256;
/// Bytes of a descriptor (IQA.DW = 0).
const DESCRIPTOR: u64 = 16;
/// How often a wait that the unit aborted is repeated.
const REPEATS: u32 = 8;

/// What to invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// All cached context entries.
    ContextGlobal,
    /// One device's cached context entry.
    ContextDevice(DomainId, Bdf),
    /// All cached translations.
    IotlbGlobal,
    /// A domain's cached translations.
    IotlbDomain(DomainId),
    /// A domain's cached translations of 2^`order` pages from `page`, a multiple of that many.
    IotlbPages { domain: DomainId, page: u64, order: u8 },
    /// All cached interrupt entries.
    InterruptGlobal,
    /// One cached interrupt entry.
    InterruptEntry(u16),
}

impl Invalidation {
    fn is_of_interrupts(self) -> bool {
        matches!(self, Invalidation::InterruptGlobal | Invalidation::InterruptEntry(_))
    }

    /// The descriptor, low and high half (VT-d 6.5.2.1 to 6.5.2.3, 6.5.2.7).
    pub(super) fn descriptor(self, capabilities: &Capabilities) -> (u64, u64) {
        const CONTEXT: u64 = 1;
        const IOTLB: u64 = 2;
        const INTERRUPT: u64 = 4;
        const GLOBAL: u64 = 1 << 4;
        const DOMAIN: u64 = 2 << 4;
        const DEVICE_OR_PAGE: u64 = 3 << 4;
        const INDEX: u64 = 1 << 4;
        let iotlb = IOTLB
            | u64::from(capabilities.drain_writes) << 6
            | u64::from(capabilities.drain_reads) << 7;
        let did = |domain: DomainId| u64::from(domain.0) << 16;
        match self {
            Invalidation::ContextGlobal => (CONTEXT | GLOBAL, 0),
            Invalidation::ContextDevice(domain, device) => {
                let sid = u64::from(device.requester_id()) << 32;
                (CONTEXT | DEVICE_OR_PAGE | did(domain) | sid, 0)
            }
            Invalidation::IotlbGlobal => (iotlb | GLOBAL, 0),
            Invalidation::IotlbDomain(domain) => (iotlb | DOMAIN | did(domain), 0),
            Invalidation::IotlbPages { domain, page, order } => {
                (iotlb | DEVICE_OR_PAGE | did(domain), page << 12 | u64::from(order))
            }
            Invalidation::InterruptGlobal => (INTERRUPT, 0),
            Invalidation::InterruptEntry(index) => (INTERRUPT | INDEX | u64::from(index) << 32, 0),
        }
    }
}

/// How a wait ended.
enum Ended {
    /// The unit has done everything before it.
    Done,
    /// The unit dropped it, since a device timed out.
    Aborted,
    /// The unit refused a descriptor; its fault status.
    Refused(u32),
    /// The unit didn't answer for too long.
    Silent,
}

/// The queue, switched on.
pub struct Queue {
    base: u64,
    /// Where the unit writes that a wait is over.
    status: u64,
    tail: u64,
    sequence: u32,
    /// Requests that no wait followed yet.
    open: u64,
    failure: Option<Error>,
    /// A time-out that was cleared and not reported yet.
    timed_out: Option<Fault>,
}

impl Queue {
    pub fn enable<R: Registers, M: Memory>(
        regs: &mut R,
        tables: &mut Tables<M>,
    ) -> Result<Self, Error> {
        let base = tables.allocate(2)?;
        regs.write64(IQT, 0);
        regs.write64(IQA, base);
        command::set(regs, QIE, "enable queued invalidation")?;
        Ok(Queue {
            base,
            status: base + LENGTH * DESCRIPTOR,
            tail: 0,
            sequence: 0,
            open: 0,
            failure: None,
            timed_out: None,
        })
    }

    /// Switches off the queue that firmware or an earlier system left, and clears the errors that
    /// were recorded until now: the next ones are this driver's own. Descriptors under way are
    /// waited for (VT-d 6.5.2); a unit that halted at one never ends, and is switched off as it
    /// stands.
    pub fn disable<R: Registers>(regs: &mut R) -> Result<(), Error> {
        let _ = poll("empty its queue", || {
            let halted = regs.read32(FSTS) & (IQE | ITE) != 0;
            halted || regs.read64(IQH) == regs.read64(IQT)
        });
        command::clear(regs, QIE, "stop queued invalidation")?;
        let sticky = regs.read32(FSTS) & FSTS_STICKY;
        regs.write32(FSTS, sticky);
        Ok(())
    }

    /// Has the unit begin to invalidate; [`Queue::drain`] returns when it has.
    pub fn submit<R: Registers, M: Memory>(
        &mut self,
        regs: &mut R,
        tables: &mut Tables<M>,
        capabilities: &Capabilities,
        what: Invalidation,
    ) -> Result<(), Error> {
        if capabilities.remapping == Remapping::Off && what.is_of_interrupts() {
            // It has cached none, and doesn't know the request.
            return self.check();
        }
        // The tail must not reach the head: room for this one, a wait and an empty place.
        if self.open + 3 > LENGTH {
            self.drain(regs, tables)?;
        }
        self.check()?;
        self.push(tables, what.descriptor(capabilities));
        self.open += 1;
        regs.write64(IQT, self.tail * DESCRIPTOR);
        Ok(())
    }

    /// Returns when the unit says that it has done everything that was submitted.
    ///
    /// Fails, for good, if the unit refuses a descriptor (IQE) or doesn't answer. No device can
    /// cause either: this driver asks no device to invalidate anything, so that a completion from
    /// one (ICE) isn't looked at here, and a time-out (ITE) is nobody's that is waited for. The
    /// latter aborts waits that are under way; it is cleared, and the wait repeated.
    pub fn drain<R: Registers, M: Memory>(
        &mut self,
        regs: &mut R,
        tables: &mut Tables<M>,
    ) -> Result<(), Error> {
        self.check()?;
        if self.open == 0 {
            return Ok(());
        }
        self.open = 0;
        for _ in 0..REPEATS {
            match self.wait(regs, tables) {
                Ended::Done => return Ok(()),
                Ended::Aborted => {
                    self.timed_out = Some(fault::time_out(regs));
                    regs.write32(FSTS, ITE);
                }
                Ended::Refused(status) => {
                    return self.fail(Error::InvalidationFailed { status });
                }
                Ended::Silent => {
                    let what = "complete an invalidation";
                    return self.fail(Error::Timeout { what, polls: POLLS });
                }
            }
        }
        self.fail(Error::InvalidationFailed { status: ITE })
    }

    /// Has the unit write a number when it has come this far, and waits for it.
    #[inline]
    fn wait<R: Registers, M: Memory>(&mut self, regs: &mut R, tables: &mut Tables<M>) -> Ended {
        // A number that the status doesn't hold from before.
        self.sequence = self.sequence.wrapping_add(1);
        let number = self.sequence;
        self.push(tables, wait(self.status, number));
        regs.write64(IQT, self.tail * DESCRIPTOR);
        for _ in 0..POLLS {
            if tables.read(self.status) as u32 == number {
                return Ended::Done;
            }
            let status = regs.read32(FSTS);
            if status & IQE != 0 {
                return Ended::Refused(status);
            }
            if status & ITE != 0 {
                return Ended::Aborted;
            }
            core::hint::spin_loop();
        }
        Ended::Silent
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Result<(), Error> {
        self.failure = Some(error);
        Err(error)
    }

    /// A time-out that was cleared since the last call.
    pub fn take_time_out(&mut self) -> Option<Fault> {
        self.timed_out.take()
    }

    /// Whether every invalidation so far was completed. After one that wasn't, nobody knows what
    /// the unit still has cached, so nothing more is begun.
    pub fn check(&self) -> Result<(), Error> {
        match self.failure {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    fn push<M: Memory>(&mut self, tables: &mut Tables<M>, (low, high): (u64, u64)) {
        let pa = self.base + self.tail * DESCRIPTOR;
        tables.write(pa, low);
        tables.write(pa + 8, high);
        self.tail = (self.tail + 1) % LENGTH;
    }
}

/// The wait descriptor (VT-d 6.5.2.8): a status write (SW), never an interrupt (IF) as well.
fn wait(status: u64, number: u32) -> (u64, u64) {
    const WAIT: u64 = 5;
    const SW: u64 = 1 << 5;
    (WAIT | SW | u64::from(number) << 32, status)
}
