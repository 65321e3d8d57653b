//! A controller: it is reset, started, looked after, and gives and takes frames.
//!
//! A transmit queue that has frames and sends none hangs. The controller is reset then, as a whole:
//! that alone is sure to have it let go of a frame (datasheet, 4.3). What was on its way is lost.

use crate::receive::Receive;
use crate::registers::{
    AT_ONCE, BY_HASH, CTRL, EIMC, ENABLE, FORCED, GONE, HASHES, IMC, LINK, LINK_UP, MDIC, MRQC,
    NEGOTIATE, ONE_BUFFER, PAUSED, QueueRegisters, RCTL, RECEIVE, RESET, RETA, RETA_WORDS, RSSRK,
    RSSRK_WORDS, RXCSUM, Registers, STATUS, TCTL, TRANSMIT, rx, tx,
};
use crate::ring::{self, Ring};
use crate::task::Task;
use crate::transmit::Transmit;
use thiserror::Error;
use window::{Outside, Span};

/// Queues each way.
pub const QUEUES: usize = 4;
/// Bytes of memory that a controller needs, from a page's start on.
pub const MEMORY: u64 = 2 * QUEUES as u64 * ring::BYTES;
/// Milliseconds after a reset in which nothing is accessed (datasheet, 4.3.1: 1 ms).
const SETTLE: u64 = 10;
/// Milliseconds that a part of the start may take.
const PATIENCE: u64 = 1000;
/// Milliseconds from one look at the link and the queues to the next.
const LOOK: u64 = 10;
/// Milliseconds without a frame sent after which a queue hangs. The longest frames of a full ring
/// take 5 ms at the part's speed, 500 ms at 10 Mb/s.
pub const HANG: u64 = 2000;
/// Resets in a row that help nothing, before it is given up.
pub const MOST_HANGS: u32 = 4;
/// The key of the hash: a word of it is this times its number.
const KEY: u32 = 0x9E37_79B9;

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
    /// It is reset, and sends nothing.
    #[error("it sends nothing, however often it is reset")]
    Hangs,
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
    /// Frames that were received and dropped: longer than [`MOST`](crate::MOST), damaged, or
    /// without an end.
    pub bad: u64,
    /// Frames that were handed to the controller.
    pub sent: u64,
    /// Frames that weren't: the ring was full, the link down, or the controller can't send such.
    pub unsent: u64,
    /// Of the frames sent, those whose checksum the controller was to make, and those that it was
    /// to cut.
    pub summed: u64,
    /// See `summed`.
    pub cut: u64,
    /// Resets since a queue hung.
    pub hung: u64,
    /// Queues each way that were used: a bit for each of the receive queues, and from 16 on of the
    /// transmit queues.
    pub used: u32,
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
    receive: [Receive; QUEUES],
    transmit: [Transmit; QUEUES],
    /// The receive queue that is looked at next.
    turn: usize,
    /// Ticks of a millisecond.
    millisecond: u64,
    phase: Phase,
    /// When the link is looked at next.
    look_at: u64,
    link: bool,
    /// Resets since a frame was sent.
    hangs: u32,
    statistics: Statistics,
}

impl<R: Registers> Controller<R> {
    /// Begins to reset the controller, with [`MEMORY`] bytes of memory that is for nothing else.
    /// Nothing if the memory is too short, or doesn't begin at a page's start. `now`: as all times,
    /// in ticks of the caller's clock, of which a millisecond has so many.
    pub fn new(registers: R, memory: Span, millisecond: u64, now: u64) -> Option<Self> {
        if !memory.dma().is_multiple_of(4096) {
            return None;
        }
        let part = |n: u32| memory.sub(u64::from(n) * ring::BYTES, ring::BYTES);
        let receive = |n: u32| Receive::new(&part(n)?, rx(n));
        let transmit = |n: u32| Transmit::new(&part(QUEUES as u32 + n)?, tx(n));
        let mut controller = Self {
            registers,
            receive: [receive(0)?, receive(1)?, receive(2)?, receive(3)?],
            transmit: [transmit(0)?, transmit(1)?, transmit(2)?, transmit(3)?],
            turn: 0,
            millisecond,
            phase: Phase::Settling(now),
            look_at: now,
            link: false,
            hangs: 0,
            statistics: Statistics::default(),
        };
        controller.phase = controller.reset(now);
        Some(controller)
    }

