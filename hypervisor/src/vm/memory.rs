//! A guest's memory: where it lies in the machine, its nested page tables and its
//! IOMMU page tables.
//!
//! Guarantees: the guest reaches through these tables its own memory, what is mapped
//! for it by name (device BARs, the ledger page), and nothing else; devices reach its
//! memory only. All access by the host goes through bounds-checked copies. Table frames
//! come from a pool set aside at boot, so the exit path never allocates.

use crate::iommu::PageFormat;
use crate::iommu::pool::Pool;
use crate::{cpu, memory};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use dma::DmaTable;
use paging::audit::Outline;
use paging::walk::GuestMemory;
use paging::{Access, Flush, Mapping, PageSize, SecondLevel, Table};
use thiserror::Error;

/// Below 4 GiB a guest has at most this much; the rest lies from 4 GiB up.
const LOW_MAX: u64 = 2 << 30;
const HIGH_START: u64 = 4 << 30;
const MIB_2: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
/// Bytes of memory that are worked on at a time.
pub const PIECE: u64 = MIB_2;
/// Frames kept for splitting large pages and mapping BARs while the guest runs.
const POOL_FRAMES: usize = 64;
/// Of these, for BARs alone.
const RESERVED_FRAMES: usize = 24;

/// Why a guest's memory can't be had.
#[derive(Debug, Error)]
pub enum Error {
    /// Not enough memory.
    #[error(
        "VM {vm:?} needs {needed} MiB of memory in one piece, but the machine has {available} MiB left in all: lower its memory"
    )]
    TooLittle {
        /// Name of the VM.
        vm: alloc::string::String,
        /// What it asked for.
        needed: u64,
        /// What there is.
        available: u64,
    },
    /// A page table couldn't be built.
    #[error("the page tables of VM {vm:?} can't be built: {source}")]
    Tables {
        /// Name of the VM.
        vm: alloc::string::String,
        /// What the table said.
        source: paging::Error,
    },
}

/// A run of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Guest-physical address.
    pub gpa: u64,
    /// Where it is in the machine.
    pub hpa: u64,
    /// Bytes.
    pub len: u64,
}

/// A guest's memory: where it is. All of a VM's cores read and write it, none ever through a
/// Rust reference.
pub struct Memory {
    regions: ArrayVec<Region, 2>,
}

/// The tables that confine a guest and its devices to its memory.
pub struct Tables {
    nested: Table<SecondLevel>,
    dma: DmaTable,
    pool: Pool,
}

/// The same, for who looks at them without holding them.
pub struct Outlines {
    pub nested: Outline<SecondLevel>,
    pub dma: Outline<PageFormat>,
    /// All frames that these tables can lie in, ascending.
    pub frames: Vec<u64>,
}

impl Outlines {
    /// Can a table lie there?
    pub fn has(&self, frame: u64) -> bool {
        self.frames.binary_search(&frame).is_ok()
    }
}

const RAM: Access = Access::READ.union(Access::WRITE).union(Access::EXECUTE);
/// Device registers, uncached.
pub const DEVICE: Access = Access::READ.union(Access::WRITE).union(Access::UNCACHED);

