//! Mappings whose pages a ring of io_uring holds (registered buffers): a task there needn't look
//! its pages up and hold them each time.
//!
//! Guarantees: a mapping is the ring's until its [`Pinned`] is dropped, and not given up before. A
//! refusal changes nothing. A ring that is gone, or back in the stock, holds none.
//!
//! Not guaranteed: that the pages are those of the file. One from which somebody frees a page (a
//! hole, as of a balloon) has another one there later, and the ring still has the first. Who pins
//! memory knows that nobody does so.

use crate::Mapping;
use crate::spare::{BUFFERS, UPDATE_BUFFERS};
use std::io;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of one buffer at most.
const MOST: usize = 1 << 30;

/// Bytes that all rings hold.
static ALL: AtomicU64 = AtomicU64::new(0);

/// `struct io_uring_rsrc_update2`.
#[repr(C)]
struct Update {
    offset: u32,
    _reserved: u32,
    data: u64,
    tags: u64,
    count: u32,
    _reserved_too: u32,
}

/// A part of a mapping, and the ring's number of it.
#[derive(Clone, Copy, Debug)]
struct Piece {
    start: usize,
    len: usize,
    number: u16,
}

/// What a ring holds.
#[derive(Debug)]
struct Table {
    /// None: the ring is gone.
    ring: Option<RawFd>,
    /// By their addresses.
    pieces: Vec<Piece>,
    free: Vec<u16>,
}

/// The buffers of a ring.
#[derive(Debug)]
pub struct Buffers(Arc<Mutex<Table>>);

/// A mapping that a ring holds, as long as this is there.
#[derive(Debug)]
pub struct Pinned {
    table: Arc<Mutex<Table>>,
    mapping: Arc<Mapping>,
}

/// Bytes that rings of this program hold.
pub fn pinned_bytes() -> u64 {
    ALL.load(Ordering::Relaxed)
}

impl Buffers {
    /// Those of this ring, which has none.
    pub fn new(ring: RawFd) -> Buffers {
        let free = (0..BUFFERS as u16).rev().collect();
        Buffers(Arc::new(Mutex::new(Table { ring: Some(ring), pieces: Vec::new(), free })))
    }

    /// Has the ring hold a mapping's pages, which are all there then.
    ///
    /// # Errors
    ///
    /// The system's: with ENOMEM more would be locked than this program may.
    /// [`io::ErrorKind::QuotaExceeded`]: the ring has no number left.
    pub fn pin(&self, mapping: &Arc<Mapping>) -> io::Result<Pinned> {
        // Dropped if it fails, it takes back what was pinned until then.
        let pinned = Pinned { table: self.0.clone(), mapping: mapping.clone() };
        let (start, len) = place(mapping);
        for at in (0..len).step_by(MOST) {
            locked(&self.0).add(start + at, MOST.min(len - at))?;
        }
        Ok(pinned)
    }

    /// The number of the buffer that has all of these bytes.
    #[inline]
    pub fn find(&self, start: usize, len: usize) -> Option<u16> {
        let table = locked(&self.0);
        let after = table.pieces.partition_point(|piece| piece.start <= start);
        let piece = table.pieces.get(after.checked_sub(1)?)?;
        let end = start.checked_add(len)?;
        (end <= piece.start + piece.len).then_some(piece.number)
    }

    /// The ring holds nothing from now on, and nothing more.
    pub fn close(&self) {
        let mut table = locked(&self.0);
        table.remove(0, usize::MAX);
        table.ring = None;
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let (start, len) = place(&self.mapping);
        locked(&self.table).remove(start, len);
    }
}

