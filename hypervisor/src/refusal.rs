//! Refusing to boot, from anywhere: this machine or this plan won't do.
//!
//! A leaf, so that whatever finds that can say so; what is done about it is
//! [`panic`](crate::panic)'s.

use core::fmt::Display;
use spin::Once;

static REFUSE: Once<fn(&dyn Display) -> !> = Once::new();

/// The first thing at boot: how a refusal is reported.
pub fn by(report: fn(&dyn Display) -> !) {
    REFUSE.call_once(|| report);
}

/// The hypervisor can't do what it is to do; `reason` is a sentence that says what was found and
/// what is needed.
pub fn refuse(reason: impl Display) -> ! {
    match REFUSE.get() {
        Some(report) => report(&reason),
        None => panic!("{reason}"),
    }
}
