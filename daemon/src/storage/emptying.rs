//! Discards and write-zeroes, as what a file or block device does for them, one step after the
//! other.
//!
//! A block device takes whole blocks of its own alone, and a guest's sectors may be smaller. So a
//! discard is what whole blocks are in it, and of zeroes the ends that are parts of blocks are
//! written. A device that can't punch holes can make zeroes otherwise, and the other way round:
//! what it can't is found out once.
//!
//! Guarantees: no byte outside of what was asked for changes; all zeroes that were asked for are
//! there when it has ended well.

use blk::{Operation, SECTOR};
use daemon_os::Task;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use window::Span;

/// A part of it: an offset and a length, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A hole.
    Punch(u64, u64),
    /// Zeroes, with what is behind them.
    Zero(u64, u64),
    /// Zeroes are written.
    Write(u64, u64),
}

/// What a file can do, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    pub punches: bool,
    pub zeroes: bool,
}

/// What there is of it still.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Blocks(u64, u64),
    Piece(u64, u64),
}

/// One that isn't done.
#[derive(Debug)]
pub struct Emptying {
    left: VecDeque<Part>,
    is_discard: bool,
    /// What is behind the sectors may be freed.
    unmap: bool,
    durable: bool,
}

impl Emptying {
    /// Of a discard or a write-zeroes request. None if its bytes don't fit 64 bits, or it is
    /// something else. `unit`: bytes of a block.
    pub fn of(operation: Operation<'_>, unit: u64) -> Option<Emptying> {
        let (sector, sectors, is_discard, unmap, durable) = match operation {
            Operation::Discard { sector, sectors } => (sector, sectors, true, true, false),
            Operation::WriteZeroes { sector, sectors, unmap, durable } => {
                (sector, sectors, false, unmap, durable)
            }
            _ => return None,
        };
        let (from, len) = (sector.checked_mul(SECTOR)?, sectors.checked_mul(SECTOR)?);
        let to = from.checked_add(len)?;
        let first = from.checked_next_multiple_of(unit)?.min(to);
        let last = (to - to % unit).max(first);
        let parts = [
            (!is_discard).then_some(Part::Piece(from, first - from)),
            Some(Part::Blocks(first, last - first)),
            (!is_discard).then_some(Part::Piece(last, to - last)),
        ];
        let is_there = |part: &Part| matches!(part, Part::Blocks(_, 1..) | Part::Piece(_, 1..));
        let left = parts.into_iter().flatten().filter(is_there).collect();
        Some(Emptying { left, is_discard, unmap, durable })
    }

    /// What is to be done now; none: it has ended well.
    ///
    /// # Errors
    ///
    /// The file can't do it.
    pub fn next(&self, ways: Ways) -> Result<Option<Step>, Errno> {
        Ok(match self.left.front() {
            None => None,
            Some(&Part::Piece(at, len)) => Some(Step::Write(at, len)),
            Some(&Part::Blocks(at, len)) => match (ways.punches, ways.zeroes) {
                (true, _) if self.unmap => Some(Step::Punch(at, len)),
                (_, true) if !self.is_discard => Some(Step::Zero(at, len)),
                (true, _) => Some(Step::Punch(at, len)),
                _ => return Err(Errno::OPNOTSUPP),
            },
        })
    }

