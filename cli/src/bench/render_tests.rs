//! The table says what the results say, in the width of a terminal.

use super::*;
use crate::bench::figures::{Exits, Kind, Window};
use ledger::Reason;

/// A policy with so many exits and host instructions per I/O.
fn cell(policy: Policy, depth: u32, exits: u64, host: u64) -> Cell {
    let window = |kind, operations: u64, ticks: u64| {
        let mut by_reason = vec![0; Reason::COUNT];
        by_reason[Reason::DeviceInterrupt as usize] = exits * operations;
        let per_tick = if policy == Policy::Direct { 0 } else { 2 };
        by_reason[Reason::TimerProgram as usize] = per_tick * ticks;
        // One in the longest window.
        by_reason[Reason::Kick as usize] = u64::from(policy == Policy::Direct && ticks == 50);
        let entries = by_reason.iter().sum();
        let vm = policy != Policy::Bare;
        Window {
            kind,
            spun: 0,
            operations,
            interrupts: operations,
            ticks,
            nanoseconds: 1_000_000_000,
            exits: vm.then_some(Exits { entries, by_reason }),
            guest: 12_000 * operations + 100 * ticks,
            host: if vm { host * operations + 25 * per_tick * ticks } else { 0 },
            vmruns: if vm { entries } else { 0 },
        }
    };
    let windows = [
        window(Kind::Short, 1_000, 10),
        window(Kind::Long, 1_234_567, 50),
        window(Kind::Spin, 0, 5),
    ];
    Cell {
        policy,
        depth,
        figures: Figures::of(&windows).unwrap(),
        clocksource: "tsc".into(),
        interrupt: "PCI-MSIX-0000:00:01.0".into(),
        boot_instructions: Some(42_000_000),
        vm_overhead: Some(4096 * 1024),
        host_memory: None,
    }
}

fn results() -> Results {
    let cells = [1, 32].into_iter().flat_map(|depth| {
        [
            (Policy::Bare, 0, 0),
            (Policy::Trap, 2, 12_000),
            (Policy::Eli, 0, 10),
            (Policy::Direct, 0, 0),
        ]
        .map(|(policy, exits, host)| cell(policy, depth, exits, host))
    });
    Results { cells: cells.collect(), hypervisor_bytes: Some(300 << 10), ..Results::default() }
}

#[test]
fn the_table_fits_a_terminal_and_has_the_policies_side_by_side() {
    let table = table(&results());
    let all = table.lines().chain(["x"]).collect::<Vec<_>>();
    assert!(all.iter().all(|l| l.chars().count() <= 100), "{table}");
    assert!(legend().lines().all(|l| l.chars().count() <= 100));
    let row = |label: &str| {
        let line = all.iter().find(|l| l.contains(label)).unwrap();
        line.split_once(label).unwrap().1.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("depth 32"), "bare trap eli direct");
    assert_eq!(row("exits per device interrupt, ticks out"), "- 2.00 0.00 0.00");
    assert_eq!(row("guest share of all instructions"), "1.000 0.500 0.999 1.000");
    assert_eq!(
        row("fraction of bare metal, by cost"),
        "1.00 ± 0.00 0.50 ± 0.00 1.00 ± 0.00 1.00 ± 0.00"
    );
    assert_eq!(row("exits per second at the paper's rates"), "0 300,500 500 0");
}

#[test]
fn notes_judge_and_conclusions_follow_the_counts() {
    let mut results = results();
    let notes_then = notes(&results).join("\n");
    assert!(notes_then.contains("300 KiB, under 1 MiB"), "{notes_then}");
    assert!(notes_then.contains("42.0 million instructions"), "{notes_then}");
    assert!(
        !notes_then.contains("DISAGREE") && !notes_then.contains("differ by more"),
        "{notes_then}"
    );
    let said = conclusions(&results).join(" ");
    let delivery = "at depth 32 2.00 under trap, 0.00 under eli, 0.00 under direct.";
    assert!(said.contains(delivery), "{said}");
    assert!(said.contains("500 (500 timer-program) under eli, 0 under direct;"), "{said}");
    let rare = "depth 1, direct: exits too rare for the table, in 1,233,567 I/Os: 1 kick";
    assert!(notes_then.contains(rare), "{notes_then}");
    assert!(notes_then.contains("bare, trap, eli, direct: tsc, PCI-MSIX"), "{notes_then}");
    assert!(notes_then.lines().all(|l| l.chars().count() <= 98), "{notes_then}");

    let broken = wrap(&said);
    assert!(
        broken.lines().all(|l| l.chars().count() <= 100)
            && broken.replace('\n', " ") == said.replace('\n', " ")
    );

    results.cells[1].figures.vmruns *= 2;
    results.cells[2].figures.host *= 100;
    let notes = notes(&results).join("\n");
    assert!(notes.contains("depth 1, trap") && notes.contains("DISAGREE"), "{notes}");
    assert!(notes.contains("differ by more") && notes.contains("1.00 times"), "{notes}");

    results.cells.retain(|c| c.policy != Policy::Trap);
    assert!(conclusions(&results).is_empty());
}
