//! Shared memory, mapped. A mapping's addresses are never unmapped: spans are copies that nothing
//! counts. What is given up becomes zeroes, which cost nothing until they are touched, and its
//! addresses are used again for the next mapping of the same length.

use crate::pinned::Pinned;
use crate::shrunk::{SLOTS, Watch, zeroes};
use crate::vfio::Shared;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, StatxFlags, fstatfs, statx};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::fmt::Debug;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use window::{ALIGNMENT, Region, Span, Window};

/// Huge pages: places of this length and more begin where one can, up to the longest of them.
const HUGE: usize = 2 << 20;
const LONGEST_PAGE: usize = 1 << 30;
/// HUGETLBFS_MAGIC.
const HUGETLBFS: u64 = 0x9584_58f6;
/// The most bytes of a guest's memory, so that no front end takes all addresses.
pub const MOST: u64 = 2 << 40;
/// The most bytes of addresses that all take: half of what a program has. Without any left, it
/// couldn't allocate, either.
const ALL: usize = 64 << 40;

/// Places: what is given up, as starts and lengths; and the bytes of all that were made.
struct Places {
    free: Vec<(usize, usize)>,
    made: usize,
}

static PLACES: Mutex<Places> = Mutex::new(Places { free: Vec::new(), made: 0 });

/// Mapped memory, which is zeroes once this is dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Of a file. What has none can't shrink.
    watch: Option<Watch>,
    /// What lasts until after it is zeroes.
    _kept: Option<Arc<dyn Debug + Send + Sync>>,
}

// SAFETY: a mapping is addresses, which hold for all threads; accesses are made by windows.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file, from this offset on, and the rest of the last page: whoever has
    /// the file has its pages whole. It begins at a page. With huge ones both are whole pages of
    /// the file system's: it would map whole ones, beyond the place that is taken for `len`.
    ///
    /// # Errors
    ///
    /// In words if the file is shorter or the numbers aren't of such pages; else the system's.
    pub fn of_file(file: impl AsFd, offset: u64, len: u64) -> io::Result<Mapping> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let there = statx(&file, "", flags, StatxFlags::SIZE)?.stx_size;
        // The page with a file's last byte is there as a whole.
        let there = there.next_multiple_of(ALIGNMENT);
        let whole = len.checked_next_multiple_of(ALIGNMENT);
        let end = whole.and_then(|whole| offset.checked_add(whole));
        let (Some(end), Some(Ok(bytes))) = (end, whole.map(usize::try_from)) else {
            return Err(invalid("the region's end isn't a number"));
        };
        if len == 0 || !offset.is_multiple_of(ALIGNMENT) {
            return Err(invalid("the region is empty or doesn't begin at a page of its file"));
        }
        let status = fstatfs(&file)?;
        let page = if status.f_type as u64 == HUGETLBFS { status.f_bsize as u64 } else { 1 };
        if page > LONGEST_PAGE as u64 {
            return Err(invalid("the region's huge pages are longer than 1 GiB"));
        }
        if ![offset, len].iter().all(|number| number.is_multiple_of(page)) {
            return Err(invalid("the region isn't made of whole huge pages"));
        }
        if end > there {
            return Err(invalid("the region's file is shorter than the region"));
        }
        let reserved = reserve(bytes)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the place was reserved by this package, and nobody serves it.
        let mapped = unsafe {
            mmap(reserved.as_ptr().cast(), bytes, protection, flags, file.as_fd(), offset)
        };
        match mapped {
            Ok(_) => match Watch::new(reserved.as_ptr().expose_provenance(), bytes) {
                Some(watch) => {
                    Ok(Mapping { start: reserved, len: bytes, watch: Some(watch), _kept: None })
                }
                None => {
                    give_up(reserved, bytes);
                    let said = format!("all front ends have more than {SLOTS} regions of memory");
                    Err(io::Error::other(said))
                }
            },
            Err(error) => {
                give_up(reserved, bytes);
                Err(error.into())
            }
        }
    }

    /// Maps zeroes of our own, of at least so many bytes.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn anonymous(len: u64) -> io::Result<Mapping> {
        let whole = len.max(1).checked_next_multiple_of(ALIGNMENT);
        let bytes = whole.and_then(|whole| usize::try_from(whole).ok());
        let bytes = bytes.ok_or_else(|| invalid("that much memory can't be addressed"))?;
        Ok(Mapping { start: reserve(bytes)?, len: bytes, watch: None, _kept: None })
    }

    /// Maps registers of a device. One that is taken away leaves zeroes.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(crate) fn of_registers(
        device: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> io::Result<Mapping> {
        let mut mapping = Mapping { start: reserve(len)?, len, watch: None, _kept: None };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the place was reserved by this package, and nobody serves it.
        unsafe { mmap(mapping.start.as_ptr().cast(), len, protection, flags, device, offset) }?;
        let watch = Watch::new(mapping.start.as_ptr().expose_provenance(), len);
        mapping.watch = Some(watch.ok_or_else(|| io::Error::other("there are too many regions"))?);
        Ok(mapping)
    }

    /// Has this last until after it is zeroes, such as its file: whoever lets go of that then
    /// frees the pages.
    pub fn keeping(self, kept: Arc<dyn Debug + Send + Sync>) -> Mapping {
        let mut kept_by = self;
        kept_by._kept = Some(kept);
        kept_by
    }

    /// Its first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// Was a page of it accessed that the file doesn't have any more?
    pub fn has_shrunk(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::has_shrunk)
    }

    /// All of its bytes.
    pub fn span(&self) -> Option<Span> {
        self.span_at(0)
    }

    /// The same, and a device has them from this address on.
    pub(crate) fn span_at(&self, dma: u64) -> Option<Span> {
        let region = self.region(0, dma);
        // SAFETY: the bytes stay mapped as long as the program runs: see the module's comment.
        let window = unsafe { Window::new(&[region]) }.ok()?;
        window.span(0, self.len as u64)
    }

    fn region(&self, guest: u64, dma: u64) -> Region {
        Region { guest, len: self.len as u64, host: self.start, dma }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        give_up(self.start, self.len);
    }
}

