//! Tables and sentences for the terminal, as wide as they must be.

use super::{Block, Row, Table};
use exitless::help;

const INDENT: usize = 2;

/// Everything but the plots.
pub fn blocks(blocks: &[Block]) -> String {
    let mut text = String::new();
    for block in blocks {
        match block {
            Block::Say(sentence) => text.push_str(&(wrap(sentence) + "\n")),
            Block::Table(one) => text.push_str(&(table(one) + "\n")),
            Block::Plots(_) => {}
            Block::Remarks(sentences) => {
                sentences.iter().for_each(|s| text.push_str(&(wrap(s) + "\n")));
            }
        }
    }
    text
}

/// A table; what isn't there is a dash.
pub fn table(table: &Table) -> String {
    let length = |text: &str| text.chars().count();
    let labels = table.rows.iter().filter_map(|row| match row {
        Row::Line { depth, label, .. } => Some(INDENT * (depth + 1) + length(label)),
        Row::Section(..) => None,
    });
    let label = labels.max().unwrap_or(0).max(length(&table.title));
    let widths: Vec<_> = (0..table.columns.len())
        .map(|c| {
            let cells = table.rows.iter().filter_map(|row| match row {
                Row::Line { cells, .. } => cells.get(c).map(|text| length(text)),
                Row::Section(..) => None,
            });
            cells.chain([length(&table.columns[c])]).max().unwrap_or(0)
        })
        .collect();
    let line = |first: String, cells: &[String]| {
        let mut row = format!("  {first:<label$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let cell = if cell.is_empty() { "-" } else { cell };
            row.push_str(&format!("  {cell:>width$}"));
        }
        row.trim_end().to_string() + "\n"
    };
    let mut text = line(table.title.clone(), &table.columns);
    for row in &table.rows {
        match row {
            Row::Section(source, "") => text.push_str(&format!("  {}\n", source.label())),
            Row::Section(source, note) => {
                text.push_str(&format!("  {}: {note}\n", source.label()));
            }
            Row::Line { depth, label, cells } => {
                text.push_str(&line(format!("{:1$}{label}", "", INDENT * (depth + 1)), cells));
            }
        }
    }
    text
}

/// Breaks a sentence into lines that fit the terminal.
pub fn wrap(sentence: &str) -> String {
    help::wrap(sentence, help::columns())
}

/// The same, indented as a line below a step of a command is.
pub fn wrap_below(sentence: &str) -> String {
    let lines = help::wrap(sentence, help::columns().saturating_sub(INDENT));
    lines.lines().map(|line| format!("{:INDENT$}{line}\n", "")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::show::Source;

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let mut t = Table::new("load", ["bare", "trap"].map(String::from));
        t.section(Source::Measured, "");
        t.line("exits", [String::new(), "1,234,567".into()]);
        t.part("the timer's", ["0.00".into(), "2.00".into()]);
        t.section(Source::Quoted, "the paper");
        let expected = "  load             bare       trap
  measured
    exits             -  1,234,567
      the timer's  0.00       2.00
  quoted: the paper
";
        assert_eq!(table(&t), expected);
    }

    #[test]
    fn sentences_break_between_words() {
        let sentence = "exits per second ".repeat(20);
        let broken = wrap(sentence.trim());
        assert!(broken.lines().all(|l| l.chars().count() <= 100) && broken.lines().count() > 2);
        assert_eq!(broken.replace('\n', " "), sentence.trim());
    }
}
