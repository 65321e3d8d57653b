//! The tests that KVM's authors have for it, run by Linux as a guest that is a hypervisor.
//!
//! Guarantees: each test of the list ended well, or says that it can't be run where another way of
//! KVM's to run guests doesn't have what it is about; some thousand exits of its guests were told,
//! and the hypervisor's guest ended by itself. What is on the list passes on QEMU's bare machine.
//! Doesn't guarantee that a test tests what its name says: whether KVM is right is its authors'
//! part.

use super::{
    inner_linux::{self, Heard},
    names::named,
    tally::Tally,
    workers::{AT_ONCE, Gate, side_by_side},
};
use crate::summary::Summary;
use anyhow::{Context as _, Result, bail};
use exitless::{context::Context, recipe};
use ledger::{Counters, Reason};
use std::{fs, time::Duration};

/// A case.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// What it is called.
    pub name: &'static str,
    /// How KVM is to run its guests, in words for the kernel.
    words: &'static str,
    /// CPUs of the hypervisor's.
    cpus: u32,
    /// All tests of the list, not the usual ones alone.
    all: bool,
    /// Tests that KVM can't run so, and skips.
    skips: &'static [&'static str],
}

const USUAL: Kind =
    Kind { name: "nesting/kvm-selftests", words: "", cpus: 1, all: false, skips: &[] };
const CASES: [Kind; 4] = [
    USUAL,
    Kind { name: "nesting/kvm-selftests-smp", cpus: 2, all: true, ..USUAL },
    // Tables of its own making for its guests' pages, and our guest has those of the host alone.
    Kind {
        name: "nesting/kvm-selftests-shadow",
        words: "kvm_amd.npt=0",
        skips: &["pre_fault_memory_test"],
        ..USUAL
    },
    // VMLOAD, VMSAVE, CLGI and STGI by exits.
    Kind { name: "nesting/kvm-selftests-plain", words: "kvm_amd.vgif=0 kvm_amd.vls=0", ..USUAL },
];
/// A boot, and all tests, on a slow machine that does other things beside.
const PATIENCE: Duration = Duration::from_secs(1200);
/// The usual ones have some 25,000.
const TOLD: u64 = 10_000;
/// Before a test's name on the console.
const MARK: &str = "@exitless selftest ";
const LIST: &str = "guests/linux/kvm-selftests/list";

/// Those that are chosen by a part of their name, or with all that are long.
pub fn chosen(quick: bool, long: bool, only: Option<&str>) -> Vec<Kind> {
    let is_chosen = |kind: &Kind| only.map_or(long && !quick, |text| named(kind.name, text));
    CASES.into_iter().filter(is_chosen).collect()
}

/// Runs them.
pub fn run(cx: &Context, gate: &Gate, chosen: &[Kind], tally: &Tally) -> Result<Summary> {
    if !chosen.is_empty() {
        inner_linux::prepare(cx)?;
        let build = cx.root.join("guests/linux/kvm-selftests/build");
        recipe::make(&build, &cx.root.join("build/guest-kvm-selftests"), "tests")?;
    }
    side_by_side(cx, gate, chosen, AT_ONCE, |kind| tally.play(cx, kind.name, || one(cx, kind)))
}

fn one(cx: &Context, kind: &Kind) -> Result<String> {
    let list = fs::read_to_string(cx.root.join(LIST)).context(LIST)?;
    let disk = cx.root.join("build/guest-kvm-selftests/selftests.img");
    let which = if kind.all { "all" } else { "usual" };
    // Ticks that are lost while the emulator waits for its turn make Linux doubt its clock.
    let words = format!("tsc=reliable exitless.selftests={which} {}", kind.words);
    let cpus = (1..=kind.cpus).collect();
    let heard = inner_linux::boot_selftests(cx, disk, &words, cpus, PATIENCE)?;
    judge(kind, &expected(&list, kind.all), &heard)
}

/// The names on the list.
fn expected(list: &str, all: bool) -> Vec<&str> {
    list.lines()
        .filter_map(|line| {
            let (when, rest) = line.split_once(' ')?;
            let is_on = when == "usual" || (when == "long" && all);
            if is_on { rest.split_whitespace().next() } else { None }
        })
        .collect()
}

