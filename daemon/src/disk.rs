//! What a disk's data is kept by. Every operation is done when it is asked for, so requests end in
//! the order in which they were taken: what `connection` says of restarts rests on that.

use anyhow::{Context as _, Result, bail};
use blk::backend::{Null, Ram};
use blk::config::SERIAL_BYTES;
use blk::{Backend, Completion, Config, Failure, Operation, Parameters, SECTOR, Submitted, Token};
use daemon_os::{Mapping, read_at, write_at};
use rustix::fs::{SeekFrom, fdatasync, seek};
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

/// A disk, and its data.
pub struct Disk {
    pub config: Config,
    pub store: Store,
    name: String,
    /// What a disk in memory lies in.
    _memory: Option<Mapping>,
}

/// The data.
pub enum Store {
    Null(Null),
    Ram(Ram),
    File(File),
}

impl Disk {
    /// A disk of so many bytes that keeps nothing.
    pub fn null(bytes: u64, queues: u16, read_only: bool) -> Result<Disk> {
        Self::new("null".into(), bytes, queues, read_only, Store::Null(Null))
    }

    /// A disk in memory, of so many bytes.
    pub fn ram(bytes: u64, queues: u16, read_only: bool) -> Result<Disk> {
        let mapping = Mapping::anonymous(bytes).context("there isn't that much memory")?;
        let span = mapping.span().context("there isn't that much memory")?;
        let disk = Self::new("ram".into(), bytes, queues, read_only, Store::Ram(Ram::new(span)))?;
        Ok(Disk { _memory: Some(mapping), ..disk })
    }

    /// A disk that is a file or block device.
    pub fn file(path: &Path, queues: u16, read_only: bool) -> Result<Disk> {
        let shown = path.display();
        let file = match File::options().read(true).write(!read_only).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => bail!("{shown} isn't there"),
            Err(error) => return Err(error).with_context(|| format!("{shown} can't be opened")),
        };
        let kind = file.metadata().with_context(|| format!("{shown} says nothing of itself"))?;
        if kind.is_dir() {
            bail!("{shown} is a directory");
        }
        // Of block devices the metadata doesn't say it.
        let bytes =
            seek(&file, SeekFrom::End(0)).with_context(|| format!("{shown} has no size"))?;
        Self::new(shown.to_string(), bytes, queues, read_only, Store::File(file))
    }

    /// The same, and a guest may read this serial number of it: 20 bytes at most.
    pub fn with_serial(self, serial: &str) -> Result<Disk> {
        let mut bytes = [0; SERIAL_BYTES];
        bytes.iter_mut().zip(serial.bytes()).for_each(|(to, from)| *to = from);
        let parameters = Parameters { serial: bytes, ..*self.config.parameters() };
        Ok(Disk { config: Config::new(parameters)?, ..self })
    }

    fn new(name: String, bytes: u64, queues: u16, read_only: bool, store: Store) -> Result<Disk> {
        if !bytes.is_multiple_of(SECTOR) {
            bail!("{name} has {bytes} bytes, which isn't a multiple of {SECTOR}");
        }
        let capacity = bytes / SECTOR;
        let parameters = Parameters { capacity, queues, read_only, ..Parameters::default() };
        let config = Config::new(parameters).with_context(|| format!("{name} can't be a disk"))?;
        Ok(Disk { config, store, name, _memory: None })
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sectors = self.config.parameters().capacity;
        write!(f, "{} ({sectors} sectors of {SECTOR} bytes)", self.name)
    }
}

impl Backend for Store {
    #[inline]
    fn submit(&mut self, token: Token, operation: Operation<'_>) -> Submitted {
        match self {
            Store::Null(null) => null.submit(token, operation),
            Store::Ram(ram) => ram.submit(token, operation),
            Store::File(file) => Submitted::Done(on_file(file, operation)),
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        None
    }
}

fn on_file(file: &File, operation: Operation<'_>) -> Result<(), Failure> {
    let at = |sector: u64| sector.checked_mul(SECTOR).ok_or(Failure::Io);
    let io = |_| Failure::Io;
    match operation {
        Operation::Read { sector, into } => read_at(file, at(sector)?, into).map_err(io),
        Operation::Write { sector, from, durable } => {
            write_at(file, at(sector)?, from).map_err(io)?;
            if durable { fdatasync(file).map_err(|_| Failure::Io) } else { Ok(()) }
        }
        Operation::Flush => fdatasync(file).map_err(|_| Failure::Io),
        Operation::Discard { .. } | Operation::WriteZeroes { .. } => Err(Failure::Unsupported),
    }
}

/// A size in bytes, or with K, M, G or T (powers of 1,024).
pub fn size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        Some((at, 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("{text} isn't a size: a number, or one with K, M, G or T"))
}
