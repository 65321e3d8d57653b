//! Puts what was measured together: the page and the JSON of one or of all experiments.

use super::{
    column::Column,
    experiments::{self, Experiment},
    guest::Kit,
    measure::{Request, Results},
    rows::{self, Row},
    show::{
        self, Block, Plot,
        html::{self, Page, Section},
        text,
    },
    workload::{Effort, Workload},
};
use serde::Serialize;

/// An experiment with the workloads that it was measured with.
pub struct Measured {
    /// Which.
    pub experiment: &'static Experiment,
    /// Its workloads.
    pub workloads: Vec<Workload>,
}

impl Measured {
    /// As the experiment defines it.
    pub fn of(experiment: &'static Experiment, effort: Effort) -> Measured {
        Measured { experiment, workloads: (experiment.workloads)(effort) }
    }

    fn blocks(&self, results: &Results) -> Vec<Block> {
        let results = results.only(&self.workloads);
        let mut blocks = (self.experiment.blocks)(&results, &self.workloads);
        if !results.policies().contains(&Column::Bare) {
            blocks.iter_mut().for_each(without_bare);
        }
        blocks
    }

    /// The rows for `--json`.
    pub fn rows(&self, results: &Results) -> Vec<Row> {
        rows::rows(self.experiment.name, &results.only(&self.workloads))
    }

    /// What the terminal shows.
    pub fn text(&self, results: &Results) -> String {
        text::blocks(&self.blocks(results))
    }

    fn section(&self, results: &Results) -> Section {
        let name = self.experiment.name.to_string();
        Section { name, title: self.experiment.title.into(), blocks: self.blocks(results) }
    }
}

/// Says why there is nothing, where there is nothing because the bare machine wasn't measured.
fn without_bare(block: &mut Block) {
    const WHY: &str = "needs bare";
    match block {
        Block::Table(table) => {
            let (mut part, mut line) = (String::new(), String::new());
            for row in &mut table.rows {
                match row {
                    show::Row::Section(_, note) => part = (*note).to_owned(),
                    show::Row::Line { depth, label, cells } => {
                        if *depth == 0 {
                            line.clone_from(label);
                        }
                        let compares =
                            [&table.title, &part, &line].iter().any(|s| s.contains("bare"));
                        if compares && cells.iter().all(String::is_empty) {
                            cells.fill(WHY.to_owned());
                        }
                    }
                }
            }
        }
        Block::Plots(plots) if plots.iter().any(Plot::is_empty) => {
            plots.iter_mut().filter(|p| p.is_empty()).for_each(|p| p.title += &format!(": {WHY}"));
        }
        _ => {}
    }
}

/// The page.
pub fn page(measured: &[Measured], results: &Results, request: &Request, kit: &Kit) -> String {
    let title = match measured {
        [one] => format!("Exitless: {}", one.experiment.title),
        _ => "Exitless: the experiments of the ELI paper".into(),
    };
    let intro = [
        "Every figure says where it comes from. Measured ones are counted: exits by the hypervisor's ledger, \
         instructions by a plugin of the emulator, both as the slope between short and long windows of a running \
         load. Modelled ones are computed from measured ones with rates and a charge for each exit that are stated \
         beside them. Quoted ones are the ELI paper's (Amit, Gordon, Har'El, Ben-Yehuda, Landau, Schuster, \
         Tsafrir: Bare-Metal Performance for Virtual Machines with Exitless Interrupts).",
        "The machine is emulated. Its speed varies with what else this computer does, so nothing here is timed: \
         costs are executed instructions for each operation. Ticks are taken out where it says so, because the \
         emulated core is slow and a timer tick weighs 10 to 100 times what it does on hardware.",
        "bare: the guest's kernel on the emulated machine itself. trap: a VM whose device interrupts and their \
         completions exit. eli-delivery: interrupts arrive without an exit, completions exit. eli: neither exits. \
         direct: the VM owns its core's interrupt controller, the timer included. \
         nested: a VM of Exitless that is itself a VM of Exitless, both under direct.",
    ];
    let mut notes: Vec<String> = kit.versions().into_iter().map(String::from).collect();
    notes.insert(0, format!("Exitless {}; {}", env!("CARGO_PKG_VERSION"), effort(request)));
    notes.extend(experiments::notes(results));
    html::page(&Page {
        title,
        intro: intro.map(String::from).into(),
        failures: failures(results),
        sections: measured.iter().map(|m| m.section(results)).collect(),
        notes,
    })
}

fn effort(request: &Request) -> String {
    let windows = match request.effort {
        Effort::Full | Effort::Demo => "windows of full length",
        Effort::Quick | Effort::Smoke => "short windows (--quick): spreads are wide",
    };
    match request.repeat {
        1 => format!("{windows}, one boot for each cell"),
        n => format!("{windows}, {n} boots for each cell"),
    }
}

/// A sentence for each cell that failed.
pub fn failures(results: &Results) -> Vec<String> {
    let said = |f: &super::measure::Failure| {
        format!("{}, {}: {}", f.workload.short(), f.policy.label(), f.why)
    };
    results.failures.iter().map(said).collect()
}

/// What is in the JSON beside a report.
#[derive(Serialize)]
struct Everything {
    version: &'static str,
    quick: bool,
    repeat: u32,
    guests: Vec<String>,
    rows: Vec<Row>,
    failures: Vec<String>,
}

/// The JSON beside a report.
pub fn json(
    measured: &[Measured],
    results: &Results,
    request: &Request,
    kit: &Kit,
) -> serde_json::Result<String> {
    let everything = Everything {
        version: env!("CARGO_PKG_VERSION"),
        quick: matches!(request.effort, Effort::Quick | Effort::Smoke),
        repeat: request.repeat,
        guests: kit.versions().into_iter().map(String::from).collect(),
        rows: measured.iter().flat_map(|m| m.rows(results)).collect(),
        failures: failures(results),
    };
    Ok(serde_json::to_string_pretty(&everything)? + "\n")
}
