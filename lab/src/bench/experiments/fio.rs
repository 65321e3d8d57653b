//! fio: 4 KiB random reads from an assigned NVMe controller. The paper measures
//! networks; a disk interrupts no less.

use super::{breakdown, common, experiment::Experiment, notes::remarks};
use crate::bench::{
    column::Column,
    measure::Results,
    show::{Block, Form, Plot, Source},
    workload::{Effort, Workload},
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "fio",
    title: "fio: 4 KiB random reads on NVMe, in full",
    workloads,
    blocks,
};

fn workloads(effort: Effort) -> Vec<Workload> {
    let depths: &[u32] = match effort {
        Effort::Full | Effort::Demo => &[1, 32],
        Effort::Quick | Effort::Smoke => &[32],
    };
    depths.iter().map(|depth| Workload::Fio { depth: *depth }).collect()
}

fn blocks(results: &Results, workloads: &[Workload]) -> Vec<Block> {
    let mut blocks = Vec::new();
    if results.policies().contains(&Column::Bare) {
        let series =
            common::bars(&results.policies(), workloads, |p, w| common::counted(results, p, w));
        blocks.push(Block::Plots(vec![Plot {
            title: "by instructions per I/O, ticks out".into(),
            source: Source::Measured,
            y: "fraction of bare metal".into(),
            form: Form::Bars { groups: workloads.iter().map(|w| w.short()).collect(), series },
        }]));
        blocks.push(Block::Remarks(remarks(results)));
    }
    let measured = workloads.iter().filter(|w| !results.of(**w).is_empty());
    blocks.extend(measured.map(|w| Block::Table(breakdown::table(results, *w))));
    blocks
}
