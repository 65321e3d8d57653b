//! `exitless top` beside a run.

mod common;

use common::{Place, Qemu, end, live, signal, started};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read},
    process::Output,
};

/// Answers two questions; each is four bytes.
const ANSWERS: &str = "cat started; head -c 4 >asked; cat first; head -c 4 >asked; cat second";

fn place() -> Place {
    let place = Place::new(ANSWERS);
    place.records("started", &started());
    place.records("first", &[live(5_000, 100)]);
    place.records("second", &[live(5_500, 350)]);
    place
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A run that has begun, and what `top` says of it.
fn watched(args: &[&str]) -> Output {
    let place = place();
    let mut run = place.run().spawn().unwrap();
    let qemu = Qemu::of(&mut run);
    let output = place.exitless(args).output().unwrap();
    signal(&run, Signal::TERM);
    end(run);
    assert!(qemu.is_gone());
    output
}

#[test]
fn once_it_gives_one_interval_by_the_machines_clock() {
    let output = watched(&["top", "--once", "--json", "--interval", "0.1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    // 1,000 ticks a second.
    assert_eq!(json["seconds"], 0.5);
    let vm = &json["vms"][0];
    assert_eq!((&vm["name"], &vm["policy"]), (&"guest".into(), &"direct".into()));
    assert_eq!(vm["exits_by_reason"]["cpuid"]["per_second"], 500.0);
    assert_eq!(vm["exits_by_reason"]["cpuid"]["total"], 350);

    let output = watched(&["top", "--once", "--interval", "0.1"]);
    assert!(text(&output.stdout).contains("  cpuid                500     350\n"), "{output:?}");
}

/// A person doesn't know whether it is the machine that is slow or `top` that hangs.
#[test]
fn a_machine_that_does_not_answer_is_told_of_soon() {
    for script in ["", "cat started", "cat started; head -c 4 >asked; cat first"] {
        let place = Place::new(script);
        place.records("started", &started());
        place.records("first", &[live(5_000, 100)]);
        let mut run = place.run().spawn().unwrap();
        let qemu = Qemu::of(&mut run);
        let mut top = place.exitless(&["top", "--once", "--interval", "0.1"]).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(top.stderr.take().unwrap()).read_line(&mut said).unwrap();
        let number = run.id();
        let wanted = format!("exitless: no answer yet from the run of process {number}; waiting\n");
        assert_eq!(said, wanted, "{script}");
        signal(&top, Signal::TERM);
        let mut shown = Vec::new();
        top.stdout.take().unwrap().read_to_end(&mut shown).unwrap();
        end(top);
        assert!(shown.is_empty(), "{shown:?}");
        signal(&run, Signal::TERM);
        end(run);
        assert!(qemu.is_gone());
    }
}

#[test]
fn without_a_run_it_says_so() {
    let place = place();
    for args in [&["top"][..], &["top", "--once"], &["top", "--session", "1"]] {
        let output = place.exitless(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
        assert!(text(&output.stderr).contains("`exitless run`") && output.stdout.is_empty());
    }
}

#[test]
fn when_the_run_ends_it_says_so_and_is_content() {
    for (number, how) in
        [(Signal::TERM, "stopped before all VMs had ended"), (Signal::KILL, "without a word")]
    {
        let place = place();
        let mut run = place.run().spawn().unwrap();
        let qemu = Qemu::of(&mut run);
        let args = ["top", "--json", "--interval", "0.1"];
        let mut top = place.exitless(&args).spawn().unwrap();
        let mut lines = BufReader::new(top.stdout.take().unwrap());
        lines.read_line(&mut String::new()).unwrap();
        // It has asked again, and gets no answer.
        signal(&run, number);
        end(run);
        let (status, said) = end(top);
        assert!(status.success() && said.contains("has ended") && said.contains(how), "{said}");
        assert_eq!(lines.read_to_string(&mut String::new()).unwrap(), 0);
        assert!(qemu.ends_within(60));
    }
}
