//! A switch's way out, where the test may make a TAP.

use super::daemon::{Daemon, PROGRAM};
use super::home::frame;
use super::station::Station;
use std::process::Command;

/// Where the test may make a TAP: frames go out of the switch and come in.
fn with_tap(name: &str) -> String {
    format!(
        "[network.a]\nsocket = \"a\"\nswitch = \"lan\"\nmac = \"02:00:00:00:00:01\"\n\
         [uplink.lan]\ntap = \"{name}\"\n"
    )
}

/// The loopback interface is none.
#[test]
fn what_is_no_tap_isnt_served() {
    for (name, why) in [
        ("lo", "uplink of lan isn't served: lo is an interface, and no TAP"),
        ("nosuchtap0", "uplink of lan isn't served: there is no TAP nosuchtap0"),
    ] {
        let text = with_tap(name) + "[host]\ncontrol = \"control\"\n";
        let daemon = Daemon::run(&text);
        let listed = String::from_utf8_lossy(&daemon.ask(&["list"]).stdout).into_owned();
        assert!(listed.contains(why), "{listed}");
        // The network is served without its way out.
        Station::connect(&daemon.path("a"));
    }
}

#[test]
#[ignore = "a step of its own in `exitless test`: it needs root"]
fn as_root_a_tap_is_a_switchs_way_out() {
    let name = format!("exitless{}", std::process::id() % 100_000);
    let made = Command::new("ip").args(["tuntap", "add", "mode", "tap", "name", &name]).status();
    assert!(made.expect("it runs").success());
    let tap = Tap(name);
    let daemon = Daemon::run(&with_tap(&tap.0));
    let mut a = Station::connect(&daemon.path("a"));
    let up = Command::new("ip").args(["link", "set", &tap.0, "up"]).status();
    assert!(up.expect("it runs").success());
    // With IPv6 the host says something by itself when the link comes up.
    let off = std::fs::read("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    if off.is_ok_and(|off| off.starts_with(b"0")) {
        assert_eq!(a.receive()[..2], [0x33, 0x33], "a multicast of IPv6");
    }
    let before = tap.received();
    a.send(&frame([0xff; 6], 1, 1));
    while tap.received() == before {
        std::thread::yield_now();
    }
}

/// The TAP goes along to a new program, and stays with the old one when that one fails.
#[test]
#[ignore = "a step of its own in `exitless test`: it needs root"]
fn as_root_a_tap_goes_along() {
    let name = format!("exitlesu{}", std::process::id() % 100_000);
    let made = Command::new("ip").args(["tuntap", "add", "mode", "tap", "name", &name]).status();
    assert!(made.expect("it runs").success());
    let tap = Tap(name);
    let mut daemon = Daemon::run(&format!("{}[host]\ncontrol = \"control\"\n", with_tap(&tap.0)));
    let mut a = Station::connect(&daemon.path("a"));
    let up = Command::new("ip").args(["link", "set", &tap.0, "up"]).status();
    assert!(up.expect("it runs").success());
    for round in 0..4 {
        let before = tap.received();
        a.send(&frame([0xff; 6], 1, round));
        while tap.received() == before {
            std::thread::yield_now();
        }
        if round > 0 {
            daemon.upgrade();
            continue;
        }
        let upgrade = format!("exec {PROGRAM} upgrade --control {}", daemon.path("control"));
        let limited = format!("ulimit -n 12; {upgrade}");
        let failed = Command::new("sh").args(["-c", &limited]).output().expect("it runs");
        assert!(!failed.status.success());
    }
}

/// A TAP of the test's own, which no address is given to.
struct Tap(String);

impl Tap {
    /// Frames that the host received by it.
    fn received(&self) -> String {
        let path = format!("/sys/class/net/{}/statistics/rx_packets", self.0);
        std::fs::read_to_string(path).expect("it is there")
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &self.0]).status();
    }
}
