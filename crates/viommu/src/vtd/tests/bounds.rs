//! How long a step takes, and what frames are there for, whatever waits: on the real unit's tables.

use super::attack::{LARGE, LONGEST, Play};
use super::machine::{domain, pages};
use super::real::Real;
use crate::tests::model::ENDPOINTS;
use crate::{Acting, PAGE};
use paging::{Access, PageSize};

fn access() -> Access {
    Access::READ | Access::WRITE
}

/// A step ends behind some waits for the unit, whatever its pages lead to: nobody else is served
/// meanwhile.
#[test]
fn a_step_waits_for_the_unit_a_few_times() {
    for longest in [0, LONGEST] {
        let mut play = Play::new(200, PageSize::Size2M, longest);
        let root = play.roots[0];
        let put = |play: &mut Play, word: &dyn Fn(u64) -> u64, how: [u64; 2]| {
            for n in 0..512 {
                let entry = play.real.entry(root, n * PAGE, 0);
                play.real.put(entry, word(n));
            }
            play.real.worst = (0, 0);
            assert!(play.real.ask(&[how]));
            play.real.worst.1
        };
        let to = |n: u64, odd: u64| ((0x400 + 2 * (n % 256) + odd) * PAGE) | 3;
        put(&mut play, &|n| to(n, 0), pages(1, 0, 9));
        let elsewhere = put(&mut play, &|n| to(n, 1), pages(1, 0, 9));
        let every_second = put(&mut play, &|n| to(n, 1) * (n & 1), pages(1, 0, 9));
        let all = put(&mut play, &|_| 0, domain(1));
        let most = [elsewhere, every_second, all];
        assert!(most.iter().all(|waits| *waits <= 32), "{longest}: {most:?} waits in one step");
    }
}

/// What waits doesn't keep the frames that an unmapping needs, to cut a large page: a strict unit
/// would have them.
#[test]
fn who_unmaps_a_part_misses_no_frame_for_what_waits() {
    for longest in [0, LONGEST] {
        let mut play = Play::new(5, PageSize::Size2M, longest);
        let root = play.roots[0];
        // With two small ones elsewhere the pool is empty.
        let large = play.real.entry(root, LARGE, 1);
        play.real.put(large, (2 * LARGE) | 1 << 7 | 3);
        let small = [0, 1 << 30].map(|at| play.real.entry(root, at, 0));
        small.iter().for_each(|entry| play.real.put(*entry, 0x40_0000 | 3));
        let both = [pages(1, 0, 0), pages(1, 1 << 30, 0)];
        assert!(play.real.ask(&[both[0], both[1], pages(1, LARGE, 9)]));
        assert_eq!(play.real.frames.free.len(), 0);
        small.iter().for_each(|entry| play.real.put(*entry, 0));
        assert!(play.real.ask(&both));
        // All of the large one but a page.
        let table = play.real.table();
        for n in 0..512 {
            play.real.put(table + 8 * n, if n == 7 { 0 } else { (2 * LARGE + n * PAGE) | 3 });
        }
        play.real.put(large, table | 3);
        assert!(play.real.ask(&[pages(1, LARGE + 7 * PAGE, 0)]));
        assert!(play.real.units.led[0].is_some(), "its domain is blocked if {longest} ticks wait");
    }
}

/// The same of a virtio-iommu: answers are those of a device that waits for nothing.
#[test]
fn who_maps_where_something_waits_misses_no_frame() {
    for longest in [0, LONGEST] {
        let Real { mut device, mut domains, mut frames, mut units, .. } =
            Real::new(4, PageSize::Size2M, longest);
        let mut t = Acting { domains: &mut domains, memory: &mut frames, hardware: &mut units };
        device.attach(&mut t, 7, ENDPOINTS[0], false).unwrap();
        let both = [0, 2 * LARGE - PAGE];
        for at in both {
            device.map(&mut t, 7, (at, at + PAGE - 1), 0, access()).unwrap();
        }
        for at in both {
            device.unmap(&mut t, 7, at, at + PAGE - 1).unwrap();
        }
        // One page where one waits, and one behind it whose table isn't there.
        let done = device.map(&mut t, 7, (both[1], both[1] + 2 * PAGE - 1), 0x8000, access());
        assert_eq!(done, Ok(()), "if {longest} ticks wait");
    }
}

/// And what is unmapped.
#[test]
fn who_unmaps_a_part_of_a_large_page_misses_no_frame() {
    for longest in [0, LONGEST] {
        let Real { mut device, mut domains, mut frames, mut units, .. } =
            Real::new(3, PageSize::Size2M, longest);
        let mut t = Acting { domains: &mut domains, memory: &mut frames, hardware: &mut units };
        device.attach(&mut t, 7, ENDPOINTS[0], false).unwrap();
        device.map(&mut t, 7, (LARGE, 2 * LARGE - 1), 0, access()).unwrap();
        device.map(&mut t, 7, (0, PAGE - 1), 0, access()).unwrap();
        device.unmap(&mut t, 7, 0, PAGE - 1).unwrap();
        let done = device.unmap(&mut t, 7, LARGE, LARGE + PAGE - 1);
        assert_eq!(done, Ok(()), "if {longest} ticks wait");
    }
}
