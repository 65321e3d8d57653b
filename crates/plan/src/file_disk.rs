//! `disk` of a VM: the part of the file that asks for disks which the host makes.

use super::{Error, Field, Places, Problem, in_file_order};
use crate::{Backing, Disk, Place, parse_size};
use alloc::{
    borrow::ToOwned,
    string::{String, ToString},
    vec::Vec,
};
use toml::de::{DeTable, DeValue};

pub(super) const DISK_KEYS: [&str; 6] =
    ["size", "backing", "read_only", "serial", "queues", "image"];
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
        let mut size = None;
        let mut read = Disk {
            size: 0,
            backing: Backing::default(),
            read_only: false,
            serial: String::new(),
            queues: 0,
            image: None,
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
                    read.backing = field.one_of(&Backing::ALL, needed, Problem::Backing)?;
                }
                "read_only" => {
                    let DeValue::Boolean(read_only) = value.get_ref() else {
                        return Err(field.wrong("true or false"));
                    };
                    read.read_only = *read_only;
                }
                "serial" => {
                    read.serial = field.string("a text in quotes, such as \"disk1\"")?.to_owned();
                }
                "queues" => read.queues = field.queues()?,
                _ => read.image = Some(field.path()?),
            }
        }
        let at = self.value.span().start;
        read.size = size.ok_or_else(|| self.reader.error(at, place, "", Problem::NoSize))?;
        Ok(read)
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
