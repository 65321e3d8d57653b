//! The local interrupt sources of a local APIC: which entries of its local vector table there are.
//!
//! Guarantees: names every entry that the APIC says it has, the manuals' and AMD's own, and no
//! other: an access to one that isn't there is #GP.

/// Extended space exists, in the version register (APM vol. 2, 16.3.4).
const EXTENDED_SPACE: u32 = 1 << 31;
const TIMER: u32 = 0x832;
/// Timer, LINT0, LINT1, error, performance, thermal, corrected machine checks: in the order in
/// which the number of the last entry came to tell of them (SDM vol. 3, 11.4.8).
const ENTRIES: [u32; 7] = [TIMER, 0x835, 0x836, 0x837, 0x834, 0x833, 0x82F];
/// AMD's extended entries: MCA thresholds, deferred errors, instruction-based sampling, by number
/// (APM vol. 2, 16.7.1).
const EXTENDED: core::ops::Range<u32> = 0x850..0x860;

/// MSRs of the entries of the local vector table. `version`: the version register; `features`:
/// reads AMD's extended-feature register (MSR 0x840), which exists if it is asked for.
pub fn local_sources(version: u32, features: impl FnOnce() -> u32) -> impl Iterator<Item = u32> {
    let last = version >> 16 & 0xFF;
    let extended = if version & EXTENDED_SPACE != 0 { features() >> 16 & 0xFF } else { 0 };
    ENTRIES.into_iter().take(last as usize + 1).chain(EXTENDED.take(extended as usize))
}

/// Is an entry of a core that runs a vCPU as the host writes it? `timer`: the vector that the
/// timer's may have; the others are masked.
pub fn is_expected(register: u32, value: u32, timer: Option<u8>) -> bool {
    const MASKED: u32 = 1 << 16;
    const DELIVERY_MODE: u32 = 7 << 8;
    // The manuals' timer has no delivery mode, but QEMU obeys one.
    let as_timer = || register == TIMER && value & DELIVERY_MODE == 0 && timer == Some(value as u8);
    value & MASKED != 0 || as_timer()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_masked_but_the_timer() {
        for register in ENTRIES.into_iter().chain(EXTENDED) {
            assert!(is_expected(register, 0x1_0000, None) && is_expected(register, 0x1_07FF, None));
            assert!(!is_expected(register, 0x41, None));
            assert_eq!(is_expected(register, 0x41, Some(0x41)), register == 0x832);
        }
        // Periodic; another vector; delivery as an SMI, as an NMI, by an external controller.
        assert!(is_expected(TIMER, 0x2_0041, Some(0x41)));
        for wrong in [0x42, 0x241, 0x441, 0x741] {
            assert!(!is_expected(TIMER, wrong, Some(0x41)));
        }
    }

    fn named(version: u32, features: impl FnOnce() -> u32) -> Vec<u32> {
        local_sources(version, features).collect()
    }

    #[test]
    fn each_that_exists_and_no_other() {
        let none = || panic!("it doesn't exist");
        assert_eq!(named(0x14 | 2 << 16, none), [0x832, 0x835, 0x836]);
        assert_eq!(named(0x14 | 5 << 16, none), [0x832, 0x835, 0x836, 0x837, 0x834, 0x833]);
        assert_eq!(named(0x15 | 6 << 16, none).last(), Some(&0x82F));
        assert_eq!(named(0x15 | 0xFF << 16, none).len(), 7);
        let amd = named(0x8000_0010 | 3 << 16, || 4 << 16 | 7);
        assert_eq!(amd, [0x832, 0x835, 0x836, 0x837, 0x850, 0x851, 0x852, 0x853]);
        assert_eq!(named(EXTENDED_SPACE, || u32::MAX).len(), 1 + 16);
    }
}
