//! `exitless demo --machine bochs`: what an interrupt and a tick cost on VMX, in exits by reason,
//! under each policy that can be had there. And `bochs-counted/*`, what an exit takes.
//!
//! Guarantees: each column is of one run that a test of the same kernel would pass. No device is in
//! it: Bochs' machine has none that a VM could be given.

use super::{
    bochs,
    case::{Case, Cores, Guest, Special},
    cases::{case, guest},
    judge,
    kernel::{self, Kernel, Variant},
    run,
};
use crate::bench::show::{Source, Table, text};
use anyhow::{Context as _, Result, bail};
use exitless::context::Context;
use plan::Policy;

const DEMO: &str = "\
A small kernel runs on the emulated machine with Intel's VMX (Bochs), in a VM of two CPUs, under \
each policy. Its first CPU is interrupted by the second, by itself and by its timer. Each exit is \
counted.";

const NOTE: &str = "\
Per interrupt with its completion, and per tick. A processor that sends a command to another CPU \
exits for it under each policy; that exit is the sender's and isn't among those of the interrupt. \
The machine has no device that could be given to a VM, and no IOMMU: what a device's interrupt \
costs can't be had here. `eli` is of an image in which a guest takes its interrupts itself without \
a device.";

/// The kernel's test, and how many CPUs the machine has: the host's, and two.
pub const TEST: &str = "costs";
const CPUS: u32 = 3;

/// What its lines begin with, and what they are of.
const WHAT: [(&str, &str); 4] = [
    ("sent", "interrupt of another CPU"),
    ("own", "interrupt of its own (SELF IPI)"),
    ("set", "tick of a timer that is set"),
    ("goes-on", "tick of a timer that goes on"),
];

/// The policies, from the most exits to the fewest, and the hardware's own.
pub const POLICIES: [Policy; 4] = [Policy::Trap, Policy::Eli, Policy::Direct, Policy::Posted];

/// Of one policy.
pub fn of(policy: Policy) -> Case {
    let planted = policy == Policy::Eli;
    let machine = if planted { Special::BochsPlanted(CPUS) } else { Special::Bochs(CPUS) };
    let guest = Guest { cpus: 2, devices: Vec::new(), ..guest(TEST, policy) };
    Case { machine, ..case(format!("bochs-costs/{}", policy.label()), false, [guest]) }
}

/// For a Bochs that tells a CPU how many instructions it has executed (`cli/bochs/count.patch`).
/// Its time-stamp counter is no such count where there are several CPUs.
const COUNTED: &str = "count=executed device=none";

/// `bochs-counted/*`: what exits take, in instructions of the guest's and the host's together. The
/// prices are what was seen, and a few per cent.
pub fn counted() -> Vec<Case> {
    let mut cases = Vec::new();
    for (policy, cpuid, sent) in
        [(Policy::Trap, 380, 350), (Policy::Direct, 360, 260), (Policy::Posted, 410, 365)]
    {
        let case = on_counting(of(policy));
        let prices = vec![
            ("cpuid", "a CPUID", cpuid),
            ("sent", "a command that interrupts another CPU", sent),
        ];
        let name = format!("bochs-counted/{}", policy.label());
        cases.push(Case { name, prices, ..case });
    }
    let two = Guest { cpus: 2, cores: Cores::One, ..guest("shared-cost", Policy::Trap) };
    let two = Guest { devices: Vec::new(), ..two };
    let shared = case("bochs-counted/shared-trap".to_owned(), false, [two]);
    let shared = on_counting(Case { machine: Special::Bochs(2), ..shared });
    let prices = vec![("switch", "a switch, with an IPI and HLT", 2_350)];
    cases.push(Case { prices, ..shared });
    cases
}

/// On a Bochs that counts, which has to be compiled.
fn on_counting(mut case: Case) -> Case {
    let cpus = case.machine.bochs().unwrap_or(2);
    case.guests.iter_mut().for_each(|guest| guest.options = COUNTED);
    Case { machine: Special::BochsMended(cpus), long: true, ..case }
}

