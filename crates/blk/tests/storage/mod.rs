//! A back end for tests: a volatile cache in front of a durable disk. It completes what it accepted
//! when the test says so, in whatever order, and can fail.
#![allow(dead_code, reason = "each test uses a part")]

use blk::{Backend, Completion, Failure, Operation, SECTOR, Submitted, Token};
use std::collections::VecDeque;
use window::Span;

/// An operation that was accepted, with its spans copied.
#[derive(Clone, Debug)]
pub enum Asked {
    Read { sector: u64, into: Vec<Span> },
    Write { sector: u64, from: Vec<Span>, durable: bool },
    Flush,
    Discard { sector: u64, sectors: u64 },
    WriteZeroes { sector: u64, sectors: u64, unmap: bool, durable: bool },
}

/// The back end.
#[derive(Debug)]
pub struct Storage {
    /// What a read finds.
    pub cache: Vec<u8>,
    /// What a crash would leave.
    pub durable: Vec<u8>,
    /// Accepted and not completed.
    pub waiting: Vec<(Token, Asked)>,
    /// Completed, and not polled yet.
    pub done: VecDeque<Completion>,
    /// Operations that it has room for; 0: each is done at once.
    pub room: usize,
    /// How the next operations end, OK if none is left.
    pub failures: VecDeque<Option<Failure>>,
    /// All that was asked for, refused ones not.
    pub asked: Vec<Asked>,
    /// How often it was asked for something else that it had no room for.
    pub refused: u32,
    /// The largest operations, in bytes: data, and ranges.
    pub largest: (u64, u64),
}

impl Storage {
    pub fn new(sectors: u64, room: usize) -> Storage {
        let bytes = vec![0; (sectors * SECTOR) as usize];
        Storage {
            cache: bytes.clone(),
            durable: bytes,
            waiting: Vec::new(),
            done: VecDeque::new(),
            room,
            failures: VecDeque::new(),
            asked: Vec::new(),
            refused: 0,
            largest: (0, 0),
        }
    }

    /// Ends the accepted operation at this place of the list.
    pub fn end(&mut self, place: usize) {
        let (token, asked) = self.waiting.swap_remove(place);
        let result = self.carry_out(&asked);
        self.done.push_back(Completion { token, result });
    }

    /// Ends all accepted operations, the last one first.
    pub fn end_all(&mut self) {
        while !self.waiting.is_empty() {
            self.end(self.waiting.len() - 1);
        }
    }

    fn part(sector: u64, len: u64) -> std::ops::Range<usize> {
        (sector * SECTOR) as usize..(sector * SECTOR + len) as usize
    }

    fn carry_out(&mut self, asked: &Asked) -> Result<(), Failure> {
        if let Some(failure) = self.failures.pop_front().flatten() {
            return Err(failure);
        }
        match asked {
            Asked::Read { sector, into } => {
                let mut at = *sector * SECTOR;
                for span in into {
                    let part = at as usize..(at + span.len()) as usize;
                    span.write(0, &self.cache[part]).unwrap();
                    at += span.len();
                }
            }
            Asked::Write { sector, from, durable } => {
                let mut at = *sector * SECTOR;
                for span in from {
                    let part = at as usize..(at + span.len()) as usize;
                    span.read(0, &mut self.cache[part.clone()]).unwrap();
                    if *durable {
                        self.durable[part.clone()].copy_from_slice(&self.cache[part]);
                    }
                    at += span.len();
                }
            }
            Asked::Flush => self.durable.copy_from_slice(&self.cache),
            // What a discard leaves isn't said: here something that nobody wrote.
            Asked::Discard { sector, sectors } => {
                self.cache[Self::part(*sector, *sectors * SECTOR)].fill(0xdd);
            }
            Asked::WriteZeroes { sector, sectors, durable, .. } => {
                let part = Self::part(*sector, *sectors * SECTOR);
                self.cache[part.clone()].fill(0);
                if *durable {
                    self.durable[part].fill(0);
                }
            }
        }
        Ok(())
    }
}

impl Backend for Storage {
    fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        if self.room > 0 && self.waiting.len() >= self.room {
            self.refused += 1;
            return Submitted::Full;
        }
        let size = |spans: &[Span]| spans.iter().map(Span::len).sum::<u64>();
        let asked = match operation {
            Operation::Read { sector, into } => {
                self.largest.0 = self.largest.0.max(size(into));
                Asked::Read { sector, into: into.to_vec() }
            }
            Operation::Write { sector, from, durable } => {
                self.largest.0 = self.largest.0.max(size(from));
                Asked::Write { sector, from: from.to_vec(), durable }
            }
            Operation::Flush => Asked::Flush,
            Operation::Discard { sector, sectors } => {
                self.largest.1 = self.largest.1.max(sectors * SECTOR);
                Asked::Discard { sector, sectors }
            }
            Operation::WriteZeroes { sector, sectors, unmap, durable } => {
                self.largest.1 = self.largest.1.max(sectors * SECTOR);
                Asked::WriteZeroes { sector, sectors, unmap, durable }
            }
        };
        self.asked.push(asked.clone());
        if self.room == 0 {
            return Submitted::Done(self.carry_out(&asked));
        }
        self.waiting.push((token, asked));
        Submitted::Accepted
    }

    fn poll(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
}
