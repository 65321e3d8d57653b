//! A file that is read again: what can't be had leaves what there was.

use super::daemon::Daemon;
use super::driver::{FrontEnd, IN, OUT};
use super::home::said;

const MARK: [u8; 512] = [0xa5; 512];
const HOST: &str = "[host]\ncontrol = \"control\"\n";

fn disk(name: &str, what: &str) -> String {
    format!("[disk.{name}]\n{what}\nsocket = \"{name}\"\n")
}

fn reload(daemon: &Daemon, text: &str) -> (bool, String) {
    daemon.rewrite(text);
    let done = daemon.ask(&["reload"]);
    (done.status.success(), said(&done))
}

/// A file that isn't there: the device is served on, to who is connected, and the rest is done.
#[test]
fn a_device_that_cant_be_changed_stays() {
    let daemon = Daemon::run(&format!("{}{HOST}", disk("a", "file = \"disk\"")));
    let mut front = FrontEnd::at(&daemon, "a");
    let text = [&disk("a", "file = \"nope.img\""), &disk("b", "ram = \"1M\""), HOST].concat();
    let (is_done, said) = reload(&daemon, &text);
    assert!(!is_done && said.contains("`a` stays as it was: "), "{said}");
    assert!(said.contains("nope.img isn't there"), "{said}");
    assert!(said.contains("`b` was added"), "{said}");
    front.works();
    FrontEnd::at(&daemon, "b").works();
    // Its file is another one, or its socket.
    std::fs::copy(daemon.path("disk"), daemon.path("other")).expect("it is copied");
    let text = format!("{}{HOST}", disk("a", "file = \"other\""));
    assert_eq!(reload(&daemon, &text), (true, String::new()));
    front.expect_end();
    FrontEnd::at(&daemon, "a").works();
    let text = text.replace("socket = \"a\"", "socket = \"c\"");
    assert_eq!(reload(&daemon, &text), (true, String::new()));
    FrontEnd::at(&daemon, "c").works();
    assert!(!std::path::Path::new(&daemon.path("a")).exists());
}

/// Who is to write must open the file anew, which the lock of who reads prevents.
#[test]
fn a_device_that_has_to_go_first_comes_again() {
    let whole = format!("{}{HOST}", disk("a", "file = \"disk\""));
    let daemon = Daemon::run(&whole);
    let read_only = whole.replace("[disk.a]\n", "[disk.a]\nread_only = true\n");
    assert_eq!(reload(&daemon, &read_only), (true, String::new()));
    // By another name it is another device.
    let moved = read_only.replace("\"a\"\n", "\"b\"\n").replace("disk.a", "disk.b");
    assert_eq!(reload(&daemon, &moved), (true, String::new()));
    assert_eq!(reload(&daemon, &whole), (true, String::new()));
    FrontEnd::at(&daemon, "a").works();
    let two = format!("{whole}{}", disk("b", "ram = \"1M\""));
    assert_eq!(reload(&daemon, &two), (true, String::new()));
    // `b` takes the socket of `a`, whose new one can't be made.
    let text = two.replace("\"a\"\n", "\"nowhere/a\"\n").replace("\"b\"\n", "\"a\"\n");
    let (is_done, said) = reload(&daemon, &text);
    assert!(!is_done && said.contains("`a` isn't changed: "), "{said}");
    assert!(said.contains("`a` is served as it was"), "{said}");
    assert!(said.contains("`b` stays as it was: "), "{said}");
    FrontEnd::at(&daemon, "a").works();
    FrontEnd::at(&daemon, "b").works();
}

/// What is in memory is there under another serial number, and at another socket.
#[test]
fn a_disk_in_memory_keeps_its_content() {
    let text = format!("{}{HOST}", disk("a", "ram = \"1M\""));
    let daemon = Daemon::run(&text);
    let mut front = FrontEnd::at(&daemon, "a");
    front.offer(OUT, 3, &MARK);
    assert_eq!(front.answer(), 0);
    let changed = text.replace("[disk.a]\n", "[disk.a]\nserial = \"new\"\nqueues = 2\n");
    assert_eq!(reload(&daemon, &changed), (true, String::new()));
    front.expect_end();
    let moved = changed.replace("\"a\"\n", "\"b\"\n");
    for (text, socket) in [(&changed, "a"), (&moved, "b")] {
        assert_eq!(reload(&daemon, text), (true, String::new()));
        let mut front = FrontEnd::at(&daemon, socket);
        front.offer(IN, 3, &[0; 512]);
        assert_eq!((front.answer(), front.data()), (0, MARK));
    }
}

