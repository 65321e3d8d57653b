//! `exitless bench sidecore`: stock Linux with fio on a paravirtual disk, classical and exitless,
//! beside the bare machine with QEMU's own; several such VMs on one sidecore; and which completions
//! become interrupts.
//!
//! Guarantees: in each table every column's guests do the same work: the same kernel, driver, fio
//! and windows. Nothing is timed.

mod alone;
mod axes;
mod boot;
mod both;
mod demo;
mod figures;
mod interrupts;
mod kernels;
mod loads;
mod networks;
mod output;
mod scale;
mod several;
mod table;
mod vic;
mod vic_model;
mod way;

use super::{
    guest::Kit,
    matched::{PAIRS, ROUNDS},
    ready::{Files, prepare},
    show::text,
    workload::{Effort, Workload},
};
use alone::alone;
use anyhow::{Context as _, Result, bail};
pub use boot::Ran;
use boot::Run;
pub use demo::{DemoArgs, demo};
use exitless::{arguments::between, context::Context, qemu::Iommu};
pub use figures::Alone;
use loads::Load;
use output::Shown;
use plan::{Backing, Class, Control, DeviceName};
pub use way::Way;

/// What `bench sidecore` takes.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Which of its parts
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "requests,mix,vms,scale,interrupts,vic,networks"
    )]
    part: Vec<Part>,
    /// How the disk is served
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "bare,classical,trap,eli,direct"
    )]
    way: Vec<Way>,
    /// What is behind the disk
    #[arg(long, value_enum, value_delimiter = ',', default_value = "null,ram")]
    backing: Vec<Kind>,
    /// fio's queue depths
    #[arg(long, value_delimiter = ',', default_value = "1,32", value_parser = between(1, 256))]
    depth: Vec<u32>,
    /// How many VMs one sidecore serves: 1, 2, 4 and 8; 1 and 4 with --quick; of the part scale 1,
    /// 2, 4, 8 and 14; 1, 4 and 14 with --quick
    #[arg(long, value_delimiter = ',', value_parser = between(1, 15))]
    vms: Vec<u32>,
    /// Reads under way at a time on a disk that takes its time: 1, 4, 16 and 64; 1, 16 and 64 with
    /// --quick; of the part vic all powers of two from 1 to 64; 1, 4, 16 and 64 with --quick
    #[arg(long, value_delimiter = ',', value_parser = between(1, 256))]
    in_flight: Vec<u32>,
    /// That time, for each request, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2, value_parser = between(1, 1000))]
    latency: u32,
    /// What goes from one VM to the other
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "small-stream,stream,packet,apache,memcached"
    )]
    network: Vec<networks::Exchange>,
    /// Coarse, in minutes: shorter windows, fewer points
    #[arg(long)]
    quick: bool,
    /// The machine's IOMMU
    #[arg(long, value_enum, default_value_t)]
    iommu: Iommu,
    #[command(flatten)]
    files: Files,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// What a request costs, each way
    Requests,
    /// Reads and writes of mixed sizes with flushes, each way
    Mix,
    /// Several VMs on one sidecore
    Vms,
    /// Up to 14 VMs with the test kernel on one sidecore, to where it has no idle pass left
    Scale,
    /// Interrupts for each I/O on a disk of fixed latency, by vIC's threshold and map
    Interrupts,
    /// vIC's axes with test kernels: threshold, map, epoch and deferral, also on NVMe
    Vic,
    /// Two VMs at one switch: netperf from one to the other, Apache and memcached
    Networks,
    /// A disk each way, an NVMe controller of the VM's own among them, in one short table beside a
    /// device that is emulated
    Table,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing: reads leave the guest's memory as it was
    Null,
    /// Memory of the machine
    Ram,
    /// A part of an NVMe controller; on the bare machine a file
    Nvme,
}

impl From<Kind> for Backing {
    fn from(kind: Kind) -> Backing {
        let device = DeviceName::Named { class: Class::Nvme, index: 0 };
        match kind {
            Kind::Null => Backing::Null,
            Kind::Ram => Backing::Ram,
            Kind::Nvme => Backing::Part(plan::Part { device, offset: 0 }),
        }
    }
}

impl Args {
    const fn effort(&self) -> Effort {
        if self.quick { Effort::Quick } else { Effort::Full }
    }

    /// What was asked for, or else what there is to be.
    fn points(&self, asked: &[u32], all: &[u32], quick: &[u32]) -> Vec<u32> {
        match asked {
            [] if self.quick => quick.to_vec(),
            [] => all.to_vec(),
            _ => asked.to_vec(),
        }
    }
}

/// Runs the experiment.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let files = args.files.claim(output::NAME)?;
    let mut workloads = vec![Workload::Fio { depth: 1 }];
    workloads.extend(args.part.contains(&Part::Networks).then_some(Workload::Exchange));
    let kit = prepare(cx, args.iommu, &workloads)?;
    let mut shown = Shown::default();
    let measured = measure(args, cx, &kit, &mut shown);
    if measured.is_err() && shown.rows.is_empty() {
        return measured;
    }
    // What was measured before a failure took minutes, and is as true as without it.
    println!("\n{}", text::blocks(&shown.blocks));
    let written = files.write(&shown.rows, &output::page(shown.blocks, &kit));
    measured.context("the tables above end before this").and(written)
}

