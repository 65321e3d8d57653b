//! The features that a guest is shown where the CPU has them, bit by bit.
//!
//! Left out on purpose, because their MSRs or states aren't the guest's: SVM, VMX,
//! SKINIT, SMX, MONITOR/MWAIT(X), performance counters and everything that samples
//! or traces (DS, PDCM, IBS, PT, LBR, LWP, RDPRU), TSC_DEADLINE, TSC_ADJUST, thermal
//! and power management, SGX, SEV, TME, key locker, resource control, WAITPKG, TSX,
//! ENQCMD, PASID, CET, FRED, UINTR, protection keys for supervisors, AMX, MPX, LAM,
//! five-level paging, APX, AVX10.

use super::CpuidResult;
use crate::msr::{EFER_LME, EFER_NXE, EFER_SCE};

const fn bits(list: &[u32]) -> u32 {
    let (mut mask, mut i) = (0, 0);
    while i < list.len() {
        mask |= 1 << list[i];
        i += 1;
    }
    mask
}

/// User states of XCR0: x87, SSE, AVX, AVX-512 (three), protection keys.
pub const XCR0_OFFERED: u64 = 1 | 1 << 1 | 1 << 2 | 7 << 5 | 1 << 9;

/// SSE3, PCLMULQDQ, SSSE3, FMA, CMPXCHG16B, PCID, SSE4.1, SSE4.2, MOVBE, POPCNT,
/// AES, XSAVE, AVX, F16C, RDRAND.
pub(super) const LEAF_1_ECX: u32 = bits(&[0, 1, 9, 12, 13, 17, 19, 20, 22, 23, 25, 26, 28, 29, 30]);
/// OSXSAVE follows it by one bit.
pub(super) const LEAF_1_ECX_XSAVE: u32 = 1 << 26;
pub(super) const LEAF_1_ECX_X2APIC: u32 = 1 << 21;
pub(super) const LEAF_1_ECX_HYPERVISOR: u32 = 1 << 31;
/// FPU, VME, DE, PSE, TSC, MSR, PAE, MCE, CMPXCHG8B, APIC, SYSENTER, MTRR, PGE, MCA,
/// CMOV, PAT, PSE36, CLFLUSH, MMX, FXSR, SSE, SSE2, self snoop.
pub(super) const LEAF_1_EDX: u32 =
    bits(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 19, 23, 24, 25, 26, 27]);
pub(super) const LEAF_1_EDX_APIC: u32 = 1 << 9;
pub(super) const LEAF_1_EDX_HTT: u32 = 1 << 28;

/// FSGSBASE, BMI1, AVX2, x87 data pointer on exceptions only, SMEP, BMI2, ERMS,
/// INVPCID, no x87 CS/DS, AVX512F, AVX512DQ, RDSEED, ADX, SMAP, AVX512IFMA,
/// CLFLUSHOPT, CLWB, AVX512PF, AVX512ER, AVX512CD, SHA, AVX512BW, AVX512VL.
pub(super) const LEAF_7_EBX: u32 =
    bits(&[0, 3, 5, 6, 7, 8, 9, 10, 13, 16, 17, 18, 19, 20, 21, 23, 24, 26, 27, 28, 29, 30, 31]);
/// PREFETCHWT1, AVX512VBMI, UMIP, PKU, VBMI2, GFNI, VAES, VPCLMULQDQ, AVX512VNNI,
/// BITALG, VPOPCNTDQ, RDPID, CLDEMOTE, MOVDIRI, MOVDIR64B.
pub(super) const LEAF_7_ECX: u32 = bits(&[0, 1, 2, 3, 6, 8, 9, 10, 11, 12, 14, 22, 25, 27, 28]);
/// OSPKE follows it by one bit.
pub(super) const LEAF_7_ECX_PKU: u32 = 1 << 3;
/// AVX512_4VNNIW, AVX512_4FMAPS, fast short REP MOV, VP2INTERSECT, MD_CLEAR,
/// SERIALIZE, AVX512_FP16, SPEC_CTRL and IBPB, STIBP, L1D_FLUSH, ARCH_CAPABILITIES, SSBD.
pub(super) const LEAF_7_EDX: u32 = bits(&[2, 3, 4, 8, 10, 14, 23, 26, 27, 28, 29, 31]);
/// SHA512, SM3, SM4, AVX-VNNI, AVX512_BF16, CMPCCXADD, fast REP MOV, STOS, CMPS, AVX-IFMA.
pub(super) const LEAF_7_1_EAX: u32 = bits(&[0, 1, 2, 4, 5, 7, 10, 11, 12, 23]);
/// AVX-VNNI-INT8, AVX-NE-CONVERT, AVX-VNNI-INT16, PREFETCHI.
pub(super) const LEAF_7_1_EDX: u32 = bits(&[4, 5, 10, 14]);
/// The further bits of SPEC_CTRL (PSFD, IPRED, RRSBA, DDPD_U, BHI) and MCDT_NO.
pub(super) const LEAF_7_2_EDX: u32 = bits(&[0, 1, 2, 3, 4, 5]);

