//! However a run ends, nothing of it is left: no QEMU, no socket, no temporary file, and the
//! terminal as it was.

mod common;

use common::{Place, Qemu, end, ended, full, live, signal, started};
use rustix::{
    fs::OFlags,
    process::Signal,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, tcgetattr},
};
use std::{
    fs::{self, File},
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, process::ExitStatusExt},
    },
    path::PathBuf,
    process::{Command, Stdio},
};

/// What a run may leave.
const NOTHING: [PathBuf; 0] = [];
/// What ends a machine whose VMs have all powered off.
const ALL_ENDED: &str = "cat records; exit 33";

fn place_that_ends() -> Place {
    let place = Place::new(ALL_ENDED);
    let [machine, vm] = started();
    place.records("records", &[machine, vm, ended()]);
    place
}

#[test]
fn a_signal_ends_all_of_it() {
    for number in [Signal::INT, Signal::TERM, Signal::HUP] {
        let place = Place::new("");
        let mut run = place.run().spawn().unwrap();
        let qemu = Qemu::of(&mut run);
        assert_eq!(place.left_over().len(), 1, "the socket of `exitless top`");
        signal(&run, number);
        let (status, text) = end(run);
        assert_eq!(status.code(), Some(130), "{number:?}: {text}");
        assert!(text.contains("stopped before all VMs had ended"), "{text}");
        assert!(qemu.is_gone());
        assert_eq!(place.left_over(), NOTHING);
    }
}

/// Whatever ends a run, what its VMs did is shown.
#[test]
fn the_ledger_is_shown_whatever_ends_a_run() {
    /// Ends a run whose person sits at this terminal.
    type Ending = fn(&std::process::Child, &mut File);
    let endings: [(Ending, &[&str], i32); 4] = [
        (|run, _| signal(run, Signal::INT), &[], 130),
        (|run, _| signal(run, Signal::TERM), &[], 130),
        (|_, person| person.write_all(b"\x1d").unwrap(), &[], 130),
        (|_, _| {}, &["--timeout", "2"], 124),
    ];
    for (ending, args, code) in endings {
        let place =
            Place::new("cat started; printf '\\001\\001\\001!'; head -c 4 >asked; cat live");
        place.records("started", &started());
        place.records("live", &[live(5_000, 1_234)]);
        let (mut person, program) = terminal();
        let json = place.path("summary.json");
        let mut run = place.run();
        run.args(args).arg("--json").arg(&json).stdin(OwnedFd::from(program));
        let mut run = run.spawn().unwrap();
        let qemu = Qemu::of(&mut run);
        // What the machine says last is shown when all before it was taken in.
        run.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        ending(&run, &mut person);
        let (status, text) = end(run);
        assert_eq!(status.code(), Some(code), "{text}");
        assert!(text.contains("VM guest: was still running\n"), "{text}");
        assert!(text.contains("  cpuid            1,234  100.0 %\n"), "{text}");
        assert!(fs::read_to_string(json).unwrap().contains("\"cpuid\": 1234"));
        assert!(qemu.is_gone());
    }
}

/// What a guest writes to a disk that nobody named is there when it reads it.
#[test]
fn the_default_disk_keeps_what_is_written_and_is_said_to_go() {
    let place = Place::new("echo \"$@\" >arguments; exit 33");
    let run = place.run().args(["--device", "nvme0"]).spawn().unwrap();
    let (_, text) = end(run);
    assert!(text.contains("exitless: nvme0 is an empty disk of 1G, which goes when"), "{text}");
    let arguments = fs::read_to_string(place.path("arguments")).unwrap();
    let disk = "raw,node-name=disk0,file.driver=file,file.filename=/proc/";
    assert!(arguments.contains(disk) && !arguments.contains("null-co"), "{arguments}");
}

#[test]
fn memory_that_is_not_there_is_told_before_anything_is_built_or_run() {
    let place = Place::new("echo started >trace");
    // More than any machine has: 8 TB.
    let vm = |i: u32| format!("[vm.a{i}]\nkernel = 'kernel'\nmemory = '254G'\n");
    fs::write(place.path("vm.toml"), (1..=32).map(vm).collect::<String>()).unwrap();
    let mut run = place.exitless(&["run", place.path("vm.toml").to_str().unwrap()]);
    run.env_remove("EXITLESS_HYPERVISOR").env("CARGO", "/nonexistent/cargo");
    let (status, text) = end(run.spawn().unwrap());
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.starts_with("exitless: the VMs have 8128G of memory, for which "), "{text}");
    assert!(text.contains("this machine has ") && text.lines().count() == 1, "{text}");
    assert!(!place.path("trace").exists());
}

