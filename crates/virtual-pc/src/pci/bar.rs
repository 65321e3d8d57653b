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

#[cfg(test)]
mod tests {
    use super::*;
    use BarKind::{Io, Mem32, Mem64};

    fn bar(kind: BarKind, size: u64, address: u64) -> BarInfo {
        BarInfo { kind, size, prefetchable: false, address }
    }

    #[test]
    fn a_size_is_a_power_of_two_that_the_register_can_say() {
        for (kind, sizes) in
            [(Mem32, 16..=1 << 31), (Mem64, 16..=1 << 62), (Io, 4..=0x8000)] as [(_, _); 3]
        {
            for size in (0..64).map(|bit| 1 << bit) {
                let sound = bar(kind, size, 0).is_sound();
                assert_eq!(sound, sizes.contains(&size), "{kind:?} {size:#x}");
            }
            assert!([0, 24, 0x1001, u64::MAX].iter().all(|size| !bar(kind, *size, 0).is_sound()));
        }
    }

    #[test]
    fn an_address_is_a_multiple_of_the_size_that_the_register_can_hold() {
        for kind in [Mem32, Mem64, Io] {
            let wide = kind == Mem64;
            for (address, sound) in [
                (0x40, true),
                (0x60, false),
                (0x44, false),
                (0xFFFF_FFC0, true),
                (1 << 32, wide),
                (u64::MAX - 0x3F, wide),
            ] {
                assert_eq!(bar(kind, 0x40, address).is_sound(), sound, "{kind:?} {address:#x}");
            }
        }
    }

    #[test]
    fn a_bar_is_in_a_window_wholly_or_not_at_all() {
        for (kind, window) in [(Mem32, MEM32_WINDOW), (Mem64, MEM64_WINDOW), (Io, IO_WINDOW)] {
            let inside = |address| bar(kind, 0x100, address).is_in_window();
            assert!(inside(window.start) && inside(window.end - 0x100), "{kind:?}");
            assert!(!inside(window.start - 0x100) && !inside(window.end), "{kind:?}");
            assert!(!inside(u64::MAX - 0xFF), "{kind:?}");
        }
        assert!(bar(Mem64, 0x100, MEM32_WINDOW.start).is_in_window(), "anywhere");
        assert!(!bar(Io, 0x100, MEM32_WINDOW.start).is_in_window());
        let all = MEM32_WINDOW.end - MEM32_WINDOW.start;
        assert!(bar(Mem32, all, MEM32_WINDOW.start).is_in_window());
        assert!(!bar(Mem32, 2 * all, MEM32_WINDOW.start).is_in_window());
    }

    /// PCI 3.0, 6.2.5.1.
    #[test]
    fn the_register_says_of_what_sort_it_is() {
        for (kind, plain, prefetchable) in [(Mem32, 0, 8), (Mem64, 4, 12), (Io, 1, 1)] {
            let flags = |prefetchable| BarInfo { prefetchable, ..bar(kind, 16, 0) }.flags();
            assert_eq!((flags(false), flags(true)), (plain, prefetchable), "{kind:?}");
        }
    }

    #[test]
    fn a_window_is_handed_out_to_its_end() {
        let mut free = Addresses::new();
        assert_eq!(free.choose(Mem32, 0x2000_0000), Some(0xC000_0000));
        assert_eq!(free.choose(Mem32, 16), None);
        assert_eq!(free.choose(Io, 0x8000), Some(0x8000), "at a multiple of its size");
        assert_eq!(free.choose(Io, 4), None);
        assert_eq!(free.choose(Mem64, 0x3000), Some(0x40_0000_0000));
        assert_eq!(free.choose(Mem64, 0x1000), Some(0x40_0000_4000), "after what counts as 16 KiB");
    }
}
