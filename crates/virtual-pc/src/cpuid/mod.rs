//! CPUID as the guest sees it: a policy from leaf to leaf.
//!
//! Guarantees that features are shown from a list, never by default: a bit or leaf
//! that isn't named here reads zero, so what a newer CPU adds stays hidden until it
//! is understood. Shown features need nothing from the host but the MSRs that
//! [`crate::msr::PASSED_THROUGH`] names. The vCPUs are single-threaded cores of one
//! package. Leaves beyond the highest read zero, as on AMD (Intel repeats the
//! highest one; nothing relies on it).
//!
//! Bits and leaves: APM vol. 3, appendix E, and SDM vol. 2, CPUID.

mod features;

use features::*;
pub use features::{XCR0_OFFERED, efer_offered};

/// First leaf of hypervisors.
const HYPERVISOR: u32 = 0x4000_0000;
/// Where KVM's leaves stand when the first hypervisor leaf is another's.
const KVM: u32 = 0x4000_0100;
/// Highest basic and extended leaf that anything is shown of.
const MAX_BASIC: u32 = 0x1F;
const MAX_EXTENDED: u32 = 0x8000_0021;
/// The topology leaf that an x2APIC needs, so the least that leaf 0 says.
const TOPOLOGY: u32 = 0x0B;

/// The four registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidResult {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// The inputs of CPUID besides the leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidContext {
    /// The vCPU's x2APIC id, which is its index.
    pub apic_id: u32,
    /// How many vCPUs the VM has; zero counts as one.
    pub cpus: u32,
    /// Its local APIC isn't globally disabled (SDM vol. 3, 11.4.3).
    pub apic: bool,
    /// The guest's CR4.OSXSAVE.
    pub osxsave: bool,
    /// The guest's CR4.PKE.
    pub pke: bool,
    /// Physical leaf 0, EAX.
    pub max_basic: u32,
    /// Physical leaf 0x8000_0000, EAX.
    pub max_extended: u32,
    /// Guest-physical address of the vCPU's ledger page.
    pub ledger_page: u64,
    /// Leaf 0x8000_000A, where the guest is offered SVM.
    pub svm: Option<&'static CpuidResult>,
}

