//! `exitless demo sidecores`: several VMs on one NVMe controller and one network, classical beside
//! exitless, in one table.

use super::{
    both::{self, Both, DEPTH},
    figures::{Member, Together},
    output::{RARE, Row, Shown, four, name},
    way::Way,
};
use crate::bench::{
    figures::median,
    guest::Kit,
    ready::prepare,
    show::{Block, Source, Table, text, three, two, whole},
    workload::Workload,
};
use anyhow::{Result, bail};
use exitless::{arguments::between, context::Context, output::Output, qemu::Iommu};
use ledger::Reason;

const DEMO: &str = "\
Several VMs with unmodified Debian kernels have a part of one NVMe controller and an interface at \
one switch each, and one core of the host's serves all of them. First fio reads in all VMs at once, \
then each VM's netperf asks the next VM's. Classical: the guest tells of each request by an exit, \
and the host gives it each interrupt by an exit and sees its completion by another. Exitless: a \
sidecore polls the requests, and its interrupts reach the guests by themselves. Everything is \
counted.";

/// From the most exits to none.
const WAYS: [Way; 2] = [Way::Classical, Way::DIRECT];

/// Exits that an operation may cost where there are to be none, and kicks of all VMs together in
/// their lives.
const MOST_EXITS: f64 = 0.001;
const MOST_KICKS: u64 = 10;

/// What `demo sidecores` takes.
#[derive(clap::Args, Clone, Debug)]
pub struct DemoArgs {
    /// How many VMs share the sidecore
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = between(2, 15))]
    vms: u32,
    /// Write the rows as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

/// Runs both ways and shows the table.
pub fn demo(args: &DemoArgs, cx: &Context) -> Result<()> {
    let json = args.json.as_deref().map(Output::claim).transpose()?;
    println!("{}\n", text::wrap(DEMO));
    println!("1 of 3: the hypervisor and the guest");
    cx.hypervisor()?;
    let kit = prepare(cx, Iommu::default(), &[Workload::Exchange])?;
    kit.versions().iter().for_each(|v| print!("{}", text::wrap_below(v)));
    println!("2 of 3: two runs, some minutes each");
    // `between` has seen to it that it fits.
    let vms = u8::try_from(args.vms)?;
    let [classical, exitless] = WAYS.map(|way| both::run(cx, &kit, vms, way));
    let runs = [classical?, exitless?];
    let shown = shown(vms, &runs);
    println!("3 of 3: what was counted\n");
    println!("{}", text::blocks(&shown.blocks));
    println!(
        "{}",
        text::wrap(&in_short(
            vms,
            [&runs[0].disks, &runs[1].disks],
            [&runs[0].networks, &runs[1].networks]
        ))
    );
    if let Some(json) = json {
        json.write_json(&shown.rows)?;
    }
    Ok(())
}

/// What the table says, in a sentence; classical first.
fn in_short(vms: u8, disks: [&Together; 2], networks: [&Together; 2]) -> String {
    let exits = |t: &Together| t.per_io(|m| m.exits.iter().sum());
    let instructions = disks[1].work_each();
    sentence(vms, disks.map(exits), networks.map(exits), instructions)
}

fn sentence(vms: u8, reads: [f64; 2], datagrams: [f64; 2], instructions: f64) -> String {
    let exits = |n: f64| if n == 0.0 { "no exit".into() } else { format!("{} exits", four(n)) };
    let [[read, less], [datagram, fewer]] = [reads, datagrams].map(|each| each.map(exits));
    format!(
        "In short: the classical way a read costs {read} and a datagram {datagram}; exitless a read \
         costs {less} and a datagram {fewer}, and one core serves the disks and networks of all \
         {vms} VMs, for {} instructions a read.",
        whole(instructions)
    )
}

/// For the tests: two VMs, whose reads and datagrams have no exits.
pub fn smoke(cx: &Context, kit: &Kit) -> Result<()> {
    let Both { disks, networks } = both::run(cx, kit, 2, Way::DIRECT)?;
    for (what, t) in [("a read", disks), ("a datagram", networks)] {
        let exits = t.per_io(|m| m.exits.iter().sum());
        let kicks = t.sum(|m| m.served.kicks);
        if exits >= MOST_EXITS || kicks > MOST_KICKS {
            bail!(
                "two VMs on one sidecore: {exits} exits for {what}, {kicks} kicks, none expected"
            );
        }
        if t.members().any(|m| m.work.served == 0 || m.interrupts == 0 || m.served.completed == 0) {
            bail!("two VMs on one sidecore: what was done for {what} wasn't counted");
        }
    }
    Ok(())
}

