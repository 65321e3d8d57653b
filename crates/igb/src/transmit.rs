//! A transmit queue: frames are copied into its buffers, and what they need is done by the
//! controller.

use crate::LEAST;
use crate::registers::{QueueRegisters, Registers};
use crate::ring::{BUFFER, ENTRIES, Ring, after};
use crate::task::{Encoded, LAST, Task};
use window::{Outside, Span};

/// A queue.
#[derive(Debug)]
pub struct Transmit {
    pub ring: Ring,
    pub registers: QueueRegisters,
    /// The first entry of the oldest frame that isn't done, the next free one, and what the
    /// controller knows of that.
    oldest: u32,
    free: u32,
    told: u32,
    /// By a frame's first entry, its last one.
    ends: [u8; ENTRIES as usize],
    /// The context that the controller has.
    context: Option<[u64; 2]>,
    /// The controller has had frames since then, and was done with none; or it had none.
    waits_since: u64,
    /// The controller was done with a frame since that was last asked.
    is_moving: bool,
}

impl Transmit {
    pub fn new(memory: &Span, registers: QueueRegisters) -> Option<Self> {
        Some(Transmit {
            ring: Ring::new(memory)?,
            registers,
            oldest: 0,
            free: 0,
            told: 0,
            ends: [0; ENTRIES as usize],
            context: None,
            waits_since: 0,
            is_moving: false,
        })
    }

    /// After a reset: what was on its way is lost.
    pub fn begin(&mut self, now: u64) {
        (self.oldest, self.free, self.told) = (0, 0, 0);
        (self.context, self.waits_since, self.is_moving) = (None, now, false);
    }

    /// Puts a copy of the frame, in these parts, into the ring. None: there is no room, or the
    /// controller can't do that.
    pub fn put(&mut self, parts: &[Span], task: Task) -> Option<()> {
        let bytes = parts.iter().map(Span::len).sum::<u64>();
        // The part pads no frame that is below 17 bytes (8.12.1, PSP), and what pads it is ours.
        let whole = match task {
            Task::Segments { .. } => bytes,
            _ => bytes.max(LEAST),
        };
        let encoded = task.encoded(u32::try_from(whole).ok()?)?;
        let context = encoded.context.filter(|context| self.context != Some(*context));
        let data = whole.div_ceil(BUFFER) as u32;
        self.reclaim();
        let taken = (self.free + ENTRIES - self.oldest) % ENTRIES;
        if data + u32::from(context.is_some()) >= ENTRIES - taken {
            return None;
        }
        self.write(parts, (bytes, whole), task, (context, encoded)).ok()
    }

    fn write(
        &mut self,
        parts: &[Span],
        (bytes, whole): (u64, u64),
        task: Task,
        (context, encoded): (Option<[u64; 2]>, Encoded),
    ) -> Result<(), Outside> {
        let first = self.free;
        let start = if context.is_some() { after(first) } else { first };
        self.copy(parts, start)?;
        let buffer = self.ring.buffer(start)?;
        if bytes < whole {
            buffer.sub(bytes, whole - bytes).ok_or(Outside)?.fill(0);
        }
        task.prepare(&buffer).ok_or(Outside)?;
        if let Some(words) = context {
            self.ring.set(first, words)?;
            self.context = context;
        }
        let (mut entry, mut left, mut what) = (start, whole, encoded.first);
        loop {
            let here = left.min(BUFFER);
            left -= here;
            let last = if left == 0 { LAST } else { 0 };
            self.ring.offer(entry, what | last | here)?;
            if left == 0 {
                break;
            }
            (entry, what) = (after(entry), encoded.other);
        }
        if let Some(end) = self.ends.get_mut(first as usize) {
            *end = entry as u8;
        }
        self.free = after(entry);
        Ok(())
    }

    /// Copies the parts into buffers, from this entry's on. There is room.
    fn copy(&self, parts: &[Span], first: u32) -> Result<(), Outside> {
        let (mut entry, mut at) = (first, 0);
        for part in parts {
            let mut done = 0;
            while done < part.len() {
                let here = (part.len() - done).min(BUFFER - at);
                let into = self.ring.buffer(entry)?.sub(at, here).ok_or(Outside)?;
                part.sub(done, here).ok_or(Outside)?.copy_to(&into)?;
                (done, at) = (done + here, at + here);
                if at == BUFFER {
                    (entry, at) = (after(entry), 0);
                }
            }
        }
        Ok(())
    }

    /// The entries of frames that are done are free again.
    fn reclaim(&mut self) {
        // A frame has an entry at least, so there are no more of them than entries.
        for _ in 0..ENTRIES {
            let end = self.ends.get(self.oldest as usize).copied().unwrap_or_default();
            if self.oldest == self.told || !self.ring.is_sent(end.into()) {
                return;
            }
            self.oldest = after(end.into());
            self.is_moving = true;
        }
    }

    /// Tells the controller of frames that are to be sent.
    pub fn flush(&mut self, registers: &mut impl Registers) {
        if self.told != self.free {
            self.told = self.free;
            registers.write32(self.registers.tail(), self.told);
        }
    }

    /// For how long the controller has had frames and was done with none, while it could send; and
    /// whether it was done with some since the last time.
    pub fn waits(&mut self, now: u64, can_send: bool) -> (u64, bool) {
        self.reclaim();
        // What was found when a frame was put in counts as well.
        let sent = core::mem::take(&mut self.is_moving);
        if sent || !can_send || self.oldest == self.told {
            self.waits_since = now;
        }
        (now.wrapping_sub(self.waits_since), sent)
    }
}
