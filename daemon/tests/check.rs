//! `exitless io check`: what a file would lead to, with every mistake, and without taking anything.

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::{Daemon, PROGRAM};
use front_end::driver::FrontEnd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

/// The user who has nothing.
const NOBODY: u32 = 65534;
const HOST: &str = "[host]\ncontrol = \"control\"\n";

fn disk(name: &str, what: &str) -> String {
    format!("[disk.{name}]\n{what}\nsocket = \"{name}.sock\"\n")
}

fn check(folder: &Path, text: &str) -> Output {
    let text = text.replace("FOLDER", &folder.display().to_string());
    std::fs::write(folder.join("io.toml"), text).expect("it is written");
    Command::new(PROGRAM).arg("check").arg(folder.join("io.toml")).output().expect("it runs")
}

/// Whether nothing is wrong, the lines about devices, and those of what is wrong.
fn said(output: &Output) -> (bool, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

fn names(folder: &Path) -> Vec<String> {
    let all = std::fs::read_dir(folder).expect("it is there");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("it is there").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<_> = all.map(name).collect();
    names.sort();
    names
}

#[test]
fn what_is_right_is_said_and_nothing_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("disk"), vec![0; 1 << 20]).expect("it is written");
    let text = [
        &disk("a", "file = \"disk\"")[..],
        &disk("b", "ram = \"1G\""),
        "[network.n]\nswitch = \"lan\"\nconnect = \"theirs\"\n",
        HOST,
    ]
    .concat();
    let (is_right, lines, wrong) = said(&check(folder.path(), &text));
    assert!(is_right && wrong.is_empty(), "{wrong}");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let expected = format!(
        "a: disk, 1M, {}, at {}\nb: disk, ram, at {}\n\
         n: network, switch lan, to {}, where nobody listens yet\n{} is right\n",
        at("disk"),
        at("a.sock"),
        at("b.sock"),
        at("theirs"),
        at("io.toml"),
    );
    assert_eq!(lines, expected);
    assert_eq!(names(folder.path()), ["disk", "io.toml"]);
}

/// In the file's order, with the lines that they are in.
#[test]
fn every_mistake_has_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes);
    write("odd", &[0; 700]).expect("it is written");
    write("image", &[&b"QFI\xfb"[..], &[0; 4092]].concat()).expect("it is written");
    write("plain", b"x").expect("it is written");
    write("empty", b"").expect("it is written");
    let long = "x".repeat(120);
    let text = [
        &disk("missing", "file = \"nope\"")[..],
        &disk("odd", "file = \"odd\""),
        &disk("empty", "file = \"empty\""),
        &disk("image", "file = \"image\""),
        &disk("folder", "file = \".\""),
        &disk("server", "nbd = \"nbd+unix:///disk?socket=FOLDER/none\""),
        &disk("nvme", "nvme = \"ffff:1f:1f.7\""),
        &disk("big", "ram = \"1000T\""),
        "[disk.long]\nram = \"1M\"\nsocket = \"",
        &long,
        "\"\n[disk.plain]\nram = \"1M\"\nsocket = \"plain\"\n",
        "[disk.nowhere]\nram = \"1M\"\nsocket = \"no/s\"\n",
        "[network.n]\nswitch = \"lan\"\nsocket = \"n\"\n",
        "[uplink.lan]\ntap = \"exitless-no\"\n",
        "[host]\ncontrol = \"no/control\"\npaths = [\"gone\"]\n",
    ]
    .concat();
    let (is_right, lines, wrong) = said(&check(folder.path(), &text));
    assert!(!is_right);
    let expected = [
        (2, "[disk.missing] file: ", "nope isn't there; `truncate -s 10G "),
        (
            5,
            "[disk.odd] file: ",
            "has 700 bytes, which isn't a multiple of 512; `truncate -s %512 ",
        ),
        (
            8,
            "[disk.empty] file: ",
            "has no bytes, and a disk needs 512 at least; `truncate -s 10G ",
        ),
        (11, "[disk.image] file: ", "is a qcow2 image"),
        (14, "[disk.folder] file: ", "is a folder; a file or a block device is needed"),
        (17, "[disk.server] nbd: ", "can't be reached; start its server, or mend the address"),
        (20, "[disk.nvme] nvme: ", "there is no PCI device ffff:1f:1f.7"),
        (22, "[disk.big]: ", "1000T of memory can't be had for it; give it less"),
        (27, "[disk.long] socket: ", " bytes, and 107 are the most"),
        (30, "[disk.plain] socket: ", "plain is there already, and isn't a socket"),
        (33, "[disk.nowhere] socket: ", "no is no folder; `mkdir -p "),
        (37, "[uplink.lan]: ", "there is no TAP exitless-no; `ip tuntap add"),
        (40, "[host] control: ", "no is no folder; `mkdir -p "),
        (41, "[host] paths: ", "gone is no folder; make it, or leave it out"),
    ];
    let all: Vec<_> = wrong.lines().collect();
    assert_eq!(all.len(), expected.len(), "{wrong}");
    for (line, (number, place, sentence)) in all.iter().zip(expected) {
        let begin = format!("io.toml:{number}: {place}");
        assert!(line.contains(&begin) && line.contains(sentence), "{begin}{sentence}: {line}");
    }
    assert!(lines.contains("missing: disk, can't be served, as is said below\n"), "{lines}");
    assert!(lines.contains("n: network, switch lan, at "), "{lines}");
    // What can be read is looked at, whatever else is wrong.
    let text =
        [&disk("a", "fiel = \"a\""), &disk("b", "file = \"nope\"")[..], HOST, "c = 1\n"].concat();
    let (is_right, lines, wrong) = said(&check(folder.path(), &text));
    assert!(!is_right && lines.starts_with("b: disk, can't be served"), "{lines}");
    let begins = ["2: [disk.a]: unknown key", "5: [disk.b] file: ", "9: [host]: unknown key"];
    let all: Vec<_> = wrong.lines().collect();
    assert_eq!(all.len(), begins.len(), "{wrong}");
    for (line, begin) in all.iter().zip(begins) {
        assert!(line.contains(&format!("io.toml:{begin}")), "{begin}: {line}");
    }
    // Syntax is as for `run`.
    let (is_right, lines, wrong) = said(&check(folder.path(), "[disk.a]\nfile = 3\n"));
    assert!(
        !is_right && lines.is_empty() && wrong.contains("io.toml:2: [disk.a] file: "),
        "{wrong}"
    );
    assert_eq!(names(folder.path()), ["empty", "image", "io.toml", "odd", "plain"]);
}

