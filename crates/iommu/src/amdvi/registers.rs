//! Offsets of the registers used, and their bits (48882, 3.4).

/// Device table base address, and in bits 8:0 its frames less one.
pub const DEVICE_TABLE: u32 = 0x00;
/// Command buffer base address and length.
pub const COMMAND_BASE: u32 = 0x08;
/// Event log base address and length.
pub const EVENT_BASE: u32 = 0x10;
/// Control.
pub const CONTROL: u32 = 0x18;
/// Exclusion range: first address, and whether there is one.
pub const EXCLUSION_BASE: u32 = 0x20;
/// Exclusion range: last address.
pub const EXCLUSION_LIMIT: u32 = 0x28;
/// Extended features.
pub const EFR: u32 = 0x30;
/// The unit's own interrupt in x2APIC form.
pub const XT_INTERRUPT: u32 = 0x170;
/// Command buffer head, in bytes.
pub const COMMAND_HEAD: u32 = 0x2000;
/// Command buffer tail, in bytes.
pub const COMMAND_TAIL: u32 = 0x2008;
/// Event log head, in bytes.
pub const EVENT_HEAD: u32 = 0x2010;
/// Event log tail, in bytes.
pub const EVENT_TAIL: u32 = 0x2018;
/// Status.
pub const STATUS: u32 = 0x2020;

/// COMMAND_BASE, EVENT_BASE: 256 entries of 16 bytes, which is a frame.
pub const LENGTH_256: u64 = 8 << 56;
/// The head and tail registers: bits 18:4.
pub const POINTER: u64 = 0x7_FFF0;

/// CONTROL: the unit is on (IommuEn).
pub const ENABLE: u64 = 1 << 0;
/// CONTROL: HyperTransport tunnel traffic is translated (HtTunEn).
pub const HT_TUNNEL: u64 = 1 << 1;
/// CONTROL: events are logged (EventLogEn).
pub const EVENT_LOG: u64 = 1 << 2;
/// CONTROL: an interrupt for events (EventIntEn).
pub const EVENT_INTERRUPT: u64 = 1 << 3;
/// CONTROL: an interrupt for COMPLETION_WAIT (ComWaitIntEn).
pub const WAIT_INTERRUPT: u64 = 1 << 4;
/// CONTROL: PassPW.
pub const PASS_PW: u64 = 1 << 8;
/// CONTROL: ResPassPW.
pub const RESPONSE_PASS_PW: u64 = 1 << 9;
/// CONTROL: its reads snoop the processors' caches (Coherent).
pub const COHERENT: u64 = 1 << 10;
/// CONTROL: Isoc.
pub const ISOCHRONOUS: u64 = 1 << 11;
/// CONTROL: commands are fetched (CmdBufEn).
pub const COMMAND_BUFFER: u64 = 1 << 12;
/// CONTROL: peripheral page requests, their log and interrupt (PprLogEn, PprIntEn, PprEn).
pub const PAGE_REQUESTS: u64 = 0b111 << 13;
/// CONTROL: interrupt entries of 128 bits (GAEn).
pub const WIDE_ENTRIES: u64 = 1 << 17;
/// CONTROL: the log of guests' virtual APICs and its interrupt (GALogEn, GAIntEn).
pub const GUEST_LOG: u64 = 0b11 << 28;
/// CONTROL: the device table is in pieces (DevTblSegEn).
pub const SEGMENTS: u64 = 0b111 << 34;
/// CONTROL: apertures are routed past the tables (MarcEn).
pub const ROUTING: u64 = 1 << 40;
/// CONTROL: interrupt entries have x2APIC destinations (XTEn).
pub const X2APIC: u64 = 1 << 50;
/// CONTROL: its own interrupt goes by [`XT_INTERRUPT`] and not by its MSI capability (IntCapXTEn).
pub const X2APIC_OWN: u64 = 1 << 51;

/// STATUS: the event log is full, and the unit logs no more (EventOverflow; RW1C).
pub const EVENT_OVERFLOW: u64 = 1 << 0;
/// STATUS: an event was logged, for the interrupt (EventLogInt; RW1C).
pub const EVENT_ARRIVED: u64 = 1 << 1;
/// STATUS: ComWaitInt (RW1C).
pub const WAIT_ARRIVED: u64 = 1 << 2;
/// STATUS: events are being logged (EventLogRun).
pub const EVENT_RUN: u64 = 1 << 3;
/// STATUS: commands are being fetched (CmdBufRun).
pub const COMMAND_RUN: u64 = 1 << 4;

/// EFR: x2APIC destinations (XTSup).
pub const EFR_X2APIC: u64 = 1 << 2;
/// EFR: INVALIDATE_IOMMU_ALL (IASup).
pub const EFR_INVALIDATE_ALL: u64 = 1 << 6;
/// EFR: interrupt entries of 128 bits (GASup).
pub const EFR_WIDE_ENTRIES: u64 = 1 << 7;
