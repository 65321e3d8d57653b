//! A receive queue: frames are copied out of its buffers, which are the controller's again then.

use crate::MOST;
use crate::registers::{QueueRegisters, Registers};
use crate::ring::{Arrived, ENTRIES, Ring, after};
use window::{Outside, Span};

/// Bad frames that one call passes over.
const MOST_BAD: u32 = 8;

/// A queue.
#[derive(Debug)]
pub struct Receive {
    pub ring: Ring,
    pub registers: QueueRegisters,
    /// The entry whose frame is received next; those before it are the controller's again.
    next: u32,
    /// The last entry that the controller knows to be its own.
    returned: u32,
    /// The pieces of a frame in several buffers go on.
    within: bool,
}

impl Receive {
    pub fn new(memory: &Span, registers: QueueRegisters) -> Option<Self> {
        Some(Receive { ring: Ring::new(memory)?, registers, next: 0, returned: 0, within: false })
    }

    /// After a reset: all buffers but one are to be the controller's.
    pub fn begin(&mut self) -> Result<(), Outside> {
        (0..ENTRIES).try_for_each(|entry| self.ring.offer(entry, 0))?;
        (self.next, self.returned, self.within) = (0, ENTRIES - 1, false);
        Ok(())
    }

    /// It is enabled: gives it the buffers.
    pub fn open(&self, registers: &mut impl Registers) {
        registers.write32(self.registers.tail(), self.returned);
    }

    /// Copies the next frame to the start of `into`, and gives its length. `bad` counts those that
    /// were passed over.
    #[inline(never)]
    pub fn take(&mut self, into: &Span, bad: &mut u64) -> Option<u32> {
        for _ in 0..MOST_BAD {
            let arrived = self.ring.arrived(self.next)?;
            let copied = self.copy(arrived, into);
            // Whatever it was, the buffer is the controller's again.
            if self.ring.offer(self.next, 0).is_err() {
                return None;
            }
            self.next = after(self.next);
            match copied {
                Some(bytes) => return Some(bytes),
                None => *bad += 1,
            }
        }
        None
    }

    /// Copies what arrived in the next buffer, if it is a whole frame.
    fn copy(&mut self, Arrived { bytes, end, good }: Arrived, into: &Span) -> Option<u32> {
        let rest = core::mem::replace(&mut self.within, !end);
        if rest || !end || !good || bytes == 0 || bytes > MOST {
            return None;
        }
        let from = self.ring.buffer(self.next).ok()?.sub(0, bytes.into())?;
        from.copy_to(&into.sub(0, bytes.into())?).ok()?;
        Some(bytes)
    }

    /// Gives the controller the buffers of frames that were received.
    pub fn flush(&mut self, registers: &mut impl Registers) {
        // The buffer before the next one was emptied last.
        let last = (self.next + ENTRIES - 1) % ENTRIES;
        if self.returned != last {
            self.returned = last;
            registers.write32(self.registers.tail(), last);
        }
    }
}
