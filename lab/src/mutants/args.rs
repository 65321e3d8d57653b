//! What `exitless mutants` may be told.

const EXAMPLES: &str = "\
Examples:
  exitless mutants --image                       every change to the image
  exitless mutants --image --only switch         those with this in their name
  exitless mutants --image --sample 10 --seed 7  ten of them, by the seed
  exitless mutants --image --list                whether they fit the code
  exitless mutants --crates --only sched         what cargo-mutants changes
  exitless mutants --crates --sample 60          sixty in each crate

A change to the image is an entry of lab/mutants/*.toml: a text that stands in one place of the code, what takes its place,
and tests of the emulator (`exitless test --only`) or of a crate that must notice. Those tests are run
without the change first. Changes to a crate are judged by its own tests; lab/mutants/crates/equivalent.toml
has those that make no difference. Results are kept in target/mutants; --again forgets them.";

/// Change the code where a test must notice, and see that one does.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = exitless::help::flow(EXAMPLES))]
pub struct Args {
    /// Changes to the hypervisor's image, judged by tests in the emulator
    #[arg(long)]
    pub image: bool,
    /// Changes to the crates, made by cargo-mutants, judged by the crates' own tests
    #[arg(long, conflicts_with = "image")]
    pub crates: bool,
    /// Only changes, or crates, whose name contains this; `*` stands for anything
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// So many of them, or of each crate, at random
    #[arg(long, value_name = "N")]
    pub sample: Option<usize>,
    /// What the sample is chosen by
    #[arg(long, value_name = "S", default_value_t = 1, requires = "sample")]
    pub seed: u64,
    /// Only show them, or how many there are, and whether they fit the code
    #[arg(long)]
    pub list: bool,
    /// Put the table into docs/mutants.md
    #[arg(long, conflicts_with_all = ["only", "list"])]
    pub write: bool,
    /// Forget what former runs found
    #[arg(long)]
    pub again: bool,
}
