//! Runs of programs that stand in for QEMU.

use super::*;
use std::{fs, sync::mpsc::sync_channel};

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// The outside of a run, and how to type.
fn typed() -> (SyncSender<Vec<u8>>, Typed) {
    let (send, bytes) = sync_channel(1);
    (send, Typed { bytes, to: 0, commands: Arc::default() })
}

fn run_raw(script: &str, timeout: Option<Duration>, typed: Option<Typed>) -> (Ended, String) {
    let setup = Setup { command: shell(script), framing: Framing::Raw, timeout, typed };
    let mut text = String::new();
    let ended = run(setup, &Context::for_tests(), |seen| {
        if let Seen::Said(Piece::Console { bytes, .. }) = seen {
            text += &String::from_utf8_lossy(bytes);
        }
        Ok(ControlFlow::Continue(()))
    });
    (ended.unwrap(), text)
}

#[test]
fn output_status_and_last_message_come_through() {
    let (ended, text) = run_raw("echo hi; echo a >&2; echo qemu: no disk >&2; exit 1", None, None);
    assert_eq!(text, "hi\n");
    assert_eq!(ended, Ended::Exited { status: 1, message: "qemu: no disk".into() });
    assert_eq!(ended.code(), None);
}

#[test]
fn debug_exit_codes_are_read_from_the_status() {
    let exited = |status| Ended::Exited { status, message: String::new() };
    assert_eq!(exited(33).code(), Some(0x10));
    assert_eq!(exited(3).code(), Some(1));
    assert_eq!(exited(0).code(), None);
    assert_eq!(exited(2).code(), None);
}

#[test]
fn a_run_that_takes_too_long_is_ended() {
    let (ended, _) = run_raw("exec sleep 60", Some(Duration::from_millis(100)), None);
    assert_eq!(ended, Ended::TimedOut);
}

#[test]
fn what_is_typed_arrives_and_quitting_ends_the_run() {
    let (send, typed) = typed();
    send.send(b"abc\n".to_vec()).unwrap();
    let (ended, text) = run_raw("read line; echo got $line; exit 5", None, Some(typed));
    assert_eq!((ended.code(), text.as_str()), (Some(2), "got abc\n"));

    let (_send, typed) = self::typed();
    typed.commands.quit();
    assert_eq!(run_raw("exec sleep 60", None, Some(typed)).0, Ended::Stopped);
}

