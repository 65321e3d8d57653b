//! A controller: it is reset, started, looked after, and gives and takes frames.

use crate::registers::{
    AT_ONCE, CTRL, EIMC, ENABLE, FORCED, GONE, IMC, LINK, LINK_UP, MDIC, NEGOTIATE, ONE_BUFFER,
    RCTL, RECEIVE, RESET, RX, Registers, SRRCTL, STATUS, TCTL, TRANSMIT, TX,
};
use crate::ring::{self, Arrived, ENTRIES, Ring, after};
use crate::{LEAST, MOST};
use thiserror::Error;
use window::{Outside, Span};

/// Bytes of memory that a controller needs, from a page's start on.
pub const MEMORY: u64 = 2 * ring::BYTES;
/// Milliseconds after a reset in which nothing is accessed (datasheet, 4.3.1: 1 ms).
const SETTLE: u64 = 10;
/// Milliseconds that a part of the start may take.
const PATIENCE: u64 = 1000;
/// Bad frames that one call passes over.
const MOST_BAD: u32 = 8;
/// Milliseconds from one look at the link to the next.
const LOOK: u64 = 10;

/// Why a controller isn't used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// Its registers read as all ones.
    #[error("it is gone")]
    Gone,
    /// CTRL.RST stays set.
    #[error("its reset doesn't end")]
    Reset,
    /// RXDCTL.ENABLE or TXDCTL.ENABLE stays clear.
    #[error("its queues don't start")]
    Queues,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is being reset and started.
    Starting,
    /// Frames come and go, while the link is up.
    Running,
    /// It isn't used any more.
    Dead(Fault),
}

/// What happened since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames that were received.
    pub received: u64,
    /// Frames that were received and dropped: longer than [`MOST`], damaged, or without an end.
    pub bad: u64,
    /// Frames that were handed to the controller.
    pub sent: u64,
    /// Frames that weren't: the ring was full, the link down, or they are longer than [`MOST`].
    pub unsent: u64,
}

/// What is waited for, and until when.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Nothing is accessed until then.
    Settling(u64),
    /// CTRL.RST.
    Resetting(u64),
    /// The enable bits of both queues.
    Enabling(u64),
    Running,
    Dead(Fault),
}

/// A controller.
#[derive(Debug)]
pub struct Controller<R> {
    registers: R,
    receive: Ring,
    transmit: Ring,
    /// Ticks of a millisecond.
    millisecond: u64,
    phase: Phase,
    /// When the link is looked at next.
    look_at: u64,
    link: bool,
    /// The entry whose frame is received next; those before it are the controller's again.
    next: u32,
    /// The last receive entry that the controller knows to be its own.
    returned: u32,
    /// The pieces of a frame in several buffers go on.
    within: bool,
    /// The oldest transmit entry that isn't done, the next free one, and what the controller knows
    /// of that.
    oldest: u32,
    free: u32,
    told: u32,
    statistics: Statistics,
}

impl<R: Registers> Controller<R> {
    /// Begins to reset the controller, with [`MEMORY`] bytes of memory that is for nothing else.
    /// Nothing if the memory is too short, or doesn't begin at a page's start. `now`: as all times,
    /// in ticks of the caller's clock, of which a millisecond has so many.
    pub fn new(mut registers: R, memory: Span, millisecond: u64, now: u64) -> Option<Self> {
        if !memory.dma().is_multiple_of(4096) {
            return None;
        }
        let receive = Ring::new(&memory)?;
        let transmit = Ring::new(&memory.sub(ring::BYTES, ring::BYTES)?)?;
        registers.write32(IMC, u32::MAX);
        registers.write32(EIMC, u32::MAX);
        registers.write32(RCTL, 0);
        registers.write32(TCTL, 0);
        let control = registers.read32(CTRL);
        registers.write32(CTRL, control | RESET);
        let settled = now.wrapping_add(SETTLE.saturating_mul(millisecond));
        Some(Self {
            registers,
            receive,
            transmit,
            millisecond,
            phase: Phase::Settling(settled),
            look_at: now,
            link: false,
            next: 0,
            returned: 0,
            within: false,
            oldest: 0,
            free: 0,
            told: 0,
            statistics: Statistics::default(),
        })
    }

    /// How far it is.
    pub fn state(&self) -> State {
        match self.phase {
            Phase::Settling(_) | Phase::Resetting(_) | Phase::Enabling(_) => State::Starting,
            Phase::Running => State::Running,
            Phase::Dead(fault) => State::Dead(fault),
        }
    }

    /// Whether the link is up, as of the last look.
    pub fn link(&self) -> bool {
        self.link
    }

    /// What happened so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Goes on with the start, or looks after the controller when that is due. To be called often.
    #[inline]
    pub fn step(&mut self, now: u64) {
        if is_before(now, self.look_at) {
            return;
        }
        self.look_at = match self.phase {
            Phase::Running => now.wrapping_add(LOOK.saturating_mul(self.millisecond)),
            _ => now,
        };
        self.look(now);
    }

