//! The tables of the file: which keys they have, and what has to be there.

use super::field::{Field, Key, Reader, in_file_order, shown};
use super::server::{Server, timeout, tls};
use super::values::{some_rate, switch_name, text, weight};
use super::{
    Backing, Disk, Host, Limits, Network, Nvme, Out, Plan, Uplink, Way, Wrong, pci_address,
};
use blk::config::SERIAL_BYTES;
use plan::{DEFAULT_MTU, MTUS, Mac, VLANS, parse_micros, parse_size};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use toml::de::DeTable;

pub(super) const ROOT: [&str; 4] = ["disk", "network", "uplink", "host"];
pub(super) const DISK: [&str; 20] = [
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
    "packed",
    "serial",
    "front_ends",
    "weight",
    "limit",
];
pub(super) const NETWORK: [&str; 10] =
    ["socket", "connect", "switch", "mac", "vlan", "queues", "packed", "mtu", "rate", "weight"];
const UPLINK: [&str; 2] = ["tap", "packet"];
pub(super) const HOST: [&str; 3] = ["control", "metrics", "paths"];
pub(super) const LIMIT: [&str; 3] = ["iops", "rate", "burst"];
const MAX_QUEUES: u64 = 64;
const MAX_FRONT_ENDS: u64 = 64;
/// The longest burst, in microseconds: an hour.
const LONGEST_BURST: u64 = 3_600_000_000;

pub fn read(file: &Path, text: &str) -> Result<Plan, Vec<Wrong>> {
    let reader = Reader { file, text, wrong: RefCell::default() };
    let mut plan = Plan::default();
    match DeTable::parse(text) {
        Ok(root) => root_table(&reader, root.get_ref(), &mut plan),
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            let message = error.message().replace('\n', ", ");
            reader.note(at, "", "", format!("not valid TOML: {message}"));
        }
    }
    let mut wrong = reader.wrong.into_inner();
    wrong.sort_by_key(|wrong| wrong.line);
    if wrong.is_empty() { Ok(plan) } else { Err(wrong) }
}

fn root_table(reader: &Reader<'_>, root: &DeTable<'_>, plan: &mut Plan) {
    // Names and sockets that are taken, and by whom.
    let mut taken = BTreeMap::new();
    for (key, value) in in_file_order(root) {
        let name = key.get_ref().as_ref();
        let field = Field { reader, place: "", key: "", value };
        if name == "host" {
            let Some(table) = field.table("a table: [host]") else { continue };
            plan.host = host(reader, table, &mut taken);
            continue;
        }
        if !ROOT.contains(&name) {
            reader.unknown(key, "", "", &ROOT);
            continue;
        }
        let needed = format!("a table for each, such as [{name}.web]");
        let Some(tables) = field.table(&needed) else { continue };
        for (own, value) in in_file_order(tables) {
            let place = format!("[{name}.{}]", shown(own.get_ref()));
            let field = Field { reader, place: &place, key: "", value };
            let Some(table) = field.table(&needed) else { continue };
            let at = Table { reader, place: &place, name: own, table };
            match name {
                "disk" => plan.disks.extend(at.disk(&mut taken)),
                "network" => plan.networks.extend(at.network(&mut taken)),
                _ => plan.uplinks.extend(at.uplink()),
            }
        }
    }
    for uplink in &plan.uplinks {
        if !plan.networks.iter().any(|network| network.switch == uplink.switch) {
            let at = reader.text.find("[uplink").unwrap_or(0);
            let place = format!("[uplink.{}]", shown(&uplink.switch));
            let problem = "no network has this switch; name one that a [network.…] names";
            reader.note(at, &place, "", problem);
        }
    }
}

fn host(reader: &Reader<'_>, table: &DeTable<'_>, taken: &mut Taken) -> Host {
    let mut read = Host::default();
    for (key, value) in in_file_order(table) {
        let name = key.get_ref().as_ref();
        let field = Field { reader, place: "[host]", key: name, value };
        let mut socket = |example| {
            let path = field.path(example)?;
            let place = format!("[host] {name}");
            if let Some(other) = taken.insert(format!("path {}", path.display()), place) {
                field.note(format!("this socket is {other}'s; each has one of its own"));
            }
            Some(path)
        };
        match name {
            "control" => read.control = socket("io.control"),
            "metrics" => read.metrics = socket("io.metrics"),
            "paths" => {
                let needed = "a list of folders, such as [\"/srv/disks\"]";
                for element in field.list(needed).unwrap_or_default() {
                    read.paths.extend(element.path("/srv/disks"));
                }
            }
            _ => reader.unknown(key, "[host]", "", &HOST),
        }
    }
    read
}

