//! For callgrind (docs/figures.md says how): what a lone request costs by the daemon's own code,
//! and a pass that finds nothing. Fourteen disks that keep nothing, a ring each, with so many
//! requests in each (`COUNT`) when the rings are served. The clock stands still, so nobody sleeps:
//! the other passes find nothing.

use crate::config::Limits;
use crate::rings::Rings;
use crate::rings_tests::{Guest, manual};

const DISKS: usize = 14;
const ROUNDS: u64 = 500;

#[test]
fn lone_requests_are_counted() {
    let count = std::env::var("COUNT").map_or(1, |count| count.parse().expect("a number"));
    let (mut rings, _now) = manual();
    let guests: Vec<_> = (0..DISKS).map(|_| Guest::new(&mut rings, Limits::default())).collect();
    for _ in 0..ROUNDS {
        guests.iter().for_each(|guest| guest.offer(count));
        serve_counted(&mut rings);
    }
    let all: u64 = guests.iter().map(|guest| guest.completed(&mut rings)).sum();
    assert_eq!(all, DISKS as u64 * ROUNDS * u64::from(count));
}

/// What is counted.
#[inline(never)]
fn serve_counted(rings: &mut Rings) {
    rings.serve();
}
