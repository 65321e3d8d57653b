//! The test kernels in the emulator: each delivery situation under each policy, what
//! hostile guests do, two VMs at once, and what is refused; Linux on each network controller and
//! beside attackers, old and new kernels, as a hypervisor, and every way of booting; the daemon
//! below stock QEMU, and with a controller of its own; VMX on Bochs.
//!
//! Guarantees: [`AT_ONCE`] machines run at a time at most, and one alone where several of its CPUs
//! are busy, where its run is measured or its turns are timed; a case that fails shows why, with
//! the consoles and the log; a case that hangs is stopped and fails. The same kernel runs on the
//! bare machine too: what it asserts there is what guests must see.

mod alone;
mod amd_vi;
mod bochs;
mod boots;
pub mod case;
mod cases;
mod cost;
pub mod costs;
mod deviceless;
mod echo;
pub mod hostile;
mod hypervisor;
mod inner_exitless;
pub mod inner_linux;
pub mod inner_network;
mod inventory;
mod judge;
pub mod kernel;
mod kvm_selftests;
mod machine_check;
mod moves;
mod names;
mod nesting;
mod nesting_prices;
mod network;
pub mod outer;
mod parts;
mod planted;
mod prices;
mod rare;
mod refusals;
pub mod run;
mod screen;
mod shared;
mod smp;
mod source;
mod stock;
mod strange;
mod suite;
mod switch;
mod table;
mod tally;
mod timers;
mod topology;
mod trusting;
mod units;
mod uplink;
mod verdict;
mod vfio;
mod viommu;
mod virtio;
mod vmx;
mod watchdog;
mod workers;

use crate::summary::Summary;
use anyhow::{Result, bail};
use case::{Case, Outcome};
use exitless::{context::Context, qemu::Iommu};
use kernel::Kernel;
pub use names::named;
use std::time::Instant;
use tally::Tally;
use workers::{AT_ONCE, Gate, side_by_side, together};

/// Lines of the hypervisor's log shown after a failure.
const LOG_LINES: usize = 40;

/// An emulator that cases may be asked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Emulator {
    /// The one with VMX
    Bochs,
    /// All else
    Qemu,
}

/// What a test has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice<'a> {
    /// A few only.
    pub quick: bool,
    /// Also those that take long.
    pub long: bool,
    /// On machines with this IOMMU.
    pub iommu: Option<Iommu>,
    /// Those of this emulator.
    pub emulator: Option<Emulator>,
    /// Those whose name has this in it ([`named`]).
    pub only: Option<&'a str>,
}

impl Choice<'_> {
    /// Whether it has cases of this emulator's.
    fn is_on(&self, emulator: Emulator) -> bool {
        self.emulator.is_none_or(|asked| asked == emulator)
    }

    /// Whether a whole test has a case; `usual`: also without being asked for its machine.
    fn has(&self, case: &Case, usual: bool) -> bool {
        match self.only {
            Some(text) => amd_vi::is_named(case, text),
            None => {
                let usual = usual && !rare::is_rare(&case.name);
                (case.quick || !self.quick) && (usual || self.long)
            }
        }
    }

    fn cases(&self) -> Vec<Case> {
        if !self.is_on(Emulator::Qemu) {
            return Vec::new();
        }
        let mut cases = all();
        cases.retain(|case| self.iommu != Some(Iommu::AmdVi) && self.has(case, !case.long));
        let asked = self.only.is_some_and(amd_vi::is_asked_for);
        let on_amd_vi = match (self.iommu, self.only) {
            (Some(iommu), _) => iommu == Iommu::AmdVi,
            (None, Some(_)) => asked,
            (None, None) => !self.quick,
        };
        if on_amd_vi {
            let usual =
                |case: &Case| !case.long && (self.iommu.is_some() || amd_vi::is_usual(case));
            let there = amd_vi::of(all()).into_iter();
            cases.extend(there.filter(|case| self.has(case, usual(case))));
        }
        cases
    }
}

