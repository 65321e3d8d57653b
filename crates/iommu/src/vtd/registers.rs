//! Offsets of the registers used, and their bits (VT-d 11.4).

/// Version.
pub const VER: u32 = 0x00;
/// Capability.
pub const CAP: u32 = 0x08;
/// Extended capability.
pub const ECAP: u32 = 0x10;
/// Global command.
pub const GCMD: u32 = 0x18;
/// Global status.
pub const GSTS: u32 = 0x1C;
/// Root table address.
pub const RTADDR: u32 = 0x20;
/// Fault status.
pub const FSTS: u32 = 0x34;
/// Fault event control.
pub const FECTL: u32 = 0x38;
/// Fault event data.
pub const FEDATA: u32 = 0x3C;
/// Fault event address.
pub const FEADDR: u32 = 0x40;
/// Its upper half.
pub const FEUADDR: u32 = 0x44;
/// Protected memory enable.
pub const PMEN: u32 = 0x64;
/// Invalidation queue head.
pub const IQH: u32 = 0x80;
/// Invalidation queue tail.
pub const IQT: u32 = 0x88;
/// Invalidation queue address.
pub const IQA: u32 = 0x90;
/// Invalidation queue error record.
pub const IQERCD: u32 = 0xB0;
/// Interrupt remapping table address.
pub const IRTA: u32 = 0xB8;

/// GCMD, GSTS: translation enable.
pub const TE: u32 = 1 << 31;
/// GCMD, GSTS: set root table pointer (once).
pub const SRTP: u32 = 1 << 30;
/// GCMD, GSTS: enable advanced fault logging.
pub const EAFL: u32 = 1 << 28;
/// GCMD, GSTS: queued invalidation enable.
pub const QIE: u32 = 1 << 26;
/// GCMD, GSTS: interrupt remapping enable.
pub const IRE: u32 = 1 << 25;
/// GCMD, GSTS: set interrupt remapping table pointer (once).
pub const SIRTP: u32 = 1 << 24;
/// GCMD, GSTS: let interrupts of compatibility format pass.
pub const CFI: u32 = 1 << 23;

/// FSTS: primary fault overflow.
pub const PFO: u32 = 1 << 0;
/// FSTS: primary pending fault.
pub const PPF: u32 = 1 << 1;
/// FSTS: invalidation queue error: the unit can't carry out a descriptor, and stops.
pub const IQE: u32 = 1 << 4;
/// FSTS: invalidation completion error: a device sent a completion that nothing waits for.
pub const ICE: u32 = 1 << 5;
/// FSTS: invalidation time-out error: a device didn't complete an invalidation of its own cache.
/// The unit stops until the bit is cleared.
pub const ITE: u32 = 1 << 6;
/// FSTS: the bits that stay set until software writes ones to them (RW1C); the last one is
/// reserved since revision 3.0.
pub const FSTS_STICKY: u32 = 0xFD;

/// FECTL: interrupt mask.
pub const FECTL_IM: u32 = 1 << 31;

/// PMEN: enable protected memory.
pub const EPM: u32 = 1 << 31;
/// PMEN: protected region status.
pub const PRS: u32 = 1 << 0;

/// RTADDR: translation table mode (TTM); 0 is legacy mode.
pub const TTM: u64 = 0b11 << 10;

/// IRTA: extended interrupt mode, destinations are x2APIC ids.
pub const EIME: u64 = 1 << 11;
