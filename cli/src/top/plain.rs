//! The rates as plain text: tables that need no terminal.

use super::{
    numbers::{per_second, percent},
    rates::{Rates, Row, Sort, rows},
};
use crate::table::{Table, thousands};
use std::fmt::Write;

/// One interval: the vCPUs, what hurts most first, and the exits of all by reason.
pub fn text(rates: &Rates) -> String {
    let mut vcpus =
        Table::new(["VM", "core", "policy", "state", "exits/s", "injected/s", "host time"]);
    for row in rows(rates, Sort::HostShare) {
        let Row { vm, vcpu, .. } = row;
        let mut cells = vec![row.name()];
        cells.push(vcpu.map_or("-".to_owned(), |v| v.core.to_string()));
        cells.push(vm.policy.clone().unwrap_or("-".to_owned()));
        cells.push(vm.state.clone());
        if let Some(vcpu) = vcpu {
            let tally = &vcpu.rates;
            let numbers = [per_second(tally.exits), per_second(tally.injected)];
            cells.extend(numbers);
            cells.push(percent(tally.host_share));
        }
        vcpus.row(cells);
    }
    let sum = rates.sum();
    let mut reasons = Table::new(["exits by reason", "exits/s", "in all"]);
    for (reason, rate) in &sum.reasons {
        let total = thousands(sum.total.of(*reason));
        reasons.row([reason.label().to_owned(), per_second(*rate), total]);
    }
    let mut text = format!("Over {:.2} s of the machine's clock:\n{vcpus}", rates.seconds);
    let more = [rates.sidecores.cores_table(), rates.sidecores.queues_table()];
    for table in more.into_iter().flatten() {
        let _ = write!(text, "{table}");
    }
    if !sum.reasons.is_empty() {
        // Writing to a string can't fail.
        let _ = write!(text, "{reasons}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::{Tally, VcpuRates, VmRates};
    use ledger::{Counters, Reason};

    #[test]
    fn an_interval_is_two_tables() {
        let total = Counters { exits: vec![0, 1200], ..Counters::default() };
        let reasons = vec![(Reason::DeviceEoi, 12.0)];
        let rates = Tally { exits: 12.0, host_share: 0.5, reasons, total, ..Tally::default() };
        let state = |s: &str| s.to_owned();
        let busy = VmRates {
            name: "db".into(),
            policy: Some("trap".into()),
            state: state("running"),
            vcpus: vec![VcpuRates { core: 2, rates }],
        };
        let late = VmRates { name: "web".into(), state: state("starting"), ..VmRates::default() };
        let rates = Rates { seconds: 1.0, vms: vec![late, busy], ..Rates::default() };
        let expected = "\
Over 1.00 s of the machine's clock:
  VM   core  policy  state     exits/s  injected/s  host time
  db   2     trap    running        12           0    50.00 %
  web  -     -       starting
  exits by reason  exits/s  in all
  device-eoi            12   1,200
";
        assert_eq!(text(&rates), expected);
    }
}
