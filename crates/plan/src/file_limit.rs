//! `weight` and `limit` of a VM: the part of the file that says what a VM may have of a core.

use super::{Error, Field, Places, Problem, in_file_order};
use crate::{Limit, parse_rate};
use alloc::string::ToString;
use toml::de::DeValue;

pub(super) const LIMIT_KEYS: [(&str, &str); 2] = [("iops", "limit.iops"), ("rate", "limit.rate")];

impl Field<'_, '_, '_> {
    pub(super) fn weight(&self) -> Result<u32, Error> {
        match self.value.get_ref() {
            DeValue::Integer(n) => {
                let number = u32::from_str_radix(n.as_str(), n.radix());
                self.within(number.map_err(|_| Problem::Weight(n.to_string())))
            }
            _ => Err(self.wrong("a whole number, such as 100")),
        }
    }

    pub(super) fn limit(&self, places: &mut Places) -> Result<Limit, Error> {
        let DeValue::Table(table) = self.value.get_ref() else {
            return Err(self.wrong("a table such as { iops = 20000, rate = \"100M/s\" }"));
        };
        let mut read = Limit::default();
        for (key, value) in in_file_order(table) {
            let (known, full) = self.nested(key, &LIMIT_KEYS)?;
            places.push((self.place.clone(), full, value.span().start));
            let field = Field { key: full, value, ..*self };
            match known {
                "iops" => read.iops = Some(field.iops()?),
                _ => {
                    let text = field.string("a rate in quotes, such as \"100M/s\"")?;
                    read.rate = Some(field.within(parse_rate(text))?);
                }
            }
        }
        // Without a key nothing is limited, and who wrote it meant something.
        let nothing = read == Limit::default();
        self.within(if nothing { Err(Problem::EmptyLimit) } else { Ok(read) })
    }

    fn iops(&self) -> Result<u64, Error> {
        let DeValue::Integer(n) = self.value.get_ref() else {
            return Err(self.wrong("a whole number of requests a second, such as 20000"));
        };
        let number = u64::from_str_radix(n.as_str(), n.radix());
        self.within(number.map_err(|_| Problem::Iops(n.to_string())))
    }
}
