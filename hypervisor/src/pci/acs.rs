//! Access control (ACS): switched on wherever a function has it, and asked for before functions go
//! to different VMs.
//!
//! Guarantees what [`::pci::together`] does, by the registers as they are when [`survey`] is
//! called.

use super::{CAPABILITY_EXPRESS, Config, Function, HEADER_TYPE, Pci, sriov};
use ::pci::{Acs, Kind, extended_capability};
use alloc::vec::Vec;
use iommu::Bdf;

const EXTENDED_ACS: u16 = 0x0D;
/// Offsets in the capability.
const CAPABILITY: u16 = 4;
const CONTROL: u16 = 6;

fn find(pci: &Pci, bdf: Bdf) -> Option<u16> {
    pci.capability(bdf, CAPABILITY_EXPRESS)?;
    extended_capability(EXTENDED_ACS, |at| pci.read32(bdf, at))
}

/// Has a function send everything for its peers to the IOMMU, if it has a choice. A reset of the
/// function undoes that.
pub fn enable(pci: &Pci, bdf: Bdf) {
    if let Some(at) = find(pci, bdf) {
        let capability = pci.read16(bdf, at + CAPABILITY);
        pci.write16(bdf, at + CONTROL, Acs { capability, control: 0 }.wanted());
    }
}

/// The machine's functions, virtual ones too, as they can be kept apart.
pub fn survey(pci: &Pci, functions: &[Function]) -> Vec<::pci::Function> {
    functions.iter().copied().chain(sriov::functions()).map(|f| of(pci, &f)).collect()
}

fn of(pci: &Pci, f: &Function) -> ::pci::Function {
    let acs = find(pci, f.bdf).map(|at| Acs {
        capability: pci.read16(f.bdf, at + CAPABILITY),
        control: pci.read16(f.bdf, at + CONTROL),
    });
    let is_bridge = pci.read8(f.bdf, HEADER_TYPE) & 0x7F == 1;
    ::pci::Function {
        bdf: f.bdf,
        ids: (f.vendor, f.device),
        kind: kind(pci, f.bdf),
        acs,
        buses: is_bridge.then(|| pci.buses_behind(f.bdf)),
        physical: sriov::physical(f.bdf),
    }
}

/// By the type in the PCI Express capability (PCIe 6.0, 7.5.3.2).
fn kind(pci: &Pci, bdf: Bdf) -> Kind {
    const CAPABILITIES: u16 = 2;
    let Some(express) = pci.capability(bdf, CAPABILITY_EXPRESS) else { return Kind::Conventional };
    match pci.read16(bdf, express + CAPABILITIES) >> 4 & 0xF {
        4 => Kind::RootPort,
        5 => Kind::UpstreamPort,
        6 => Kind::DownstreamPort,
        // Bridges between PCIe and PCI, either way.
        7 | 8 => Kind::Conventional,
        _ => Kind::Endpoint,
    }
}
