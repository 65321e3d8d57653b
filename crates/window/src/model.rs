//! Words that loom watches: how a model of two sides runs the code as it is.
//!
//! Under `cfg(loom)` a test names the words whose order of accesses matters ([`watch`]). Accesses
//! to them by spans go to atomics of loom; all other memory is plain, which is right as long as
//! those words order the accesses to it. A word is known by its address: accesses have its width.
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use sync::AtomicU64;

std::thread_local! {
    /// Loom runs all threads of a model on the thread that asks for it.
    static WATCHED: RefCell<HashMap<usize, Rc<AtomicU64>>> = RefCell::default();
}

/// From now on these words are loom's, with the values they have; each span is one word. To be said
/// at the start of every run of a model: words of the run before are forgotten.
pub fn watch(spans: &[crate::Span]) {
    WATCHED.with(|watched| watched.borrow_mut().clear());
    let word = |span: &crate::Span| match span.len() {
        2 => span.load_u16(0).map(u64::from),
        4 => span.load_u32(0).map(u64::from),
        _ => span.load_u64(0),
    };
    let words: HashMap<_, _> = spans
        .iter()
        .map(|span| (span, word(span).expect("each span is one aligned word")))
        .map(|(span, value)| (span.as_ptr().addr(), Rc::new(AtomicU64::new(value))))
        .collect();
    WATCHED.with(|watched| *watched.borrow_mut() = words);
}

fn watched(place: usize) -> Option<Rc<AtomicU64>> {
    WATCHED.with(|watched| watched.borrow().get(&place).cloned())
}

pub(crate) fn load(place: usize, order: Ordering) -> Option<u64> {
    watched(place).map(|word| word.load(order))
}

pub(crate) fn store(place: usize, value: u64, order: Ordering) -> bool {
    watched(place).map(|word| word.store(value, order)).is_some()
}
