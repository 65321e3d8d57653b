//! A value of the file with its place, and what most values are read as.

use super::{Error, Problem, Reader, Value};
use crate::{DeviceName, Place};
use alloc::{
    borrow::ToOwned,
    string::{String, ToString},
    vec::Vec,
};
use toml::de::DeValue;

/// A value with its place, while it is being read.
pub(super) struct Field<'r, 'v, 'a> {
    pub(super) reader: &'r Reader<'r>,
    pub(super) place: &'r Place,
    pub(super) key: &'static str,
    pub(super) value: &'v Value<'a>,
}

impl<'v, 'a> Field<'_, 'v, 'a> {
    /// Gives an error its place.
    pub(super) fn within<T>(&self, read: Result<T, impl Into<Problem>>) -> Result<T, Error> {
        let at = self.value.span().start;
        read.map_err(|problem| self.reader.error(at, self.place, self.key, problem.into()))
    }

    pub(super) fn wrong(&self, needed: &'static str) -> Error {
        self.reader.wrong_type(self.value, self.place, self.key, needed)
    }

    pub(super) fn string(&self, needed: &'static str) -> Result<&'v str, Error> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            _ => Err(self.wrong(needed)),
        }
    }

    /// The value of one of these names.
    pub(super) fn one_of<T: Copy>(
        &self,
        all: &[(&str, T)],
        needed: &'static str,
        unknown: impl Fn(String) -> Problem,
    ) -> Result<T, Error> {
        let text = self.string(needed)?;
        let found = all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        self.within(found.ok_or_else(|| unknown(text.to_owned())))
    }

    pub(super) fn path(&self) -> Result<String, Error> {
        match self.string("a path in quotes, such as \"vmlinuz\"")? {
            "" => self.within(Err(Problem::EmptyPath)),
            path => Ok(path.to_owned()),
        }
    }

    /// The list's elements, each as a field of its own so that errors have its line.
    pub(super) fn list(&self, needed: &'static str) -> Result<impl Iterator<Item = Self>, Error> {
        match self.value.get_ref() {
            DeValue::Array(list) => Ok(list.iter().map(|value| Field { value, ..*self })),
            _ => Err(self.wrong(needed)),
        }
    }

    pub(super) fn cores(&self) -> Result<Vec<u32>, Error> {
        let core = |field: Self| match field.value.get_ref() {
            DeValue::Integer(n) => {
                let number = u32::from_str_radix(n.as_str(), n.radix());
                field.within(number.map_err(|_| Problem::Core(n.to_string())))
            }
            _ => Err(field.wrong("a whole number, that of a core, such as 1")),
        };
        self.list("a list of cores, such as [1]")?.map(core).collect()
    }

    pub(super) fn devices(&self) -> Result<Vec<DeviceName>, Error> {
        let needed = "a device in quotes, such as \"nvme0\"";
        let device = |field: Self| field.within(field.string(needed)?.parse::<DeviceName>());
        self.list("a list of devices, such as [\"nvme0\"]")?.map(device).collect()
    }
}
