//! The paper's Figure 5: what exitless interrupts are worth when the network card
//! saves interrupts.

use super::{common, experiment::Experiment, fig4, notes::remarks, paper::improvement};
use crate::bench::{
    column::Column,
    measure::{Cell, Results},
    model::Model,
    show::{Block, Form, Line, Plot, Point, Source, number, spread},
    workload::{Effort, Workload},
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "fig5",
    title: "Figure 5: interrupt coalescing by the network card",
    workloads,
    blocks,
};

fn workloads(effort: Effort) -> Vec<Workload> {
    // The emulated core is slower than the paper's by two orders of magnitude; for as many
    // packets to share an interrupt the card has to wait that much longer.
    let throttle: &[Option<u32>] = match effort {
        Effort::Full | Effort::Demo => {
            &[None, Some(0), Some(300), Some(1_000), Some(3_000), Some(9_600)]
        }
        Effort::Quick => &[None, Some(3_000)],
        Effort::Smoke => return vec![fig4::BOTH],
    };
    throttle.iter().map(|throttle| Workload::Stream { compute: 0, throttle: *throttle }).collect()
}

fn name(workload: Workload) -> String {
    match workload {
        Workload::Stream { throttle: Some(us), .. } => format!("{us} µs"),
        _ => "the driver's own".into(),
    }
}

fn blocks(results: &Results, workloads: &[Workload]) -> Vec<Block> {
    let x = "interrupts per KiB sent under trap (the card's interval beside it)";
    let line = |p: Column, label: bool| {
        let y = |w| common::improvement(results, p, w, Model::TOTAL_CYCLES);
        let label = |w| if label { name(w) } else { String::new() };
        Line {
            name: p.label().into(),
            points: fig4::points(results, workloads, fig4::interrupts, y, label),
        }
    };
    let improved = fig4::improved(results);
    let last = improved.last().copied();
    let quoted = Point {
        x: improvement::COALESCING_MICROSECONDS,
        y: improvement::COALESCING,
        label: "the card's longest".into(),
    };
    let plots = vec![
        Plot {
            title: "throughput gained over trap, 9,500 cycles an exit".into(),
            source: Source::Modelled,
            y: "per cent".into(),
            form: Form::Lines {
                x: x.into(),
                series: improved.iter().map(|p| line(*p, Some(*p) == last)).collect(),
            },
        },
        Plot {
            title: "what the paper's text says of its Figure 5".into(),
            source: Source::Quoted,
            y: "per cent gained by ELI".into(),
            form: Form::Lines {
                x: "µs between interrupts at least".into(),
                series: vec![Line { name: Column::ELI.label().into(), points: vec![quoted] }],
            },
        },
    ];
    let mut table = common::table("the card's interval", results);
    table.section(Source::Measured, "device interrupts per KiB sent");
    for w in workloads {
        table.line(name(*w), common::each(results, *w, |c| number(fig4::interrupts(&c.figures))));
    }
    table.section(Source::Measured, "fraction of bare metal by instructions per write, ticks out");
    for w in workloads {
        let fraction =
            |c: &Cell| common::counted(results, c.policy, *w).map_or(String::new(), spread);
        table.line(name(*w), common::each(results, *w, fraction));
    }
    fig4::gains(results, workloads, name, &mut table);
    let intro = "netperf's stream with a least time between two interrupts of the network card. The fewer \
                 interrupts, the less there is to win by making them exitless; what exitless ones win is that \
                 coalescing, which costs latency, isn't needed. The paper's intervals are 16 to 96 µs. The \
                 emulated core is slower by two orders of magnitude, so longer ones are set here; what counts is \
                 how many interrupts are left. The paper also says that ELI stays at 99 % of bare metal and \
                 above throughout.";
    vec![
        Block::Say(intro.into()),
        Block::Plots(plots),
        Block::Remarks(remarks(results)),
        Block::Table(table),
    ]
}
