//! Attackers on Bochs' machine, each beside a VM whose heart goes on beating and whose memory it
//! watches: what of [`RUNS`](super::RUNS) needs no device, against Intel's VMX.
//!
//! And attacks that are VMX's, or that QEMU can't be the machine of: deliveries that never end, on
//! the core of the VM beside it, and a task gate.
//!
//! Interrupts are those that the attacker sends itself. Attacks that want a device say so, and
//! aren't played. Not here: `interrupts`, `cpus` and `console`, which take minutes each.

use super::attacker;
use crate::selftest::case::{Case, Cores, Guest, Special};
use crate::selftest::cases::{case, heartbeat};
use plan::Policy;

/// What an attacker goes through, in a run of its own.
pub(super) const ATTACKERS: [&str; 15] = [
    "apic,bad-cr4",
    "idt,wild-idt",
    "unmapped-idt-smp",
    "msrs,wild-jump",
    "control,wild-tables",
    "ports",
    "rings",
    "borders,unmapped-idt",
    "exits",
    "traps,unemulated",
    "memory,triple-fault",
    "off-for-ever",
    "idle-for-ever",
    "storm-for-ever",
    "task-gate",
];

/// The same on the victim's own core.
pub(super) const SHARED: [&str; 7] = [
    "off-for-ever",
    "idle-for-ever",
    "storm-for-ever",
    "alignment-for-ever",
    "debug-for-ever",
    "control,wild-tables",
    "traps,unemulated",
];

/// Of these the one that single-steps over what faults. Where a time slice ends right behind a
/// fault, Debian's Bochs has the faulting instruction executed again on the handler's stack
/// (`exceptions.patch`). So it was in three of eight runs whose clocks went otherwise.
const STEPS: &str = "traps";

/// They begin at once.
const ALONE: &str = "devices=none order=none";
/// Streams of operations that nobody thought of.
const STREAMS: [&str; 3] = [
    "devices=none order=none random=0x5EED0011 count=2000",
    "devices=none order=none random=0x5EED0012 count=2000",
    "devices=none order=none random=0x5EED0013 count=2000",
];

/// All of them.
pub fn on_bochs() -> Vec<Case> {
    let mut cases = Vec::new();
    for policy in [Policy::Trap, Policy::Direct, Policy::Posted] {
        for names in ATTACKERS {
            let first = names.split(',').next().unwrap_or(names);
            let guest = attacker(names, policy, Cores::Next, 0);
            cases.push(run(first, policy, Guest { options: ALONE, ..guest }));
        }
        if policy == Policy::Trap {
            cases.extend(SHARED.map(shared));
        }
        for (n, stream) in STREAMS.into_iter().enumerate() {
            let guest = attacker("", policy, Cores::Next, 0);
            let says = vec!["random over operations=2000"];
            let options = stream;
            cases.push(run(&format!("random-{n}"), policy, Guest { options, says, ..guest }));
        }
    }
    cases
}

/// On the core of the VM whose heart beats: it must be taken back from whoever lets nothing in.
fn shared(names: &'static str) -> Case {
    let attacker = attacker(names, Policy::Trap, Cores::First, 0);
    let first = names.split(',').next().unwrap_or(names);
    let case = run(first, Policy::Trap, Guest { options: ALONE, ..attacker });
    let name = format!("bochs-hostile-shared-trap/{first}");
    let guests = case.guests.into_iter().map(|g| Guest { counts: Vec::new(), ..g }).collect();
    let case = Case { name, guests, ..case };
    match case.machine.bochs() {
        Some(cpus) if first == STEPS => {
            Case { machine: Special::BochsMended(cpus), long: true, ..case }
        }
        _ => case,
    }
}

fn run(what: &str, policy: Policy, attacker: Guest) -> Case {
    let cpus = 2 + attacker.cpus;
    let options =
        if attacker.options.is_empty() { "devices=none order=none" } else { attacker.options };
    let attacker = Guest { devices: Vec::new(), options, ..attacker };
    let victim = Guest { says: Vec::new(), ..heartbeat("beats=8", policy) };
    let name = format!("bochs-hostile-{}/{what}", policy.label());
    Case { machine: Special::Bochs(cpus), ..case(name, false, [victim, attacker]) }
}