/// The table, and its rows.
fn shown(vms: u8, runs: &[Both; 2]) -> Shown {
    let columns = ["fio", "netperf"]
        .into_iter()
        .flat_map(|load| WAYS.map(|way| format!("{load}, {}", both::label(way))));
    let mut table = Table::new(format!("{vms} VMs on one sidecore"), columns);
    let cells: Vec<&Together> =
        runs.iter().map(|run| &run.disks).chain(runs.iter().map(|run| &run.networks)).collect();
    lines(&mut table, &cells);
    let note = format!(
        "An operation of fio is a random read of 4 KiB, {DEPTH} of them under way in each VM; of \
         netperf (UDP_RR) it is a datagram received, for each of which the VM sends one, a question \
         or an answer. An equal share is 1, by the sidecore's work."
    );
    let disk = format!("4 KiB random reads, depth {DEPTH}, parts of one NVMe controller");
    let network = "netperf UDP_RR in a ring, one switch".to_owned();
    let of = |what: &str, together: fn(&Both) -> &Together| -> Vec<Row> {
        let each = runs.iter().zip(WAYS);
        each.map(|(run, way)| Row::together("demo", what, vms.into(), way, together(run))).collect()
    };
    let mut rows = of(&disk, |run| &run.disks);
    rows.extend(of(&network, |run| &run.networks));
    Shown { blocks: vec![Block::Table(table), Block::Say(note)], rows }
}

fn lines(table: &mut Table, cells: &[&Together]) {
    let all = |f: &dyn Fn(&Together) -> String| -> Vec<String> {
        cells.iter().map(|together| f(together)).collect()
    };
    table
        .section(Source::Measured, "for each operation; all VMs together, in windows open at once");
    table.line("operations counted", all(&|t| whole(t.sum(|m| m.operations) as f64)));
    let exits = |t: &Together| four(t.per_io(|m| m.exits.iter().sum()));
    table.line("exits, ticks in", all(&exits));
    for reason in Reason::ALL.iter().copied() {
        let of = |m: &Member| m.exits.get(reason as usize).copied().unwrap_or(0);
        if cells.iter().any(|t| t.per_io(of) >= RARE) {
            table.part(name(reason), all(&|t| four(t.per_io(of))));
        }
    }
    table.line("interrupts", all(&|t| three(t.per_io(|m| m.interrupts))));
    table.line("guest's instructions", all(&|t| whole(t.per_io(|m| m.guest))));
    table.part("the host's on that core", all(&|t| whole(t.per_io(|m| m.host))));
    table.line("sidecore's instructions", all(&|t| whole(t.work_each())));
    let share = |pick: fn(&[f64]) -> f64| move |t: &Together| two(pick(&t.each_share()));
    let least: fn(&[f64]) -> f64 = |shares| shares.iter().copied().fold(f64::INFINITY, f64::min);
    table.line("smallest share of a VM", all(&share(least)));
    table.part("median", all(&share(median)));
    table.part("largest", all(&share(|shares| shares.iter().copied().fold(0.0, f64::max))));
    table.section(
        Source::Measured,
        "from the VMs' start to their end, by the sidecore; each kick is an exit",
    );
    let completed = |t: &Together| t.sum(|m| m.served.completed).max(1) as f64;
    table.line("requests and frames", all(&|t| whole(completed(t))));
    let per = |of: fn(&Member) -> u64| move |t: &Together| t.sum(of) as f64 / completed(t);
    let (kicks, calls) = (per(|m| m.served.kicks), per(|m| m.served.calls));
    table.line("kicks for each", all(&|t| four(kicks(t))));
    table.line("interrupts sent for each", all(&|t| three(calls(t))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_said_in_a_sentence() {
        assert_eq!(
            sentence(8, [3.25, 0.0], [4.5, 0.00021], 1_234.4),
            "In short: the classical way a read costs 3.2500 exits and a datagram 4.5000 exits; \
             exitless a read costs no exit and a datagram 0.0002 exits, and one core serves the \
             disks and networks of all 8 VMs, for 1,234 instructions a read."
        );
    }
}
