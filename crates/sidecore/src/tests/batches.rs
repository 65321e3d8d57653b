//! Requests that are one piece together.

use super::*;
use crate::{BATCH, BATCH_COST};

#[test]
fn a_batch_ends_where_the_turn_does() {
    let (mut s, mut rings) = begun(USUAL);
    assert_eq!(s.batch(), Batch { requests: BATCH, cost: BATCH_COST });
    s.served(0, piece(MAX - 1000, 1), 0, &mut rings);
    assert_eq!(s.batch(), Batch { requests: BATCH, cost: 1001 });
    assert_eq!(s.served(0, piece(1000, 1), 0, &mut rings), Continue);
    assert_eq!(s.batch(), Batch { requests: BATCH, cost: 1 });
    assert_eq!(s.served(0, piece(1, 1), 0, &mut rings), Switch);
    assert_eq!(s.batch(), Batch::ONE, "it is nobody's turn");
}

#[test]
fn a_vm_with_limits_is_served_one_by_one() {
    for share in [
        Share { requests: Some(1), ..Share::default() },
        Share { bytes: Some(1 << 40), ..Share::default() },
    ] {
        let mut s = Schedule::new(USUAL, 1, 1);
        s.set_share(0, share);
        assert!(s.poll(0, 0, SECOND));
        assert_eq!(s.next(SECOND, &mut Rings([9; 4], 0)), Turn::Serve(0));
        assert_eq!(s.batch(), Batch::ONE);
    }
}

/// Each of thirteen VMs has more small requests than a turn serves. One that asks seldom comes in
/// the middle of a batch, isn't seen before its end, and is stuck from the first look that finds it
/// for the limit's time.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn a_latency_vm_beside_small_requests_waits_for_its_limit_and_two_batches() {
    for size in [512, 4 << 10, 16 << 10, 64 << 10] {
        let mut world = World::new(14, |place| match place {
            0 => Guest { depth: 1, size: 4 << 10, think: 10_000 },
            _ => Guest { depth: 2000, size, think: 0 },
        });
        let mut s = world.start(USUAL, |_| Share::default());
        world.run(&mut s, SECOND / 500);
        s.leave(0);
        assert!(s.poll(0, 0, world.now));
        (world.longest_bytes[0], world.longest_pieces[0], world.finished[0]) = (0, 0, 0);
        world.run(&mut s, SECOND / 10);
        assert!(world.finished[0] > 1_500, "{world:?}");
        // At most what is served in the limit's time, and what each batch may go beyond.
        let limit = USUAL.queue_stuck / world::ticks(size) * size;
        let bound = limit + 2 * (BATCH_COST + size);
        assert!(world.longest_bytes[0] <= bound, "{size}: {bound} {world:?}");
        let batch = u64::from(BATCH).min(BATCH_COST / size + 1);
        let bound = USUAL.queue_stuck / world::ticks(size) + 2 * batch;
        assert!(world.longest_pieces[0] <= bound, "{size}: {bound} {world:?}");
        assert!(s.worst_wait(0).passes <= 2, "{world:?}");
    }
}
