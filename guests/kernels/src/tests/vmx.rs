//! This kernel as a monitor on Intel's VMX, bare: what `crates/vmx` builds is entered, exits are
//! what it says, and its model of an entry's checks is held against the processor's.

mod exits;
mod model;
mod structure;

use crate::boot::Boot;
use crate::console::check;
use structure::Current;

/// Turns VMX on, or says what is lacking.
fn begin(test: &str) -> Option<Current> {
    Current::new(|good, what| check!(test, good, "{what}"))
}

/// Instructions of a guest, and the exits that they are.
pub fn exits(test: &str, _: &Boot) {
    if let Some(mut current) = begin(test) {
        exits::all(test, &mut current);
    }
}

/// Control structures with something wrong in them, or not.
pub fn model(test: &str, _: &Boot) {
    if let Some(mut current) = begin(test) {
        model::all(test, &mut current);
    }
}
