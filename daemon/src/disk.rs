//! A disk: its configuration, and what its data is kept by.

use anyhow::{Context as _, Result, bail};
use blk::backend::{Null, Ram};
use blk::config::SERIAL_BYTES;
use blk::{Config, PIECE_RANGE, Parameters, SECTOR};
use daemon_os::Mapping;
use std::fmt;
use std::path::Path;

use crate::storage::{FileStore, NbdStore, Store};

/// Sectors of a discard or write-zeroes request at most: 1 GiB, done piece by piece.
const RANGE: u32 = 1 << 21;
const _: () = assert!((RANGE as u64 * SECTOR).is_multiple_of(PIECE_RANGE as u64));

/// A disk, and its data.
pub struct Disk {
    pub config: Config,
    pub store: Store,
    name: String,
    /// It is among those that are asked what has ended.
    pub is_asked: bool,
    /// Operations that it hadn't ended when their ring was given up.
    pub abandoned: u64,
    /// What a disk in memory lies in.
    _memory: Option<Mapping>,
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
        let file = FileStore::open(path, read_only)?;
        let (name, bytes) = (path.display().to_string(), file.size());
        Self::new(name, bytes, queues, read_only, Store::File(Box::new(file)))
    }

    /// A disk that an NBD server keeps.
    pub fn nbd(uri: &str, queues: u16, read_only: bool) -> Result<Disk> {
        let store = NbdStore::open(uri, read_only)?;
        let bytes = store.export().size;
        Self::new(uri.to_owned(), bytes, queues, read_only, Store::Nbd(Box::new(store)))
    }

    /// The same, and a guest may read this serial number of it: 20 bytes at most.
    pub fn with_serial(self, serial: &str) -> Result<Disk> {
        let mut bytes = [0; SERIAL_BYTES];
        bytes.iter_mut().zip(serial.bytes()).for_each(|(to, from)| *to = from);
        let parameters = Parameters { serial: bytes, ..*self.config.parameters() };
        Ok(Disk { config: Config::new(parameters)?, ..self })
    }

    fn new(name: String, bytes: u64, queues: u16, read_only: bool, store: Store) -> Result<Disk> {
        if bytes == 0 {
            bail!("{name} has no bytes, and a disk needs {SECTOR} at least");
        }
        if !bytes.is_multiple_of(SECTOR) {
            bail!("{name} has {bytes} bytes, which isn't a multiple of {SECTOR}");
        }
        let capacity = bytes / SECTOR;
        let range = match &store {
            Store::File(_) | Store::Nbd(_) if !read_only => RANGE,
            _ => 0,
        };
        let block_size = match &store {
            Store::Nbd(nbd) => nbd.export().minimum_block.max(SECTOR as u32),
            _ => SECTOR as u32,
        };
        let parameters = Parameters {
            capacity,
            block_size,
            queues,
            read_only,
            discard: range,
            write_zeroes: range,
            write_zeroes_may_unmap: true,
            ..Parameters::default()
        };
        let config = Config::new(parameters).with_context(|| format!("{name} can't be a disk"))?;
        Ok(Disk { config, store, name, is_asked: false, abandoned: 0, _memory: None })
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sectors = self.config.parameters().capacity;
        write!(f, "{} ({sectors} sectors of {SECTOR} bytes, {})", self.name, self.store.how())
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
