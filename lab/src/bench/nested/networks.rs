//! netperf by emulated, paravirtual and assigned network cards, at one level and at two (`exitless
//! bench networks`): the table of Turtles' slides.
//!
//! Guarantees: every combination of the slides is on a line, one that can't be had without figures
//! and with why. Doesn't guarantee that times are a real machine's: they are the emulator's, and of
//! levels that were beside each other.

use super::counts::{self, Counts};
use crate::bench::{
    progress::Step,
    ready::Files,
    show::{
        Block, Source, Table,
        html::{self, Page, Section},
        text, two,
    },
};
use crate::selftest::inner_network::{self, Card, Counted, Exchange, Own};
use anyhow::Result;
use exitless::{arguments::between, context::Context};
use serde::Serialize;

const TITLE: &str = "netperf, at one level and at two";
const ABOUT: &str = "\
Debian's kernel with KVM in a VM of Exitless (L1), and the same kernel below its QEMU (L2), both \
untouched, with one vCPU each. Each has netperf ask a netserver on this computer, by QEMU's gateway \
and the machine's one network controller, an 82576: TCP_RR, a byte there and a byte back, and \
TCP_STREAM, messages of 16 KiB. L1's own card is paravirtual, served by a sidecore whose switch has \
that controller as its uplink, or assigned, a virtual function of it. L2's is emulated by QEMU in L1 \
(e1000e), or paravirtual (virtio-net, vhost in L1), and L1 forwards from it to its own card; or it is \
L1's virtual function, by vfio-pci.";
const LEGEND: &str = "\
Exits of the host: of the VM that L1 is, whichever level runs. Told: exits of L2 after which KVM was \
entered, by its own count. Interrupts and ticks are those that netperf's own level had. Times are the \
emulator's, by that level's clock, against L1's own by the same card; those of what L1 gives away, \
against those of L1 that keeps it. Forwarding is by routes, and proxy ARP: a virtual function isn't \
promiscuous, which a bridge needs. Dashes: Exitless emulates no \
card for L1, and a card that its sidecore serves is behind no IOMMU by which L1 could give it to L2. \
Ticks out: how many a transaction has is a matter of how slow the emulator is, and each has three \
exits. The sidecore polls, and the emulator runs it beside L1: a busy computer with few cores makes that \
slow, and so the times of what is paravirtual in L1, and their ticks. The slides have two levels as a plot; in the text they say this of it. CPU there is of one core.";
const QUOTED: &str = "\
Turtles' slides on the last line: without the exits for interrupts, delivered to L2 directly, the two \
levels came to within 7 % of native.";
/// From the slides ("Comparing I/O virtualization methods"; "Macro: multi-level device
/// assignment"): throughput in Mb/s, and use of the CPU in per cent.
const SLIDES: [(&str, Option<u32>, u32); 5] = [
    ("bare metal", Some(950), 20),
    ("one level: assigned", Some(950), 25),
    ("one level: paravirtual", Some(950), 50),
    ("one level: emulated", Some(250), 100),
    ("two levels: assigned through both", None, 60),
];

/// Exits of L2 that KVM is told for a tick of L2's: an interrupt of L1's, the setting of the timer
/// and its completion (`bench loads`: 3.0 to 3.2).
const PER_TICK: f64 = 3.0;
/// Of KVM's numbers, those that are shown; what is left it handles itself.
const TOLD: [(&str, &str); 6] = [
    ("irq_exits", "an interrupt of L1's"),
    ("irq_window_exits", "a window for an interrupt of L2's"),
    ("halt_exits", "HLT"),
    ("io_exits", "a port"),
    ("mmio_exits", "a register or doorbell of QEMU's"),
    ("", "others: timer, EOI, kicks of vhost"),
];

/// What `bench networks` takes.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Transactions, and messages, of L2's long window; L1's has ten times as many, and the short
    /// one, which is taken off, a fifth of that
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = between(5, 100_000))]
    times: u32,
    #[command(flatten)]
    files: Files,
}

/// Whom L1 forwards to, or level one itself.
#[derive(Debug, Serialize)]
struct Row {
    exchange: Exchange,
    /// L1's card.
    own: Own,
    /// Of the level that netperf runs in.
    card: Card,
    /// For each transaction, or message.
    #[serde(flatten)]
    counts: Counts,
}

