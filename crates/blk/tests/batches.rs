//! Several turns in one call.
mod guest;
mod storage;

use blk::backend::Null;
use blk::{Broken, Budget, LEAST_CHARGE, Outcome, PIECE_DATA};
use guest::{IOERR, OK, SECTORS, both, header};
use storage::Storage;

const ALL: Budget = Budget { requests: u32::MAX, charge: u64::MAX };

#[test]
fn a_budget_is_of_requests_and_of_charges() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 0);
        for sector in 0..10 {
            guest.read(sector, 512);
        }
        let three = Budget { requests: 3, ..ALL };
        let (done, ended) = guest.serve_some(&mut disk, three);
        assert_eq!(Ok(()), ended);
        let bytes = 3 * 512;
        let charge = 3 * LEAST_CHARGE;
        let wanted = Outcome { bytes, charge, asked: 3, completed: 3, more: true, full: false };
        assert_eq!(wanted, done);
        // No other one is begun once so much was charged.
        let (done, _) = guest.serve_some(&mut disk, Budget { charge: LEAST_CHARGE + 1, ..ALL });
        assert_eq!((2, true), (done.asked, done.more));
        let (done, _) = guest.serve_some(&mut disk, Budget { charge: 0, requests: 0 });
        assert_eq!((1, true), (done.asked, done.more), "one at least");
        let (done, _) = guest.serve_some(&mut disk, ALL);
        assert_eq!((4, false), (done.completed, done.more));
    });
}

/// What isn't laid out as most requests are is served among those that are, and answered alike.
#[test]
fn all_kinds_of_requests_are_served_together() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 0);
        let cut = header(0, 8);
        let mut wanted = vec![
            (guest.read(0, 512), (OK, 513)),
            (guest.send(&[&cut[..7], &cut[7..]], &[512, 1]), (OK, 513)),
            (guest.send(&[&header(4, 0)], &[1]), (OK, 1)),
            // Longer than a piece; beyond the end; not whole sectors; a header that is too long.
            (guest.read(0, 2 * PIECE_DATA), (OK, 2 * PIECE_DATA + 1)),
            (guest.read(SECTORS, 512), (IOERR, 0)),
            (guest.send(&[&header(0, 0)], &[511, 1]), (IOERR, 0)),
            (guest.write(3, &[7; 512]), (OK, 1)),
            (guest.send(&[&[&header(1, 5)[..], &[9; 512]].concat()], &[1]), (OK, 1)),
            (guest.send(&[&header(0, 2), &[1]], &[512, 1]), (OK, 513)),
            // A read that may not write, a write that may.
            (guest.send(&[&header(0, 2), &[0; 512]], &[1]), (OK, 1)),
            (guest.send(&[&header(1, 2)], &[512, 1]), (OK, 0)),
            (guest.read(1, 512), (OK, 513)),
        ];
        let (done, ended) = guest.serve_some(&mut disk, ALL);
        assert_eq!(Ok(()), ended);
        assert_eq!(wanted.len() as u32, done.completed);
        assert_eq!(done.asked, done.completed);
        guest.server.queue().unwrap().publish();
        while let Some((sent, written)) = guest.used() {
            let at = wanted.iter().position(|(other, _)| *other == sent).unwrap();
            let (_, (status, len)) = wanted.remove(at);
            assert_eq!((status, len), (guest.status(sent), written), "{} left", wanted.len());
        }
        assert!(wanted.is_empty());
    });
}

/// The last of several breaks the queue: those before it are answered, and counted.
#[test]
fn what_was_done_before_a_queue_broke_is_told() {
    both(|mut guest| {
        for sector in 0..3 {
            guest.read(sector, 512);
        }
        guest.send(&[&header(0, 0)], &[]);
        let (done, ended) = guest.serve_some(&mut Null, ALL);
        assert_eq!(Err(Broken::NoStatus), ended);
        assert_eq!((3, 3, 3 * 512), (done.asked, done.completed, done.bytes));
        guest.server.queue().unwrap().publish();
        assert_eq!(3, (0..4).filter_map(|_| guest.used()).count());
        let (done, ended) = guest.serve_some(&mut Null, ALL);
        assert_eq!((Outcome::default(), Err(Broken::NoStatus)), (done, ended));
    });
}

/// A back end that has no room for the next one, and no places for more.
#[test]
fn a_back_end_that_is_full_ends_it() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 2);
        for sector in 0..4 {
            guest.read(sector, 512);
        }
        let (done, _) = guest.serve_some(&mut disk, ALL);
        assert_eq!((2, 0, true, false), (done.asked, done.completed, done.full, done.more));
        assert_eq!(1, disk.refused, "it is asked once");
        assert!(guest.server.is_open());
        disk.end_all();
        assert_eq!(2, guest.server.collect(&mut disk, 10));
        let (done, _) = guest.serve_some(&mut disk, ALL);
        assert_eq!((2, false), (done.asked, done.full));
        disk.end_all();
        assert_eq!(2, guest.server.collect(&mut disk, 10));
        assert_eq!((0, 0), (guest.server.in_flight(), guest.server.outstanding()));
    });
}
