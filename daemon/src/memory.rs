//! A guest's memory, as its front end hands it over.

use crate::foreign::{Foreign, Lent};
use anyhow::{Context as _, Result, bail};
use daemon_os::{GuestRegion, MOST, Mapping};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, fcntl_get_seals, fstatfs, statx};
use std::sync::Arc;
use vhost_user::Region;

/// File systems on a disk of the host's whose files may be memory: ext2 to ext4, XFS, F2FS.
const ON_DISKS: [u64; 3] = [0xef53, 0x5846_5342, 0xf2f5_2010];

/// Fails if whoever touches this file could be made to wait for other programs, as with FUSE, NFS,
/// CIFS and 9P. Finding that out asks none of them, either: files of memory have seals, and a file
/// system without a block device isn't asked what it is. So btrfs, ZFS and overlays are refused,
/// too: they have none of their own, and what tells them from FUSE without asking (`statmount`) is
/// a system call more, of Linux 6.8.
///
/// # Errors
///
/// That, or that the file doesn't say.
pub fn refuse_slow(file: &OwnedFd) -> Result<()> {
    // A memfd's, or one of tmpfs or hugetlbfs: the kernel itself knows.
    if fcntl_get_seals(file).is_ok() {
        return Ok(());
    }
    let status = known_of(file).context("its file says nothing of itself")?;
    // A device's file is where its node is, and is none of that file system's.
    let kind = FileType::from_raw_mode(status.stx_mode.into());
    if status.stx_dev_major != 0 && kind == FileType::RegularFile {
        let kind = fstatfs(file).context("its file says nothing of itself")?.f_type as u64;
        if ON_DISKS.contains(&(kind & 0xffff_ffff)) {
            return Ok(());
        }
    }
    bail!(
        "its file is neither of memory nor of ext4, XFS or F2FS, so whoever touches it might wait \
         for others; memory-backend-memfd, or a file in /dev/shm, is served"
    );
}

/// What the kernel knows of a file, without asking a server of its file system.
pub fn known_of(file: impl AsFd) -> rustix::io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, "", flags, StatxFlags::BASIC_STATS)
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

/// Maps a region: its file, too, which stays open until it isn't mapped any more.
///
/// # Errors
///
/// If the file is too short or of a file system that could make all wait.
pub fn map(region: Region, file: Foreign) -> Result<(GuestRegion, Arc<Lent>)> {
    let file = file.known(refuse_slow);
    let file = file.with_context(|| format!("the memory at {:#x}", region.guest))?;
    let mapping = Mapping::of_file(&file, region.offset, region.len);
    let mapping = mapping.with_context(|| {
        format!("the memory at {:#x} of {} bytes can't be mapped", region.guest, region.len)
    })?;
    let file = Lent::new(file);
    let mapping = mapping.keeping(file.clone());
    Ok((GuestRegion::from((region.guest, mapping)), file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn memory_is_of_memory_or_of_a_disk() {
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd");
        refuse_slow(&memory).expect("it is memory");
        // File systems that are on no disk, as those of servers.
        // A folder of whatever file system is not memory, either.
        let folder = env!("CARGO_MANIFEST_DIR");
        for path in ["/proc/version", "/sys/kernel/mm", folder] {
            let Ok(file) = std::fs::File::open(path) else { continue };
            let said = refuse_slow(&file.into()).expect_err("it isn't memory").to_string();
            assert!(said.contains("neither of memory"), "{said}");
        }
    }
}
