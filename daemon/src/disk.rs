//! A disk: its configuration, and what its data is kept by.

use anyhow::{Context as _, Result, bail};
use blk::backend::{Null, Ram};
use blk::config::SERIAL_BYTES;
use blk::{Config, PIECE_RANGE, Parameters, SECTOR};
use daemon_os::Mapping;
use plan::Size;
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fmt;
use std::num::IntErrorKind;
use std::path::Path;
use window::ALIGNMENT;

use crate::config::{self, Backing, Server};
use crate::storage::{Access, FileStore, NbdStore, NvmeDisk, Opened, Reached, Store, open};

/// Sectors of a discard or write-zeroes request at most: 1 GiB, done piece by piece.
const RANGE: u32 = 1 << 21;
const _: () = assert!((RANGE as u64 * SECTOR).is_multiple_of(PIECE_RANGE as u64));

/// Bytes of a disk in memory that are handed over at a time.
const PART: u64 = 64 << 10;

/// A disk's data, as another program hands it over.
pub struct Data {
    /// Bytes.
    pub size: u64,
    /// The file, and the same by which the page cache is gone around; or what was in memory.
    pub files: Vec<OwnedFd>,
    /// The file became shorter, so all fails.
    pub has_failed: bool,
    /// An NBD server, the connections to which are the files.
    pub server: Option<Reached>,
}

/// A disk, and its data.
pub struct Disk {
    pub config: Config,
    pub store: Store,
    name: String,
    /// It is among those that are asked what has ended.
    pub is_asked: bool,
    /// Operations that it hadn't ended when their ring was given up.
    pub abandoned: u64,
    /// Places of rings that wait until it has room.
    pub awaited_by: Vec<usize>,
    /// What a disk in memory lies in.
    memory: Option<Mapping>,
}

impl Disk {
    /// A disk of so many bytes that keeps nothing.
    pub fn null(bytes: u64, queues: u16, read_only: bool) -> Result<Disk> {
        Self::new("null".into(), bytes, queues, read_only, Store::Null(Null))
    }

    /// A disk in memory, of so many bytes.
    pub fn ram(bytes: u64, queues: u16, read_only: bool) -> Result<Disk> {
        let mapped = Mapping::anonymous(bytes).ok().filter(|mapping| mapping.span().is_some());
        let mapping = mapped.with_context(|| {
            format!("{} of memory can't be had for it; give it less", Size(bytes))
        })?;
        let span = mapping.span().context("the disk's memory isn't there")?;
        let disk = Self::new("ram".into(), bytes, queues, read_only, Store::Ram(Ram::new(span)))?;
        Ok(Disk { memory: Some(mapping), ..disk })
    }

    /// A disk that is a file or block device.
    pub fn file(path: &Path, access: Access, queues: u16) -> Result<Disk> {
        let file = FileStore::open(path, access)?;
        let read_only = access.read_only;
        let (name, bytes) = (path.display().to_string(), file.size());
        Self::new(name, bytes, queues, read_only, Store::File(Box::new(file)))
    }

    /// The same, opened and locked by another program.
    pub fn opened_file(path: &Path, data: Data, queues: u16, read_only: bool) -> Result<Disk> {
        let Data { size, files, has_failed, .. } = data;
        let file = FileStore::opened(path, files, size, has_failed)?;
        let (name, bytes) = (path.display().to_string(), file.size());
        Self::new(name, bytes, queues, read_only, Store::File(Box::new(file)))
    }

    /// The same, and the system holds guests' memory for it; or not.
    pub fn pinning(mut self, pins: bool) -> Disk {
        if let Store::File(file) = &mut self.store {
            file.set_pins(pins);
        }
        self
    }

