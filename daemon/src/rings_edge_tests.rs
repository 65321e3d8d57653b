//! What is known of a ring that was emptied: it holds until the ring is another one, or is filled
//! again, however far its driver counts.

use crate::config::Limits;
use crate::rings_tests::{Guest, manual};
use virtqueue::{Features, Position, State};

/// The driver's index is the same, and what it stands for isn't.
#[test]
fn a_ring_that_starts_anew_is_looked_at_anew() {
    let (mut rings, _now) = manual();
    let guest = Guest::new(&mut rings, Limits::default());
    guest.offer(5);
    rings.serve();
    assert_eq!(guest.completed(&mut rings), 5);
    for round in 1..4 {
        let at = rings.stop(guest.place).expect("it ran").available;
        // The front end has it begin where two are offered again.
        let at = Position { index: at.index - 2, ..at };
        let state = State { available: at, used: at, ..State::at_reset(Features::default()) };
        guest.start(&mut rings, state);
        rings.serve();
        assert_eq!(guest.completed(&mut rings), 5 + 2 * round);
    }
}

/// More than an index has numbers, by ones and by all that there is room for.
#[test]
fn what_is_offered_is_seen_wherever_the_index_is() {
    let (mut rings, _now) = manual();
    let guests = [(); 2].map(|()| Guest::new(&mut rings, Limits::default()));
    let mut all = 0;
    for round in 0..32_000_u64 {
        let count = 1 + (round % 8) as u16;
        guests[(round % 2) as usize].offer(count);
        rings.serve();
        all += u64::from(count);
        let completed = guests.iter().map(|guest| guest.completed(&mut rings)).sum::<u64>();
        assert_eq!(completed, all);
    }
    assert!(all > 2 << 16);
}
