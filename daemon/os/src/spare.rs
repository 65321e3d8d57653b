//! Rings of io_uring that can do what is needed and nothing else, and a stock of them: a program
//! that may not make any more takes those that it made before.
//!
//! Guarantees: a ring takes [`OPERATIONS`], of files that are registered with it, and no other
//! flag; of the calls that change it those that exchange its files and the memory that it holds.
//! That is set before the ring is switched on, and the kernel changes it for nobody. So who gets
//! hold of this program can't open files or reach networks by a ring, which the list of system
//! calls doesn't see.
//!
//! A ring belongs to the thread that switches it on, and so does the stock.

use io_uring::register::Restriction;
use io_uring::squeue::Flags;
use io_uring::{IoUring, opcode};
use std::cell::RefCell;
use std::io;
use std::os::fd::RawFd;

/// Tasks that are handed over by one call; more make a call more.
pub const ENTRIES: u32 = 256;
/// Files that a ring may have.
pub const FILES: u32 = 2;
/// Pieces of memory that a ring may hold.
pub const BUFFERS: u32 = 256;
/// What rings can do.
pub const OPERATIONS: [u8; 8] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::ReadFixed::CODE,
    opcode::WriteFixed::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
];
/// IORING_REGISTER_FILES_UPDATE.
const UPDATE_FILES: u8 = 6;
/// IORING_REGISTER_BUFFERS_UPDATE.
pub const UPDATE_BUFFERS: u8 = 16;

/// The stock.
struct Stock {
    rings: Vec<IoUring>,
    /// No ring is made any more: those that are given back are kept.
    is_closed: bool,
}

thread_local! {
    static STOCK: RefCell<Stock> =
        const { RefCell::new(Stock { rings: Vec::new(), is_closed: false }) };
}

/// Has no more rings made in this thread than these, which are made now. Those that aren't needed
/// any more are used again.
///
/// # Errors
///
/// The system's, if it makes none.
pub fn stock_rings(count: usize) -> io::Result<()> {
    let made = (0..count).map(|_| make()).collect::<io::Result<Vec<_>>>()?;
    STOCK.with_borrow_mut(|stock| {
        stock.is_closed = true;
        stock.rings.extend(made);
    });
    Ok(())
}

/// A ring without files: of the stock, or a new one if there is no stock.
///
/// # Errors
///
/// [`io::ErrorKind::QuotaExceeded`] if all of the stock are in use; else the system's.
pub fn take() -> io::Result<IoUring> {
    STOCK.with_borrow_mut(|stock| match stock.rings.pop() {
        Some(ring) => Ok(ring),
        None if stock.is_closed => Err(io::ErrorKind::QuotaExceeded.into()),
        None => make(),
    })
}

/// Back to the stock, if there is one. Nothing of this ring is under way.
pub fn give_back(ring: IoUring) {
    let forgotten = ring.submitter().register_files_update(0, &[-1; FILES as usize]);
    STOCK.with_borrow_mut(|stock| {
        if stock.is_closed && forgotten.is_ok() {
            stock.rings.push(ring);
        }
    });
}

/// Gives a ring these files.
pub fn set_files(ring: &IoUring, files: &[RawFd]) -> io::Result<()> {
    ring.submitter().register_files_update(0, files).map(|_| ())
}

/// A ring that is switched on, for this thread.
fn make() -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    // With DEFER_TASKRUN nobody who polls the ring's descriptor is woken up.
    builder.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag();
    builder.setup_r_disabled().setup_cqsize(4 * ENTRIES).dontfork();
    let ring = builder.build(ENTRIES)?;
    let submitter = ring.submitter();
    submitter.register_files_sparse(FILES)?;
    // One that may hold none is a ring nevertheless.
    let _ = submitter.register_buffers_sparse(BUFFERS);
    let fixed = Flags::FIXED_FILE.bits();
    let mut all: Vec<Restriction> = OPERATIONS.into_iter().map(Restriction::sqe_op).collect();
    all.extend([
        Restriction::register_op(UPDATE_FILES),
        Restriction::register_op(UPDATE_BUFFERS),
        Restriction::sqe_flags_allowed(fixed),
        Restriction::sqe_flags_required(fixed),
    ]);
    submitter.register_restrictions(&mut all)?;
    submitter.register_enable_rings()?;
    Ok(ring)
}

