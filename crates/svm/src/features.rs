//! The features of a CPU's SVM by CPUID, as far as they decide how guests run.

/// Optional parts of the extension (CPUID 8000_000A EDX, APM vol. 3, appendix E.4.9), and whether
/// the CPU is an emulated one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Nested paging, which the hypervisor needs.
    pub nested_paging: bool,
    /// An exit for an instruction tells the address of the next one.
    pub next_rip: bool,
    /// A nested page fault tells the bytes of the instruction.
    pub decode_assists: bool,
    /// VMLOAD and VMSAVE by a guest, with its own physical addresses.
    pub virtual_loads: bool,
    /// A guest's CLGI and STGI change a virtual flag.
    pub virtual_gif: bool,
    /// The CPU is QEMU's, by its own word: see [`crate::emulator`].
    pub emulated: bool,
}

impl Features {
    /// `edx`: of CPUID 8000_000A; `signature`: EBX, ECX, EDX of CPUID 4000_0000, if CPUID 1 ECX
    /// bit 31 says that the leaf exists.
    pub fn new(edx: u32, signature: Option<[u32; 3]>) -> Self {
        let bit = |n: u32| edx >> n & 1 != 0;
        Features {
            nested_paging: bit(0),
            next_rip: bit(3),
            decode_assists: bit(7),
            virtual_loads: bit(15),
            virtual_gif: bit(16),
            emulated: signature.is_some_and(crate::emulator::is_qemu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_its_own() {
        assert_eq!(Features::new(0, None), Features::default());
        let only = |n: u32| Features::new(1 << n, None);
        assert!(only(0).nested_paging && !only(0).next_rip);
        assert!(only(3).next_rip && !only(3).decode_assists);
        assert!(only(7).decode_assists && !only(7).nested_paging);
        assert!(only(15).virtual_loads && !only(15).virtual_gif);
        assert!(only(16).virtual_gif && !only(16).virtual_loads);
        let all = Features::new(u32::MAX, None);
        assert!(!all.emulated && all.nested_paging);
    }
}
