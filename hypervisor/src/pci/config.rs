//! The machine's PCI functions: configuration space in memory (ECAM), else by ports, the scan, and
//! the sizes of BARs.
//!
//! Guarantees that an access stays inside the ECAM windows that ACPI names. It doesn't
//! guard against two cores on one function: a function belongs to one VM, and to its core. By ports
//! functions are found and silenced, and no more: nobody has one.

use super::ports;
use crate::memory;
pub use ::pci::Found as Function;
use ::pci::{CAPABILITY_EXPRESS, COMMAND, Config};
use acpi::{Ecam, Machine};
use alloc::vec::Vec;
use core::ops::{Range, RangeInclusive};
use iommu::Bdf;
use spin::Once;
use virtual_pc::pci::BarKind;

/// Bits of the COMMAND register (PCI 3.0, 6.2.2).
pub const COMMAND_IO: u16 = 1 << 0;
pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
pub const COMMAND_INTX_DISABLE: u16 = 1 << 10;
/// Kind of the header, and whether the device has several functions (PCI 3.0, 6.1).
pub const HEADER_TYPE: u16 = 0x0E;
const BAR0: u16 = 0x10;
const SECONDARY_BUS: u16 = 0x19;
const SUBORDINATE_BUS: u16 = 0x1A;
/// Class of bridges (PCI 3.0, appendix D).
pub const BRIDGE_CLASS: u32 = 0x06;

/// Configuration space of all segments and buses.
#[derive(Clone, Copy)]
pub struct Pci {
    ecams: &'static [Ecam],
}

static ECAMS: Once<Vec<Ecam>> = Once::new();

/// A BAR of the machine's function.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    pub index: usize,
    pub address: u64,
    pub kind: BarKind,
    pub size: u64,
    pub prefetchable: bool,
}

