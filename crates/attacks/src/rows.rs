//! Rows of the table, by what most have in common.

use crate::{Attack, Blocked, Device, Ends, Shown, Subject};
use ledger::Reason;

pub const fn attack(name: &'static str, does: &'static str, shows: &'static [Shown]) -> Attack {
    Attack { name, does, ends: Ends::Contained, shows, blocked: None, takes: 0 }
}

/// DMA, which no exit tells of.
pub const fn dma(
    name: &'static str,
    does: &'static str,
    device: Device,
    what: &'static str,
) -> Attack {
    Attack { blocked: Some(Blocked { device, what }), ..attack(name, does, &[]) }
}

pub const fn last(
    name: &'static str,
    does: &'static str,
    ends: Ends,
    shows: &'static [Shown],
) -> Attack {
    Attack { name, does, ends, shows, blocked: None, takes: 0 }
}

/// At least so many exits, whatever the policy and the place.
pub const fn shown(reason: Reason, n: u64) -> Shown {
    Shown { reason, eli: n, direct: n, shared: n, alone: n, exact: false }
}

/// At least so many where there is no device, and elsewhere maybe none.
pub const fn alone(reason: Reason, n: u64) -> Shown {
    Shown { alone: n, ..shown(reason, 0) }
}

/// Exactly so many, whatever the policy and the place.
pub const fn exactly(reason: Reason, n: u64) -> Shown {
    Shown { exact: true, ..shown(reason, n) }
}

/// At least so many under `trap` and `eli`.
pub const fn eli(reason: Reason, n: u64) -> Shown {
    Shown { direct: 0, alone: 0, ..shown(reason, n) }
}

/// At least so many under `trap` and `eli` on a core of its own.
pub const fn own(reason: Reason, n: u64) -> Shown {
    Shown { eli: n, ..shown(reason, 0) }
}

/// At least so many on a core that it shares.
pub const fn shared(reason: Reason, n: u64) -> Shown {
    Shown { shared: n, ..shown(reason, 0) }
}

/// A subject of one attack that is the end.
pub const fn end(name: &'static str, attacks: &'static [Attack]) -> Subject {
    Subject { name, cpus: 1, attacks }
}
