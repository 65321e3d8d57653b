//! What a guest says on its console, line by line.

use exitless::{session::Seen, stream::Piece};
use std::collections::HashMap;

/// What begins a guest's own lines.
const MARK: &str = "@exitless ";

/// A console, as far as it was heard.
#[derive(Default)]
pub struct Console {
    bytes: Vec<u8>,
    /// Where the first line begins that nobody has had.
    heard: usize,
}

impl Console {
    /// It said this, if that is what was seen.
    pub fn see(&mut self, seen: &Seen<'_>) {
        if let Seen::Said(Piece::Console { bytes, .. }) = seen {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// The next line that is whole.
    pub fn line(&mut self) -> Option<String> {
        let rest = self.bytes.get(self.heard..)?;
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&rest[..end]).trim_end_matches('\r').to_owned();
        self.heard += end + 1;
        Some(line)
    }

    /// All that it said.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// What a guest says in this line of a console behind its mark and this word.
pub fn said<'a>(line: &'a str, word: &str) -> Option<&'a str> {
    match line.split(MARK).nth(1)?.strip_prefix(word)? {
        "" => Some(""),
        rest => rest.strip_prefix(' '),
    }
}

/// The last lines of a console, as one.
pub fn tail(console: &str) -> String {
    let lines: Vec<&str> = console.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

/// The words of a line that are pairs.
pub fn pairs(line: &str) -> HashMap<&str, &str> {
    line.split_whitespace().filter_map(|word| word.split_once('=')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_once_and_whole() {
        let mut console = Console::default();
        let mut hear = |text: &str| {
            console.see(&Seen::Said(Piece::Console { vm: 0, bytes: text.as_bytes() }));
            std::iter::from_fn(|| console.line()).collect::<Vec<_>>()
        };
        assert!(hear("one").is_empty());
        assert_eq!(hear(" line\r\nand another\n"), ["one line", "and another"]);
        assert_eq!(hear("\n"), [""]);
        console.see(&Seen::Idle);
        assert_eq!(console.text(), "one line\r\nand another\n\n");
    }

    #[test]
    fn a_guest_is_heard_behind_its_mark() {
        assert_eq!(said("[1.0] @exitless at served=1", "at"), Some("served=1"));
        assert_eq!(said("@exitless attack of=1", "at"), None);
        assert_eq!(said("@exitless hello", "hello"), Some(""));
        assert_eq!(said("at served=1", "at"), None);
    }
}
