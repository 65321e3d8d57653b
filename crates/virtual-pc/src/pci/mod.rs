//! PCI as the guest sees it: bus 0, a host bridge, and the functions that it was given: assigned
//! ones, and those that the host makes.
//!
//! Guarantees: configuration space by mechanism 1 (PCI 3.0, 3.2.2.3.2) and in memory (ECAM, PCIe
//! 5.0, 7.2.2), accesses of 1, 2 and 4 bytes; whatever isn't there reads as ones and ignores
//! writes; no write reaches hardware: what the host must do is returned as [`Actions`]. A BAR is
//! placed only where nothing else of the guest can be ([`Bus::placement`]).
//! Extended configuration space (beyond 256 bytes) is in memory alone, and has no capabilities: it
//! reads as zero (7.6.1).

mod bar;
mod capabilities;
mod function;
mod paravirtual;
mod platform;

pub use bar::{Addresses, BarInfo, BarKind, IO_WINDOW, MEM32_WINDOW, MEM64_WINDOW, Misplaced};
pub use capabilities::MsixLayout;
pub use function::{Actions, Function, Msi, Unsuitable};
pub use paravirtual::{Identity, Place, Structure, Window};
pub use platform::{IOMMU_CAPABILITY, IOMMU_FUNCTION, IommuCapability};

use crate::ports::{Ports, Sizes, unclaimed};
use arrayvec::ArrayVec;

/// The port of the configuration address.
pub const ADDRESS: u16 = 0xCF8;
/// The first port of the configuration data.
pub const DATA: u16 = 0xCFC;
/// The ports of both.
pub const PORTS: [Ports; 2] =
    [Ports::new(ADDRESS..=ADDRESS, Sizes::DWORD), Ports::new(DATA..=DATA + 3, Sizes::ALL)];

/// Where configuration space is in memory.
pub const ECAM_AT: u32 = 0xE000_0000;
/// The same with its end: one bus.
pub const ECAM: core::ops::Range<u64> = ECAM_AT as u64..ECAM_AT as u64 + (1 << 20);
const _: () = assert!(MEM32_WINDOW.end <= ECAM.start);

/// How many functions one VM can have.
pub const MAX_FUNCTIONS: usize = 8;

/// Bit 31 of the address register: accesses to the data port are configuration accesses.
const ENABLE: u32 = 1 << 31;

/// Refusal of one function too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the VM has {MAX_FUNCTIONS} functions already: no more fit on its PCI bus")]
pub struct BusFull;

/// The guest's PCI bus 0. Function index `i` is device `i + 1`, function 0; device 0 is the host
/// bridge, with the IOMMU beside it if that has a function.
#[derive(Clone, Debug, Default)]
pub struct Bus {
    address: u32,
    iommu: Option<IommuCapability>,
    functions: ArrayVec<Function, MAX_FUNCTIONS>,
}

/// Whose register an access is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    HostBridge,
    Iommu,
    Function(usize),
    Absent,
}

/// An access to configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigAccess {
    target: Target,
    register: u16,
    /// Bytes. Those beyond the register's dword are nobody's.
    size: u8,
}

impl Bus {
    /// A bus with nothing but its host bridge.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts the IOMMU with this capability block beside the host bridge.
    pub fn set_iommu(&mut self, capability: IommuCapability) {
        self.iommu = Some(capability);
    }

    /// Adds a function at the next free device number, which it gives.
    pub fn assign(&mut self, function: Function) -> Result<u8, BusFull> {
        self.functions.try_push(function).map_err(|_| BusFull)?;
        Ok(self.functions.len() as u8)
    }

    /// The function of this index, in order of assignment.
    pub fn function(&self, index: usize) -> Option<&Function> {
        self.functions.get(index)
    }

    /// All functions, in order of assignment.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// [`ADDRESS`], read.
    pub fn read_address(&self) -> u32 {
        self.address
    }

    /// [`ADDRESS`], written.
    pub fn write_address(&mut self, value: u32) {
        self.address = value & !3;
    }

    /// What an access of `size` bytes at [`DATA`] + `offset` is for; `None`: nothing, while the
    /// address doesn't let it.
    pub fn by_port(&self, offset: u8, size: u8) -> Option<ConfigAccess> {
        if self.address & ENABLE == 0 || offset >= 4 {
            return None;
        }
        // Bits 30:24 are reserved; AMD's extended register numbers in them aren't offered.
        let target = match self.address & 0x7F00_0000 {
            0 => self.target(self.address >> 8 & 0xFFFF),
            _ => Target::Absent,
        };
        Some(ConfigAccess { target, register: (self.address as u8 & 0xFC | offset).into(), size })
    }