/// A build takes minutes, and somebody may think better of it.
#[test]
fn a_signal_while_the_image_is_built_ends_all_of_it() {
    let place = Place::new("");
    for (number, name) in [(Signal::INT, "int"), (Signal::TERM, "term")] {
        let compiler = place.path(name);
        let script = format!(
            "#!/bin/sh\nsleep 1000 &\nprintf '%016d' $! >{0}.new && mv {0}.new {0}\nwait\n",
            compiler.display()
        );
        // A cargo that has started a compiler.
        fs::write(place.path("cargo"), script).unwrap();
        fs::set_permissions(place.path("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
        let mut run = place.run();
        run.env_remove("EXITLESS_HYPERVISOR").env("CARGO", place.path("cargo"));
        let mut run = run.spawn().unwrap();
        let digits = loop {
            match fs::read(&compiler) {
                Ok(digits) => break digits,
                Err(_) => assert_eq!(run.try_wait().unwrap(), None, "it ended without a compiler"),
            }
        };
        let compiler = Qemu::numbered(&digits);
        signal(&run, number);
        // Looked at first: a run that doesn't end its compiler waits for it.
        let stopped = compiler.ends_within(20);
        if !stopped {
            compiler.kill();
        }
        let (status, text) = end(run);
        assert!(stopped, "the compiler went on; {text}");
        assert_eq!(status.code(), Some(130), "{text}");
        assert!(text.contains("exitless: stopped while hypervisor was being built"), "{text}");
    }
}

#[test]
fn killed_outright_it_takes_qemu_along_and_the_next_run_tidies_up() {
    let place = place_that_ends();
    let waiting = Place::new("");
    let mut run = waiting.run().env("XDG_RUNTIME_DIR", place.path("runtime")).spawn().unwrap();
    let qemu = Qemu::of(&mut run);
    run.kill().unwrap();
    assert_eq!(end(run).0.signal(), Some(9));
    assert!(qemu.ends_within(60));
    assert_eq!(place.left_over().len(), 1, "its socket");
    assert_eq!(end(place.run().spawn().unwrap()).0.code(), Some(0));
    assert_eq!(place.left_over(), NOTHING);
}

#[test]
fn closed_standard_input_is_no_reason_to_end() {
    let place = place_that_ends();
    let run = place.run();
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" \"$@\" <&-"]).arg(run.get_program()).args(run.get_args());
    shell.envs(run.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let output = shell.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.len(), 16);
    assert_eq!(place.left_over(), NOTHING);
}

#[test]
fn standard_output_that_is_full_or_closed_ends_it_with_a_sentence() {
    let place = Place::new("");
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for (output, why) in
        [(Stdio::from(full()), "No space left"), (Stdio::from(closed), "Broken pipe")]
    {
        let run = place.run().stdout(output).spawn().unwrap();
        let (status, text) = end(run);
        assert_eq!(status.code(), Some(1), "{text}");
        let said = format!("exitless: standard output can't be written: {why}");
        assert!(text.lines().any(|line| line.starts_with(&said)), "{text}");
        assert_eq!(place.left_over(), NOTHING);
    }
}

#[test]
fn output_that_fails_leaves_no_qemu() {
    let place = Place::new("echo $$ >number; while :; do printf '\\001\\001\\001x'; done");
    let mut run = place.run().spawn().unwrap();
    let qemu = Qemu::of(&mut run);
    drop(run.stdout.take());
    assert_eq!(end(run).0.code(), Some(1));
    assert!(qemu.is_gone());
}

#[test]
fn standard_error_that_is_full_or_closed_is_no_reason_to_end() {
    let place = place_that_ends();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for errors in [Stdio::from(full()), Stdio::from(closed)] {
        let run = place.run().stderr(errors).spawn().unwrap();
        assert_eq!(end(run).0.code(), Some(0));
        assert_eq!(place.left_over(), NOTHING);
    }
}

#[test]
fn a_summary_that_cannot_be_written_is_said_before_anything_runs() {
    let place = Place::new("");
    let summary = place.path("no/summary.json");
    let run = place.run().arg("--json").arg(&summary).spawn().unwrap();
    let (status, text) = end(run);
    assert_eq!(status.code(), Some(1));
    assert!(text.contains("no/summary.json can't be written: "), "{text}");
    assert_eq!(place.left_over(), NOTHING);

    let place = place_that_ends();
    let run = place.run().args(["--json", "/dev/full"]).spawn().unwrap();
    let (status, text) = end(run);
    assert_eq!(status.code(), Some(1));
    assert!(text.contains("/dev/full can't be written: No space left"), "{text}");
}

