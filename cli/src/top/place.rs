//! Where the runs of a user offer their sockets: `$XDG_RUNTIME_DIR/exitless`, or `exitless-UID` in
//! the directory for temporary files, each socket named by the process that offers it.
//!
//! Guarantees: the directory is the user's own, and nobody else may look into it, or it
//! isn't used; a socket goes when its run does, and one whose run was killed outright
//! goes when the next one looks.

use anyhow::{Context, Result, bail};
use std::{
    env, fs, io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

const SUFFIX: &str = ".sock";

/// The directory, which may not exist.
pub fn directory() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|d| d.is_dir()) {
        Some(runtime) => runtime.join("exitless"),
        None => env::temp_dir().join(format!("exitless-{}", rustix::process::getuid().as_raw())),
    }
}

/// Sees that the directory is there and private, and removes what dead runs left in it.
pub fn prepare(directory: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(e).with_context(|| format!("{} can't be made", directory.display()));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(directory)
        .with_context(|| format!("{} can't be looked at", directory.display()))?;
    let mine = found.uid() == rustix::process::getuid().as_raw();
    if !found.is_dir() || !mine || found.mode() & 0o077 != 0 {
        bail!("{} must be a directory of yours that nobody else may use", directory.display());
    }
    for (_, path) in sessions(directory).into_iter().filter(|(pid, path)| is_left_over(*pid, path))
    {
        // Another run may have been faster.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// The sockets in the directory, with the processes they are named by, in their order.
pub fn sessions(directory: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|e| {
            let pid = e.file_name().to_str()?.strip_suffix(SUFFIX)?.parse().ok()?;
            Some((pid, e.path()))
        })
        .collect();
    found.sort();
    found
}

/// Nobody listens, and who did is gone: between the two a run may be about to listen.
fn is_left_over(pid: u32, path: &Path) -> bool {
    let refused = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
    !Path::new(&format!("/proc/{pid}")).exists() && UnixStream::connect(path).is_err_and(refused)
}

/// A socket's name, removed when this goes.
#[derive(Debug)]
pub struct Name(PathBuf);

impl Drop for Name {
    fn drop(&mut self) {
        // Fails only when somebody else removed it.
        let _ = fs::remove_file(&self.0);
    }
}

/// Listens in a directory that was prepared, as process `pid`.
pub fn listen(directory: &Path, pid: u32) -> Result<(UnixListener, Name)> {
    let path = directory.join(format!("{pid}{SUFFIX}"));
    if UnixStream::connect(&path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
        // Of an earlier process with our number.
        let _ = fs::remove_file(&path);
    }
    let listener = UnixListener::bind(&path)
        .with_context(|| format!("no socket can be made at {}", path.display()))?;
    Ok((listener, Name(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// More than any process number there can be.
    const NO_PROCESS: u32 = u32::MAX;

    #[test]
    fn a_name_goes_with_its_owner() {
        let parent = tempfile::tempdir().unwrap();
        let d = parent.path().join("d");
        prepare(&d).unwrap();
        assert_eq!(fs::metadata(&d).unwrap().mode() & 0o777, 0o700);
        let (_listener, name) = listen(&d, 7).unwrap();
        assert_eq!(sessions(&d), [(7, d.join("7.sock"))]);
        assert!(listen(&d, 7).is_err(), "one process, one socket");
        drop(name);
        assert_eq!(sessions(&d), []);
    }

    #[test]
    fn only_what_is_dead_is_removed() {
        let d = tempfile::tempdir().unwrap();
        let d = d.path();
        fs::write(d.join("notes"), "").unwrap();
        let me = std::process::id();
        for pid in [NO_PROCESS, NO_PROCESS - 1, me] {
            let (listener, name) = listen(d, pid).unwrap();
            std::mem::forget(name);
            if pid == NO_PROCESS - 1 {
                std::mem::forget(listener);
            }
        }
        fs::set_permissions(d, fs::Permissions::from_mode(0o700)).unwrap();
        prepare(d).unwrap();
        let left: Vec<_> = sessions(d).into_iter().map(|(pid, _)| pid).collect();
        assert_eq!(left, [me, NO_PROCESS - 1]);
        assert!(d.join("notes").exists());
        // What this process's number left behind is in nobody's way.
        listen(d, me).unwrap();
    }

    #[test]
    fn a_directory_that_others_may_use_is_not_used() {
        let d = tempfile::tempdir().unwrap();
        fs::set_permissions(d.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let error = prepare(d.path()).unwrap_err().to_string();
        assert!(error.contains("nobody else"), "{error}");
        let link = d.path().join("link");
        std::os::unix::fs::symlink(d.path(), &link).unwrap();
        assert!(prepare(&link).is_err());
        assert!(prepare(&d.path().join("no/such")).is_err());
    }
}
