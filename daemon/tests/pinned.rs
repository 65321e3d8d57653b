//! Disks whose guests' memory is locked: a ring of io_uring holds it while its front end is there.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::{FLUSH, FrontEnd, IN, OUT};

const TABLE: &str = "[disk.d]\nfile = \"FOLDER/disk\"\nsocket = \"socket\"\npinned = true\n\
                     [host]\ncontrol = \"control\"\n";

/// KiB of memory that the program holds.
fn held(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("it is said");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

fn wait_until_held(daemon: &Daemon, is_right: impl Fn(u64) -> bool) {
    let began = std::time::Instant::now();
    while !is_right(held(daemon)) {
        assert!(began.elapsed().as_secs() < 20, "it holds {} KiB", held(daemon));
        std::thread::yield_now();
    }
}

fn works(front: &mut FrontEnd, mark: u8) {
    for (kind, data) in [(OUT, [mark; 512]), (FLUSH, [0; 512]), (IN, [0; 512])] {
        front.offer(kind, 8, &data);
        assert_eq!(front.answer(), 0);
    }
    assert_eq!(front.data(), [mark; 512]);
}

/// From the command line, where nothing comes later, and with a file.
#[test]
fn memory_is_held_as_long_as_its_front_end_is_there() {
    for daemon in [Daemon::file_with(&["--pinned"]), Daemon::run(TABLE)] {
        assert_eq!(held(&daemon), 0);
        for mark in 1..4 {
            let mut front = FrontEnd::connect(&daemon);
            front.set_up(0, false);
            works(&mut front, mark);
            assert!(held(&daemon) > 0);
            drop(front);
            wait_until_held(&daemon, |kib| kib == 0);
        }
        assert_eq!(daemon.said("isn't pinned"), 0);
    }
    let daemon = Daemon::file();
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, false);
    works(&mut front, 1);
    assert_eq!(held(&daemon), 0, "nobody asked for it");
}

#[test]
fn the_next_program_holds_it_too() {
    let mut daemon = Daemon::run(TABLE);
    let mut front = FrontEnd::connect(&daemon);
    front.set_up(0, true);
    works(&mut front, 1);
    daemon.upgrade();
    works(&mut front, 2);
    assert!(held(&daemon) > 0);
    daemon.kill();
    daemon.start_again();
    front.connect_again(&daemon);
    front.set_up(0, true);
    works(&mut front, 3);
    assert!(held(&daemon) > 0);
}

/// One sentence, and no request fails. The ring's own memory counts, too, and fits.
#[test]
fn memory_that_may_not_be_locked_is_served_as_without() {
    let daemon = Daemon::locking(256, &["--pinned"]);
    for mark in 1..4 {
        let mut front = FrontEnd::connect(&daemon);
        front.set_up(0, false);
        works(&mut front, mark);
        assert_eq!(held(&daemon), 0);
    }
    daemon.wait_until_said("isn't pinned, and is served as without that", 1);
    daemon.wait_until_said("and this program may lock 256K: give it more by LimitMEMLOCK=", 1);
}
