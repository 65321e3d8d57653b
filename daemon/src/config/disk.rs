//! The table of a disk: its keys, and that one thing keeps it.

use super::server::{Server, timeout, tls};
use super::tables::{Table, Taken};
use super::values::{text, weight};
use super::{Backing, Disk, Limits, Nvme, Way, pci_address};
use blk::config::SERIAL_BYTES;
use plan::parse_size;
use std::path::Path;

pub(super) const DISK: [&str; 21] = [
    "file",
    "nbd",
    "tls",
    "timeout",
    "nvme",
    "offset",
    "size",
    "ram",
    "null",
    "socket",
    "connect",
    "queues",
    "read_only",
    "page_cache",
    "raw",
    "pinned",
    "packed",
    "serial",
    "front_ends",
    "weight",
    "limit",
];
const MAX_QUEUES: u64 = 64;
const MAX_FRONT_ENDS: u64 = 64;

impl Table<'_, '_, '_> {
    pub(super) fn disk(&self, taken: &mut Taken) -> Option<Disk> {
        let name = self.name(taken);
        let (mut backings, mut ways, mut failed) = (Vec::new(), Vec::new(), false);
        let (mut queues, mut read_only, mut serial) = (1, false, name.clone());
        serial.truncate(SERIAL_BYTES);
        let (mut front_ends, mut limits, mut packed) = (1, Limits::default(), false);
        let (mut uri, mut secret, mut silence) = (None, None, None);
        let (mut cached, mut as_is, mut stays) = (None, None, None);
        let (mut first, mut bytes) = (None, None);
        for (key, field) in self.fields() {
            let size = || field.read("a size in quotes, such as \"1G\"", parse_size);
            let known = match key.get_ref().as_ref() {
                "file" => field.path("web.img").map(|path| {
                    let (page_cache, raw, pinned) = (false, false, false);
                    backings.push(Backing::File { path, page_cache, raw, pinned });
                }),
                "nbd" => {
                    let needed = "an address in quotes, such as \"nbd://server/export\"";
                    let read = field.read(needed, |text| match nbd::Uri::parse(text) {
                        Ok(_) => Ok(text.to_owned()),
                        Err(error) => Err(error.to_string()),
                    });
                    read.map(|read| uri = Some(read))
                }
                "tls" => tls(&field, self.place).map(|tls| secret = Some(tls)),
                "timeout" => timeout(&field).map(|time| silence = Some(time)),
                "nvme" => {
                    let needed = "a PCI address in quotes, such as \"0000:01:00.0\"";
                    let part = |address| Nvme { address, offset: 0, size: None };
                    let read = field.read(needed, pci_address);
                    read.map(|read| backings.push(Backing::Nvme(part(read))))
                }
                "offset" => size().map(|read| first = Some(read)),
                "size" => size().map(|read| bytes = Some(read)),
                "ram" => size().map(|bytes| backings.push(Backing::Ram(bytes))),
                "null" => size().map(|bytes| backings.push(Backing::Null(bytes))),
                "socket" => field.path("web.sock").map(|path| ways.push(Way::Socket(path))),
                "connect" => field.path("web.sock").map(|path| ways.push(Way::Connect(path))),
                "queues" => {
                    let needed = "a whole number of queues, such as 2";
                    field.number(needed, 1..=MAX_QUEUES).map(|n| queues = n as u16)
                }
                "read_only" => field.flag().map(|flag| read_only = flag),
                "page_cache" => field.flag().map(|flag| cached = Some(flag)),
                "raw" => field.flag().map(|flag| as_is = Some(flag)),
                "pinned" => field.flag().map(|flag| stays = Some(flag)),
                "packed" => field.flag().map(|flag| packed = flag),
                "serial" => {
                    field.read("a text in quotes, such as \"disk1\"", text).map(|s| serial = s)
                }
                "front_ends" => {
                    let needed = "a whole number of front ends, such as 1";
                    field.number(needed, 1..=MAX_FRONT_ENDS).map(|n| front_ends = n as usize)
                }
                "weight" => weight(&field).map(|weight| limits.weight = weight),
                "limit" => self.limits(&field, &mut limits),
                _ => {
                    self.reader.unknown(key, self.place, "", &DISK);
                    None
                }
            };
            failed |= known.is_none();
        }
        if failed {
            return None;
        }
        let way = self.way(ways, taken);
        match uri {
            Some(uri) => match Server::new(&uri, secret, silence) {
                Ok(server) => backings.push(Backing::Nbd(server)),
                Err(wrong) => {
                    self.note(&wrong);
                    return None;
                }
            },
            None if secret.is_some() || silence.is_some() => {
                self.note("`tls` and `timeout` are for `nbd` alone; leave them out");
                return None;
            }
            None => {}
        }
        let [mut backing] = <[Backing; 1]>::try_from(backings)
            .map_err(|said| {
                self.note(if said.is_empty() {
                    "nothing keeps it; give `file`, `nbd`, `nvme`, `ram` or `null`, such as file = \"web.img\""
                } else {
                    "more than one of `file`, `nbd`, `nvme`, `ram` and `null` keep it; leave all but one out"
                });
            })
            .ok()?;
        match &mut backing {
            Backing::Nvme(part) => (part.offset, part.size) = (first.unwrap_or(0), bytes),
            _ if first.is_some() || bytes.is_some() => {
                self.note("`offset` and `size` are for `nvme` alone; a disk in memory is ram = \"1G\", and a file has its own size");
                return None;
            }
            _ => {}
        }
        match &mut backing {
            Backing::File { page_cache, raw, pinned, .. } => {
                *page_cache = cached.unwrap_or(false);
                *raw = as_is.unwrap_or(false);
                *pinned = stays.unwrap_or(false);
            }
            _ => {
                let keys = [("page_cache", cached), ("raw", as_is), ("pinned", stays)];
                if let Some((key, _)) = keys.iter().find(|(_, flag)| flag.is_some()) {
                    self.note(&format!("`{key}` is for `file` alone; leave it out"));
                    return None;
                }
            }
        }
        if let Backing::File { path, .. } = &backing {
            self.file(path, read_only, taken);
        }
        let way = way?;
        Some(Disk { name, backing, way, queues, read_only, packed, serial, front_ends, limits })
    }

    /// A file is one writer's, or many readers'.
    fn file(&self, path: &Path, read_only: bool, taken: &mut Taken) {
        let key = |how: &str| format!("file {how} {}", path.display());
        let (read, written) = (key("read"), key("written"));
        let other = taken.get(&written).or_else(|| taken.get(&read).filter(|_| !read_only));
        if let Some(other) = other {
            let shown = path.display();
            self.note(&format!(
                "its file {shown} is {other}'s; a file that is written has one table alone"
            ));
        }
        taken.insert(if read_only { read } else { written }, self.place.to_owned());
    }
}
