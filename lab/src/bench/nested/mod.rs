//! Guests of a guest: what exits cost at one level and at two (`exitless bench nested`), and a
//! device of the inner guest's (`exitless demo nested`); loads at both levels (`bench loads`), and
//! networks (`bench networks`).

mod boot;
mod counts;
mod demo;
#[cfg(test)]
mod documented;
mod kvm_exits;
mod levels;
pub mod loads;
pub mod networks;
mod output;

pub use demo::{DemoArgs, demo};

use super::{progress::Step, ready::Files, show::text};
use anyhow::Result;
use exitless::context::Context;
use kvm_exits::KvmCost;
use levels::{Below, Column};
use serde::Serialize;

/// What `bench nested` takes.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// KVM, too: below the same small kernel, as a column beside ours; and Debian's kernel with KVM
    /// as L1, on the bare machine, in Exitless and in the same KVM
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    #[command(flatten)]
    files: Files,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Peer {
    /// Debian's kernel with KVM, and Debian's QEMU
    Kvm,
}

/// What `--json` has.
#[derive(Serialize)]
struct Rows {
    /// The small kernel as L1.
    small_kernel: Vec<Column>,
    /// KVM as L1, by what is below it.
    kvm: Vec<Vec<KvmCost>>,
}

const ABOUT: &str = "\
A small kernel is a hypervisor (L1) with a guest of a few instructions (L2), Turtles' \
micro-benchmarks: the same kernel on the bare emulated machine, in a VM of Exitless, and, with \
--peer kvm, in one of KVM's; then KVM is the hypervisor, in the same three places. The emulated \
CPU is the same in all, with a virtual GIF and virtual VMLOAD and VMSAVE. An outside plugin \
counts each instruction between two marks.";

/// Measures and shows the table.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let files = args.files.claim("nested")?;
    println!("{}\n", text::wrap(ABOUT));
    let with_kvm = args.peer == Some(Peer::Kvm);
    let places: &[_] = match with_kvm {
        true => &[Below::Nothing, Below::Exitless, Below::Kvm],
        false => &[Below::Nothing, Below::Exitless],
    };
    boot::prepare(cx, places)?;
    let mut columns = Vec::new();
    for &below in places {
        let step = Step::begin(format!("below the small kernel: {}", below.label()));
        let measured = boot::boot(cx, below).and_then(|counted| Column::of(below, &counted));
        step.end(if measured.is_ok() { "counted" } else { "failed" });
        columns.push(measured?);
    }
    let mut above = Vec::new();
    for &below in places.iter().filter(|_| with_kvm) {
        let step = Step::begin(format!("below KVM and its guest: {}", below.label()));
        let measured = kvm_exits::measure(cx, below);
        step.end(if measured.is_ok() { "counted" } else { "failed" });
        above.push(measured?);
    }
    println!("\n{}", text::blocks(&output::blocks(&columns, &above)));
    println!("{}", text::wrap(output::LEGEND));
    let page = output::page(&columns, &above, ABOUT);
    files.write(&Rows { small_kernel: columns, kvm: above }, &page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use levels::{Cost, Level};

    #[test]
    fn the_keys_of_json_are_documented() {
        let (what, below) = ("CPUID", Below::Exitless);
        let cost = Cost { level: Level::Two, what, exits: 2.0, instructions: 900.0, host: None };
        let column = Column { below, costs: vec![cost] };
        let kvm = KvmCost { what, below, exits: 2.0, entries: 1.0, host: 800.0, kvm: 2_500.0 };
        let rows = Rows { small_kernel: vec![column], kvm: vec![vec![kvm]] };
        documented::check("`bench nested`", &rows, &[]);
    }
}