/// XSAVEOPT, XSAVEC, XGETBV with ECX = 1, XSAVES; not XFD.
pub(super) const LEAF_D_1_EAX: u32 = bits(&[0, 1, 2, 3]);

/// LAHF in long mode, LOCK MOV CR0 as CR8, ABM, SSE4A, misaligned SSE, PREFETCHW,
/// XOP, FMA4, TBM, topology extensions. Legacy multi-core is decided by the count.
pub(super) const EXTENDED_1_ECX: u32 = bits(&[0, 4, 5, 6, 7, 8, 11, 16, 21, 22]);
pub(super) const EXTENDED_1_ECX_MULTI_CORE: u32 = 1 << 1;
pub(super) const EXTENDED_1_ECX_SVM: u32 = 1 << 2;
/// As leaf 1, where AMD repeats it, with SYSCALL, NX, MMX extensions, FFXSR, 1 GiB
/// pages, RDTSCP, long mode, 3DNow!.
pub(super) const EXTENDED_1_EDX: u32 = bits(&[
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 20, 22, 23, 24, 25, 26, 27, 29, 30,
    31,
]);
pub(super) const EXTENDED_1_EDX_FFXSR: u32 = 1 << 25;
pub(super) const EXTENDED_1_EDX_NX: u32 = 1 << 20;
/// The TSC runs at one rate in every state.
pub(super) const INVARIANT_TSC: u32 = 1 << 8;
/// CLZERO, x87 pointers always restored, WBNOINVD, IBPB, IBRS, STIBP, IBRS always on,
/// STIBP always on, IBRS preferred, same-mode IBRS, EFER.LMSLE unsupported, SSBD, SSB_NO,
/// PSFD, BTC_NO, IBPB clears returns.
pub(super) const EXTENDED_8_EBX: u32 =
    bits(&[0, 2, 9, 12, 14, 15, 16, 17, 18, 19, 20, 24, 26, 28, 29, 30]);
/// No nested data breakpoints, LFENCE serialises, null selector clears base,
/// automatic IBRS, fast short REP STOS and CMPS, SBPB, IBPB of branch types, SRSO_NO,
/// SRSO only between user and kernel.
pub(super) const EXTENDED_21_EAX: u32 = bits(&[0, 2, 6, 8, 10, 11, 27, 28, 29, 30]);
pub(super) const EXTENDED_21_EAX_AUTOMATIC_IBRS: u32 = 1 << 8;

/// The CR4 bits that a guest to whom these leaves 1 and 7 are shown may set (APM vol. 2, 3.1.3).
pub const fn cr4_offered(leaf_1: CpuidResult, leaf_7: CpuidResult) -> u64 {
    // PCE has no feature.
    let mut offered = 1 << 8;
    // For each bit of CR4 the register, and the bit of it.
    let mut i = 0;
    let features = [
        (0, leaf_1.edx, 1),
        (1, leaf_1.edx, 1),
        (2, leaf_1.edx, 4),
        (3, leaf_1.edx, 2),
        (4, leaf_1.edx, 3),
        (5, leaf_1.edx, 6),
        (6, leaf_1.edx, 7),
        (7, leaf_1.edx, 13),
        (9, leaf_1.edx, 24),
        (10, leaf_1.edx, 25),
        (11, leaf_7.ecx, 2),
        (16, leaf_7.ebx, 0),
        (17, leaf_1.ecx, 17),
        (18, leaf_1.ecx, 26),
        (20, leaf_7.ebx, 7),
        (21, leaf_7.ebx, 20),
        (22, leaf_7.ecx, 3),
    ];
    while i < features.len() {
        let (bit, register, feature) = features[i];
        if register >> feature & 1 != 0 {
            offered |= 1 << bit;
        }
        i += 1;
    }
    offered
}

/// The EFER bits that the guest may set, by the features it is shown (APM vol. 2,
/// 3.1.7): system call, long mode, no-execute, fast FXSAVE, automatic IBRS. SVME,
/// LMSLE and TCE aren't offered. Takes the physical leaves 0x8000_0001 and 0x8000_0021.
pub const fn efer_offered(leaf_1: CpuidResult, leaf_21: CpuidResult) -> u64 {
    let mut offered = EFER_SCE | EFER_LME;
    if leaf_1.edx & EXTENDED_1_EDX_NX != 0 {
        offered |= EFER_NXE;
    }
    if leaf_1.edx & EXTENDED_1_EDX_FFXSR != 0 {
        offered |= 1 << 14;
    }
    if leaf_21.eax & EXTENDED_21_EAX_AUTOMATIC_IBRS != 0 {
        offered |= 1 << 21;
    }
    offered
}