impl Table {
    fn add(&mut self, start: usize, len: usize) -> io::Result<()> {
        let number = self.free.pop().ok_or(io::ErrorKind::QuotaExceeded)?;
        let iov_base = std::ptr::with_exposed_provenance_mut(start);
        if let Err(error) = self.set(number, libc::iovec { iov_base, iov_len: len }) {
            self.free.push(number);
            return Err(error);
        }
        ALL.fetch_add(len as u64, Ordering::Relaxed);
        let at = self.pieces.partition_point(|piece| piece.start < start);
        self.pieces.insert(at, Piece { start, len, number });
        Ok(())
    }

    /// Nothing that begins in these bytes is found any more, or held.
    fn remove(&mut self, start: usize, len: usize) {
        let is_gone = |piece: &Piece| piece.start.checked_sub(start).is_some_and(|at| at < len);
        let gone: Vec<Piece> = self.pieces.extract_if(.., |piece| is_gone(piece)).collect();
        for Piece { number, len, .. } in gone {
            ALL.fetch_sub(len as u64, Ordering::Relaxed);
            // A number that the system doesn't take back isn't given again.
            if self.set(number, libc::iovec { iov_base: null_mut(), iov_len: 0 }).is_ok() {
                self.free.push(number);
            }
        }
    }

