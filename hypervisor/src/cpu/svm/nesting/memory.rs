//! L1's memory as the crate `nested` wants it, and the frames of the composed tables.
//!
//! Guarantees: each access is of one aligned word or one byte inside a page that is the guest's
//! memory, volatile or atomic, for L1's other CPUs may write it at any moment.

use super::switches::Switch;
use crate::memory;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use nested::avic::ApicPage;
use nested::tables::{L1Memory, Page, Registers, Walked, compose};
use nested::{Block, PermissionMaps};
use paging::{Access, Mapping};
use vendor::GuestPages;

const PAGE: u64 = 4096;
/// The last byte of a page.
const LAST: u64 = PAGE - 1;
const LARGE: u64 = 2 << 20;

fn address(memory: &dyn GuestPages, gpa: u64) -> Option<u64> {
    memory.page(gpa).map(|page| page | gpa & LAST)
}

/// A control block in a page of the guest's, by the page's address in the machine.
pub struct InPage(pub u64);

impl Block for InPage {
    #[inline(always)]
    fn read(&self, at: usize) -> u64 {
        // Added, since the CPU adds. SAFETY: whoever makes one has the address from `GuestPages`;
        // the word is in the page.
        unsafe { ((self.0 + (at as u64 & 0xFF8)) as *const u64).read_volatile() }
    }

    #[inline(always)]
    fn write(&mut self, at: usize, value: u64) {
        // SAFETY: as in `read`; no Rust reference to guest memory exists.
        unsafe { ((self.0 + (at as u64 & 0xFF8)) as *mut u64).write_volatile(value) }
    }
}

/// The backing page of L2's local APIC, by its address in the machine.
pub struct ApicMemory(pub u64);

impl ApicMemory {
    fn word(&self, at: u16) -> &AtomicU32 {
        // SAFETY: whoever makes one has the address from `GuestPages`; an aligned word of the page,
        // which nobody has another reference to.
        unsafe { AtomicU32::from_ptr((self.0 + u64::from(at & 0xFF0)) as *mut u32) }
    }
}

impl ApicPage for ApicMemory {
    fn read(&self, at: u16) -> u32 {
        self.word(at).load(Ordering::Acquire)
    }

    fn write(&self, at: u16, value: u32) {
        self.word(at).store(value, Ordering::Release);
    }

    fn set(&self, at: u16, bits: u32) {
        self.word(at).fetch_or(bits, Ordering::AcqRel);
    }

    fn clear(&self, at: u16, bits: u32) {
        self.word(at).fetch_and(!bits, Ordering::AcqRel);
    }
}

/// Puts a vector into the backing page at this address of the machine's, which is a guest's memory.
pub fn post(page: u64, vector: u8) {
    nested::avic::post(&ApicMemory(page), vector);
}

/// L1's tables and maps.
pub struct Words<'a>(pub &'a dyn GuestPages);

