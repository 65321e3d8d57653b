//! The part `cif`: how often a client is called for each completion, by the commands in flight
//! (CIF), with vIC and without; on a disk that takes its time for each request, and on a file of
//! this machine's disk.
//!
//! Guarantees: the servers differ in that alone, and take turns. What vIC's rule says for as many
//! in flight as the daemon counted is labelled as modelled, the paper's figures as quoted.

use super::{
    cell::{Cell, Figures, Load, Programs, measure},
    output::{Shown, megahertz, rows, ticks},
    peer::Peer,
    start::{Back, PACE},
};
use crate::bench::show::{Block, Source, Table, number, two, whole};
use anyhow::{Result, bail};
use coalesce::{Ratio, Settings};
use exitless::{context::Context, say::say};

/// Two epochs of vIC's and more: the ratio of a run is that of its load.
const WARM_UP: u32 = 500;
const BACKS: [Back; 2] = [Back::Paced, Back::Direct];
/// The storage daemon, which has the second disk alone, calls as its driver wants.
pub const PEERS: [Peer; 3] = [Peer::Daemon, Peer::AllTold, Peer::StorageDaemon];
const COLUMNS: [&str; 8] = ["k/s", "CIF", "calls", "R", "p50", "p99", "ticks", "client"];

/// Measures it, with so many requests at a time.
pub fn shown(
    cx: &Context,
    programs: &Programs,
    peers: &[Peer],
    depths: &[u32],
    runs: u32,
    time: u32,
) -> Result<Shown> {
    let there = |peer: &Peer| *peer == Peer::AllTold || peers.contains(peer);
    let peers: Vec<Peer> = PEERS.into_iter().filter(there).collect();
    let mut blocks = vec![Block::Say(intro())];
    let mut all = Vec::new();
    for back in BACKS {
        let mut cells = Vec::new();
        for depth in depths {
            if cx.interrupted() {
                bail!("stopped");
            }
            let (clients, lone, frame) = (1, false, 0);
            let load =
                Load { back, calls: true, clients, depth: *depth, lone, frame, warm_up: WARM_UP };
            say(format_args!("  commands in flight: {load}"));
            cells.extend(measure(cx, programs, &peers, load, runs, time, false)?);
        }
        blocks.push(Block::Table(table(back, &cells)));
        all.extend(cells);
    }
    Ok(Shown { blocks, rows: rows("cif", &all, &[])? })
}

fn intro() -> String {
    format!(
        "Which completions become calls (vIC), of one called client, 4 KiB reads; medians. paced: the daemon's limit lets {} \
         requests a second through, one after the other; direct: a file of this machine's disk. CIF: requests in flight that one \
         leaves when it is completed, as the daemon counts them. calls: eventfds written, for a completion. R: vIC's rule for so many \
         (T = {}), modelled; a call stands for more completions where they come together or while the client is busy, and none is \
         held back for longer than {} µs. p50, p99: latency in µs. ticks, client: CPU time of the server and of the client for a request, in ticks of {} MHz. The \
         paper has R = 1/6 on average at 64 in flight, 113k interrupts a second less to 34k, and 18 % fewer cycles for an I/O (quoted: Iometer, 4 KiB, of an array).",
        number(PACE as f64),
        SETTINGS.cif_threshold,
        SETTINGS.longest(),
        whole(megahertz())
    )
}

/// The daemon's: a tick is a microsecond.
const SETTINGS: Settings = Settings::paper(1_000_000);

fn table(back: Back, cells: &[Cell]) -> Table {
    let mut table = Table::new(back.name(), COLUMNS.map(String::from));
    table.section(Source::Measured, "but for R, which is modelled");
    let mut last = None;
    for cell in cells {
        if last != Some(cell.load.depth) {
            last = Some(cell.load.depth);
            table.line(format!("QD {}", cell.load.depth), COLUMNS.map(|_| String::new()));
        }
        let each = |of: &dyn Fn(&Figures) -> f64| cell.median(|run| of(run) / run.requests as f64);
        let in_flight = cell.median(|run| run.in_flight.unwrap_or(f64::NAN));
        table.part(
            cell.peer.name(),
            [
                number(cell.median(|run| run.requests as f64 / run.nanoseconds as f64 * 1e6)),
                if in_flight.is_nan() { String::new() } else { number(in_flight) },
                two(each(&|run| run.calls as f64)),
                rule(cell.peer, in_flight),
                whole(cell.median(|run| run.p50 as f64 / 1000.0)),
                whole(cell.median(|run| run.p99 as f64 / 1000.0)),
                whole(each(&|run| ticks(run.server_cpu.unwrap_or(0)))),
                whole(each(&|run| ticks(run.own_cpu))),
            ],
        );
    }
    table
}

/// What vIC's rule says for so many in flight, where the server has it.
fn rule(peer: Peer, in_flight: f64) -> String {
    if peer != Peer::Daemon {
        return String::new();
    }
    let Ratio { count_up, skip_up } =
        Ratio::of(in_flight.round() as u32, SETTINGS.cif_threshold.into());
    format!("{count_up}/{skip_up}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::show::text;

    fn cell(peer: Peer, depth: u32, in_flight: Option<f64>) -> Cell {
        let figures = Figures {
            requests: 20_000,
            failed: 0,
            nanoseconds: 500_000_000,
            server_cpu: Some(500_000_000),
            server_switches: Some(9_000),
            own_cpu: 250_000_000,
            calls: 2_600,
            kicks: 3,
            p50: 1_600_000,
            p99: 2_000_000,
            in_flight,
        };
        let (back, calls, clients, lone) = (Back::Paced, true, 1, false);
        let load = Load { back, calls, clients, depth, lone, frame: 0, warm_up: WARM_UP };
        Cell { load, peer, runs: vec![figures; 3], instructions: None }
    }

    #[test]
    fn the_rule_stands_where_vic_is() {
        let cells = [
            cell(Peer::Daemon, 1, Some(0.0)),
            cell(Peer::Daemon, 64, Some(63.2)),
            cell(Peer::AllTold, 64, Some(62.9)),
            cell(Peer::StorageDaemon, 64, None),
        ];
        let shown = text::table(&table(Back::Paced, &cells));
        let lines: Vec<Vec<&str>> =
            shown.lines().map(|line| line.split_whitespace().collect()).collect();
        let of = |at: usize| &lines[at][lines[at].len() - 8..][..4];
        assert_eq!(of(3), ["40.0", "0.00", "0.13", "1/1"]);
        assert_eq!(of(5), ["40.0", "63.2", "0.13", "1/7"]);
        assert_eq!(of(6), ["40.0", "62.9", "0.13", "-"]);
        assert_eq!(of(7), ["40.0", "-", "0.13", "-"]);
        assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    }

    #[test]
    fn the_bound_of_the_delay_is_longer_than_the_rule_takes_at_this_pace() {
        let Ratio { skip_up, .. } = Ratio::of(127, SETTINGS.cif_threshold.into());
        assert!(u64::from(skip_up) * 1_000_000 / PACE < SETTINGS.longest());
    }
}
