//! Tables, plots and sentences say what the results say.

use super::*;
use crate::bench::{
    column::Column,
    figures::{Exits, Figures, Kind, Point, Window},
    generator::Idle,
    matched::Control,
    measure::Results,
    measure::{Cell, Failure},
    show::Block,
    show::{
        Form, Row, Table,
        text::{table, wrap},
    },
};
use exitless::{qemu::Iommu, report::Audit};
use ledger::Reason;

/// A policy with so many exits and host instructions per operation.
fn cell(policy: Column, workload: Workload, exits: u64, host: u64) -> Cell {
    let window = |kind, operations: u64, ticks: u64| {
        let mut by_reason = vec![0; Reason::COUNT];
        by_reason[Reason::DeviceInterrupt as usize] = exits / 2 * operations;
        by_reason[Reason::DeviceEoi as usize] = exits.div_ceil(2) * operations;
        let per_tick = if policy == Column::DIRECT { 0 } else { 2 };
        by_reason[Reason::TimerProgram as usize] = per_tick * ticks;
        // One in the longest window.
        by_reason[Reason::Kick as usize] = u64::from(policy == Column::DIRECT && ticks == 50);
        let entries = by_reason.iter().sum();
        let vm = policy != Column::Bare;
        Window {
            kind,
            spun: 0,
            operations,
            interrupts: operations,
            ticks,
            nanoseconds: 1_000_000_000,
            bytes: 256 * operations,
            packets: 0,
            exits: vm.then_some(Exits {
                entries,
                injected: exits * operations,
                by_reason,
                ..Exits::default()
            }),
            guest: 12_000 * operations + 100 * ticks,
            host: if vm { host * operations + 25 * per_tick * ticks } else { 0 },
            others: if vm { 1_500 * operations } else { 0 },
            vmruns: if vm { entries } else { 0 },
            outer_vmruns: if policy == Column::Nested { operations / 100 } else { 0 },
        }
    };
    let windows = [
        window(Kind::Short, 1_000, 10),
        window(Kind::Long, 1_234_567, 50),
        window(Kind::Spin, 0, 5),
    ];
    Cell {
        policy,
        workload,
        figures: Figures::of(&windows).unwrap(),
        control: None,
        clocksource: "tsc".into(),
        interrupt: "PCI-MSIX-0000:00:01.0".into(),
        hung: (policy == Column::Bare).then(|| "Run /init".into()),
        idle: Some(Idle { program: "peer".into(), share: 0.75 }),
        boot_instructions: Some(42_000_000),
        vm_overhead: Some(4096 * 1024),
        host_memory: None,
        iommu: Iommu::VtD,
        audit: Audit { findings: 3, ..Audit::default() },
    }
}

fn results(workloads: &[Workload]) -> Results {
    let cells = workloads.iter().flat_map(|workload| {
        [
            (Column::Bare, 0, 0),
            (Column::TRAP, 2, 12_000),
            (Column::ELI_DELIVERY, 1, 6_000),
            (Column::ELI, 0, 10),
            (Column::DIRECT, 0, 0),
        ]
        .map(|(policy, exits, host)| cell(policy, *workload, exits, host))
    });
    Results { cells: cells.collect(), hypervisor_bytes: Some(300 << 10), ..Results::default() }
}

const FIO: [Workload; 2] = [Workload::Fio { depth: 1 }, Workload::Fio { depth: 32 }];

fn tables(blocks: &[Block]) -> Vec<&Table> {
    let tables = blocks.iter().filter_map(|b| match b {
        Block::Table(table) => Some(table),
        _ => None,
    });
    tables.collect()
}