/// Firmware would take it for keys.
#[test]
fn what_is_typed_waits_for_the_hypervisor() {
    let (send, typed) = typed();
    send.send(b"x".to_vec()).unwrap();
    let script = "timeout 0.3 head -c 1; [ $? = 124 ] || exit 3
        printf '\\001\\000\\002up'; [ \"$(head -c 4 | tail -c 1)\" = x ] && exit 5";
    let (command, framing) = (shell(script), Framing::Frames);
    let setup = Setup { command, framing, timeout: None, typed: Some(typed) };
    let ended = run(setup, &Context::for_tests(), |_| Ok(ControlFlow::Continue(()))).unwrap();
    assert_eq!(ended.code(), Some(2), "{ended:?}");
}

/// A machine on which a VM has started, which then does as `script` says.
fn running(script: &str) -> Command {
    let (name, why) = (String::new(), String::new());
    let (policy, memory, overhead) = (proto::Policy::Eli, 0, 0);
    let started = Record::Started { vm: 0, name, policy, why, memory, overhead, now: 0 };
    let octal = |record: &Record| -> String {
        let bytes = proto::encode(record);
        let frame = [&[1, 0x7F, bytes.len() as u8], &bytes[..]].concat();
        frame.iter().map(|byte| format!("\\\\{byte:03o}")).collect()
    };
    let counters = ledger::Counters { entries: 42, ..Default::default() };
    let live = Record::Live { vm: 0, vcpu: 0, core: 1, counters, now: 1, left: 0 };
    shell(&format!("printf {}; live={}; {script}", octal(&started), octal(&live)))
}

/// What guests did is what a person who breaks a run off came for.
#[test]
fn a_run_that_is_broken_off_hands_on_the_last_counters() {
    for quits in [true, false] {
        let (_send, typed) = typed();
        let commands = typed.commands.clone();
        let command = running("head -c 4 >/dev/null; printf $live; exec sleep 60");
        let timeout = (!quits).then_some(Duration::from_millis(100));
        let setup = Setup { command, framing: Framing::Frames, timeout, typed: Some(typed) };
        let mut entries = 0;
        let ended = run(setup, &Context::for_tests(), |seen| {
            match seen {
                Seen::Said(Piece::Record(Record::Started { .. })) if quits => commands.quit(),
                Seen::Said(Piece::Record(Record::Live { counters, .. })) => {
                    entries = counters.entries;
                }
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        });
        assert_eq!(ended.unwrap(), if quits { Ended::Stopped } else { Ended::TimedOut });
        assert_eq!(entries, 42);
    }
}

#[test]
fn who_asks_twice_to_leave_does_not_wait_for_counters() {
    let (_send, typed) = typed();
    let commands = typed.commands.clone();
    let command = running("exec sleep 60");
    let setup = Setup { command, framing: Framing::Frames, timeout: None, typed: Some(typed) };
    let mut left = None;
    let ended = run(setup, &Context::for_tests(), |seen| {
        if let (Seen::Said(Piece::Record(_)), None) = (seen, left) {
            (0..2).for_each(|_| commands.quit());
            left = Some(Instant::now());
        }
        Ok(ControlFlow::Continue(()))
    });
    assert_eq!(ended.unwrap(), Ended::Stopped);
    assert!(left.unwrap().elapsed() < FAREWELL);
}

#[test]
fn breaking_off_ends_the_run() {
    let setup = Setup {
        command: shell("echo x; exec sleep 60"),
        framing: Framing::Frames,
        timeout: None,
        typed: None,
    };
    let ended = run(setup, &Context::for_tests(), |seen| match seen {
        Seen::Said(Piece::Log(line)) if line == "x" => Ok(ControlFlow::Break(())),
        // A busy machine starts the shell late.
        Seen::Idle => Ok(ControlFlow::Continue(())),
        seen => panic!("{seen:?}"),
    });
    assert_eq!(ended.unwrap(), Ended::Stopped);
}

/// As from a big file, into a machine that never reads its serial port.
#[test]
fn input_that_nobody_reads_is_held_up() {
    const CHUNK: usize = 16 << 10;
    let (send, typed) = typed();
    let typing = thread::spawn(move || {
        let count = (0..).take_while(|_| send.send(vec![0; CHUNK]).is_ok()).count();
        count * CHUNK
    });
    let timeout = Some(Duration::from_secs(2));
    assert_eq!(run_raw("exec sleep 60", timeout, Some(typed)).0, Ended::TimedOut);
    // A pipe holds as much again.
    let taken = typing.join().unwrap();
    assert!(taken <= 4 * MAX_QUEUED, "{taken} bytes were taken");
}

/// As when the terminal is stopped, by a machine that writes without end.
#[test]
fn output_that_nobody_sees_is_held_up() {
    let directory = tempfile::tempdir().unwrap();
    let written = directory.path().join("written");
    let script = format!("head -c 100000000 /dev/zero; : >{}", written.display());
    let setup =
        Setup { command: shell(&script), framing: Framing::Raw, timeout: None, typed: None };
    let ended = run(setup, &Context::for_tests(), |_| {
        // In this time it would be through with all of it.
        thread::sleep(Duration::from_secs(1));
        assert!(!fs::exists(&written).unwrap(), "all of it was taken");
        Ok(ControlFlow::Break(()))
    });
    assert_eq!(ended.unwrap(), Ended::Stopped);
}
