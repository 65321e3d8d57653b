//! What a guest's bytes mean on a line: characters of UTF-8, a few control characters, and the
//! escape sequences of terminals (ECMA-48), all of which but one are swallowed.
//!
//! Guarantees: any bytes are taken, with a few bytes of state. A sequence ends with its line at the
//! latest, so that what follows can't be hidden by one that was never ended.

/// What a byte completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A character; U+FFFD for bytes that are none.
    Char(char),
    /// The line is complete.
    Newline,
    /// Back to the line's beginning.
    Return,
    /// Back by one.
    Back,
    /// On to the next multiple of eight.
    Tab,
    /// The line's text from here on goes away (EL 0).
    EraseRest,
    /// All of the line's text goes away (EL 2).
    EraseLine,
}

/// Reads bytes, from the start of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parser {
    state: State,
    /// Bytes of a character that isn't complete.
    partial: [u8; 4],
    have: u8,
    need: u8,
}

/// `Text` is all zeroes: see `Screen::new`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Text,
    /// After ESC, and further bytes before the last.
    Escape,
    /// After ESC [, with the first parameter.
    Sequence {
        parameter: u8,
        rest: bool,
    },
    /// In a string, such as a window's title.
    String,
    /// After ESC in a string.
    StringEscape,
}

const ESCAPE: u8 = 0x1B;
const BELL: u8 = 0x07;

impl Parser {
    /// At the start of a stream.
    pub const NEW: Parser = Parser { state: State::Text, partial: [0; 4], have: 0, need: 0 };

    /// Takes a byte and gives what it completes.
    pub fn push(&mut self, byte: u8, mut give: impl FnMut(Event)) {
        if self.need > 0 {
            if byte & 0xC0 == 0x80 {
                return self.go_on(byte, give);
            }
            self.need = 0;
            give(Event::Char(char::REPLACEMENT_CHARACTER));
        }
        // These count in sequences, too, and end them.
        let control = match byte {
            b'\n' => Some(Event::Newline),
            b'\r' => Some(Event::Return),
            0x08 => Some(Event::Back),
            b'\t' => Some(Event::Tab),
            _ => None,
        };
        if let Some(event) = control {
            self.state = State::Text;
            return give(event);
        }
        match self.state {
            State::Text => self.text(byte, give),
            State::Escape => self.state = after_escape(byte),
            State::Sequence { parameter, rest } => self.sequence(parameter, rest, byte, give),
            State::String if byte == BELL => self.state = State::Text,
            State::String if byte == ESCAPE => self.state = State::StringEscape,
            State::String => {}
            State::StringEscape if byte == b'\\' => self.state = State::Text,
            State::StringEscape => self.state = after_escape(byte),
        }
    }

    fn text(&mut self, byte: u8, mut give: impl FnMut(Event)) {
        match byte {
            ESCAPE => self.state = State::Escape,
            0x20..=0x7E => give(Event::Char(char::from(byte))),
            0x00..=0x1F | 0x7F => {}
            0xC2..=0xDF => self.begin(byte, 2),
            0xE0..=0xEF => self.begin(byte, 3),
            0xF0..=0xF4 => self.begin(byte, 4),
            _ => give(Event::Char(char::REPLACEMENT_CHARACTER)),
        }
    }

    fn begin(&mut self, byte: u8, need: u8) {
        (self.partial[0], self.have, self.need) = (byte, 1, need);
    }

    /// The next byte of a character.
    fn go_on(&mut self, byte: u8, mut give: impl FnMut(Event)) {
        if let Some(place) = self.partial.get_mut(usize::from(self.have)) {
            *place = byte;
            self.have += 1;
        }
        if self.have >= self.need {
            self.need = 0;
            let bytes = self.partial.get(..usize::from(self.have)).unwrap_or_default();
            let text = core::str::from_utf8(bytes).ok();
            let c = text.and_then(|text| text.chars().next());
            give(Event::Char(c.unwrap_or(char::REPLACEMENT_CHARACTER)));
        }
    }

