//! What a measured guest runs on: the columns of every experiment.

use clap::builder::PossibleValue;
use proto::Policy;

/// What the guest runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The emulated machine without the hypervisor.
    Bare,
    /// A VM under this policy.
    Vm(Policy),
    /// A VM of Exitless, which itself is a VM of Exitless: both under `direct`.
    Nested,
}

impl Column {
    /// Every interrupt exits.
    pub const TRAP: Column = Column::Vm(Policy::Trap);
    /// Interrupts arrive without an exit, EOIs exit.
    pub const ELI_DELIVERY: Column = Column::Vm(Policy::EliDelivery);
    /// Exitless interrupts.
    pub const ELI: Column = Column::Vm(Policy::Eli);
    /// The VM owns its core's local APIC, the timer included.
    pub const DIRECT: Column = Column::Vm(Policy::Direct);

    /// The CPU delivers by itself.
    pub const POSTED: Column = Column::Vm(Policy::Posted);

    /// All that can be measured on QEMU, whose CPU is AMD's, in the order of the tables.
    pub const ALL: [Column; 6] = [
        Column::Bare,
        Column::TRAP,
        Column::ELI_DELIVERY,
        Column::ELI,
        Column::DIRECT,
        Column::Nested,
    ];

    /// The name used in tables and JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Column::Bare => "bare",
            Column::Vm(policy) => policy.label(),
            Column::Nested => "nested",
        }
    }

    /// The policy of its VM; none on the bare machine.
    pub const fn policy(self) -> Option<Policy> {
        match self {
            Column::Bare => None,
            Column::Vm(policy) => Some(policy),
            Column::Nested => Some(Policy::Direct),
        }
    }
}

impl clap::ValueEnum for Column {
    fn value_variants<'a>() -> &'a [Column] {
        &Column::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Column::Bare => "The emulated machine without the hypervisor",
            Column::Vm(Policy::Trap) => "A VM whose interrupts are trapped",
            Column::Vm(Policy::EliDelivery) => {
                "A VM whose interrupts arrive without an exit, but whose EOIs are trapped"
            }
            Column::Vm(Policy::Eli) => "A VM with exitless interrupts",
            Column::Vm(Policy::Direct) => {
                "A VM that owns its core's local APIC, the timer included"
            }
            Column::Nested => {
                "A VM of Exitless, which itself is a VM of Exitless, both with direct"
            }
            Column::Vm(Policy::Posted) => "A VM whose interrupts the CPU delivers by itself",
        };
        Some(PossibleValue::new(self.label()).help(help))
    }
}
