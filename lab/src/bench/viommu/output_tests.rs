//! Tables say what was counted, and against what.

use super::*;
use crate::bench::{
    figures::{Exits, Kind, Window},
    lines::{self, Edge},
    show::text,
    sidecore::{Alone, Ran},
    viommu::strategy::{ALL, Place},
};
use proto::Served;

const FIO: Workload = Workload::Fio { depth: 1 };

/// A guest that executes so much for a read, and the host so much for each of its exits.
fn cell(place: Place, guest: u64, exits: u64, host: u64) -> Cell {
    let vm = place.server != Server::Machine;
    let window = |kind, operations: u64, spun: u64| {
        let mut by_reason = vec![0; Reason::COUNT];
        by_reason[Reason::MsixTable as usize] = exits * operations;
        let counted = Exits { entries: exits * operations, by_reason, ..Exits::default() };
        Window {
            kind,
            spun,
            operations,
            interrupts: operations,
            ticks: 10,
            nanoseconds: 1_000,
            bytes: 0,
            packets: 3 * operations,
            exits: vm.then_some(counted),
            guest: 0,
            host: 0,
            others: 0,
            vmruns: 0,
            outer_vmruns: 0,
        }
    };
    let windows =
        vec![window(Kind::Short, 100, 0), window(Kind::Long, 1_100, 0), window(Kind::Spin, 0, 500)];
    let mut at = Edge { opens: true, vcpu: 1, ..Edge::default() };
    let mut edges = Vec::new();
    for window in &windows {
        edges.push(at.clone());
        at.guest += guest * window.operations + 500;
        at.host += host * exits * window.operations;
        at.vmruns += exits * window.operations;
        at.host_entries += exits * window.operations;
        edges.push(Edge { opens: false, ..at.clone() });
    }
    let said = lines::Guest { windows, done: true, ..lines::Guest::default() };
    let served = Served { completed: 2_400, bytes: 1_080 * 4096, kicks: 0, ..Served::default() };
    let alone = Alone::of(place.way(), Ran { guest: said, edges, served }, 1).unwrap();
    Cell { place, alone }
}

fn cells() -> Vec<Cell> {
    let cost = |place: Place| match (place.server, place.strategy) {
        (Server::Machine, Strategy::None) => (8_000, 0),
        (Server::Machine, _) => (16_000, 0),
        (_, Strategy::None) => (10_000, 0),
        (Server::Sidecore, _) => (20_000, 0),
        (Server::Exits, _) => (12_500, 2),
    };
    ALL.into_iter()
        .map(|place| {
            let (guest, exits) = cost(place);
            cell(place, guest, exits, 1_250)
        })
        .collect()
}

fn line(shown: &str, label: &str) -> Vec<String> {
    let mut lines = shown.lines().filter_map(|line| line.trim().strip_prefix(label));
    lines
        .next()
        .unwrap_or_default()
        .split("  ")
        .filter(|c| !c.is_empty())
        .map(|c| c.trim().to_owned())
        .collect()
}

#[test]
fn each_column_is_against_the_same_without_an_iommu() {
    let shown = text::table(&table(Own::Virtio, FIO, &cells()));
    let throughput = line(&shown, "throughput, of none's, ticks out");
    let of = |n: usize| throughput[n].split(' ').next().unwrap().to_owned();
    // Bare: none and strict; a VM: none, by a sidecore, by exits: 12,500 and 2 * 1,250.
    assert_eq!([of(0), of(1), of(3), of(4), of(7)], ["1.00", "0.50", "1.00", "0.50", "0.67"]);
    assert_eq!(line(&shown, "exits per I/O, ticks in")[7], "2.0000", "{shown}");
    assert_eq!(line(&shown, "exits per I/O, ticks in")[0], "-", "{shown}");
}

#[test]
fn waiting_is_what_a_guest_that_exits_has_not() {
    let shown = text::table(&table(Own::Virtio, FIO, &cells()));
    let added = line(&shown, "by the guest's own kernel");
    assert_eq!([&added[1], &added[4], &added[7]], ["8,000", "10,000", "2,500"], "{shown}");
    let excluded = line(&shown, "waiting excluded");
    assert_eq!([&excluded[1], &excluded[4], &excluded[6]], ["-", "2,500", "2,500"], "{shown}");
    // 10,000 of 12,500, whatever the sidecore's column waits.
    let modelled = shown.split_once("modelled").unwrap().1;
    let most = line(modelled, "throughput, of none's");
    assert_eq!([&most[4], &most[5], &most[6], &most[7]], ["0.80", "0.80", "0.80", "-"], "{shown}");
    let host = line(&shown, "by the host");
    assert_eq!([&host[4], &host[7]], ["0", "2,500"], "{shown}");
}

#[test]
fn what_came_back_is_of_what_was_mapped() {
    let shown = text::table(&table(Own::Virtio, FIO, &cells()));
    let hits = line(&shown, "of what was mapped, was mapped still");
    assert_eq!([&hits[4], &hits[6]], ["-", "0.900"], "{shown}");
}

#[test]
fn the_papers_table_is_beside_ours_and_says_whose_it_is() {
    let shown = text::table(&paper(&[(FIO, cells())]));
    assert_eq!(line(&shown, "strict, fio depth 1"), ["67", "50", "50"], "{shown}");
    assert_eq!(line(&shown, "optimistic, fio depth 1"), ["-", "50", "-"], "{shown}");
    let quoted = shown.split_once("quoted").unwrap().1;
    assert_eq!(line(quoted, "strict"), ["10", "30", "43"], "{shown}");
    assert_eq!(line(quoted, "optimistic"), ["82", "100", "100"], "{shown}");
    let rows = serde_json::to_value(rows(Own::Virtio, &[(FIO, cells())])).unwrap();
    assert_eq!(rows[4]["added_by_guest_without_waiting"], 2_500.0);
    assert!(rows[1]["added_by_guest_without_waiting"].is_null());
}

#[test]
fn packets_are_those_of_a_network() {
    let shown = text::table(&table(Own::Virtio, Workload::STREAM, &cells()));
    assert_eq!(line(&shown, "packets, both ways")[0], "3.000", "{shown}");
    assert_eq!(line(&shown, "exits per write, ticks in")[7], "2.0000", "{shown}");
    assert!(line(&text::table(&table(Own::Virtio, FIO, &cells())), "packets").is_empty());
    let rows = serde_json::to_value(rows(Own::Virtio, &[(Workload::STREAM, cells())])).unwrap();
    assert_eq!(
        (&rows[4]["workload"], &rows[4]["packets"]),
        (&"tcp_stream 256".into(), &3_000.into())
    );
}
