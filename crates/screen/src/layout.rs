//! The grid of cells on a frame: how large they are, how many, and which are for what.
//!
//! Guarantees that all cells lie in the frame. A frame that is smaller than a cell has none.

use crate::Frame;
use crate::draw::{CELL_HEIGHT, CELL_WIDTH, MAX_SCALE};
use core::ops::Range;

/// The most cells in a row.
pub const MAX_COLUMNS: usize = 240;
/// The most rows.
pub const MAX_ROWS: usize = 84;
/// The most cells.
pub(crate) const MAX_CELLS: usize = MAX_COLUMNS * MAX_ROWS;

/// The grid. Characters are drawn larger on frames that would hold more than [`MAX_COLUMNS`] by
/// [`MAX_ROWS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) frame: Frame,
    pub(crate) scale: u32,
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

impl Layout {
    /// The grid on this frame.
    pub fn new(frame: Frame) -> Layout {
        let cells = |pixels: u32, cell: u32| (pixels / cell) as usize;
        let fits = |scale: &u32| {
            cells(frame.width(), CELL_WIDTH * scale) <= MAX_COLUMNS
                && cells(frame.height(), CELL_HEIGHT * scale) <= MAX_ROWS
        };
        let scale = (1..MAX_SCALE).find(fits).unwrap_or(MAX_SCALE);
        let columns = cells(frame.width(), CELL_WIDTH * scale).min(MAX_COLUMNS);
        let rows = cells(frame.height(), CELL_HEIGHT * scale).min(MAX_ROWS);
        Layout { frame, scale, columns, rows }
    }

    /// The frame.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Cells in a row, and rows.
    pub fn size(&self) -> (usize, usize) {
        (self.columns, self.rows)
    }

    /// Lines of pixels in a row.
    pub fn row_height(&self) -> u32 {
        CELL_HEIGHT * self.scale
    }

    pub(crate) fn cells(&self) -> usize {
        self.columns * self.rows
    }

    /// The rows of the host's log.
    pub fn host(&self) -> Range<usize> {
        0..(self.rows - self.status().len()).div_ceil(2)
    }

    /// The rows of the guests' consoles.
    pub fn guests(&self) -> Range<usize> {
        self.host().end + self.status().len()..self.rows
    }

    /// How many rows the status line has: a low frame has none to spare.
    fn status(&self) -> Range<usize> {
        const LEAST: usize = 5;
        0..usize::from(self.rows >= LEAST)
    }

    /// The row of the status line.
    pub fn status_row(&self) -> Option<usize> {
        self.status().next().map(|_| self.host().end)
    }
}
