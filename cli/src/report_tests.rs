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
        let (policy, why) = (Policy::Eli, "asked for".to_owned());
        let name = String::new();
        report.see(&Record::Started {
            vm,
            name,
            policy,
            why,
            memory: 64 << 20,
            overhead: 8192,
            now: 500_000,
        });
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
    let all = exited(DONE);
    assert_eq!(report(End::PowerOff).status(&all), 0);
    assert_eq!(report(End::Reset).status(&all), 0);
    assert_eq!(report(End::DebugExit(0)).status(&all), 20);
    assert_eq!(report(End::DebugExit(0x20)).status(&all), 52);
    assert_eq!(report(End::DebugExit(79)).status(&all), 99);
    for large in [80, 235, 236, 255, 256, 1 << 20, u32::MAX] {
        assert_eq!(report(End::DebugExit(large)).status(&all), 100);
    }
    assert_eq!(report(End::Fault("x".into())).status(&all), 3);
    let good = report(End::PowerOff);
    assert_eq!(good.status(&exited(REFUSED)), 2);
    assert_eq!(good.status(&exited(PANICKED)), 4);
    assert_eq!(good.status(&Ended::Exited { status: 0, message: String::new() }), 4);
    assert_eq!(good.status(&Ended::Exited { status: 1, message: String::new() }), 5);
    assert_eq!(good.status(&Ended::Killed { signal: 9, message: String::new() }), 5);
    assert_eq!(good.status(&Ended::TimedOut), 124);
    assert_eq!(good.status(&Ended::Interrupted), 130);
}

/// A script that looks at the status can tell what a guest chose from what happened.
#[test]
fn no_value_of_a_guest_looks_like_a_status_of_ours() {
    use status::*;
    let ours = [OK, FAILED, REFUSED, FAULT, PANIC, QEMU, TIMEOUT, INTERRUPTED];
    for value in 0..=1_000 {
        let status = of_guest(value);
        assert!(!ours.contains(&status) && (GUEST..=GUEST_LARGE).contains(&status), "{value}");
    }
}

/// As when the time is up: what was counted so far is shown, and in the JSON.
#[test]
fn vms_that_were_still_running_have_a_ledger_too() {
    let mut r = Report::new(["web"]);
    r.see(&Record::Machine { cpus: 2, memory: 0, tsc_hz: 1_000, host_memory: 0 });
    let (name, why, policy) = (String::new(), "asked for".to_owned(), Policy::Eli);
    r.see(&Record::Started { vm: 0, name, policy, why, memory: 0, overhead: 0, now: 2_000 });
    let mut counters = Counters { entries: 8, host_cycles: 1_000, ..Counters::default() };
    counters.exits = vec![0; Reason::COUNT];
    counters.exits[Reason::Halt as usize] = 7;
    for vcpu in 0..2 {
        let counters = counters.clone();
        r.see(&Record::Live { vm: 0, vcpu, core: 1, counters, now: 6_000, left: 1 - vcpu });
    }
    let expected = "\
VM web: was still running
  interrupts: eli (asked for)
  4.0 s, 16 guest entries, 25.00 % of cycles in the host
  exits by reason  exits    share
  halt                14  100.0 %
  all                 14
";
    assert_eq!(r.summary(), expected);
    assert_eq!(r.json(&Ended::TimedOut)["vms"][0]["exits_by_reason"], json!({ "halt": 14 }));
    // What it sent itself at its end counts, whatever comes later.
    let last = Counters { entries: 9, ..counters.clone() };
    r.see(&Record::Counters { vm: 0, vcpu: 0, counters: last.clone(), cycles: 5_000 });
    r.see(&Record::Ended { vm: 0, end: End::PowerOff });
    r.see(&Record::Live { vm: 0, vcpu: 0, core: 1, counters, now: 9_000, left: 0 });
    assert_eq!((&r.vms[0].vcpus[0], r.vms[0].cycles), (&last, 5_000));
}

