//! IA32_APIC_BASE: the modes of a local APIC and the ways between them (SDM vol. 3, 11.4.3, 11.4.4
//! and 11.12.5; APM vol. 2, 16.3.1 and 16.9).
//!
//! ```text
//!              EN                EXTD
//! disabled ─────────▶ xAPIC ─────────────▶ x2APIC
//!     ▲                 │                     │
//!     └───── !EN ───────┴──────── !EN ────────┘
//! ```
//!
//! Guarantees that every other way, EXTD without EN and reserved bits are refused (#GP). Doesn't
//! know what is in memory: whether the xAPIC's page may be moved to where a value says is the
//! caller's to judge.

/// The access is one that raises #GP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// The modes of a local APIC (SDM vol. 3, table 11-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApicMode {
    /// Globally disabled: there is none.
    Disabled,
    /// xAPIC: registers in a page of memory, ids of eight bits.
    Xapic,
    /// x2APIC: registers are MSRs, ids have 32 bits.
    X2apic,
}

/// The register's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApicBase {
    mode: ApicMode,
    page: u64,
    first: bool,
}

const FIRST: u64 = 1 << 8;
const EXTENDED: u64 = 1 << 10;
const ENABLED: u64 = 1 << 11;
const FLAGS: u64 = 0xFFF;
/// Bits that must be zero below the address.
const RESERVED: u64 = FLAGS & !(FIRST | EXTENDED | ENABLED);

impl ApicBase {
    /// Where the xAPIC's page is unless somebody moves it.
    pub const HOME: u64 = 0xFEE0_0000;

    /// As the guest's firmware leaves it, in x2APIC mode. `first`: of the processor that the
    /// machine starts with.
    pub const fn new(first: bool) -> Self {
        ApicBase { mode: ApicMode::X2apic, page: Self::HOME, first }
    }

    /// The mode.
    #[inline]
    pub const fn mode(self) -> ApicMode {
        self.mode
    }

    /// Guest-physical address of the xAPIC's page, whether it is there or not.
    pub const fn page(self) -> u64 {
        self.page
    }

    /// The value that RDMSR gives.
    pub const fn bits(self) -> u64 {
        let mode = match self.mode {
            ApicMode::Disabled => 0,
            ApicMode::Xapic => ENABLED,
            ApicMode::X2apic => ENABLED | EXTENDED,
        };
        self.page | mode | if self.first { FIRST } else { 0 }
    }

    /// What it is after WRMSR, on a CPU with so many physical address bits. Which processor is the
    /// first isn't for software to say: that bit is ignored.
    pub const fn write(self, value: u64, physical_bits: u8) -> Result<ApicBase, Refused> {
        use ApicMode::{Disabled, X2apic, Xapic};
        let beyond = if physical_bits < 64 { u64::MAX << physical_bits } else { 0 };
        if value & (RESERVED | beyond) != 0 {
            return Err(Refused);
        }
        let mode = match value & (ENABLED | EXTENDED) {
            0 => Disabled,
            ENABLED => Xapic,
            EXTENDED => return Err(Refused),
            _ => X2apic,
        };
        match (self.mode, mode) {
            (X2apic, Xapic) | (Disabled, X2apic) => Err(Refused),
            _ => Ok(ApicBase { mode, page: value & !FLAGS, first: self.first }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ApicMode::{Disabled, X2apic, Xapic};
    use super::*;
    use proptest::prelude::*;

    const BITS: u8 = 40;
    const MODES: [(ApicMode, u64); 3] = [(Disabled, 0), (Xapic, 0x800), (X2apic, 0xC00)];

    fn in_mode(mode: ApicMode) -> ApicBase {
        ApicBase { mode, ..ApicBase::new(true) }
    }

    #[test]
    fn firmware_leaves_x2apic_mode_at_the_usual_place() {
        assert_eq!(ApicBase::new(true).bits(), 0xFEE0_0D00);
        assert_eq!(ApicBase::new(false).bits(), 0xFEE0_0C00);
        assert_eq!(in_mode(Xapic).bits(), 0xFEE0_0900);
        assert_eq!(in_mode(Disabled).bits(), 0xFEE0_0100);
    }

    /// The manual's figure, arrow by arrow.
    #[test]
    fn every_transition() {
        let allowed = [
            (Disabled, Disabled),
            (Disabled, Xapic),
            (Xapic, Disabled),
            (Xapic, Xapic),
            (Xapic, X2apic),
            (X2apic, Disabled),
            (X2apic, X2apic),
        ];
        for (from, _) in MODES {
            for (to, bits) in MODES {
                let written = in_mode(from).write(0xFEE0_0100 | bits, BITS);
                let expected =
                    if allowed.contains(&(from, to)) { Ok(in_mode(to)) } else { Err(Refused) };
                assert_eq!(written, expected, "{from:?} to {to:?}");
            }
            let invalid = in_mode(from).write(0xFEE0_0500, BITS);
            assert_eq!(invalid, Err(Refused), "EXTD without EN from {from:?}");
        }
    }

    #[test]
    fn the_page_moves_and_the_first_stays_the_first() {
        let moved = in_mode(Xapic).write(0xFED4_0800, BITS).unwrap();
        assert_eq!((moved.page(), moved.bits()), (0xFED4_0000, 0xFED4_0900));
        let other = ApicBase { mode: Xapic, ..ApicBase::new(false) };
        assert_eq!(other.write(0xFEE0_0900, BITS).unwrap().bits(), 0xFEE0_0800);
    }

    #[test]
    fn reserved_bits_are_refused() {
        let base = in_mode(X2apic);
        for bit in (0..8).chain([9]).chain(40..64) {
            assert_eq!(base.write(base.bits() | 1 << bit, BITS), Err(Refused), "bit {bit}");
        }
        for bit in 12..40 {
            assert!(base.write(base.bits() ^ 1 << bit, BITS).is_ok(), "bit {bit}");
        }
        assert!(base.write(base.bits() | 1 << 63, 64).is_ok());
        assert_eq!(base.write(base.bits() | 1 << 63, 63), Err(Refused));
    }

    proptest! {
        #[test]
        fn what_was_accepted_is_read_back(values in proptest::collection::vec((any::<u64>(), 0u64..4), 0..50)) {
            let mut base = ApicBase::new(false);
            for (value, mode) in values {
                // Mostly values that differ in the mode alone.
                for value in [value, 0xFEE0_0000 | mode << 10 | value & FIRST] {
                    if let Ok(new) = base.write(value, BITS) {
                        prop_assert_eq!(new.bits(), value & !FIRST);
                        base = new;
                    }
                    prop_assert!(base.bits() & EXTENDED == 0 || base.bits() & ENABLED != 0);
                    prop_assert_eq!(base.write(base.bits(), BITS), Ok(base));
                }
            }
        }
    }
}
