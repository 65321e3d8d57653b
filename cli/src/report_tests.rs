//! Records in, summary and status out.

use super::*;
use ledger::Reason;

fn exited(code: u32) -> Ended {
    Ended::Exited { status: (code << 1 | 1) as i32, message: String::new() }
}

/// Two VMs that started and counted; the second ended as `end` says.
fn report(end: End) -> Report {
    let mut report = Report::new(["web", "db"]);
    report.see(&Record::Machine { cpus: 3, memory: 1 << 30, tsc_hz: 1_000_000, host_memory: 4096 });
    for vm in 0..2 {
        let (delivery, why) = (Delivery::Eli, "asked for".to_owned());
        let name = String::new();
        report.see(&Record::Started { vm, name, delivery, why, memory: 64 << 20, overhead: 8192 });
        let mut exits = vec![0; Reason::COUNT];
        exits[Reason::Cpuid as usize] = 1_500;
        exits[Reason::Halt as usize] = 500;
        let counters =
            Counters { entries: 2_001, host_cycles: 25_000, exits, ..Counters::default() };
        report.see(&Record::Counters { vm, vcpu: 0, counters, cycles: 2_000_000 });
    }
    report.see(&Record::Ended { vm: 0, end: End::PowerOff });
    report.see(&Record::Ended { vm: 1, end });
    report
}

#[test]
fn the_status_tells_how_it_ended() {
    let all = exited(ALL_ENDED);
    assert_eq!(report(End::PowerOff).status(&all), 0);
    assert_eq!(report(End::Reset).status(&all), 0);
    assert_eq!(report(End::DebugExit(0x20)).status(&all), 0x20);
    assert_eq!(report(End::DebugExit(1 << 20)).status(&all), 255);
    assert_eq!(report(End::Fault("x".into())).status(&all), 3);
    let good = report(End::PowerOff);
    assert_eq!(good.status(&exited(REFUSED)), 2);
    assert_eq!(good.status(&exited(PANICKED)), 4);
    assert_eq!(good.status(&Ended::Exited { status: 0, message: String::new() }), 4);
    assert_eq!(good.status(&Ended::Exited { status: 1, message: String::new() }), 5);
    assert_eq!(good.status(&Ended::Killed { signal: 9 }), 5);
    assert_eq!(good.status(&Ended::TimedOut), 124);
    assert_eq!(good.status(&Ended::Interrupted), 130);
}

#[test]
fn failures_are_named() {
    let mut r = Report::new(["a"]);
    assert_eq!(r.failure(&exited(ALL_ENDED)), None);
    r.see(&Record::Refused { reason: "the CPU has no SVM".into() });
    assert_eq!(r.failure(&exited(REFUSED)).unwrap(), "refused: the CPU has no SVM");
    let died = Ended::Exited { status: 1, message: "qemu: no such disk".into() };
    assert_eq!(r.failure(&died).unwrap(), "QEMU ended with status 1: qemu: no such disk");
}

#[test]
fn the_summary_shows_exits_by_reason() {
    let summary = report(End::Fault("it read 0x1000000000, where nothing is".into())).summary();
    let expected = "\
VM web: powered off
  interrupts: eli (asked for)
  2.0 s, 2,001 guest entries, 1.25 % of cycles in the host
  exits by reason  exits   share
  cpuid            1,500  75.0 %
  halt               500  25.0 %
  all              2,000
VM db: stopped: it read 0x1000000000, where nothing is
";
    assert!(summary.starts_with(expected), "{summary}");
}

#[test]
fn json_has_what_the_summary_has() {
    let json = report(End::DebugExit(7)).json(&exited(ALL_ENDED));
    assert_eq!(json["status"], 7);
    assert_eq!(json["machine"]["cpus"], 3);
    let vm = &json["vms"][1];
    assert_eq!(
        (&vm["policy"], &vm["end"], &vm["end_detail"]),
        (&json!("eli"), &json!("debug-exit"), &json!(7))
    );
    assert_eq!(vm["exits_by_reason"], json!({ "cpuid": 1500, "halt": 500 }));
    assert_eq!((&vm["exits"], &vm["host_share"]), (&json!(2000), &json!(0.0125)));
}

#[test]
fn records_of_vms_that_do_not_exist_are_ignored() {
    let mut r = Report::new(["a"]);
    r.see(&Record::Ended { vm: 7, end: End::PowerOff });
    let counters = Counters::default();
    r.see(&Record::Counters { vm: 0, vcpu: u32::MAX, counters, cycles: 1 });
    assert!(r.vms[0].vcpus.is_empty() && r.vms[0].end.is_none());
}
