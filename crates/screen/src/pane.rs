//! A part of the screen that scrolls: rows of cells in a ring, and the lines that are written in
//! them.
//!
//! Guarantees: a line stays where it began while others begin below it, so that each writer's line
//! is whole. A line that was scrolled away goes on in a new row.

use crate::escape::Event;
use crate::style::{Cell, Style};
use arrayvec::ArrayVec;
use core::ops::Range;

/// The longest name before a line, in cells.
pub const MAX_NAME: usize = 34;

/// What stands before each row of a writer's.
pub type Prefix = ArrayVec<Cell, MAX_NAME>;

/// The rows. Their cells are the caller's, the same at each call.
#[derive(Clone, Copy, Debug)]
pub struct Pane {
    rows: usize,
    columns: usize,
    /// How many rows were ever begun: the number of the next one.
    begun: u64,
}

/// Where a writer's line is.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// The row that it is in; none before its first character.
    row: Option<u64>,
    /// The place in it of what comes next, behind the prefix.
    column: usize,
}

impl Line {
    /// Not begun.
    pub const NEW: Line = Line { row: None, column: 0 };

    /// Whether it has no character.
    pub fn is_new(&self) -> bool {
        self.row.is_none()
    }
}

impl Pane {
    /// Without rows.
    pub const EMPTY: Pane = Pane { rows: 0, columns: 0, begun: 0 };

    /// An empty one of this size.
    pub fn new(rows: usize, columns: usize) -> Pane {
        Pane { rows, columns, begun: 0 }
    }

    /// Where in the cells the row is that is shown at this place, from the top.
    pub fn shown(&self, place: usize) -> usize {
        let oldest = self.begun.saturating_sub(self.rows as u64);
        self.slot(oldest + place as u64) * self.columns
    }

    fn slot(&self, row: u64) -> usize {
        (row % self.rows.max(1) as u64) as usize
    }

    /// The cells of a row, if it wasn't scrolled away.
    fn cells(&self, row: u64) -> Option<Range<usize>> {
        let there = row < self.begun && self.begun - row <= self.rows as u64;
        let start = self.slot(row) * self.columns;
        there.then_some(start..start + self.columns)
    }

    /// The cells of the row that a line is in, behind the prefix; begins one if there is none.
    fn row<'c>(
        &mut self,
        cells: &'c mut [Cell],
        line: &mut Line,
        prefix: &[Cell],
    ) -> &'c mut [Cell] {
        let range = match line.row.and_then(|row| self.cells(row)) {
            Some(range) => range,
            None => self.begin(cells, line, prefix),
        };
        cells.get_mut(range).and_then(|row| row.get_mut(prefix.len()..)).unwrap_or_default()
    }

    /// Begins a row for a line.
    fn begin(&mut self, cells: &mut [Cell], line: &mut Line, prefix: &[Cell]) -> Range<usize> {
        line.row = Some(self.begun);
        self.begun += u64::from(self.rows > 0);
        let range = self.cells(self.begun.saturating_sub(1)).unwrap_or(0..0);
        let row = cells.get_mut(range.clone()).unwrap_or_default();
        row.fill(Cell::BLANK);
        row.iter_mut().zip(prefix).for_each(|(cell, name)| *cell = *name);
        range
    }

    /// What a writer's bytes mean on its line.
    pub fn put(
        &mut self,
        cells: &mut [Cell],
        line: &mut Line,
        prefix: &[Cell],
        style: Style,
        event: Event,
    ) {
        const TAB: usize = 8;
        let width = self.columns.saturating_sub(prefix.len());
        if self.rows == 0 || width == 0 {
            return;
        }
        match event {
            Event::Char(c) => {
                if line.column >= width {
                    *line = Line::NEW;
                }
                let row = self.row(cells, line, prefix);
                if let Some(cell) = row.get_mut(line.column) {
                    *cell = Cell::new(c, style);
                }
                line.column += 1;
            }
            Event::Newline => {
                self.row(cells, line, prefix);
                *line = Line::NEW;
            }
            Event::Return => line.column = 0,
            Event::Back => line.column = line.column.min(width).saturating_sub(1),
            Event::Tab => line.column = ((line.column / TAB + 1) * TAB).min(width - 1),
            Event::EraseRest => {
                let row = self.row(cells, line, prefix);
                row.get_mut(line.column..).unwrap_or_default().fill(Cell::BLANK);
            }
            Event::EraseLine => self.row(cells, line, prefix).fill(Cell::BLANK),
        }
    }
}