/// A table of a device.
struct Table<'t, 'r, 'a> {
    reader: &'t Reader<'r>,
    place: &'t str,
    name: &'t Key<'a>,
    table: &'t DeTable<'a>,
}

/// What has a name or a socket: the text, and the table's place.
type Taken = BTreeMap<String, String>;

impl<'t, 'r, 'a> Table<'t, 'r, 'a> {
    fn fields(&self) -> impl Iterator<Item = (&'t Key<'a>, Field<'t, 'r, 't, 'a>)> {
        let (reader, place) = (self.reader, self.place);
        in_file_order(self.table)
            .into_iter()
            .map(move |(key, value)| (key, Field { reader, place, key: key.get_ref(), value }))
    }

    fn note(&self, problem: &str) {
        self.reader.note(self.name.span().start, self.place, "", problem);
    }

    /// Its name, which no other device has.
    fn name(&self, taken: &mut Taken) -> String {
        let name = self.name.get_ref().to_string();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        {
            self.note("a name has letters, digits, -, _ and . alone");
        }
        if let Some(other) = taken.insert(format!("name {name}"), self.place.to_owned()) {
            self.note(&format!("the name is {other}'s; each device has one of its own"));
        }
        name
    }

    /// How front ends come: what is said of it, which is one thing.
    fn way(&self, said: Vec<Way>, taken: &mut Taken) -> Option<Way> {
        let [way] = <[Way; 1]>::try_from(said)
            .map_err(|said| {
                self.note(if said.is_empty() {
                    "it has no `socket`; give the path of one, such as socket = \"web.sock\", or `connect`"
                } else {
                    "it has both `socket` and `connect`; leave one of the two out"
                });
            })
            .ok()?;
        let path = way.path().display().to_string();
        if let Some(other) = taken.insert(format!("path {path}"), self.place.to_owned()) {
            self.note(&format!("its socket {path} is {other}'s; each device has one of its own"));
        }
        Some(way)
    }

