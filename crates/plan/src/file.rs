//! `vm.toml`, as a person writes it, to a checked plan whose kernels are still paths.
//!
//! Guarantees: every refusal is one sentence that names the file, the line, the table
//! and the key, what was found and what would be right. Each key of a VM and of `[host]` that can't
//! be read has one, and each table of a controller; of what tables together have wrong the first
//! alone is told, once all can be read. It opens no file: the
//! paths are the caller's to resolve and read.

use crate::{
    CHOICES, Choice, DEFAULT_WEIGHT, GuestIommu, Host, Limit, OnReset, Place, Plan, Policy, Vm,
    nearest, parse_micros, problem,
};
use alloc::{
    borrow::ToOwned,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::cell::RefCell;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

#[path = "file_cores.rs"]
mod file_cores;
#[path = "file_disk.rs"]
mod file_disk;
#[path = "file_field.rs"]
mod file_field;
#[path = "file_interface.rs"]
mod file_interface;
#[path = "file_keys.rs"]
mod file_keys;
#[path = "file_limit.rs"]
mod file_limit;
#[path = "file_meant.rs"]
mod file_meant;
#[path = "file_network.rs"]
mod file_network;
#[path = "file_places.rs"]
mod file_places;

pub use crate::file_error::{Error, Policies, Problem};
use file_cores::{Sidecores, give_cores};
use file_disk::DISK_KEYS;
use file_field::Field;
use file_interface::INTERFACE_KEYS;
use file_meant::meant;
pub use file_places::line_of;
use file_places::{Places, line_at};

const ROOT_KEYS: [&str; 4] = ["vm", "network", "host", "slice"];
const HOST_KEYS: [&str; 8] = [
    "iommu_faults",
    "without_interrupt_remapping",
    "screen",
    "at_end",
    "sidecores",
    "whole_turns",
    "sidecore_latency",
    "sidecore_rounds",
];
/// Whose consoles the screen shows unless the file names a VM.
const EVERY_VM: &str = "all";
const NETWORK_KEYS: [&str; 4] = ["vfs", "macs", "uplink", "coalesce"];
const KEYS: [&str; 14] = [
    "cpus",
    "weight",
    "limit",
    "memory",
    "kernel",
    "initrd",
    "cmdline",
    "devices",
    "disk",
    "network",
    "interrupts",
    "reset",
    "nested",
    "iommu",
];
/// Memory of a VM that says nothing about it.
pub const DEFAULT_MEMORY: u64 = 1 << 30;
/// What the parser says of a text in quotes that is still open where its line ends.
const UNCLOSED_BASIC: &str = "invalid basic string, expected `\"`";
const UNCLOSED_LITERAL: &str = "invalid literal string, expected `'`";

/// Reads a policy's name, of a file or the command line.
pub fn parse_choice(text: &str) -> Result<Choice, Problem> {
    let choice = if text == CHOICES[0] { Some(None) } else { Policy::of(text).map(Some) };
    if let Some(choice) = choice {
        return Ok(choice);
    }
    Err(Problem::UnknownPolicy { found: text.to_owned(), hint: hint(text, &CHOICES) })
}

/// Reads the text of a file; `file` is its name, for errors. The first one alone is told.
pub fn parse(file: &str, text: &str) -> Result<Plan<String>, Error> {
    let (plan, _, wrong) = read(file, text);
    wrong.into_iter().next().map_or(Ok(plan), Err)
}

/// The same, with all errors in the order of their lines.
pub fn parse_all(file: &str, text: &str) -> Result<Plan<String>, Vec<Error>> {
    let (plan, _, wrong) = read(file, text);
    if wrong.is_empty() { Ok(plan) } else { Err(wrong) }
}

/// Why a text is no TOML, and the byte where it isn't; other files of TOML say it alike.
pub fn unreadable(text: &str, error: &toml::de::Error) -> (usize, Problem) {
    let span = error.span().unwrap_or(0..0);
    let problem = match (error.message(), text.get(span.clone())) {
        ("duplicate key", Some(name)) => Problem::Twice(name.to_owned()),
        (UNCLOSED_BASIC, _) => Problem::Unclosed('"'),
        (UNCLOSED_LITERAL, _) => Problem::Unclosed('\''),
        (message, _) => Problem::Toml(message.replace('\n', ", ")),
    };
    (span.start, problem)
}

/// The plan, where the file says what, and what is wrong, in the order of lines. With anything
/// wrong the plan isn't whole.
fn read(file: &str, text: &str) -> (Plan<String>, Places, Vec<Error>) {
    let reader = Reader { file, text, wrong: RefCell::default() };
    let mut plan = Plan::new(Vec::new());
    // Where each table and its keys are, for faults found when all is read.
    let mut places = Places::new();
    let read = match DeTable::parse(text) {
        Ok(root) => reader.root(root.get_ref(), &mut plan, &mut places),
        Err(error) => {
            let (at, problem) = unreadable(text, &error);
            Err(reader.error(at, &Place::Plan, "", problem))
        }
    };
    reader.note(read);
    let mut wrong = reader.wrong.into_inner();
    wrong.sort_by_key(|error| error.line);
    (plan, places, wrong)
}

/// What holds of all tables together.
fn check(reader: &Reader<'_>, plan: &Plan<String>, places: &Places) -> Result<(), Error> {
    plan.check().map_err(|e| {
        // A bad name is about the whole plan as far as the check knows; here it has a line.
        let place = match &e.problem {
            problem::Problem::Name(name) => &Place::Vm(name.clone()),
            _ => &e.place,
        };
        let found = places.iter().find(|(p, k, _)| p == place && *k == e.key);
        let at = found.or(places.iter().find(|(p, ..)| p == place)).map_or(0, |p| p.2);
        reader.error(at, &e.place, e.key, Problem::Check(e.problem))
    })
}

type Key<'a> = Spanned<toml::de::DeString<'a>>;
type Value<'a> = Spanned<DeValue<'a>>;

/// A table's entries as they stand in the file, not by name: VMs count in that order.
fn in_file_order<'t, 'a>(table: &'t DeTable<'a>) -> Vec<(&'t Key<'a>, &'t Value<'a>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// "did you mean" the nearest known word, or all of them.
fn hint(found: &str, known: &[&str]) -> String {
    match (nearest(found, known), known) {
        (Some(word), _) => format!("did you mean `{word}`?"),
        (None, [word]) => format!("the only one known is `{word}`"),
        (None, words) => format!("known are {}", words.join(", ")),
    }
}

/// Where a key belongs that is known in another table.
fn belongs(found: &str) -> Option<&'static str> {
    let tables = [
        (&ROOT_KEYS[3..], "above the first table"),
        (&KEYS[..], "into a VM's table, such as [vm.web]"),
        (&HOST_KEYS[..], "into the table [host]"),
        (&DISK_KEYS[..], "into a VM's disk, such as disk = { size = \"64M\" }"),
        (&INTERFACE_KEYS[..], "into a VM's network, such as network = { switch = \"lan\" }"),
        (&NETWORK_KEYS[..], "into a network controller's table, such as [network.nic0]"),
    ];
    tables.iter().find(|(keys, _)| keys.contains(&found)).map(|(_, table)| *table)
}

struct Reader<'r> {
    file: &'r str,
    text: &'r str,
    /// What is wrong so far.
    wrong: RefCell<Vec<Error>>,
}

