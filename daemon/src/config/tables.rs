//! The tables of the file: which keys they have, and what has to be there.

use super::field::{Field, Key, Reader, in_file_order, shown};
use super::values::{some_rate, station, switch_name, weight};
use super::{Host, Limits, Network, Out, Plan, Uplink, Way, Wrong};
use plan::{DEFAULT_MTU, MTUS, VLANS, parse_micros};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use toml::de::{DeTable, DeValue};

pub(super) const ROOT: [&str; 4] = ["disk", "network", "uplink", "host"];
pub(super) const NETWORK: [&str; 11] = [
    "socket", "connect", "switch", "mac", "vlan", "queues", "packed", "mtu", "rate", "flood",
    "weight",
];
pub(super) const UPLINK: [&str; 2] = ["tap", "packet"];
pub(super) const HOST: [&str; 3] = ["control", "metrics", "paths"];
pub(super) const LIMIT: [&str; 3] = ["iops", "rate", "burst"];
/// The longest burst, in microseconds: an hour.
const LONGEST_BURST: u64 = 3_600_000_000;

/// What can be read, and what is wrong.
pub fn read(file: &Path, text: &str) -> (Plan, Vec<Wrong>) {
    let reader = Reader { file, text, wrong: RefCell::default() };
    let mut plan = Plan::default();
    match DeTable::parse(text) {
        Ok(root) => root_table(&reader, root.get_ref(), &mut plan),
        Err(error) => {
            let (at, problem) = plan::file::unreadable(text, &error);
            reader.note(at, "", "", problem.to_string());
        }
    }
    (plan, by_line(reader.wrong.into_inner()))
}

/// By lines; what is wrong in one line stays as it was found.
pub fn by_line(wrong: Vec<Wrong>) -> Vec<Wrong> {
    let mut numbered: Vec<_> = wrong.into_iter().enumerate().collect();
    sort::by_key(&mut numbered, |(number, wrong)| (wrong.line, *number));
    numbered.into_iter().map(|(_, wrong)| wrong).collect()
}

/// Something is wrong with what stands at this place of a text that can be read.
pub fn wrong(file: &Path, text: &str, at: &[&str], problem: &str) -> Wrong {
    let reader = Reader { file, text, wrong: RefCell::default() };
    let of_table = if at.first() == Some(&"host") { 1 } else { 2 }.min(at.len());
    let (table, key) = at.split_at(of_table);
    let place = format!("[{}]", table.join("."));
    let mut span = 0;
    if let Ok(root) = DeTable::parse(text) {
        let mut inner = Some(root.get_ref());
        for word in at {
            let found = inner.and_then(|inner| inner.iter().find(|(key, _)| key.get_ref() == word));
            let Some((key, value)) = found else { break };
            span = key.span().start;
            inner = match value.get_ref() {
                DeValue::Table(table) => Some(table),
                _ => None,
            };
        }
    }
    reader.note(span, &place, key.first().unwrap_or(&""), problem);
    reader.wrong.into_inner().remove(0)
}

fn root_table(reader: &Reader<'_>, root: &DeTable<'_>, plan: &mut Plan) {
    // Names and sockets that are taken, and by whom.
    let (mut taken, mut all_networks) = (BTreeMap::new(), true);
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
            if !matches!(value.get_ref(), DeValue::Table(_)) {
                let word = shown(own.get_ref());
                let problem =
                    format!("`{word}` stands in no device's table; name it: [{name}.web]");
                reader.note(own.span().start, &format!("[{name}]"), "", problem);
                break;
            }
            let Some(table) = field.table(&needed) else { continue };
            let at = Table { reader, place: &place, name: own, table };
            match name {
                "disk" => plan.disks.extend(at.disk(&mut taken)),
                "network" => {
                    let network = at.network(&mut taken);
                    all_networks &= network.is_some();
                    plan.networks.extend(network);
                }
                _ => plan.uplinks.extend(at.uplink()),
            }
        }
    }
    // One that can't be read may name it.
    for uplink in plan.uplinks.iter().filter(|_| all_networks) {
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
pub(super) struct Table<'t, 'r, 'a> {
    pub reader: &'t Reader<'r>,
    pub place: &'t str,
    name: &'t Key<'a>,
    table: &'t DeTable<'a>,
}

/// What has a name or a socket: the text, and the table's place.
pub(super) type Taken = BTreeMap<String, String>;

impl<'t, 'r, 'a> Table<'t, 'r, 'a> {
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'t Key<'a>, Field<'t, 'r, 't, 'a>)> {
        let (reader, place) = (self.reader, self.place);
        in_file_order(self.table)
            .into_iter()
            .map(move |(key, value)| (key, Field { reader, place, key: key.get_ref(), value }))
    }

    pub(super) fn note(&self, problem: &str) {
        self.reader.note(self.name.span().start, self.place, "", problem);
    }

    /// Its name, which no other device has.
    pub(super) fn name(&self, taken: &mut Taken) -> String {
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
    pub(super) fn way(&self, said: Vec<Way>, taken: &mut Taken) -> Option<Way> {
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

    pub(super) fn limits(&self, field: &Field<'_, '_, '_, '_>, limits: &mut Limits) -> Option<()> {
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
        let (mut rate, mut flood) = (None, None);
        let (mut share, mut packed) = (plan::DEFAULT_WEIGHT, false);
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
                    field.read(needed, station).map(|read| mac = Some((read, field)))
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
                "flood" => {
                    let needed = "a rate in quotes, such as \"10M/s\"";
                    field.read(needed, some_rate).map(|read| flood = Some(read))
                }
                "weight" => weight(&field).map(|weight| share = weight),
                _ => {
                    self.reader.unknown(key, self.place, "", &NETWORK);
                    None
                }
            };
            failed |= known.is_none();
        }
        if let Some(((mac, field), switch)) = mac.zip(switch.as_ref()) {
            let key = format!("mac {mac} {switch}");
            if let Some(other) = taken.insert(key, self.place.to_owned()) {
                let problem = "at this switch; each has one of its own";
                field.note(format!("{mac} is {other}'s {problem}"));
                failed = true;
            }
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
            mac: mac.map(|(mac, _)| mac),
            vlan,
            queues,
            packed,
            mtu,
            rate,
            flood,
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
