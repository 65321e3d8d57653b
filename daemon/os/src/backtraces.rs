//! No backtraces of errors: the static program has no index of how to unwind its stack, and who
//! looks for one there ends it.

use std::fs::read_dir;

/// What asks for backtraces of errors and of panics.
const ASKED_BY: [&str; 2] = ["RUST_BACKTRACE", "RUST_LIB_BACKTRACE"];

/// Has nobody make one, whatever the environment says; the first thing that `main` does. Where
/// there may be other threads already, it does nothing.
pub fn forget_backtraces() {
    let asked = || ASKED_BY.into_iter().filter(|name| std::env::var_os(name).is_some());
    if asked().next().is_none() || threads() != Some(1) {
        return;
    }
    for name in asked() {
        // SAFETY: this is the program's one thread, so that nobody else reads the environment.
        unsafe { std::env::remove_var(name) };
    }
}

fn threads() -> Option<usize> {
    read_dir("/proc/self/task").ok().map(Iterator::count)
}
