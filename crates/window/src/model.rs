//! Words that loom watches: how a model of two sides runs the code as it is.
//!
//! Under `cfg(loom)` a test names the words whose order of accesses matters ([`watch`]). Accesses to
//! them by spans go to atomics of loom; all other memory is plain, which is right as long as those
//! words order the accesses to it.
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use sync::AtomicU32;

std::thread_local! {
    /// Loom runs all threads of a model on the thread that asks for it.
    static WATCHED: RefCell<HashMap<usize, Rc<AtomicU32>>> = RefCell::default();
}

/// From now on the word at the start of each span is loom's, with the value it has. To be said at
/// the start of every run of a model; words of the run before are forgotten.
pub fn watch(spans: &[crate::Span]) {
    let words = spans.iter().map(|span| {
        let value = span.load_u32(0).or(span.load_u16(0).map(u32::from)).unwrap_or(0);
        (span.as_ptr().addr(), Rc::new(AtomicU32::new(value)))
    });
    WATCHED.with(|watched| *watched.borrow_mut() = HashMap::new());
    let words = words.collect();
    WATCHED.with(|watched| *watched.borrow_mut() = words);
}

fn watched(place: usize) -> Option<Rc<AtomicU32>> {
    WATCHED.with(|watched| watched.borrow().get(&place).cloned())
}

pub(crate) fn load(place: usize, order: Ordering) -> Option<u64> {
    watched(place).map(|word| word.load(order).into())
}

pub(crate) fn store(place: usize, value: u64, order: Ordering) -> bool {
    watched(place).map(|word| word.store(value as u32, order)).is_some()
}
