//! The log of changed pages that a front end hands over, for the migration of its guest.

use crate::foreign::Foreign;
use crate::memory::refuse_slow;
use anyhow::{Context as _, Result, bail};
use daemon_os::Mapping;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use vhost_user::{LogArea, Region};
use virtqueue::{LOG_PAGE, Log};

/// The longest log: of the most memory that a guest may have, and as much again for holes.
const LONGEST: u64 = 1 << 30;

/// The log.
pub struct Changes {
    described: LogArea,
    mapping: Mapping,
    file: OwnedFd,
    /// Which of those that the front end handed over.
    pub number: u64,
}

impl Changes {
    /// What a front end hands over.
    ///
    /// # Errors
    ///
    /// If it can't be mapped.
    pub fn map(described: LogArea, file: Foreign, number: u64) -> Result<Changes> {
        let file = file.known(refuse_slow).context("the log of changed pages")?;
        if described.len > LONGEST {
            bail!("the log of changed pages has {} bytes, which is too long", described.len);
        }
        let len = described.len.next_multiple_of(LOG_PAGE);
        let mapping = Mapping::of_file(&file, described.offset, len);
        let mapping = mapping.context("the log of changed pages can't be mapped")?;
        Ok(Changes { described, mapping, file, number })
    }

    /// What a ring logs: its used ring as this address, and buffers, which are written from the
    /// front if `exact`.
    ///
    /// # Errors
    ///
    /// If the log hasn't a bit for each page of these regions.
    pub fn of_ring(&self, ring: Option<u64>, exact: bool, regions: &[Region]) -> Result<Log> {
        let LogArea { len, .. } = self.described;
        let bits = self.mapping.span().and_then(|all| all.sub(0, len));
        let bits = bits.context("the log of changed pages isn't there")?;
        let end = regions.iter().map(|region| region.guest.saturating_add(region.len)).max();
        let pages = end.unwrap_or(0).div_ceil(LOG_PAGE);
        if pages > len * 8 {
            bail!("the log of changed pages has {len} bytes, too few for {pages} pages");
        }
        Ok(Log { bits, ring, exact })
    }

    /// As the front end handed it over.
    pub fn handed(&self) -> (LogArea, BorrowedFd<'_>) {
        (self.described, self.file.as_fd())
    }

    /// Did the file become shorter?
    pub fn has_shrunk(&self) -> bool {
        self.mapping.has_shrunk()
    }
}
