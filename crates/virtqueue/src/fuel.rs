//! A program that ends in the middle: each of its stores needs fuel, and none is done without.

use std::cell::Cell;

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// So many stores are done from now on.
pub fn set(stores: u32) {
    LEFT.set(stores);
}

/// Has the program ended?
pub fn is_out() -> bool {
    LEFT.get() == 0
}

/// Whether the next store is done.
pub fn burn() -> bool {
    let left = LEFT.replace(LEFT.get().saturating_sub(1));
    left > 0
}
