//! The controller: operations in, completions out. How it starts and stops is in `phase`.

use arrayvec::ArrayVec;
use blk::{Completion, Failure, Operation, PIECE_DATA, Submitted, Token};
use window::Span;

use crate::bounce::Bounces;
use crate::command::Command;
use crate::fault::Fault;
use crate::identify::{Namespace, Traits};
use crate::memory::{IO, Shared};
use crate::part::{BadPart, Blocks, Part};
use crate::phase::{Phase, Times};
use crate::prp::{self, Cut};
use crate::registers::{CAP, Capabilities, Registers};
use crate::slots::{Ended, MOST_DISKS, NO_BOUNCE, Slots};

/// Completions that are nobody's, that one call passes over at most.
const MOST_STRAYS: u32 = 64;
/// Most blocks of a command (NLB is 16 bits, less one).
const MOST_BLOCKS: u32 = 1 << 16;

/// What happened since the controller was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// I/O commands that the controller was given.
    pub commands: u64,
    /// Of them, those that it failed.
    pub failed: u64,
    /// The status of the last that it failed, code and type.
    pub last_failure: u16,
    /// Operations whose data was copied.
    pub copied: u64,
    /// Completions that no command waited for.
    pub strays: u64,
    /// Resets because something was wrong.
    pub resets: u64,
}

/// A controller and its disks.
#[derive(Debug)]
pub struct Controller<R> {
    pub(crate) registers: R,
    pub(crate) capabilities: Capabilities,
    /// From one doorbell to the next.
    pub(crate) stride: u32,
    pub(crate) shared: Shared,
    bounces: Bounces,
    pub(crate) slots: Slots,
    disks: ArrayVec<Part, MOST_DISKS>,
    pub(crate) traits: Option<Traits>,
    pub(crate) namespace: Option<Namespace>,
    pub(crate) phase: Phase,
    pub(crate) times: Times,
    pub(crate) now: u64,
    /// When to look next whether all is well.
    pub(crate) look_at: u64,
    /// Resets since the last command that succeeded.
    pub(crate) resets_in_a_row: u32,
    pub(crate) fault: Option<Fault>,
    /// Nobody has asked for the fault yet.
    pub(crate) untold: bool,
    pub(crate) statistics: Statistics,
}

impl<R: Registers> Controller<R> {
    /// Begins to start the controller, with [`crate::MEMORY`] bytes of memory that is for nothing
    /// else. Nothing if the memory is too short, or doesn't begin at a page's start. `now`: as all
    /// times, in ticks of the caller's clock.
    pub fn new(mut registers: R, memory: Span, times: Times, now: u64) -> Option<Self> {
        let shared = Shared::new(memory)?;
        let capabilities = Capabilities(registers.read64(CAP));
        let mut made = Self {
            registers,
            capabilities,
            stride: capabilities.stride(),
            bounces: Bounces::new(shared.bounces),
            shared,
            slots: Slots::new(),
            disks: ArrayVec::new(),
            traits: None,
            namespace: None,
            phase: Phase::Off,
            times,
            now,
            look_at: now,
            resets_in_a_row: 0,
            fault: None,
            untold: false,
            statistics: Statistics::default(),
        };
        made.begin();
        Some(made)
    }

    /// Adds a disk, once the controller runs. Its number is what [`Self::poll`] tells it by.
    ///
    /// # Errors
    ///
    /// [`BadPart`] if the namespace has no such part.
    pub fn add_disk(&mut self, part: Part) -> Result<u16, BadPart> {
        let namespace = self.namespace.as_ref().ok_or(BadPart::NotReady)?;
        part.check(namespace)?;
        if self.disks.is_full() || self.slots.used() > 0 {
            return Err(BadPart::TooMany);
        }
        let number = self.slots.add_disk().ok_or(BadPart::TooMany)?;
        self.disks.push(part);
        Ok(number)
    }

    /// The namespace, once it is known.
    pub fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// What happened so far.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Operations that wait for the controller, by their commands.
    pub fn under_way(&self) -> usize {
        self.slots.used()
    }

    /// The next operation of any disk that ended, with the disk's number.
    #[inline]
    pub fn poll(&mut self) -> Option<(u16, Completion)> {
        let ended = match self.phase {
            Phase::Running => self.completed()?,
            Phase::Failing { .. } => self.next_failed()?,
            _ => return None,
        };
        if ended.bounce != NO_BOUNCE {
            self.bounces.done(ended.bounce, ended.result.is_ok());
        }
        Some((ended.disk, Completion { token: ended.token, result: ended.result }))
    }

