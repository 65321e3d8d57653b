//! Values of the file, each with its place for what is wrong with it.

use super::Wrong;
use super::meant::meant;
use plan::nearest;
use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

pub type Key<'a> = Spanned<DeString<'a>>;
pub type Value<'a> = Spanned<DeValue<'a>>;

/// The most characters of a text that a sentence shows.
const SHOWN: usize = 64;

/// The file, and what is wrong with it so far.
pub struct Reader<'r> {
    pub file: &'r Path,
    pub text: &'r str,
    pub wrong: RefCell<Vec<Wrong>>,
}

/// A text of the file in a sentence: short, and without what commands a terminal.
pub fn shown(text: &str) -> String {
    let text: String = text.escape_debug().take(SHOWN + 1).collect();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A table's entries as they stand in the file.
pub fn in_file_order<'t, 'a>(table: &'t DeTable<'a>) -> Vec<(&'t Key<'a>, &'t Value<'a>)> {
    let mut entries: Vec<_> = table.iter().collect();
    sort::by_key(&mut entries, |(key, _)| key.span().start);
    entries
}

impl Reader<'_> {
    /// Notes what is wrong at this byte of the file.
    pub fn note(&self, at: usize, place: &str, key: &str, problem: impl Display) {
        let line = 1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        let place = match (place, key) {
            ("", _) => String::new(),
            (place, "") => format!("{place}: "),
            (place, key) => format!("{place} {key}: "),
        };
        let file = self.file.display().to_string();
        let wrong = Wrong { file, line, place, problem: problem.to_string() };
        self.wrong.borrow_mut().push(wrong);
    }

    /// Notes a key that isn't known, in a table or in one within it.
    pub fn unknown(&self, key: &Key, place: &str, within: &str, known: &[&str]) {
        let found = key.get_ref().as_ref();
        let hint = match (meant(place, within, found), nearest(found, known)) {
            (Some(instead), _) => instead.to_owned(),
            (None, Some(word)) => format!("did you mean `{word}`?"),
            (None, None) => format!("known are {}", known.join(", ")),
        };
        let of = if within.is_empty() { String::new() } else { format!(" of `{within}`") };
        let problem = format!("unknown key `{}`{of}; {hint}", shown(found));
        self.note(key.span().start, place, "", problem);
    }
}

/// A value, while it is being read. What reads it notes what is wrong, and gives nothing then.
#[derive(Clone, Copy)]
pub struct Field<'f, 'r, 'v, 'a> {
    pub reader: &'f Reader<'r>,
    pub place: &'f str,
    pub key: &'f str,
    pub value: &'v Value<'a>,
}

impl<'v, 'a> Field<'_, '_, 'v, 'a> {
    pub fn note(&self, problem: impl Display) {
        self.reader.note(self.value.span().start, self.place, self.key, problem);
    }

    fn wrong_type(&self, needed: &str) {
        let found = match self.value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a number",
            DeValue::Float(_) => "a floating-point number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.note(format!("this is {found}, but it has to be {needed}"));
    }

    pub fn table(&self, needed: &str) -> Option<&'v DeTable<'a>> {
        match self.value.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => {
                self.wrong_type(needed);
                None
            }
        }
    }

    pub fn string(&self, needed: &str) -> Option<&'v str> {
        match self.value.get_ref() {
            DeValue::String(text) => Some(text),
            _ => {
                self.wrong_type(needed);
                None
            }
        }
    }

    /// What the text is, by its own reader.
    pub fn read<T, E: Display>(
        &self,
        needed: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        read(self.string(needed)?).map_err(|error| self.note(error)).ok()
    }

    pub fn flag(&self) -> Option<bool> {
        match self.value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            _ => {
                self.wrong_type("true or false");
                None
            }
        }
    }

    /// A whole number of this range.
    pub fn number(&self, needed: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let DeValue::Integer(number) = self.value.get_ref() else {
            self.wrong_type(needed);
            return None;
        };
        let read = u64::from_str_radix(number.as_str(), number.radix()).ok();
        let read = read.filter(|read| range.contains(read));
        if read.is_none() {
            let (first, last) = (range.start(), range.end());
            self.note(format!("`{number}` is out of range; use {first} to {last}"));
        }
        read
    }

    /// A path, from the folder of the file.
    pub fn path(&self, example: &str) -> Option<PathBuf> {
        let text = self.string(&format!("a path in quotes, such as \"{example}\""))?;
        if text.is_empty() {
            self.note(format!("the path is empty; give one such as \"{example}\""));
            return None;
        }
        if text.starts_with("~/") || text.starts_with('$') {
            self.note("`~` and variables aren't expanded; write the whole path");
            return None;
        }
        let path = self.reader.file.parent().unwrap_or(Path::new("")).join(text);
        // One path is written in one way: without `.` in it.
        let parts = path.components().filter(|part| *part != Component::CurDir);
        let path: PathBuf = parts.collect();
        Some(if path.as_os_str().is_empty() { ".".into() } else { path })
    }

    /// The elements of a list.
    pub fn list(&self, needed: &str) -> Option<Vec<Self>> {
        match self.value.get_ref() {
            DeValue::Array(list) => {
                Some(list.iter().map(|value| Field { value, ..*self }).collect())
            }
            _ => {
                self.wrong_type(needed);
                None
            }
        }
    }
}
