//! The experiments: which workloads each one measures under every policy, and what
//! it makes of the figures. Workloads that several experiments share are measured once.

mod breakdown;
mod common;
mod experiment;
mod fig3;
mod fig4;
mod fig5;
mod fio;
mod notes;
mod paper;
mod table1;
mod table2;

pub use experiment::Experiment;
pub use notes::{conclusions, legend, notes};

use super::workload::{Effort, Workload};

/// All of them, in the order of the report.
pub const ALL: [&Experiment; 6] = [
    &fig3::EXPERIMENT,
    &table1::EXPERIMENT,
    &fig4::EXPERIMENT,
    &fig5::EXPERIMENT,
    &table2::EXPERIMENT,
    &fio::EXPERIMENT,
];

/// What these experiments measure, each workload once.
pub fn workloads(experiments: &[&Experiment], effort: Effort) -> Vec<Workload> {
    let mut all = Vec::new();
    for workload in experiments.iter().flat_map(|e| (e.workloads)(effort)) {
        if !all.contains(&workload) {
            all.push(workload);
        }
    }
    all
}

/// The one whose workloads the command line chooses.
pub const FIO: &Experiment = &fio::EXPERIMENT;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
