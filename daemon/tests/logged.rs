//! The log of changed pages: what the daemon changed in the guest's memory has its bit, whenever
//! the log was asked for, and nothing beside has one.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::{FrontEnd, IN, OUT, RING};
use front_end::wire::{words32, words64};
use rustix::fd::AsFd as _;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

const PAGE: u64 = 4096;
const LOG_ALL: u64 = 1 << 26;
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 9;
/// Bytes of the log: a bit for each page of the guest's 1 MiB.
const BYTES: u64 = RING.len / PAGE / 8;

const NONE: [u64; 0] = [];

struct Log(File);

impl Log {
    fn new(bytes: u64) -> Log {
        let file = File::from(memfd_create("log", MemfdFlags::CLOEXEC).expect("a memfd"));
        file.set_len(bytes).expect("it grows");
        Log(file)
    }

    fn hand_over(&self, front: &mut FrontEnd, bytes: u64) {
        front.wire.send(6, 1, &words64([bytes, 0]), &[self.0.as_fd()]);
        assert_eq!(front.wire.receive().0.len(), 8);
    }

    /// Pages that are marked, which aren't from then on.
    fn take(&self) -> Vec<u64> {
        let mut bytes = vec![0; BYTES as usize];
        self.0.read_exact_at(&mut bytes, 0).expect("it is there");
        self.0.write_all_at(&vec![0; BYTES as usize], 0).expect("it is there");
        (0..BYTES * 8).filter(|page| bytes[*page as usize / 8] & 1 << (page % 8) != 0).collect()
    }
}

/// As QEMU does when a migration begins, or has ended: the features, then each ring.
fn log(front: &mut FrontEnd, on: bool) {
    let features = if on { FEATURES | LOG_ALL } else { FEATURES };
    front.wire.tell(2, &features.to_le_bytes(), &[]);
    let places = [RING.descriptors, RING.used, RING.available].map(|at| RING.user + at);
    let said = [words32([0, on.into()]), words64(places), words64([RING.used])].concat();
    front.wire.tell(9, &said, &[]);
}

fn memory(front: &FrontEnd) -> Vec<u8> {
    let mut bytes = vec![0; RING.len as usize];
    front.memory().read_exact_at(&mut bytes, 0).expect("it is there");
    bytes
}

/// Pages that differ.
fn changed(before: &[u8], after: &[u8]) -> Vec<u64> {
    let pages = before.chunks(PAGE as usize).zip(after.chunks(PAGE as usize));
    pages.zip(0..).filter(|((a, b), _)| a != b).map(|(_, page)| page).collect()
}

/// A request, and the pages that the daemon changed for it: it is stopped while the request is
/// offered, so that what is there before it does anything can be told.
fn changes(daemon: &Daemon, front: &mut FrontEnd, kind: u32, data: &[u8; 512]) -> Vec<u64> {
    daemon.wait_until_asleep();
    daemon.signal(Signal::STOP);
    front.offer(kind, 3, data);
    let before = memory(front);
    daemon.signal(Signal::CONT);
    assert_eq!(front.answer(), 0);
    // It is done with all that follows an answer when a message is heard after it.
    front.wire.ask(1, &[]);
    changed(&before, &memory(front))
}

#[test]
fn what_was_changed_is_marked() {
    for daemon in [Daemon::ram(), Daemon::file()] {
        let mut front = FrontEnd::connect(&daemon);
        front.set_up(0, false);
        front.offer(OUT, 3, &[7; 512]);
        assert_eq!(front.answer(), 0);
        let bits = Log::new(BYTES);
        bits.hand_over(&mut front, BYTES);
        assert_eq!(bits.take(), NONE, "nothing is logged yet");
        let (used, data, status) = (RING.used / PAGE, 4, 5);
        for round in 1..20_u8 {
            log(&mut front, true);
            bits.take();
            let written = changes(&daemon, &mut front, OUT, &[round; 512]);
            assert_eq!(written, [used, status]);
            assert_eq!(bits.take(), written, "round {round}");
            let read = changes(&daemon, &mut front, IN, &[0; 512]);
            assert_eq!(read, [used, data, status]);
            assert_eq!(bits.take(), read, "round {round}");
            log(&mut front, false);
            bits.take();
            assert_eq!(changes(&daemon, &mut front, IN, &[0; 512]), [used, data, status]);
            assert_eq!(bits.take(), NONE, "it isn't logged any more");
        }
    }
}

/// Another log while rings run, and another program.
#[test]
fn the_log_is_changed_and_goes_along() {
    let mut daemon = Daemon::controlled(&["--ram", "1M"]);
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    let (first, second) = (Log::new(BYTES), Log::new(BYTES));
    first.hand_over(&mut front, BYTES);
    log(&mut front, true);
    second.hand_over(&mut front, BYTES);
    first.take();
    for _ in 0..4 {
        second.take();
        front.offer(IN, 3, &[1; 512]);
        assert_eq!(front.answer(), 0);
        // The ring's bit is set after the answer is shown: a stop waits for it.
        daemon.upgrade();
        assert_eq!(second.take(), [RING.used / PAGE, 4, 5]);
    }
    assert_eq!(first.take(), NONE);
}

#[test]
fn logs_that_cant_be_end_the_connection() {
    let daemon = Daemon::ram();
    let mut too_short = FrontEnd::connect(&daemon);
    too_short.set_up(0, false);
    let bits = Log::new(BYTES);
    bits.hand_over(&mut too_short, BYTES - 1);
    too_short.wire.send(2, 1, &(FEATURES | LOG_ALL).to_le_bytes(), &[]);
    too_short.expect_end();
    // Longer than its file; without end; not at a page; no file at all.
    for words in [[2 * PAGE, 0], [u64::MAX, 0], [BYTES, 1], [BYTES, u64::MAX], [0, 0]] {
        let mut front = FrontEnd::connect(&daemon);
        front.set_up(0, false);
        front.wire.send(6, 1, &words64(words), &[bits.0.as_fd()]);
        front.expect_end();
    }
    let mut none = FrontEnd::connect(&daemon);
    none.set_up(0, false);
    none.wire.send(6, 1, &words64([BYTES, 0]), &[]);
    none.expect_end();
    // One that shrinks while it is in use.
    let mut shrinks = FrontEnd::connect(&daemon);
    shrinks.set_up(0, false);
    bits.hand_over(&mut shrinks, BYTES);
    log(&mut shrinks, true);
    bits.0.set_len(0).expect("it shrinks");
    shrinks.kick();
    shrinks.offer(IN, 3, &[1; 512]);
    shrinks.expect_end();
}
