//! What a unit can do (VT-d 11.4.2, 11.4.3), and whether that is enough.

use super::registers::{CAP, ECAP, VER};
use crate::{Error, Registers, Remapping};

/// What a unit can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Highest domain id (CAP.ND); 0 isn't used.
    pub max_domain: u16,
    /// Page-table levels it can walk (CAP.SAGAW): bit 1 for 3, bit 2 for 4, bit 3 for 5.
    pub sagaw: u8,
    /// Bits of the addresses that devices may use (CAP.MGAW).
    pub address_bits: u8,
    /// 2 MiB pages in second-level tables (CAP.SLLPS).
    pub pages_2m: bool,
    /// 1 GiB pages in second-level tables (CAP.SLLPS).
    pub pages_1g: bool,
    /// Entries that aren't present may be cached (CAP.CM): [`flush`](super::Unit::flush) is needed
    /// after new mappings too.
    pub caching_mode: bool,
    /// Whether it remaps interrupts, as it was asked to.
    pub remapping: Remapping,
    /// It snoops the CPU's caches (ECAP.C). If not, page tables too must be written back to memory.
    pub coherent: bool,
    /// Invalidation of some pages only (CAP.PSI), of at most 2 to this power (CAP.MAMV).
    pub(super) page_selective: Option<u8>,
    /// Invalidation can wait for the devices' writes (CAP.DWD).
    pub(super) drain_writes: bool,
    /// Invalidation can wait for the devices' reads (CAP.DRD).
    pub(super) drain_reads: bool,
    /// Has protected memory regions (CAP.PLMR, CAP.PHMR).
    pub(super) protected_memory: bool,
    /// Offset of the first fault record (CAP.FRO).
    pub(super) fault_offset: u32,
    /// Number of fault records (CAP.NFR).
    pub(super) fault_records: u32,
}

impl Capabilities {
    /// How many bytes of registers the driver uses: it may be more than a page.
    pub fn register_bytes(&self) -> u32 {
        (self.fault_offset + 16 * self.fault_records).max(0x1000)
    }

    /// Whether page tables of this many levels can be walked.
    pub fn supports_levels(&self, levels: u8) -> bool {
        levels < 8 && self.levels() & 1 << levels != 0
    }

    /// The levels that can be walked: bit n for n.
    pub(super) fn levels(&self) -> u8 {
        (self.sagaw & 0b1110) << 2
    }
}

/// Reads what the unit can do; refuses it if that isn't enough. Needs the first page of registers.
pub fn probe(registers: &mut impl Registers, remapping: Remapping) -> Result<Capabilities, Error> {
    let version = registers.read32(VER);
    if version == 0 || version == u32::MAX {
        return Err(Error::Absent { read: version });
    }
    let cap = registers.read64(CAP);
    let ecap = registers.read64(ECAP);
    let bit = |register: u64, bit: u32| register >> bit & 1 != 0;
    let need = |present: bool, feature, register, value| match present {
        true => Ok(()),
        false => Err(Error::Lacks { feature, register, value }),
    };
    need(bit(ecap, 1), "queued invalidation", "ECAP", ecap)?;
    if remapping == Remapping::On {
        need(bit(ecap, 3), "interrupt remapping", "ECAP", ecap)?;
        need(bit(ecap, 4), "x2APIC interrupt destinations", "ECAP", ecap)?;
    }
    let sagaw = (cap >> 8 & 0x1F) as u8;
    need(sagaw & 0b1110 != 0, "page tables of 3, 4 or 5 levels", "CAP", cap)?;
    // Only chipsets of before x2APIC want their write buffers flushed by software.
    need(!bit(cap, 4), "a write buffer that flushes itself", "CAP", cap)?;
    let nd = (cap & 7).min(6);
    Ok(Capabilities {
        max_domain: ((1u32 << (4 + 2 * nd)) - 1) as u16,
        sagaw,
        address_bits: (cap >> 16 & 0x3F) as u8 + 1,
        pages_2m: bit(cap, 34),
        pages_1g: bit(cap, 35),
        caching_mode: bit(cap, 7),
        remapping,
        coherent: bit(ecap, 0),
        page_selective: bit(cap, 39).then_some((cap >> 48 & 0x3F) as u8),
        drain_writes: bit(cap, 54),
        drain_reads: bit(cap, 55),
        protected_memory: bit(cap, 5) || bit(cap, 6),
        fault_offset: (cap >> 24 & 0x3FF) as u32 * 16,
        fault_records: (cap >> 40 & 0xFF) as u32 + 1,
    })
}
