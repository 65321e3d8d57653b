//! Files that a measurement writes: claimed before anything runs, whole or not there.

use anyhow::{Context as _, Result};
use std::{
    fs::{self, Permissions},
    io::{ErrorKind, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tempfile::{Builder, NamedTempFile};

/// A file that can be written, once its text is there. Dropped before, it leaves no trace.
pub struct Output {
    path: PathBuf,
    new: NamedTempFile,
}

impl Output {
    /// Makes sure that the file can be written, by making a temporary one beside it.
    pub fn claim(path: &Path) -> Result<Output> {
        let refused = || format!("{} can't be written", path.display());
        if path.is_dir() {
            return Err(anyhow::anyhow!("it is a folder; a file's name is needed"))
                .with_context(refused);
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        // The mode that any program gives a new file; the user's umask is taken from it.
        let new = Builder::new()
            .prefix(".exitless-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .with_context(refused)?;
        Ok(Output { path: path.to_owned(), new })
    }

    /// Writes it, in one step as others see it.
    pub fn write(mut self, text: &str) -> Result<()> {
        let refused = || format!("{} can't be written", self.path.display());
        self.new
            .write_all(text.as_bytes())
            .and_then(|()| self.new.flush())
            .with_context(refused)?;
        self.new.persist(&self.path).with_context(refused)?;
        Ok(())
    }
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
    fn what_cannot_be_written_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let error = |path: &Path| format!("{:#}", Output::claim(path).err().unwrap());
        let missing = folder.path().join("no/report.json");
        assert!(error(&missing).contains("no/report.json can't be written: "));
        assert!(error(folder.path()).contains("can't be written: it is a folder"));
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = format!("{:#}", Folder::claim(&file).err().unwrap());
        assert!(error.contains("file can't be made: "), "{error}");
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
