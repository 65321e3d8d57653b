//! Who has an IOMMU, and how a guest's kernel takes mappings down: the columns of the experiment,
//! and what each of them came to.
//!
//! Guarantees: pure arithmetic on counts.

use crate::bench::{
    figures::{Spread, median},
    sidecore::{Alone, Way},
};
use plan::GuestIommu;

/// How mappings are taken down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// There are none: the device reaches all that the guest has.
    None,
    /// Each before its memory is used again.
    Strict,
    /// Many at a time: Linux's lazy mode.
    Deferred,
    /// Strictly by the guest; the host keeps each for a while, in case it comes back.
    Optimistic,
}

/// Where the IOMMU is that the guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// In the machine, on which the kernel runs itself.
    Machine,
    /// On a core besides.
    Sidecore,
    /// On the guest's core, by exits.
    Exits,
}

/// What kind of IOMMU the guest has.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Own {
    /// A virtio-iommu
    #[default]
    Virtio,
    /// A VT-d unit
    VtD,
    /// An AMD-Vi unit
    AmdVi,
}

impl Own {
    /// The name in tables and JSON, and on the command line.
    pub const fn label(self) -> &'static str {
        match self {
            Own::Virtio => "virtio",
            Own::VtD => "vt-d",
            Own::AmdVi => "amd-vi",
        }
    }

    /// What the guest's kernel is told besides.
    pub const fn words(self) -> &'static str {
        match self {
            Own::VtD => "intel_iommu=on",
            Own::Virtio | Own::AmdVi => "",
        }
    }

    /// The columns. With a unit that is to hear of each mapping, as one that is emulated must,
    /// Linux is strict, whatever it is told.
    pub fn places(self) -> Vec<Place> {
        let has = |place: &Place| {
            self == Own::Virtio || !place.has_own() || place.strategy != Strategy::Deferred
        };
        ALL.into_iter().filter(has).collect()
    }
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How.
    pub strategy: Strategy,
    /// By whom.
    pub server: Server,
}

const fn at(server: Server, strategy: Strategy) -> Place {
    Place { strategy, server }
}

/// All of them, in the order of the tables. Optimistic teardown is what a sidecore does.
pub const ALL: [Place; 9] = [
    at(Server::Machine, Strategy::None),
    at(Server::Machine, Strategy::Strict),
    at(Server::Machine, Strategy::Deferred),
    at(Server::Sidecore, Strategy::None),
    at(Server::Sidecore, Strategy::Strict),
    at(Server::Sidecore, Strategy::Deferred),
    at(Server::Sidecore, Strategy::Optimistic),
    at(Server::Exits, Strategy::Strict),
    at(Server::Exits, Strategy::Deferred),
];

impl Strategy {
    /// The name in tables and JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Strategy::None => "none",
            Strategy::Strict => "strict",
            Strategy::Deferred => "deferred",
            Strategy::Optimistic => "optimistic",
        }
    }

    /// What the guest's kernel is told: on the bare machine that has an IOMMU all the same, which
    /// it isn't to use for memory.
    pub const fn words(self) -> &'static str {
        match self {
            Strategy::None => "iommu.passthrough=1",
            Strategy::Strict | Strategy::Optimistic => "iommu.passthrough=0 iommu.strict=1",
            Strategy::Deferred => "iommu.passthrough=0 iommu.strict=0",
        }
    }
}

impl Server {
    /// The name in JSON.
    pub const fn label(self) -> &'static str {
        match self {
            Server::Machine => "bare",
            Server::Sidecore => "sidecore",
            Server::Exits => "exits",
        }
    }
}

impl Place {
    /// The name in tables.
    pub fn label(self) -> String {
        let strategy = self.strategy.label();
        match self.server {
            Server::Machine => format!("bare: {strategy}"),
            Server::Sidecore => strategy.to_owned(),
            Server::Exits => format!("{strategy}, by exits"),
        }
    }

