//! Front ends that would have the daemon wait, or work without end, for nothing.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::{FrontEnd, IN, OUT};
use front_end::wire::Wire;
use std::os::unix::net::UnixStream;

const TWO: &str = "
[disk.a]
ram = \"1M\"
socket = \"a\"
[disk.b]
ram = \"1M\"
socket = \"b\"
front_ends = 64
[host]
control = \"control\"
";

fn disk(daemon: &Daemon, name: &str) -> FrontEnd {
    let mut front = FrontEnd::new(Wire::connect(&daemon.path(name)));
    front.set_up(0, false);
    front
}

fn works(front: &mut FrontEnd) {
    front.offer(OUT, 1, &[0xa5; 512]);
    assert_eq!(front.answer(), 0);
    front.offer(IN, 1, &[0; 512]);
    assert_eq!((front.answer(), front.data()), (0, [0xa5; 512]));
}

/// It shares the file, its flags and its counter: nothing keeps it from that.
#[test]
fn an_eventfd_that_is_full_and_blocks_ends_one_connection() {
    let daemon = Daemon::run(TWO);
    let mut good = disk(&daemon, "a");
    for _ in 0..3 {
        let mut hostile = disk(&daemon, "b");
        works(&mut hostile);
        hostile.fill_call();
        hostile.offer(OUT, 1, &[1; 512]);
        works(&mut good);
        hostile.expect_end();
        works(&mut good);
    }
    daemon.wait_until_said("its eventfd for calls is full and made the daemon wait", 3);
    works(&mut disk(&daemon, "b"));
    // Nothing ticks in one that has nothing to do.
    daemon.wait_until_asleep();
}

/// Who waits for one more file waits, and the daemon sleeps meanwhile.
#[test]
fn too_many_files_are_said_once_and_nothing_spins() {
    let daemon = Daemon::limited(TWO, 48);
    let mut good = disk(&daemon, "a");
    let others: Vec<_> = (0..40).map(|_| UnixStream::connect(daemon.path("b"))).collect();
    while daemon.said("nobody comes in at") == 0 {
        works(&mut good);
    }
    daemon.wait_until_asleep();
    works(&mut good);
    drop(others);
    works(&mut disk(&daemon, "b"));
    assert_eq!(daemon.said("nobody comes in at"), 1);
    assert_eq!(daemon.said("Too many open files"), 1);
}
