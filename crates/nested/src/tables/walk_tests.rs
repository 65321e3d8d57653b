//! The walk by itself: what it tells, what it marks, and pages as two tables have them.

use super::model::{BEHIND, L1, RULES, frame, own};
use super::*;

/// Tables of one page of L2's, at address 0, of this size.
fn tables(last: u64, level: u32) -> L1 {
    let mut l1 = L1::default();
    for above in level + 1..=4 {
        let n = u64::from(4 - above);
        l1.0.insert(frame(n), frame(n + 1) | 0x27);
    }
    l1.0.insert(frame(u64::from(4 - level)), last | if level > 1 { 0x80 } else { 0 });
    l1
}

#[test]
fn faults_tell_what_is_wrong() {
    let at = |l1: &mut L1, gpa, access| walk(l1, frame(0), gpa, access, RULES);
    let read = Access::default();
    let (write, fetch) = (Access { write: true, ..read }, Access { fetch: true, ..read });
    let miss = |bits| Err(Miss::Fault(bits));
    assert_eq!(at(&mut tables(0x5000, 1), 0, read), miss(0), "not present");
    assert_eq!(at(&mut tables(0x5007, 1), 1 << 48, read), miss(0), "no such address");
    assert_eq!(at(&mut tables(0x5007 | 1 << 40, 1), 0, read), miss(9), "beyond L1's addresses");
    assert_eq!(at(&mut tables(0x5003, 1), 0, read), miss(1), "not a user's");
    assert_eq!(at(&mut tables(0x5005, 1), 0, write), miss(1), "read-only");
    assert_eq!(at(&mut tables(0x5007 | 1 << 63, 1), 0, fetch), miss(1), "no fetch");
    assert_eq!(at(&mut tables(0x20_2007, 2), 0, read), miss(9), "not a multiple of 2 MiB");
    assert_eq!(at(&mut tables(7, 4), 0, read), miss(9), "too large");
    let mut elsewhere = L1::default();
    elsewhere.0.insert(frame(0), 0x77_7007);
    assert_eq!(at(&mut elsewhere, 0, read), miss(9), "a table that isn't memory");
    let no_nx = Rules { no_execute: false, ..RULES };
    let mut closed = tables(0x5007 | 1 << 63, 1);
    assert_eq!(walk(&mut closed, frame(0), 0, read, no_nx), miss(9));
    // What L1 is told has its own bits, and the CPU's for the rest.
    assert_eq!(Miss::Fault(9).told(0x1_0000_0016), Some(0x1_0000_001F));
    assert_eq!(Miss::Fault(0).told(0x2_0000_0007), Some(0x2_0000_0006));
    assert_eq!(Miss::Again.told(7), None);
    assert_eq!(Access::of_fault(0x12), Access { write: true, fetch: true, ..read });
    assert_eq!(Access::of_fault(!0x12), read);
}

#[test]
fn bits_are_set_as_the_cpu_sets_them() {
    let mut l1 = tables(0x5007, 1);
    l1.0.insert(frame(1), frame(2) | 7);
    let read = Access::default();
    let walked = walk(&mut l1, frame(0), 0x123, read, RULES);
    assert_eq!(walked.map(|walked| (walked.gpa, walked.write)), Ok((0x5123, false)));
    assert_eq!(l1.read(frame(1)), Some(frame(2) | 0x27));
    assert_eq!(l1.read(frame(3)), Some(0x5027));
    let write = Access { write: true, ..read };
    let walked = walk(&mut l1, frame(0), 0x123, write, RULES);
    assert_eq!(walked.map(|walked| walked.write), Ok(true));
    assert_eq!(l1.read(frame(3)), Some(0x5067));
    // Dirty already: a read lets stores in, too.
    let walked = walk(&mut l1, frame(0), 0, read, RULES);
    assert_eq!(walked.map(|walked| walked.write), Ok(true));
}

/// A flush makes nothing of L1's look used that isn't.
#[test]
fn a_look_marks_nothing() {
    let look = Access { look: true, ..Access::default() };
    for (frame_of, bit) in [(1, 1 << 5), (3, 1 << 5)] {
        let mut l1 = tables(0x5027, 1);
        let marked = walk(&mut l1, frame(0), 0x123, look, RULES);
        assert_eq!(marked.map(|walked| walked.gpa), Ok(0x5123), "all of it was accessed");
        let entry = l1.read(frame(frame_of)).unwrap_or_default();
        l1.0.insert(frame(frame_of), entry & !bit);
        assert_eq!(walk(&mut l1, frame(0), 0x123, look, RULES), Err(Miss::Again));
        assert_eq!(l1.read(frame(frame_of)), Some(entry & !bit));
    }
}

/// L1 changes an entry between the look and the mark.
#[test]
fn a_race_is_tried_again() {
    struct Racing(L1);
    impl L1Memory for Racing {
        fn read(&self, gpa: u64) -> Option<u64> {
            self.0.read(gpa)
        }
        fn exchange(&mut self, _: u64, _: u64, _: u64) -> bool {
            false
        }
    }
    let mut racing = Racing(tables(0x5007, 1));
    assert_eq!(walk(&mut racing, frame(0), 0, Access::default(), RULES), Err(Miss::Again));
}

#[test]
fn pages_are_as_large_as_the_smaller_one() {
    let of = |gpa, shift| {
        let walked = Walked { gpa, shift, write: true, execute: true, uncached: false };
        own(gpa).and_then(|own| compose(&walked, &own)).map(|page| (page.pa - BEHIND, page.shift))
    };
    assert_eq!(of(0x61_2345, 30), Some((0x60_0000, 21)));
    assert_eq!(of(0x61_2345, 12), Some((0x61_2000, 12)));
    assert_eq!(of(0x91_2345, 21), Some((0x91_2000, 12)));
    assert_eq!(of(0xF0_0000, 21), None);
}