fn judge(kind: &Kind, expected: &[&str], heard: &Heard) -> Result<String> {
    let mut wrong = Vec::new();
    for name in expected {
        let word = if kind.skips.contains(name) { "skip" } else { "ok" };
        let said = said(&heard.console, name);
        if said != Some(word) {
            wrong.push(format!("{name}: {}", said.unwrap_or("nothing is said")));
            let lines = heard.console.lines().filter(|line| line.starts_with(&format!("{name} (")));
            wrong.extend(lines.map(|line| format!("  {}", line.trim_end())));
        }
    }
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n      "));
    }
    let of = |reason| Counters::of(&heard.counters, reason);
    let (told, runs) = (of(Reason::NestedReflected), of(Reason::Nesting));
    if expected.is_empty() || told < TOLD {
        bail!("{} tests, and {told} exits of their guests: few", expected.len());
    }
    Ok(format!(
        "{} tests, {told} exits of their guests, {:.2} of ours each",
        expected.len(),
        (told + runs) as f64 / told as f64
    ))
}

/// What the console says of a test.
fn said<'a>(console: &'a str, name: &str) -> Option<&'a str> {
    let mark = format!("{MARK}{name}: ");
    console.lines().find_map(|line| Some(line.split_once(&mark)?.1.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "# usual none\n\nusual one\nusual two -b 16M\nlong three -s 1\n";
    const GOOD: &str = "@exitless selftest one: ok\r\n[1.0] @exitless selftest two: ok\r\n";

    fn heard(console: &str, told: u64) -> Heard {
        let mut counters = Counters { exits: vec![0; 64], ..Counters::default() };
        counters.exits[Reason::NestedReflected as usize] = told;
        counters.exits[Reason::Nesting as usize] = told;
        Heard { console: console.into(), counters, interrupts: 1 }
    }

    #[test]
    fn the_list_has_usual_ones_and_others() {
        assert_eq!(expected(OURS, false), ["one", "two"]);
        assert_eq!(expected(OURS, true), ["one", "two", "three"]);
        let path = format!("{}/../{LIST}", env!("CARGO_MANIFEST_DIR"));
        let list = fs::read_to_string(path).unwrap();
        let (usual, all) = (expected(&list, false), expected(&list, true));
        assert!(usual.len() > 30 && all.len() > usual.len());
        for kind in CASES {
            assert!(kind.skips.iter().all(|name| usual.contains(name)), "{}", kind.name);
        }
    }

    #[test]
    fn each_test_must_end_well() {
        let tests = expected(OURS, false);
        let told = judge(&USUAL, &tests, &heard(GOOD, TOLD)).unwrap();
        assert_eq!(told, "2 tests, 10000 exits of their guests, 2.00 of ours each");
        for (from, to) in [("two: ok", "two: skip"), ("two: ok", "two: not ok"), ("one", "once")] {
            let console = GOOD.replace(from, to);
            assert!(judge(&USUAL, &tests, &heard(&console, TOLD)).is_err(), "{from} → {to}");
        }
        assert!(judge(&USUAL, &tests, &heard(GOOD, TOLD - 1)).is_err());
        assert!(judge(&USUAL, &[], &heard(GOOD, TOLD)).is_err());
        let failed = "two (254): why\r\n@exitless selftest two: not ok\n";
        let console = GOOD.replace("[1.0] @exitless selftest two: ok", failed);
        let why = judge(&USUAL, &tests, &heard(&console, TOLD)).unwrap_err().to_string();
        assert_eq!(why, "two: not ok\n        two (254): why");
    }

    #[test]
    fn what_kvm_cannot_run_so_must_be_skipped() {
        let kind = Kind { skips: &["two"], ..USUAL };
        let tests = expected(OURS, false);
        assert!(judge(&kind, &tests, &heard(GOOD, TOLD)).is_err());
        let console = GOOD.replace("two: ok", "two: skip");
        assert!(judge(&kind, &tests, &heard(&console, TOLD)).is_ok());
    }

    #[test]
    fn a_long_test_has_them() {
        let names = |quick, long, only| {
            chosen(quick, long, only).iter().map(|kind| kind.name).collect::<Vec<_>>()
        };
        assert!(names(false, false, None).is_empty());
        assert_eq!(names(false, true, None).len(), CASES.len());
        assert!(names(true, false, None).is_empty());
        assert_eq!(names(false, false, Some("^nesting/kvm-selftests-smp$")), [CASES[1].name]);
    }
}
