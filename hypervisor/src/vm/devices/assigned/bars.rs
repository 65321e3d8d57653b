//! BARs of assigned devices: mapped where the guest has them, and emulated where they can't be
//! mapped.

use super::{BARS, PciBus};
use crate::vm::board::Board;
use crate::vm::devices::registers::{device_load, device_store};
use crate::vm::exit_context::ExitContext;
use crate::vm::stop::{Fault, Incident};
use virtual_pc::msix::Region;

impl PciBus {
    /// Maps every BAR where the guest has it now; first all that moved are unmapped.
    pub(super) fn place_bars(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
    ) -> Result<(), Fault> {
        for map in [false, true] {
            for index in 0..self.devices.len() {
                for bar in 0..BARS {
                    self.place_bar(board, cx, index, bar, map)?;
                }
            }
        }
        Ok(())
    }

    fn place_bar(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        index: usize,
        bar: usize,
        map: bool,
    ) -> Result<(), Fault> {
        let Some(d) = self.devices.get_mut(index) else { return Ok(()) };
        let Some((hpa, size)) = d.bars[bar] else { return Ok(()) };
        let wanted = self.config.placement(index, bar).unwrap_or_else(|_| {
            board.note(Incident::Bar(d.bdf));
            None
        });
        if d.placed[bar] == wanted {
            return Ok(());
        }
        let parts = d.open_parts(bar, size);
        if let Some(at) = d.placed[bar].take() {
            for part in parts.iter().filter(|p| !p.is_empty()) {
                let (gpa, len) = (at + part.start, part.end - part.start);
                board.unmap_registers(cx, gpa, len)?;
            }
        }
        if let (true, Some(at)) = (map, wanted) {
            d.placed[bar] = Some(at);
            for part in parts.iter().filter(|p| !p.is_empty()) {
                let (gpa, hpa, len) = (at + part.start, hpa + part.start, part.end - part.start);
                board.map_registers(gpa, hpa, len)?;
            }
        }
        Ok(())
    }

    /// A load from a BAR page that isn't mapped straight through; `None`: no BAR there.
    pub(super) fn bar_load(&mut self, gpa: u64, size: u8) -> Option<u64> {
        let (d, (bar, offset)) = self.devices.iter().find_map(|d| Some((d, d.find(gpa)?)))?;
        if let Some(m) = &d.msix
            && let Region::Table(at) = m.layout.region(bar as u8, offset, size)
        {
            return Some(m.table.read(at, size));
        }
        let (hpa, bytes) = d.bars[bar]?;
        Some(if inside(offset, size, bytes) { device_load(hpa + offset, size) } else { u64::MAX })
    }

    /// A store to such a page; `None`: no BAR there.
    pub(super) fn bar_store(
        &mut self,
        board: &mut Board,
        cx: &mut ExitContext,
        gpa: u64,
        size: u8,
        value: u64,
    ) -> Option<Result<(), Fault>> {
        let (index, (bar, offset)) =
            self.devices.iter().enumerate().find_map(|(i, d)| Some((i, d.find(gpa)?)))?;
        let d = self.devices.get_mut(index)?;
        if let Some(m) = &mut d.msix {
            match m.layout.region(bar as u8, offset, size) {
                Region::Table(at) => {
                    let Some(entry) = m.table.write(at, size, value) else { return Some(Ok(())) };
                    let routed = self.route_source(board, cx, index, entry);
                    return Some(routed.and_then(|()| self.note_sources(board, cx)));
                }
                Region::PendingBits => return Some(Ok(())),
                Region::Device => {}
            }
        }
        let (hpa, bytes) = d.bars[bar]?;
        if inside(offset, size, bytes) {
            device_store(hpa + offset, size, value);
        }
        Some(Ok(()))
    }
}

fn inside(offset: u64, size: u8, bytes: u64) -> bool {
    offset.is_multiple_of(size as u64) && offset + size as u64 <= bytes
}
