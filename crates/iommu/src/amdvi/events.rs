//! The event log (48882, 2.5): what the unit blocked, and what it couldn't do.
//!
//! Guarantees: a call reads at most as many records as the log has, and tells each once; after an
//! overflow the log goes on. A record of a command that failed is seen by whoever waits for
//! commands ([`EventLog::refused`]), read or not.

use super::registers::{
    CONTROL, EVENT_ARRIVED, EVENT_BASE, EVENT_HEAD, EVENT_LOG, EVENT_OVERFLOW, EVENT_RUN,
    EVENT_TAIL, LENGTH_256, POINTER, STATUS,
};
use crate::tables::Tables;
use crate::{Bdf, Error, Fault, Memory, Registers, Request};

/// Records in a log of one frame.
const LENGTH: u64 = 256;
/// Bytes of a record.
const RECORD: u64 = 16;
/// How often, in a call, a record is read that the tail says is there and memory doesn't yet; and
/// the status of a full log.
const PATIENCE: u32 = 1000;

const ILLEGAL_DEVICE_ENTRY: u8 = 1;
const PAGE_FAULT: u8 = 2;
const DEVICE_TABLE_ERROR: u8 = 3;
const PAGE_TABLE_ERROR: u8 = 4;
const ILLEGAL_COMMAND: u8 = 5;
const COMMAND_ERROR: u8 = 6;
const TLB_TIME_OUT: u8 = 7;
const INVALID_REQUEST: u8 = 8;

/// Is there something to report?
pub fn fault_pending(regs: &mut impl Registers) -> bool {
    let waiting = (regs.read64(EVENT_HEAD) ^ regs.read64(EVENT_TAIL)) & POINTER != 0;
    waiting || regs.read64(STATUS) & EVENT_OVERFLOW != 0
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// There was more than the log has room for.
    pub overflowed: bool,
    /// A command failed.
    pub refused: bool,
}

/// The log. Records are counted from the first on.
pub struct EventLog {
    base: u64,
    /// The next record to tell.
    head: u64,
    /// The next one that nobody looked at for a failed command.
    seen: u64,
}

impl EventLog {
    pub fn new<M: Memory>(tables: &mut Tables<M>) -> Result<Self, Error> {
        Ok(EventLog { base: tables.allocate(1)?, head: 0, seen: 0 })
    }

    /// Says where it is, to a unit that logs nothing now.
    pub fn place(&self, regs: &mut impl Registers) {
        regs.write64(EVENT_BASE, self.base | LENGTH_256);
        regs.write64(EVENT_HEAD, 0);
        regs.write64(EVENT_TAIL, 0);
    }

    /// Tells every record that is there now, and makes room. `control`: what the control register
    /// holds, for the log to be restarted.
    pub fn take<R: Registers, M: Memory>(
        &mut self,
        regs: &mut R,
        tables: &mut Tables<M>,
        control: u64,
        mut report: impl FnMut(Fault),
    ) -> Taken {
        // Before the tail is read: for a record that comes later there is an interrupt again.
        regs.write64(STATUS, EVENT_ARRIVED);
        let overflowed = regs.read64(STATUS) & EVENT_OVERFLOW != 0;
        let mut taken = Taken { overflowed, refused: false };
        let tail = self.tail(regs);
        let mut patience = PATIENCE;
        while self.head < tail {
            let at = self.record(self.head);
            let mut low = tables.read(at);
            while code(low) == 0 && patience > 0 {
                patience -= 1;
                core::hint::spin_loop();
                low = tables.read(at);
            }
            report(decode(low, tables.read(at + 8)));
            taken.refused |= matches!(code(low), ILLEGAL_COMMAND | COMMAND_ERROR);
            // The next one here is told from this one.
            tables.write(at, 0);
            self.head += 1;
        }
        self.seen = self.seen.max(self.head);
        regs.write64(EVENT_HEAD, self.head % LENGTH * RECORD);
        if taken.overflowed {
            restart(regs, control);
        }
        taken
    }

    /// Has the unit logged, since this was last asked, that it couldn't carry out a command?
    pub fn refused<R: Registers, M: Memory>(
        &mut self,
        regs: &mut R,
        tables: &mut Tables<M>,
    ) -> bool {
        let tail = self.tail(regs);
        let mut refused = false;
        while self.seen < tail {
            let code = code(tables.read(self.record(self.seen)));
            if code == 0 {
                // Not there yet.
                break;
            }
            refused |= matches!(code, ILLEGAL_COMMAND | COMMAND_ERROR);
            self.seen += 1;
        }
        refused
    }

    /// How many records the unit has written; it can't be more ahead than the log is long.
    fn tail(&self, regs: &mut impl Registers) -> u64 {
        let at = (regs.read64(EVENT_TAIL) & POINTER) / RECORD % LENGTH;
        self.head + (at + LENGTH - self.head % LENGTH) % LENGTH
    }

    fn record(&self, number: u64) -> u64 {
        self.base + number % LENGTH * RECORD
    }
}

/// Has a log that stopped, since it was full, go on (48882, 2.5.2). A unit that doesn't say in time
/// that it stopped, as QEMU's never does, is stopped.
fn restart(regs: &mut impl Registers, control: u64) {
    wait_until_stopped(regs);
    regs.write64(CONTROL, control & !EVENT_LOG);
    wait_until_stopped(regs);
    regs.write64(STATUS, EVENT_OVERFLOW);
    regs.write64(CONTROL, control);
}

fn wait_until_stopped(regs: &mut impl Registers) {
    for _ in 0..PATIENCE {
        if regs.read64(STATUS) & EVENT_RUN == 0 {
            return;
        }
    }
}

/// The kind of a record, from its low half; 0: it isn't written.
fn code(low: u64) -> u8 {
    (low >> 60) as u8
}

/// The fault in a record (48882, 2.5.3 to 2.5.11).
fn decode(low: u64, high: u64) -> Fault {
    let bit = |n: u32| low >> n & 1 != 0;
    let (interrupt, present, write, permission, reserved) =
        (bit(51), bit(52), bit(53), bit(54), bit(55));
    let access = match (interrupt, write) {
        (true, _) => Request::Message(high),
        (false, true) => Request::Write(high & !0xFFF),
        (false, false) => Request::Read(high & !0xFFF),
    };
    let code = code(low);
    let (request, reason) = match code {
        ILLEGAL_DEVICE_ENTRY => (access, "its device-table entry is invalid"),
        PAGE_FAULT if reserved => (access, "an entry that was read for it is invalid"),
        PAGE_FAULT if interrupt => (access, "it has no such interrupt"),
        PAGE_FAULT if present && permission => (access, "its domain may not do that there"),
        PAGE_FAULT => (access, "it has no domain, or its domain no page there"),
        DEVICE_TABLE_ERROR => (Request::Untold, "the device table can't be read"),
        PAGE_TABLE_ERROR => (Request::Untold, "a page table can't be read"),
        ILLEGAL_COMMAND => (Request::Command(high & !0xF), "the unit doesn't know it"),
        COMMAND_ERROR => (Request::Command(high & !0xF), "the unit can't read it"),
        TLB_TIME_OUT => (Request::TimeOut, "nobody waits for it"),
        INVALID_REQUEST => (Request::Untold, "devices may not make one of that kind"),
        0 => (Request::Untold, "the unit didn't write the record in time"),
        _ => (Request::Untold, "for a reason this driver doesn't know"),
    };
    let source = match request {
        Request::Command(_) => Bdf::from_requester_id(0),
        _ => Bdf::from_requester_id(low as u16),
    };
    Fault { source, request, code, reason }
}
