//! How a file or block device is opened: locked as QEMU locks images, and a second time for direct
//! I/O where that goes.

use crate::disk;
use crate::sandbox::folder;
use anyhow::{Context as _, Result, anyhow, bail};
use blk::SECTOR;
use daemon_os::{InUse, lock};
use rustix::event::{Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Access as Rights, AtFlags, OFlags, SeekFrom, StatxFlags, access, seek, statx};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// A lock may be that of a daemon that was killed, whose last I/O still goes on: the kernel keeps
/// it until that has ended, and so long nothing else may touch the file.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);

/// Who has a lock.
const TOLD: &str = "`lslocks` says which";

/// A file that is open and locked.
pub struct Opened {
    pub file: File,
    /// The same, by which the page cache is gone around, and what addresses and offsets must be
    /// multiples of.
    pub direct: Option<(File, u64, u64)>,
    /// Bytes.
    pub size: u64,
    /// A file that can become shorter.
    pub is_regular: bool,
    /// Bytes of a block, if it is a block device; 1 of a file.
    pub unit: u64,
}

/// How it is accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub read_only: bool,
    /// All of it goes through the page cache; else only what can't go around.
    pub page_cache: bool,
    /// It is what it is, also if it looks like another program's image.
    pub raw: bool,
}

/// Opens it.
///
/// # Errors
///
/// In a sentence: it isn't there, isn't a file, can't be opened, isn't raw, is in use.
pub fn open(path: &Path, access: Access) -> Result<Opened> {
    let open = |flags: OFlags| {
        let mut options = File::options();
        options.read(true).write(!access.read_only).custom_flags(flags.bits() as i32).open(path)
    };
    may_be_one(path)?;
    let opened = open(OFlags::empty());
    // By what the user may: who opens for the daemon is refused otherwise for want of a right.
    if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
        && !access.read_only
    {
        may_write(path, &[Errno::ACCESS, Errno::ROFS])?;
    }
    let (file, size, is_regular) = known(path, opened, access)?;
    lock_it(path, &file, !access.read_only)?;
    fits(path, size)?;
    let around = alignment(&file).filter(|_| !access.page_cache);
    let direct = around.and_then(|(memory, offset)| {
        open(OFlags::DIRECT).ok().map(|direct| (direct, memory, offset))
    });
    let unit = unit(&file, is_regular);
    Ok(Opened { file, direct, size, is_regular, unit })
}

/// Looks whether it could be opened, `locks` it or not: its size. It is read, and not locked.
///
/// # Errors
///
/// As for [`open`], with what would be right.
pub fn looked_at(path: &Path, access: Access, locks: bool) -> Result<u64> {
    may_be_one(path)?;
    let (file, size, _) = known(path, File::open(path), access)?;
    if !access.read_only {
        may_write(path, &[Errno::ACCESS, Errno::ROFS, Errno::PERM])?;
    }
    if locks {
        // Without locks there is nothing to tell.
        in_use(path, daemon_os::in_use(&file, !access.read_only).ok().flatten())?;
    }
    fits(path, size)?;
    Ok(size)
}

/// Fails if the system says so, by one of these, that this user can't write it.
fn may_write(path: &Path, if_any: &[Errno]) -> Result<()> {
    may_enter(path)?;
    match access(path, Rights::WRITE_OK) {
        Err(error) if if_any.contains(&error) => {
            let shown = path.display();
            let own = path.metadata().is_ok_and(|there| there.uid() == geteuid().as_raw());
            let mend = if own { "chmod u+w" } else { "chown" };
            bail!(
                "this user can't write {shown}; `{mend}` it, or say read_only = true (--read-only)"
            )
        }
        _ => Ok(()),
    }
}

/// Fails if this user can't enter one of the folders that it lies in.
fn may_enter(path: &Path) -> Result<()> {
    let folders: Vec<_> = path.ancestors().skip(1).collect();
    for folder in folders.into_iter().rev().filter(|folder| !folder.as_os_str().is_empty()) {
        if access(folder, Rights::EXEC_OK) == Err(Errno::ACCESS) {
            let (shown, folder) = (path.display(), folder.display());
            bail!("this user can't enter {folder}, where {shown} is; `chmod` or `chown` the folder")
        }
    }
    Ok(())
}

