//! Without ELVIS' scheduling: what it is compared with.

use super::*;

#[test]
fn a_whole_turn_ends_with_the_queue_or_its_most_bytes_whoever_waits() {
    let settings = USUAL.in_whole_turns();
    let (mut s, mut rings) = (polled(settings), Rings([9, 1, 1, 0], 0));
    assert_eq!(s.next(0, &mut rings), Turn::Serve(0));
    let mut now = 0;
    for _ in 0..MAX / PIECE {
        now += settings.queue_stuck + settings.work_stuck;
        assert_eq!(s.served(0, piece(PIECE, 1), now, &mut rings), Continue);
    }
    assert_eq!(s.served(0, piece(PIECE, 1), now, &mut rings), Switch);
    // In their order, whatever they had: the first one isn't behind the others.
    for place in [1, 2, 0, 1] {
        assert_eq!(s.next(now, &mut rings), Turn::Serve(place));
        rings.0[2] = 0;
        let next = s.served(place, piece(512, 1), now, &mut rings);
        assert_eq!(next, if place == 2 { Switch } else { Continue });
    }
}