    /// What the guest runs on.
    pub const fn way(self) -> Way {
        match self.server {
            Server::Machine => Way::Bare,
            Server::Sidecore | Server::Exits => Way::DIRECT,
        }
    }

    /// The VM's key.
    pub fn iommu(self, own: Own) -> GuestIommu {
        match (own, self.strategy == Strategy::Optimistic) {
            _ if !self.has_own() => GuestIommu::None,
            (Own::Virtio, false) => GuestIommu::Virtio,
            (Own::Virtio, true) => GuestIommu::VirtioOptimistic,
            (Own::VtD, false) => GuestIommu::VtD,
            (Own::VtD, true) => GuestIommu::VtDOptimistic,
            (Own::AmdVi, false) => GuestIommu::AmdVi,
            (Own::AmdVi, true) => GuestIommu::AmdViOptimistic,
        }
    }

    /// Whether the kernel maps by the machine's IOMMU.
    pub fn has_machines(self) -> bool {
        self.server == Server::Machine && self.strategy != Strategy::None
    }

    /// Whether it is one of a VM with an IOMMU of its own.
    pub fn has_own(self) -> bool {
        self.server != Server::Machine && self.strategy != Strategy::None
    }
}

/// What a column came to.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Which.
    pub place: Place,
    /// The figures.
    pub alone: Alone,
}

impl Cell {
    /// Operations for each instruction on the guest's core / the same of the other; ticks out.
    pub fn throughput(&self, other: &Cell) -> Spread {
        self.alone.figures.fraction_of(&other.alone.figures, true)
    }

    /// The guest's own instructions for an operation beyond those of the other, ticks out; medians.
    pub fn added(&self, other: &Cell) -> f64 {
        median(&self.alone.guest_ticks_out) - median(&other.alone.guest_ticks_out)
    }

    /// The host's on the guest's core for an operation.
    pub fn hosts(&self) -> f64 {
        self.alone.per_io(self.alone.figures.host)
    }

    /// The part of the pages that the guest mapped which were mapped still, from its start to its
    /// end. Half of the requests map, and nearly all of those a page.
    pub fn hits(&self) -> f64 {
        let served = self.alone.served;
        let mapped = (served.completed / 2).max(1) as f64 * 4096.0;
        (served.bytes as f64 / mapped).min(1.0)
    }
}

/// The column with which one is compared: where the kernel is, with no IOMMU.
pub fn without(cells: &[Cell], place: Place) -> Option<&Cell> {
    let bare = place.server == Server::Machine;
    let wanted = |p: Place| p.strategy == Strategy::None && (p.server == Server::Machine) == bare;
    cells.iter().find(|cell| wanted(cell.place))
}

/// The column in which the same guest doesn't wait for another core: an exit has the answer made
/// before the guest goes on.
pub fn unwaiting(cells: &[Cell], place: Place) -> Option<&Cell> {
    let strategy = match place.strategy {
        Strategy::Optimistic => Strategy::Strict,
        other => other,
    };
    cells.iter().find(|cell| cell.place == at(Server::Exits, strategy))
}

/// What a sidecore for which the guest never waited would leave of the throughput without an IOMMU:
/// modelled by the guest's own instructions where it doesn't wait, with none of the host's on its
/// core. None: nobody has it by a sidecore.
pub fn without_waiting(cells: &[Cell], place: Place) -> Option<f64> {
    let (none, here) = (without(cells, place)?, unwaiting(cells, place)?);
    let polled = place.server == Server::Sidecore && place.has_own();
    let guests = |cell: &Cell| median(&cell.alone.guest_ticks_out);
    polled.then(|| guests(none) / guests(here))
}

/// A column of a strategy by a server, if there is such a one.
pub fn find(cells: &[Cell], server: Server, strategy: Strategy) -> Option<&Cell> {
    cells.iter().find(|cell| cell.place == at(server, strategy))
}