/// Measures and shows the tables.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let files = args.files.claim("networks")?;
    println!("{}\n", text::wrap(ABOUT));
    println!("1 of 3: the hypervisor and the guests");
    cx.hypervisor()?;
    let guest = inner_network::prepare(cx)?;
    println!("2 of 3: three runs, ten minutes together on a busy machine");
    let mut rows = Vec::new();
    for own in Own::ALL {
        let step = Step::begin(format!("L1's network card: {}", label(own)));
        let counted = inner_network::boot(cx, &guest, own, args.times);
        step.end(if counted.is_ok() { "counted" } else { "failed" });
        rows.extend(counted?.iter().map(Row::of));
    }
    println!("3 of 3: what was counted\n");
    println!("{}", text::blocks(&blocks(&rows)));
    files.write(&rows, &page(&rows))
}

impl Row {
    fn of(counted: &Counted) -> Row {
        let Counted { own, card, exchange, window } = counted;
        Row { own: *own, card: *card, exchange: *exchange, counts: Counts::of(window, &TOLD) }
    }
}

const fn label(own: Own) -> &'static str {
    match own {
        Own::Paravirtual => "paravirtual",
        Own::Assigned => "assigned",
        Own::Given => "assigned, and given to L2",
    }
}

fn blocks(rows: &[Row]) -> Vec<Block> {
    let mut blocks = vec![Block::Table(summary(rows)), Block::Table(slides())];
    for exchange in Exchange::ALL {
        for own in [Own::Paravirtual, Own::Assigned] {
            blocks.push(Block::Table(table(exchange, own, rows)));
        }
    }
    blocks.extend([LEGEND, QUOTED].map(|text| Block::Say(text.into())));
    blocks
}

/// The row of a combination, and that of level one with the same card.
fn find(rows: &[Row], exchange: Exchange, (own, card): (Own, Card)) -> Option<(&Counts, &Counts)> {
    let of = |own, card| {
        let mut all = rows.iter().filter(|row| row.exchange == exchange);
        all.find(|row| row.own == own && row.card == card).map(|row| &row.counts)
    };
    let kept = if own == Own::Given { Own::Assigned } else { own };
    Some((of(own, card)?, of(kept, Card::Own)?))
}

/// Each combination on a line.
fn summary(rows: &[Row]) -> Table {
    let heads = ["RR time", "told", "exits", "STREAM time", "told", "exits"].map(String::from);
    let mut table = Table::new("for each transaction, or message of 16 KiB", heads);
    let line = |table: &mut Table, label: &str, place: Option<(Own, Card)>| {
        let cells = Exchange::ALL.into_iter().flat_map(|exchange| {
            let found = place.and_then(|place| find(rows, exchange, place));
            found.map_or_else(Default::default, |(counts, first)| {
                [counts.seconds / first.seconds, counts.told, counts.exits].map(two)
            })
        });
        table.line(label, cells);
    };
    table.section(Source::Measured, "one level, by L1's card");
    line(&mut table, "emulated", None);
    line(&mut table, "paravirtual", Some((Own::Paravirtual, Card::Own)));
    line(&mut table, "assigned", Some((Own::Assigned, Card::Own)));
    table.section(Source::Measured, "two levels, by L2's card and L1's; times as against L1");
    for (name, card) in [("emulated", Card::Emulated), ("paravirtual", Card::Virtio)] {
        line(&mut table, &format!("{name}, emulated"), None);
        for own in [Own::Paravirtual, Own::Assigned] {
            line(&mut table, &format!("{name}, {}", label(own)), Some((own, card)));
        }
    }
    line(&mut table, "assigned, emulated or paravirtual", None);
    line(&mut table, "assigned through both", Some((Own::Given, Card::Given)));
    table
}

fn slides() -> Table {
    let heads = ["Mb/s", "CPU"].map(String::from);
    let mut table = Table::new("TCP_STREAM, 1 Gb/s, messages of 16 KiB", heads);
    table.section(Source::Quoted, "Turtles' slides");
    for (label, throughput, cpu) in SLIDES {
        let throughput = throughput.map_or_else(String::new, |n| n.to_string());
        table.line(label, [throughput, format!("{cpu} %")]);
    }
    table
}