/// What is no file, and what this user may not have: each with what would be right.
#[test]
fn what_a_user_may_not_have_is_explained() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    let own = |path: &Path| {
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("root may");
        }
    };
    for name in ["program", "mine", "closed", "closed/disk", "sockets"] {
        match name {
            "program" => drop(std::fs::copy(PROGRAM, at(name)).expect("it is copied")),
            "closed" | "sockets" => std::fs::create_dir(at(name)).expect("it is made"),
            _ => std::fs::write(at(name), [0; 4096]).expect("it is written"),
        }
        own(&at(name));
    }
    mode(&at("mine"), 0o400);
    mode(&at("closed"), 0o000);
    mode(&at("program"), 0o755);
    mode(folder.path(), 0o755);
    let status = Command::new("mkfifo").arg(at("fifo")).status().expect("it runs");
    assert!(status.success());
    let _socket = UnixListener::bind(at("listened")).expect("a socket");
    let disk = |name: &str, file: &str| {
        format!("[disk.{name}]\nfile = \"{file}\"\nsocket = \"sockets/{name}\"\n")
    };
    let text = [
        disk("a", "mine"),
        disk("b", "closed/disk"),
        disk("c", "/dev/null"),
        disk("d", "fifo"),
        disk("e", "listened"),
        "[network.n]\nswitch = \"lan\"\nsocket = \"sockets/n\"\n".into(),
        "[network.m]\nswitch = \"wan\"\nsocket = \"sockets/m\"\n".into(),
        "[uplink.lan]\npacket = \"lo\"\n[uplink.wan]\ntap = \"lo\"\n".into(),
    ]
    .concat();
    std::fs::write(at("io.toml"), text).expect("it is written");
    let mut command = match rustix::process::geteuid().is_root() {
        true => {
            let mut command = Command::new("setpriv");
            let user = NOBODY.to_string();
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
            command.arg(at("program"));
            command
        }
        false => Command::new(at("program")),
    };
    let output = command.arg("check").arg(at("io.toml")).output().expect("it runs");
    let (is_right, _, wrong) = said(&output);
    assert!(!is_right);
    for sentence in [
        "[disk.a] file: this user can't write ",
        "/mine; `chmod u+w` it, or say read_only = true (--read-only)",
        "[disk.b] file: this user can't enter ",
        "/closed, where ",
        "[disk.c] file: /dev/null is a character device; a file or a block device is needed",
        "/fifo is a FIFO; a file or a block device is needed",
        "/listened is a socket; a file or a block device is needed",
        "[uplink.lan]: frames of the interface lo can't be taken without CAP_NET_RAW: ",
        "[uplink.wan]: lo is an interface, and no TAP; packet = \"lo\" takes it as it is",
    ] {
        assert!(wrong.contains(sentence), "{sentence}: {wrong}");
    }
    assert_eq!(wrong.lines().count(), 7, "{wrong}");
    mode(&at("closed"), 0o700);
}

/// What the daemon has that runs with the file is in use by right; what another has is wrong.
#[test]
fn a_daemon_that_runs_isnt_disturbed() {
    let text = [&disk("a", "file = \"disk\"")[..], HOST].concat();
    let daemon = Daemon::run(&text);
    let mut front = FrontEnd::at(&daemon, "a.sock");
    let run = |file: &str| {
        let output = Command::new(PROGRAM).arg("check").arg(daemon.path(file)).output();
        said(&output.expect("it runs"))
    };
    let (is_right, lines, wrong) = run("io.toml");
    assert!(is_right, "{wrong}");
    assert!(lines.starts_with("a: disk, 1M, ") && lines.contains(", is served now\n"), "{lines}");
    let other = [&disk("b", "file = \"disk\"")[..], "[host]\ncontrol = \"other\"\n"].concat();
    std::fs::write(daemon.path("other.toml"), other).expect("it is written");
    let (is_right, _, wrong) = run("other.toml");
    assert!(!is_right && wrong.contains("other.toml:2: [disk.b] file: "), "{wrong}");
    assert!(wrong.contains("is in use: another program has locked it for writing"), "{wrong}");
    // It had one front end all the while: nobody else came.
    front.works();
    assert_eq!(daemon.report()["devices"][0]["connections"], 1);
}

/// Whether systemd or another program listens isn't known: it is said, and nothing wrong.
#[test]
fn nobody_is_connected_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let listener = UnixListener::bind(folder.path().join("a.sock")).expect("a socket");
    listener.set_nonblocking(true).expect("it can be set");
    let (is_right, lines, wrong) = said(&check(folder.path(), &disk("a", "ram = \"1M\"")));
    assert!(is_right, "{wrong}");
    assert!(lines.contains(", where systemd or another program listens by now"), "{lines}");
    assert!(listener.accept().is_err(), "nobody came");
}
