//! A guest's memory, as its front end hands it over.

use anyhow::{Context as _, Result, bail};
use daemon_os::{GuestRegion, MOST, Mapping};
use rustix::fd::OwnedFd;
use rustix::fs::fstatfs;
use std::sync::Arc;
use vhost_user::Region;

/// File systems whose files make whoever touches them wait for other programs: FUSE, NFS, CIFS, 9P.
const SLOW: [u64; 4] = [0x6573_5546, 0x6969, 0xff53_4d42, 0x0102_1997];

/// Fails if a file is of such a file system.
///
/// # Errors
///
/// That, or that the file doesn't say.
pub fn refuse_slow(file: &OwnedFd) -> Result<()> {
    let kind = fstatfs(file).context("its file says nothing of itself")?.f_type as u64;
    if SLOW.contains(&(kind & 0xffff_ffff)) {
        bail!("its file is of a network or user file system");
    }
    Ok(())
}

/// Fails if regions of these lengths are more than a guest may have: before any is mapped, since
/// addresses stay taken.
///
/// # Errors
///
/// That.
pub fn fits(lengths: impl Iterator<Item = u64>) -> Result<()> {
    if lengths.fold(0, u64::saturating_add) > MOST {
        bail!("a guest's memory has more than {} TiB", MOST >> 40);
    }
    Ok(())
}

/// Maps a region.
///
/// # Errors
///
/// If the file is too short or of a file system that could make all wait.
pub fn map(region: Region, file: &OwnedFd) -> Result<GuestRegion> {
    refuse_slow(file).with_context(|| format!("the memory at {:#x}", region.guest))?;
    let mapping = Mapping::of_file(file, region.offset, region.len);
    let mapping = mapping.with_context(|| {
        format!("the memory at {:#x} of {} bytes can't be mapped", region.guest, region.len)
    })?;
    Ok(GuestRegion { guest: region.guest, mapping: Arc::new(mapping) })
}