    #[inline]
    fn completed(&mut self) -> Option<Ended> {
        let mut strays = 0;
        while strays < MOST_STRAYS {
            let entry = self.shared.io.take()?;
            let code = entry.code();
            let known = if entry.queue == IO {
                self.slots.complete(entry.id, outcome(code)).ok()
            } else {
                None
            };
            match known {
                None => {
                    self.statistics.strays += 1;
                    strays += 1;
                    continue;
                }
                Some(_) if code != 0 => {
                    self.statistics.failed += 1;
                    self.statistics.last_failure = code;
                }
                Some(_) => self.resets_in_a_row = 0,
            }
            if let Some(Some(ended)) = known {
                return Some(ended);
            }
        }
        None
    }

    /// Asks for an operation of a disk.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        disk: u16,
        token: Token,
        operation: Operation<'_>,
    ) -> Submitted {
        match self.phase {
            Phase::Running => {}
            Phase::Dead | Phase::ShuttingDown { .. } | Phase::ShutDown => {
                return Submitted::Done(Err(Failure::Io));
            }
            _ => return Submitted::Full,
        }
        let (Some(part), Some(namespace), Some(traits)) =
            (self.disks.get(usize::from(disk)).copied(), self.namespace, self.traits)
        else {
            return Submitted::Done(Err(Failure::Io));
        };
        let ask = Ask { disk, token, part, namespace, traits };
        let done = match operation {
            Operation::Read { sector, into } => self.transfer(&ask, sector, into, None),
            Operation::Write { sector, from, durable } => {
                self.transfer(&ask, sector, from, Some(durable))
            }
            // Without a volatile cache what is completed is durable.
            Operation::Flush if !traits.cache => return Submitted::Done(Ok(())),
            Operation::Flush => self.one(&ask, |_| Some(Command::flush(namespace.id))),
            Operation::Discard { sector, sectors } => self.discard(&ask, sector, sectors),
            Operation::WriteZeroes { sector, sectors, unmap, durable } if traits.zeroes => {
                ask.range(sector, sectors).and_then(|Blocks { first, count }| {
                    let unmap = unmap && namespace.zeroes_by_deallocating;
                    let command = Command::write_zeroes(namespace.id, first, count, unmap, durable);
                    self.one(&ask, |_| Some(command))
                })
            }
            Operation::WriteZeroes { .. } => Err(Refused::Failed(Failure::Unsupported)),
        };
        match done {
            Ok(()) => Submitted::Accepted,
            Err(Refused::Full) => Submitted::Full,
            Err(Refused::Failed(failure)) => Submitted::Done(Err(failure)),
        }
    }

    fn discard(&mut self, ask: &Ask, sector: u64, sectors: u64) -> Result<(), Refused> {
        if !ask.traits.deallocates {
            return Err(Refused::Failed(Failure::Unsupported));
        }
        let Blocks { first, count } = ask.range(sector, sectors)?;
        self.one(ask, |list| {
            // A range: no attributes, how many, the first (NVM Command Set Specification, 3.2.3).
            list.store_u64(0, u64::from(count) << 32).ok()?;
            list.store_u64(8, first).ok()?;
            Some(Command::deallocate(ask.namespace.id, list.dma()))
        })
    }

    /// An operation of one command without data, made with the slot's list to write to.
    fn one(
        &mut self,
        ask: &Ask,
        make: impl FnOnce(&Span) -> Option<Command>,
    ) -> Result<(), Refused> {
        let mut made = self.slots.begin(ask.operation(NO_BOUNCE), 1).ok_or(Refused::Full)?;
        // The list of the slot that comes next: nothing is taken before there is a command.
        let list = self.slots.next_slot().and_then(|slot| self.shared.list(slot));
        let list = list.ok_or(Refused::IMPOSSIBLE)?;
        let command = make(&list).ok_or(Refused::IMPOSSIBLE)?;
        self.push(ask, &mut made, command)
    }

    /// A read, or a write: `durable` then says whether it is to be.
    #[inline]
    fn transfer(
        &mut self,
        ask: &Ask,
        sector: u64,
        spans: &[Span],
        durable: Option<bool>,
    ) -> Result<(), Refused> {
        let bytes = spans.iter().fold(0u64, |sum, span| sum.saturating_add(span.len()));
        let blocks = ask.part.blocks(sector, bytes, ask.namespace.block_shift);
        let blocks = blocks.filter(|_| bytes <= PIECE_DATA.into());
        let blocks = blocks.ok_or(Refused::Failed(Failure::Io))?;
        let most = ask.traits.most_bytes;
        if let Some(cut) = prp::cut_one(spans, most) {
            let made = self.slots.begin(ask.operation(NO_BOUNCE), 1);
            let mut made = made.ok_or(Refused::Full)?;
            return self.push_all(ask, &mut made, blocks.first, spans, &[cut], durable);
        }
        self.transfer_otherwise(ask, blocks.first, bytes, spans, durable)
    }

    /// The same of data that isn't one span of one command.
    #[inline(never)]
    fn transfer_otherwise(
        &mut self,
        ask: &Ask,
        first: u64,
        bytes: u64,
        spans: &[Span],
        durable: Option<bool>,
    ) -> Result<(), Refused> {
        match prp::cut(spans, ask.namespace.block(), ask.traits.most_bytes) {
            Some(cuts) => {
                let made = self.slots.begin(ask.operation(NO_BOUNCE), cuts.len());
                let mut made = made.ok_or(Refused::Full)?;
                self.push_all(ask, &mut made, first, spans, &cuts, durable)
            }
            None => self.copied(ask, first, spans, bytes, durable),
        }
    }

    /// The same with the data in a buffer.
    #[cold]
    fn copied(
        &mut self,
        ask: &Ask,
        first: u64,
        spans: &[Span],
        bytes: u64,
        durable: Option<bool>,
    ) -> Result<(), Refused> {
        let most = ask.traits.most_bytes;
        let count = bytes.div_ceil(most.into()) as usize;
        if !self.slots.has_room(ask.disk, count) {
            return Err(Refused::Full);
        }
        let buffer = match durable {
            None => self.bounces.for_read(spans, bytes),
            Some(_) => self.bounces.for_write(spans, bytes),
        };
        let (bounce, buffer) = buffer.ok_or(Refused::Full)?;
        let cuts = prp::cut(&[buffer], ask.namespace.block(), most).ok_or(Refused::IMPOSSIBLE)?;
        let made = self.slots.begin(ask.operation(bounce), cuts.len());
        let mut made = made.ok_or(Refused::IMPOSSIBLE)?;
        self.statistics.copied += 1;
        let pushed = self.push_all(ask, &mut made, first, &[buffer], &cuts, durable);
        if pushed.is_err() {
            self.bounces.done(bounce, false);
        }
        pushed
    }

    /// The commands of an operation: all of them, none, or some of one that fails then.
    #[inline]
    fn push_all(
        &mut self,
        ask: &Ask,
        made: &mut crate::slots::Operation,
        mut first: u64,
        spans: &[Span],
        cuts: &[Cut],
        durable: Option<bool>,
    ) -> Result<(), Refused> {
        let namespace = &ask.namespace;
        let mut left = cuts.len();
        for cut in cuts {
            let list = self.slots.next_slot().and_then(|slot| self.shared.list(slot));
            let prps = list.and_then(|list| prp::entries(spans, cut, &list));
            let Some(prps) = prps else { return self.give_up(made, left) };
            let count = cut.bytes >> namespace.block_shift;
            let command = match durable {
                None => Command::read(namespace.id, first, count, prps),
                Some(durable) => Command::write(namespace.id, first, count, prps, durable),
            };
            if self.push(ask, made, command).is_err() {
                return self.give_up(made, left);
            }
            left -= 1;
            first += u64::from(count);
        }
        Ok(())
    }

    /// So many commands of an operation can't be made, which the checks before exclude: what the
    /// others have is the controller's until they have ended.
    #[cold]
    fn give_up(&mut self, made: &crate::slots::Operation, left: usize) -> Result<(), Refused> {
        if self.slots.give_up(made, left) { Ok(()) } else { Err(Refused::IMPOSSIBLE) }
    }

    #[inline]
    fn push(
        &mut self,
        ask: &Ask,
        made: &mut crate::slots::Operation,
        command: Command,
    ) -> Result<(), Refused> {
        let until = self.now.wrapping_add(self.times.command);
        let id = self.slots.next(made, ask.disk, until).ok_or(Refused::IMPOSSIBLE)?;
        self.shared.io.push(command, id);
        self.statistics.commands += 1;
        Ok(())
    }
}

