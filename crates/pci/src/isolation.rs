//! Which functions can be kept apart, so that they may belong to different VMs.
//!
//! The IOMMU sees what reaches the root of the tree. Functions of one device, and what is below one
//! switch, may reach each other before that, or send in each other's name. Guarantees: two
//! functions between which [`together`] finds nothing send their requests through the IOMMU, each
//! under its own requester id, as far as their devices and ports do what they say by ACS, or what
//! is known of them. Root ports of different devices are taken for kept apart by the root complex.
//! Says nothing about what devices exchange otherwise, such as frames that a network controller
//! passes on.

use crate::{Acs, Bdf};
use core::fmt;
use core::ops::RangeInclusive;

/// What a function is in the tree (PCIe 6.0, 7.5.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An endpoint of PCIe.
    Endpoint,
    /// A port of the root complex.
    RootPort,
    /// The port of a switch that faces the root.
    UpstreamPort,
    /// A port of a switch that faces away from it.
    DownstreamPort,
    /// A function or bridge of conventional PCI, or a bridge to it: what is behind one shares a
    /// bus.
    Conventional,
}

/// A function of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its place.
    pub bdf: Bdf,
    /// Vendor and device id.
    pub ids: (u16, u16),
    /// What it is.
    pub kind: Kind,
    /// Its ACS registers, if it has them.
    pub acs: Option<Acs>,
    /// The buses behind it, if it is a bridge.
    pub buses: Option<RangeInclusive<u8>>,
    /// The physical function that it is a virtual one of.
    pub physical: Option<Bdf>,
}

/// Why two functions can't be kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// They are, or are behind, functions of one device that doesn't keep them apart: these.
    OneDevice(Bdf, Bdf),
    /// This port or bridge lets what is behind it reach others without asking the IOMMU.
    Port(Bdf),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::OneDevice(a, b) => {
                write!(f, "{a} and {b} are functions of one device without access control (ACS)")
            }
            Why::Port(port) => {
                write!(f, "the port {port} above has no access control (ACS) that is complete")
            }
        }
    }
}

/// Functions without ACS of which it is known that they reach no peer of their device: Intel's
/// 82576, physical and virtual, by the word of its maker.
const REACHES_NO_PEER: [(u16, u16); 9] = [
    (0x8086, 0x10C9),
    (0x8086, 0x10CA),
    (0x8086, 0x10E6),
    (0x8086, 0x10E7),
    (0x8086, 0x10E8),
    (0x8086, 0x150A),
    (0x8086, 0x150D),
    (0x8086, 0x1518),
    (0x8086, 0x1526),
];

impl Function {
    fn isolates(&self) -> bool {
        match (self.kind, self.acs) {
            (Kind::Conventional, _) | (_, None) => REACHES_NO_PEER.contains(&self.ids),
            (_, Some(acs)) => acs.isolates(),
        }
    }

    /// The device that it is a function of: that of its physical function, if it is virtual.
    fn device(&self) -> (u16, u8, u8) {
        let bdf = self.physical.unwrap_or(self.bdf);
        (bdf.segment(), bdf.bus(), bdf.device())
    }
}

/// The bridge that leads to a function's bus, nearest to it. Numbers of buses grow away from the
/// root (PCI-to-PCI Bridge 1.2, 3.2.5.3): a bridge that says otherwise leads nowhere, and no way is
/// endless.
fn above<'a>(functions: &'a [Function], function: &Function) -> Option<&'a Function> {
    let (bus, segment) = (function.physical.unwrap_or(function.bdf).bus(), function.bdf.segment());
    let leads = |f: &&Function| {
        f.bdf.segment() == segment
            && f.bdf.bus() < bus
            && f.buses.as_ref().is_some_and(|b| b.contains(&bus))
    };
    functions.iter().filter(leads).min_by_key(|f| f.buses.as_ref().map_or(0, |b| b.len()))
}

/// A function and the bridges above it, upwards.
fn path<'a>(
    functions: &'a [Function],
    function: &'a Function,
) -> impl Iterator<Item = &'a Function> + Clone {
    core::iter::successors(Some(function), |f| above(functions, f))
}

/// Why these two of `functions` can't be kept apart; none if they can, or aren't among them.
pub fn together(functions: &[Function], a: Bdf, b: Bdf) -> Option<Why> {
    let find = |bdf| functions.iter().find(|f| f.bdf == bdf);
    let (a, b) = (find(a)?, find(b)?);
    // Where their ways to the root meet, and what each comes by to there.
    let on_way = |f: &Function| path(functions, b).any(|other| other.bdf == f.bdf);
    let mut shared = path(functions, a).filter(|f| on_way(f));
    let meeting = shared.clone().next();
    let last = |from| {
        let apart = path(functions, from).take_while(|f| Some(f.bdf) != meeting.map(|m| m.bdf));
        apart.last()
    };
    if let (Some(one), Some(other)) = (last(a), last(b)) {
        if one.device() == other.device() && !(one.isolates() && other.isolates()) {
            return Some(Why::OneDevice(one.bdf, other.bdf));
        }
        let passes_on = |f: &&Function| f.kind == Kind::DownstreamPort && !f.isolates();
        if let Some(port) = [one, other].into_iter().find(passes_on) {
            return Some(Why::Port(port.bdf));
        }
    }
    // Above, requests of both come the same way, and must be told apart by who sent them.
    let port = shared.find(|f| f.kind != Kind::UpstreamPort && !f.isolates());
    port.map(|f| Why::Port(f.bdf))
}
