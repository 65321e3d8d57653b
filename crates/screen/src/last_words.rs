//! The last words of a panic, drawn at once over the guests' half: the log above stays.
//!
//! Guarantees: needs nothing but a copy of the layout, so that any core can say them whatever the
//! screen's owner was doing. What doesn't fit into the rows is lost, and the work is bounded so.

use crate::draw;
use crate::style::{Cell, Style};
use crate::{Layout, Pixels};
use core::fmt;

/// Draws text from the status line on, and last clears the rest of its line.
pub struct LastWords<'a, P: Pixels> {
    layout: Layout,
    pixels: &'a mut P,
    column: usize,
    row: usize,
}

impl<'a, P: Pixels> LastWords<'a, P> {
    /// Begins.
    pub fn new(layout: Layout, pixels: &'a mut P) -> Self {
        // A frame of one row has nothing else to show.
        let row = if layout.rows > 1 { layout.host().end } else { 0 };
        LastWords { layout, pixels, column: 0, row }
    }

    fn char(&mut self, c: char) {
        if self.column == self.layout.columns {
            (self.column, self.row) = (0, self.row + 1);
        }
        let cell = Cell::new(c, Style::LAST_WORDS);
        draw::cell(&self.layout, self.pixels, self.column, self.row, cell);
        self.column += 1;
    }

    fn end_line(&mut self) {
        while self.column < self.layout.columns {
            self.char(' ');
        }
    }
}

impl<P: Pixels> fmt::Write for LastWords<'_, P> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.row >= self.layout.rows || self.layout.columns == 0 {
                return Err(fmt::Error);
            }
            match c {
                '\n' => {
                    self.end_line();
                    (self.column, self.row) = (0, self.row + 1);
                }
                c => self.char(c),
            }
        }
        Ok(())
    }
}

impl<P: Pixels> Drop for LastWords<'_, P> {
    fn drop(&mut self) {
        if self.column > 0 {
            self.end_line();
        }
    }
}
