//! What a paravirtual disk's guest runs on: the columns of the experiment.

use clap::builder::PossibleValue;
use plan::Policy;

/// How requests and replies pass between a guest and who serves its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The bare machine with QEMU's own virtio-blk: the same work for the guest's kernel.
    Bare,
    /// Each kick exits, interrupts are injected.
    Classical,
    /// A VM under this policy; its requests are polled.
    Polled(Policy),
    /// Not paravirtual: an NVMe controller of the VM's own, with ELI.
    Assigned,
}

impl Way {
    /// From the machine itself to as little of the host as there can be, as far as QEMU has it.
    pub const ALL: [Way; 7] = [
        Way::Bare,
        Way::Classical,
        Way::Polled(Policy::Trap),
        Way::Polled(Policy::EliDelivery),
        Way::Polled(Policy::Eli),
        Way::Polled(Policy::Direct),
        Way::Assigned,
    ];
    /// Under `direct`.
    pub const DIRECT: Way = Way::Polled(Policy::Direct);
    /// Under `eli`.
    pub const ELI: Way = Way::Polled(Policy::Eli);
    /// Under `trap`.
    pub const TRAP: Way = Way::Polled(Policy::Trap);

    /// The name on the command line, in tables and in JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Way::Bare => "bare",
            Way::Classical => "classical",
            Way::Polled(policy) => policy.label(),
            Way::Assigned => "assigned",
        }
    }

    /// The policy of a VM's interrupts.
    pub const fn policy(self) -> Option<Policy> {
        match self {
            Way::Bare => None,
            Way::Classical => Some(Policy::Trap),
            Way::Polled(policy) => Some(policy),
            Way::Assigned => Some(Policy::Eli),
        }
    }
}

impl clap::ValueEnum for Way {
    fn value_variants<'a>() -> &'a [Self] {
        &Way::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Way::Bare => "The bare machine with QEMU's own virtio-blk",
            Way::Assigned => "No paravirtual disk: an NVMe controller of the VM's own, under eli",
            Way::Classical => "Kicks exit, interrupts are injected",
            Way::Polled(Policy::Trap) => "Requests are polled, interrupts are injected",
            Way::Polled(Policy::EliDelivery) => {
                "Requests are polled, interrupts arrive without an exit, EOIs exit"
            }
            Way::Polled(Policy::Eli) => "Requests are polled, interrupts are exitless",
            Way::Polled(Policy::Direct) => "The same, and the VM owns its core's timer, too",
            Way::Polled(Policy::Posted) => "Requests are polled, the CPU posts interrupts",
        };
        Some(PossibleValue::new(self.label()).help(help))
    }
}
