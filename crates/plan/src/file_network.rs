//! `[network.nicN]`: the part of the file that says what a network controller's virtual functions
//! are to be, or which switch it is the uplink of.

use super::file_disk::THROTTLE_KEYS;
use super::{Field, Key, NETWORK_KEYS, Places, Problem, Reader, in_file_order};
use crate::{Class, Coalesce, DeviceName, Mac, Network, Place, file::Error};
use alloc::{borrow::ToOwned, format, string::ToString, vec::Vec};
use toml::de::{DeTable, DeValue};

impl Reader<'_> {
    pub(super) fn network(
        &self,
        name: &Key,
        table: &DeTable,
        places: &mut Places,
    ) -> Result<Network, Error> {
        let text = name.get_ref().as_ref();
        let place = Place::Network(text.to_owned());
        let Ok(DeviceName::Named { class: Class::Nic, index: nic }) = text.parse() else {
            let problem = Problem::Nic(text.to_owned());
            return Err(self.error(name.span().start, &Place::Plan, "", problem));
        };
        places.push((Place::Network(format!("nic{nic}")), "", name.span().start));
        let (macs, coalesce) = (Vec::new(), Coalesce::Off);
        let mut read = Network { nic, vfs: None, macs, uplink: None, coalesce };
        for (key, value) in in_file_order(table) {
            let Some(known) = NETWORK_KEYS.iter().find(|k| *k == key.get_ref()) else {
                return Err(self.unknown(key, &place, &NETWORK_KEYS));
            };
            places.push((Place::Network(format!("nic{nic}")), known, value.span().start));
            let field = Field { reader: self, place: &place, key: known, value };
            match *known {
                "vfs" => read.vfs = Some(field.functions()?),
                "macs" => read.macs = field.macs()?,
                "coalesce" => read.coalesce = field.coalesce(&THROTTLE_KEYS, places)?,
                _ => {
                    let needed = "the name of a switch in quotes, such as \"lan\"";
                    read.uplink = Some(field.string(needed)?.to_owned());
                }
            }
        }
        Ok(read)
    }
}

impl Field<'_, '_, '_> {
    fn functions(&self) -> Result<u8, Error> {
        match self.value.get_ref() {
            DeValue::Integer(n) => {
                let number = u8::from_str_radix(n.as_str(), n.radix());
                self.within(number.map_err(|_| Problem::Functions(n.to_string())))
            }
            _ => Err(self.wrong("a whole number of virtual functions, such as 2")),
        }
    }

    fn macs(&self) -> Result<Vec<Mac>, Error> {
        let needed = "a MAC address in quotes, such as \"02:00:00:00:00:01\"";
        let mac = |field: Self| field.within(field.string(needed)?.parse::<Mac>());
        self.list("a list of MAC addresses, one for each virtual function")?.map(mac).collect()
    }
}