/// Runs them all and shows the table.
pub fn demo(cx: &Context) -> Result<()> {
    println!("{}\n", text::wrap(DEMO));
    println!("1 of 3: the emulator, the hypervisor and the kernel");
    bochs::prepare(cx, &[])?;
    cx.hypervisor()?;
    run::planted_image(cx)?;
    let kernel = kernel::build(cx, |variant| variant == Variant::Multiboot)?;
    println!("2 of 3: {} runs", POLICIES.len());
    let costs = POLICIES.map(|policy| measured(&of(policy), &kernel, cx));
    let costs: Vec<_> = costs.into_iter().collect::<Result<_>>()?;
    println!("3 of 3: what was counted\n");
    println!("{}", text::table(&table(&costs)));
    println!("{}", text::wrap(NOTE));
    Ok(())
}

fn measured(case: &Case, kernel: &Kernel, cx: &Context) -> Result<Vec<Cost>> {
    let outcome = run::run(case, kernel, cx)?;
    if let Some(complaint) = judge::complaints(case, &outcome).first() {
        bail!("{}: {complaint}", case.name);
    }
    let console = outcome.consoles.first().context("the VM has no console")?;
    told(console).with_context(|| case.name.clone())
}

/// What one thing cost.
#[derive(Clone, Debug, PartialEq)]
struct Cost {
    times: f64,
    /// Exits by reason.
    exits: Vec<(String, f64)>,
}

impl Cost {
    fn each(&self, reason: &str) -> f64 {
        self.count(|name| name == reason) / self.times
    }

    fn all(&self) -> f64 {
        self.count(|_| true) / self.times
    }

    /// The sum of no floats is -0.0.
    fn count(&self, of: impl Fn(&str) -> bool) -> f64 {
        self.exits.iter().filter(|(name, _)| of(name)).fold(0.0, |sum, (_, n)| sum + n)
    }
}

/// What a console tells of each.
fn told(console: &str) -> Result<Vec<Cost>> {
    let cost = |what: &str| {
        let begins = format!("cost {what} ");
        let mut lines = console.lines().filter_map(|line| line.trim().strip_prefix(&begins));
        let line = lines.next().with_context(|| format!("no cost was told of `{what}`"))?;
        let mut words = line.split_whitespace();
        let times = words.next().and_then(|n| n.parse().ok()).context("no number of times")?;
        let exits = words.filter_map(|word| word.split_once('='));
        let exits = exits.map(|(reason, n)| Ok((reason.to_owned(), n.parse()?)));
        Ok(Cost { times, exits: exits.collect::<Result<_>>()? })
    };
    WHAT.iter().map(|(what, _)| cost(what)).collect()
}

/// Exits that were so few are of something else, such as a look of core 0's.
const RARE: f64 = 0.005;

fn table(told: &[Vec<Cost>]) -> Table {
    let labels = POLICIES.map(|policy| policy.label().to_owned());
    let mut table = Table::new("VMX on Bochs, without a device", labels);
    table.section(Source::Measured, "exits of the CPU that is interrupted");
    for (n, (_, name)) in WHAT.iter().enumerate() {
        let column = |of: &dyn Fn(&Cost) -> f64| -> Vec<String> {
            let each = told.iter().map(|told| told.get(n).map_or(0.0, of));
            each.map(|exits| format!("{exits:.2}")).collect()
        };
        table.line(*name, column(&Cost::all));
        for reason in ledger::Reason::ALL {
            let each = |cost: &Cost| cost.each(reason.label());
            if told.iter().any(|told| told.get(n).is_some_and(|cost| each(cost) >= RARE)) {
                table.part(reason.label(), column(&each));
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "hello\ncost sent 1000 other-eoi=1000 kick=1000\r\ncost own 1000\n\
                        cost set 100 timer-program=100 timer-interrupt=101\ncost goes-on 100 kick=1\n";

    #[test]
    fn what_is_told_becomes_a_table() {
        let all = told(SAID).unwrap();
        assert_eq!(all.iter().map(Cost::all).collect::<Vec<_>>(), [2.0, 0.0, 2.01, 0.01]);
        assert!(told("cost sent 1000\n").is_err() && told(&SAID.replace("=1000", "=x")).is_err());
        let shown = text::table(&table(&[all.clone(), all.clone(), all.clone(), all]));
        let has = |line: &[&str]| {
            shown.lines().any(|shown| shown.split_whitespace().eq(line.iter().copied()))
        };
        assert!(has(&["other-eoi", "1.00", "1.00", "1.00", "1.00"]), "{shown}");
        assert!(!shown.contains("-0.00"), "{shown}");
        assert!(has(&["timer-interrupt", "1.01", "1.01", "1.01", "1.01"]), "{shown}");
    }
}