impl Reader<'_> {
    /// Keeps what is wrong, and goes on.
    fn note(&self, read: Result<(), Error>) {
        self.wrong.borrow_mut().extend(read.err());
    }

    /// What is wrong with tables together is looked for once each of them can be read.
    fn root(
        &self,
        root: &DeTable,
        plan: &mut Plan<String>,
        places: &mut Places,
    ) -> Result<(), Error> {
        let (mut screen, mut sidecores) = (None, Sidecores::default());
        for (key, value) in in_file_order(root) {
            let Some(known) = ROOT_KEYS.iter().find(|k| *k == key.get_ref()) else {
                let vm = matches!(value.get_ref(), DeValue::Table(_));
                self.note(Err(self.unknown_at_root(key, vm)));
                continue;
            };
            self.note(match *known {
                "vm" | "network" => self.tables(known, value, plan, places),
                "host" => self.table(value, known, "a table: [host]").map(|table| {
                    plan.host = self.host(table, &mut screen, &mut sidecores, places);
                }),
                _ => self.slice(value, known, plan, places),
            });
        }
        if !self.wrong.borrow().is_empty() {
            return Ok(());
        }
        if let Some((at, name)) = screen {
            plan.host.screen = self.screen(at, name, plan)?;
        }
        give_cores(plan, sidecores, places);
        check(self, plan, places)
    }

    /// The tables of VMs, or of network controllers.
    fn tables(
        &self,
        known: &'static str,
        value: &Value,
        plan: &mut Plan<String>,
        places: &mut Places,
    ) -> Result<(), Error> {
        let needed = match known {
            "vm" => "a table for each VM, such as [vm.web]",
            _ => "a table for each network controller, such as [network.nic0]",
        };
        for (name, value) in in_file_order(self.table(value, known, needed)?) {
            let table = self.table(value, known, needed);
            self.note(table.and_then(|table| {
                match known {
                    "vm" => plan.vms.push(self.vm(name, table, places)),
                    _ => plan.networks.push(self.network(name, table, places)?),
                }
                Ok(())
            }));
        }
        Ok(())
    }

    fn slice(
        &self,
        value: &Value,
        known: &'static str,
        plan: &mut Plan<String>,
        places: &mut Places,
    ) -> Result<(), Error> {
        let field = Field { reader: self, place: &Place::Plan, key: known, value };
        let text = field.string("a time in quotes, such as \"5ms\"")?;
        plan.slice_us = field.within(parse_micros(text))?;
        places.push((Place::Plan, known, value.span().start));
        Ok(())
    }

    fn error(&self, at: usize, place: &Place, key: &str, problem: Problem) -> Error {
        let line = line_at(self.text, at);
        Error {
            file: self.file.to_owned(),
            line,
            place: place.clone(),
            key: key.to_owned(),
            problem: problem.into(),
        }
    }

    fn unknown(&self, key: &Key, place: &Place, known: &[&str]) -> Error {
        let found = key.get_ref().to_string();
        let problem = match (meant(place, "", &found), belongs(&found)) {
            (Some(instead), _) => Problem::UnknownKey { found, hint: instead.to_owned() },
            (None, Some(table)) => Problem::Elsewhere { found, table },
            (None, None) => {
                let hint = hint(&found, known);
                Problem::UnknownKey { found, hint }
            }
        };
        self.error(key.span().start, place, "", problem)
    }

    /// Of a key outside all tables; a table that is like none known may be meant as a VM.
    fn unknown_at_root(&self, key: &Key, table: bool) -> Error {
        let found = key.get_ref().to_string();
        let known = meant(&Place::Plan, "", &found).or(nearest(&found, &ROOT_KEYS));
        if !table || known.is_some() {
            return self.unknown(key, &Place::Plan, &ROOT_KEYS);
        }
        self.error(key.span().start, &Place::Plan, "", Problem::UnknownTable(found))
    }

    fn wrong_type(&self, value: &Value, place: &Place, key: &str, needed: &'static str) -> Error {
        let found = match value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a number",
            DeValue::Float(_) => "a floating-point number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.error(value.span().start, place, key, Problem::Type { found, needed })
    }

    fn table<'v, 'a>(
        &self,
        value: &'v Value<'a>,
        key: &str,
        needed: &'static str,
    ) -> Result<&'v DeTable<'a>, Error> {
        match value.get_ref() {
            DeValue::Table(table) => Ok(table),
            _ => Err(self.wrong_type(value, &Place::Plan, key, needed)),
        }
    }

    /// Without a path where one is wrong, which is noted.
    fn vm(&self, name: &Key, table: &DeTable, places: &mut Places) -> Vm<String> {
        let place = Place::Vm(name.get_ref().to_string());
        let before = self.wrong.borrow().len();
        places.push((place.clone(), "", name.span().start));
        let mut read = Vm {
            name: name.get_ref().to_string(),
            cpus: Vec::new(),
            weight: DEFAULT_WEIGHT,
            limit: Limit::default(),
            memory: DEFAULT_MEMORY,
            kernel: String::new(),
            initrd: None,
            cmdline: String::new(),
            devices: Vec::new(),
            disks: Vec::new(),
            interfaces: Vec::new(),
            interrupts: None,
            reset: OnReset::default(),
            nested: false,
            iommu: GuestIommu::None,
        };
        for (key, value) in in_file_order(table) {
            let Some(known) = KEYS.iter().find(|k| *k == key.get_ref()) else {
                self.note(Err(self.unknown(key, &place, &KEYS)));
                continue;
            };
            places.push((place.clone(), known, value.span().start));
            let field = Field { reader: self, place: &place, key: known, value };
            self.note(field.of_vm(&mut read, places));
        }
        // A key that isn't known may be meant as it.
        if read.kernel.is_empty() && self.wrong.borrow().len() == before {
            let missing = Problem::Missing("kernel");
            self.note(Err(self.error(name.span().start, &place, "", missing)));
        }
        read
    }

    /// `screen` becomes what is said of it, and where: the VMs may come later.
    fn host<'v>(
        &self,
        table: &'v DeTable,
        screen: &mut Option<(usize, &'v str)>,
        sidecores: &mut Sidecores,
        places: &mut Places,
    ) -> Host {
        let mut read = Host::default();
        for (key, value) in in_file_order(table) {
            let Some(known) = HOST_KEYS.iter().find(|k| *k == key.get_ref()) else {
                self.note(Err(self.unknown(key, &Place::Host, &HOST_KEYS)));
                continue;
            };
            places.push((Place::Host, known, value.span().start));
            let field = Field { reader: self, place: &Place::Host, key: known, value };
            self.note(field.of_host(&mut read, screen, sidecores));
        }
        read
    }

    /// The VM of this name, or every VM.
    fn screen(&self, at: usize, name: &str, plan: &Plan<String>) -> Result<Option<u32>, Error> {
        if name == EVERY_VM {
            return Ok(None);
        }
        let vms = || plan.vms.iter().map(|vm| vm.name.as_str());
        vms().position(|vm| vm == name).map(|vm| Some(vm as u32)).ok_or_else(|| {
            let known: Vec<_> = vms().chain([EVERY_VM]).collect();
            let problem = Problem::UnknownVm { found: name.to_owned(), hint: hint(name, &known) };
            self.error(at, &Place::Host, "screen", problem)
        })
    }
}

#[cfg(test)]
#[path = "file_mistakes_tests.rs"]
mod mistakes;
#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
