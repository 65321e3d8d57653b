//! Memory that front ends leave behind: who serves doesn't take the time that it takes to free it.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::FrontEnd;
use front_end::wire::{Wire, words32, words64};
use rustix::fd::AsFd as _;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt as _;

const BYTES: u64 = 512 << 20;
const PIECE: usize = 1 << 20;

/// Memory, all of which is there.
fn filled() -> File {
    let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd"));
    for at in (0..BYTES).step_by(PIECE) {
        memory.write_all_at(&[1; PIECE], at).expect("there is room");
    }
    memory
}

/// The nanoseconds on a core that this task has had.
fn had(task: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{task}/schedstat")).expect("it runs");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn memory_that_is_left_behind_is_freed_by_another_thread() {
    let daemon = Daemon::two(1);
    let serving = format!("{0}/task/{0}", daemon.id());
    let mut good = FrontEnd::at(&daemon, "a");
    let memory = filled();
    let mut left = Wire::connect(&daemon.path("b"));
    let table = [words32([1, 0]), words64([0, BYTES, 0, 0])].concat();
    left.send(5, 1, &table, &[memory.as_fd()]);
    assert_eq!(left.ask(1, &[]).len(), 8, "it has the memory");
    drop(memory);
    let before = had(&serving);
    drop(left);
    // It is let in when the one before is gone.
    FrontEnd::at(&daemon, "b").works();
    good.works();
    let took = had(&serving) - before;
    // As much as that, freed here.
    let memory = filled();
    let before = had("thread-self");
    drop(memory);
    let here = had("thread-self") - before;
    assert!(took < here / 2, "{took} ns there, and {here} ns to free it");
}