    /// Its data, for another program: the files it lies in. None: that one has it anyway.
    pub fn data(&self) -> Result<Option<Data>> {
        match (&self.store, &self.memory) {
            (Store::File(file), _) => {
                let (size, has_failed) = (file.size(), file.has_failed());
                Ok(Some(Data { size, files: file.copies()?, has_failed, server: None }))
            }
            (Store::Nbd(nbd), _) => nbd_data(nbd, None).map(Some),
            (_, Some(memory)) => {
                let file = memfd_create("exitless-io-disk", MemfdFlags::CLOEXEC);
                let file = file.context("the system gives no memory to hand a disk over in")?;
                let span = memory.span().context("the disk's memory isn't there")?;
                ftruncate(&file, span.len()).context("there isn't that much memory")?;
                let copy = Mapping::of_file(&file, 0, span.len().next_multiple_of(ALIGNMENT));
                let copy = copy.context("the memory to hand a disk over in can't be mapped")?;
                let copied = copy.span().context("the memory to hand a disk over in is gone")?;
                let mut bytes = [0; PART as usize];
                for at in (0..span.len()).step_by(PART as usize) {
                    let part = span.sub(at, PART.min(span.len() - at));
                    let part = part.context("the disk's memory isn't there")?;
                    let bytes = &mut bytes[..part.len() as usize];
                    part.read(0, bytes)?;
                    // What is empty stays so without memory.
                    if bytes.iter().any(|byte| *byte != 0) {
                        copied.write(at, bytes)?;
                    }
                }
                if copy.has_shrunk() {
                    bail!("the system has no memory left to hand a disk over in");
                }
                let (size, files) = (span.len(), vec![file]);
                Ok(Some(Data { size, files, has_failed: false, server: None }))
            }
            _ => Ok(None),
        }
    }

    /// Takes over what was in another program's memory.
    pub fn fill(&self, data: Data) -> Result<()> {
        let span = self.memory.as_ref().and_then(Mapping::span);
        let span = span.filter(|span| span.len() == data.size);
        let span = span.context("the disk in memory has another size")?;
        let file = data.files.first().context("the disk's data didn't come along")?;
        let mut bytes = [0; PART as usize];
        for at in (0..span.len()).step_by(PART as usize) {
            let bytes = &mut bytes[..PART.min(span.len() - at) as usize];
            let mut done = 0;
            while done < bytes.len() {
                match rustix::io::pread(file, &mut bytes[done..], at + done as u64) {
                    Ok(0) => bail!("the disk's data is shorter than the disk"),
                    Ok(count) => done += count,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error).context("the disk's data can't be read"),
                }
            }
            // Untouched memory is zeroes, and isn't there.
            if bytes.iter().any(|byte| *byte != 0) {
                span.write(at, bytes)?;
            }
        }
        Ok(())
    }

    /// A disk that an NBD server keeps, which another process may have reached.
    pub fn nbd(server: &Server, data: Option<Data>, queues: u16, read_only: bool) -> Result<Disk> {
        let reached = data.and_then(|data| data.server.map(|server| (server, data.files)));
        let store = NbdStore::open(server, read_only, reached)?;
        let bytes = store.export().size;
        Self::new(server.uri.clone(), bytes, queues, read_only, Store::Nbd(Box::new(store)))
    }

    /// A disk on a controller.
    pub fn nvme(store: NvmeDisk, queues: u16, read_only: bool) -> Result<Disk> {
        let (name, bytes) = (store.disk.name(), store.disk.size());
        Self::new(name, bytes, queues, read_only, Store::Nvme(Box::new(store)))
    }

    /// The same, and a guest may read this serial number of it: 20 bytes at most; with packed rings
    /// or without.
    pub fn with(self, serial: &str, packed: bool) -> Result<Disk> {
        let serial = serial_bytes(serial);
        let parameters = Parameters { serial, packed, ..*self.config.parameters() };
        Ok(Disk { config: Config::new(parameters)?, ..self })
    }

    /// Its configuration if it were served as this says, which has the same data.
    pub fn config_as(&self, asked: &config::Disk) -> Result<Config> {
        let config::Disk { queues, read_only, packed, .. } = *asked;
        let serial = serial_bytes(&asked.serial);
        let own = *self.config.parameters();
        Ok(Config::new(Parameters { queues, read_only, packed, serial, ..own })?)
    }

    /// The same data behind this configuration. No ring has it any more.
    pub fn with_config(self, config: Config) -> Disk {
        Disk { config, is_asked: false, awaited_by: Vec::new(), ..self }
    }

    /// It, which has this place, was asked for something: it is among those that are `asked` what
    /// has ended from now on, if that wasn't done at once.
    #[inline]
    pub fn hear(&mut self, place: usize, asked: &mut Vec<usize>) {
        if self.store.outstanding() > 0 && !self.is_asked {
            self.is_asked = true;
            asked.push(place);
        }
    }

    fn new(name: String, bytes: u64, queues: u16, read_only: bool, store: Store) -> Result<Disk> {
        fits(&name, bytes)?;
        let capacity = bytes / SECTOR;
        let (discards, zeroes) = match &store {
            Store::File(_) | Store::Nbd(_) => (true, true),
            Store::Nvme(nvme) => (nvme.disk.abilities().discards, nvme.disk.abilities().zeroes),
            Store::Null(_) | Store::Ram(_) => (false, false),
        };
        let range = |can: bool| if can && !read_only { RANGE } else { 0 };
        let block_size = match &store {
            Store::Nbd(nbd) => nbd.export().minimum_block.max(SECTOR as u32),
            Store::Nvme(nvme) => nvme.disk.abilities().block,
            _ => SECTOR as u32,
        };
        let own = match &store {
            Store::File(file) => file.block().unwrap_or(SECTOR),
            _ => SECTOR,
        };
        let parameters = Parameters {
            capacity,
            block_size,
            physical_block_exponent: (own / SECTOR).ilog2() as u8,
            queues,
            read_only,
            discard: range(discards),
            write_zeroes: range(zeroes),
            write_zeroes_may_unmap: true,
            ..Parameters::default()
        };
        let config = Config::new(parameters).with_context(|| format!("{name} can't be a disk"))?;
        let (is_asked, abandoned, awaited_by) = (false, 0, Vec::new());
        Ok(Disk { config, store, name, is_asked, abandoned, awaited_by, memory: None })
    }
}

