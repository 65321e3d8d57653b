//! Queues that break, resets, and completions that come too late.
mod guest;
mod storage;

use blk::{Broken, PIECE_DATA};
use guest::{Guest, OK, SECTORS, both, header, parameters};
use storage::Storage;

/// What QEMU stops the device for: nobody can be told how such a request ended.
#[test]
fn a_chain_without_room_for_the_status_breaks_the_queue() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 4);
        let read = guest.read(0, 512);
        guest.serve(&mut disk).unwrap();
        guest.send(&[&header(4, 0)], &[]);
        assert_eq!(Err(Broken::NoStatus), guest.serve(&mut disk));
        guest.read(0, 512);
        assert_eq!(Err(Broken::NoStatus), guest.serve(&mut disk), "it stays so");
        // What was under way isn't answered any more: the ring isn't to be touched.
        disk.end_all();
        assert_eq!(0, guest.server.collect(&mut disk, 10));
        guest.server.queue().unwrap().publish();
        assert_eq!(None, guest.used());
        // A reset heals.
        guest.reset();
        let _ = read;
        let read = guest.read(0, 512);
        disk.room = 0;
        assert_eq!((OK, 513), guest.run(&mut disk, read));
    });
}

/// Late completions of a queue that was reset reach neither its memory nor the queue after it.
#[test]
fn a_reset_forgets_what_is_in_flight() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 8);
        let old = [guest.read(0, 512), guest.read(1, 512), guest.read(0, 4 * PIECE_DATA)];
        for _ in 0..4 {
            guest.serve(&mut disk).unwrap();
        }
        let before = old.map(|request| guest.status(request));
        guest.reset();
        assert_eq!((0, 4), (guest.server.in_flight(), guest.server.outstanding()));
        // The same places and heads again, in the queue after it.
        let new = [guest.read(2, 512), guest.read(3, 512)];
        for _ in 0..2 {
            guest.serve(&mut disk).unwrap();
        }
        for _ in 0..4 {
            disk.end(0); // The last one takes its place, so these are of both queues.
        }
        let answered = guest.server.collect(&mut disk, 10);
        guest.server.queue().unwrap().publish();
        for _ in 0..answered {
            assert!(new.contains(&guest.used().unwrap().0));
        }
        assert_eq!(None, guest.used());
        disk.end_all();
        assert_eq!(2, answered + guest.server.collect(&mut disk, 10));
        assert_eq!(before, old.map(|request| guest.status(request)));
        assert_eq!((4, 0), (guest.server.statistics().stale, guest.server.outstanding()));
    });
}

#[test]
fn completions_without_a_queue_are_stale() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 8);
        guest.read(0, 512);
        guest.serve(&mut disk).unwrap();
        assert!(guest.server.stop().is_some());
        assert_eq!(1, guest.server.outstanding());
        disk.end_all();
        let completion = disk.done[0];
        assert!(!guest.server.finish(completion));
        assert!(!guest.server.finish(completion), "twice does no harm");
        assert_eq!(0, guest.server.outstanding());
        assert_eq!(2, guest.server.statistics().stale);
        assert_eq!(Ok(blk::Outcome::default()), guest.serve(&mut disk));
    });
}

#[test]
fn another_servers_completion_is_nobodys() {
    let mut guest = Guest::new(parameters(), false);
    let mut disk = Storage::new(SECTORS, 8);
    guest.read(0, 512);
    guest.serve(&mut disk).unwrap();
    disk.end_all();
    let mut completion = disk.done[0];
    completion.token.server ^= 1;
    assert!(!guest.server.finish(completion));
    assert_eq!(1, guest.server.in_flight());
}
