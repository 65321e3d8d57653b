use super::*;

fn member(operations: u64, served: u64) -> Member {
    let work = Work { passes: 10, empty: 30, served, polled: served, others: 3 * served };
    Member { operations, work, ..Member::default() }
}

#[test]
fn shares_are_by_the_sidecore_s_work_not_by_time() {
    // The second one's windows lasted twice as long, and it had twice as much.
    let bulk = vec![member(100, 1_000), member(200, 2_000), member(150, 1_000)];
    let together = Together { bulk, latency: Some(member(1, 1_000)) };
    assert_eq!(together.shares(), 1.5);
    // 100, 100 and 150 of a million instructions each.
    let shares: Vec<_> = together.each_share().iter().map(|s| (s * 7.0).round()).collect();
    assert_eq!(shares, [6.0, 6.0, 9.0]);
    assert_eq!(together.busy(), 0.5);
    assert_eq!(together.sum(|m| m.operations), 451);
    // 5,000 instructions of 40 passes; three idle ones beside each.
    assert_eq!((together.pass(), together.idle_passes()), (125.0, 0.75));
    // 351 each of a thousand: three of 100, 100 and 150 and one of 1.
    assert_eq!(together.work_each().round(), (1_000.0_f64 / 351.0).round());
}

#[test]
fn work_is_what_lies_between_two_edges() {
    let edge = |n| Edge {
        passes: n,
        empty: 2 * n,
        served: 10 * n,
        polled: 100 * n,
        others: 1_000 * n,
        ..Edge::default()
    };
    let work = Work::between(&edge(2), &edge(5));
    assert_eq!(work, Work { passes: 3, empty: 6, served: 30, polled: 300, others: 3_000 });
    assert_eq!(work.elsewhere(), 2_670);
    assert_eq!(
        work.less(Work::between(&edge(0), &edge(1))),
        Work { passes: 2, empty: 4, served: 20, polled: 200, others: 2_000 }
    );
}