/// What the guest reads from `leaf` and `subleaf`, given what the CPU it runs on
/// says. For leaf 0xD the physical CPUID must be executed with the guest's XCR0.
pub fn filter(leaf: u32, subleaf: u32, physical: CpuidResult, vcpu: &CpuidContext) -> CpuidResult {
    let beyond = match leaf {
        0..HYPERVISOR => leaf > vcpu.max_basic && leaf != TOPOLOGY,
        0x8000_0000.. => leaf > vcpu.max_extended,
        _ => false,
    };
    if beyond {
        return CpuidResult::default();
    }
    let r = physical;
    match leaf {
        0 => CpuidResult { eax: r.eax.clamp(TOPOLOGY, MAX_BASIC), ..r },
        1 => processor(r, vcpu),
        // Cache and TLB descriptors; TSC and crystal clock; nominal frequencies.
        2 | 0x15 | 0x16 => r,
        4 => CpuidResult { eax: cache_sharing(r.eax, vcpu) | cores(r.eax, vcpu), ..r },
        // The local APIC timer never stops (ARAT): no guest idle state stops it.
        6 => CpuidResult { eax: 1 << 2, ..CpuidResult::default() },
        7 => structured(subleaf, r, vcpu),
        TOPOLOGY | 0x1F => topology(subleaf, vcpu),
        0xD => xstate(subleaf, r),
        HYPERVISOR => {
            let word = |s: &[u8; 4]| u32::from_le_bytes(*s);
            let (ebx, ecx, edx) = (word(b"Exit"), word(b"less"), word(b"HypV"));
            CpuidResult { eax: HYPERVISOR + 1, ebx, ecx, edx }
        }
        0x4000_0001 => CpuidResult {
            eax: vcpu.ledger_page as u32,
            ebx: (vcpu.ledger_page >> 32) as u32,
            ecx: 1,
            edx: vcpu.apic_id,
        },
        0x8000_0000 => CpuidResult { eax: r.eax.min(MAX_EXTENDED), ..r },
        0x8000_0001 => extended(r, vcpu),
        // Brand string; caches and TLBs; TLBs for 1 GiB pages; performance hints.
        0x8000_0002..=0x8000_0006 | 0x8000_0019 | 0x8000_001A => r,
        0x8000_0007 => CpuidResult { edx: r.edx & INVARIANT_TSC, ..CpuidResult::default() },
        0x8000_0008 => CpuidResult {
            eax: address_sizes(r.eax),
            ebx: r.ebx & EXTENDED_8_EBX,
            ecx: shift(vcpu) << 12 | last_cpu(vcpu).min(0xFF),
            edx: 0,
        },
        0x8000_000A => vcpu.svm.copied().unwrap_or_default(),
        0x8000_001D => CpuidResult { eax: cache_sharing(r.eax, vcpu), ..r },
        // One core per vCPU, one thread per core, one node.
        0x8000_001E => {
            CpuidResult { eax: vcpu.apic_id, ebx: vcpu.apic_id & 0xFF, ..CpuidResult::default() }
        }
        0x8000_0021 => CpuidResult { eax: r.eax & EXTENDED_21_EAX, ..CpuidResult::default() },
        // Linux keeps x2APIC without an IOMMU's interrupt remapping only under a hypervisor that it
        // knows. This is KVM's interface, where KVM itself puts it beside another one's, and it
        // offers none of its features.
        KVM => {
            let word = |s: &[u8; 4]| u32::from_le_bytes(*s);
            let (ebx, ecx, edx) = (word(b"KVMK"), word(b"VMKV"), word(b"M\0\0\0"));
            CpuidResult { eax: KVM + 1, ebx, ecx, edx }
        }
        _ => CpuidResult::default(),
    }
}

/// The CR4 bits that a guest may set on a CPU whose leaves are `physical`.
pub fn offered_cr4(physical: impl Fn(u32) -> CpuidResult) -> u64 {
    let context = CpuidContext { max_basic: u32::MAX, ..CpuidContext::default() };
    let shown = |leaf| filter(leaf, 0, physical(leaf), &context);
    cr4_offered(shown(1), shown(7))
}

/// Whether a guest may load XCR0 with `value` on a CPU that supports the states in
/// `physical` (SDM vol. 1, 13.3); otherwise XSETBV gets #GP.
pub const fn xcr0_allowed(value: u64, physical: u64) -> bool {
    let (x87, sse, avx, avx512) = (1, 1 << 1, 1 << 2, 7 << 5);
    value & !(physical & XCR0_OFFERED) == 0
        && value & x87 != 0
        && (value & avx == 0 || value & sse != 0)
        && (value & avx512 == 0 || value & (avx512 | avx) == avx512 | avx)
}

/// The highest vCPU number, within what every leaf's fields can say.
fn last_cpu(vcpu: &CpuidContext) -> u32 {
    vcpu.cpus.saturating_sub(1).min(0xFFF)
}

/// Bits of an APIC id that tell the VM's cores apart.
fn shift(vcpu: &CpuidContext) -> u32 {
    u32::BITS - last_cpu(vcpu).leading_zeros()
}

fn processor(r: CpuidResult, vcpu: &CpuidContext) -> CpuidResult {
    let clflush = r.ebx & 0xFF00;
    let osxsave = if vcpu.osxsave { r.ecx & LEAF_1_ECX_XSAVE } else { 0 } << 1;
    let htt = if last_cpu(vcpu) > 0 { LEAF_1_EDX_HTT } else { 0 };
    let apic = if vcpu.apic { LEAF_1_EDX_APIC } else { 0 };
    CpuidResult {
        eax: r.eax,
        ebx: vcpu.apic_id << 24 | vcpu.cpus.clamp(1, 0xFF) << 16 | clflush,
        ecx: r.ecx & LEAF_1_ECX | LEAF_1_ECX_X2APIC | LEAF_1_ECX_HYPERVISOR | osxsave,
        edx: r.edx & LEAF_1_EDX & !LEAF_1_EDX_APIC | apic | htt,
    }
}

