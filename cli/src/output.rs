//! Files that a command writes: claimed before anything runs, whole or not there.

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Serialize;
use std::{
    fs::{self, Permissions},
    io::{self, ErrorKind, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tempfile::{Builder, NamedTempFile};

/// A file that can be written, once its text is there. Dropped before, it leaves no trace.
pub struct Output {
    path: PathBuf,
    to: To,
}

enum To {
    /// A temporary file, which becomes the file.
    New(NamedTempFile),
    /// What is there and no file, such as a terminal or a pipe.
    There(fs::File),
}

impl Output {
    /// Makes sure that the file can be written, by making a temporary one beside it. What
    /// is there and no file is opened, and stays.
    pub fn claim(path: &Path) -> Result<Output> {
        let refused = || format!("{} can't be written", path.display());
        if path == Path::new("-") {
            bail!("`-` would be standard output, which has what people read; give a file's name");
        }
        match path.metadata() {
            Ok(found) if found.is_dir() => {
                return Err(anyhow!("it is a folder; a file's name is needed"))
                    .with_context(refused);
            }
            Ok(found) if !found.is_file() => {
                let there = fs::File::options().write(true).open(path).with_context(refused)?;
                return Ok(Output { path: path.to_owned(), to: To::There(there) });
            }
            // A name that no file can have would else be noticed when the text is there.
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(refused);
            }
            Ok(_) | Err(_) => {}
        }
        // The file itself, not a link to it.
        let path = path.canonicalize().unwrap_or(path.to_owned());
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        // The mode that any program gives a new file; the user's umask is taken from it.
        let new = Builder::new()
            .prefix(".exitless-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            // The temporary file's name would only confuse.
            .map_err(|e| match e.kind() {
                ErrorKind::NotFound if folder.is_dir() => {
                    anyhow!("no file can be made in {}", folder.display())
                }
                ErrorKind::NotFound => anyhow!("there is no folder {}", folder.display()),
                kind => io::Error::from(kind).into(),
            })
            .with_context(refused)?;
        Ok(Output { path, to: To::New(new) })
    }

    /// Writes it, in one step as others see it. A file that was there keeps who may read it.
    pub fn write(self, contents: &(impl AsRef<[u8]> + ?Sized)) -> Result<()> {
        let refused = || format!("{} can't be written", self.path.display());
        let contents = contents.as_ref();
        match self.to {
            To::New(mut new) => {
                if let Ok(old) = self.path.metadata() {
                    let mode = Permissions::from_mode(old.permissions().mode() & 0o777);
                    new.as_file().set_permissions(mode).with_context(refused)?;
                }
                let written = new.as_file_mut().write_all(contents);
                written.map_err(|e| unwritten(e, contents.len())).with_context(refused)?;
                new.persist(&self.path).map_err(|e| e.error).with_context(refused)?;
            }
            To::There(mut there) => {
                let written = there.write_all(contents);
                written.map_err(|e| unwritten(e, contents.len())).with_context(refused)?;
            }
        }
        Ok(())
    }

    /// Writes this as JSON.
    pub fn write_json(self, value: &impl Serialize) -> Result<()> {
        self.write(&(serde_json::to_string_pretty(value)? + "\n"))
    }
}

/// Why so many bytes weren't written.
fn unwritten(error: io::Error, bytes: usize) -> anyhow::Error {
    match error.kind() {
        ErrorKind::StorageFull => anyhow!("{error}; {bytes} bytes are needed"),
        _ => error.into(),
    }
}

/// Fails if the file to be written for an option is one that a command reads, by whatever name.
/// Each of those comes with words for what it is.
pub fn apart_from(
    option: &str,
    output: &Path,
    inputs: impl IntoIterator<Item = (PathBuf, String)>,
) -> Result<()> {
    for (input, what) in inputs {
        if is_same(output, &input) {
            return Err(anyhow!("{option}: {} is {what}; give another file", output.display()));
        }
    }
    Ok(())
}

/// Whether both names lead to one file: links are followed.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| path.metadata().ok().map(|m| (m.dev(), m.ino()));
    file(one).is_some_and(|found| file(other) == Some(found))
}

/// A folder for several files. When it had to be made and nothing was put into it, it
/// goes away again.
pub struct Folder {
    path: PathBuf,
    made: bool,
}

impl Folder {
    /// The folder, made if it isn't there.
    pub fn claim(path: &Path) -> Result<Folder> {
        let made = match fs::create_dir(path) {
            Ok(()) => true,
            Err(e) if e.kind() == ErrorKind::AlreadyExists && path.is_dir() => false,
            Err(e) => {
                return Err(e).with_context(|| {
                    format!("the report's folder {} can't be made", path.display())
                });
            }
        };
        Ok(Folder { path: path.to_owned(), made })
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> Result<Output> {
        Output::claim(&self.path.join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.made {
            // Fails when there is something in it, as it should.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        fs::write(&path, "old").unwrap();
        drop(Output::claim(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let output = Output::claim(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        output.write("new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(folder.path()), ["report.html"]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o600, 0o600);
    }

    #[test]
    fn a_file_that_was_there_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        for mode in [0o600, 0o644, 0o640] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Output::claim(&path).unwrap().write("new").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
        }
    }

    #[test]
    fn a_link_stays_one_and_what_is_no_file_stays_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        Output::claim(&link).unwrap().write("new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert!(link.is_symlink());
        let null = folder.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &null).unwrap();
        Output::claim(&null).unwrap().write("gone").unwrap();
        assert!(null.is_symlink() && !Path::new("/dev/null").is_file());
        let full = folder.path().join("full");
        std::os::unix::fs::symlink("/dev/full", &full).unwrap();
        let error = format!("{:#}", Output::claim(&full).unwrap().write("x").unwrap_err());
        assert!(error.contains("full can't be written: No space left"), "{error}");
    }

    #[test]
    fn what_cannot_be_written_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let error = |path: &Path| format!("{:#}", Output::claim(path).err().unwrap());
        let missing = folder.path().join("no/report.json");
        assert!(error(&missing).contains("no/report.json can't be written: there is no folder "));
        assert!(error(folder.path()).contains("can't be written: it is a folder"));
        // Root is told that none can be made there, others that it isn't theirs.
        let error_in_proc = error(Path::new("/proc/x"));
        assert!(error_in_proc.starts_with("/proc/x can't be written: "), "{error_in_proc}");
        assert!(!error_in_proc.contains("no folder"), "{error_in_proc}");
        let long = folder.path().join("x".repeat(300));
        assert!(error(&long).contains("x can't be written: File name too long"));
        let said = "`-` would be standard output, which has what people read; give a file's name";
        assert_eq!(error(Path::new("-")), said);
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(error(&file.join("x")).contains("file/x can't be written: Not a directory"));
        let error = format!("{:#}", Folder::claim(&file).err().unwrap());
        assert!(error.contains("file can't be made: "), "{error}");
    }

    #[test]
    fn a_file_that_is_read_is_no_place_to_write_to_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let [disk, link, hard, new] =
            ["d.img", "link", "hard", "new"].map(|name| folder.path().join(name));
        fs::write(&disk, "data").unwrap();
        std::os::unix::fs::symlink(&disk, &link).unwrap();
        fs::hard_link(&disk, &hard).unwrap();
        let inputs = || [(disk.clone(), "the disk of --disk".to_owned())];
        for path in [&disk, &link, &hard] {
            let error = apart_from("--json", path, inputs()).unwrap_err().to_string();
            let said =
                format!("--json: {} is the disk of --disk; give another file", path.display());
            assert_eq!(error, said);
        }
        assert!(apart_from("--json", &new, inputs()).is_ok());
        // Two that aren't there aren't the same.
        assert!(apart_from("--json", &new, [(new.clone(), "none".to_owned())]).is_ok());
    }

    #[test]
    fn a_folder_made_for_nothing_goes() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("report");
        {
            let folder = Folder::claim(&path).unwrap();
            let file = folder.file("a").unwrap();
            assert_eq!(names(&path).len(), 1);
            drop(file);
        }
        assert!(!path.exists());
        let folder = Folder::claim(&path).unwrap();
        folder.file("a").unwrap().write("text").unwrap();
        drop(folder);
        assert_eq!(names(&path), ["a"]);
    }
}
