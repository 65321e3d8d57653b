//! What the firmware's tables say of the machine: plain data, each field with its place in the ACPI
//! specification (6.5), the VT-d specification (chapter 8) or the SPCR's. The table of AMD's IOMMUs
//! has a file of its own.

use crate::{Error, Ivrs, Watchdog};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::ops::Range;

/// The most processors that are kept.
pub const MAX_CPUS: usize = 1024;
/// The most I/O APICs that are kept.
pub const MAX_IOAPICS: usize = 32;
/// The most windows of PCI configuration space that are kept.
pub const MAX_ECAMS: usize = 64;

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// MADT local APIC and local x2APIC structures of processors that are ready to be started, in
    /// the firmware's order, [`MAX_CPUS`] at most. The others are absent, or to be plugged in
    /// later.
    pub cpus: Vec<Cpu>,
    /// MADT I/O APIC structures.
    pub ioapics: ArrayVec<IoApic, MAX_IOAPICS>,
    /// MCFG entries, of which no two give the same bus, or the same memory.
    pub ecams: ArrayVec<Ecam, MAX_ECAMS>,
    /// FADT PM timer block.
    pub pm_timer: Option<PmTimer>,
    /// FADT reset register.
    pub reset: Option<Reset>,
    /// The table of Intel's IOMMUs.
    pub dmar: Option<Dmar>,
    /// The SPCR's serial port, if it names one that can be used, or what is wrong with the table:
    /// nothing depends on it but a console.
    pub console: Option<Result<SerialPort, Error>>,
    /// The table of AMD's IOMMUs.
    pub ivrs: Option<Ivrs>,
    /// The SRAT, or what is wrong with it: nothing depends on it but how fast memory is.
    pub affinity: Option<Result<Affinity, Error>>,
    /// The WDAT's watchdog, if it has one that is switched on, or what is wrong with the table.
    pub watchdog: Option<Result<Watchdog, Error>>,
}

/// Which processors and which memory are near each other: those of one proximity domain (ACPI
/// 5.2.16).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// APIC ids with their domains.
    pub cores: Vec<(u32, u32)>,
    /// Ranges with their domains.
    pub memory: Vec<NearMemory>,
}

/// A range of physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearMemory {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// Its proximity domain.
    pub domain: u32,
}

impl Affinity {
    /// The domain of the processor with this APIC id.
    pub fn of(&self, apic_id: u32) -> Option<u32> {
        self.cores.iter().find(|(id, _)| *id == apic_id).map(|(_, domain)| *domain)
    }

    /// The memory of a domain, as (first byte, byte after the last).
    pub fn near(&self, domain: u32) -> impl Iterator<Item = (u64, u64)> {
        self.memory.iter().filter(move |m| m.domain == domain).map(|m| (m.start, m.end))
    }
}

/// A processor (ACPI 5.2.12.2, 5.2.12.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The local APIC's id: what interrupts are sent to.
    pub apic_id: u32,
    /// The id by which other tables speak of it.
    pub acpi_uid: u32,
}

/// An I/O APIC (ACPI 5.2.12.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoApic {
    /// Its id, by which the DMAR speaks of it.
    pub id: u8,
    /// Physical address of its registers.
    pub address: u32,
    /// The global system interrupt of its first pin.
    pub gsi_base: u32,
}

/// PCI configuration space in memory (PCI Firmware 3.3, 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecam {
    /// Physical address that bus 0 has or would have.
    pub base: u64,
    /// PCI segment group.
    pub segment: u16,
    /// First bus decoded.
    pub bus_start: u8,
    /// Last bus decoded.
    pub bus_end: u8,
}

impl Ecam {
    /// Bytes of a bus.
    const BUS: u64 = 1 << 20;

    /// The memory of its buses.
    pub fn window(&self) -> Range<u64> {
        let bus = |number: u64| self.base.saturating_add(number * Self::BUS);
        bus(self.bus_start.into())..bus(u64::from(self.bus_end) + 1)
    }

    /// Where the function of a segment with this requester id has a register; none if that is in no
    /// window of this, or `offset` isn't below 4096.
    pub fn register(&self, segment: u16, function: u16, offset: u16) -> Option<u64> {
        let buses = self.bus_start..=self.bus_end;
        let inside = segment == self.segment && buses.contains(&((function >> 8) as u8));
        let at = self.base.checked_add(u64::from(function) << 12)?;
        (inside && offset < 0x1000).then_some(at + u64::from(offset))
    }