    /// Has the ring hold this by that number, or nothing if it is empty.
    fn set(&self, number: u16, what: libc::iovec) -> io::Result<()> {
        let ring = self.ring.ok_or(io::ErrorKind::NotConnected)?;
        let data = (&raw const what).expose_provenance() as u64;
        let offset = number.into();
        let update = Update { offset, _reserved: 0, data, tags: 0, count: 1, _reserved_too: 0 };
        let operation = libc::c_long::from(UPDATE_BUFFERS);
        // SAFETY: the call reads such a structure, of this length, and one vector, which are here.
        // The pages at the vector's addresses are a mapping's, which is accessed as memory that
        // others write to; they stay the ring's, whatever is mapped there later, until that is
        // taken back, and are found by nobody then.
        let set = unsafe {
            let update = &raw const update;
            libc::syscall(libc::SYS_io_uring_register, ring, operation, update, size_of::<Update>())
        };
        if set == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

fn place(mapping: &Mapping) -> (usize, usize) {
    (mapping.start().as_ptr().expose_provenance(), mapping.len())
}

fn locked(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{memfd, run, temporary};
    use crate::{GuestMemory, GuestRegion, Task, Uring};
    use rustix::fd::AsFd as _;
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    const LEN: u64 = 0x8000;

    fn read_into(ring: &mut Uring, mapping: &Mapping, at: u64, len: u64) -> u8 {
        let into = [mapping.span().and_then(|span| span.sub(at, len)).expect("inside")];
        let done = run(ring, &[Task::Read { offset: 0, into: &into }]);
        done.into_iter().for_each(|result| result.expect("it is read"));
        let mut last = [0];
        into[0].read(len - 1, &mut last).expect("inside");
        last[0]
    }

    /// By what goes wrong if somebody frees pages: it shows which memory a read goes to.
    #[test]
    fn what_is_pinned_is_read_and_written_there_until_it_is_given_back() {
        let file = temporary(LEN);
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; LEN as usize], 0).expect("it takes");
        let memory = memfd(LEN);
        let mapping = Arc::new(Mapping::of_file(&memory, 0, LEN).expect("memory"));
        let mut ring = Uring::new(&[file.as_fd()]).expect("io_uring");
        let pinned = ring.pin(&mapping).expect("it may");
        assert_eq!(read_into(&mut ring, &mapping, 0x1000, 0x2000), 7);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&memory, punch, 0, LEN).expect("it has holes");
        assert_eq!(read_into(&mut ring, &mapping, 0x1000, 0x2000), 0, "it went to the page before");
        let span = mapping.span().expect("all of it");
        let parts = [(0, 0x1000), (0x2000, 0x1000)].map(|(at, len)| span.sub(at, len).unwrap());
        assert!(run(&mut ring, &[Task::Read { offset: 0, into: &parts }])[0].is_ok());
        let mut byte = [0];
        span.read(0x2000, &mut byte).expect("inside");
        assert_eq!(byte, [7], "several pieces are looked up");
        // What was read before is in the page that is held, and is what a write takes.
        let from = [span.sub(0x1000, 0x1000).expect("inside")];
        span.write(0x1000, &[9; 0x1000]).expect("inside");
        let write = Task::Write { offset: 0x1000, from: &from, durable: true };
        assert!(run(&mut ring, &[write])[0].is_ok());
        let mut byte = [0];
        let read = |byte: &mut [u8]| {
            std::os::unix::fs::FileExt::read_exact_at(&file, byte, 0x1800).expect("it is there");
        };
        read(&mut byte);
        assert_eq!(byte, [7]);
        drop(pinned);
        assert!(run(&mut ring, &[write])[0].is_ok());
        read(&mut byte);
        assert_eq!(byte, [9]);
        assert_eq!(read_into(&mut ring, &mapping, 0x1000, 0x2000), 9);
    }

    /// Addresses are used again, and so are numbers.
    #[test]
    fn regions_come_and_go() {
        let file = temporary(LEN);
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; LEN as usize], 0).expect("it takes");
        let mut ring = Uring::new(&[file.as_fd()]).expect("io_uring");
        let mut kept = Vec::new();
        for round in 0..2 * u64::from(BUFFERS) {
            let mapping = Mapping::of_file(memfd(LEN), 0, LEN).expect("memory");
            let mut region = GuestRegion::from((round * LEN, mapping));
            region.pinned = Some(Arc::new(ring.pin(&region.mapping).expect("it may")));
            assert_eq!(read_into(&mut ring, &region.mapping, 0, LEN), 7);
            let memory = GuestMemory::new(vec![region]).expect("a region");
            // The memory before goes once that after it is there.
            kept = vec![memory.clone()];
        }
        drop(kept);
        // More than there are numbers for.
        let mappings = (0..=BUFFERS).map(|_| Arc::new(Mapping::anonymous(1).expect("memory")));
        let mut pinned = Vec::new();
        let refused = mappings.into_iter().find_map(|mapping| match ring.pin(&mapping) {
            Ok(one) => {
                pinned.push(one);
                None
            }
            Err(error) => Some(error.kind()),
        });
        assert_eq!((pinned.len(), refused), (BUFFERS as usize, Some(io::ErrorKind::QuotaExceeded)));
        // Whoever has something pinned may outlive the ring.
        drop(ring);
        drop(pinned);
    }

    /// Nothing is held of what is refused, and tasks go on.
    #[test]
    fn what_may_not_be_locked_is_refused() {
        let limit = getrlimit(Resource::Memlock);
        let most = 4 << 20;
        setrlimit(Resource::Memlock, Rlimit { current: Some(most), ..limit }).expect("it is less");
        let without = CapabilitySet::IPC_LOCK;
        let CapabilitySets { effective, permitted, inheritable } =
            capabilities(None).expect("it says");
        set_capabilities(
            None,
            CapabilitySets {
                effective: effective - without,
                permitted: permitted - without,
                inheritable,
            },
        )
        .expect("this thread gives it up");
        let file = temporary(LEN);
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; LEN as usize], 0).expect("it takes");
        let mut ring = Uring::new(&[file.as_fd()]).expect("io_uring");
        let large = Arc::new(Mapping::anonymous(2 * most).expect("memory"));
        let small = Arc::new(Mapping::anonymous(LEN).expect("memory"));
        for _ in 0..3 {
            let refused = ring.pin(&large).expect_err("it is too much");
            assert_eq!(refused.raw_os_error(), Some(libc::ENOMEM));
            assert_eq!(read_into(&mut ring, &large, 0x1000, LEN), 7);
            let pinned = ring.pin(&small).expect("it may");
            assert_eq!(read_into(&mut ring, &small, 0, LEN), 7);
            drop(pinned);
        }
    }
}