impl Memory {
    /// Takes `bytes` of the machine, from the ranges `near` where there is room, and maps them for
    /// the guest and its devices.
    pub fn new(
        vm: &str,
        bytes: u64,
        near: &[(u64, u64)],
        dma_levels: PageFormat,
    ) -> Result<(Self, Tables), Error> {
        let failed = |source| Error::Tables { vm: vm.into(), source };
        let mut pool = Pool::new();
        let mut nested =
            Table::new(&mut pool, cpu::second_level(), PageSize::Size1G).map_err(failed)?;
        let mut dma =
            DmaTable::new(&mut pool, dma_levels, crate::iommu::largest_page()).map_err(failed)?;
        let low = bytes.min(LOW_MAX);
        let mut regions = ArrayVec::new();
        for (gpa, len) in [(0, low), (HIGH_START, bytes - low)] {
            if len == 0 {
                continue;
            }
            let alignment = if len >= GIB { GIB } else { MIB_2 };
            let within = |ranges: &[(u64, u64)]| {
                memory::allocate_within(len, alignment, ranges)
                    .or_else(|| memory::allocate_within(len, MIB_2, ranges))
            };
            let anywhere = || {
                if !near.is_empty() {
                    log::warn!("VM {vm:?}: {} MiB of its memory are far from its cores", len >> 20);
                }
                within(&[(0, u64::MAX)])
            };
            let hpa = within(near).or_else(anywhere).ok_or_else(|| Error::TooLittle {
                vm: vm.into(),
                needed: bytes >> 20,
                available: memory::available() >> 20,
            })?;
            nested.map(&mut pool, gpa, hpa, len, RAM).map_err(failed)?;
            dma.map(&mut pool, gpa, hpa, len, Access::READ | Access::WRITE).map_err(failed)?;
            regions.push(Region { gpa, hpa, len });
        }
        Ok((Memory { regions }, Tables { nested, dma, pool }))
    }

    /// The runs of memory.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Where `len` bytes at `gpa` are, if they are memory of this guest in one piece.
    pub fn resolve(&self, gpa: u64, len: u64) -> Option<u64> {
        let end = gpa.checked_add(len)?;
        let r = self.regions.iter().find(|r| r.gpa <= gpa && end <= r.gpa + r.len)?;
        Some(r.hpa + (gpa - r.gpa))
    }

    /// Copies `bytes` into the guest; false if that isn't all memory.
    pub fn write(&self, gpa: u64, bytes: &[u8]) -> bool {
        let Some(hpa) = self.resolve(gpa, bytes.len() as u64) else { return false };
        // SAFETY: `resolve` says the range is this guest's RAM, identity-mapped; the guest may
        // race with it and then sees its own mess. No Rust reference to guest memory exists.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), hpa as *mut u8, bytes.len()) };
        true
    }

    /// Where `bytes` bytes at `offset` of the page at `hpa` are, which [`Memory::resolve`] gave;
    /// `None` if they aren't all in the page.
    #[inline]
    pub fn within(hpa: u64, offset: u64, bytes: usize) -> Option<u64> {
        (offset + bytes as u64 <= 4096).then_some(hpa + offset)
    }

    /// Do these bytes stand at `at`, where so many are by [`Memory::within`]?
    #[inline(always)]
    pub fn holds<const N: usize>(&self, at: u64, bytes: &[u8; N]) -> bool {
        /// Two bytes anywhere.
        #[derive(Clone, Copy)]
        #[repr(C, packed)]
        struct Pair(u16);
        // Each byte once: the guest may be writing them.
        if let [low, high] = bytes.as_slice() {
            // SAFETY: in a page of this guest's RAM, identity-mapped.
            let seen = unsafe { core::ptr::read_volatile(at as *const Pair) };
            return seen.0 == u16::from_le_bytes([*low, *high]);
        }
        bytes.iter().enumerate().all(|(i, byte)| {
            // SAFETY: as above.
            let seen = unsafe { core::ptr::read_volatile((at as usize + i) as *const u8) };
            seen == *byte
        })
    }

    /// Copies one page out of the guest; false if it isn't memory.
    pub fn read_page(&self, gpa: u64, page: &mut [u8; 4096]) -> bool {
        let Some(hpa) = self.resolve(gpa & !0xFFF, 4096) else { return false };
        // SAFETY: as in `write`.
        unsafe { core::ptr::copy_nonoverlapping(hpa as *const u8, page.as_mut_ptr(), 4096) };
        true
    }
}

impl Memory {
    /// All of it, in pieces that don't take long to work on.
    pub fn pieces(&self) -> impl Iterator<Item = Region> {
        self.regions.iter().flat_map(|r| {
            (0..r.len).step_by(PIECE as usize).map(|at| Region {
                gpa: r.gpa + at,
                hpa: r.hpa + at,
                len: PIECE.min(r.len - at),
            })
        })
    }