    /// This step has ended so. What it says of the file is noted; if there is another way, that is
    /// the next step.
    ///
    /// # Errors
    ///
    /// It failed.
    pub fn ended(&mut self, step: Step, result: io::Result<()>, ways: &mut Ways) -> io::Result<()> {
        let can_not =
            |error: &io::Error| error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error());
        match (step, result) {
            (_, Ok(())) => drop(self.left.pop_front()),
            (Step::Punch(..), Err(error)) if can_not(&error) => ways.punches = false,
            (Step::Zero(..), Err(error)) if can_not(&error) => ways.zeroes = false,
            (_, Err(error)) => return Err(error),
        }
        Ok(())
    }

    /// A step as a task. `zeroes`: one, as long as a block.
    pub fn task<'a>(&self, step: Step, zeroes: &'a mut [Span; 1]) -> Option<Task<'a>> {
        let durable = self.durable;
        Some(match step {
            Step::Punch(offset, len) => Task::Punch { offset, len, durable },
            Step::Zero(offset, len) => Task::Zero { offset, len, durable },
            Step::Write(offset, len) => {
                zeroes[0] = zeroes[0].sub(0, len)?;
                Task::Write { offset, from: zeroes, durable }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Step::{Punch, Write, Zero};

    const ALL: Ways = Ways { punches: true, zeroes: true };

    /// All its steps, where these can't be done; and whether it ended well.
    fn run(operation: Operation<'_>, unit: u64, real: Ways, known: &mut Ways) -> (Vec<Step>, bool) {
        let mut one = Emptying::of(operation, unit).expect("it fits");
        let mut steps = Vec::new();
        loop {
            let step = match one.next(*known) {
                Ok(Some(step)) => step,
                Ok(None) => return (steps, true),
                Err(_) => return (steps, false),
            };
            steps.push(step);
            assert!(steps.len() < 9, "it never ends: {steps:?}");
            let can = match step {
                Punch(..) => real.punches,
                Zero(..) => real.zeroes,
                Write(..) => true,
            };
            let result = if can { Ok(()) } else { Err(Errno::OPNOTSUPP.into()) };
            one.ended(step, result, known).expect("there is another way, or none");
        }
    }

    fn zeroes(sector: u64, sectors: u64, unmap: bool) -> Operation<'static> {
        Operation::WriteZeroes { sector, sectors, unmap, durable: true }
    }

    #[test]
    fn whole_blocks_are_asked_for_and_ends_written() {
        let steps = |operation, unit| run(operation, unit, ALL, &mut { ALL }).0;
        let discard = |sector, sectors| Operation::Discard { sector, sectors };
        // Sectors 1 to 24 of blocks of 8.
        assert_eq!(steps(discard(1, 24), 4096), [Punch(4096, 8192)]);
        assert_eq!(steps(discard(8, 16), 4096), [Punch(4096, 8192)]);
        for (sector, sectors) in [(1, 7), (1, 14), (9, 1)] {
            assert_eq!(steps(discard(sector, sectors), 4096), [], "no whole block is in it");
        }
        let cut = [Write(512, 3584), Zero(4096, 8192), Write(12288, 512)];
        assert_eq!(steps(zeroes(1, 24, false), 4096), cut);
        assert_eq!(steps(zeroes(8, 8, true), 4096), [Punch(4096, 4096)]);
        assert_eq!(steps(zeroes(1, 1, false), 4096), [Write(512, 512)]);
        assert_eq!(steps(zeroes(7, 2, false), 4096), [Write(3584, 512), Write(4096, 512)]);
        // A file takes any.
        assert_eq!(steps(zeroes(1, 24, false), 1), [Zero(512, 24 << 9)]);
        assert_eq!(steps(discard(1, 24), 1), [Punch(512, 24 << 9)]);
        assert!(Emptying::of(discard(u64::MAX / 512, 1), 4096).is_none());
        assert!(Emptying::of(Operation::Flush, 4096).is_none());
    }

    /// What a discard can't says nothing of zeroes; and zeroes are made in the other way.
    #[test]
    fn what_a_file_cant_is_done_otherwise() {
        let discard = Operation::Discard { sector: 0, sectors: 8 };
        let real = Ways { punches: false, zeroes: true };
        let mut known = ALL;
        assert_eq!(run(discard, 512, real, &mut known), (vec![Punch(0, 4096)], false));
        for unmap in [false, true] {
            let one = run(zeroes(0, 8, unmap), 512, real, &mut known);
            assert_eq!(one, (vec![Zero(0, 4096)], true));
        }
        assert_eq!(run(discard, 512, real, &mut known), (vec![], false), "it is known");
        let both = vec![Punch(0, 4096), Zero(0, 4096)];
        assert_eq!(run(zeroes(0, 8, true), 512, real, &mut { ALL }), (both, true));
        let real = Ways { punches: true, zeroes: false };
        let mut known = ALL;
        let both = vec![Zero(0, 4096), Punch(0, 4096)];
        assert_eq!(run(zeroes(0, 8, false), 512, real, &mut known), (both, true));
        assert_eq!(run(zeroes(0, 8, false), 512, real, &mut known).0, [Punch(0, 4096)]);
        let none = Ways { punches: false, zeroes: false };
        assert!(!run(zeroes(0, 8, false), 512, none, &mut { ALL }).1);
        let mut one = Emptying::of(zeroes(0, 8, false), 512).expect("it fits");
        let failed = one.ended(Zero(0, 4096), Err(Errno::IO.into()), &mut { ALL });
        assert!(failed.is_err());
    }
}
