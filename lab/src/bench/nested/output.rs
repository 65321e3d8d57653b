//! What `bench nested` shows: a table with what is below side by side, a plot, a page.

use super::kvm_exits::{self, KvmCost};
use super::levels::{Below, Column, Cost, Level};
use crate::bench::{
    figures::Spread,
    show::{
        Bars, Block, Form, Plot, Source, Table,
        html::{self, Page, Section},
        two, whole,
    },
};

const TITLE: &str = "an exit, at one level and at two";
/// The papers' micro-benchmark, which is in both levels.
const PRINTED: &str = "CPUID";
/// What the words mean.
pub const LEGEND: &str = "\
Level one: the small kernel's own instruction exits. Level two: its guest's does, the kernel is told \
and runs it on. Exits are of the host below the kernel; instructions are all that the CPU executed, \
of every level, the host's interrupts among them. \"of the host's\": Exitless marks where it begins, \
KVM doesn't. Quoted, from Turtles' slides (micro: synthetic worst case CPUID loop): 30 times worse at \
two levels, and 6 times with their optimisations, by time, on VMX.";

/// What the terminal and the page show.
pub fn blocks(columns: &[Column], above: &[Vec<KvmCost>]) -> Vec<Block> {
    let mut blocks = vec![Block::Plots(vec![plot(columns)]), Block::Table(table(columns))];
    if !above.is_empty() {
        blocks.push(Block::Table(kvm_exits::table(above)));
    }
    blocks
}

/// The page.
pub fn page(columns: &[Column], above: &[Vec<KvmCost>], about: &str) -> String {
    let blocks = blocks(columns, above);
    let section = Section { name: "nested".into(), title: TITLE.into(), blocks };
    html::page(&Page {
        title: "Guests of a guest".into(),
        intro: vec![about.into()],
        sections: vec![section],
        notes: vec![LEGEND.into()],
        ..Page::default()
    })
}

/// The costs at a level, by their place in a column.
fn at(columns: &[Column], level: Level) -> impl Iterator<Item = (usize, &'static str)> {
    let first = columns.first().into_iter().flat_map(|column| column.costs.iter().enumerate());
    first.filter(move |(_, cost)| cost.level == level).map(|(n, cost)| (n, cost.what))
}

fn table(columns: &[Column]) -> Table {
    let heads = columns.iter().map(|column| column.below.label().to_owned());
    let mut table = Table::new(TITLE, heads);
    for (title, level) in [("level one", Level::One), ("level two", Level::Two)] {
        table.section(Source::Measured, title);
        for (n, what) in at(columns, level) {
            let costs = || columns.iter().filter_map(move |column| column.costs.get(n));
            table.line(format!("exits, {what}"), costs().map(|cost| two(cost.exits)));
            table.part("instructions", costs().map(|cost| whole(cost.instructions)));
            let host = |cost: &Cost| cost.host.map_or_else(|| "-".into(), whole);
            table.part("of the host's", costs().map(host));
        }
    }
    table.section(Source::Measured, "level two / level one, by instructions");
    table.line(PRINTED, columns.iter().map(|column| ratio(column).map_or("-".into(), two)));
    table
}

/// What it costs more at two levels. None: it has no exit at one.
fn ratio(column: &Column) -> Option<f64> {
    let of = |level| {
        let mut all = column.costs.iter();
        all.find(|c| c.level == level && c.what == PRINTED).map(|c| c.instructions)
    };
    (column.below != Below::Nothing).then(|| Some(of(Level::Two)? / of(Level::One)?)).flatten()
}

fn plot(columns: &[Column]) -> Plot {
    let series = columns.iter().map(|column| Bars {
        name: column.below.label().into(),
        values: at(columns, Level::Two)
            .map(|(n, _)| {
                column.costs.get(n).map(|c| Spread { value: c.instructions, spread: 0.0 })
            })
            .collect(),
    });
    Plot {
        title: "what an exit of the inner guest costs, all levels together".into(),
        source: Source::Measured,
        y: "instructions".into(),
        form: Form::Bars {
            groups: at(columns, Level::Two).map(|(_, what)| what.into()).collect(),
            series: series.collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::show::text;

    fn column(below: Below, one: f64, two: f64) -> Column {
        let cost = |level, instructions| Cost {
            level,
            what: PRINTED,
            exits: 1.0,
            instructions,
            host: (below == Below::Exitless).then_some(1.0),
        };
        Column { below, costs: vec![cost(Level::One, one), cost(Level::Two, two)] }
    }

    #[test]
    fn levels_are_apart_and_their_ratio_is_shown() {
        let columns = [
            column(Below::Nothing, 7.0, 44.0),
            column(Below::Exitless, 246.0, 861.0),
            column(Below::Kvm, 2_800.0, 14_000.0),
        ];
        let shown = text::blocks(&blocks(&columns, &[]));
        let row = |label: &str| -> Vec<String> {
            let mut lines = shown.lines().filter(|line| line.trim().starts_with(label));
            let line = lines.next_back().unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert!(shown.contains("level two / level one"), "{shown}");
        assert_eq!(row("instructions")[1..], ["44", "861", "14,000"], "{shown}");
        assert!(shown.contains("3.50") && shown.contains("5.00"), "{shown}");
        assert!(page(&columns, &[], "about").contains("Turtles' slides"));
    }
}
