//! `disk` of a VM: the part of the file that asks for disks which the host makes.

use super::{Error, Field, Places, Problem, in_file_order};
use crate::{
    Backing, COALESCE_RATES, Coalesce, Coalescing, Control, DeviceName, Disk, Part, Place,
    parse_micros, parse_size,
};
use alloc::{
    borrow::ToOwned,
    string::{String, ToString},
    vec::Vec,
};
use toml::de::{DeTable, DeValue};

pub(super) const DISK_KEYS: [&str; 12] = [
    "size",
    "backing",
    "device",
    "offset",
    "read_only",
    "serial",
    "queues",
    "image",
    "polled",
    "packed",
    "coalesce",
    "latency",
];
const COALESCE_KEYS: [(&str, &str); 5] = [
    ("in_flight", "coalesce.in_flight"),
    ("rate", "coalesce.rate"),
    ("epoch", "coalesce.epoch"),
    ("deferral", "coalesce.deferral"),
    ("map", "coalesce.map"),
];
/// Those that a device's own throttle has, too.
pub(super) const THROTTLE_KEYS: [(&str, &str); 4] =
    [COALESCE_KEYS[0], COALESCE_KEYS[1], COALESCE_KEYS[2], COALESCE_KEYS[4]];
const COALESCE_NEEDED: &str = "true, false or a table such as { map = \"adapted\" }";
const MAPS: [(&str, bool); 2] = [("paper", false), ("adapted", true)];
const NEEDED: &str = "a table such as { size = \"64M\" }, or a list of such tables";