/// What is to be run.
struct Chosen {
    cases: Vec<Case>,
    kernels: Vec<(&'static str, table::Shape)>,
    /// Linux as a hypervisor.
    hypervisors: Vec<hypervisor::Kind>,
    /// The same, and netperf at one level and at two.
    networks: bool,
    /// The same with KVM's own tests.
    kvm: Vec<kvm_selftests::Kind>,
    /// Exitless as one.
    exitless: Vec<Case>,
    stock: Vec<stock::Kind>,
    /// The daemon with a controller of its own.
    vfio: bool,
    bochs: Vec<bochs::Kind>,
    /// VMs on Bochs.
    vmx: Vec<Case>,
}

impl Chosen {
    fn of(choice: Choice) -> Result<Chosen> {
        let Choice { quick, long, only, .. } = choice;
        let qemu = choice.is_on(Emulator::Qemu);
        let usual = qemu && choice.iommu != Some(Iommu::AmdVi);
        let anything = choice.iommu.is_none();
        let bochs = choice.is_on(Emulator::Bochs) && anything;
        let chosen = Chosen {
            cases: choice.cases(),
            kernels: if usual { table::chosen(quick, long, only) } else { Vec::new() },
            hypervisors: if usual { hypervisor::chosen(quick, only) } else { Vec::new() },
            networks: usual && inner_network::is_chosen(long, only),
            kvm: if usual { kvm_selftests::chosen(quick, long, only) } else { Vec::new() },
            exitless: if usual { inner_exitless::chosen(quick, long, only) } else { Vec::new() },
            stock: if qemu && anything { stock::chosen(quick, long, only) } else { Vec::new() },
            vfio: usual && vfio::is_chosen(quick, only),
            bochs: if bochs { bochs::chosen(quick, only) } else { Vec::new() },
            vmx: if bochs { vmx::chosen(quick, long, only) } else { Vec::new() },
        };
        match only {
            Some(text) if chosen.names().is_empty() => {
                bail!("no test of the emulator has \"{text}\" in its name; `--list` shows all")
            }
            None if chosen.names().is_empty() => {
                bail!("a quick test has nothing in this emulator; leave --quick out")
            }
            _ => Ok(chosen),
        }
    }

