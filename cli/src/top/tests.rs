//! Run and watcher together, through the socket.

use super::{state::VcpuState, *};
use crate::session::Commands;
use ledger::Counters;
use proto::{End, Policy, Record};
use std::{
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::Path,
    sync::Arc,
    thread,
};
use tempfile::TempDir;

/// Longer than anything here takes on the slowest machine.
const LONG: Duration = Duration::from_secs(60);

fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    directory
}

/// A run of the VMs "a" and "b", and what it is asked.
fn offer(directory: &Path, pid: u32) -> (Offer, Arc<Commands>) {
    let commands = Arc::new(Commands::default());
    let names = ["a", "b"].map(str::to_owned);
    (Offer::open(directory, pid, names, commands.clone()).unwrap(), commands)
}

/// Whether a question comes within a time.
fn asked(commands: &Commands, within: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < within {
        if commands.take_question() {
            return true;
        }
        thread::yield_now();
    }
    false
}

fn started() -> Record {
    let (name, policy, why) = ("a".to_owned(), Policy::Direct, String::new());
    Record::Started { vm: 0, name, policy, why, memory: 0, overhead: 0, now: 0 }
}

fn live(now: u64) -> Record {
    let counters = Counters { entries: now, ..Counters::default() };
    Record::Live { vm: 0, vcpu: 0, core: 1, counters, now, left: 0 }
}

fn state(heard: Heard) -> Snapshot {
    match heard {
        Heard::State(snapshot) => snapshot,
        Heard::Ended(how) => panic!("the run ended: {how}"),
    }
}

#[test]
fn the_hypervisor_is_asked_once_for_each_question_and_each_is_answered() {
    let d = directory();
    let (offer, commands) = offer(d.path(), 1);
    offer.see(&started());
    assert!(!commands.take_question(), "nobody watches");
    let hear = watch::find(d.path(), None).unwrap().watch(Duration::from_millis(1));
    for now in 1..=3 {
        assert!(asked(&commands, LONG));
        assert!(hear.try_recv().is_err(), "no answer before the hypervisor's");
        offer.see(&live(now));
        let heard = state(hear.recv_timeout(LONG).unwrap());
        let counters = Counters { entries: now, ..Counters::default() };
        assert_eq!(heard.vms[0].vcpus, [VcpuState { core: 1, now, counters }]);
    }
}

#[test]
fn before_the_hypervisor_is_up_the_run_answers_itself() {
    let d = directory();
    let (_offer, commands) = offer(d.path(), 1);
    let hear = watch::find(d.path(), Some(1)).unwrap().watch(Duration::from_millis(1));
    let heard = state(hear.recv_timeout(LONG).unwrap());
    assert!(heard.vms.iter().all(|vm| vm.state == "starting"));
    assert!(!commands.take_question());
}

#[test]
fn the_end_is_heard_of_however_it_comes() {
    let d = directory();
    for waiting in [true, false] {
        // While a question waits for its answer, and long before the next question.
        let (told, _asked) = offer(d.path(), 1);
        if waiting {
            told.see(&started());
        }
        let hear = watch::find(d.path(), None).unwrap().watch(LONG);
        if !waiting {
            state(hear.recv_timeout(LONG).unwrap());
        }
        told.see(&Record::Ended { vm: 0, end: End::PowerOff });
        told.end("QEMU was ended by signal 9".to_owned());
        let heard = hear.recv_timeout(LONG / 2).unwrap();
        assert_eq!(heard, Heard::Ended("QEMU was ended by signal 9".to_owned()));
    }
    let (untold, _asked) = offer(d.path(), 1);
    let hear = watch::find(d.path(), None).unwrap().watch(LONG);
    state(hear.recv_timeout(LONG).unwrap());
    drop(untold);
    assert!(matches!(hear.recv_timeout(LONG / 2), Ok(Heard::Ended(_))));
}

#[test]
fn which_run_is_meant_must_be_clear() {
    let d = directory();
    let complaint = |wanted| watch::find(d.path(), wanted).unwrap_err().to_string();
    assert!(complaint(None).contains("no `exitless run`"));
    let (_one, _) = offer(d.path(), 1);
    let (_two, _) = offer(d.path(), 2);
    let text = complaint(None);
    assert!(text.contains("1 (a, b), 2 (a, b)") && text.contains("--session"), "{text}");
    assert_eq!(watch::find(d.path(), Some(2)).unwrap().pid, 2);
    assert!(complaint(Some(3)).contains("process 3"));
}

#[test]
fn a_run_that_went_without_tidying_up_is_none() {
    let d = directory();
    drop(UnixListener::bind(d.path().join("5.sock")).unwrap());
    let text = watch::find(d.path(), None).unwrap_err().to_string();
    assert!(text.contains("no `exitless run`"), "{text}");
}

#[test]
fn another_version_is_told_from_this_one() {
    let d = directory();
    let listener = UnixListener::bind(d.path().join("5.sock")).unwrap();
    let other = std::thread::spawn(move || {
        let hello = br#"{"Hello":{"protocol":999,"vms":[]}}"#;
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&[&hello[..], b"\n"].concat()).unwrap();
        stream
    });
    let text = watch::find(d.path(), None).unwrap_err().to_string();
    assert!(text.contains("another version"), "{text}");
    other.join().unwrap();
}

#[test]
fn a_watcher_that_reads_nothing_does_not_stop_the_run() {
    let d = directory();
    let (offer, commands) = offer(d.path(), 1);
    offer.see(&started());
    let mut stuck = std::os::unix::net::UnixStream::connect(d.path().join("1.sock")).unwrap();
    // More answers than a socket holds; the watcher is dropped when it's full.
    for now in 0.. {
        if stuck.write_all(b"\n").is_err() {
            break;
        }
        if !asked(&commands, Duration::from_secs(1)) {
            break;
        }
        offer.see(&live(now));
        assert!(now < 1_000_000, "it is never dropped");
    }
    let hear = watch::find(d.path(), None).unwrap().watch(LONG);
    assert!(asked(&commands, LONG));
    offer.see(&live(7));
    assert_eq!(state(hear.recv_timeout(LONG).unwrap()).vms[0].vcpus[0].now, 7);
}

#[test]
fn intervals_are_sane() {
    assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
    for wrong in ["0", "-1", "1e9", "NaN", "inf", "x"] {
        assert!(interval(wrong).is_err(), "{wrong}");
    }
}
