//! What `bench io` shows: its page; of the part `clients` a table for each back end and kind of
//! client; rows for JSON.

use super::{
    cell::{Cell, Figures},
    start::Back,
};
use crate::bench::show::{
    Block, Source, Table,
    html::{Page, Section},
    two, whole,
};
use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use std::fs;

/// Its name on the command line and in JSON.
pub const NAME: &str = "io";
const TITLE: &str = "Servers of vhost-user disks and networks";
const COLUMNS: [&str; 8] = ["k/s", "ticks", "instr", "calls", "sw/k", "p50", "p99", "gen"];

/// What a part shows: for the terminal and the page, and for `--json`.
#[derive(Default)]
pub struct Shown {
    pub blocks: Vec<Block>,
    pub rows: Vec<Value>,
}

impl Shown {
    /// Another part's, too.
    pub fn add(&mut self, mut other: Shown) {
        self.blocks.append(&mut other.blocks);
        self.rows.append(&mut other.rows);
    }
}

/// Millions of TSC ticks a second, as far as Linux says.
pub fn megahertz() -> f64 {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("cpu MHz"));
    let number = line.and_then(|line| line.rsplit(':').next()?.trim().parse().ok());
    number.unwrap_or(f64::NAN)
}

/// So many nanoseconds in ticks.
pub fn ticks(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * megahertz() / 1000.0
}

/// What the part `clients` shows.
pub fn clients(cells: &[Cell], echoes: &[(u32, Figures)], instructions: bool) -> Result<Shown> {
    let blocks = blocks(cells, echoes, instructions);
    Ok(Shown { blocks, rows: rows("clients", cells, echoes)? })
}

fn blocks(cells: &[Cell], echoes: &[(u32, Figures)], instructions: bool) -> Vec<Block> {
    let counted = if instructions { "instr: its instructions, by callgrind. " } else { "" };
    let intro = format!(
        "Reads of 4 KiB of disks, frames from one station of a network to another; one core for the server, one for the generator, servers in turns, medians. \
         k/s: thousands of requests, or frames, a second. generator at an echo: alone, at a ring that is answered at once. ticks: CPU time of the server for a request, polling \
         and kernel included, in ticks of {} MHz. {counted}calls: eventfds written, for a request. \
         sw/k: the server's context switches for a thousand. p50, p99: latency in µs, of the client at QD 1 where one is beside others. gen: ticks of \
         the generator, polling included.",
        whole(megahertz())
    );
    let mut blocks = vec![Block::Say(intro)];
    if !echoes.is_empty() {
        blocks.push(Block::Table(echo_table(echoes)));
    }
    let mut rest = cells;
    while let Some(first) = rest.first() {
        let same =
            |cell: &&Cell| cell.load.back == first.load.back && cell.load.calls == first.load.calls;
        let count = rest.iter().take_while(same).count();
        let (these, others) = rest.split_at(count);
        blocks.push(Block::Table(table(these)));
        rest = others;
    }
    blocks
}

fn columns() -> impl Iterator<Item = String> {
    COLUMNS.into_iter().map(String::from)
}

fn echo_table(echoes: &[(u32, Figures)]) -> Table {
    let mut table = Table::new("generator at an echo", columns());
    table.section(Source::Measured, "");
    for (depth, figures) in echoes {
        let requests = figures.requests as f64;
        let none = String::new;
        table.line(
            format!("QD {depth}"),
            [
                whole(requests / figures.nanoseconds as f64 * 1e6),
                none(),
                none(),
                none(),
                none(),
                two(figures.p50 as f64 / 1000.0),
                two(figures.p99 as f64 / 1000.0),
                whole(ticks(figures.own_cpu) / requests),
            ],
        );
    }
    table
}

