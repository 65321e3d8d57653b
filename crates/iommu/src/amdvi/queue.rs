//! The command buffer (48882, 2.4): requests, and waits until the unit has done them all.

use super::registers::{COMMAND_BASE, COMMAND_HEAD, COMMAND_RUN, COMMAND_TAIL, LENGTH_256, STATUS};
use crate::pages::Pages;
use crate::poll::POLLS;
use crate::tables::Tables;
use crate::{DomainId, Error, Memory, Registers};

/// Commands in a buffer of one frame.
const LENGTH: u64 = 256;
/// Bytes of a command.
const COMMAND: u64 = 16;

/// What to invalidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// The device-table entry of an id.
    Device(u16),
    /// Translations of a domain, and what was read of its page tables.
    Pages(DomainId, Pages),
    /// The interrupt entries of an id.
    Interrupts(u16),
    /// Everything.
    All,
}

impl Command {
    /// The command, low and high half (48882, 2.4.2, 2.4.3, 2.4.5, 2.4.8).
    pub(super) fn words(self) -> (u64, u64) {
        const DEVICE: u64 = 2 << 60;
        const PAGES: u64 = 3 << 60;
        const INTERRUPTS: u64 = 5 << 60;
        const ALL: u64 = 8 << 60;
        match self {
            Command::Device(id) => (DEVICE | u64::from(id), 0),
            Command::Pages(domain, pages) => (PAGES | u64::from(domain.0) << 32, range(pages)),
            Command::Interrupts(id) => (INTERRUPTS | u64::from(id), 0),
            Command::All => (ALL, 0),
        }
    }
}

/// The address of INVALIDATE_IOMMU_PAGES, with S and PDE: the lowest bit from 12 on that is clear
/// says how many pages, twice as many for each that is set.
fn range(pages: Pages) -> u64 {
    const SEVERAL: u64 = 1 << 0;
    const DIRECTORIES: u64 = 1 << 1;
    const EVERYTHING: u64 = 0x7FFF_FFFF_FFFF_F000;
    match pages {
        Pages::Block { page, order: 0 } => page << 12 | DIRECTORIES,
        Pages::Block { page, order } => {
            let size = ((1 << (order - 1)) - 1) << 12;
            page << 12 | size | SEVERAL | DIRECTORIES
        }
        Pages::None | Pages::All => EVERYTHING | SEVERAL | DIRECTORIES,
    }
}

/// The buffer.
pub struct Queue {
    base: u64,
    /// Where the unit writes that a wait is over.
    done: u64,
    tail: u64,
    sequence: u64,
    /// Requests that no wait followed yet.
    open: u64,
    failure: Option<Error>,
}

impl Queue {
    pub fn new<M: Memory>(tables: &mut Tables<M>) -> Result<Self, Error> {
        let base = tables.allocate(2)?;
        let done = base + LENGTH * COMMAND;
        Ok(Queue { base, done, tail: 0, sequence: 0, open: 0, failure: None })
    }

    /// Says where it is, to a unit that fetches no commands now.
    pub fn place(&self, regs: &mut impl Registers) {
        regs.write64(COMMAND_BASE, self.base | LENGTH_256);
        regs.write64(COMMAND_HEAD, 0);
        regs.write64(COMMAND_TAIL, 0);
    }

    /// Has the unit begin to invalidate; [`Queue::drain`] returns when it has.
    pub fn submit<R: Registers, M: Memory>(
        &mut self,
        regs: &mut R,
        tables: &mut Tables<M>,
        what: Command,
    ) -> Result<(), Error> {
        // The tail must not reach the head: room for this one, a wait and an empty place.
        if self.open + 3 > LENGTH {
            self.drain(regs, tables)?;
        }
        self.check()?;
        self.push(regs, tables, what.words());
        self.open += 1;
        Ok(())
    }

    /// Returns when the unit says that it has done everything that was submitted.
    ///
    /// Between two waits the unit may do requests in any order (48882, 2.4.1), so one that another
    /// builds upon is waited for first. Fails, for good, if the unit refuses a command, by which it
    /// stops, or doesn't answer. No device can cause either: this driver asks no device to
    /// invalidate anything.
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
        // A number that the place doesn't hold from before.
        self.sequence += 1;
        self.push(regs, tables, wait(self.done, self.sequence));
        for _ in 0..POLLS {
            if tables.read(self.done) == self.sequence {
                return Ok(());
            }
            let status = regs.read64(STATUS);
            if status & COMMAND_RUN == 0 {
                return self.refused(status);
            }
            core::hint::spin_loop();
        }
        self.fail(Error::Timeout { what: "complete an invalidation", polls: POLLS })
    }

    /// The unit said that it couldn't carry out a command.
    pub fn refused(&mut self, status: u64) -> Result<(), Error> {
        self.fail(Error::InvalidationFailed { status: status as u32 })
    }

    #[cold]
    fn fail(&mut self, error: Error) -> Result<(), Error> {
        self.failure = Some(error);
        Err(error)
    }

    /// Whether every invalidation so far was completed. After one that wasn't, nobody knows what
    /// the unit still has cached, so nothing more is begun.
    pub fn check(&self) -> Result<(), Error> {
        self.failure.map_or(Ok(()), Err)
    }

    fn push<R: Registers, M: Memory>(
        &mut self,
        regs: &mut R,
        tables: &mut Tables<M>,
        (low, high): (u64, u64),
    ) {
        let pa = self.base + self.tail * COMMAND;
        tables.write(pa, low);
        tables.write(pa + 8, high);
        self.tail = (self.tail + 1) % LENGTH;
        regs.write64(COMMAND_TAIL, self.tail * COMMAND);
    }
}

/// COMPLETION_WAIT (48882, 2.4.1): a store (S), no interrupt.
fn wait(at: u64, number: u64) -> (u64, u64) {
    const WAIT: u64 = 1 << 60;
    const STORE: u64 = 1;
    (WAIT | at | STORE, number)
}
