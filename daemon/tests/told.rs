//! What changes leave in the log and in `list`: who came, what went, and a socket that is gone.

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::{Daemon, PROGRAM};
use front_end::driver::FrontEnd;
use std::process::{Command, Output};

const HOST: &str = "[host]\ncontrol = \"control\"\n";

fn disk(name: &str, what: &str) -> String {
    format!("[disk.{name}]\n{what}\nsocket = \"{name}\"\n")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn done(output: &Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn what_changed_is_logged() {
    let daemon = Daemon::run(&[&disk("a", "ram = \"1M\""), HOST].concat());
    let mut front = FrontEnd::at(&daemon, "a");
    front.works();
    daemon.wait_until_said("a: a front end came", 1);
    std::fs::write(daemon.path("b.toml"), disk("b", "ram = \"1M\"")).expect("it is written");
    done(&daemon.ask(&["add", &daemon.path("b.toml")]));
    daemon.wait_until_said("`b` was added", 1);
    done(&daemon.ask(&["remove", "b"]));
    daemon.wait_until_said("`b` was removed", 1);
    // Limits alone: its front end stays.
    daemon.rewrite(&[&disk("a", "ram = \"1M\"\nweight = 7"), HOST].concat());
    for _ in 0..2 {
        done(&daemon.ask(&["reload"]));
    }
    daemon.wait_until_said("`a` has other limits now", 1);
    front.works();
    daemon.rewrite(&[&disk("a", "ram = \"1M\"\nqueues = 2"), HOST].concat());
    done(&daemon.ask(&["reload"]));
    daemon.wait_until_said("a: the connection ends: the device has changed", 1);
    let _front = FrontEnd::at(&daemon, "a");
    daemon.wait_until_said("a: a front end came", 2);
    done(&daemon.ask(&["remove", "a"]));
    daemon.wait_until_said("a: the connection ends: the device was removed", 1);
}

/// One that can't be had still is no failure of a reload.
#[test]
fn what_was_missing_before_is_told_and_no_failure() {
    let right = [&disk("a", "ram = \"1M\""), HOST].concat();
    let daemon = Daemon::run(&right);
    daemon.rewrite(&[&disk("b", "file = \"nope\""), &right[..]].concat());
    assert!(!daemon.ask(&["reload"]).status.success(), "it is new");
    let again = daemon.ask(&["reload"]);
    done(&again);
    let said = text(&again.stderr);
    assert!(said.starts_with("exitless-io: b isn't served still: "), "{said}");
}

#[test]
fn a_socket_that_is_gone_is_told_and_made_anew() {
    let file = |what: &str| [&disk("a", what), HOST].concat();
    let daemon = Daemon::run(&file("file = \"disk\""));
    let mut front = FrontEnd::at(&daemon, "a");
    let gone = "a is gone: nobody can connect; `exitless-io reload` makes it anew";
    let list = || text(&daemon.ask(&["list"]).stdout);
    assert!(!list().contains(gone));
    let remove = || std::fs::remove_file(daemon.path("a")).expect("it is there");
    remove();
    assert!(list().contains(gone), "{}", list());
    let checked = Command::new(PROGRAM).arg("check").arg(daemon.path("io.toml")).output();
    let checked = checked.expect("it runs");
    assert!(!checked.status.success() && text(&checked.stderr).contains(gone));
    done(&daemon.ask(&["reload"]));
    assert!(!list().contains(gone));
    // Who is connected stays, and who comes later comes in.
    front.works();
    drop(front);
    FrontEnd::at(&daemon, "a").works();
    // The same with a disk that changes.
    remove();
    std::fs::write(daemon.path("other"), vec![0; 1 << 20]).expect("it is written");
    daemon.rewrite(&file("file = \"other\""));
    done(&daemon.ask(&["reload"]));
    FrontEnd::at(&daemon, "a").works();
}

/// Who begins a daemon where another one listens is told whose socket that may be.
#[test]
fn a_control_socket_in_use_is_explained() {
    let daemon = Daemon::two(1);
    let second = Command::new(PROGRAM).arg("run").arg(daemon.path("io.toml")).output();
    let said = text(&second.expect("it runs").stderr);
    let sentence = format!("`exitless-io list --control {}` shows", daemon.path("control"));
    assert!(said.contains("in use: another") && said.contains(&sentence), "{said}");
}
