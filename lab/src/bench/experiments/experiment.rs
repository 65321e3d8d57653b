//! What an experiment is.

use crate::bench::{
    measure::Results,
    show::Block,
    workload::{Effort, Workload},
};

/// An experiment.
pub struct Experiment {
    /// Its name on the command line and in JSON.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// What it measures.
    pub workloads: fn(Effort) -> Vec<Workload>,
    /// What it makes of these workloads' figures.
    pub blocks: fn(&Results, &[Workload]) -> Vec<Block>,
}
