//! Room for BARs among what is there already.

use core::ops::Range;

/// The free address nearest to `near` for `size` bytes at a multiple of `align` (a power of two)
/// inside `window`, clear of everything in `taken`, which may overlap and have any order. Of two
/// that are as near, it is the lower one.
pub fn nearest(
    window: Range<u64>,
    taken: &[Range<u64>],
    near: u64,
    size: u64,
    align: u64,
) -> Option<u64> {
    // Every free run begins where the window or something taken ends …
    let starts = core::iter::once(window.start).chain(taken.iter().map(|t| t.end));
    let free = |start: &u64| window.contains(start) && !taken.iter().any(|t| t.contains(start));
    let candidates = starts.filter(free).filter_map(|start| {
        // … and ends where the next thing begins.
        let next = taken.iter().filter(|t| !t.is_empty()).map(|t| t.start).filter(|s| *s >= start);
        let end = next.min().unwrap_or(window.end).min(window.end);
        closest(start, end, near, size, align)
    });
    candidates.min_by_key(|at| (at.abs_diff(near), *at))
}

/// The multiple of `align` nearest to `near`, the lower of two, with `size` bytes in `start..end`
/// from it on.
fn closest(start: u64, end: u64, near: u64, size: u64, align: u64) -> Option<u64> {
    let down = |at: u64| at & !(align - 1);
    let first = start.checked_next_multiple_of(align)?;
    let last = down(end.checked_sub(size)?);
    if first > last {
        return None;
    }
    let below = down(near).clamp(first, last);
    let above = near.checked_next_multiple_of(align).unwrap_or(last).clamp(first, last);
    Some(if above.abs_diff(near) < below.abs_diff(near) { above } else { below })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn room_is_found_beside_what_is_taken() {
        let find =
            |taken: &[Range<u64>], near| nearest(0x1000..0x9000, taken, near, 0x2000, 0x1000);
        assert_eq!(find(&[], 0x4000), Some(0x4000));
        assert_eq!(find(&[], 0x4900), Some(0x5000));
        assert_eq!(find(&[], 0x4700), Some(0x4000));
        assert_eq!(find(&[], 0xF000), Some(0x7000));
        assert_eq!(find(&[], 0x4800), Some(0x4000), "both are as near");
        let middle = 0x3800..0x5800;
        for taken in [[middle.clone(), 0..0], [0..0, middle.clone()], [0..0x1000, middle]] {
            let near = find(&taken, 0x4000);
            assert_eq!(near, Some(0x6000), "below, 0x1000 is farther");
            assert_eq!(find(&taken, 0x3800), Some(0x1000), "both are as near: {taken:x?}");
        }
        assert_eq!(find(&[0x4000..0x5000, 0..0x800], 0x4000), Some(0x5000));
        assert_eq!(find(&[0x4000..0x4001, 0x5800..0x9000], 0x4000), Some(0x2000));
        assert_eq!(find(&[0x2000..0x8000, 0..0], 0x4000), None);
        assert_eq!(find(&[0..0x10000, 0..0], 0x4000), None);
    }

    proptest! {
        /// Against every aligned address there is.
        #[test]
        fn the_nearest_free_place_is_found(
            window in (0u64..64, 0u64..64),
            taken in prop::collection::vec((0u64..64, 0u64..8), 0..8),
            near in 0u64..80,
            size in 1u64..8,
            shift in 0u32..4,
        ) {
            let align = 1 << shift;
            let window = window.0..window.1;
            let taken: Vec<_> = taken.into_iter().map(|(s, l)| s..s + l).collect();
            let free = |at: u64| {
                window.start <= at && at + size <= window.end
                    && taken.iter().all(|t| t.is_empty() || at >= t.end || at + size <= t.start)
            };
            let all = (0..64u64).filter(|at| at.is_multiple_of(align) && free(*at));
            let found = nearest(window.clone(), &taken, near, size, align);
            prop_assert_eq!(found, all.min_by_key(|at| (at.abs_diff(near), *at)));
        }
    }
}
