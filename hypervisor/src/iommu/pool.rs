//! Frames for page tables that devices walk, and processors: at boot from the machine, later from
//! what was set aside.
//!
//! Guarantees: after [`Pool::close`] nothing is allocated. A frame that is given out is zeroed, and
//! a reader that doesn't snoop the CPU's caches sees each store.

use super::{coherent, write_back};
use crate::memory::{PAGE, allocate};
use alloc::vec::Vec;

/// The frames.
pub struct Pool {
    /// Those that no table has; room for all that were set aside.
    frames: Vec<u64>,
    /// All that it ever had.
    all: Vec<u64>,
    booting: bool,
    /// Some reader of the tables doesn't snoop the CPU's caches: each store is written back.
    write_back: bool,
}

impl Pool {
    /// Boot only.
    pub fn new() -> Self {
        let write_back = !coherent();
        Pool { frames: Vec::new(), all: Vec::new(), booting: true, write_back }
    }

    /// Sets so many frames aside, or as many as there are; from here on nothing is allocated.
    pub fn close(&mut self, count: usize) {
        self.frames.reserve_exact(count);
        for _ in 0..count {
            let Some(frame) = self.allocate_fresh() else { break };
            self.frames.push(frame);
        }
        self.booting = false;
    }

    /// All frames that tables can lie in, ascending. Boot only.
    pub fn all(&self) -> Vec<u64> {
        let mut frames = self.all.clone();
        sort::by_key(&mut frames, |frame| *frame);
        frames
    }

    /// How many are left.
    pub fn left(&self) -> usize {
        self.frames.len()
    }

    fn allocate_fresh(&mut self) -> Option<u64> {
        let frame = allocate(PAGE, PAGE)?;
        if self.write_back {
            write_back(frame, PAGE);
        }
        self.all.push(frame);
        Some(frame)
    }
}

impl paging::Memory for Pool {
    fn read(&self, pa: u64) -> u64 {
        // SAFETY: `Table` passes aligned words of frames this pool gave out, identity-mapped RAM.
        unsafe { core::ptr::read_volatile(pa as *const u64) }
    }

    fn write(&mut self, pa: u64, value: u64) {
        // SAFETY: as in `read`; hardware may walk the table meanwhile, hence one whole store.
        unsafe { core::ptr::write_volatile(pa as *mut u64, value) }
        if self.write_back {
            write_back(pa, 8);
        }
    }

    fn is_zero(&self, frame: u64) -> bool {
        // SAFETY: as in `read`; only this CPU writes to the frame now, as whoever calls has the
        // table.
        let words = unsafe { &*(frame as *const [[u64; 8]; 64]) };
        words.iter().all(|[a, b, c, d, e, f, g, h]| a | b | c | d | e | f | g | h == 0)
    }

    fn allocate(&mut self) -> Option<u64> {
        if self.booting {
            return self.allocate_fresh();
        }
        let frame = self.frames.pop()?;
        // SAFETY: a frame of this pool that no table uses.
        unsafe { core::ptr::write_bytes(frame as *mut u8, 0, PAGE as usize) };
        if self.write_back {
            write_back(frame, PAGE);
        }
        Some(frame)
    }

    fn free(&mut self, frame: u64) {
        // There is room for what was taken from it after boot; a frame of boot time that doesn't
        // fit stays unused.
        if self.frames.len() < self.frames.capacity() {
            self.frames.push(frame);
        }
    }
}