fn structured(subleaf: u32, r: CpuidResult, vcpu: &CpuidContext) -> CpuidResult {
    let ospke = if vcpu.pke { r.ecx & LEAF_7_ECX_PKU } else { 0 } << 1;
    match subleaf {
        0 => CpuidResult {
            eax: r.eax.min(2),
            ebx: r.ebx & LEAF_7_EBX,
            ecx: r.ecx & LEAF_7_ECX | ospke,
            edx: r.edx & LEAF_7_EDX,
        },
        1 => CpuidResult { eax: r.eax & LEAF_7_1_EAX, ebx: 0, ecx: 0, edx: r.edx & LEAF_7_1_EDX },
        2 => CpuidResult { edx: r.edx & LEAF_7_2_EDX, ..CpuidResult::default() },
        _ => CpuidResult::default(),
    }
}

fn extended(r: CpuidResult, vcpu: &CpuidContext) -> CpuidResult {
    let multi_core = if last_cpu(vcpu) > 0 { EXTENDED_1_ECX_MULTI_CORE } else { 0 };
    // AMD repeats the bit here.
    let apic = if vcpu.apic { 0 } else { LEAF_1_EDX_APIC };
    let edx = r.edx & EXTENDED_1_EDX & !apic;
    let svm = if vcpu.svm.is_some() { EXTENDED_1_ECX_SVM } else { 0 };
    CpuidResult { ecx: r.ecx & (EXTENDED_1_ECX | multi_core | svm), edx, ..r }
}

/// Leaves 0xB and 0x1F: a level of threads (one per core), a level of cores, the end.
fn topology(subleaf: u32, vcpu: &CpuidContext) -> CpuidResult {
    let (shift, count, level) = match subleaf {
        0 => (0, 1, 1),
        1 => (shift(vcpu), last_cpu(vcpu) + 1, 2),
        _ => (0, 0, 0),
    };
    CpuidResult { eax: shift, ebx: count, ecx: level << 8 | subleaf & 0xFF, edx: vcpu.apic_id }
}

/// Leaf 0xD: the states offered, without any supervisor state (XSS stays zero).
fn xstate(subleaf: u32, r: CpuidResult) -> CpuidResult {
    match subleaf {
        0 => CpuidResult {
            eax: r.eax & XCR0_OFFERED as u32,
            edx: r.edx & (XCR0_OFFERED >> 32) as u32,
            ..r
        },
        1 => CpuidResult { eax: r.eax & LEAF_D_1_EAX, ebx: r.ebx, ecx: 0, edx: 0 },
        2..64 if XCR0_OFFERED >> subleaf & 1 != 0 => r,
        _ => CpuidResult::default(),
    }
}

/// Leaf 4 and 0x8000_001D, EAX: a cache's type and level, and in bits 25:14 how
/// many share it: nobody up to level 2, all vCPUs beyond.
fn cache_sharing(eax: u32, vcpu: &CpuidContext) -> u32 {
    let (kind, level) = (eax & 0x1F, eax >> 5 & 7);
    let sharers = if kind != 0 && level > 2 { last_cpu(vcpu) } else { 0 };
    eax & 0x3FFF | sharers << 14
}

/// Leaf 4, EAX bits 31:26: highest core number in the package.
fn cores(eax: u32, vcpu: &CpuidContext) -> u32 {
    if eax & 0x1F == 0 { 0 } else { last_cpu(vcpu).min(0x3F) << 26 }
}

/// Leaf 0x8000_0008, EAX: physical and linear address bits, the latter without
/// five-level paging, which isn't shown.
fn address_sizes(eax: u32) -> u32 {
    eax & 0xFF | (eax >> 8 & 0xFF).min(48) << 8
}

#[cfg(test)]
mod tests;