/// Fails if what is there can't be a disk, whatever it says of itself. It isn't opened: who opens a
/// FIFO waits.
fn may_be_one(path: &Path) -> Result<()> {
    let Ok(there) = path.metadata() else { return Ok(()) };
    let kind = there.file_type();
    let is_one = kind.is_file() || kind.is_block_device();
    let names = [
        (kind.is_dir(), "folder"),
        (kind.is_char_device(), "character device"),
        (kind.is_fifo(), "FIFO"),
    ];
    let name = names.iter().find(|(is_it, _)| *is_it).map_or("socket", |(_, name)| *name);
    if is_one {
        return Ok(());
    }
    bail!("{} is a {name}; a file or a block device is needed", path.display())
}

/// Fails unless a file of so many bytes can be a disk.
///
/// # Errors
///
/// In a sentence, with what would be right.
pub fn fits(path: &Path, size: u64) -> Result<()> {
    let shown = path.display();
    disk::fits(&shown.to_string(), size).map_err(|why| {
        let (longer, what) = match size {
            0 => ("10G".into(), "makes it 10 GiB long"),
            _ => (format!("%{SECTOR}"), "makes it as much longer"),
        };
        anyhow!("{why}; `truncate -s {longer} {shown}` {what}")
    })
}

/// What was opened, if it can be a disk, its size, and whether it is a file.
fn known(path: &Path, opened: std::io::Result<File>, access: Access) -> Result<(File, u64, bool)> {
    let shown = path.display();
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound && folder(path).is_dir() => {
            bail!("{shown} isn't there; `truncate -s 10G {shown}` makes one of 10 GiB")
        }
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("{shown} isn't there"),
        Err(error) => {
            may_enter(path)?;
            return Err(error).with_context(|| format!("{shown} can't be opened"));
        }
    };
    let kind = file.metadata().with_context(|| format!("{shown} says nothing of itself"))?;
    if let Some(format) = super::format::of(&file).filter(|_| !access.raw) {
        bail!(
            "{shown} is a {format} image, whose first write would ruin it; have qemu-nbd serve it \
             (`nbd`, --nbd), convert it by qemu-img convert -O raw, or say that it is meant as it \
             is by raw = true (--raw)"
        );
    }
    // Of block devices the metadata doesn't say it.
    let size = seek(&file, SeekFrom::End(0)).with_context(|| format!("{shown} has no size"))?;
    Ok((file, size, kind.is_file()))
}

/// Bytes of a block of a device, as direct I/O has them; sectors, where the system doesn't say it.
fn unit(file: &File, is_regular: bool) -> u64 {
    let said = alignment(file).map(|(_, offset)| offset.max(SECTOR));
    if is_regular { 1 } else { said.filter(|unit| unit.is_power_of_two()).unwrap_or(SECTOR) }
}

/// What another program opened and locked: the file, and perhaps the same for direct I/O.
///
/// # Errors
///
/// If there is none, or it says nothing of itself.
pub fn taken_over(path: &Path, files: Vec<OwnedFd>, size: u64) -> Result<Opened> {
    let shown = path.display();
    let mut files = files.into_iter().map(File::from);
    let file = files.next().with_context(|| format!("{shown} didn't come along"))?;
    let kind = file.metadata().with_context(|| format!("{shown} says nothing of itself"))?;
    let direct = files.next().zip(alignment(&file));
    let direct = direct.map(|(direct, (memory, offset))| (direct, memory, offset));
    let unit = unit(&file, kind.is_file());
    Ok(Opened { file, direct, size, is_regular: kind.is_file(), unit })
}

/// What direct I/O asks of addresses and of offsets, if the file can be accessed so.
fn alignment(file: &File) -> Option<(u64, u64)> {
    let said = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if said.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    let (memory, offset) = (said.stx_dio_mem_align.into(), said.stx_dio_offset_align.into());
    (memory > 0 && offset > 0).then_some((memory, offset))
}

fn in_use(path: &Path, found: Option<InUse>) -> Result<()> {
    let shown = path.display();
    match found {
        None => Ok(()),
        Some(InUse::Writes) => {
            bail!("{shown} is in use: another program has locked it for writing; {TOLD}")
        }
        Some(InUse::Excludes) => {
            bail!("{shown} is in use: another program has locked it against writers; {TOLD}")
        }
    }
}

fn lock_it(path: &Path, file: &File, writes: bool) -> Result<()> {
    let began = Instant::now();
    loop {
        let shown = path.display();
        match lock(file, writes) {
            Ok(Some(_)) if began.elapsed() < LOCK_PATIENCE => {
                let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
            }
            Ok(found) => return in_use(path, found),
            Err(error) => {
                eprintln!(
                    "exitless-io: {shown} can't be locked, so nothing keeps others from \
                     writing to it: {error}"
                );
                return Ok(());
            }
        }
    }
}