    /// What an access of `size` bytes at [`ECAM`]`.start + offset` is for; `None`: nothing, as it
    /// isn't one of 1, 2 or 4 bytes at a multiple of that.
    pub fn by_memory(&self, offset: u64, size: u8) -> Option<ConfigAccess> {
        if !matches!(size, 1 | 2 | 4) || !offset.is_multiple_of(size.into()) {
            return None;
        }
        let target = u32::try_from(offset >> 12).map_or(Target::Absent, |id| self.target(id));
        Some(ConfigAccess { target, register: (offset & 0xFFF) as u16, size })
    }

    /// A read. Bytes beyond the dword read as ones.
    pub fn read(&self, access: ConfigAccess) -> u32 {
        let ones = unclaimed(access.size);
        let dword = match (access.target, access.within()) {
            (Target::Absent, _) => return ones,
            (_, None) => 0,
            (Target::HostBridge, Some(register)) => {
                platform::host_bridge(register, self.iommu.is_none())
            }
            (Target::Iommu, Some(register)) => match &self.iommu {
                Some(capability) => platform::iommu(register, capability),
                None => return ones,
            },
            (Target::Function(i), Some(register)) => match self.functions.get(i) {
                Some(function) => function.read(register & !3, 4),
                None => return ones,
            },
        };
        let shift = 8 * u32::from(access.register & 3);
        (dword >> shift | !(u32::MAX >> shift)) & ones
    }

    /// A write. Gives the index of the function written and what the host must do; bytes beyond the
    /// dword are ignored.
    pub fn write(&mut self, access: ConfigAccess, value: u32) -> Option<(usize, Actions)> {
        let Target::Function(index) = access.target else { return None };
        let (register, size) = (access.within()?, access.size());
        Some((index, self.functions.get_mut(index)?.write(register, size, value)))
    }

    /// The piece of a BAR that an access is for ([`Function::window`]), and the function's index.
    /// Anything else is [`Bus::read`]'s and [`Bus::write`]'s.
    pub fn window(&self, access: ConfigAccess) -> Option<(usize, Window)> {
        let Target::Function(index) = access.target else { return None };
        let window = self.functions.get(index)?.window(access.within()?, access.size())?;
        Some((index, window))
    }

    /// Where a BAR is to be mapped now: `None` when it doesn't exist or its decoding
    /// is off. Any [`Actions::DECODE`] or [`Actions::BARS_MOVED`] may change the
    /// answer for every BAR of the bus, since two that overlap are both unmapped.
    pub fn placement(&self, index: usize, bar: usize) -> Result<Option<u64>, Misplaced> {
        let Some(function) = self.functions.get(index) else { return Ok(None) };
        let (Some(info), Some(address)) = (function.bar(bar), function.placement(bar)?) else {
            return Ok(None);
        };
        for (i, other) in self.functions.iter().enumerate() {
            for (b, there) in other.decoded() {
                let apart = there.address >= address.saturating_add(info.size)
                    || address >= there.address.saturating_add(there.size);
                if (i, b) != (index, bar) && there.kind.is_io() == info.kind.is_io() && !apart {
                    return Err(Misplaced::Overlap { address, device: i as u8 + 1, bar: b as u8 });
                }
            }
        }
        Ok(Some(address))
    }

    /// Whose registers those of this bus (15:8), device (7:3) and function (2:0) are.
    fn target(&self, id: u32) -> Target {
        match (id >> 3) as usize {
            0 if id == IOMMU_FUNCTION.into() && self.iommu.is_some() => Target::Iommu,
            _ if id & 7 != 0 => Target::Absent,
            0 => Target::HostBridge,
            device if device <= self.functions.len() => Target::Function(device - 1),
            _ => Target::Absent,
        }
    }
}

impl ConfigAccess {
    /// The register, if it isn't in extended configuration space.
    fn within(self) -> Option<u8> {
        u8::try_from(self.register).ok()
    }

    /// Bytes up to the end of the dword.
    fn size(self) -> u8 {
        self.size.min(4 - (self.register & 3) as u8)
    }
}

#[cfg(test)]
mod tests;