#[test]
fn lines_fit_a_terminal_and_do_not_steer_it() {
    let mut r = report(End::Fault("x ".repeat(100) + "\u{1b}[2J"));
    r.see(&Record::Incident { vm: 1, what: "long ".repeat(40) });
    let why = "a reason that goes on and on ".repeat(4) + &"w".repeat(100);
    r.vms[0].policy = Some((Policy::Eli, why));
    let summary = r.summary();
    assert!(!summary.contains(|c: char| c.is_control() && c != '\n'), "{summary:?}");
    let long: Vec<_> = summary.lines().filter(|l| l.chars().count() > 80).collect();
    // A single word can't be wrapped.
    assert_eq!(long.len(), 1, "{summary}");
    assert!(long[0].trim().starts_with("www"), "{summary}");
}

/// QEMU ends with 0 when the machine is reset or switched off, which is right if the plan asks for
/// it and every VM ended before.
#[test]
fn a_machine_that_leaves_as_the_plan_asks_ended_well() {
    let left = Ended::Exited { status: 0, message: String::new() };
    let mut asked = report(End::DebugExit(0x20));
    assert_eq!(asked.status(&left), 4);
    asked.see(&Record::Leaving);
    assert_eq!(asked.status(&left), 52);
    assert_eq!(asked.failure(&left), None);
    assert_eq!(asked.status(&exited(PANICKED)), 4);
    assert_eq!(asked.status(&Ended::Exited { status: 1, message: String::new() }), 5);
}

#[test]
fn failures_are_named() {
    let mut r = Report::new(["a"]);
    assert_eq!(r.failure(&exited(DONE)), None);
    r.see(&Record::Refused { reason: "the CPU has no SVM".into() });
    assert_eq!(r.failure(&exited(REFUSED)).unwrap(), "refused: the CPU has no SVM");
    let died = Ended::Exited { status: 1, message: "qemu: no such disk".into() };
    assert_eq!(r.failure(&died).unwrap(), "QEMU ended with status 1: qemu: no such disk");
    let killed = |message: &str| Ended::Killed { signal: 6, message: message.to_owned() };
    let said = r.failure(&killed("qemu: x.c:1: f: Assertion `y' failed.")).unwrap();
    assert_eq!(said, "QEMU was ended by signal 6: qemu: x.c:1: f: Assertion `y' failed.");
    assert_eq!(r.failure(&killed("")).unwrap(), "QEMU was ended by signal 6");
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
    let json = report(End::DebugExit(7)).json(&exited(DONE));
    assert_eq!(json["status"], 27);
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
fn what_sidecores_did_is_shown_after_the_exits() {
    let mut r = report(End::PowerOff);
    let served = proto::Served { completed: 20_000, calls: 9, ..Default::default() };
    let device = proto::ServedDevice::Disk(0);
    r.see(&Record::Paravirtual { vm: 0, device, queue: 2, core: 1, features: 0, served });
    let device = proto::ServedDevice::Network(1);
    r.see(&Record::Paravirtual { vm: 0, device, queue: 1, core: 1, features: 0, served });
    let summary = r.summary();
    let row = summary.lines().skip_while(|l| !l.starts_with("  all")).nth(2).unwrap();
    assert!(row.starts_with("  disk0") && row.contains("20,000"), "{summary}");
    assert_eq!(summary.matches("disk0").count(), 1);
    let json = r.json(&exited(DONE));
    assert_eq!(json["vms"][0]["disks"][0]["queues"][0]["requests"], 20_000);
    assert_eq!(json["vms"][0]["networks"][0]["queues"][0]["frames"], 20_000);
    assert_eq!((&json["vms"][1]["disks"], &json["vms"][1]["networks"]), (&json!([]), &json!([])));
}

#[test]
fn records_of_vms_that_do_not_exist_are_ignored() {
    let mut r = Report::new(["a"]);
    r.see(&Record::Ended { vm: 7, end: End::PowerOff });
    let counters = Counters::default();
    r.see(&Record::Counters { vm: 0, vcpu: u32::MAX, counters, cycles: 1 });
    assert!(r.vms[0].vcpus.is_empty() && r.vms[0].end.is_none());
}

/// `docs/running.md` has a line for each reason.
#[test]
fn each_reason_is_explained() {
    let text = include_str!("../../docs/running.md");
    let missing = |reason: &&Reason| !text.contains(&format!("\n| `{}` | ", reason.label()));
    let missing: Vec<_> = Reason::ALL.iter().filter(missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
