//! What is known to be wrong with Intel's processors, as far as it matters to whoever runs guests
//! there.
//!
//! Guarantees: of what software is told by IA32_ARCH_CAPABILITIES (SDM vol. 4, MSR 10AH) each is
//! named unless the processor says that it is free of it; one without the register says nothing.
//! The preemption timer's is by the processor's signature. Not guaranteed: that a processor has
//! what it doesn't say to be free of, and that there is nothing else.

/// Number of IA32_ARCH_CAPABILITIES, which is there if CPUID 7 EDX bit 29 is set.
pub const ARCH_CAPABILITIES: u32 = 0x10A;

/// Signatures (CPUID 1 EAX) of processors whose specification updates say that the preemption timer
/// counts wrong: Nehalem and Westmere (AAJ124, AAK139, AAM126, AAN92, AAO95, AAP86, AAT59, AAU65,
/// BA86), and one of Ivy Bridge.
const TIMER: [u32; 9] =
    [0x106A0, 0x106A1, 0x106A4, 0x106A5, 0x106E5, 0x20652, 0x20655, 0x206E6, 0x306A8];

/// By the register's bits which say that a processor is free of it, a sentence each.
const UNLESS: [(u64, &str); 3] = [
    (
        1 << 6,
        "it isn't said to be free of CVE-2018-12207 (IF_PSCHANGE_MC_NO is clear): a guest's kernel \
         may stop the machine by a machine check; run none there that you don't trust",
    ),
    (
        1 << 0,
        "it isn't said to be free of L1TF (RDCL_NO is clear): a guest may read what its core's L1 \
         cache holds of others, as no cache is flushed at an entry",
    ),
    (
        1 << 5,
        "it isn't said to be free of MDS (MDS_NO is clear): a guest may read what its core's \
         buffers hold of others, as none is cleared at an entry",
    ),
];
const COUNTS_WRONG: &str = "its preemption timer counts wrong (an erratum): on a shared core a \
                            slice may end early, or a slice late";

/// What is known of a processor with this signature (CPUID 1 EAX) and these capabilities, if it has
/// the register: sentences.
pub fn errata(signature: u32, capabilities: Option<u64>) -> impl Iterator<Item = &'static str> {
    let capabilities = capabilities.unwrap_or(0);
    let unless = UNLESS.iter().filter(move |(free, _)| capabilities & free == 0);
    let timer = TIMER.contains(&signature).then_some(COUNTS_WRONG);
    unless.map(|(_, sentence)| *sentence).chain(timer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn each_is_said_unless_the_processor_is_free_of_it() {
        let said = |signature, capabilities| errata(signature, capabilities).collect::<Vec<_>>();
        assert_eq!(said(0xB06A2, Some(1 | 1 << 5 | 1 << 6)), [""; 0]);
        assert_eq!(said(0xB06A2, Some(!0)), [""; 0]);
        for (bit, name) in [(6, "CVE-2018-12207"), (0, "L1TF"), (5, "MDS")] {
            let [one] = said(0xB06A2, Some(!(1_u64 << bit)))[..] else { panic!("{name}") };
            assert!(one.contains(name), "{one}");
        }
        assert_eq!(said(0x506E3, None).len(), 3);
        let old = said(0x106A5, None);
        assert_eq!((old.len(), old[3]), (4, COUNTS_WRONG));
        assert_eq!(said(0x106A2, Some(!0)), [""; 0]);
    }
}