/// Nothing is opened for another serial number: a file that isn't where it was any more is served
/// on, by this program and the next one.
#[test]
fn a_file_stays_open() {
    let text = format!("{}{HOST}", disk("a", "file = \"disk\""));
    let mut daemon = Daemon::run(&text);
    let mut front = FrontEnd::at(&daemon, "a");
    front.works();
    std::fs::rename(daemon.path("disk"), daemon.path("moved")).expect("it is there");
    let changed = text.replace("[disk.a]\n", "[disk.a]\nserial = \"new\"\n");
    assert_eq!(reload(&daemon, &changed), (true, String::new()));
    front.expect_end();
    let mut front = FrontEnd::at(&daemon, "a");
    (0..100).for_each(|_| front.works());
    daemon.upgrade();
    front.works();
}

/// A network whose address is another's stays at the switch by its own.
#[test]
fn a_network_that_cant_be_changed_stays() {
    let net = |name: &str, mac: u8| {
        let what = format!("switch = \"lan\"\nmac = \"02:00:00:00:00:0{mac}\"");
        disk(name, &what).replace("disk", "network")
    };
    let daemon = Daemon::run(&[&net("a", 1), &net("b", 2), HOST].concat());
    // The file gives it away, but its network can't be changed.
    let nowhere = net("a", 3).replace("socket = \"a\"", "socket = \"none/a\"");
    let (is_done, said) = reload(&daemon, &[&nowhere, &net("b", 1), HOST].concat());
    assert!(!is_done && said.contains("`a` stays as it was: "), "{said}");
    assert!(said.contains("`b` stays as it was: "), "{said}");
    let both = daemon.report()["devices"].as_array().map(Vec::len);
    assert_eq!(both, Some(2));
    assert_eq!(reload(&daemon, &[&net("a", 1), &net("b", 3), HOST].concat()).1, "");
}

/// It is the daemon's own, and no other program's: whose, is said.
#[test]
fn what_another_device_has_isnt_added() {
    let daemon = Daemon::run(&format!("{}{HOST}", disk("a", "file = \"disk\"")));
    for (text, sentence) in [
        (disk("b", "file = \"disk\""), "b: its file is that of `a`, and written"),
        (disk("b", "ram = \"1M\"").replace("\"b\"", "\"a\""), "b: its socket is that of `a`"),
    ] {
        std::fs::write(daemon.path("b.toml"), text).expect("it is written");
        let refused = said(&daemon.ask(&["add", &daemon.path("b.toml")]));
        assert!(refused.contains(sentence), "{refused}");
    }
}

/// As docs/daemon.md says: what was added is gone after a reload, and a file is as long as it was
/// when it was opened.
#[test]
fn the_file_says_what_there_is() {
    let text = format!("{}{HOST}", disk("a", "file = \"disk\""));
    let daemon = Daemon::run(&text);
    std::fs::write(daemon.path("b.toml"), disk("b", "ram = \"1M\"")).expect("it is written");
    assert!(daemon.ask(&["add", &daemon.path("b.toml")]).status.success());
    assert_eq!(reload(&daemon, &text), (true, String::new()));
    let size = || {
        let report = daemon.report();
        assert_eq!(report["devices"].as_array().map(Vec::len), Some(1));
        report["devices"][0]["size"].as_u64()
    };
    let file = std::fs::File::options().write(true).open(daemon.path("disk"));
    file.expect("it is there").set_len(2 << 20).expect("it grows");
    assert_eq!(reload(&daemon, &text), (true, String::new()));
    assert_eq!(size(), Some(1 << 20));
    assert!(daemon.ask(&["remove", "a"]).status.success());
    assert_eq!(reload(&daemon, &text), (true, String::new()));
    assert_eq!(size(), Some(2 << 20));
}

/// Sockets for people are made at the start.
#[test]
fn what_waits_for_a_restart_is_said() {
    let text = format!("{}{HOST}", disk("a", "ram = \"1M\""));
    let daemon = Daemon::run(&text);
    let (is_done, said) = reload(&daemon, &text.replace("\"control\"", "\"desk\""));
    assert!(is_done && said.contains("`control` of [host] takes effect when"), "{said}");
    let (is_done, said) = reload(&daemon, &format!("{text}metrics = \"m\"\npaths = [\"/srv\"]\n"));
    assert!(is_done && said.contains("`metrics` of [host] takes effect when"), "{said}");
    assert!(said.contains("`paths` of [host] takes effect when"), "{said}");
    assert_eq!(reload(&daemon, &text), (true, String::new()));
}
