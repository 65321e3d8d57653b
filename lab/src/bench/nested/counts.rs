//! What a window of a guest or of its guest took, for each use: as JSON has it, and as lines of a
//! table.
//!
//! Guarantees: a reason that no column has is on no line; one that a column has is.

use super::demo::KVM;
use crate::bench::show::{Table, two, whole};
use crate::selftest::inner_linux::Window;
use ledger::Reason;
use serde::Serialize;

/// Rarer than this for each use is nothing.
const RARE: f64 = 0.005;

/// Numbers are for each use.
#[derive(Clone, Debug, Serialize)]
pub struct Counts {
    /// How many there were.
    pub uses: f64,
    /// By the clock of the level itself.
    pub seconds: f64,
    /// Its timer's interrupts.
    pub ticks: f64,
    /// Its device's.
    pub interrupts: f64,
    /// Exits of L2 after which KVM was entered.
    pub told: f64,
    told_for: Vec<(&'static str, f64)>,
    /// Of the VM that L1 is.
    pub exits: f64,
    by_reason: Vec<(&'static str, f64)>,
}

impl Counts {
    /// Of a window.
    pub fn of(window: &Window) -> Counts {
        let reasons = Reason::ALL.iter().map(|reason| (reason.label(), window.of_reason(*reason)));
        Counts {
            uses: window.uses,
            seconds: window.seconds / window.uses,
            ticks: window.ticks / window.uses,
            interrupts: window.interrupts / window.uses,
            told: window.by_kvm("exits"),
            told_for: KVM.iter().map(|(name, label)| (*label, window.by_kvm(name))).collect(),
            exits: window.all(),
            by_reason: reasons.filter(|(_, n)| *n > 0.0).collect(),
        }
    }

    fn by(&self, reason: &str) -> f64 {
        self.by_reason.iter().find(|(name, _)| *name == reason).map_or(0.0, |(_, n)| *n)
    }
}

/// Adds the lines, a column for each; the first is level one. Times are in so many to a second,
/// which are called so.
pub fn lines(table: &mut Table, columns: &[&Counts], (unit, name): (f64, &str)) {
    let all = |f: &dyn Fn(&Counts) -> String| -> Vec<String> {
        columns.iter().map(|column| f(column)).collect()
    };
    table.line("counted", all(&|c| whole(c.uses)));
    table.line(format!("{name}, emulated"), all(&|c| two(unit * c.seconds)));
    let first = columns.first().map_or(f64::NAN, |column| column.seconds);
    table.part("as against L1", all(&|c| two(c.seconds / first)));
    if columns.iter().any(|c| c.interrupts >= RARE) {
        table.line("its device's interrupts", all(&|c| two(c.interrupts)));
    }
    table.line("ticks", all(&|c| two(c.ticks)));
    table.line("exits of L2 that KVM is told", all(&|c| two(c.told)));
    for (n, (_, label)) in KVM.iter().enumerate() {
        let of = |c: &Counts| c.told_for.get(n).map_or(0.0, |(_, n)| *n);
        if columns.iter().any(|c| of(c) >= RARE) {
            table.part(*label, all(&|c| two(of(c))));
        }
    }
    table.line("exits of the host", all(&|c| two(c.exits)));
    for reason in Reason::ALL.iter().map(|reason| reason.label()) {
        // What is shown is in one column, at least.
        if columns.iter().any(|c| c.by(reason) >= RARE) {
            table.part(reason, all(&|c| two(c.by(reason))));
        }
    }
}