    /// Begins to reset it.
    fn reset(&mut self, now: u64) -> Phase {
        self.link = false;
        self.registers.write32(IMC, u32::MAX);
        self.registers.write32(EIMC, u32::MAX);
        self.registers.write32(RCTL, 0);
        self.registers.write32(TCTL, 0);
        let control = self.registers.read32(CTRL);
        self.registers.write32(CTRL, control | RESET);
        Phase::Settling(now.wrapping_add(SETTLE.saturating_mul(self.millisecond)))
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
                control => match self.set_up(control, now) {
                    Ok(()) => Phase::Enabling(deadline),
                    // The rings are in the memory: this doesn't happen.
                    Err(Outside) => self.dead(Fault::Queues),
                },
            },
            Phase::Enabling(until) => match self.enabled() {
                GONE => self.dead(Fault::Gone),
                all if all & ENABLE == 0 => self.late(now, until, Fault::Queues),
                _ => {
                    self.receive.iter().for_each(|queue| queue.open(&mut self.registers));
                    self.registers.write32(RCTL, RECEIVE);
                    self.registers.write32(TCTL, TRANSMIT);
                    self.see_link();
                    Phase::Running
                }
            },
            Phase::Running => match self.see_link() {
                GONE => self.dead(Fault::Gone),
                status if !self.hangs(now, status) => Phase::Running,
                _ if self.hangs >= MOST_HANGS => self.dead(Fault::Hangs),
                _ => {
                    self.hangs += 1;
                    self.statistics.hung += 1;
                    self.reset(now)
                }
            },
            Phase::Dead(_) => return,
        }
    }

    fn late(&mut self, now: u64, until: u64, fault: Fault) -> Phase {
        if is_before(now, until) { self.phase } else { self.dead(fault) }
    }

    /// The control registers of all queues at once: a bit that they all have.
    fn enabled(&mut self) -> u32 {
        (0..QUEUES as u32).fold(u32::MAX, |all, n| {
            let receive = self.registers.read32(rx(n).control());
            all & receive & self.registers.read32(tx(n).control())
        })
    }

    /// Looks at the link. Gives the status.
    fn see_link(&mut self) -> u32 {
        let status = self.registers.read32(STATUS);
        self.link = status != GONE && status & LINK != 0;
        status
    }

    /// Does a transmit queue hang? Not while nothing may be sent.
    fn hangs(&mut self, now: u64, status: u32) -> bool {
        let can_send = self.link && status & PAUSED == 0;
        let bound = HANG.saturating_mul(self.millisecond);
        let mut hangs = false;
        for queue in &mut self.transmit {
            let (ticks, sent) = queue.waits(now, can_send);
            hangs |= ticks >= bound;
            if sent {
                self.hangs = 0;
            }
        }
        hangs
    }

    fn dead(&mut self, fault: Fault) -> Phase {
        self.link = false;
        // It may hear that, whatever it doesn't answer.
        self.registers.write32(RCTL, 0);
        self.registers.write32(TCTL, 0);
        Phase::Dead(fault)
    }

    /// After a reset: all queues, with all receive buffers but one of each, and which of them a
    /// frame goes to.
    fn set_up(&mut self, control: u32, now: u64) -> Result<(), Outside> {
        self.registers.write32(IMC, u32::MAX);
        self.registers.write32(EIMC, u32::MAX);
        self.registers.write32(CTRL, control & !FORCED | LINK_UP);
        // A reset of the controller isn't one of its PHY, which may be in any state.
        self.registers.write32(MDIC, NEGOTIATE);
        self.receive.iter_mut().try_for_each(Receive::begin)?;
        self.transmit.iter_mut().for_each(|queue| queue.begin(now));
        for queue in &self.receive {
            lay_out(&mut self.registers, queue.registers, &queue.ring);
            self.registers.write32(queue.registers.split(), ONE_BUFFER);
        }
        for queue in &self.transmit {
            lay_out(&mut self.registers, queue.registers, &queue.ring);
        }
        for n in 0..RSSRK_WORDS {
            self.registers.write32(RSSRK + 4 * n, KEY.wrapping_mul(n + 1));
        }
        let queues = u32::from_le_bytes(core::array::from_fn(|n| (n % QUEUES) as u8));
        for n in 0..RETA_WORDS {
            self.registers.write32(RETA + 4 * n, queues);
        }
        self.registers.write32(RXCSUM, HASHES);
        self.registers.write32(MRQC, BY_HASH);
        for n in 0..QUEUES as u32 {
            self.registers.write32(rx(n).control(), ENABLE | AT_ONCE);
            self.registers.write32(tx(n).control(), ENABLE | AT_ONCE);
        }
        Ok(())
    }

    /// Copies the next frame that was received to the start of `into`, which has
    /// [`MOST`](crate::MOST) bytes at least. Gives its length; nothing if there is none, or there
    /// are bad ones alone. The queues have their turns.
    #[inline(never)]
    pub fn receive(&mut self, into: &Span) -> Option<u32> {
        if !matches!(self.phase, Phase::Running) {
            return None;
        }
        for _ in 0..QUEUES {
            let turn = self.turn;
            self.turn = (turn + 1) % QUEUES;
            let taken = self.receive.get_mut(turn)?.take(into, &mut self.statistics.bad);
            if taken.is_some() {
                self.statistics.received += 1;
                self.statistics.used |= 1 << turn;
                return taken;
            }
        }
        None
    }

    /// Sends a copy of the frame in these parts, by one of the queues: which one is this number
    /// modulo theirs. What is to be done for it the controller does. It hears of it by
    /// [`Self::flush`]. False: it was dropped.
    #[inline(never)]
    pub fn send(&mut self, queue: u32, parts: &[Span], task: Task) -> bool {
        let number = queue as usize % QUEUES;
        let queue = self.transmit.get_mut(number).filter(|_| self.link);
        if queue.and_then(|queue| queue.put(parts, task)).is_none() {
            self.statistics.unsent += 1;
            return false;
        }
        self.statistics.sent += 1;
        self.statistics.used |= 1 << (16 + number);
        match task {
            Task::Nothing => {}
            Task::Checksum { .. } => self.statistics.summed += 1,
            Task::Segments { .. } => self.statistics.cut += 1,
        }
        true
    }

    /// Tells the controller of frames that are to be sent, and gives it the buffers of those that
    /// were received.
    #[inline(never)]
    pub fn flush(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.transmit.iter_mut().for_each(|queue| queue.flush(&mut self.registers));
            self.receive.iter_mut().for_each(|queue| queue.flush(&mut self.registers));
        }
    }
}

/// Tells where a queue's ring is.
#[inline(never)]
fn lay_out(to: &mut impl Registers, queue: QueueRegisters, ring: &Ring) {
    let at = ring.dma();
    to.write32(queue.base(), at as u32);
    to.write32(queue.base() + 4, (at >> 32) as u32);
    to.write32(queue.len(), ring.bytes());
}

/// Is a time before another, of a clock that may wrap?
fn is_before(now: u64, then: u64) -> bool {
    (now.wrapping_sub(then) as i64) < 0
}
