//! The controller's registers (datasheet, 8), those that are used.

/// A controller's registers in memory, uncached. Offsets are multiples of 4 and less than
/// [`BYTES`].
pub trait Registers {
    /// Reads 32 bits, before all loads of memory that follow.
    fn read32(&mut self, offset: u32) -> u32;
    /// Writes 32 bits, after all stores to memory before.
    fn write32(&mut self, offset: u32, value: u32);
}

/// Bytes of registers up to the last one that is used, in whole pages.
pub const BYTES: u64 = 0xF000;

/// Device Control (8.2.1).
pub const CTRL: u32 = 0x0000;
/// CTRL.SLU: the link may come up.
pub const LINK_UP: u32 = 1 << 6;
/// CTRL.RST.
pub const RESET: u32 = 1 << 26;
/// CTRL: FRCSPD, FRCDPLX (speed and duplex aren't negotiated) and VME (tags are taken off).
pub const FORCED: u32 = 1 << 11 | 1 << 12 | 1 << 30;
/// Device Status (8.2.2).
pub const STATUS: u32 = 0x0008;
/// STATUS.LU.
pub const LINK: u32 = 1 << 1;
/// STATUS.TXOFF: the other end of the wire has asked for a pause.
pub const PAUSED: u32 = 1 << 4;
/// MDI Control (8.2.4).
pub const MDIC: u32 = 0x0020;
/// MDIC: a write to register 0 (Control) of the PHY with address 1, which has the link negotiated
/// anew (IEEE 802.3, 22.2.4.1), and isn't powered down then.
pub const NEGOTIATE: u32 = 1 << 26 | 1 << 21 | 0x1340;
/// Interrupt Mask Clear (8.8.11).
pub const IMC: u32 = 0x150C;
/// Extended Interrupt Mask Clear (8.8.4).
pub const EIMC: u32 = 0x1528;
/// Receive Control (8.10.1).
pub const RCTL: u32 = 0x0100;
/// RCTL: RXEN, UPE and MPE (all addresses), BAM (broadcasts), SECRC (without the FCS).
pub const RECEIVE: u32 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 15 | 1 << 26;
/// Transmit Control (8.12.1).
pub const TCTL: u32 = 0x0400;
/// TCTL: EN, PSP (short frames are padded), CT and COLD as they are after a reset.
pub const TRANSMIT: u32 = 1 << 1 | 1 << 3 | 0xF << 4 | 0x40 << 12;
/// SRRCTL: buffers of 2 KiB, advanced descriptors with one buffer, frames without one are dropped.
pub const ONE_BUFFER: u32 = 2 | 1 << 25 | 1 << 31;
/// Receive Checksum Control (8.10.14), and that descriptors have the hash, which hashing needs.
pub const RXCSUM: u32 = 0x5000;
pub const HASHES: u32 = 1 << 13;
/// Multiple Receive Queues Command (8.10.15), and: queues by hash, of IPv4 and IPv6, with ports for
/// TCP and UDP.
pub const MRQC: u32 = 0x5818;
pub const BY_HASH: u32 = 2 | 1 << 16 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23;
/// The queue for each hash (RETA), a byte each, and the key of the hash (RSSRK); in words.
pub const RETA: u32 = 0x5C00;
pub const RETA_WORDS: u32 = 32;
pub const RSSRK: u32 = 0x5C80;
pub const RSSRK_WORDS: u32 = 10;
/// What a read gives if nothing answers it.
pub const GONE: u32 = u32::MAX;

/// The registers of a queue (8.10.5 to 8.10.10, 8.12.8 to 8.12.14).
#[derive(Clone, Copy, Debug)]
pub struct QueueRegisters(u32);

/// Receive queue `n`, below 8.
pub const fn rx(n: u32) -> QueueRegisters {
    QueueRegisters(0xC000 + 0x40 * n)
}

/// Transmit queue `n`, below 8.
pub const fn tx(n: u32) -> QueueRegisters {
    QueueRegisters(0xE000 + 0x40 * n)
}

/// RXDCTL.ENABLE and TXDCTL.ENABLE.
pub const ENABLE: u32 = 1 << 25;
/// RXDCTL and TXDCTL: each descriptor is written back as soon as it is done (WTHRESH).
pub const AT_ONCE: u32 = 1 << 16;

impl QueueRegisters {
    /// Where the ring is: the address's low half; its high half is 4 bytes further (RDBAL, TDBAL).
    pub const fn base(self) -> u32 {
        self.0
    }

    /// Its bytes (RDLEN, TDLEN).
    pub const fn len(self) -> u32 {
        self.0 + 0x08
    }

    /// How a receive queue uses its buffers (SRRCTL).
    pub const fn split(self) -> u32 {
        self.0 + 0x0C
    }

    /// The first descriptor that the controller doesn't have (RDT, TDT).
    pub const fn tail(self) -> u32 {
        self.0 + 0x18
    }

    /// RXDCTL, TXDCTL.
    pub const fn control(self) -> u32 {
        self.0 + 0x28
    }
}
