//! What a window of a guest or of its guest took, for each use: as JSON has it, and as lines of a
//! table.
//!
//! Guarantees: a reason that no column has is on no line; one that a column has is.

use crate::bench::show::{Table, two, whole};
use crate::selftest::inner_linux::Window;
use ledger::Reason;
use serde::Serialize;

/// Rarer than this for each use is nothing.
const RARE: f64 = 0.005;

/// What KVM counts, by its own names, and what that is; no name is what is left of all.
pub type Told = &'static [(&'static str, &'static str)];

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
    /// Of a window, and of L2's exits what is of these kinds.
    pub fn of(window: &Window, kinds: Told) -> Counts {
        let told = window.by_kvm("exits");
        let named = kinds.iter().filter(|(name, _)| !name.is_empty());
        let rest = told - named.map(|(name, _)| window.by_kvm(name)).sum::<f64>();
        let of = |name: &str| if name.is_empty() { rest } else { window.by_kvm(name) };
        let reasons = Reason::ALL.iter().map(|reason| (reason.label(), window.of_reason(*reason)));
        Counts {
            uses: window.uses,
            seconds: window.seconds / window.uses,
            ticks: window.ticks / window.uses,
            interrupts: window.interrupts / window.uses,
            told,
            told_for: kinds.iter().map(|(name, label)| (*label, of(name))).collect(),
            exits: window.all(),
            by_reason: reasons.filter(|(_, n)| *n > 0.0).collect(),
        }
    }
}

fn of_kind(kinds: &[(&str, f64)], label: &str) -> f64 {
    kinds.iter().find(|(name, _)| *name == label).map_or(0.0, |(_, n)| *n)
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
    let kinds = columns.first().into_iter().flat_map(|c| &c.told_for);
    for (label, _) in kinds {
        let of = |c: &Counts| of_kind(&c.told_for, label);
        if columns.iter().any(|c| of(c) >= RARE) {
            table.part(*label, all(&|c| two(of(c))));
        }
    }
    table.line("exits of the host", all(&|c| two(c.exits)));
    for reason in Reason::ALL.iter().map(|reason| reason.label()) {
        // What is shown is in one column, at least.
        if columns.iter().any(|c| of_kind(&c.by_reason, reason) >= RARE) {
            table.part(reason, all(&|c| two(of_kind(&c.by_reason, reason))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::show::text;

    #[test]
    fn what_has_no_name_is_the_rest() {
        let kvm = [("exits", 90.0), ("irq_exits", 20.0), ("halt_exits", 0.0)];
        let kvm = kvm.map(|(name, n)| (name.to_owned(), n)).into();
        let window = Window { uses: 10.0, seconds: 5.0, kvm, ..Window::default() };
        let kinds = &[("irq_exits", "interrupts"), ("halt_exits", "HLT"), ("", "others")];
        let first = Counts { seconds: 0.25, ..Counts::of(&window, kinds) };
        let mut table = Table::new("load", ["L1", "L2"].map(String::from));
        lines(&mut table, &[&first, &Counts::of(&window, kinds)], (1000.0, "milliseconds"));
        let shown = text::table(&table);
        let has = |label: &str, cells: &str| {
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            shown.lines().any(|line| words(line) == format!("{label} {cells}"))
        };
        assert!(has("interrupts", "2.00 2.00") && has("others", "7.00 7.00"), "{shown}");
        assert!(has("milliseconds, emulated", "250.00 500.00"), "{shown}");
        assert!(has("as against L1", "1.00 2.00"), "{shown}");
        for nothing in ["HLT", "its device's", "nesting"] {
            assert!(!shown.contains(nothing), "{nothing}: {shown}");
        }
    }
}
