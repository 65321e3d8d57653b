//! What went wrong with a device, and what held it back, is told: by `list` and the metrics.

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::{FrontEnd, IN};
use std::fs::File;

const TEXT: &str = "
[disk.a]
file = \"disk\"
socket = \"a\"
limit = { iops = 100, rate = \"1G/s\", burst = \"1us\" }
[disk.b]
ram = \"1M\"
socket = \"b\"
[host]
control = \"control\"
";
/// `VIRTIO_BLK_S_IOERR`.
const IO_ERROR: u8 = 1;

fn list(daemon: &Daemon) -> String {
    String::from_utf8_lossy(&daemon.ask(&["list"]).stdout).into_owned()
}

/// The device's own count, of rings that are gone and of those that are there.
fn count(report: &serde_json::Value, name: &str) -> u64 {
    let device = &report["devices"][0];
    let rings = device["rings"].as_array().into_iter().flatten();
    let own = rings.map(|ring| &ring["numbers"][name]).chain([&device["gone"][name]]);
    own.filter_map(serde_json::Value::as_u64).sum()
}

#[test]
fn errors_limits_and_ends_are_told() {
    let mut daemon = Daemon::run(TEXT);
    let before = list(&daemon);
    let limit = "a: its limit is 100 requests/s and 1G/s";
    assert!(before.contains(&format!("{limit}, which it hasn't reached\n")), "{before}");
    assert!(!before.contains("b: "), "{before}");
    let mut front = FrontEnd::at(&daemon, "a");
    (0..4).for_each(|_| front.works());
    assert!(count(&daemon.report(), "limited") >= 3, "{}", daemon.report());
    assert_eq!(count(&daemon.report(), "errors"), 0);
    // What the file had is gone.
    File::options()
        .write(true)
        .open(daemon.path("disk"))
        .expect("it is there")
        .set_len(0)
        .expect("cut");
    front.offer(IN, 1000, &[0; 512]);
    assert_eq!(front.answer(), IO_ERROR);
    front.send_nonsense();
    front.expect_end();
    for _ in 0..2 {
        let (report, listed) = (daemon.report(), list(&daemon));
        assert_eq!(count(&report, "errors"), 1);
        assert_eq!(report["devices"][0]["ended"]["count"], 1);
        assert_eq!(report["devices"][0]["iops"], 100);
        assert!(listed.contains(&format!("{limit}; times that it waited: ")), "{listed}");
        assert!(listed.contains("a: requests answered with an I/O error: 1\n"), "{listed}");
        assert!(
            listed.contains("a: connections that ended with a reason: 1; the last: "),
            "{listed}"
        );
        // The next program goes on counting.
        daemon.upgrade();
    }
}

/// A device at its limit sleeps until it may have the next request, and not up to 50 µs longer.
#[test]
fn its_timers_have_no_slack() {
    let daemon = Daemon::run(TEXT);
    daemon.wait_until_asleep();
    let slack = std::fs::read_to_string(format!("/proc/{}/timerslack_ns", daemon.id()));
    assert_eq!(slack.expect("it runs"), "1\n");
}