    fn sequence(&mut self, parameter: u8, rest: bool, byte: u8, mut give: impl FnMut(Event)) {
        self.state = match byte {
            ESCAPE => State::Escape,
            b'0'..=b'9' if !rest => {
                let parameter = parameter.saturating_mul(10).saturating_add(byte - b'0');
                State::Sequence { parameter, rest }
            }
            // Further parameters, private ones, intermediate bytes.
            0x20..=0x3F => State::Sequence { parameter, rest: true },
            _ => State::Text,
        };
        match (byte, parameter, rest) {
            (b'K', 0, false) => give(Event::EraseRest),
            (b'K', 2, false) => give(Event::EraseLine),
            _ => {}
        }
    }
}

fn after_escape(byte: u8) -> State {
    match byte {
        b'[' => State::Sequence { parameter: 0, rest: false },
        // DCS, SOS, OSC, PM, APC.
        b'P' | b'X' | b']' | b'^' | b'_' => State::String,
        ESCAPE | 0x20..=0x2F => State::Escape,
        _ => State::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> String {
        let (mut parser, mut text) = (Parser::NEW, String::new());
        for byte in bytes {
            parser.push(*byte, |event| match event {
                Event::Char(c) => text.push(c),
                Event::Newline => text.push('\n'),
                Event::Return => text.push('\r'),
                Event::Back => text.push('\x08'),
                Event::Tab => text.push('\t'),
                Event::EraseRest => text.push('>'),
                Event::EraseLine => text.push('='),
            });
        }
        text
    }

    #[test]
    fn sequences_are_swallowed() {
        for (bytes, text) in [
            ("\x1b[1;31mred\x1b[0m", "red"),
            ("\x1b[2J\x1b[1;1Hx", "x"),
            ("\x1b[?25l\x1b[!p\x1b[ qx", "x"),
            ("\x1b]0;title\x07x\x1b]0;t\x1b\\y", "xy"),
            ("\x1bPq#0\x1b\\x\x1b_a\x1b\\y\x1bXb\x1b\\\x1b^c\x1b\\z", "xyz"),
            ("\x1b(B\x1b)0\x1b7\x1bMx", "x"),
            ("\x1b\x1b[mx\x1b[3\x1b[mY", "xY"),
            ("\x1b]0;\x1b[mx", "x"),
            ("a\0\x01\x07\x7fb", "ab"),
            ("\x1b[K\x1b[0K\x1b[2K\x1b[1K\x1b[02K\x1b[?2K\x1b[2;0K\x1b[258K", ">>=="),
        ] {
            assert_eq!(read(bytes.as_bytes()), text, "{bytes:?}");
        }
    }

    #[test]
    fn a_sequence_ends_with_its_line() {
        for start in ["\x1b", "\x1b[", "\x1b[3;", "\x1b]0;title", "\x1b]0;title\x1b", "\x1b("] {
            for end in ["\n", "\r", "\x08", "\t"] {
                assert_eq!(read(format!("{start}{end}x").as_bytes()), format!("{end}x"));
            }
        }
    }

    #[test]
    fn what_is_no_utf_8_is_replaced() {
        assert_eq!(read("aä€😀".as_bytes()), "aä€😀");
        for (bytes, text) in [
            (&b"\x80x"[..], "\u{FFFD}x"),
            (b"\xC3x", "\u{FFFD}x"),
            (b"\xC3\xC3\xA4", "\u{FFFD}ä"),
            (b"\xE2\x82\n", "\u{FFFD}\n"),
            (b"\xC0\x80\xC1\xBF", "\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}"),
            // Overlong, a surrogate, beyond the last.
            (b"\xE0\x80\x80x", "\u{FFFD}x"),
            (b"\xED\xA0\x80x", "\u{FFFD}x"),
            (b"\xF4\x90\x80\x80x", "\u{FFFD}x"),
            (b"\xF5\xFF", "\u{FFFD}\u{FFFD}"),
        ] {
            assert_eq!(read(bytes), text, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn text_without_controls_stays(text in "[^\\x00-\\x1F\\x7F]{0,40}") {
            prop_assert_eq!(read(text.as_bytes()), text);
        }

        /// At most two events a byte, and what comes after a newline doesn't depend on what came
        /// before.
        #[test]
        fn a_line_is_read_as_if_it_were_the_first(
            before in prop::collection::vec(any::<u8>(), 0..40),
            line in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let first = read(&[&before[..], b"\n"].concat());
            let both = read(&[&before[..], b"\n", &line].concat());
            prop_assert_eq!(both, first + &read(&line));
        }
    }
}