    /// Whether firmware gave the same buses or the same memory twice.
    pub(crate) fn overlaps(&self, other: &Ecam) -> bool {
        let (one, two) = (self.window(), other.window());
        let same_buses = self.segment == other.segment
            && self.bus_start <= other.bus_end
            && other.bus_start <= self.bus_end;
        same_buses || one.start < two.end && two.start < one.end
    }
}

/// The power-management timer: 3.579545 MHz (ACPI 4.8.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmTimer {
    /// I/O port of its 32-bit register.
    pub port: u16,
    /// Counts 32 bits (TMR_VAL_EXT), otherwise 24.
    pub bits32: bool,
}

/// How to reset the machine: write the value to the register (ACPI 4.8.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Where to.
    pub register: ResetRegister,
    /// The value to write.
    pub value: u8,
}

/// A register of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetRegister {
    /// At an I/O port.
    Port(u16),
    /// At a physical address.
    Memory(u64),
    /// In the configuration space of a PCI function on bus 0.
    Config {
        /// Device, 0 to 31.
        device: u8,
        /// Function, 0 to 7.
        function: u8,
        /// Offset, in the first 256 bytes.
        offset: u8,
    },
}

/// A 16550 (SPCR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SerialPort {
    /// Where its eight registers are.
    pub registers: SerialRegisters,
    /// Bits a second; none if it is to stay as it is.
    pub baud: Option<u32>,
    /// The clock that is divided by 16 and by the divisor, in Hz, if the table knows it.
    pub clock: Option<u32>,
    /// The PCI function that it is, if it is one.
    pub function: Option<SerialFunction>,
}

/// Where a serial port's registers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SerialRegisters {
    /// Eight I/O ports from this one on.
    Ports(u16),
    /// In memory.
    Memory {
        /// Physical address of the first register.
        address: u64,
        /// Bytes from one register to the next: 1, 2 or 4, and not below the width.
        stride: u8,
        /// Bytes of an access: 1, 2 or 4.
        width: u8,
    },
}

/// A serial port's PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SerialFunction {
    /// PCI segment.
    pub segment: u8,
    /// Bus.
    pub bus: u8,
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

/// DMA remapping reporting table (VT-d 8.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dmar {
    /// INTR_REMAP: the platform supports interrupt remapping.
    pub interrupt_remapping: bool,
    /// X2APIC_OPT_OUT: firmware asks software not to use x2APIC mode.
    pub x2apic_opt_out: bool,
    /// Bits of a physical address that DMA can reach.
    pub host_address_width: u8,
    /// DRHD structures.
    pub units: Vec<RemappingUnit>,
    /// RMRR structures: memory that firmware has devices use behind the system's back.
    pub reserved: Vec<ReservedMemory>,
}

impl Dmar {
    /// An error if firmware asks that x2APIC mode not be used: its own code in system-management
    /// mode may not be made for it.
    pub fn check_x2apic(&self) -> Result<(), Error> {
        if self.x2apic_opt_out { Err(Error::X2apicOptOut) } else { Ok(()) }
    }
}

/// One IOMMU (DRHD, VT-d 8.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemappingUnit {
    /// Physical address of its registers.
    pub base: u64,
    /// PCI segment it serves.
    pub segment: u16,
    /// INCLUDE_PCI_ALL: serves every device of the segment that no other unit names.
    pub include_all: bool,
    /// The devices it serves by name.
    pub scopes: Vec<Scope>,
}

/// Memory a device may need identity-mapped (RMRR, VT-d 8.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedMemory {
    /// First byte.
    pub base: u64,
    /// Last byte.
    pub limit: u64,
    /// PCI segment of the devices.
    pub segment: u16,
    /// The devices.
    pub scopes: Vec<Scope>,
}

/// A device, by its path from a bus whose number is known (VT-d 8.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// What kind of device.
    pub kind: ScopeKind,
    /// I/O APIC id or HPET number.
    pub enumeration_id: u8,
    /// Bus the path starts on.
    pub bus: u8,
    /// Bridges to go through, the device last; never empty.
    pub path: Vec<PathStep>,
}

/// A device and function number on the way to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// Device, 0 to 31.
    pub device: u8,
    /// Function, 0 to 7.
    pub function: u8,
}

/// Kinds of device scope (VT-d 8.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeKind {
    /// A PCI endpoint (1).
    Endpoint,
    /// A bridge and all below it (2).
    Bridge,
    /// An I/O APIC (3).
    IoApic,
    /// An HPET that can send messages (4).
    Hpet,
    /// A device of the ACPI namespace (5).
    Namespace,
    /// Something newer.
    Other(u8),
}
