//! Several queues, and transmit queues that hang.

use super::*;
use crate::{HANG, MOST_HANGS};

#[test]
fn each_queue_has_a_ring_of_its_own_and_flows_are_spread() {
    let bench = Bench::running();
    let model = bench.model();
    let mut bases = Vec::new();
    for n in 0..QUEUES as u32 {
        for queue in [rx(n), tx(n)] {
            assert!(model.is_within(queue));
            bases.push(model.get(queue.base()));
        }
    }
    bases.sort_unstable();
    bases.dedup();
    assert_eq!(bases.len(), 2 * QUEUES);
    assert_eq!((model.get(MRQC), model.get(RXCSUM)), (0x00F3_0002, 1 << 13));
    let table: Vec<u8> = (0..32).flat_map(|n| model.get(0x5C00 + 4 * n).to_le_bytes()).collect();
    assert!(table.iter().enumerate().all(|(hash, queue)| hash % 4 == usize::from(*queue)));
    assert!((0..10).all(|n| model.get(0x5C80 + 4 * n) != 0));
}

#[test]
fn receive_queues_have_their_turns() {
    let mut bench = Bench::running();
    for round in 0..4 {
        for queue in [0, 1, 3] {
            assert!(bench.model().arrive(queue, &[10 * queue as u8 + round; 60]));
        }
    }
    let mut order = Vec::new();
    while let Some(frame) = bench.received() {
        order.push(frame[0]);
    }
    assert_eq!(order, [0, 10, 30, 1, 11, 31, 2, 12, 32, 3, 13, 33]);
    assert_eq!(bench.controller.statistics().used, 0b1011);
}

#[test]
fn a_full_queue_takes_no_room_from_others() {
    let mut bench = Bench::running();
    while bench.send_by(0, &[1; 60], Task::Nothing) {}
    for queue in 1..4 {
        assert!(bench.send_by(queue, &[queue as u8; 60], Task::Nothing));
    }
    bench.controller.flush();
    assert_eq!(bench.model().by[255..], [1, 2, 3]);
}

#[test]
fn a_queue_that_hangs_has_the_controller_reset() {
    let mut bench = Bench::running();
    bench.model().hung = 1 << 2;
    assert!(bench.send_by(2, &[1; 60], Task::Nothing));
    bench.controller.flush();
    // Others go on, and are no sign of life of this one.
    for _ in 0..HANG / 10 - 2 {
        bench.send(&[2; 60]);
        bench.controller.flush();
        bench.steps(10);
    }
    assert_eq!((bench.controller.state(), bench.model().resets), (State::Running, 1));
    while bench.controller.statistics().hung == 0 && bench.now < 2 * HANG {
        bench.steps(1);
    }
    assert_eq!(bench.controller.statistics().hung, 1);
    assert!(!bench.controller.link() && !bench.send(&[3; 60]));
    bench.model().hung = 0;
    bench.model().wire.clear();
    bench.steps(100);
    assert_eq!((bench.controller.state(), bench.model().resets), (State::Running, 2));
    assert!(bench.controller.link());
    // What was on its way is lost; all queues work, both ways.
    for queue in 0..4 {
        assert!(bench.send_by(queue, &[queue as u8; 60], Task::Nothing));
        assert!(bench.model().arrive(queue as usize, &[queue as u8; 60]));
    }
    bench.controller.flush();
    assert_eq!(bench.model().wire, [0, 1, 2, 3].map(|queue| vec![queue; 60]));
    assert_eq!((0..4).filter_map(|_| bench.received()).count(), 4);
    bench.steps(2 * HANG);
    assert_eq!((bench.controller.statistics().hung, bench.model().resets), (1, 2));
}

/// A queue that is always full and sends slowly: what is done is found when the next frame is put
/// in, not by the look.
#[test]
fn a_queue_that_is_never_empty_does_not_hang() {
    let mut bench = Bench::running();
    bench.model().hung = 1;
    for _ in 0..4 {
        assert!(bench.send(&[1; 60]));
    }
    bench.controller.flush();
    for _ in 0..2 * HANG / 10 {
        bench.model().finish_one(0);
        assert!(bench.send(&[1; 60]));
        bench.controller.flush();
        bench.steps(10);
    }
    assert_eq!((bench.controller.state(), bench.model().resets), (State::Running, 1));
    assert_eq!(bench.controller.statistics().hung, 0);
}

#[test]
fn one_that_no_reset_helps_is_given_up() {
    let mut bench = Bench::running();
    bench.model().hung = 1;
    for _ in 0..2 * MOST_HANGS {
        bench.send(&[1; 60]);
        bench.controller.flush();
        bench.steps(HANG + 200);
    }
    assert_eq!(bench.controller.state(), State::Dead(Fault::Hangs));
    assert_eq!(bench.controller.statistics().hung, u64::from(MOST_HANGS));
    // A frame that is sent between two hangs begins the count anew.
    let mut bench = Bench::running();
    for _ in 0..2 * MOST_HANGS {
        bench.model().hung = 0;
        assert!(bench.send(&[1; 60]));
        bench.controller.flush();
        bench.steps(20);
        bench.model().hung = 1;
        assert!(bench.send(&[1; 60]));
        bench.controller.flush();
        bench.steps(HANG + 200);
    }
    assert_eq!(bench.controller.state(), State::Running);
}

#[test]
fn who_may_not_send_does_not_hang() {
    for pulled in [true, false] {
        let mut bench = Bench::running();
        bench.model().hung = 1;
        assert!(bench.send(&[1; 60]));
        bench.controller.flush();
        (bench.model().pulled, bench.model().paused) = (pulled, !pulled);
        bench.steps(3 * HANG);
        assert_eq!(bench.controller.statistics().hung, 0);
        // From when it may.
        (bench.model().pulled, bench.model().paused) = (false, false);
        bench.steps(HANG - 20);
        assert_eq!(bench.controller.statistics().hung, 0);
        bench.steps(50);
        assert_eq!(bench.controller.statistics().hung, 1);
    }
}

#[test]
fn a_queue_that_has_nothing_does_not_hang() {
    let mut bench = Bench::running();
    bench.steps(3 * HANG);
    // Not told of yet.
    bench.send(&[1; 60]);
    bench.steps(3 * HANG);
    assert_eq!(bench.controller.statistics().hung, 0);
}
