//! The crate under loom, which tries every interleaving of the threads: its own code, between
//! processors that take NMIs, wake-ups and timers as the real ones do.
//!
//! Guarantees: what the properties say holds for these askers and owners. Every property has
//! variants in which one step is wrong, done by hand or by a processor that doesn't keep its word;
//! loom must catch them. Not here: the assembly of the entry, and the fibers of a shared core.
extern crate std;

mod machine;
mod one_core;
mod shared_core;

/// How often the scheduler may take the processor from a thread that could go on, in one execution,
/// with one other core.
const PREEMPTIONS: usize = 3;
/// With two: the orders are many more.
const PREEMPTIONS_OF_THREE: usize = 2;

/// Runs `f` in every order within the bound.
fn check(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    // LOOM_MAX_PREEMPTIONS asks for more.
    model.preemption_bound = model.preemption_bound.or(Some(preemptions));
    model.max_branches = 5_000;
    model.check(f);
}
