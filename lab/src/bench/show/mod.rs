//! What an experiment shows, before it is text or a page: tables, plots, sentences,
//! each figure labelled as measured, modelled or quoted.

pub mod html;
mod svg;
pub mod text;

use super::figures::Spread;
use exitless::table::thousands;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Counted.
    Measured,
    /// Computed from measured figures with rates and prices that are stated.
    Modelled,
    /// From the ELI paper.
    Quoted,
}

impl Source {
    /// The word for it.
    pub const fn label(self) -> &'static str {
        match self {
            Source::Measured => "measured",
            Source::Modelled => "modelled",
            Source::Quoted => "quoted",
        }
    }
}

/// A part of what an experiment shows.
#[derive(Clone, Debug)]
pub enum Block {
    /// A paragraph.
    Say(String),
    /// A table.
    Table(Table),
    /// Plots side by side; left out on a terminal.
    Plots(Vec<Plot>),
    /// What explains the plots above, a sentence each.
    Remarks(Vec<String>),
}

/// A table: a label and a cell for each column in every line.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Its heading.
    pub title: String,
    /// The columns' headings.
    pub columns: Vec<String>,
    /// Sections and lines, from the top.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Row {
    /// From here on figures are of this kind.
    Section(Source, &'static str),
    /// A line; deeper ones are parts of the one above.
    Line {
        /// 0 or 1.
        depth: usize,
        /// What it is.
        label: String,
        /// One for each column; the empty string for what there isn't.
        cells: Vec<String>,
    },
}

impl Table {
    /// A table with no rows yet.
    pub fn new(title: impl Into<String>, columns: impl IntoIterator<Item = String>) -> Table {
        Table { title: title.into(), columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Begins a section.
    pub fn section(&mut self, source: Source, note: &'static str) {
        self.rows.push(Row::Section(source, note));
    }

    /// Adds a line.
    pub fn line(&mut self, label: impl Into<String>, cells: impl IntoIterator<Item = String>) {
        self.rows.push(Row::Line {
            depth: 0,
            label: label.into(),
            cells: cells.into_iter().collect(),
        });
    }

    /// Adds a part of the line above.
    pub fn part(&mut self, label: impl Into<String>, cells: impl IntoIterator<Item = String>) {
        self.rows.push(Row::Line {
            depth: 1,
            label: label.into(),
            cells: cells.into_iter().collect(),
        });
    }
}

/// A plot.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Its heading.
    pub title: String,
    /// Where its figures come from.
    pub source: Source,
    /// What the vertical axis shows.
    pub y: String,
    /// What is drawn.
    pub form: Form,
}

impl Plot {
    /// Whether there is nothing to draw.
    pub fn is_empty(&self) -> bool {
        match &self.form {
            Form::Bars { series, .. } => {
                series.iter().all(|s| s.values.iter().all(Option::is_none))
            }
            Form::Lines { series, .. } => series.iter().all(|s| s.points.is_empty()),
        }
    }
}

/// What a plot draws.
#[derive(Clone, Debug)]
pub enum Form {
    /// Groups of bars side by side.
    Bars {
        /// The groups' names.
        groups: Vec<String>,
        /// The bars, one of each series in every group.
        series: Vec<Bars>,
    },
    /// Lines over a numeric axis.
    Lines {
        /// What the horizontal axis shows.
        x: String,
        /// The lines.
        series: Vec<Line>,
    },
}

/// One bar in every group.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Its name; a policy's name has the policy's colour.
    pub name: String,
    /// One for each group; none where there is none.
    pub values: Vec<Option<Spread>>,
}

/// A line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name; a policy's name has the policy's colour.
    pub name: String,
    /// From left to right.
    pub points: Vec<Point>,
}

/// A point of a line.
#[derive(Clone, Debug)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// How high.
    pub y: f64,
    /// Written beside it; nothing if empty.
    pub label: String,
}

/// A number with no more digits than it deserves: 3 significant ones, thousands apart.
pub fn number(n: f64) -> String {
    match n.abs() {
        _ if !n.is_finite() => "-".into(),
        a if a >= 1_000.0 => {
            let sign = if n < 0.0 { "-" } else { "" };
            format!("{sign}{}", thousands(a.round() as u64))
        }
        a if a >= 100.0 => format!("{n:.0}"),
        a if a >= 10.0 => format!("{n:.1}"),
        _ => format!("{n:.2}"),
    }
}

/// Two digits after the point.
pub fn two(n: f64) -> String {
    unsigned(format!("{n:.2}"))
}

/// Three digits after the point.
pub fn three(n: f64) -> String {
    unsigned(format!("{n:.3}"))
}

/// A difference that rounds to nothing has no sign.
fn unsigned(shown: String) -> String {
    let is_nothing = shown.starts_with('-') && !shown.bytes().any(|b| matches!(b, b'1'..=b'9'));
    if is_nothing { shown[1..].to_owned() } else { shown }
}

/// A whole number.
pub fn whole(n: f64) -> String {
    if n.round() < 0.0 {
        format!("-{}", thousands((-n).round() as u64))
    } else {
        thousands(n.round() as u64)
    }
}

/// A figure with what lies to either side.
pub fn spread(s: Spread) -> String {
    format!("{:.2} ± {:.2}", s.value, s.spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_they_deserve() {
        let said = [0.0, 0.123, 12.34, 123.4, 1_234.5, -1_234.5, f64::NAN].map(number);
        assert_eq!(said, ["0.00", "0.12", "12.3", "123", "1,235", "-1,235", "-"]);
        assert_eq!([whole(-12.4), whole(1_234.4), whole(-0.4)], ["-12", "1,234", "0"]);
        assert_eq!([two(-0.004), two(-0.006), three(-0.000_4)], ["0.00", "-0.01", "0.000"]);
    }
}