/// A region of a guest's memory.
#[derive(Clone, Debug)]
pub struct GuestRegion {
    /// Its first guest-physical address.
    pub guest: u64,
    /// Its bytes.
    pub mapping: Arc<Mapping>,
    /// A device reaches it.
    pub shared: Option<Arc<Shared>>,
    /// A ring of io_uring holds it.
    pub pinned: Option<Arc<Pinned>>,
}

impl From<(u64, Mapping)> for GuestRegion {
    /// At this guest-physical address, for this program alone.
    fn from((guest, mapping): (u64, Mapping)) -> GuestRegion {
        GuestRegion { guest, mapping: Arc::new(mapping), shared: None, pinned: None }
    }
}

impl GuestRegion {
    fn region(&self) -> Region {
        // A device that doesn't reach it has it where the guest has it: nobody asks.
        let dma = self.shared.as_ref().map_or(self.guest, |shared| shared.address());
        self.mapping.region(self.guest, dma)
    }
}

/// A guest's memory, with the mappings that it lies in.
#[derive(Clone, Debug)]
pub struct GuestMemory {
    regions: Vec<GuestRegion>,
    window: Window,
}

impl GuestMemory {
    /// The memory with these regions, in ascending order of guest addresses.
    ///
    /// # Errors
    ///
    /// In words, if they don't make a window.
    pub fn new(regions: Vec<GuestRegion>) -> io::Result<GuestMemory> {
        let bytes =
            regions.iter().fold(0, |sum: u64, one| sum.saturating_add(one.mapping.len as u64));
        if bytes > MOST {
            return Err(invalid("a guest's memory has more than 2 TiB"));
        }
        let all: Vec<Region> = regions.iter().map(GuestRegion::region).collect();
        // SAFETY: the bytes stay mapped, readable and writable as long as the program runs, and are
        // accessed by windows alone: see the module's comment.
        let window = unsafe { Window::new(&all) };
        let window = window.map_err(|bad| invalid(&bad.to_string()))?;
        Ok(GuestMemory { regions, window })
    }

    /// Its view. Once the memory is dropped, it shows zeroes, or what came after.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The regions.
    pub fn regions(&self) -> &[GuestRegion] {
        &self.regions
    }

    /// Did any region's file shrink?
    pub fn has_shrunk(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.has_shrunk())
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// The length of the addresses for so many bytes: a power of two, so that there are few lengths,
/// and what is given up serves whatever comes.
fn class(len: usize) -> io::Result<usize> {
    len.checked_next_power_of_two().ok_or_else(|| invalid("that much memory can't be addressed"))
}

/// Addresses for so many bytes, which are zeroes: given up ones, or new. Those for a huge page and
/// more begin where one can.
fn reserve(len: usize) -> io::Result<NonNull<u8>> {
    let len = class(len)?;
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = places.free.iter().position(|(_, there)| *there == len) {
        let (start, _) = places.free.swap_remove(at);
        let start = std::ptr::with_exposed_provenance_mut(start);
        return NonNull::new(start).ok_or_else(|| io::Error::other("address 0"));
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let align = if len >= HUGE { len.min(LONGEST_PAGE) } else { 0 };
    let all = len.checked_add(align).filter(|all| places.made.saturating_add(*all) <= ALL);
    let all =
        all.ok_or_else(|| invalid("all front ends have more memory than can be addressed"))?;
    // SAFETY: the system chooses addresses that aren't in use.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), all, protection, flags) }?;
    places.made += all;
    let start = start.cast::<u8>();
    // With `align` there is room for it.
    let skipped = if align > 0 { start.align_offset(align) } else { 0 };
    NonNull::new(start.wrapping_add(skipped)).ok_or_else(|| io::Error::other("address 0"))
}

/// Turns a mapping into zeroes, for later. If the system refuses, it stays what it is.
fn give_up(start: NonNull<u8>, len: usize) {
    let start = start.as_ptr().expose_provenance();
    // SAFETY: the addresses are those of a mapping of this package.
    if unsafe { zeroes(start, len) }
        && let Ok(class) = class(len)
    {
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        places.free.push((start, class));
    }
}
