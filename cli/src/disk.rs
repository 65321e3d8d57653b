//! Disks of `exitless run`: images that the user names, and one that is made for a run.
//!
//! Guarantees: what [`check`] accepts is a raw image that a guest can have as a disk; a [`Scratch`]
//! leaves nothing behind however the run ends.

use crate::{mistaken, unnamed::Unnamed};
use anyhow::{Context, Result, anyhow, bail};
use plan::Size;
use rustix::{
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
};
use std::{
    fs::{self, File},
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

/// Bytes of a disk that is made for a run.
pub const SCRATCH: u64 = 1 << 30;
/// Bytes of a block, as the emulated NVMe controller has them.
const BLOCK: u64 = 512;

/// Whether the images can be disks; the first fault if not.
pub fn check(images: &[PathBuf]) -> Result<()> {
    for (i, path) in images.iter().enumerate() {
        check_one(path).context("--disk")?;
        let same = |other: &PathBuf| other.canonicalize().ok() == path.canonicalize().ok();
        if images.iter().take(i).any(same) {
            bail!("--disk: {} is given twice; each disk needs an image of its own", path.display());
        }
    }
    Ok(())
}

fn check_one(path: &Path) -> Result<()> {
    let name = path.display();
    let found = fs::metadata(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => anyhow!("{name} doesn't exist"),
        _ => anyhow!("{name} can't be looked at: {e}"),
    })?;
    if found.is_dir() {
        bail!("{name} is a folder; a raw image is needed");
    }
    if !found.is_file() {
        bail!("{name} is a device or a pipe; a raw image in a file is needed");
    }
    let size = found.len();
    if size == 0 {
        bail!("{name} is empty; `truncate -s 1G {name}` makes a disk of 1G of it");
    }
    if !size.is_multiple_of(BLOCK) {
        bail!("{name} has {size} bytes, which is no multiple of {BLOCK}, a disk's block");
    }
    let mut file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| anyhow!("{name} can't be opened for writing: {e}"))?;
    let mut start = [0; BLOCK as usize];
    if is_in_use(&file) {
        bail!("{name} is in use by another process, such as a VM that has it as its disk");
    }
    file.read_exact(&mut start).with_context(|| format!("{name} can't be read"))?;
    if let Some(format) = mistaken::disk_format(&start) {
        bail!(
            "{name} is a {format} image, and a raw one is needed; `qemu-img convert -O raw {name} disk.img` makes one"
        );
    }
    Ok(())
}

/// Whether another process has a lock on an image, as QEMU has while a machine uses it. The lock
/// that is tried goes when the file is closed. A file system without locks protects nobody.
fn is_in_use(file: &File) -> bool {
    let tried = fcntl_lock(file, FlockOperation::NonBlockingLockExclusive);
    matches!(tried, Err(Errno::AGAIN | Errno::ACCESS))
}

/// An empty disk that goes when this does: a sparse file without a name.
#[derive(Debug)]
pub struct Scratch(Unnamed);

impl Scratch {
    /// Makes it. Room is taken only for what is written.
    pub fn new() -> Result<Scratch> {
        let file = Unnamed::new()?;
        file.file().set_len(SCRATCH).with_context(|| {
            format!("no temporary file of {} can be made for a disk", Size(SCRATCH))
        })?;
        Ok(Scratch(file))
    }

    /// Where other processes of this user find it.
    pub fn path(&self) -> PathBuf {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process;
    use std::{
        io::{BufRead, BufReader, Seek, SeekFrom, Write},
        os::unix::fs::MetadataExt,
    };

    fn refusal(path: &Path) -> String {
        format!("{:#}", check(&[path.to_owned()]).unwrap_err())
    }

    #[test]
    fn what_can_be_no_disk_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, contents: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, contents).unwrap();
            path
        };
        let named = |name: &str| format!("--disk: {}", folder.path().join(name).display());
        let missing = folder.path().join("nope");
        assert_eq!(refusal(&missing), format!("{} doesn't exist", named("nope")));
        let at = folder.path();
        let said = "is a folder; a raw image is needed";
        assert_eq!(refusal(at), format!("--disk: {} {said}", at.display()));
        let said = "is empty; `truncate -s 1G ";
        assert!(refusal(&file("empty", b"")).starts_with(&format!("{} {said}", named("empty"))));
        let said = "has 1000 bytes, which is no multiple of 512, a disk's block";
        assert_eq!(refusal(&file("odd", &[0; 1000])), format!("{} {said}", named("odd")));
        let null = Path::new("/dev/null");
        assert!(refusal(null).starts_with("--disk: /dev/null is a device or a pipe; "));
        let mut qcow2 = b"QFI\xFB\0\0\0\x03".to_vec();
        qcow2.resize(1024, 0);
        assert!(refusal(&file("q", &qcow2)).contains(" is a qcow2 image, and a raw one is"));
        let good = file("good", &[0; 1024]);
        assert!(check(std::slice::from_ref(&good)).is_ok());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&good, &link).unwrap();
        let twice = format!("{:#}", check(&[good, link]).unwrap_err());
        assert_eq!(
            twice,
            format!("{} is given twice; each disk needs an image of its own", named("link"))
        );
    }

    /// Names the image that a second process of this test is to lock.
    const TO_LOCK: &str = "EXITLESS_TEST_LOCKS";

    /// Locks belong to processes: one doesn't stand in the way of its own.
    #[test]
    fn a_disk_that_another_process_uses_is_refused() {
        if let Some(path) = std::env::var_os(TO_LOCK) {
            let file = File::options().read(true).write(true).open(path).unwrap();
            fcntl_lock(&file, FlockOperation::NonBlockingLockShared).unwrap();
            println!("locked");
            // Until the other process has looked.
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.img");
        fs::write(&path, [0; 1024]).unwrap();
        assert!(check(std::slice::from_ref(&path)).is_ok());
        let name = "disk::tests::a_disk_that_another_process_uses_is_refused";
        let mut other = process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", name])
            .env(TO_LOCK, &path)
            .stdin(process::Stdio::piped())
            .stdout(process::Stdio::piped())
            .spawn()
            .unwrap();
        // Open until it has ended: the test says how it went, too.
        let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
        let locked = lines.any(|line| line.is_ok_and(|line| line.ends_with("locked")));
        let told = locked.then(|| refusal(&path));
        drop(other.stdin.take());
        assert!(other.wait().unwrap().success());
        let said = "is in use by another process, such as a VM that has it as its disk";
        assert_eq!(told, Some(format!("--disk: {} {said}", path.display())));
        assert!(check(&[path]).is_ok());
    }

    #[test]
    fn a_scratch_disk_keeps_what_is_written_takes_no_room_and_has_no_name() {
        let disk = Scratch::new().unwrap();
        let open = || File::options().read(true).write(true).open(disk.path()).unwrap();
        let mut guest = open();
        guest.seek(SeekFrom::Start(512 << 20)).unwrap();
        guest.write_all(b"data").unwrap();
        let (mut again, mut read) = (open(), [0; 4]);
        again.seek(SeekFrom::Start(512 << 20)).unwrap();
        again.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"data");
        let found = again.metadata().unwrap();
        assert_eq!((found.len(), found.nlink()), (SCRATCH, 0));
        assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
    }
}
