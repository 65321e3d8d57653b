//! A terminal of plain strings: all rows that ever were, of which the last ones are shown.

use proptest::prelude::*;
use std::collections::BTreeMap;

/// A part of what somebody writes.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Printable characters.
    Text(String),
    /// Nothing that is shown.
    Sequence(&'static str),
    Newline,
    Return,
    Back,
    Tab,
    EraseRest,
    EraseLine,
}

pub fn piece() -> impl Strategy<Value = Piece> {
    const SEQUENCES: [&str; 6] =
        ["\x1b[1;31m", "\x1b[2J", "\x1b]0;title\x07", "\x1b(B", "\x07", "\x1b[?25h"];
    prop_oneof![
        6 => "[a-zA-Z0-9 .äß€]{1,20}".prop_map(Piece::Text),
        2 => (0..SEQUENCES.len()).prop_map(|n| Piece::Sequence(SEQUENCES[n])),
        4 => Just(Piece::Newline),
        1 => Just(Piece::Return),
        1 => Just(Piece::Back),
        1 => Just(Piece::Tab),
        1 => Just(Piece::EraseRest),
        1 => Just(Piece::EraseLine),
    ]
}

/// As they are sent.
pub fn bytes(pieces: &[Piece]) -> Vec<u8> {
    let bytes = |piece: &Piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Sequence(sequence) => (*sequence).to_owned(),
        Piece::Newline => "\n".to_owned(),
        Piece::Return => "\r".to_owned(),
        Piece::Back => "\x08".to_owned(),
        Piece::Tab => "\t".to_owned(),
        Piece::EraseRest => "\x1b[K".to_owned(),
        Piece::EraseLine => "\x1b[2K".to_owned(),
    };
    pieces.iter().map(bytes).collect::<String>().into_bytes()
}

pub struct Terminal {
    width: usize,
    height: usize,
    rows: Vec<Vec<char>>,
    /// Each writer's row and the place in it, if it has one.
    lines: BTreeMap<usize, (Option<usize>, usize)>,
}

impl Terminal {
    pub fn new(width: usize, height: usize) -> Terminal {
        Terminal { width, height, rows: Vec::new(), lines: BTreeMap::new() }
    }

    /// The rows that are shown.
    pub fn shown(&self) -> Vec<String> {
        let first = self.rows.len().saturating_sub(self.height);
        let mut rows: Vec<String> =
            self.rows[first..].iter().map(|row| row.iter().collect()).collect();
        rows.resize(self.height, String::new());
        rows.iter().map(|row| row.trim_end().to_owned()).collect()
    }

    pub fn write(&mut self, writer: usize, prefix: &str, pieces: &[Piece]) {
        let start = prefix.chars().count();
        if self.height == 0 || self.width <= start {
            return;
        }
        let room = self.width - start;
        for piece in pieces {
            let (mut row, mut at) = self.lines.get(&writer).copied().unwrap_or_default();
            match piece {
                Piece::Text(text) => {
                    for c in text.chars() {
                        if at == room {
                            (row, at) = (None, 0);
                        }
                        self.place(&mut row, prefix);
                        let cell = start + at;
                        self.rows[row.unwrap()][cell] = if c == '€' { '?' } else { c };
                        at += 1;
                    }
                }
                Piece::Sequence(_) => {}
                Piece::Newline => {
                    self.place(&mut row, prefix);
                    (row, at) = (None, 0);
                }
                Piece::Return => at = 0,
                Piece::Back => at = at.saturating_sub(1),
                Piece::Tab => at = ((at + 8) / 8 * 8).min(room - 1),
                Piece::EraseRest | Piece::EraseLine => {
                    self.place(&mut row, prefix);
                    let from = if matches!(piece, Piece::EraseRest) { at } else { 0 };
                    self.rows[row.unwrap()][start + from..].fill(' ');
                }
            }
            self.lines.insert(writer, (row, at));
        }
    }

    /// Makes a row unless there is one that is shown.
    fn place(&mut self, row: &mut Option<usize>, prefix: &str) {
        if row.is_some_and(|row| row + self.height >= self.rows.len()) {
            return;
        }
        *row = Some(self.rows.len());
        let mut new: Vec<char> = prefix.chars().collect();
        new.resize(self.width, ' ');
        self.rows.push(new);
    }
}