/// The cells of a table's first line with this label, after the section with this word in it.
fn line(table: &Table, section: &str, label: &str) -> String {
    let mut rows = table.rows.iter().skip_while(|row| match row {
        Row::Section(source, note) => !format!("{} {note}", source.label()).contains(section),
        Row::Line { .. } => true,
    });
    let found = rows.find_map(|row| match row {
        Row::Line { label: l, cells, .. } if l == label => Some(cells.join(" ")),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no line {label} in {table:?}"))
}

#[test]
fn the_table_fits_a_terminal_and_has_the_policies_side_by_side() {
    let results = results(&FIO);
    let shown = breakdown::table(&results, FIO[1]);
    let text = table(&shown);
    assert!(text.lines().chain(legend().lines()).all(|l| l.chars().count() <= 110), "{text}");
    assert_eq!(shown.columns, ["bare", "trap", "eli-delivery", "eli", "direct"]);
    let row = |label: &str| line(&shown, "measured", label);
    assert_eq!(row("exits per interrupt, ticks out"), " 2.00 1.00 0.00 0.00");
    assert_eq!(row("for delivery and completion"), " 2.00 1.00 0.00 0.00");
    assert_eq!(row("guest share of instructions"), "1.000 0.500 0.667 0.999 1.000");
    assert_eq!(
        row("fraction of bare metal, by cost"),
        "1.00 ± 0.00 0.50 ± 0.00 0.67 ± 0.00 1.00 ± 0.00 1.00 ± 0.00"
    );
    assert_eq!(row("core 0's own instructions per I/O"), " 1,500 1,500 1,500 1,500");
    // 1,500 of 13,500, where the guest's core executes 12,000.
    assert!(row("of those of both cores").ends_with(" 0.111"), "{}", row("of those of both cores"));
    assert_eq!(row("load generator idle, of one CPU"), "0.750 0.750 0.750 0.750 0.750");
    assert_eq!(row("exits a second at the paper's rate"), "0 300,500 150,500 500 0");
}

#[test]
fn notes_judge_and_conclusions_follow_the_counts() {
    let mut results = results(&FIO);
    let notes_then = notes(&results).join("\n");
    for said in [
        "300 KiB, under 1 MiB",
        "42.0 million instructions",
        "fio depth 1, direct: exits too rare for the table, in 1,233,567 I/Os: 1 kick",
        "bare, trap, eli-delivery, eli, direct: tsc, PCI-MSIX",
        "guest entries, ledger 7,414,184: they agree in 8 cells",
        "fio depth 1: the bare machine hung once, after \"Run /init\", and was started again",
        "peer left 75.0 % of one CPU idle or more (fio depth 1, bare): not the bottleneck",
    ] {
        assert!(notes_then.contains(said), "{notes_then}");
    }
    assert!(
        !notes_then.contains("DISAGREE") && super::notes::remarks(&results).is_empty(),
        "{notes_then}"
    );
    let said = conclusions(&results).join(" ");
    let delivery = "in fio depth 32 2.00 under trap, 1.00 under eli-delivery, 0.00 under eli";
    assert!(said.contains(delivery), "{said}");
    assert!(said.contains("500 (500 timer-program) under eli, 0 under direct;"), "{said}");
    assert!(wrap(&said).lines().all(|l| l.chars().count() <= 100));

    results.cells[1].figures.vmruns *= 2;
    results.cells[3].figures.host *= 100;
    results.cells[4].idle = Some(Idle { program: "peer".into(), share: 0.05 });
    let notes = notes(&results).join("\n");
    assert!(notes.contains("fio depth 1, trap: plugin saw") && notes.contains("DISAGREE"));
    let remarks = super::notes::remarks(&results).join("\n");
    assert!(remarks.contains("differ by more") && remarks.contains("1.00 times"), "{remarks}");
    assert!(
        notes.contains("5.0 % of one CPU idle or more (fio depth 1, direct): TOO BUSY"),
        "{notes}"
    );

    results.cells.retain(|c| c.policy != Column::TRAP);
    assert!(conclusions(&results).is_empty());
}

#[test]
fn figure_3_has_measured_modelled_and_quoted_fractions() {
    let workloads = (fig3::EXPERIMENT.workloads)(Effort::Quick);
    let blocks = (fig3::EXPERIMENT.blocks)(&results(&workloads), &workloads);
    let table = tables(&blocks)[0];
    let counted = line(table, "measured", &Workload::Apache.title());
    assert!(counted.starts_with("1.00 ± 0.00 0.50 ± 0.00 0.67"), "{counted}");
    // 12,000 of 24,000 instructions and two exits; of 18,000 and one; ticks at the model's rate.
    assert_eq!(line(table, "2,000 charged", "Apache"), "1.000 0.428 0.600 0.998 1.000");
    assert_eq!(line(table, "9,500", "Apache"), "1.000 0.279 0.435 0.993 1.000");
    assert_eq!(line(table, "quoted", "Apache"), "1.00 0.65  0.97 ");
    let Some(Block::Plots(plots)) = blocks.iter().find(|b| matches!(b, Block::Plots(_))) else {
        panic!("no plots")
    };
    let quoted = plots.last().unwrap();
    let Form::Bars { groups, series } = &quoted.form else { panic!("no bars") };
    assert_eq!(*groups, ["netperf", "Apache", "memcached"]);
    assert_eq!(series[1].values[0].unwrap().value, 0.60);
}

/// Bare itself costs 1.5 times as much when it is as slow as the others are.
#[test]
fn figure_3_compares_with_bare_at_the_same_rate() {
    let workloads = (fig3::EXPERIMENT.workloads)(Effort::Quick);
    let mut results = results(&workloads);
    for bare in results.cells.iter_mut().filter(|c| c.policy == Column::Bare) {
        let own = bare.figures.points[0];
        let cost = own.cost_ticks_out * 1.5;
        let slow = Point { pace: 4.0 * own.pace, cost, cost_ticks_out: cost, ..own };
        bare.control = Control::from_levels(vec![vec![own], vec![slow]]);
    }
    for vm in results.cells.iter_mut().filter(|c| c.policy == Column::TRAP) {
        vm.figures.points.iter_mut().for_each(|p| p.pace *= 4.0);
    }
    let blocks = (fig3::EXPERIMENT.blocks)(&results, &workloads);
    let table = tables(&blocks)[0];
    let slowed = line(table, "until it is like", "Apache, at the same rate");
    // 18,000 of 24,000 under trap; the others are as fast as bare is.
    assert_eq!(slowed, " 0.75 ± 0.00 0.67 ± 0.00 1.00 ± 0.00 1.00 ± 0.00");
    assert_eq!(
        line(table, "until it is like", common::ALIKE),
        " 1.00/1.00 1.00/1.00 1.00/1.00 1.00/1.00"
    );
    assert!(line(table, "ticks out", &Workload::Apache.title()).starts_with("1.00 ± 0.00 0.50"));
}

#[test]
fn table_1_has_a_table_for_each_program() {
    let workloads = (table1::EXPERIMENT.workloads)(Effort::Full);
    let blocks = (table1::EXPERIMENT.blocks)(&results(&workloads), &workloads);
    let tables = tables(&blocks);
    assert_eq!(tables.len(), 3);
    assert_eq!(
        line(tables[1], "gives to the guest", "injections per request"),
        " 2.00 1.00 0.00 0.00"
    );
    assert_eq!(line(tables[1], "quoted", "exits a second"), " 90,506 64,187 1,118 ");
    assert_eq!(line(tables[0], "quoted", "Mb/s"), "5,245 3,145 4,682 5,119 ");
}

#[test]
fn table_2_splits_the_hosts_work_by_what_delivery_alone_costs() {
    let workloads = [Workload::Exchange];
    let blocks = (table2::EXPERIMENT.blocks)(&results(&workloads), &workloads);
    let table = tables(&blocks)[0];
    assert_eq!(line(table, "each transaction", "host instructions"), " 12,000 6,000 10.0 0.00");
    let path = "instructions between it and its handler";
    assert_eq!(line(table, "each device interrupt", path), " 6,000 0.00 0.00 0.00");
    assert_eq!(
        line(table, "each device interrupt", "exits for its completion"),
        " 1.00 1.00 0.00 0.00"
    );
    // (12,000 + 2 × 2,000) / 2,930.
    assert_eq!(line(table, "modelled", "µs that the host adds"), " 5.46 2.73 0.00 0.00");
    assert_eq!(line(table, "quoted", "µs added"), "0.00 8.21  0.58 ");
    assert_eq!(line(table, "full version", "µs in all"), "27.93 36.14  28.51 ");
}

#[test]
fn figures_4_and_5_show_what_is_gained_over_trap() {
    for (experiment, label) in
        [(&fig4::EXPERIMENT, "netperf"), (&fig5::EXPERIMENT, "the driver's own")]
    {
        let workloads = (experiment.workloads)(Effort::Quick);
        let blocks = (experiment.blocks)(&results(&workloads), &workloads);
        let table = tables(&blocks)[0];
        // Half of the instructions are the guest's, or two thirds, or nearly all.
        let gained = line(table, "gained over trap by the guest's share", label);
        assert_eq!(gained, "100  33.3 99.8 100");
        assert_eq!(line(table, "per KiB sent", label), "4.00 4.00 4.00 4.00 4.00");
        for plot in blocks.iter().filter_map(|b| match b {
            Block::Plots(plots) => Some(plots),
            _ => None,
        }) {
            let Form::Lines { series, .. } = &plot[0].form else { panic!("no lines") };
            assert_eq!(series.len(), 3);
            assert!(series.iter().all(|s| s.points.len() == workloads.len()));
        }
    }
}

#[test]
fn whatever_is_missing_no_experiment_stumbles() {
    let workloads = workloads(&ALL, Effort::Full);
    let whole = results(&workloads);
    for left in [&[][..], &[Column::Bare], &[Column::TRAP], &[Column::ELI, Column::DIRECT]] {
        let mut some = whole.clone();
        some.cells.retain(|c| left.contains(&c.policy) && c.workload != Workload::Apache);
        let (workload, policy) = (Workload::Apache, Column::ELI);
        some.failures.push(Failure { workload, policy, why: "it failed".into() });
        for experiment in ALL {
            let workloads = (experiment.workloads)(Effort::Full);
            let blocks = (experiment.blocks)(&some.only(&workloads), &workloads);
            crate::bench::show::text::blocks(&blocks);
        }
        notes(&some);
        conclusions(&some);
    }
}

#[test]
fn experiments_share_what_they_measure() {
    for effort in [Effort::Full, Effort::Quick, Effort::Smoke] {
        let all = workloads(&ALL, effort);
        for (i, workload) in all.iter().enumerate() {
            assert!(!all[i + 1..].contains(workload));
        }
        assert!(ALL.iter().all(|e| (e.workloads)(effort).iter().all(|w| all.contains(w))));
    }
    let names: std::collections::BTreeSet<_> = ALL.iter().map(|e| e.name).collect();
    assert_eq!(names.len(), ALL.len());
}

#[test]
fn without_bare_what_is_compared_with_it_says_so() {
    let measured = ALL.map(|e| crate::bench::report::Measured::of(e, Effort::Full));
    let mut results = results(&workloads(&ALL, Effort::Full));
    let shown = |results: &Results| measured.iter().map(|m| m.text(results)).collect::<String>();
    assert!(!shown(&results).contains("needs bare"));
    results.cells.retain(|c| c.policy != Column::Bare);
    let text = shown(&results);
    for line in ["fraction of bare metal, by cost", "netperf TCP stream, 256-byte writes", "300 µs"]
    {
        let found = text.lines().any(|l| l.trim().starts_with(line) && l.contains("needs bare"));
        assert!(found, "{line}: {text}");
    }
}

#[test]
fn a_column_whose_guest_does_more_is_explained_below_its_bars() {
    let work = workloads(&[ALL[0]], Effort::Full);
    let mut results = results(&work);
    let blocks = (ALL[0].blocks)(&results, &work);
    assert!(matches!(&blocks[2], Block::Remarks(none) if none.is_empty()));
    for cell in results.cells.iter_mut().filter(|c| c.policy == Column::DIRECT) {
        cell.figures.guest *= 2;
        cell.figures.cost.iter_mut().for_each(|c| *c *= 2.0);
    }
    let blocks = (ALL[0].blocks)(&results, &work);
    assert!(matches!(blocks[1], Block::Plots(_)));
    let Block::Remarks(remarks) = &blocks[2] else { panic!("{:?}", blocks[2]) };
    assert_eq!(remarks.len(), work.len());
    assert!(remarks[0].contains("executes 2.00 times the instructions"), "{remarks:?}");
    assert!(!notes(&results).iter().any(|n| n.contains("executes 2.00 times")));
}