/// Every part that was asked for. `shown` has those that were whole when one fails.
fn measure(args: &Args, cx: &Context, kit: &Kit, shown: &mut Shown) -> Result<()> {
    if args.part.contains(&Part::Requests) {
        let backings = if args.quick { &args.backing[..1] } else { &args.backing[..] };
        for backing in backings {
            for depth in &args.depth {
                let load = Load::small(*depth, args.effort());
                let backing = (*backing).into();
                let cells = requests(cx, kit, backing, load, &args.way, args.effort())?;
                shown.add(output::requests("requests", output::reads(backing, *depth), cells));
            }
        }
    }
    if args.part.contains(&Part::Mix) {
        let load = Load::mix(args.effort());
        let cells = requests(cx, kit, Backing::Ram, load, &args.way, args.effort())?;
        shown.add(output::mix(cells));
    }
    if args.part.contains(&Part::Vms) {
        let vms = args.points(&args.vms, &[1, 2, 4, 8], &[1, 4]);
        for measured in several::measure(cx, kit, &vms, args.effort())? {
            shown.add(measured);
        }
    }
    if args.part.contains(&Part::Scale) {
        let vms = args.points(&args.vms, &[1, 2, 4, 8, 14], &[1, 4, 14]);
        shown.add(scale::measure(cx, kit, &vms, &args.way, args.effort())?);
    }
    if args.part.contains(&Part::Interrupts) {
        let depths = args.points(&args.in_flight, &[1, 4, 16, 64], &[1, 16, 64]);
        shown.add(interrupts::measure(cx, kit, &depths, args.latency, args.effort())?);
    }
    if args.part.contains(&Part::Vic) {
        let depths = args.points(&args.in_flight, &[1, 2, 4, 8, 16, 32, 64], &[1, 4, 16, 64]);
        shown.add(vic::measure(cx, kit, &depths, args.latency, args.effort())?);
    }
    if args.part.contains(&Part::Networks) {
        shown.add(networks::measure(cx, kit, &args.network, &args.way, args.effort())?);
    }
    if args.part.contains(&Part::Table) {
        let emulated = table::emulated(cx, kit, args.effort())?;
        for depth in &args.depth {
            let load = Load::small(*depth, args.effort());
            let cells = requests(cx, kit, Backing::Null, load, &table::WAYS, args.effort())?;
            shown.add(table::shown(*depth, &emulated, &cells));
        }
    }
    Ok(())
}

/// One guest under this load, each way.
fn requests(
    cx: &Context,
    kit: &Kit,
    backing: Backing,
    load: Load,
    ways: &[Way],
    effort: Effort,
) -> Result<Vec<Alone>> {
    let what = match load.mixed {
        false => format!("{} disk, depth {}", output::backing(backing), load.depth),
        true => "fio mix".to_owned(),
    };
    let run = |way| Run {
        way,
        loads: vec![load],
        backing,
        control: Control::default(),
        whole_turns: false,
        sidecore_slowed: 0,
        rounds: rounds(way, load.size.pairs, effort),
    };
    ways.iter().map(|way| alone(cx, kit, &run(*way), &what)).collect()
}

/// The bare machine is also slowed, to be compared at equal pace.
fn rounds(way: Way, own: u32, effort: Effort) -> Vec<u64> {
    if way != Way::Bare || effort != Effort::Full {
        return Vec::new();
    }
    let slowed = ROUNDS.iter().flat_map(|rounds| [*rounds; PAIRS as usize]);
    std::iter::repeat_n(0, own as usize).chain(slowed).collect()
}

/// Exits of any kind but the timer's that an I/O may cost where there are to be none.
const MOST_EXITS: f64 = 0.001;
/// Kicks that exit, for each request.
const MOST_KICKS: f64 = 1.0 / 1_000.0;

/// For the tests, briefly: requests and replies have no exits where they are to have none, and have
/// them where the control is to.
pub fn smoke(cx: &Context, kit: &Kit) -> Result<()> {
    let ways = [Way::Classical, Way::ELI];
    let load = Load::small(32, Effort::Smoke);
    let cells = requests(cx, kit, Backing::Null, load, &ways, Effort::Smoke)?;
    let wrong: Vec<_> = cells.iter().filter_map(misplaced).collect();
    if !wrong.is_empty() {
        bail!("{}", wrong.join("; "));
    }
    scale::smoke(cx, kit)?;
    demo::smoke(cx, kit)
}

/// What is wrong with a cell's exits, if anything is.
fn misplaced(cell: &Alone) -> Option<String> {
    let exits = cell.per_io(cell.figures.exits_ticks_out());
    let kicks = cell.per_request(cell.served.kicks);
    let served = cell.per_io(cell.work.served);
    let (good, expected) = match cell.way {
        Way::Bare | Way::Assigned => return None,
        Way::Classical => (kicks > 0.01 && exits > 0.01, "some of each"),
        Way::Polled(_) => {
            (cell.way == Way::TRAP || exits < MOST_EXITS && kicks < MOST_KICKS, "none")
        }
    };
    let label = cell.way.label();
    if !good {
        return Some(format!(
            "paravirtual disk, {label}: {exits} exits for each I/O and {kicks} kicks for each request, {expected} expected"
        ));
    }
    (served == 0.0)
        .then(|| format!("paravirtual disk, {label}: the sidecore's work wasn't counted"))
}
