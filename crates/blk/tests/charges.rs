//! What requests cost, as the scheduler counts it.
mod guest;
mod storage;

use blk::backend::Ram;
use blk::{DESCRIPTOR_CHARGE, LEAST_CHARGE, MARK_CHARGE, PIECE_DATA};
use guest::{Guest, SECTORS, both, header};
use storage::Storage;

/// A guest that cuts its requests small, or has empty buffers among them, gains nothing by it.
#[test]
fn each_descriptor_is_charged() {
    both(|mut guest| {
        let mut disk = Ram::new(guest.window.span(8 << 20, SECTORS * 512).unwrap());
        let mut charge = |writable: &[u32]| {
            guest.send(&[&header(0, 0)], writable);
            let charge = guest.serve(&mut disk).unwrap().charge;
            guest.server.queue().unwrap().publish();
            charge
        };
        assert_eq!(LEAST_CHARGE, charge(&[512, 1]));
        let cut: Vec<u32> = [8; 64 - 4].into_iter().chain([512 - 60 * 8, 1]).collect();
        assert_eq!(63 * DESCRIPTOR_CHARGE, charge(&cut));
        assert_eq!(PIECE_DATA as u64, charge(&[PIECE_DATA, 1]), "of bytes it is more");
    });
}

/// What is marked as changed is all that the disk may write, though it writes a byte.
#[test]
fn each_page_that_is_marked_is_charged() {
    const BYTES: u32 = 4 << 20;
    const MARKED: u64 = BYTES as u64 / 4096 * MARK_CHARGE;
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 1);
        let mut charge = |guest: &mut Guest, kind, writable: &[u32]| {
            guest.send(&[&header(kind, 0)], writable);
            let outcome = guest.serve(&mut disk).unwrap();
            if outcome.full {
                disk.end_all();
                guest.server.collect(&mut disk, 1);
                return guest.serve(&mut disk).unwrap().charge;
            }
            outcome.charge
        };
        let before = [99, 4, 4].map(|kind| charge(&mut guest, kind, &[BYTES, 1]));
        assert_eq!([LEAST_CHARGE; 3], before);
        guest.log_changes();
        // One that is refused; a flush; and one for which the back end has no room at first.
        for kind in [99, 4, 4] {
            assert!(charge(&mut guest, kind, &[BYTES, 1]) >= MARKED);
        }
        assert_eq!(u64::from(PIECE_DATA), charge(&mut guest, 0, &[PIECE_DATA, 1]));
    });
}

/// What couldn't be begun at once isn't cheaper for it.
#[test]
fn descriptors_are_charged_when_the_back_end_has_room() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 1);
        guest.read(0, 512);
        guest.serve(&mut disk).unwrap();
        let cut: Vec<u32> = [8; 60].into_iter().chain([512 - 60 * 8, 1]).collect();
        guest.send(&[&header(0, 0)], &cut);
        assert_eq!(0, guest.serve(&mut disk).unwrap().charge);
        assert_eq!(1, disk.refused);
        disk.end(0);
        guest.server.collect(&mut disk, 1);
        assert_eq!(63 * DESCRIPTOR_CHARGE, guest.serve(&mut disk).unwrap().charge);
    });
}

/// ELVIS goes on with a queue below a number of bytes: what has no data must count, too.
#[test]
fn every_request_is_charged() {
    both(|mut guest| {
        let mut disk = Storage::new(SECTORS, 0);
        for kind in [4, 8, 99] {
            guest.send(&[&header(kind, 0)], &[1]);
            let outcome = guest.serve(&mut disk).unwrap();
            assert_eq!((0, LEAST_CHARGE, 1), (outcome.bytes, outcome.charge, outcome.completed));
        }
        let idle = guest.serve(&mut disk).unwrap();
        assert_eq!((0, false, false), (idle.charge, idle.more, idle.full));
    });
}
