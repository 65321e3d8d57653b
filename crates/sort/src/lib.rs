//! Sorting, in little code: what the image sorts is short, or sorted while it boots, and each of
//! the standard library's sorts is 5 to 10 KiB for each type.
//!
//! Guarantees: in place, in n log n steps at the most. Doesn't keep the order of equal items.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// What is sorted, without its type: the code is there once.
trait Items {
    fn less(&self, a: usize, b: usize) -> bool;
    fn swap(&mut self, a: usize, b: usize);
}

struct Keyed<'a, T, F> {
    items: &'a mut [T],
    key: F,
}

impl<T, K: Ord, F: Fn(&T) -> K> Items for Keyed<'_, T, F> {
    fn less(&self, a: usize, b: usize) -> bool {
        (self.key)(&self.items[a]) < (self.key)(&self.items[b])
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.items.swap(a, b);
    }
}

/// Sorts by a key, the least first.
pub fn by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    let len = items.len();
    heap_sort(&mut Keyed { items, key }, len);
}

#[inline(never)]
fn heap_sort(items: &mut dyn Items, len: usize) {
    for root in (0..len / 2).rev() {
        sink(items, root, len);
    }
    for end in (1..len).rev() {
        items.swap(0, end);
        sink(items, 0, end);
    }
}

/// Lets an item sink to its place among the first `len`, where all below it is a heap.
fn sink(items: &mut dyn Items, mut root: usize, len: usize) {
    loop {
        let mut child = 2 * root + 1;
        if child >= len {
            return;
        }
        if child + 1 < len && items.less(child, child + 1) {
            child += 1;
        }
        if !items.less(root, child) {
            return;
        }
        items.swap(root, child);
        root = child;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cmp::Reverse;
    use proptest::prelude::*;

    proptest! {
        /// As the standard library's.
        #[test]
        fn sorts(mut items: Vec<u8>) {
            let mut sorted = items.clone();
            sorted.sort_unstable();
            by_key(&mut items, |item| *item);
            prop_assert_eq!(&items, &sorted);
            sorted.reverse();
            by_key(&mut items, |item| Reverse(*item));
            prop_assert_eq!(items, sorted);
        }
    }

    /// Also where all is in order, or the wrong way round: no worst case is quadratic.
    #[test]
    fn is_never_slow() {
        struct Counted(Vec<u32>, std::cell::Cell<u64>);
        impl Items for Counted {
            fn less(&self, a: usize, b: usize) -> bool {
                self.1.set(self.1.get() + 1);
                self.0[a] < self.0[b]
            }
            fn swap(&mut self, a: usize, b: usize) {
                self.0.swap(a, b);
            }
        }
        let len = 1 << 12;
        for items in [(0..len).collect(), (0..len).rev().collect(), vec![7; len as usize]] {
            let mut counted = Counted(items, 0.into());
            heap_sort(&mut counted, len as usize);
            assert!(counted.0.is_sorted());
            assert!(counted.1.get() <= 2 * u64::from(len) * 13, "{}", counted.1.get());
        }
    }
}
