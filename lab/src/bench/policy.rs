//! What a measured guest runs on: the columns of every experiment.

use plan::Choice;

/// What the guest runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// The emulated machine without the hypervisor.
    Bare,
    /// A VM whose interrupts are trapped.
    Trap,
    /// A VM whose interrupts arrive without an exit, but whose EOIs are trapped.
    EliDelivery,
    /// A VM with exitless interrupts.
    Eli,
    /// A VM that owns its core's local APIC, the timer included.
    Direct,
}

impl Policy {
    /// All of them, in the order of the tables' columns.
    pub const ALL: [Policy; 5] =
        [Policy::Bare, Policy::Trap, Policy::EliDelivery, Policy::Eli, Policy::Direct];

    /// The name used in tables and JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Policy::Bare => "bare",
            Policy::Trap => "trap",
            Policy::EliDelivery => "eli-delivery",
            Policy::Eli => "eli",
            Policy::Direct => "direct",
        }
    }

    /// What a plan asks the hypervisor for; none on the bare machine.
    pub const fn choice(self) -> Option<Choice> {
        match self {
            Policy::Bare => None,
            Policy::Trap => Some(Choice::Trap),
            Policy::EliDelivery => Some(Choice::EliDelivery),
            Policy::Eli => Some(Choice::Eli),
            Policy::Direct => Some(Choice::Direct),
        }
    }
}