/// Who asks, and for what disk.
struct Ask {
    disk: u16,
    token: Token,
    part: Part,
    namespace: Namespace,
    traits: Traits,
}

impl Ask {
    fn operation(&self, bounce: u8) -> Ended {
        Ended { disk: self.disk, token: self.token, result: Ok(()), bounce }
    }

    fn range(&self, sector: u64, sectors: u64) -> Result<Blocks, Refused> {
        let bytes = sectors.checked_mul(blk::SECTOR);
        let blocks =
            bytes.and_then(|bytes| self.part.blocks(sector, bytes, self.namespace.block_shift));
        blocks.filter(|blocks| blocks.count <= MOST_BLOCKS).ok_or(Refused::Failed(Failure::Io))
    }
}

/// Why an operation wasn't taken.
enum Refused {
    Full,
    Failed(Failure),
}

impl Refused {
    /// What the checks before exclude. As a failure, so that nothing waits for it.
    const IMPOSSIBLE: Self = Self::Failed(Failure::Io);
}

/// What a status means for the operation (NVM Express Base Specification 2.0, 3.3.3.2.1).
#[inline]
fn outcome(code: u16) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        // Generic: Invalid Command Opcode.
        1 => Err(Failure::Unsupported),
        _ => Err(Failure::Io),
    }
}