    fn names(&self) -> Vec<String> {
        let cases = self.cases.iter().map(|case| case.name.clone());
        let kernels = self.kernels.iter().map(|(kernel, shape)| table::name(kernel, *shape));
        let hypervisors = self.hypervisors.iter().map(|(name, _)| (*name).to_owned());
        cases
            .chain(kernels)
            .chain(hypervisors)
            .chain(self.networks.then(|| inner_network::NAME.to_owned()))
            .chain(self.kvm.iter().map(|kind| kind.name.to_owned()))
            .chain(self.exitless.iter().map(|case| case.name.clone()))
            .chain(self.stock.iter().map(|kind| kind.name().to_owned()))
            .chain(self.vfio.then(|| vfio::NAME.to_owned()))
            .chain(self.bochs.iter().map(|kind| kind.name().to_owned()))
            .chain(self.vmx.iter().map(|case| case.name.clone()))
            .collect()
    }
}

/// The names of the cases that are chosen.
pub fn list(choice: Choice) -> Result<Vec<String>> {
    Ok(Chosen::of(choice)?.names())
}

/// Runs the cases that are chosen. A case that fails doesn't stop the others.
pub fn run(cx: &Context, choice: Choice) -> Result<Summary> {
    let chosen = Chosen::of(choice)?;
    let tally = Tally::new(chosen.names().len());
    let Chosen { cases, kernels, hypervisors, networks, kvm, exitless, stock, vfio, bochs, vmx } =
        chosen;
    let (only, total) = (choice.only, all().len());
    let has = |variant| cases.iter().chain(&exitless).chain(&vmx).any(|c| c.has(variant));
    let kernel = kernel::build(cx, has)?;
    // Built before the first case, so that no case's time has it.
    if cases.iter().any(|c| !c.is_bare()) || !exitless.is_empty() {
        cx.hypervisor()?;
    }
    for case in cases.iter().chain(&vmx) {
        run::other_image(case.machine, cx)?;
    }
    if cases.iter().any(|c| c.iommu == Iommu::AmdVi) {
        cx.qemu(Some(Iommu::AmdVi))?;
    }
    boots::prepare(cx, &cases)?;
    let mut summary = Summary {
        skipped: if only.is_none() { total.saturating_sub(cases.len()) } else { 0 },
        ..Summary::default()
    };
    let (alone, beside): (Vec<_>, Vec<_>) = cases.iter().partition(|c| c.is_alone());
    let gate = Gate::new(AT_ONCE);
    let play = |case: &Case| Ok(one(case, &kernel, cx, &tally));
    summary += side_by_side(cx, &gate, &beside, AT_ONCE, |case| play(case))?;
    summary += side_by_side(cx, &gate, &alone, 1, |case| play(case))?;
    if boots::has_all(&cases) {
        boots::write(cx, &summary)?;
    }
    summary += inner_exitless::run(cx, &exitless, &kernel, &tally)?;
    // What one list leaves of the machine at its end, the others have.
    let all_kernels = only.is_none() && choice.long;
    let on_bochs = || {
        if !vmx.is_empty() {
            bochs::prepare(cx, &vmx)?;
            cx.hypervisor()?;
        }
        // Bochs is one thread, however many CPUs its machine has.
        side_by_side(cx, &gate, &vmx, AT_ONCE, play)
    };
    let one_of = |wanted: bool, run: fn(&Context, &Tally) -> Result<Summary>| {
        side_by_side(cx, &gate, &vec![(); wanted.into()], 1, |()| run(cx, &tally))
    };
    let lists: [Box<dyn FnOnce() -> Result<Summary> + Send>; 8] = [
        Box::new(|| hypervisor::run(cx, &gate, &hypervisors, &tally)),
        Box::new(|| table::run(cx, &gate, &kernels, all_kernels, &tally)),
        Box::new(|| stock::run(cx, &gate, &stock, &tally)),
        Box::new(|| one_of(networks, inner_network::run)),
        Box::new(|| kvm_selftests::run(cx, &gate, &kvm, &tally)),
        Box::new(|| one_of(vfio, vfio::run)),
        Box::new(|| bochs::run(cx, &gate, &bochs, &tally)),
        Box::new(on_bochs),
    ];
    summary += together(lists.into())?;
    Ok(summary)
}

/// Runs a case, judges it and says so, in one piece.
fn one(case: &Case, kernel: &Kernel, cx: &Context, tally: &Tally) -> Summary {
    let start = Instant::now();
    let result = run::run(case, kernel, cx);
    if cx.interrupted() {
        return Summary::default();
    }
    let took = start.elapsed();
    let complaints = match &result {
        Ok(outcome) => judge::complaints(case, outcome),
        Err(error) => judge::rejection(case, &format!("{error:#}")),
    };
    let passed = complaints.is_empty();
    let mut lines = vec![tally.line(passed, &case.name, took)];
    if passed {
        let costs = result.iter().flat_map(|o| cost::of(&case.windows, &o.edges)).flatten();
        let prices = result.iter().flat_map(|o| prices::of(&case.prices, &o.consoles)).flatten();
        let told = result.iter().flat_map(|o| hostile::told(case, o));
        lines.extend(costs.chain(prices).chain(told).map(|line| format!("      {line}")));
    } else {
        lines.extend(explained(&complaints, result.as_ref().ok()));
    }
    println!("{}", lines.join("\n"));
    let entered = result.ok().and_then(|outcome| outcome.entered);
    let entered = entered.map(|n| (case.name.clone(), n)).into_iter().collect();
    Summary { entered, ..Summary::one(&case.name, passed) }
}

fn all() -> Vec<Case> {
    let mut cases = cases::all();
    cases.extend(smp::all());
    cases.extend(nesting::all());
    cases.push(nesting_prices::case());
    cases.extend(network::all());
    cases.extend(timers::all());
    cases.extend(shared::all());
    cases.extend(virtio::all());
    cases.extend(viommu::all());
    cases.extend(moves::all());
    cases.extend(switch::all());
    cases.extend(parts::all());
    cases.extend(uplink::all());
    cases.extend(refusals::all());
    cases.extend(inventory::all());
    cases.extend(topology::all());
    cases.extend(strange::all());
    cases.extend(trusting::all());
    cases.extend(deviceless::all());
    cases.extend(planted::all());
    cases.extend(screen::all());
    cases.extend(machine_check::all());
    cases.extend(watchdog::all());
    cases.extend(hostile::all());
    cases.extend(boots::all());
    cases
}

/// Those of each machine.
fn everywhere() -> impl Iterator<Item = Case> {
    all().into_iter().chain(amd_vi::of(all()))
}

/// Whether one that has this text in its name must have the machine for itself.
pub fn is_alone(text: &str) -> bool {
    everywhere().any(|case| named(&case.name, text) && case.is_alone())
}

/// Whether a case has this text in its name ([`named`]).
pub fn has(text: &str) -> bool {
    everywhere().chain(inner_exitless::all()).chain(vmx::all()).any(|case| named(&case.name, text))
}

/// Shows what is wrong with a run, and all that it said.
pub fn explain(complaints: &[String], outcome: Option<&Outcome>) {
    println!("{}", explained(complaints, outcome).join("\n"));
}

fn explained(complaints: &[String], outcome: Option<&Outcome>) -> Vec<String> {
    let mut lines: Vec<_> = complaints.iter().map(|c| format!("      {c}")).collect();
    let Some(outcome) = outcome else { return lines };
    for (vm, console) in outcome.report.vms.iter().zip(&outcome.consoles) {
        for line in console.lines() {
            lines.push(format!("      [{}] {line}", vm.name));
        }
    }
    let first = outcome.log.len().saturating_sub(LOG_LINES);
    for line in &outcome.log[first..] {
        lines.push(format!("      [host] {line}"));
    }
    lines.extend(outcome.report.summary().lines().map(|line| format!("      {line}")));
    lines
}
