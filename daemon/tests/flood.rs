//! Thousands of hostile connections leave nothing behind.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::FrontEnd;
use front_end::wire::{Wire, words32, words64};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsFd as _;
use rustix::fs::{MemfdFlags, memfd_create};
use std::os::unix::net::UnixStream;

const LEN: u64 = 1 << 20;
/// Connections of each kind.
const TIMES: u32 = 100;
/// Looks, after which something is left behind.
const LOOKS: u32 = 10_000;

fn files(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.id())).expect("it runs").count()
}

/// Lines of what is mapped.
fn mapped(daemon: &Daemon) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", daemon.id()));
    maps.expect("it runs").lines().count()
}

/// A front end that has said what protocol it speaks.
fn begun(daemon: &Daemon) -> Wire {
    let mut wire = Wire::connect(&daemon.path("b"));
    let offered = wire.ask(15, &[]);
    wire.send(16, 1, &offered, &[]);
    wire
}

/// Says the same wrong things each time.
fn plays(daemon: &Daemon, kind: u32) {
    let memory = std::fs::File::from(memfd_create("m", MemfdFlags::CLOEXEC).expect("a memfd"));
    memory.set_len(LEN).expect("it grows");
    let event = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    let (other, _) = UnixStream::pair().expect("two sockets");
    let region = |guest: u64, len: u64, offset: u64| words64([guest, len, guest, offset]);
    let table = [words32([1, 0]), region(0, LEN, 0)].concat();
    let mut wire = begun(daemon);
    match kind {
        // Half a message, with descriptors.
        0 => wire.send(5, 1, &table[..9], &[memory.as_fd(); 8]),
        // Too many, of another kind, and too few.
        1 => wire.send(5, 1, &table, &[other.as_fd(); 9]),
        2 => wire.send(5, 1, &table, &[other.as_fd()]),
        3 => wire.send(5, 1, &table, &[]),
        // Memory that is longer than its file, or doesn't begin at a page, or nowhere.
        4 => wire.send(5, 1, &[words32([1, 0]), region(0, 2 * LEN, 0)].concat(), &[memory.as_fd()]),
        5 => wire.send(5, 1, &[words32([1, 0]), region(0, 4096, 1)].concat(), &[memory.as_fd()]),
        6 => {
            let far = region(u64::MAX - 4095, 4096, 0);
            wire.send(5, 1, &[words32([1, 0]), far].concat(), &[memory.as_fd()]);
        }
        // Twice the same region; one that isn't there is removed.
        7 => {
            let slot = [words64([0]), region(0, LEN, 0)].concat();
            wire.tell(37, &slot, &[memory.as_fd()]);
            wire.send(37, 1, &slot, &[memory.as_fd()]);
        }
        8 => {
            let slot = [words64([0]), region(0, LEN, 0)].concat();
            wire.tell(37, &slot, &[memory.as_fd()]);
            wire.tell(38, &slot, &[memory.as_fd()]);
            wire.send(38, 1, &slot, &[memory.as_fd()]);
        }
        // Records and a log, without an end; then a table and what ends it.
        9 => {
            for _ in 0..3 {
                let records = [words64([4096, 0]), vec![1, 0, 8, 0, 0, 0, 0, 0]].concat();
                wire.tell(32, &records, &[memory.as_fd()]);
                wire.send(6, 1, &words64([4096, 0]), &[memory.as_fd()]);
                assert_eq!(wire.receive().0.len(), 8);
                wire.tell(7, &[], &[event.as_fd()]);
                wire.tell(14, &words64([0]), &[event.as_fd()]);
                wire.tell(12, &words64([0]), &[event.as_fd()]);
                wire.tell(13, &words64([0]), &[event.as_fd()]);
                wire.tell(5, &table, &[memory.as_fd()]);
            }
            wire.send(999, 1, &[], &[]);
        }
        // New records are asked for, and never used.
        _ => {
            wire.send(31, 1, &[&[0; 16][..], &[1, 0, 8, 0, 0, 0, 0, 0]].concat(), &[]);
            assert!(wire.receive().1.is_some());
            wire.send(34, 1, &[1; 600], &[]);
        }
    }
    if kind > 0 {
        wire.expect_end();
    }
}

#[test]
fn hostile_connections_leave_nothing_open() {
    let daemon = Daemon::two(1);
    let mut good = FrontEnd::at(&daemon, "a");
    // What is kept for the next ones is there after the first ones.
    (0..=10).for_each(|kind| plays(&daemon, kind));
    FrontEnd::at(&daemon, "b").works();
    // It is let in when the one before is gone.
    let last = begun(&daemon);
    let before = (files(&daemon), mapped(&daemon));
    drop(last);
    for _ in 0..TIMES {
        (0..=10).for_each(|kind| plays(&daemon, kind));
    }
    good.works();
    FrontEnd::at(&daemon, "b").works();
    let _last = begun(&daemon);
    // Another thread closes some of them, maybe still at the first look, which sees more then;
    // what each connection left behind would be hundreds.
    let (files_then, mapped_then) = before;
    let is_left = |_| files(&daemon) <= files_then && mapped(&daemon) <= mapped_then;
    let now = || (files(&daemon), mapped(&daemon));
    assert!((0..LOOKS).any(is_left), "(files, mapped): {before:?} before, {:?} now", now());
}
