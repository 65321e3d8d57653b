//! What loads take at one level and at two (`exitless bench loads`): Turtles' kernbench and SPECjbb
//! (OSDI 2010, section 5.1), with a compiler and with nothing but computing instead.
//!
//! Guarantees: what is shown is of loads whose every result was right. Doesn't guarantee that times
//! are a real machine's: they are the emulator's, and of levels that were beside each other.

use super::{
    counts::{self, Counts},
    demo::KVM,
};
use crate::bench::{
    ready::Files,
    show::{
        Block, Source, Table,
        html::{self, Page, Section},
        text,
    },
};
use crate::selftest::inner_linux::{self, Heard};
use anyhow::Result;
use exitless::{arguments::between, context::Context};
use serde::Serialize;

const TITLE: &str = "loads, at one level and at two";
const ABOUT: &str = "\
Debian's kernel with KVM in a VM of Exitless (L1), and the same kernel below its QEMU (L2), both \
untouched. Each runs the same loads: a small tree of C compiled file by file by Debian's compiler \
(kernbench: processes, page faults, files), and SHA-256 of 4 MiB (SPECjbb's part: computing). First \
L1 does, without a guest, and then L2.";
const LEGEND: &str = "\
Exits of the host: of the VM that L1 is, whichever level runs. Told: exits of L2 after which KVM was \
entered, by its own count. A tick is a timer interrupt of the level itself. Times are the emulator's: \
they say how the levels compare, and a load has as many ticks as the emulator is slow. Quoted, from Turtles' slides, by time, \
two levels over one: kernbench 14.5 % more (10.3 % with direct vmread and vmwrite), SPECjbb 7.8 % \
less (6.3 %).";
/// Their names in the guests, and what one use is.
const LOADS: [(&str, &str); 2] = [("compile", "a file compiled"), ("compute", "4 MiB summed")];
const LEVELS: [&str; 2] = ["L1", "L2"];

/// What `bench loads` takes.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// How often each is done in its long window; the short one, which is taken off, has a fifth
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = between(5, 10_000))]
    times: u32,
    #[command(flatten)]
    files: Files,
}

/// A load at a level.
#[derive(Debug, Serialize)]
struct Row {
    load: &'static str,
    level: &'static str,
    #[serde(flatten)]
    counts: Counts,
}

/// Measures and shows the table.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let files = args.files.claim("loads")?;
    println!("{}\n", text::wrap(ABOUT));
    println!("1 of 3: the hypervisor and the guest");
    cx.hypervisor()?;
    inner_linux::prepare(cx)?;
    println!("2 of 3: one run, some four minutes on an idle machine");
    let rows = rows(&inner_linux::boot_loads(cx, args.times.into())?)?;
    println!("3 of 3: what was counted\n");
    println!("{}", text::blocks(&blocks(&rows)));
    println!("{}", text::wrap(LEGEND));
    files.write(&rows, &page(&rows))
}

fn rows(heard: &Heard) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (load, _) in LOADS {
        for level in LEVELS {
            heard.said(level, load)?;
            let counts = Counts::of(&heard.window_of(&format!("{level}-{load}-"))?, &KVM);
            rows.push(Row { load, level, counts });
        }
    }
    Ok(rows)
}

fn blocks(rows: &[Row]) -> Vec<Block> {
    let tables = LOADS.iter().map(|(load, use_of)| {
        let of: Vec<&Row> = rows.iter().filter(|row| row.load == *load).collect();
        Block::Table(table(load, use_of, &of))
    });
    tables.collect()
}

fn table(load: &str, use_of: &str, rows: &[&Row]) -> Table {
    let heads = rows.iter().map(|row| row.level.to_owned());
    let mut table = Table::new(format!("{load}: for each, {use_of}"), heads);
    let columns: Vec<&Counts> = rows.iter().map(|row| &row.counts).collect();
    table.section(Source::Measured, "");
    counts::lines(&mut table, &columns, (1.0, "seconds"));
    table
}

fn page(rows: &[Row]) -> String {
    let section = Section { name: "loads".into(), title: TITLE.into(), blocks: blocks(rows) };
    html::page(&Page {
        title: "Loads of a guest's guest".into(),
        intro: vec![ABOUT.into()],
        sections: vec![section],
        notes: vec![LEGEND.into()],
        ..Page::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::nested::documented;

    fn heard(right: &str) -> Heard {
        let mut console = String::new();
        for (load, _) in LOADS {
            for (level, exits) in [("L1", 7), ("L2", 207)] {
                for (name, n) in [("short", 10), ("long", 50)] {
                    console += &format!(
                        "@exitless window name={level}-{load}-{name} uses={n} hundredths={} interrupts=0 ticks={n} kvm_exits={n} kvm_io_exits={n} exits=0,{}\n",
                        25 * n,
                        n * exits
                    );
                }
                console += &format!("{level}: {load} right={right} of 70 complaints=0\n");
            }
        }
        Heard { console, counters: ledger::Counters::default(), interrupts: 0 }
    }

    #[test]
    fn both_levels_are_beside_each_other() {
        let rows = rows(&heard("70")).unwrap();
        let shown = text::blocks(&blocks(&rows));
        for line in ["compile: for each, a file compiled", "207.00", "0.25", "a port"] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        assert!(page(&rows).contains("kernbench"));
    }

    #[test]
    fn the_keys_of_json_are_documented() {
        let rows = rows(&heard("70")).unwrap();
        let others = ["exchange", "own", "card"];
        documented::check("`bench loads` and `bench networks`", &rows, &others);
    }

    #[test]
    fn loads_that_went_wrong_are_no_figures() {
        assert!(rows(&heard("69")).unwrap_err().to_string().contains("right=69"));
        assert!(rows(&heard("")).is_err());
    }
}