    #[cold]
    fn look(&mut self, now: u64) {
        let deadline = now.wrapping_add(PATIENCE.saturating_mul(self.millisecond));
        self.phase = match self.phase {
            Phase::Settling(until) if is_before(now, until) => return,
            Phase::Settling(_) => Phase::Resetting(deadline),
            Phase::Resetting(until) => match self.registers.read32(CTRL) {
                GONE => self.dead(Fault::Gone),
                control if control & RESET != 0 => self.late(now, until, Fault::Reset),
                control => match self.set_up(control) {
                    Ok(()) => Phase::Enabling(deadline),
                    // The rings are in the memory: this doesn't happen.
                    Err(Outside) => self.dead(Fault::Queues),
                },
            },
            Phase::Enabling(until) => {
                match self.registers.read32(RX.control()) & self.registers.read32(TX.control()) {
                    GONE => self.dead(Fault::Gone),
                    both if both & ENABLE == 0 => self.late(now, until, Fault::Queues),
                    _ => {
                        self.registers.write32(RX.tail(), self.returned);
                        self.registers.write32(RCTL, RECEIVE);
                        self.registers.write32(TCTL, TRANSMIT);
                        self.see_link();
                        Phase::Running
                    }
                }
            }
            Phase::Running => match self.see_link() {
                true => Phase::Running,
                false => self.dead(Fault::Gone),
            },
            Phase::Dead(_) => return,
        }
    }

    fn late(&mut self, now: u64, until: u64, fault: Fault) -> Phase {
        if is_before(now, until) { self.phase } else { self.dead(fault) }
    }

    /// Looks at the link. False: nothing answers.
    fn see_link(&mut self) -> bool {
        let status = self.registers.read32(STATUS);
        self.link = status != GONE && status & LINK != 0;
        status != GONE
    }

    fn dead(&mut self, fault: Fault) -> Phase {
        self.link = false;
        // It may hear that, whatever it doesn't answer.
        self.registers.write32(RCTL, 0);
        self.registers.write32(TCTL, 0);
        Phase::Dead(fault)
    }

    /// After a reset: both queues, with all receive buffers but one.
    fn set_up(&mut self, control: u32) -> Result<(), Outside> {
        self.registers.write32(IMC, u32::MAX);
        self.registers.write32(EIMC, u32::MAX);
        self.registers.write32(CTRL, control & !FORCED | LINK_UP);
        // A reset of the controller isn't one of its PHY, which may be in any state.
        self.registers.write32(MDIC, NEGOTIATE);
        (0..ENTRIES).try_for_each(|entry| self.receive.offer(entry))?;
        self.returned = ENTRIES - 1;
        for (ring, registers) in [(&self.receive, RX), (&self.transmit, TX)] {
            let at = ring.dma();
            self.registers.write32(registers.base(), at as u32);
            self.registers.write32(registers.base() + 4, (at >> 32) as u32);
            self.registers.write32(registers.len(), ring.bytes());
        }
        self.registers.write32(SRRCTL, ONE_BUFFER);
        for queue in [RX, TX] {
            self.registers.write32(queue.control(), ENABLE | AT_ONCE);
        }
        Ok(())
    }

    /// Copies the next frame that was received to the start of `into`, which has [`MOST`] bytes at
    /// least. Gives its length; nothing if there is none, or there are bad ones alone.
    #[inline]
    pub fn receive(&mut self, into: &Span) -> Option<u32> {
        if !matches!(self.phase, Phase::Running) {
            return None;
        }
        for _ in 0..MOST_BAD {
            let arrived = self.receive.arrived(self.next)?;
            let copied = self.take(arrived, into);
            // Whatever it was, the buffer is the controller's again.
            if self.receive.offer(self.next).is_err() {
                return None;
            }
            self.next = after(self.next);
            match copied {
                Some(bytes) => {
                    self.statistics.received += 1;
                    return Some(bytes);
                }
                None => self.statistics.bad += 1,
            }
        }
        None
    }

    /// Copies what arrived in the next buffer, if it is a whole frame.
    fn take(&mut self, Arrived { bytes, end, good }: Arrived, into: &Span) -> Option<u32> {
        let rest = core::mem::replace(&mut self.within, !end);
        if rest || !end || !good || bytes == 0 || bytes > MOST {
            return None;
        }
        let from = self.receive.buffer(self.next).ok()?.sub(0, bytes.into())?;
        from.copy_to(&into.sub(0, bytes.into())?).ok()?;
        Some(bytes)
    }

    /// Sends a copy of the frame: the controller hears of it by [`Self::flush`]. False: it was
    /// dropped.
    #[inline]
    pub fn send(&mut self, frame: &Span) -> bool {
        let sent = self.link && frame.len() <= MOST.into() && self.put(frame).is_some();
        let count = if sent { &mut self.statistics.sent } else { &mut self.statistics.unsent };
        *count += 1;
        sent
    }

    fn put(&mut self, frame: &Span) -> Option<()> {
        while self.oldest != self.free && self.transmit.is_sent(self.oldest) {
            self.oldest = after(self.oldest);
        }
        if after(self.free) == self.oldest {
            return None;
        }
        let buffer = self.transmit.buffer(self.free).ok()?;
        frame.copy_to(&buffer.sub(0, frame.len())?).ok()?;
        // The part pads no frame that is below 17 bytes (8.12.1, PSP), and what pads it is ours.
        let bytes = frame.len().max(LEAST);
        buffer.sub(frame.len(), bytes - frame.len())?.fill(0);
        self.transmit.fill(self.free, bytes as u32).ok()?;
        self.free = after(self.free);
        Some(())
    }

    /// Tells the controller of frames that are to be sent, and gives it the buffers of those that
    /// were received.
    #[inline]
    pub fn flush(&mut self) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        if self.told != self.free {
            self.told = self.free;
            self.registers.write32(TX.tail(), self.told);
        }
        // The buffer before the next one was emptied last.
        let last = (self.next + ENTRIES - 1) % ENTRIES;
        if self.returned != last {
            self.returned = last;
            self.registers.write32(RX.tail(), last);
        }
    }
}

/// Is a time before another, of a clock that may wrap?
fn is_before(now: u64, then: u64) -> bool {
    (now.wrapping_sub(then) as i64) < 0
}
