//! `network` of a VM: the part of the file that asks for network interfaces which the host makes.

use super::{Error, Field, Places, Problem, in_file_order};
use crate::{
    DEFAULT_MTU, Interface, MAX_PAIRS, MTUS, Mac, Place, VLANS, interface::derived_mac, parse_rate,
};
use alloc::{
    borrow::ToOwned,
    string::{String, ToString},
    vec::Vec,
};
use core::ops::RangeInclusive;
use toml::de::{DeTable, DeValue};

pub(super) const INTERFACE_KEYS: [&str; 8] =
    ["switch", "mac", "vlan", "queues", "mtu", "polled", "rate", "flood"];
const NEEDED: &str = "a table such as { switch = \"lan\" }, or a list of such tables";

impl Field<'_, '_, '_> {
    /// One interface, or a list of them. Those that don't say how many queues they have get 0.
    pub(super) fn interfaces(
        &self,
        vm: &str,
        places: &mut Places,
    ) -> Result<Vec<Interface>, Error> {
        let mut interfaces = Vec::new();
        let fields = match self.value.get_ref() {
            DeValue::Array(list) => list.iter().map(|value| Field { value, ..*self }).collect(),
            _ => Vec::from([Field { ..*self }]),
        };
        for (index, field) in fields.into_iter().enumerate() {
            let place = Place::Interface { vm: vm.to_owned(), index };
            let DeValue::Table(table) = field.value.get_ref() else {
                return Err(field.wrong(NEEDED));
            };
            places.push((place.clone(), "", field.value.span().start));
            let mac = derived_mac(vm, index);
            interfaces.push(field.interface(table, mac, &place, places)?);
        }
        Ok(interfaces)
    }

    fn interface(
        &self,
        table: &DeTable,
        mac: Mac,
        place: &Place,
        places: &mut Places,
    ) -> Result<Interface, Error> {
        let mut switch = None;
        let mut read = Interface {
            switch: String::new(),
            mac,
            vlan: None,
            queues: 0,
            mtu: DEFAULT_MTU,
            rate: None,
            flood: None,
            kicks: false,
        };
        for (key, value) in in_file_order(table) {
            let Some(known) = INTERFACE_KEYS.iter().find(|k| *k == key.get_ref()) else {
                return Err(self.reader.unknown(key, place, &INTERFACE_KEYS));
            };
            places.push((place.clone(), known, value.span().start));
            let field = Field { reader: self.reader, place, key: known, value };
            match *known {
                "switch" => {
                    switch = Some(
                        field.string("a switch's name in quotes, such as \"lan\"")?.to_owned(),
                    );
                }
                "mac" => {
                    let needed = "a MAC address in quotes, such as \"02:00:00:00:00:01\"";
                    read.mac = field.within(field.string(needed)?.parse::<Mac>())?;
                }
                "vlan" => {
                    let needed = "a whole number, that of a VLAN, such as 10";
                    read.vlan = Some(field.number(needed, VLANS)?);
                }
                "queues" => {
                    let needed = "a whole number of pairs of queues, such as 2";
                    read.queues = field.number(needed, 1..=MAX_PAIRS)?;
                }
                "polled" => read.kicks = !field.flag()?,
                "mtu" => read.mtu = field.number("a whole number of bytes, such as 1500", MTUS)?,
                "rate" => {
                    let text = field.string("a rate in quotes, such as \"100M/s\"")?;
                    read.rate = Some(field.within(parse_rate(text))?);
                }
                _ => {
                    let text = field.string("a rate in quotes, such as \"10M/s\"")?;
                    read.flood = Some(field.within(parse_rate(text))?);
                }
            }
        }
        let at = self.value.span().start;
        read.switch = switch.ok_or_else(|| self.reader.error(at, place, "", Problem::NoSwitch))?;
        Ok(read)
    }

    /// A whole number of this range.
    pub(super) fn number<T>(
        &self,
        needed: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<T, Error>
    where
        T: Copy + PartialOrd + TryFrom<u64> + Into<u64>,
    {
        let DeValue::Integer(n) = self.value.get_ref() else { return Err(self.wrong(needed)) };
        let number = u64::from_str_radix(n.as_str(), n.radix()).ok();
        let number = number.and_then(|n| n.try_into().ok()).filter(|n| range.contains(n));
        let (first, last) = ((*range.start()).into(), (*range.end()).into());
        self.within(number.ok_or_else(|| Problem::Range { found: n.to_string(), first, last }))
    }
}