impl Pci {
    /// Why nobody can have a device, where configuration space isn't in memory: a part of a
    /// sentence.
    pub fn lack(&self) -> Option<&'static str> {
        self.ecams.is_empty().then_some("the machine's ACPI tables have no MCFG: PCI configuration space in memory is needed (q35 has it, i440fx doesn't)")
    }

    /// Maps configuration space, if it is in memory. Boot only.
    pub fn new(machine: &Machine) -> Self {
        let ecams = ECAMS.call_once(|| {
            for window in machine.ecams.iter().map(Ecam::window) {
                memory::map_mmio(window.start, window.end - window.start);
            }
            machine.ecams.to_vec()
        });
        Pci { ecams }
    }

    /// Where configuration space is in memory.
    pub fn windows(&self) -> impl Iterator<Item = Range<u64>> {
        self.ecams.iter().map(Ecam::window)
    }

    fn address(&self, bdf: Bdf, offset: u16) -> Option<u64> {
        let (segment, id) = (bdf.segment(), bdf.requester_id());
        self.ecams.iter().find_map(|ecam| ecam.register(segment, id, offset))
    }

    /// Writes a register.
    #[inline(never)]
    pub fn write32(&self, bdf: Bdf, offset: u16, value: u32) {
        if self.ecams.is_empty() {
            return ports::write32(bdf, offset, value);
        }
        if let Some(a) = self.address(bdf, offset & !3) {
            // SAFETY: inside an ECAM window, aligned. What a device may do by it to memory is
            // confined by the IOMMU.
            unsafe { core::ptr::write_volatile(a as *mut u32, value) }
        }
    }

    /// Every function, in the order of segments, buses, devices and functions.
    pub fn scan(&self) -> Vec<Function> {
        let mut segments: Vec<_> = self.ecams.iter().map(|ecam| ecam.segment).collect();
        sort::by_key(&mut segments, |segment| *segment);
        segments.dedup();
        if segments.is_empty() {
            segments.push(0);
        }
        segments.into_iter().flat_map(|segment| ::pci::scan(self, segment, 0..=255)).collect()
    }

    /// The buses behind a bridge, nearest first.
    pub fn buses_behind(&self, bridge: Bdf) -> RangeInclusive<u8> {
        self.read8(bridge, SECONDARY_BUS)..=self.read8(bridge, SUBORDINATE_BUS)
    }

    /// The bridge that leads to a function's bus.
    pub fn bridge_to(&self, function: Bdf, functions: &[Function]) -> Option<Bdf> {
        let bridges = functions.iter().filter(|f| self.is_pci_bridge(f)).map(|f| f.bdf);
        let mut bridges = bridges.filter(|bridge| bridge.segment() == function.segment());
        bridges.find(|bridge| self.read8(*bridge, SECONDARY_BUS) == function.bus())
    }

    /// Whether a function is a bridge from PCI to PCI, with windows and buses behind it.
    pub fn is_pci_bridge(&self, function: &Function) -> bool {
        function.class >> 16 == BRIDGE_CLASS && self.read8(function.bdf, HEADER_TYPE) & 0x7F == 1
    }

    /// Has a port forward requests to functions beyond the eighth (PCIe 6.0, 6.13); false if it
    /// can't.
    pub fn forward_ari(&self, port: Bdf) -> bool {
        const DEVICE_CAPABILITIES_2: u16 = 0x24;
        const DEVICE_CONTROL_2: u16 = 0x28;
        const ARI_FORWARDING: u16 = 1 << 5;
        let Some(express) = self.capability(port, CAPABILITY_EXPRESS) else { return false };
        if self.read32(port, express + DEVICE_CAPABILITIES_2) as u16 & ARI_FORWARDING == 0 {
            return false;
        }
        let control = self.read16(port, express + DEVICE_CONTROL_2);
        self.write16(port, express + DEVICE_CONTROL_2, control | ARI_FORWARDING);
        true
    }

    /// The header and the conventional capabilities: 256 bytes.
    pub fn snapshot(&self, bdf: Bdf) -> [u8; 256] {
        let mut bytes = [0; 256];
        for (i, word) in bytes.chunks_exact_mut(4).enumerate() {
            word.copy_from_slice(&self.read32(bdf, 4 * i as u16).to_le_bytes());
        }
        bytes
    }

    /// The BARs with their sizes (PCI 3.0, 6.2.5.1), of which bridges have two and other headers
    /// none. Decoding is off while they are probed.
    pub fn bars(&self, bdf: Bdf) -> Vec<Bar> {
        let registers = match self.read8(bdf, HEADER_TYPE) & 0x7F {
            0 => 6,
            1 => 2,
            _ => return Vec::new(),
        };
        let command = self.read16(bdf, COMMAND);
        self.write16(bdf, COMMAND, command & !0b11);
        let mut bars = Vec::new();
        let mut index = 0;
        while index < registers {
            let register = BAR0 + 4 * index as u16;
            let low = self.read32(bdf, register);
            let wide = low & 0b111 == 0b100 && index + 1 < registers;
            let high = if wide { self.read32(bdf, register + 4) } else { 0 };
            self.write32(bdf, register, u32::MAX);
            let mut mask = self.read32(bdf, register) as u64;
            self.write32(bdf, register, low);
            if wide {
                self.write32(bdf, register + 4, u32::MAX);
                mask |= (self.read32(bdf, register + 4) as u64) << 32;
                self.write32(bdf, register + 4, high);
            }
            let io = low & 1 != 0;
            let flags = if io { 0b11 } else { 0b1111 };
            let bits = if wide { mask & !flags } else { mask & !flags & 0xFFFF_FFFF };
            if bits != 0 {
                let kind = match (io, wide) {
                    (true, _) => BarKind::Io,
                    (_, true) => BarKind::Mem64,
                    _ => BarKind::Mem32,
                };
                let address = ((high as u64) << 32 | low as u64) & !flags;
                let size = 1 << bits.trailing_zeros();
                bars.push(Bar { index, address, kind, size, prefetchable: !io && low & 8 != 0 });
            }
            index += if wide { 2 } else { 1 };
        }
        self.write16(bdf, COMMAND, command);
        bars
    }

    /// Puts a memory BAR at this address, which its function must not decode meanwhile.
    pub fn set_bar(&self, bdf: Bdf, bar: &Bar, address: u64) {
        let register = BAR0 + 4 * bar.index as u16;
        self.write32(bdf, register, address as u32);
        if bar.kind == BarKind::Mem64 {
            self.write32(bdf, register + 4, (address >> 32) as u32);
        }
    }
}

// A search and two ways to go on, in a hundred places: one copy of each.
impl Config for Pci {
    #[inline(never)]
    fn read32(&self, bdf: Bdf, offset: u16) -> u32 {
        if self.ecams.is_empty() {
            return ports::read32(bdf, offset);
        }
        match self.address(bdf, offset & !3) {
            // SAFETY: inside an ECAM window mapped by `new`, aligned; reads of configuration space
            // have no effect on memory.
            Some(a) => unsafe { core::ptr::read_volatile(a as *const u32) },
            None => u32::MAX,
        }
    }

    #[inline(never)]
    fn write16(&self, bdf: Bdf, offset: u16, value: u16) {
        if self.ecams.is_empty() {
            return ports::write16(bdf, offset, value);
        }
        if let Some(a) = self.address(bdf, offset & !1) {
            // SAFETY: as in `write32`.
            unsafe { core::ptr::write_volatile(a as *mut u16, value) }
        }
    }
}
