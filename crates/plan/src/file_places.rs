//! Where a file says what: lines of keys, and keys of tables within tables.

use super::{Error, Field, Key, Problem, belongs, hint, meant, read};
use crate::Place;
use alloc::{borrow::ToOwned, string::ToString, vec::Vec};

/// Where a table or a key of it is, in bytes from the file's start.
pub(super) type Places = Vec<(Place, &'static str, usize)>;

/// The line of a key, counted from 1, in the text of a file that can be read: for what is found
/// wrong with the files that it names.
pub fn line_of(text: &str, place: &Place, key: &str) -> Option<usize> {
    let (_, places, wrong) = read("", text);
    let places = wrong.is_empty().then_some(places)?;
    let (.., at) = places.iter().find(|(p, k, _)| p == place && *k == key)?;
    Some(line_at(text, *at))
}

/// The line of this byte, counted from 1.
pub(super) fn line_at(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|b| *b == b'\n').count()
}

impl Field<'_, '_, '_> {
    /// A key of the table that this field is: its name there, and its name with the table's.
    pub(super) fn nested(
        &self,
        key: &Key,
        known: &[(&'static str, &'static str)],
    ) -> Result<(&'static str, &'static str), Error> {
        if let Some(found) = known.iter().find(|(name, _)| name == key.get_ref()) {
            return Ok(*found);
        }
        let found = key.get_ref().to_string();
        let of = self.key;
        let problem = match (meant(self.place, of, &found), belongs(&found)) {
            (Some(instead), _) => Problem::UnknownKeyOf { found, of, hint: instead.to_owned() },
            (None, Some(table)) => Problem::Elsewhere { found, table },
            (None, None) => {
                let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
                let hint = hint(&found, &names);
                Problem::UnknownKeyOf { found, of, hint }
            }
        };
        Err(self.reader.error(key.span().start, self.place, "", problem))
    }
}
