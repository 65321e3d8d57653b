//! Reads and writes of files to and from shared memory. The kernel makes the accesses, so that
//! nothing here refers to the bytes; memory that isn't there any more is an error, not a signal.

use rustix::fd::{AsFd, AsRawFd};
use std::io;
use window::Span;

/// Spans of one call.
const VECTORS: usize = 64;

/// Reads from this offset into all spans. Beyond the file's end it is an error.
///
/// # Errors
///
/// The system's; [`io::ErrorKind::UnexpectedEof`] at the end.
pub fn read_at(file: impl AsFd, offset: u64, into: &[Span]) -> io::Result<()> {
    let fd = file.as_fd().as_raw_fd();
    all(offset, into, |vectors, count, at| {
        // SAFETY: each vector is a span's bytes, which are mapped; the kernel writes them as any
        // device may.
        unsafe { libc::preadv(fd, vectors, count, at) }
    })
}

/// Writes all spans from this offset on.
///
/// # Errors
///
/// The system's.
pub fn write_at(file: impl AsFd, offset: u64, from: &[Span]) -> io::Result<()> {
    let fd = file.as_fd().as_raw_fd();
    all(offset, from, |vectors, count, at| {
        // SAFETY: each vector is a span's bytes, which are mapped; the kernel reads them.
        unsafe { libc::pwritev(fd, vectors, count, at) }
    })
}

/// Calls until all is done: a call may do less than it is asked for.
fn all(
    mut offset: u64,
    spans: &[Span],
    call: impl Fn(*const libc::iovec, libc::c_int, libc::off_t) -> libc::ssize_t,
) -> io::Result<()> {
    for part in spans.chunks(VECTORS) {
        let mut vectors: Vec<libc::iovec> = part
            .iter()
            .map(|span| libc::iovec {
                iov_base: span.as_ptr().cast(),
                iov_len: span.len() as usize,
            })
            .filter(|vector| vector.iov_len > 0)
            .collect();
        let mut rest = &mut vectors[..];
        while !rest.is_empty() {
            let at = libc::off_t::try_from(offset).map_err(io::Error::other)?;
            let done = call(rest.as_ptr(), rest.len() as libc::c_int, at);
            let mut done = match usize::try_from(done) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(done) => done,
                Err(_) => match io::Error::last_os_error() {
                    again if again.kind() == io::ErrorKind::Interrupted => continue,
                    error => return Err(error),
                },
            };
            offset += done as u64;
            while let Some(first) = rest.first_mut() {
                if done < first.iov_len {
                    first.iov_base = first.iov_base.wrapping_byte_add(done);
                    first.iov_len -= done;
                    break;
                }
                done -= first.iov_len;
                rest = &mut rest[1..];
            }
        }
    }
    Ok(())
}