impl Field<'_, '_, '_> {
    /// One disk, or a list of them. Those that don't say how many queues they have get 0.
    pub(super) fn disks(&self, vm: &str, places: &mut Places) -> Result<Vec<Disk<String>>, Error> {
        let mut disks = Vec::new();
        let fields = match self.value.get_ref() {
            DeValue::Array(list) => list.iter().map(|value| Field { value, ..*self }).collect(),
            _ => Vec::from([Field { ..*self }]),
        };
        for (index, field) in fields.into_iter().enumerate() {
            let place = Place::Disk { vm: vm.to_owned(), index };
            let DeValue::Table(table) = field.value.get_ref() else {
                return Err(field.wrong(NEEDED));
            };
            places.push((place.clone(), "", field.value.span().start));
            disks.push(field.disk(table, &place, places)?);
        }
        Ok(disks)
    }

    fn disk(
        &self,
        table: &DeTable,
        place: &Place,
        places: &mut Places,
    ) -> Result<Disk<String>, Error> {
        let (mut size, mut backing, mut device, mut offset) = (None, None, None, None);
        let mut read = Disk {
            size: 0,
            backing: Backing::default(),
            read_only: false,
            serial: String::new(),
            queues: 0,
            image: None,
            control: Control::default(),
        };
        for (key, value) in in_file_order(table) {
            let Some(known) = DISK_KEYS.iter().find(|k| *k == key.get_ref()) else {
                return Err(self.reader.unknown(key, place, &DISK_KEYS));
            };
            places.push((place.clone(), known, value.span().start));
            let field = Field { reader: self.reader, place, key: known, value };
            match *known {
                "size" => {
                    let text = field.string("a size in quotes, such as \"64M\"")?;
                    size = Some(field.within(parse_size(text))?);
                }
                "backing" => {
                    let needed = "\"ram\" or \"null\"";
                    backing = Some(field.one_of(&Backing::ALL, needed, Problem::Backing)?);
                }
                "device" => {
                    let text = field.string("a device in quotes, such as \"nvme0\"")?;
                    let named = field.within(text.parse::<DeviceName>())?;
                    device = Some((named, value.span().start));
                }
                "offset" => {
                    let text = field.string("a place in quotes, such as \"64M\"")?;
                    // 0 is a place, though no size.
                    let at = if text == "0" { Ok(0) } else { parse_size(text) };
                    offset = Some((field.within(at)?, value.span().start));
                }
                "read_only" => read.read_only = field.flag()?,
                "polled" => read.control.kicks = !field.flag()?,
                "packed" => read.control.packed = field.flag()?,
                "coalesce" => read.control.coalesce = field.coalesce(&COALESCE_KEYS, places)?,
                "latency" => {
                    let text = field.string("a time in quotes, such as \"1ms\"")?;
                    let micros = field.within(parse_micros(text))?;
                    let none = (micros == 0).then_some(Problem::NoTime(known));
                    read.control.latency_us = field.within(none.map_or(Ok(micros), Err))?;
                }
                "serial" => {
                    read.serial = field.string("a text in quotes, such as \"disk1\"")?.to_owned();
                }
                "queues" => read.queues = field.queues()?,
                _ => read.image = Some(field.path()?),
            }
        }
        read.backing = match (device, offset) {
            (Some((_, at)), _) if backing.is_some() => {
                return Err(self.reader.error(at, place, "device", Problem::TwoBackings));
            }
            (Some((device, _)), offset) => {
                Backing::Part(Part { device, offset: offset.map_or(0, |(offset, _)| offset) })
            }
            (None, Some((_, at))) => {
                return Err(self.reader.error(at, place, "offset", Problem::OffsetOfNothing));
            }
            (None, None) => backing.unwrap_or_default(),
        };
        let at = self.value.span().start;
        read.size = size.ok_or_else(|| self.reader.error(at, place, "", Problem::NoSize))?;
        Ok(read)
    }

    /// Whether, or from which thresholds on. Times that aren't said fit the rate that is.
    pub(super) fn coalesce(
        &self,
        keys: &[(&'static str, &'static str)],
        places: &mut Places,
    ) -> Result<Coalesce, Error> {
        let table = match self.value.get_ref() {
            DeValue::Table(table) => table,
            DeValue::Boolean(true) => return Ok(Coalesce::default()),
            DeValue::Boolean(false) => return Ok(Coalesce::Off),
            _ => return Err(self.wrong(COALESCE_NEEDED)),
        };
        let mut read = Coalescing::USUAL;
        let (mut epoch, mut deferral) = (None, None);
        for (key, value) in in_file_order(table) {
            let (known, full) = self.nested(key, keys)?;
            places.push((self.place.clone(), full, value.span().start));
            let field = Field { value, key: full, ..*self };
            match known {
                "in_flight" => {
                    let needed = "a whole number of requests, such as 4";
                    read.in_flight = field.number(needed, 1..=u16::MAX)?;
                }
                "rate" => {
                    let needed = "a whole number of completions a second, such as 2000";
                    read.rate = field.number(needed, COALESCE_RATES)?;
                }
                "map" => {
                    let needed = "\"paper\" or \"adapted\"";
                    read.adapted = field.one_of(&MAPS, needed, Problem::Map)?;
                }
                _ => {
                    let text = field.string("a time in quotes, such as \"200ms\"")?;
                    let micros = field.within(parse_micros(text))?;
                    *if known == "epoch" { &mut epoch } else { &mut deferral } = Some(micros);
                }
            }
        }
        let longest = read.longest_us();
        read.epoch_us = epoch.unwrap_or(read.epoch_us.max(longest));
        read.deferral_us = deferral.unwrap_or(read.deferral_us.min(longest));
        Ok(Coalesce::On(read))
    }

    pub(super) fn flag(&self) -> Result<bool, Error> {
        match self.value.get_ref() {
            DeValue::Boolean(flag) => Ok(*flag),
            _ => Err(self.wrong("true or false")),
        }
    }

    fn queues(&self) -> Result<u16, Error> {
        let DeValue::Integer(n) = self.value.get_ref() else {
            return Err(self.wrong("a whole number of queues, such as 2"));
        };
        let number = u16::from_str_radix(n.as_str(), n.radix()).ok();
        // The check refuses those that are too many; 0 is what isn't said.
        self.within(number.filter(|n| *n > 0).ok_or_else(|| Problem::Queues(n.to_string())))
    }
}