    /// Zeroes a piece.
    pub fn clear(&self, piece: Region) {
        if let Some(hpa) = self.resolve(piece.gpa, piece.len) {
            // SAFETY: this guest's RAM, identity-mapped, to which no Rust reference exists.
            unsafe { core::ptr::write_bytes(hpa as *mut u8, 0, piece.len as usize) };
        }
    }
}

impl Tables {
    /// Ends the boot-time phase: sets aside the frames for later.
    pub fn close(&mut self) {
        self.pool.close(POOL_FRAMES);
    }

    /// Root of the nested page tables.
    pub fn nested_root(&self) -> u64 {
        self.nested.root()
    }

    /// Where the tables are, and the frames that they have and may have.
    pub fn outlines(&self) -> Outlines {
        let frames = self.pool.all();
        Outlines { nested: self.nested.outline(), dma: self.dma.outline(), frames }
    }

    /// Root of the IOMMU page tables.
    pub fn dma_root(&self) -> u64 {
        self.dma.root()
    }

    /// Maps host pages for the guest: a BAR, the ledger page. The caller made sure that it
    /// may have them.
    pub fn map(
        &mut self,
        gpa: u64,
        hpa: u64,
        len: u64,
        access: Access,
    ) -> Result<(), paging::Error> {
        self.nested.map(&mut self.pool, gpa, hpa, len, access)
    }

    /// What the guest reaches at an address without an exit.
    pub fn lookup(&self, gpa: u64) -> Option<Mapping> {
        self.nested.lookup(&self.pool, gpa)
    }

    /// Unmaps what [`Memory::map`] mapped. `flush` drops the cached translations of
    /// every core that runs this guest.
    pub fn unmap(&mut self, gpa: u64, len: u64, flush: impl FnOnce()) -> Result<(), paging::Error> {
        let duty = self.nested.unmap(&mut self.pool, gpa, len)?;
        self.flush_and_reuse(duty, flush);
        Ok(())
    }

    /// Shows the guest another frame than its own at one page of its memory, read-only.
    ///
    /// Refused when few table frames are left: a guest that spreads its IDT over its memory must
    /// not use up those that its BARs may need.
    pub fn substitute(
        &mut self,
        gpa: u64,
        frame: u64,
        flush: impl FnOnce(),
    ) -> Result<(), paging::Error> {
        if self.pool.left() < RESERVED_FRAMES {
            return Err(paging::Error::NoFrame { needed: RESERVED_FRAMES as u64 });
        }
        let (_, duty) = self.nested.replace(&mut self.pool, gpa & !0xFFF, frame, Access::READ)?;
        self.flush_and_reuse(duty, flush);
        Ok(())
    }

    /// Gives the guest its own page back.
    pub fn restore(
        &mut self,
        memory: &Memory,
        gpa: u64,
        flush: impl FnOnce(),
    ) -> Result<(), paging::Error> {
        let page = gpa & !0xFFF;
        let Some(hpa) = memory.resolve(page, 4096) else { return Ok(()) };
        let (_, duty) = self.nested.replace(&mut self.pool, page, hpa, RAM)?;
        self.flush_and_reuse(duty, flush);
        Ok(())
    }

    fn flush_and_reuse(&mut self, duty: Flush, flush: impl FnOnce()) {
        // No table frame is reused before every core has dropped what it knows of it.
        if duty.range().is_some() {
            flush();
        }
        duty.done(&mut self.pool);
    }
}

impl GuestMemory for Memory {
    fn read_u64(&self, gpa: u64) -> Option<u64> {
        let hpa = self.resolve(gpa, 8)?;
        // SAFETY: `resolve` says these 8 bytes are this guest's RAM, identity-mapped, aligned as
        // `gpa` is; volatile, since the guest may write them at any moment.
        Some(unsafe { core::ptr::read_volatile(hpa as *const u64) })
    }

    fn read_u32(&self, gpa: u64) -> Option<u32> {
        let hpa = self.resolve(gpa, 4)?;
        // SAFETY: as in `read_u64`.
        Some(unsafe { core::ptr::read_volatile(hpa as *const u32) })
    }
}
