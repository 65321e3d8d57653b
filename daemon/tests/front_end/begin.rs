//! What the program is begun with: what isn't there, and its file by a name from the folder that it
//! is begun in.

use super::daemon::{Daemon, PROGRAM};
use super::driver::{FrontEnd, IN, OUT};
use super::wire::Wire;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

const MARK: [u8; 512] = [0xa5; 512];

fn said(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a newcomer gets wrong at the start: a sentence that says what would be right.
#[test]
fn what_is_not_there_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("a").display().to_string();
    let file = folder.path().join("io.toml").display().to_string();
    for (arguments, sentence) in [
        (&["run", &file][..], "isn't there; `exitless io run --help` shows what such a file says"),
        (
            &["disk", "--ram", "1000T", "--socket", &socket],
            "disk: 1000T of memory can't be had for it; give it less",
        ),
        (
            &["list", "--control", &socket],
            "--control takes what the daemon's io.toml has as `control` in [host]",
        ),
    ] {
        let output = Command::new(PROGRAM).args(arguments).output().expect("it runs");
        let said = said(&output);
        assert!(!output.status.success() && said.contains(sentence), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// Its name from the folder that the daemon was started in is as good as its whole path.
#[test]
fn a_file_that_is_the_same_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "[disk.a]\nram = \"1M\"\nsocket = \"a\"\n[host]\ncontrol = \"control\"\n";
    std::fs::write(path("io.toml"), text).expect("it is written");
    let mut command = Command::new(PROGRAM);
    command.args(["run", "io.toml"]).current_dir(folder.path()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("serves a") {
        line.clear();
        assert_ne!(log.read_line(&mut line).expect("it is text"), 0, "it ended");
    }
    let mut front = FrontEnd::new(Wire::connect(&path("a")));
    front.set_up(0, false);
    front.offer(OUT, 1, &MARK);
    assert_eq!(front.answer(), 0);
    let reload = ["reload", "--control", &path("control")];
    let output = Command::new(PROGRAM).args(reload).output().expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
    front.offer(IN, 1, &[0; 512]);
    assert_eq!((front.answer(), front.data()), (0, MARK));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

/// A guest's first write would ruin it; whoever means it as it is says so.
#[test]
fn an_image_of_another_program_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    for (at, magic, name) in
        [(0, &b"QFI\xfb"[..], "qcow2"), (64, b"\x7f\x10\xda\xbe", "vdi"), (0, b"KDMV", "vmdk")]
    {
        let mut bytes = vec![0; 1 << 20];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        std::fs::write(path("disk"), bytes).expect("it is written");
        let disk = ["disk", "--file", &path("disk"), "--socket", &path("a")];
        let output = Command::new(PROGRAM).args(disk).output().expect("it runs");
        let said = said(&output);
        let sentence = format!("{} is a {name} image", path("disk"));
        assert!(!output.status.success() && said.contains(&sentence), "{said}");
        assert!(said.contains("qemu-img convert -O raw"), "{said}");
    }
    let host = "[host]\ncontrol = \"control\"\npaths = [\".\"]\n";
    let text = &format!("[disk.a]\nram = \"1M\"\nsocket = \"a\"\n{host}");
    let daemon = Daemon::run_in(folder, text);
    let path = |name: &str| daemon.path(name);
    std::fs::write(path("disk"), [&b"QFI\xfb"[..], &[0; 4092]].concat()).expect("it is written");
    let text = "[disk.b]\nfile = \"disk\"\nsocket = \"b\"\n";
    std::fs::write(path("b.toml"), text).expect("it is written");
    let refused = said(&daemon.ask(&["add", &path("b.toml")]));
    assert!(refused.contains("is a qcow2 image"), "{refused}");
    std::fs::write(path("b.toml"), format!("{text}raw = true\n")).expect("it is written");
    let added = daemon.ask(&["add", &path("b.toml")]);
    assert!(added.status.success(), "{}", said(&added));
}

/// QEMU whose memory isn't shared hands over none: who reads the log is told what helps.
#[test]
fn memory_that_isnt_shared_is_said() {
    let daemon = Daemon::ram();
    let mut front = FrontEnd::new(Wire::connect(&daemon.socket()));
    front.shares_no_memory();
    front.expect_end();
    daemon.wait_until_said("QEMU needs memory-backend-memfd,share=on", 1);
}

/// As the file says it; all of it at once.
#[test]
fn what_another_kind_of_disk_has_is_refused() {
    let run = |options: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.arg("disk").args(options).args(["--socket", "/nowhere/a"]);
        said(&command.output().expect("it runs"))
    };
    let [file, ram, nbd] = [["--file", "s.img"], ["--ram", "64M"], ["--nbd", "nbd://nowhere/"]];
    for (kept, options, kind) in [
        (ram, &["--page-cache", "--raw", "--pinned"][..], "file"),
        (file, &["--tls-ca=f", "--tls-certificate=f", "--tls-key=f", "--timeout=3s"], "nbd"),
        (nbd, &["--offset=3", "--size=1G"], "nvme"),
    ] {
        let said = run(&[&kept[..], options].concat());
        assert_eq!(said.lines().count(), options.len(), "{said}");
        for option in options {
            let option = option.split('=').next().expect("a name");
            let sentence = format!("{option} is for --{kind} alone; leave it out");
            assert!(said.contains(&sentence), "{sentence}: {said}");
        }
    }
    let said = run(&["--ram", "1G", "--tls-name", "foo", "--size", "3"]);
    assert_eq!(
        said,
        "exitless-io: --tls-name is for --nbd alone; leave it out\n\
         exitless-io: --size is for --nvme alone; leave it out; a disk in memory has it in --ram, \
         and a file its own\n"
    );
    let said = run(&["--nbd", "nbds://nowhere/", "--tls-name", "foo"]);
    assert!(said.contains("--tls-ca is missing; name the file"), "{said}");
}

/// After five ends at once systemd gives a service up, if the unit doesn't say otherwise.
#[test]
fn the_unit_goes_on_trying() {
    let unit = include_str!("../../debian/units/exitless-io.service");
    let about = unit.split("[Service]").next().expect("a section");
    for line in ["StartLimitIntervalSec=0", "Wants=network-online.target"] {
        assert!(about.lines().any(|own| own == line), "{line}");
    }
}

/// Neither a device's socket nor a daemon that is stopped answers.
#[test]
fn what_doesnt_answer_isnt_waited_for() {
    let text = "[disk.a]\nram = \"1M\"\nsocket = \"a\"\n[host]\ncontrol = \"control\"\n";
    let daemon = Daemon::run(text);
    let try_all = |socket: &str| {
        for command in [&["list"][..], &["remove", "a"], &["upgrade"]] {
            let mut ask = Command::new(PROGRAM);
            ask.arg(command[0]).args(["--control", &daemon.path(socket)]).args(&command[1..]);
            let output = ask.output().expect("it runs");
            let said = said(&output);
            assert!(!output.status.success(), "{said}");
            assert!(said.contains("doesn't answer within 5 seconds"), "{said}");
        }
    };
    try_all("a");
    daemon.signal(rustix::process::Signal::STOP);
    try_all("control");
    daemon.signal(rustix::process::Signal::CONT);
    assert!(daemon.ask(&["list"]).status.success());
}
