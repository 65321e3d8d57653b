//! The interrupt sources of assigned devices: what the guest wrote becomes a route, and what the
//! device is to send.

use super::{PciBus, Route, Source};
use crate::iommu;
use crate::pci::msi;
use crate::vm::board::Board;
use crate::vm::exit_context::ExitContext;
use crate::vm::guest::Guest;
use crate::vm::interrupts::iommu_units::Units;
use crate::vm::stop::{Fault, Incident};
use ::iommu::Bdf;
use delivery::VectorSet;
use routing::rebind;
use virtual_pc::pci::Msi;

impl PciBus {
    /// Brings one interrupt source in line with what the guest wrote. To be followed by
    /// [`PciBus::note_sources`].
    pub(super) fn route_source(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        index: usize,
        source: usize,
    ) -> Result<(), Fault> {
        let (Some(d), Some(f)) = (self.devices.get(index), self.config.function(index)) else {
            return Ok(());
        };
        let (bdf, msi, control) = (d.bdf, f.msi(), f.msix_control());
        // A masked MSI keeps its route, so that what happens meanwhile waits in its pending bit.
        let wanted = match &d.msix {
            Some(m) if control.enabled => m.table.message(source, control),
            _ if source == 0 => msi.map_or(Ok(None), |m| Msi { masked: false, ..m }.message()),
            _ => Ok(None),
        };
        let wanted = match wanted {
            Ok(message) => message.and_then(|m| Some((cx.guest.receiver(&m)?, m.vector))),
            Err(_) => {
                board.note(Incident::Message(bdf));
                None
            }
        };
        // Such a vector gets a stand-in, which no shadow hides yet: another vCPU would take it.
        let now = d.sources.get(source).and_then(|s| s.route).map(|r| (r.vcpu, r.guest));
        if wanted.is_some_and(|w| Some(w) != now && cx.guest.hidden().contains(w.1)) {
            board.drop_shadows(cx)?;
        }
        let Some(d) = self.devices.get_mut(index) else { return Ok(()) };
        let moves = now.is_some() && wanted.is_some_and(|w| Some(w) != now);
        if moves && d.is_itself() && !iommu::remaps() {
            // It would go on to send its old message, which leads nowhere before long.
            d.hold(&self.pci, source);
        }
        let Some(s) = d.sources.get_mut(source) else { return Ok(()) };
        let mut message = None;
        if let Some((vcpu, guest)) = wanted {
            if s.route.map(|r| (r.vcpu, r.guest)) != Some((vcpu, guest))
                && let Err(incident) = reroute(cx.guest, s, bdf, vcpu, guest)
            {
                board.note(incident);
            }
            message = s.route.and_then(|_| iommu::message(bdf, s.irte));
            if s.route.is_some() && message.is_none() {
                board.note(Incident::Route(bdf));
            }
        }
        if !d.is_itself() {
            return Ok(());
        }
        if let Some(m) = &d.msix {
            msi::write_entry(m.at + 16 * source as u64, message.filter(|_| control.enabled));
        }
        if source == 0 {
            let masked = msi.is_some_and(|m| m.masked);
            msi::program(&self.pci, bdf, d.msi, message.filter(|_| !control.enabled), masked);
        }
        Ok(())
    }

    /// How many interrupts of devices there can be.
    pub fn sources(&self) -> usize {
        self.devices.iter().map(|d| d.sources.len()).sum()
    }

    /// What depends on the set of routes.
    pub(super) fn note_sources(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
    ) -> Result<(), Fault> {
        let routes = || self.devices.iter().flat_map(|d| &d.sources).filter_map(|s| s.route);
        for (vcpu, remote) in cx.guest.remotes.iter().enumerate() {
            let mut guests = VectorSet::EMPTY;
            routes().filter(|r| r.vcpu == vcpu).for_each(|r| guests.insert(r.guest));
            remote.routes.set_devices(guests);
        }
        let any = routes().next().is_some();
        cx.guest.set_routed(any);
        if board.hidden() != VectorSet::EMPTY && board.hidden() != cx.guest.hidden() {
            board.drop_shadows(cx)?;
        }
        Ok(())
    }
}

/// Sends a source's interrupts elsewhere.
fn reroute(
    owner: &Guest,
    s: &mut Source,
    bdf: Bdf,
    vcpu: usize,
    guest: u8,
) -> Result<(), Incident> {
    let from = s.route.take().map(|r| (&owner.remotes[r.vcpu].routes, r.bound));
    let bound = rebind(&Units, (bdf, s.irte), from, (&owner.remotes[vcpu].routes, guest));
    s.route = bound.map(|bound| Route { vcpu, bound, guest });
    // An exception's vector is the guest's own mistake, and goes nowhere.
    if s.route.is_none() && guest >= 32 { Err(Incident::Route(bdf)) } else { Ok(()) }
}