/// Can a disk have so many bytes?
///
/// # Errors
///
/// In a sentence.
pub fn fits(name: &str, bytes: u64) -> Result<()> {
    if bytes == 0 {
        bail!("{name} has no bytes, and a disk needs {SECTOR} at least");
    }
    if !bytes.is_multiple_of(SECTOR) {
        bail!("{name} has {bytes} bytes, which isn't a multiple of {SECTOR}");
    }
    Ok(())
}

/// What opening this takes, for a process that can't do so itself. None: there is nothing to open.
///
/// # Errors
///
/// In a sentence.
pub fn opened(backing: &Backing, read_only: bool) -> Result<Option<Data>> {
    match backing {
        Backing::File { path, page_cache, raw, .. } => {
            let access = Access { read_only, page_cache: *page_cache, raw: *raw };
            let Opened { file, direct, size, .. } = open(path, access)?;
            let files = [Some(file), direct.map(|(file, ..)| file)];
            let files = files.into_iter().flatten().map(OwnedFd::from).collect();
            Ok(Some(Data { size, files, has_failed: false, server: None }))
        }
        Backing::Nbd(server) => {
            let nbd = NbdStore::open(server, read_only, None)?;
            // Without a connection whoever takes it over would wait for one.
            if !nbd.is_reached() {
                let uri = &server.uri;
                bail!("{uri} can't be used: the server says what nobody asked for, or is gone");
            }
            nbd_data(&nbd, Some(server)).map(Some)
        }
        Backing::Nvme(_) | Backing::Ram(_) | Backing::Null(_) => Ok(None),
    }
}

fn serial_bytes(serial: &str) -> [u8; SERIAL_BYTES] {
    let mut bytes = [0; SERIAL_BYTES];
    bytes.iter_mut().zip(serial.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

fn nbd_data(nbd: &NbdStore, confined: Option<&Server>) -> Result<Data> {
    let (server, files) = nbd.for_another(confined)?;
    Ok(Data { size: nbd.export().size, files, has_failed: false, server: Some(server) })
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Size(self.config.parameters().capacity * SECTOR);
        write!(f, "{} ({bytes}, {})", self.name, self.store.how())
    }
}

/// A size in bytes, or as a file has it.
pub fn size(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(bytes) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(bytes),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => {
            Err(plan::SizeError::TooMuch(text.to_owned()).to_string())
        }
        _ => plan::parse_size(text).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_as_in_the_file_or_in_bytes() {
        for (text, bytes) in [("512", 512), ("64M", 64 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "64MB", "+5", "1.5G", "99999999999999999999"] {
            assert!(size(text).is_err(), "{text}");
        }
        let said = size("18446744073709551616").expect_err("64 bits don't count it");
        assert_eq!(said, "`18446744073709551616` is more than any machine has");
        let said = size("64MB").expect_err("it is none");
        assert!(said.starts_with("`64MB` is no size; write a whole number with K, M, G"), "{said}");
    }
}
