//! Memory for records of requests in flight, which the front end keeps while this program is gone.

use crate::foreign::Foreign;
use crate::memory::refuse_slow;
use crate::rings::MAX_RING;
use anyhow::{Context as _, Result, bail};
use daemon_os::Mapping;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost_user::Inflight;
use virtqueue::{DEFAULT_SIZE, PackedRecords, Records, State};
use window::Span;

const PAGE: u64 = 4096;

/// Bytes of a ring's records, of the kind that needs more: which it will be may be open yet.
const fn room(size: u16) -> u64 {
    PackedRecords::<DEFAULT_SIZE>::bytes(size)
}
const _: () = assert!(room(1) >= Records::<DEFAULT_SIZE>::bytes(1));
const _: () = assert!(room(MAX_RING) >= Records::<DEFAULT_SIZE>::bytes(MAX_RING));

/// Records of a device's rings.
pub struct Kept {
    described: Inflight,
    mapping: Mapping,
    file: OwnedFd,
}

impl Kept {
    /// What a front end hands over, of a device with so many rings.
    ///
    /// # Errors
    ///
    /// If it is longer than records of its largest rings, or can't be mapped.
    pub fn map(described: Inflight, file: Foreign, rings: u16) -> Result<Kept> {
        let most = u64::from(rings) * room(MAX_RING);
        if described.len > most.next_multiple_of(PAGE) {
            bail!("the records in flight have {} bytes, which is too long", described.len);
        }
        let file = file.known(refuse_slow).context("the records in flight")?;
        let len = described.len.checked_next_multiple_of(PAGE).unwrap_or(0);
        let mapping = Mapping::of_file(&file, described.offset, len);
        let mapping = mapping.context("the records in flight can't be mapped")?;
        Ok(Kept { described, mapping, file })
    }

    /// Memory for records of this many rings, all empty.
    ///
    /// # Errors
    ///
    /// If the rings are too large or more than the device's `all`, or there is no memory.
    pub fn make(rings: u16, size: u16, all: u16) -> Result<(Inflight, OwnedFd)> {
        if rings > all {
            bail!("records of {rings} rings are asked for, of {all}");
        }
        if size > MAX_RING {
            bail!("records of rings of {size} elements are asked for, of at most {MAX_RING}");
        }
        let bytes = u64::from(rings) * room(size);
        let len = bytes.max(1).next_multiple_of(PAGE);
        let file = memfd_create("exitless-io-records", MemfdFlags::CLOEXEC);
        let file = file.context("the system gives no memory for records")?;
        ftruncate(&file, len).context("the system gives no memory for records")?;
        Ok((Inflight { len, offset: 0, rings, size }, file))
    }

    /// The records of a split ring of this size and used index, and the state to go on from.
    ///
    /// # Errors
    ///
    /// If they have no part for the ring, or a wrong one.
    pub fn open(&self, ring: u16, size: u16, used: u16) -> Result<(Records<DEFAULT_SIZE>, State)> {
        let part = self.part(ring, Records::<DEFAULT_SIZE>::bytes(self.described.size))?;
        Ok(Records::open(part, size, used)?)
    }

    /// Those of a packed ring.
    ///
    /// # Errors
    ///
    /// If they have no part for the ring.
    pub fn of_packed(&self, ring: u16) -> Result<Span> {
        self.part(ring, PackedRecords::<DEFAULT_SIZE>::bytes(self.described.size))
    }

    /// The part of a ring, of so many bytes each.
    fn part(&self, ring: u16, bytes: u64) -> Result<Span> {
        let there = self.mapping.span().filter(|_| ring < self.described.rings);
        let part = there.and_then(|span| span.sub(u64::from(ring) * bytes, bytes));
        part.with_context(|| format!("there are no records for ring {ring}"))
    }

    /// As the front end handed them over.
    pub fn handed(&self) -> (Inflight, BorrowedFd<'_>) {
        (self.described, self.file.as_fd())
    }

    /// Did the file become shorter?
    pub fn has_shrunk(&self) -> bool {
        self.mapping.has_shrunk()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_comes_back_and_nothing_longer() {
        let (made, file) = Kept::make(4, MAX_RING, 4).expect("there is memory");
        let copy = || file.try_clone().expect("a copy");
        assert!(Kept::map(made, copy().into(), 4).is_ok());
        let len = 1 << 46;
        ftruncate(&file, len).expect("it grows");
        let long =
            Kept::map(Inflight { len, ..made }, copy().into(), 4).err().expect("it is too long");
        assert!(long.to_string().contains("too long"), "{long}");
        assert!(Kept::make(5, MAX_RING, 4).is_err());
    }
}
