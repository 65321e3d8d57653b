//! What a turn asks of its ring.

use super::Done;
use crate::config::Limits;
use crate::rings_tests::{Guest, manual};
use sidecore::{Batch, Look};

/// What the turn before noted of the end isn't an answer within the next one.
#[test]
fn a_turn_that_took_all_leaves_nothing() {
    let (mut rings, _now) = manual();
    let guest = Guest::new(&mut rings, Limits::default());
    guest.offer(5);
    rings.serve();
    guest.offer(8);
    assert_eq!(rings.served.waiting(guest.place), 8);
    let batch = Batch { requests: 8, cost: u64::MAX };
    let mut done = Done::default();
    rings.served.piece(guest.place, batch, &mut done).expect("it is right");
    assert!(done.completed == 8 && !done.emptied, "its budget ended it, and not the ring");
    rings.served.emptied = false;
    assert!(!rings.served.has_more(guest.place));
}
