//! Registers of an AMD-Vi unit, by their offsets, and bits of them (AMD IOMMU spec 48882, 3.4).

/// Registers (3.4).
pub const DEVICES: u64 = 0x00;
/// As above.
pub const COMMANDS: u64 = 0x08;
/// As above.
pub const LOG: u64 = 0x10;
/// As above.
pub const CONTROL: u64 = 0x18;
/// As above.
pub const FEATURES: u64 = 0x30;
/// As above.
pub const INTERRUPT: u64 = 0x170;
/// As above.
pub const COMMAND_HEAD: u64 = 0x2000;
/// As above.
pub const COMMAND_TAIL: u64 = 0x2008;
/// As above.
pub const LOG_HEAD: u64 = 0x2010;
/// As above.
pub const LOG_TAIL: u64 = 0x2018;
/// As above.
pub const STATUS: u64 = 0x2020;
/// Of CONTROL: IommuEn, EventLogEn, EventIntEn, CmdBufEn, GAEn, XTEn, IntCapXTEn.
pub const TRANSLATES: u64 = 1 << 0;
/// As above.
pub const LOGS: u64 = 1 << 2;
/// As above.
pub const INTERRUPTS: u64 = 1 << 3;
/// As above.
pub const FETCHES: u64 = 1 << 12;
/// As above.
pub const WIDE: u64 = 1 << 17;
/// As above.
pub const X2APIC: u64 = 1 << 50;
/// As above.
pub const OWN_INTERRUPT: u64 = 1 << 51;
/// Of STATUS: EventOverflow, EventLogInt, EventLogRun, CmdBufRun.
pub const OVERFLOW: u32 = 1 << 0;
/// As above.
pub const LOGGED: u32 = 1 << 1;
/// As above.
pub const LOG_RUNS: u32 = 1 << 3;
/// As above.
pub const RUNS: u32 = 1 << 4;
/// Of a register of a buffer: it has 256 entries of 16 bytes.
pub const LENGTH: u64 = 8 << 56;
/// XTSup, IASup, GASup.
pub const WANTED: u64 = 1 << 2 | 1 << 6 | 1 << 7;
