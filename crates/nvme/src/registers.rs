//! The controller's registers (NVM Express Base Specification 2.0, 3.1), and what CAP says.

/// A controller's registers in memory, uncached. Offsets are aligned to the access.
pub trait Registers {
    /// Reads 32 bits.
    fn read32(&mut self, offset: u32) -> u32;
    /// Reads 64 bits.
    fn read64(&mut self, offset: u32) -> u64;
    /// Writes 32 bits, after all stores to memory before.
    fn write32(&mut self, offset: u32, value: u32);
    /// Writes 64 bits.
    fn write64(&mut self, offset: u32, value: u64);
}

/// Controller Capabilities (3.1.3.1).
pub const CAP: u32 = 0x00;
/// Interrupt Mask Set (3.1.3.3).
pub const INTMS: u32 = 0x0C;
/// Controller Configuration (3.1.3.5).
pub const CC: u32 = 0x14;
/// Controller Status (3.1.3.6).
pub const CSTS: u32 = 0x1C;
/// Admin Queue Attributes (3.1.3.8).
pub const AQA: u32 = 0x24;
/// Admin Submission Queue Base Address (3.1.3.9).
pub const ASQ: u32 = 0x28;
/// Admin Completion Queue Base Address (3.1.3.10).
pub const ACQ: u32 = 0x30;
/// The first doorbell (Memory-Based Transport Specification 1.0, 3.1.2).
const DOORBELLS: u32 = 0x1000;

/// CC.EN.
pub const ENABLE: u32 = 1;
/// CC.SHN: a normal shutdown.
pub const SHUT_DOWN: u32 = 1 << 14;
/// CC: the NVM command set, pages of 4 KiB, round robin, entries of 64 and 16 bytes.
pub const CONFIGURATION: u32 = 4 << 20 | 6 << 16;
/// CSTS.RDY.
pub const READY: u32 = 1;
/// CSTS.SHST, and its value when a shutdown is complete.
pub const SHUTDOWN: u32 = 3 << 2;
/// See [`SHUTDOWN`].
pub const IS_SHUT_DOWN: u32 = 2 << 2;
/// CSTS.CFS.
pub const FATAL: u32 = 1 << 1;
/// What a read gives if nothing answers it.
pub const GONE: u32 = u32::MAX;

/// What CAP says, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Most entries of a queue (MQES, less one there).
    pub fn most_entries(self) -> u32 {
        (self.0 as u16 as u32) + 1
    }

    /// How long a change of CC.EN may take (TO), in units of 500 ms.
    pub fn timeout(self) -> u64 {
        self.0 >> 24 & 0xFF
    }

    /// Bytes from one doorbell to the next (DSTRD).
    pub fn stride(self) -> u32 {
        4 << (self.0 >> 32 & 0xF)
    }

    /// It knows the NVM command set (CSS, bit 37).
    pub fn has_nvm_commands(self) -> bool {
        self.0 >> 37 & 1 != 0
    }

    /// Its smallest page is 4 KiB (MPSMIN).
    pub fn has_small_pages(self) -> bool {
        self.0 >> 48 & 0xF == 0
    }

    /// The bytes of registers up to the doorbells of queue pair 1.
    pub fn bytes(self) -> u32 {
        DOORBELLS + 4 * self.stride()
    }
}

/// The doorbells of a pair of queues: its submission tail's offset, its completion head's.
pub fn doorbells(queue: u16, stride: u32) -> (u32, u32) {
    let tail = DOORBELLS + 2 * u32::from(queue) * stride;
    (tail, tail + stride)
}
