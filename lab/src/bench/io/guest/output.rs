//! What the part `guest` shows: a table, rows for JSON.

use super::{
    accelerator::Accelerator,
    cell::{BACK, Cell, DEPTHS},
    said::Rate,
};
use crate::bench::{
    figures::median,
    io::output::{NAME, Shown, megahertz, ticks},
    show::{Block, Source, Table, two, whole},
};
use anyhow::Result;
use serde::Serialize;

const COLUMNS: [&str; 8] = ["IOPS", "p50", "p99", "p99.9", "irq", "ticks", "sw/k", "QEMU"];

pub fn shown(accelerator: Accelerator, seconds: u32, cells: &[Cell]) -> Result<Shown> {
    let intro = format!(
        "Debian's kernel below a stock QEMU with one processor, fio in it for {seconds} s: random reads of 4 KiB of a disk in memory, with \
         libaio; and a round that writes 16 MiB and verifies, without an error. One core for the server, one for QEMU; servers in turns, medians. {} IOPS, p50, p99, p99.9 (latency in µs): as \
         fio says. irq: the disk's interrupts in the guest, for a request. ticks: CPU time of the server for a request, polling and kernel included, in \
         ticks of {} MHz. sw/k: the server's context switches for a thousand. QEMU: its ticks for a request, the guest's included.",
        accelerator.note(),
        whole(megahertz())
    );
    let title = format!("a guest, {}, {}", BACK.name(), accelerator.name());
    let mut table = Table::new(title, COLUMNS.map(String::from));
    table.section(Source::Measured, "");
    for (at, depth) in DEPTHS.into_iter().enumerate() {
        table.line(format!("QD {depth}"), COLUMNS.map(|_| String::new()));
        for cell in cells {
            let runs: Vec<&Rate> = cell.runs.iter().filter_map(|run| run.get(at)).collect();
            let median = |of: &dyn Fn(&Rate) -> f64| {
                median(&runs.iter().map(|rate| of(rate)).collect::<Vec<_>>())
            };
            let each =
                |of: &dyn Fn(&Rate) -> f64| median(&|rate| of(rate) / rate.cost.requests as f64);
            table.part(
                cell.peer.name(),
                [
                    whole(median(&|rate| rate.fio.iops)),
                    whole(median(&|rate| rate.fio.p50 as f64 / 1000.0)),
                    whole(median(&|rate| rate.fio.p99 as f64 / 1000.0)),
                    whole(median(&|rate| rate.fio.p999 as f64 / 1000.0)),
                    two(each(&|rate| rate.cost.interrupts as f64)),
                    whole(each(&|rate| ticks(rate.cost.server_cpu))),
                    whole(each(&|rate| rate.cost.server_switches as f64 * 1000.0)),
                    whole(each(&|rate| ticks(rate.cost.qemu_cpu))),
                ],
            );
        }
    }
    let rows = cells.iter().flat_map(|cell| {
        cell.runs.iter().flatten().map(|rate| Row {
            experiment: NAME,
            part: "guest",
            kind: Source::Measured.label(),
            server: cell.peer.name(),
            back: BACK.name(),
            accelerator: accelerator.name(),
            ticks_per_microsecond: megahertz(),
            rate,
        })
    });
    let rows = rows.map(serde_json::to_value).collect::<Result<_, _>>()?;
    Ok(Shown { blocks: vec![Block::Say(intro), Block::Table(table)], rows })
}

/// A row of `--json`: one run at one depth.
#[derive(Serialize)]
struct Row<'a> {
    experiment: &'static str,
    part: &'static str,
    kind: &'static str,
    server: &'static str,
    back: &'static str,
    accelerator: &'static str,
    ticks_per_microsecond: f64,
    #[serde(flatten)]
    rate: &'a Rate,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        io::{
            guest::said::{Cost, Fio},
            peer::Peer,
        },
        show::text,
    };

    #[test]
    fn a_line_is_the_median_of_runs_and_no_wider_than_a_terminal() {
        let rate = |depth: u32, iops: f64| Rate {
            depth,
            fio: Fio { iops, p50: 4_444_416, p99: 12_204_224, p999: 22_007_040 },
            cost: Cost {
                requests: 10_000,
                interrupts: 9_000,
                nanoseconds: 6_000_000_000,
                server_cpu: 300_000_000,
                server_switches: 20_000,
                qemu_cpu: 6_000_000_000,
            },
        };
        let run = |iops| DEPTHS.map(|depth| rate(depth, iops * f64::from(depth))).to_vec();
        let cell = |peer| Cell { peer, runs: vec![run(3_000.0), run(1_000.0), run(2_000.0)] };
        let shown = shown(Accelerator::Tcg, 5, &[cell(Peer::Daemon), cell(Peer::StorageDaemon)]);
        let Shown { blocks, rows } = shown.unwrap();
        assert_eq!(rows.len(), 12);
        assert_eq!(rows[1]["fio"]["iops"], 96_000.0);
        let text = text::blocks(&blocks);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let wanted = ["2,000", "4,444", "12,204", "22,007", "0.90"];
        let is_there = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.windows(wanted.len()).any(|some| some == wanted)
        };
        assert_eq!(text.lines().filter(|line| is_there(line)).count(), 2, "{text}");
        assert!(text.contains("64,000"), "{text}");
    }
}
