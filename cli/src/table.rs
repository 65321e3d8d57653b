//! Text tables for the terminal: columns as wide as their widest cell, numbers
//! to the right.
//!
//! Guarantees: no cell leaves its line or steers the terminal, whoever wrote what is in it.

use plan::Escaped;
use std::fmt;

/// A table with a heading for each column.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> Self {
        Table { rows: vec![columns.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let shown = |cell: S| Escaped(&cell.into()).to_string();
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// Without its last columns, as far as they have no room in lines of this width.
    pub fn within(mut self, width: usize) -> Self {
        let columns = |table: &Table| table.rows.iter().map(Vec::len).max().unwrap_or(0);
        let is_wide =
            |table: &Table| table.to_string().lines().any(|line| line.chars().count() > width);
        while columns(&self) > 1 && is_wide(&self) {
            let most = columns(&self) - 1;
            self.rows.iter_mut().for_each(|row| row.truncate(most));
        }
        self
    }
}

fn is_number(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit())
        && cell.chars().all(|c| c.is_ascii_digit() || " .,%".contains(c))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let width: Vec<_> = (0..columns)
            .map(|c| self.rows.iter().map(|r| cell(r, c).chars().count()).max().unwrap_or(0))
            .collect();
        // A column of numbers has its heading to the right too.
        let right: Vec<_> = (0..columns)
            .map(|c| {
                let mut cells = self.rows.iter().skip(1).map(|r| cell(r, c));
                self.rows.len() > 1 && cells.all(|cell| cell.is_empty() || is_number(&cell))
            })
            .collect();
        for row in &self.rows {
            let cells = (0..columns).map(|c| {
                let (text, width) = (cell(row, c), width[c]);
                if right[c] { format!("{text:>width$}") } else { format!("{text:<width$}") }
            });
            writeln!(f, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// A whole number with its thousands apart: 1,234,567.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Bytes for people: two digits are enough.
pub fn rounded(bytes: u64) -> String {
    match bytes as f64 {
        1.0 => "1 byte".to_owned(),
        b if b < 1024.0 => format!("{b} bytes"),
        b if b < 1024.0 * 1024.0 => format!("{:.1}K", b / 1024.0),
        b => format!("{:.1}M", b / 1024.0 / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right() {
        let mut table = Table::new(["reason", "exits"]);
        table.row(["cpuid".into(), thousands(1_234)]);
        table.row(["halt", "7"]);
        assert_eq!(table.to_string(), "  reason  exits\n  cpuid   1,234\n  halt        7\n");
    }

    #[test]
    fn cells_stay_on_their_line_and_steer_nothing() {
        let mut table = Table::new(["a", "b"]);
        table.row(["x\ny", "\u{1b}[2J"]);
        assert_eq!(table.to_string(), "  a     b\n  x\\ny  \\u{1b}[2J\n");
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn sizes_are_rounded() {
        assert_eq!([1, 5, 1536, 3 << 19].map(rounded), ["1 byte", "5 bytes", "1.5K", "1.5M"]);
    }

    #[test]
    fn a_column_is_shown_whole_or_not_at_all() {
        let table = || {
            let mut table = Table::new(["VM", "limit", "rings"]);
            table.row(["web", "0 %", "split"]);
            table
        };
        assert_eq!(table().within(19).to_string(), table().to_string());
        assert_eq!(table().within(18).to_string(), "  VM   limit\n  web    0 %\n");
        assert_eq!(table().within(1).to_string(), "  VM\n  web\n");
    }
}