#[cfg(test)]
mod tests {
    use super::*;
    use io_uring::types::{Fd, Fixed};
    use rustix::fd::{AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd};

    /// The answer to one entry.
    fn answer(ring: &mut IoUring, entry: &io_uring::squeue::Entry) -> i32 {
        // SAFETY: what the entries point to is static.
        unsafe { ring.submission().push(entry) }.expect("there is room");
        ring.submit_and_wait(1).expect("it is taken");
        ring.completion().next().expect("it ended").result()
    }

    fn refused(answer: i32) -> bool {
        answer == -libc::EACCES
    }

    fn null() -> OwnedFd {
        std::fs::File::create("/dev/null").expect("it is there").into()
    }

    #[test]
    fn no_file_can_be_opened_by_a_ring() {
        let mut ring = make().expect("a ring");
        let open = opcode::OpenAt::new(Fd(libc::AT_FDCWD), c"/dev/null".as_ptr()).build();
        assert!(refused(answer(&mut ring, &open)));
        let socket = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build();
        assert!(refused(answer(&mut ring, &socket)));
        let nop = opcode::Nop::new().build();
        assert!(refused(answer(&mut ring, &nop)));
        // A ring that isn't restricted does it.
        let mut free = IoUring::new(4).expect("a ring");
        let opened = answer(&mut free, &open);
        assert!(opened >= 0);
        // SAFETY: the ring made it, and nobody else has it.
        drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(opened) });
    }

    /// Each operation that the kernel may know, by its number.
    #[test]
    fn a_ring_takes_what_is_listed_and_nothing_else() {
        let mut ring = make().expect("a ring");
        for code in 0..=u8::MAX {
            // What the entry says else is for a file that isn't registered.
            let mut entry = opcode::Fsync::new(Fixed(0)).build();
            // SAFETY: an entry begins with its operation's byte, and is 64 bytes.
            unsafe { (&raw mut entry).cast::<u8>().write(code) };
            let said = answer(&mut ring, &entry);
            // What the kernel doesn't know isn't done, either.
            let is_done = !refused(said) && said != -libc::EINVAL;
            assert_eq!(is_done, OPERATIONS.contains(&code), "operation {code}: {said}");
        }
    }

    #[test]
    fn only_registered_files_are_accessed() {
        let mut ring = make().expect("a ring");
        let file = null();
        let sync = opcode::Fsync::new(Fd(file.as_raw_fd())).build();
        assert!(refused(answer(&mut ring, &sync)));
        set_files(&ring, &[file.as_raw_fd()]).expect("it is taken");
        let write = opcode::Write::new(Fixed(0), c"x".as_ptr().cast(), 1).build();
        assert_eq!(answer(&mut ring, &write), 1);
        let linked = write.flags(Flags::IO_LINK);
        assert!(refused(answer(&mut ring, &linked)));
    }

    #[test]
    fn what_is_restricted_stays_so() {
        let ring = make().expect("a ring");
        let submitter = ring.submitter();
        let more = submitter.register_restrictions(&mut [Restriction::sqe_op(0)]);
        assert!(more.is_err());
        assert!(submitter.register_enable_rings().is_err());
        let eventfd = null().into_raw_fd();
        assert!(submitter.register_eventfd(eventfd).is_err());
        // SAFETY: it was taken out of its owner above.
        assert!(unsafe { BorrowedFd::borrow_raw(eventfd) }.try_clone_to_owned().is_ok());
    }

    #[test]
    fn a_stock_is_used_again_and_not_made_larger() {
        stock_rings(1).expect("the system has io_uring");
        for _ in 0..3 {
            let ring = take().expect("it is there");
            assert!(take().is_err(), "there is one");
            let file = null();
            set_files(&ring, &[file.as_raw_fd()]).expect("it is taken");
            give_back(ring);
        }
    }
}
