//! What a cell of the screen holds, and its colours.

use embedded_graphics::pixelcolor::Rgb888;

/// A cell: a character of ISO 8859-1 and its style. 0 is no character: nothing is known to be
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub glyph: u8,
    pub style: Style,
}

/// What a cell's text is; an index into [`COLOURS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style(u8);

const BLACK: Rgb888 = Rgb888::new(0, 0, 0);
const WHITE: Rgb888 = Rgb888::new(0xFF, 0xFF, 0xFF);
const GREY: Rgb888 = Rgb888::new(0xC0, 0xC0, 0xC0);
const YELLOW: Rgb888 = Rgb888::new(0xFF, 0xD7, 0x40);
const RED: Rgb888 = Rgb888::new(0xFF, 0x50, 0x50);
const DARK_RED: Rgb888 = Rgb888::new(0xA0, 0, 0);
const BLUE: Rgb888 = Rgb888::new(0x20, 0x40, 0x80);

/// Text and background of each style. The highest bits alone tell text from background, so that a
/// framebuffer of few colours is legible.
const COLOURS: [(Rgb888, Rgb888); 12] = [
    (WHITE, BLACK),
    (YELLOW, BLACK),
    (RED, BLACK),
    (WHITE, BLUE),
    (WHITE, DARK_RED),
    (GREY, BLACK),
    (Rgb888::new(0x60, 0xE0, 0x60), BLACK),
    (Rgb888::new(0x60, 0xD0, 0xF0), BLACK),
    (Rgb888::new(0xF0, 0x90, 0xF0), BLACK),
    (Rgb888::new(0xF0, 0xA0, 0x60), BLACK),
    (Rgb888::new(0xA0, 0xA0, 0xFF), BLACK),
    (Rgb888::new(0xD0, 0xE0, 0x80), BLACK),
];
const FIRST_NAME: u8 = 6;
const NAMES: usize = COLOURS.len() - FIRST_NAME as usize;

impl Style {
    /// The host's log.
    pub const LOG: Style = Style(0);
    /// A warning in it.
    pub const WARNING: Style = Style(1);
    /// An error in it.
    pub const ERROR: Style = Style(2);
    /// The status line.
    pub const STATUS: Style = Style(3);
    /// The last words of a panic.
    pub const LAST_WORDS: Style = Style(4);
    /// What a guest writes.
    pub const GUEST: Style = Style(5);

    /// The name before a line of a VM's.
    pub const fn name(vm: usize) -> Style {
        Style(FIRST_NAME + (vm % NAMES) as u8)
    }

    /// The style of a line of the log, by how it begins.
    pub fn of_log(line: &[u8]) -> Style {
        match line {
            line if line.starts_with(b"warning: ") => Style::WARNING,
            line if line.starts_with(b"error: ") => Style::ERROR,
            _ => Style::LOG,
        }
    }

    /// The colours of text and background.
    pub fn colours(self) -> (Rgb888, Rgb888) {
        COLOURS.get(usize::from(self.0)).copied().unwrap_or((WHITE, BLACK))
    }

    /// Every style there is.
    #[cfg(any(test, feature = "read"))]
    pub fn all() -> impl Iterator<Item = Style> {
        (0..COLOURS.len() as u8).map(Style)
    }
}

impl Cell {
    /// Of which nothing is known.
    pub const UNKNOWN: Cell = Cell { glyph: 0, style: Style::LOG };
    /// Empty.
    pub const BLANK: Cell = Cell { glyph: b' ', style: Style::LOG };

    /// A character, or '?' if the font doesn't have it.
    pub fn new(c: char, style: Style) -> Cell {
        let in_font = |glyph: &u8| matches!(glyph, 0x20..=0x7E | 0xA0..);
        let glyph = u8::try_from(c).ok().filter(in_font).unwrap_or(b'?');
        Cell { glyph, style }
    }
}
