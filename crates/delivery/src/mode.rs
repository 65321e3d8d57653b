//! The modes of a vCPU (paper 4.1, 4.4), and when to be in which.
//!
//! | | physical interrupts | EOI | IDT |
//! |---|---|---|---|
//! | [`Mode::Eli`] | through the IDT, no exit | no exit | the shadow |
//! | [`Mode::Injection`] | exit | exits | the shadow or the guest's own |
//! | [`Mode::Passthrough`] | through the IDT, no exit | no exit | the guest's own |
//! | [`Mode::Posted`] | exit, but for what is posted | no exit | the guest's own |
//!
//! Injection mode is the baseline: `trap` is a vCPU that never leaves it. A vCPU under
//! `eli` is in it whenever a virtual interrupt is pending or in service, and whenever
//! its IDT can't be shadowed or may be changing, and whenever its local APIC isn't in
//! x2APIC mode. So `eli` never has an exit that the
//! baseline wouldn't have, except the two that end ELI mode: an interrupt of the
//! host's (which the baseline takes as an INTR exit) and a change of the IDT.

/// How physical interrupts reach a vCPU right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The guest takes and completes its interrupts itself, through a shadow IDT or a cut limit.
    Eli,
    /// Every physical interrupt exits; the host injects; EOI exits.
    Injection,
    /// As [`Mode::Eli`], and the guest's timer is the core's: the host has no vector of its own
    /// on the core and takes it back by NMI alone. Policy `direct`, while the guest's local APIC is
    /// in x2APIC mode and enabled.
    Passthrough,
    /// The CPU keeps a local APIC for the guest, delivers what is pending there, and completes it;
    /// other cores post to it. Policy `posted`, while the guest's local APIC is in x2APIC mode and
    /// enabled.
    Posted,
}

/// The mode to enter the guest in. `quiet`: the guest's local APIC is in x2APIC mode and enabled,
/// no virtual interrupt pending or in service; `sources`: the guest has assigned interrupts;
/// `shadowed`: the guest's IDT has a valid shadow in place.
pub const fn mode_for(quiet: bool, sources: bool, shadowed: bool) -> Mode {
    if quiet && sources && shadowed { Mode::Eli } else { Mode::Injection }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eli_only_when_nothing_is_owed_and_there_is_something_to_gain() {
        assert_eq!(mode_for(true, true, true), Mode::Eli);
        for (q, s, i) in [(false, true, true), (true, false, true), (true, true, false)] {
            assert_eq!(mode_for(q, s, i), Mode::Injection);
        }
    }
}