/// Nothing that a command reads is written over.
#[test]
fn an_output_that_is_an_input_is_refused_before_anything_runs() {
    let place = Place::new("echo started >trace");
    let plan = "[vm.a]\nkernel = 'kernel'\ninitrd = 'initrd'\n";
    for (name, contents) in [("vm.toml", plan), ("initrd", "ramdisk"), ("d.img", "12345678")] {
        fs::write(place.path(name), contents.repeat(if name == "d.img" { 64 } else { 1 })).unwrap();
    }
    let at = |name: &str| place.path(name).display().to_string();
    let [vm, disk, kernel, initrd] = ["vm.toml", "d.img", "kernel", "initrd"].map(at);
    let cases = [
        (vec!["run", &vm, "--json", &vm], "--json", &vm, "the plan"),
        (vec!["run", &vm, "--disk", &disk, "--json", &disk], "--json", &disk, "the disk of --disk"),
        (vec!["run", &vm, "--json", &initrd], "--json", &initrd, "the initrd of [vm.a]"),
        (
            vec!["run", "--kernel", &kernel, "--json", &kernel],
            "--json",
            &kernel,
            "the kernel of [vm.guest]",
        ),
        (vec!["image", &vm, "-o", &vm, "--format", "plan"], "--output", &vm, "the plan"),
        (
            vec!["image", &vm, "-o", &kernel, "--format", "plan"],
            "--output",
            &kernel,
            "the kernel of [vm.a]",
        ),
    ];
    for (line, option, file, what) in cases {
        let before = fs::read(file).unwrap();
        let (status, text) = end(place.exitless(&line).spawn().unwrap());
        assert_eq!(status.code(), Some(1), "{line:?}: {text}");
        assert_eq!(text, format!("exitless: {option}: {file} is {what}; give another file\n"));
        assert_eq!(fs::read(file).unwrap(), before);
    }
    assert!(!place.path("trace").exists());
}

#[test]
fn a_qemu_that_dies_is_named() {
    let place = Place::new("");
    let mut run = place.run().spawn().unwrap();
    Qemu::of(&mut run).kill();
    let (status, text) = end(run);
    assert_eq!(status.code(), Some(5));
    assert!(text.contains("QEMU was ended by signal 9"), "{text}");
    assert_eq!(place.left_over(), NOTHING);
}

/// Both ends of a terminal.
fn terminal() -> (File, File) {
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    let name = ptsname(&person, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let program = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
    (File::from(person), File::from(program))
}

#[test]
fn the_terminal_is_as_it_was_however_the_run_ends() {
    /// Ends a run whose person sits at this terminal.
    type Ending = fn(&std::process::Child, &mut File);
    let endings: [(Ending, i32); 3] = [
        (|run, _| signal(run, Signal::TERM), 130),
        (|_, person| person.write_all(b"\x1d").unwrap(), 130),
        (|_, person| person.write_all(b"\x01x").unwrap(), 130),
    ];
    for (ending, code) in endings {
        let (mut person, program) = terminal();
        let modes = |terminal: &File| {
            let settings = tcgetattr(terminal).unwrap();
            (settings.input_modes, settings.output_modes, settings.local_modes)
        };
        let before = modes(&program);
        assert!(before.2.contains(LocalModes::ICANON));
        let place = Place::new("");
        let stdin = OwnedFd::from(program.try_clone().unwrap());
        let mut run = place.run().stdin(stdin).spawn().unwrap();
        let qemu = Qemu::of(&mut run);
        assert!(!modes(&program).2.contains(LocalModes::ICANON), "keys come one by one");
        ending(&run, &mut person);
        assert_eq!(end(run).0.code(), Some(code));
        assert_eq!(modes(&program), before);
        assert!(qemu.is_gone());
    }
}

#[test]
fn what_is_typed_into_a_machine_that_ends_is_lost_and_no_more() {
    let place = place_that_ends();
    let mut run = place.run().stdin(File::open("/dev/zero").unwrap()).spawn().unwrap();
    let mut shown = Vec::new();
    run.stdout.take().unwrap().read_to_end(&mut shown).unwrap();
    assert_eq!(end(run).0.code(), Some(0));
    assert_eq!(shown.len(), 16);
}

#[test]
fn a_device_without_an_iommu_is_told_before_anything_is_built_or_run() {
    let place = Place::new("echo started >trace");
    let mut run = place.run();
    run.args(["--device", "nvme0", "--iommu", "none"]);
    run.env_remove("EXITLESS_HYPERVISOR").env("CARGO", "/nonexistent/cargo");
    let (status, text) = end(run.spawn().unwrap());
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.starts_with("exitless: --iommu none: --device nvme0 needs an IOMMU"), "{text}");
    assert!(!place.path("trace").exists());
}

/// What QEMU is told of an IOMMU.
#[test]
fn a_machine_has_the_iommu_that_is_asked_for() {
    let names: [(&[&str], Option<&str>); 3] = [
        (&[], Some("amd-iommu")),
        (&["--iommu", "vt-d"], Some("intel-iommu")),
        (&["--iommu", "none"], None),
    ];
    for (arguments, name) in names {
        let place = Place::new(&format!("printf '%s\\n' \"$@\" >told; {ALL_ENDED}"));
        let [machine, vm] = started();
        place.records("records", &[machine, vm, ended()]);
        let (status, text) = end(place.run().args(arguments).spawn().unwrap());
        assert_eq!(status.code(), Some(0), "{text}");
        let told = fs::read_to_string(place.path("told")).unwrap();
        let unit = told.lines().find(|line| line.contains("iommu"));
        let unit = unit.map(|line| line.split(',').next().unwrap());
        assert_eq!(unit, name, "{told}");
    }
}
