//! Configuration space by ports, where firmware names none in memory: mechanism #1 (PCI 3.0,
//! 3.2.2.3.2), which every PC has.
//!
//! Guarantees: one access at a time. Reaches segment 0 and a function's first 256 bytes; what is
//! beyond reads as all ones, as what isn't there does.

use crate::cpu::port;
use iommu::Bdf;
use spin::mutex::TicketMutex as Mutex;

const ADDRESS: u16 = 0xCF8;
const DATA: u16 = 0xCFC;
const ENABLE: u32 = 1 << 31;

/// Both ports: what the first says holds for the second.
static PORTS: Mutex<()> = Mutex::new(());

/// What selects a register, if it can be reached so.
fn address(bdf: Bdf, offset: u16) -> Option<u32> {
    let register = u8::try_from(offset & !3).ok()?;
    (bdf.segment() == 0).then(|| ENABLE | u32::from(bdf.requester_id()) << 8 | u32::from(register))
}

/// The four bytes that this one is among.
pub fn read32(bdf: Bdf, offset: u16) -> u32 {
    let Some(address) = address(bdf, offset) else { return u32::MAX };
    let _one = PORTS.lock();
    port::write32(ADDRESS, address);
    port::read32(DATA)
}

/// Writes these four bytes.
pub fn write32(bdf: Bdf, offset: u16, value: u32) {
    let Some(address) = address(bdf, offset) else { return };
    let _one = PORTS.lock();
    port::write32(ADDRESS, address);
    port::write32(DATA, value);
}

/// Writes two bytes.
pub fn write16(bdf: Bdf, offset: u16, value: u16) {
    let Some(address) = address(bdf, offset) else { return };
    let _one = PORTS.lock();
    port::write32(ADDRESS, address);
    port::write16(DATA + (offset & 2), value);
}
