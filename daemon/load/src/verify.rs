//! A disk's blocks, written with what no other block has, and read again.
//!
//! In the middle of each pass the memory is handed over once more, with requests under way.
//!
//! Guarantees: each block is written once and has been answered before any is read; what is read is
//! compared whole, in memory that had something else before.

use crate::connection::{Connection, Told};
use crate::line::{DESCRIPTORS, Line};
use crate::ring::{BLOCK, BYTES, DATA, DIRECT, HEADERS, LINE, NEXT, STATUS, WRITE};
use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Instant;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use window::Span;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Verified {
    blocks: u64,
    /// Requests with another status than that all is well.
    failed: u64,
    /// Blocks that are other than they were written.
    wrong: u64,
    nanoseconds: u64,
}

/// Writes so many blocks, `depth` at a time, and reads them.
///
/// # Errors
///
/// If the disk isn't served, has fewer blocks, or doesn't answer.
pub fn verify(socket: &Path, depth: u16, blocks: u64, patience: i32) -> Result<Verified> {
    let mut connection = Connection::open(socket, 1, (0, 0), BYTES)?;
    let there = u64::from_le_bytes(connection.config()?) * 512 / BLOCK;
    if blocks > there || depth == 0 || depth > DIRECT {
        bail!("there are {there} blocks, and 1 to {DIRECT} are asked for at a time");
    }
    let memory = connection.memory()?;
    let told = connection.start(0, 0)?;
    let waits = Epoll::new().context("there is no epoll")?;
    let event = EpollEvent::new(EventSet::IN, 0);
    waits.ctl(ControlOperation::Add, told.call.as_raw_fd(), event)?;
    let line = Line::new(memory, false);
    let mut asking =
        Asking { connection, memory, line, told, waits, patience, depth, failed: 0, wrong: 0 };
    let began = Instant::now();
    asking.all(blocks, true)?;
    asking.all(blocks, false)?;
    let nanoseconds = began.elapsed().as_nanos() as u64;
    Ok(Verified { blocks, failed: asking.failed, wrong: asking.wrong, nanoseconds })
}

struct Asking {
    connection: Connection,
    memory: Span,
    line: Line,
    told: Told,
    waits: Epoll,
    patience: i32,
    depth: u16,
    failed: u64,
    wrong: u64,
}

impl Asking {
    /// Asks for all blocks in their order.
    fn all(&mut self, blocks: u64, write: bool) -> Result<()> {
        let mut slots = vec![0; self.depth.into()];
        let (mut next, mut answered) = (0, 0);
        for (slot, asked) in (0..).zip(&mut slots) {
            if next < blocks {
                self.ask(slot, next, write)?;
                (*asked, next) = (next, next + 1);
            }
        }
        let kick = self.line.publish()?;
        self.told.kick(kick)?;
        while answered < blocks {
            let index = self.line.used()?;
            while let Some((head, _)) = self.line.next(index)? {
                let slot = (head / 3) as u16;
                let asked = slots.get_mut(usize::from(slot));
                let asked = asked.context("the device answered what wasn't asked")?;
                self.look(slot, *asked, write)?;
                answered += 1;
                if answered == blocks / 2 {
                    self.connection.share()?;
                }
                if next < blocks {
                    self.ask(slot, next, write)?;
                    (*asked, next) = (next, next + 1);
                }
            }
            let kick = self.line.publish()?;
            self.told.kick(kick)?;
            if answered < blocks && !self.line.want_calls(true)? {
                let mut events = [EpollEvent::default()];
                if self.waits.wait(self.patience, &mut events)? == 0 {
                    bail!("no call came for {} s", self.patience / 1000);
                }
                let _ = self.told.call.read();
            }
        }
        Ok(())
    }

    fn ask(&mut self, slot: u16, block: u64, write: bool) -> Result<()> {
        let at = u64::from(slot);
        let (header, data) = (HEADERS + at * LINE, DATA + at * BLOCK);
        let (table, first) = (DESCRIPTORS + at * 48, slot * 3);
        let data_flags = NEXT | if write { 0 } else { WRITE };
        self.line.describe(table, header, 16, NEXT, first + 1)?;
        self.line.describe(table + 16, data, BLOCK as u32, data_flags, first + 2)?;
        self.line.describe(table + 32, header + STATUS, 1, WRITE, 0)?;
        self.memory.store_u64(header, write.into())?;
        self.memory.store_u64(header + 8, block * (BLOCK / 512))?;
        self.memory.store_u32(header + STATUS, 0xff)?;
        for word in (0..BLOCK).step_by(8) {
            let value = if write { content(block, word) } else { !content(block, word) };
            self.memory.store_u64(data + word, value)?;
        }
        self.line.offer(first)
    }

    fn look(&mut self, slot: u16, block: u64, write: bool) -> Result<()> {
        let at = u64::from(slot);
        let status = self.memory.load_u32(HEADERS + at * LINE + STATUS)?;
        self.failed += u64::from(status & 0xff != 0);
        let mut same = true;
        for word in (0..BLOCK).step_by(8) {
            same &= self.memory.load_u64(DATA + at * BLOCK + word)? == content(block, word);
        }
        self.wrong += u64::from(!write && !same);
        Ok(())
    }
}

/// What a block has at this place: no other place has it.
fn content(block: u64, word: u64) -> u64 {
    (block * BLOCK + word).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
