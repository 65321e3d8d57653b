//! Reading a picture of the screen back to text, by the font's own glyphs: for tests.
//!
//! Guarantees that a cell is read as a character only if each of its pixels is as it is drawn here,
//! and as U+FFFD else.

use crate::draw::{self, CELL_WIDTH};
use crate::style::{Cell, Style};
use crate::{Channel, Frame, Framebuffer, Layout, Pixels};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

/// What a cell without a picture known here is read as.
const UNREADABLE: char = char::REPLACEMENT_CHARACTER;

/// The frame that a picture of so many pixels in red, green and blue bytes is of.
pub fn picture(width: u32, height: u32) -> Option<Frame> {
    let [red, green, blue] = [0, 8, 16].map(Channel::byte);
    let pitch = width.checked_mul(3)?;
    Frame::new(Framebuffer { address: 0, width, height, pitch, bits: 24, red, green, blue }).ok()
}

/// The rows of text on a frame whose bytes are these, blanks at their ends apart.
pub fn text(layout: &Layout, bytes: &[u8]) -> Vec<String> {
    let reader = Reader::new(layout, bytes);
    let character = |cell: Option<Cell>| cell.map_or(UNREADABLE, |cell| char::from(cell.glyph));
    let row = |row: usize| -> String {
        (0..layout.columns).map(|column| character(reader.cell(column, row))).collect()
    };
    (0..layout.rows).map(|n| row(n).trim_end().into()).collect()
}

/// Knows what every cell looks like.
pub(crate) struct Reader<'a> {
    layout: &'a Layout,
    bytes: &'a [u8],
    cells: BTreeMap<Vec<u8>, Cell>,
}

/// What is drawn, one piece after the other.
struct Captured(Vec<u8>);

impl Pixels for Captured {
    fn store(&mut self, _: u64, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl<'a> Reader<'a> {
    pub fn new(layout: &'a Layout, bytes: &'a [u8]) -> Self {
        let mut cells = BTreeMap::new();
        for style in Style::all() {
            for glyph in (0x20..=0x7E).chain(0xA0..=0xFF) {
                let cell = Cell { glyph, style };
                let mut drawn = Captured(Vec::new());
                draw::cell(layout, &mut drawn, 0, 0, cell);
                // Some look alike, such as all spaces on one background: the first one counts.
                cells.entry(drawn.0).or_insert(cell);
            }
        }
        Reader { layout, bytes, cells }
    }

    /// What is drawn in a cell; none if that isn't known.
    pub fn cell(&self, column: usize, row: usize) -> Option<Cell> {
        let Layout { frame, scale, .. } = self.layout;
        let (width, height) = (CELL_WIDTH * scale, self.layout.row_height());
        let (left, top) = (column as u32 * width, row as u32 * height);
        let line = |y| self.bytes.get(frame.range(left, y, width)).unwrap_or_default();
        let found: Vec<u8> = (top..top + height).flat_map(line).copied().collect();
        self.cells.get(&found).copied()
    }
}
