//! Base address registers: what a BAR is, where the guest may put it, and the
//! addresses that they get before the guest has moved any.

/// Where the guest's 32-bit memory BARs may lie.
pub const MEM32_WINDOW: core::ops::Range<u64> = 0xC000_0000..0xE000_0000;
/// Where its 64-bit memory BARs may lie besides.
pub const MEM64_WINDOW: core::ops::Range<u64> = 0x40_0000_0000..0x50_0000_0000;
/// Where its port BARs may lie.
pub const IO_WINDOW: core::ops::Range<u64> = 0x1000..0x1_0000;

/// The three sorts of BAR (PCI 3.0, 6.2.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// Memory below 4 GiB.
    Mem32,
    /// Memory anywhere; takes the next BAR's register for its upper half.
    Mem64,
    /// Ports.
    Io,
}

impl BarKind {
    /// Ports, not memory.
    pub const fn is_io(self) -> bool {
        matches!(self, BarKind::Io)
    }
}

/// One physical BAR as found by probing, and where the guest finds it at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarInfo {
    /// Its sort.
    pub kind: BarKind,
    /// Its size in bytes: a power of two.
    pub size: u64,
    /// Memory without side effects of reading.
    pub prefetchable: bool,
    /// The guest-physical address (or port) it starts with, a multiple of its size.
    pub address: u64,
}

impl BarInfo {
    /// Bits 3:0 of the register (bits 1:0 of a port BAR).
    pub(super) const fn flags(&self) -> u32 {
        let prefetchable = if self.prefetchable { 8 } else { 0 };
        match self.kind {
            BarKind::Mem32 => prefetchable,
            BarKind::Mem64 => 4 | prefetchable,
            BarKind::Io => 1,
        }
    }

    /// The smallest and largest size that this sort can have here.
    const fn sizes(&self) -> core::ops::RangeInclusive<u64> {
        match self.kind {
            BarKind::Mem32 => 16..=1 << 31,
            BarKind::Mem64 => 16..=1 << 62,
            BarKind::Io => 4..=1 << 15,
        }
    }

    /// Whether size and address can be what they say.
    pub(super) fn is_sound(&self) -> bool {
        let highest = match self.kind {
            BarKind::Mem64 => u64::MAX,
            BarKind::Mem32 | BarKind::Io => u32::MAX.into(),
        };
        self.size.is_power_of_two()
            && self.sizes().contains(&self.size)
            && self.address.is_multiple_of(self.size)
            && self.address <= highest
    }

    /// Whether the BAR lies wholly in a window.
    pub(super) fn is_in_window(&self) -> bool {
        let within = |window: core::ops::Range<u64>| {
            let end = self.address.checked_add(self.size);
            self.address >= window.start && end.is_some_and(|end| end <= window.end)
        };
        match self.kind {
            BarKind::Io => within(IO_WINDOW),
            BarKind::Mem32 | BarKind::Mem64 => within(MEM32_WINDOW) || within(MEM64_WINDOW),
        }
    }
}

/// Why a BAR whose decoding is on isn't mapped. The guest did this to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    /// Not in the windows for BARs.
    #[error(
        "BAR {bar} of {size:#x} bytes at {address:#x} is outside the PCI windows: it stays unmapped"
    )]
    Outside {
        /// Where the guest put it.
        address: u64,
        /// How large it is.
        size: u64,
        /// Its index.
        bar: u8,
    },
    /// On another BAR that is decoded as well.
    #[error(
        "the BAR at {address:#x} overlaps BAR {bar} of device 00:{device:02x}.0: both stay unmapped"
    )]
    Overlap {
        /// Where the guest put it.
        address: u64,
        /// Device number of the other.
        device: u8,
        /// Index of the other.
        bar: u8,
    },
}

/// Hands out first addresses for BARs, as firmware would: 64-bit BARs in the
/// 64-bit window, the others in their own, each aligned to its size.
#[derive(Clone, Debug)]
pub struct Addresses {
    mem32: u64,
    mem64: u64,
    io: u64,
}

impl Default for Addresses {
    fn default() -> Self {
        Self::new()
    }
}

impl Addresses {
    /// All windows free.
    pub const fn new() -> Self {
        Addresses { mem32: MEM32_WINDOW.start, mem64: MEM64_WINDOW.start, io: IO_WINDOW.start }
    }

    /// The next free address for a BAR, or `None` when its window is full. Sizes
    /// that aren't powers of two count as the next one.
    pub fn choose(&mut self, kind: BarKind, size: u64) -> Option<u64> {
        let (next, end) = match kind {
            BarKind::Mem32 => (&mut self.mem32, MEM32_WINDOW.end),
            BarKind::Mem64 => (&mut self.mem64, MEM64_WINDOW.end),
            BarKind::Io => (&mut self.io, IO_WINDOW.end),
        };
        let size = size.checked_next_power_of_two()?;
        let address = next.checked_next_multiple_of(size)?;
        let after = address.checked_add(size).filter(|after| *after <= end)?;
        *next = after;
        Some(address)
    }
}