fn table(cells: &[Cell]) -> Table {
    let title = cells.first().map_or(String::new(), |cell| {
        let way = if cell.load.calls { "called" } else { "polling" };
        let who = if cell.load.back == Back::Net { "stations" } else { "clients" };
        format!("{}, {way} {who}", cell.load.back.name())
    });
    let mut table = Table::new(title, columns());
    table.section(Source::Measured, "");
    let mut last = None;
    for cell in cells {
        let load = cell.load;
        if last != Some(load) {
            let plural = if load.clients == 1 { "" } else { "s" };
            let label = match load.back {
                Back::Net => format!("{} bytes, QD {}", load.frame, load.depth),
                _ if load.lone => format!("1 at QD 1, {} at QD {}", load.clients - 1, load.depth),
                _ => format!("{} client{plural}, QD {}", load.clients, load.depth),
            };
            table.line(label, COLUMNS.map(|_| String::new()));
            last = Some(load);
        }
        let each = |of: &dyn Fn(&Figures) -> f64| cell.median(|run| of(run) / run.requests as f64);
        let switches = |run: &Figures| run.server_switches.unwrap_or(0) as f64 * 1000.0;
        table.part(
            cell.peer.name(),
            [
                whole(cell.median(|run| run.requests as f64 / run.nanoseconds as f64 * 1e6)),
                whole(each(&|run| ticks(run.server_cpu.unwrap_or(0)))),
                cell.instructions.map_or(String::new(), whole),
                two(each(&|run| run.calls as f64)),
                two(each(&switches)),
                two(cell.median(|run| run.p50 as f64 / 1000.0)),
                two(cell.median(|run| run.p99 as f64 / 1000.0)),
                whole(each(&|run| ticks(run.own_cpu))),
            ],
        );
    }
    table
}

/// A row of `--json`: all runs of a cell.
#[derive(Serialize)]
struct Row<'a> {
    experiment: &'static str,
    part: &'static str,
    kind: &'static str,
    server: &'static str,
    back: &'static str,
    clients: u32,
    depth: u32,
    /// One of the clients is at QD 1, and latencies are its.
    lone: bool,
    /// Of a network.
    #[serde(skip_serializing_if = "Option::is_none")]
    frame_bytes: Option<u32>,
    called: bool,
    ticks_per_microsecond: f64,
    instructions_per_request: Option<f64>,
    runs: Vec<&'a Figures>,
}

/// The rows of a part, those of the generator alone first.
pub fn rows(part: &'static str, cells: &[Cell], echoes: &[(u32, Figures)]) -> Result<Vec<Value>> {
    let row = |server, back, clients, depth, called, runs| Row {
        experiment: NAME,
        part,
        kind: Source::Measured.label(),
        server,
        back,
        clients,
        depth,
        lone: false,
        frame_bytes: None,
        called,
        ticks_per_microsecond: megahertz(),
        instructions_per_request: None,
        runs,
    };
    let echoes =
        echoes.iter().map(|(depth, figures)| row("echo", "none", 1, *depth, false, vec![figures]));
    let cells = cells.iter().map(|cell| {
        let load = cell.load;
        let runs = cell.runs.iter().collect();
        let back = load.back.name();
        Row {
            lone: load.lone,
            instructions_per_request: cell.instructions,
            frame_bytes: (load.back == Back::Net).then_some(load.frame),
            ..row(cell.peer.name(), back, load.clients, load.depth, load.calls, runs)
        }
    });
    Ok(echoes.chain(cells).map(serde_json::to_value).collect::<Result<_, _>>()?)
}

/// The page.
pub fn page(blocks: Vec<Block>, versions: Vec<String>) -> Page {
    let section = Section { name: NAME.into(), title: TITLE.into(), blocks };
    Page {
        title: "Exitless: the daemon beside other servers".into(),
        sections: vec![section],
        notes: versions,
        ..Page::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        io::{cell::Load, peer::Peer},
        show::{html, text},
    };

    #[test]
    fn tables_are_no_wider_than_a_terminal() {
        let figures = Figures {
            requests: 40_000_000,
            failed: 0,
            nanoseconds: 500_000_000,
            server_cpu: Some(500_000_000),
            server_switches: Some(9_000),
            own_cpu: 500_000_000,
            calls: 1_000_000,
            kicks: 3,
            p50: 12_345_678,
            p99: 99_345_678,
            in_flight: None,
        };
        let (back, calls, lone) = (Back::Null, true, true);
        let load = Load { back, calls, clients: 14, depth: 128, lone, frame: 0, warm_up: 100 };
        let cell = |peer| Cell { load, peer, runs: vec![figures; 3], instructions: Some(3_400.0) };
        let frames = Load { back: Back::Net, clients: 1, frame: 65_536, ..load };
        let net = Cell { load: frames, ..cell(Peer::Testpmd) };
        let cells = [cell(Peer::Daemon), cell(Peer::StorageDaemon), net];
        let echoes = [(128, figures)];
        let Shown { blocks, rows } = clients(&cells, &echoes, true).unwrap();
        let shown = text::blocks(&blocks);
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
        let page = html::page(&self::page(blocks, vec!["one".into()]));
        roxmltree::Document::parse_with_options(
            &page,
            roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() },
        )
        .unwrap();
        assert_eq!(rows.len(), 4);
    }
}