/// All that was counted of an exchange by one card of L1's.
fn table(exchange: Exchange, own: Own, rows: &[Row]) -> Table {
    let mut places = vec![("L1", (own, Card::Own))];
    places.extend([("L2 e1000e", (own, Card::Emulated)), ("L2 virtio", (own, Card::Virtio))]);
    if own == Own::Assigned {
        places.push(("L2 assigned", (Own::Given, Card::Given)));
    }
    let found = |place| find(rows, exchange, place).map(|(counts, _)| counts);
    let all = places.iter().filter_map(|(head, place)| Some((head, found(*place)?)));
    let (heads, columns): (Vec<_>, Vec<_>) = all.map(|(head, c)| ((*head).to_owned(), c)).unzip();
    let what = match exchange {
        Exchange::Rr => "TCP_RR: for each transaction",
        Exchange::Stream => "TCP_STREAM: for each message of 16 KiB",
    };
    let mut table = Table::new(what, heads);
    let note = if own == Own::Assigned { "L1's card is assigned" } else { "L1's is paravirtual" };
    table.section(Source::Measured, note);
    counts::lines(&mut table, &columns, (1000.0, "milliseconds"));
    table.section(Source::Modelled, "three exits of L2 for each of its ticks");
    let without =
        |c: &&Counts| if c.told > 0.0 { two(c.told - PER_TICK * c.ticks) } else { two(0.0) };
    table.line("exits of L2, ticks out", columns.iter().map(without));
    table
}

fn page(rows: &[Row]) -> String {
    let section = Section { name: "networks".into(), title: TITLE.into(), blocks: blocks(rows) };
    html::page(&Page {
        title: "A network for a guest's guest".into(),
        intro: vec![ABOUT.into()],
        sections: vec![section],
        ..Page::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::nested::documented;
    use crate::selftest::inner_linux::Window;
    use ledger::Reason;

    fn row(own: Own, card: Card, exchange: Exchange, seconds: f64, told: f64) -> Row {
        let mut exits = vec![0.0; Reason::COUNT];
        exits[Reason::NestedReflected as usize] = 100.0 * told;
        let kvm = [("exits".to_owned(), 100.0 * told)].into();
        let (uses, interrupts) = (100.0, 150.0);
        let seconds = uses * seconds;
        let ticks = 50.0;
        let window = Window { uses, seconds, interrupts, ticks, kvm, exits };
        Row::of(&Counted { own, card, exchange, window })
    }

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for exchange in Exchange::ALL {
            for own in [Own::Paravirtual, Own::Assigned] {
                rows.push(row(own, Card::Own, exchange, 0.25, 0.0));
                rows.push(row(own, Card::Emulated, exchange, 2.0, 30.0));
                rows.push(row(own, Card::Virtio, exchange, 1.0, 9.0));
            }
            rows.push(row(Own::Given, Card::Given, exchange, 0.5, 6.5));
        }
        rows
    }

    fn lines(text: &str, label: &str) -> Vec<Vec<String>> {
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix(label));
        lines.map(|rest| rest.split_whitespace().map(str::to_owned).collect()).collect()
    }

    #[test]
    fn every_combination_is_on_a_line() {
        let shown = text::table(&summary(&rows()));
        let of = |label: &str| lines(&shown, label);
        assert_eq!(of("assigned through both"), [["2.00", "6.50", "6.50", "2.00", "6.50", "6.50"]]);
        for label in ["emulated, paravirtual", "emulated, assigned"] {
            assert_eq!(of(label), [["8.00", "30.00", "30.00", "8.00", "30.00", "30.00"]]);
        }
        for label in ["emulated, emulated", "paravirtual, emulated", "assigned, emulated or "] {
            assert!(of(label)[0].iter().filter(|cell| *cell == "-").count() == 6, "{shown}");
        }
    }

    #[test]
    fn levels_are_beside_each_other_by_each_card_of_l1() {
        let rows = rows();
        let shown = text::table(&table(Exchange::Rr, Own::Assigned, &rows));
        assert_eq!(
            lines(&shown, "milliseconds, emulated"),
            [["250.00", "2000.00", "1000.00", "500.00"]]
        );
        assert_eq!(lines(&shown, "as against L1"), [["1.00", "8.00", "4.00", "2.00"]]);
        assert_eq!(lines(&shown, "exits of L2, ticks out"), [["0.00", "28.50", "7.50", "5.00"]]);
        let shown = text::table(&table(Exchange::Stream, Own::Paravirtual, &rows));
        assert_eq!(lines(&shown, "its device's interrupts"), [["1.50", "1.50", "1.50"]]);
        assert!(page(&rows).contains("Turtles"));
    }

    #[test]
    fn the_keys_of_json_are_documented() {
        let others = ["load", "level"];
        documented::check("`bench loads` and `bench networks`", &rows(), &others);
    }

    #[test]
    fn what_is_quoted_says_so() {
        let shown = text::table(&slides());
        assert!(shown.contains("quoted: Turtles' slides"), "{shown}");
        assert_eq!(lines(&shown, "one level: paravirtual"), [["950", "50", "%"]]);
        assert_eq!(lines(&shown, "two levels: assigned through both"), [["-", "60", "%"]]);
    }
}