    fn disk(&self, taken: &mut Taken) -> Option<Disk> {
        let name = self.name(taken);
        let (mut backings, mut ways, mut failed) = (Vec::new(), Vec::new(), false);
        let (mut queues, mut read_only, mut serial) = (1, false, name.clone());
        serial.truncate(SERIAL_BYTES);
        let (mut front_ends, mut limits, mut packed) = (1, Limits::default(), false);
        let (mut uri, mut secret, mut silence) = (None, None, None);
        let (mut cached, mut as_is) = (None, None);
        let (mut first, mut bytes) = (None, None);
        for (key, field) in self.fields() {
            let size = || field.read("a size in quotes, such as \"1G\"", parse_size);
            let known = match key.get_ref().as_ref() {
                "file" => field.path("web.img").map(|path| {
                    backings.push(Backing::File { path, page_cache: false, raw: false })
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
            Backing::File { page_cache, raw, .. } => {
                (*page_cache, *raw) = (cached.unwrap_or(false), as_is.unwrap_or(false));
            }
            _ if cached.or(as_is).is_some() => {
                let key = if cached.is_some() { "page_cache" } else { "raw" };
                self.note(&format!("`{key}` is for `file` alone; leave it out"));
                return None;
            }
            _ => {}
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

    fn limits(&self, field: &Field<'_, '_, '_, '_>, limits: &mut Limits) -> Option<()> {
        let needed = "a table such as { iops = 20000, rate = \"100M/s\" }";
        let mut failed = false;
        let table = field.table(needed)?;
        for (key, value) in in_file_order(table) {
            let name = format!("limit.{}", key.get_ref());
            let own = Field { key: &name, value, ..*field };
            let known = match key.get_ref().as_ref() {
                "iops" => {
                    let needed = "a whole number of requests a second, such as 20000";
                    own.number(needed, 1..=u64::from(u32::MAX)).map(|n| limits.iops = Some(n))
                }
                "rate" => {
                    let needed = "a rate in quotes, such as \"100M/s\"";
                    own.read(needed, some_rate).map(|n| limits.bytes_per_second = Some(n))
                }
                "burst" => {
                    let needed = "a time in quotes, such as \"100ms\"";
                    own.read(needed, parse_micros).and_then(|micros| {
                        if !(1..=LONGEST_BURST).contains(&micros.into()) {
                            own.note("a burst has to be from 1us to an hour, such as \"100ms\"");
                            return None;
                        }
                        limits.burst = Some(u64::from(micros) * 1000);
                        Some(())
                    })
                }
                _ => {
                    self.reader.unknown(key, self.place, "limit", &LIMIT);
                    None
                }
            };
            failed |= known.is_none();
        }
        if !failed && limits.iops.is_none() && limits.bytes_per_second.is_none() {
            field.note(
                "it limits nothing; give iops, rate or both, such as { iops = 20000, rate = \"100M/s\" }, or leave `limit` out",
            );
            return None;
        }
        (!failed).then_some(())
    }

    fn network(&self, taken: &mut Taken) -> Option<Network> {
        let name = self.name(taken);
        let (mut ways, mut switch, mut failed) = (Vec::new(), None, false);
        let (mut mac, mut vlan, mut queues, mut mtu) = (None, None, 1, DEFAULT_MTU);
        let (mut rate, mut share, mut packed) = (None, plan::DEFAULT_WEIGHT, false);
        for (key, field) in self.fields() {
            let known = match key.get_ref().as_ref() {
                "socket" => field.path("net.sock").map(|path| ways.push(Way::Socket(path))),
                "connect" => field.path("net.sock").map(|path| ways.push(Way::Connect(path))),
                "switch" => {
                    let needed = "a switch's name in quotes, such as \"lan\"";
                    field.read(needed, switch_name).map(|name| switch = Some(name))
                }
                "mac" => {
                    let needed = "a MAC address in quotes, such as \"02:00:00:00:00:01\"";
                    field.read(needed, str::parse::<Mac>).map(|read| mac = Some(read))
                }
                "vlan" => {
                    let range = u64::from(*VLANS.start())..=u64::from(*VLANS.end());
                    let needed = "a whole number, that of a VLAN, such as 10";
                    field.number(needed, range).map(|n| vlan = Some(n as u16))
                }
                "queues" => {
                    let needed = "a whole number of pairs of queues, such as 2";
                    field.number(needed, 1..=net::MAX_PAIRS.into()).map(|n| queues = n as u16)
                }
                "packed" => field.flag().map(|flag| packed = flag),
                "mtu" => {
                    let range = u64::from(*MTUS.start())..=u64::from(*MTUS.end());
                    let needed = "a whole number of bytes, such as 1500";
                    field.number(needed, range).map(|n| mtu = n as u16)
                }
                "rate" => {
                    let needed = "a rate in quotes, such as \"100M/s\"";
                    field.read(needed, some_rate).map(|read| rate = Some(read))
                }
                "weight" => weight(&field).map(|weight| share = weight),
                _ => {
                    self.reader.unknown(key, self.place, "", &NETWORK);
                    None
                }
            };
            failed |= known.is_none();
        }
        if failed {
            return None;
        }
        if switch.is_none() {
            self.note("it has no `switch`; name one, such as switch = \"lan\", and VMs that name the same can reach each other");
        }
        let way = self.way(ways, taken);
        Some(Network {
            name,
            way: way?,
            switch: switch?,
            mac,
            vlan,
            queues,
            packed,
            mtu,
            rate,
            weight: share,
        })
    }

    fn uplink(&self) -> Option<Uplink> {
        let (mut outs, mut failed) = (Vec::new(), false);
        for (key, field) in self.fields() {
            let name = |needed| field.string(needed).map(str::to_owned);
            let known = match key.get_ref().as_ref() {
                "tap" => name("a TAP's name in quotes, such as \"tap0\"").map(Out::Tap),
                "packet" => {
                    let needed = "an interface's name in quotes, such as \"eth0\"";
                    name(needed).map(Out::Packet)
                }
                _ => {
                    self.reader.unknown(key, self.place, "", &UPLINK);
                    None
                }
            };
            failed |= known.is_none();
            outs.extend(known);
        }
        if failed {
            return None;
        }
        let [out] = <[Out; 1]>::try_from(outs)
            .map_err(|said| {
                self.note(if said.is_empty() {
                    "it leads nowhere; give `tap` or `packet`, such as tap = \"tap0\""
                } else {
                    "it has both `tap` and `packet`; leave one of the two out"
                });
            })
            .ok()?;
        Some(Uplink { switch: self.name.get_ref().to_string(), out })
    }
}