impl L1Memory for Words<'_> {
    fn read(&self, gpa: u64) -> Option<u64> {
        let at = address(self.0, gpa & !7)?;
        // SAFETY: an aligned word of a page of the guest's, identity-mapped.
        Some(unsafe { (at as *const u64).read_volatile() })
    }

    fn exchange(&mut self, gpa: u64, old: u64, new: u64) -> bool {
        let Some(at) = address(self.0, gpa & !7) else { return false };
        // SAFETY: an aligned word of the guest's memory, which nobody has a reference to.
        let word = unsafe { AtomicU64::from_ptr(at as *mut u64) };
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Where the page of the guest's is that was asked for last: a guest's memory stays where it is.
pub struct LastPage(Cell<(u64, u64)>);

impl LastPage {
    /// None was.
    pub const fn new() -> Self {
        LastPage(Cell::new((u64::MAX, 0)))
    }

    /// The machine's address of a byte; none where no memory is.
    #[inline(always)]
    fn find(&self, memory: &dyn GuestPages, gpa: u64) -> Option<u64> {
        let (last, page) = self.0.get();
        if last == gpa & !LAST && !Switch::Remember.is_off() {
            return Some(page | gpa & LAST);
        }
        self.look(memory, gpa)
    }

    #[cold]
    #[inline(never)]
    fn look(&self, memory: &dyn GuestPages, gpa: u64) -> Option<u64> {
        let page = memory.page(gpa)?;
        self.0.set((gpa & !LAST, page));
        Some(page | gpa & LAST)
    }
}

/// The byte at this address of the machine's.
#[inline(always)]
fn byte(at: u64) -> u8 {
    // SAFETY: a byte of a page of the guest's, identity-mapped.
    unsafe { (at as *const u8).read_volatile() }
}

/// L1's permission maps, at these guest-physical addresses, of which pages may be known.
pub struct Maps<'a> {
    pub memory: &'a dyn GuestPages,
    pub msrs: (u64, &'a LastPage),
    pub ports: (u64, &'a LastPage),
}

impl PermissionMaps for Maps<'_> {
    #[inline(always)]
    fn ports(&self, at: u32) -> u16 {
        let (base, known) = self.ports;
        let first = base.wrapping_add(at.into());
        let Some(low) = known.find(self.memory, first) else { return u16::MAX };
        let high = match low & LAST {
            LAST => address(self.memory, first.wrapping_add(1)).map_or(u8::MAX, byte),
            _ => byte(low + 1),
        };
        u16::from_le_bytes([byte(low), high])
    }

    #[inline(always)]
    fn msrs(&self, at: u32) -> u8 {
        let at = self.msrs.0.wrapping_add(at.into());
        self.msrs.1.find(self.memory, at).map_or(u8::MAX, byte)
    }
}

/// L1's page and the host's as one. None: what L1 has there isn't its memory, nor registers that
/// are known.
pub fn composed(memory: &dyn GuestPages, registers: &Registers, walked: &Walked) -> Option<Page> {
    let Some(pa) = address(memory, walked.gpa) else {
        return compose(walked, &registers.find(walked.gpa)?);
    };
    // A guest's memory begins, and ends, at a multiple of 2 MiB: if both ends lie as they would in
    // one piece, so does what is between them.
    let (offset, base) = (walked.gpa & (LARGE - 1), walked.gpa & !(LARGE - 1));
    let first = memory.page(base);
    let last = memory.page(base + (LARGE - PAGE));
    let whole = first == Some(pa - offset)
        && last == Some(pa - offset + (LARGE - PAGE))
        && (pa - offset).is_multiple_of(LARGE);
    let size = if whole { LARGE } else { PAGE };
    let access = Access::READ | Access::WRITE | Access::EXECUTE;
    compose(walked, &Mapping { pa, access, size })
}

/// Frames that were set aside at boot.
pub struct Frames {
    free: Vec<u64>,
    /// Where all of them are: the first, and behind the last.
    pub range: (u64, u64),
}

impl Frames {
    /// So many; none: memory ran out.
    pub fn new(count: u64) -> Option<Self> {
        let first = memory::allocate(count * PAGE, PAGE)?;
        let free = (0..count).map(|n| first + n * PAGE).collect();
        Some(Frames { free, range: (first, first + count * PAGE) })
    }
}

impl paging::Memory for Frames {
    fn read(&self, pa: u64) -> u64 {
        // SAFETY: `Shadow` passes aligned words of frames of this pool, identity-mapped.
        unsafe { (pa as *const u64).read_volatile() }
    }

    fn write(&mut self, pa: u64, value: u64) {
        // SAFETY: as in `read`; the processor may walk the table meanwhile, hence one whole store.
        unsafe { (pa as *mut u64).write_volatile(value) }
    }

    fn allocate(&mut self) -> Option<u64> {
        let frame = self.free.pop()?;
        // SAFETY: a frame of this pool that no table uses.
        unsafe { core::ptr::write_bytes(frame as *mut u8, 0, PAGE as usize) };
        Some(frame)
    }

    fn free(&mut self, frame: u64) {
        // It came from here, so there is room, and nothing is allocated.
        if self.free.len() < self.free.capacity() {
            self.free.push(frame);
        }
    }
}
