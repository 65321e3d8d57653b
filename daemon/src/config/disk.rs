//! The table of a disk: its keys, and that one thing keeps it.

use super::server::{Server, timeout, tls};
use super::tables::{Table, Taken};
use super::values::{text, weight};
use super::{Backing, Disk, Limits, Nvme, Way, pci_address};
use blk::config::SERIAL_BYTES;
use plan::parse_size;
use std::path::Path;

pub(super) const DISK: [&str; 22] = [
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
    "coalesce",
    "serial",
    "front_ends",
    "weight",
    "limit",
];
/// What one kind of disk alone has, by the key of what keeps it.
const OF_ONE_KIND: [(&str, &str); 7] = [
    ("tls", "nbd"),
    ("timeout", "nbd"),
    ("offset", "nvme"),
    ("size", "nvme"),
    ("page_cache", "file"),
    ("raw", "file"),
    ("pinned", "file"),
];
const MAX_QUEUES: u64 = 64;
const MAX_FRONT_ENDS: u64 = 64;

impl Backing {
    /// The key that says it.
    fn key(&self) -> &'static str {
        match self {
            Backing::File { .. } => "file",
            Backing::Nbd(_) => "nbd",
            Backing::Nvme(_) => "nvme",
            Backing::Ram(_) => "ram",
            Backing::Null(_) => "null",
        }
    }

    /// What is wrong with this key beside it, if it is another kind's. `is_option`: of the command
    /// line.
    pub fn misplaced(&self, key: &str, is_option: bool) -> Option<String> {
        let (_, kind) = OF_ONE_KIND.iter().find(|(own, _)| key.starts_with(own))?;
        let shown = |key: &str| match is_option {
            true => format!("--{}", key.replace('_', "-")),
            false => format!("`{key}`"),
        };
        let instead = match key {
            "size" => format!("; a disk in memory has it in {}, and a file its own", shown("ram")),
            _ => String::new(),
        };
        let (own, kind, is_right) = (shown(key), shown(kind), *kind == self.key());
        (!is_right).then(|| format!("{own} is for {kind} alone; leave it out{instead}"))
    }
}

impl Table<'_, '_, '_> {
    pub(super) fn disk(&self, taken: &mut Taken) -> Option<Disk> {
        let name = self.name(taken);
        let (mut backings, mut ways, mut failed) = (Vec::new(), Vec::new(), false);
        let (mut queues, mut read_only, mut serial) = (1, false, name.clone());
        serial.truncate(SERIAL_BYTES);
        let (mut front_ends, mut limits, mut packed) = (1, Limits::default(), false);
        let mut coalesce = true;
        let (mut uri, mut secret, mut silence) = (None, None, None);
        let (mut cached, mut as_is, mut stays) = (false, false, false);
        let (mut first, mut bytes) = (None, None);
        let mut said = Vec::new();
        for (key, field) in self.fields() {
            said.push(field);
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
                        Err(error) => Err(format!(
                            "`{}` is no NBD address: {error}",
                            super::field::shown(text)
                        )),
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
                "page_cache" => field.flag().map(|flag| cached = flag),
                "raw" => field.flag().map(|flag| as_is = flag),
                "pinned" => field.flag().map(|flag| stays = flag),
                "packed" => field.flag().map(|flag| packed = flag),
                "coalesce" => field.flag().map(|flag| coalesce = flag),
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
        if let Some(uri) = uri {
            match Server::new(&uri, secret, silence) {
                Ok(server) => backings.push(Backing::Nbd(server)),
                Err(wrong) => {
                    self.note(&wrong);
                    return None;
                }
            }
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
        for field in said {
            if let Some(wrong) = backing.misplaced(field.key, false) {
                field.note(wrong);
                failed = true;
            }
        }
        match &mut backing {
            Backing::Nvme(part) => (part.offset, part.size) = (first.unwrap_or(0), bytes),
            Backing::File { page_cache, raw, pinned, .. } => {
                (*page_cache, *raw, *pinned) = (cached, as_is, stays);
            }
            _ => {}
        }
        if let Backing::File { path, .. } = &backing {
            self.file(path, read_only, taken);
        }
        let way = way.filter(|_| !failed)?;
        Some(Disk {
            name,
            backing,
            way,
            queues,
            read_only,
            packed,
            coalesce,
            serial,
            front_ends,
            limits,
        })
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
