//! CPUID: whatever the processor says, the guest isn't shown what it isn't offered, and filtering
//! what was filtered changes nothing.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use virtual_pc::cpuid::{CpuidContext, CpuidResult, XCR0_OFFERED, filter, xcr0_allowed};

#[derive(Arbitrary, Debug)]
struct Input {
    leaf: Leaf,
    subleaf: u32,
    physical: [u32; 4],
    apic_id: u32,
    cpus: u32,
    apic: bool,
    osxsave: bool,
    pke: bool,
    max_basic: u32,
    max_extended: u32,
    ledger_page: u64,
    xcr0: (u64, u64),
}

#[derive(Arbitrary, Debug)]
enum Leaf {
    Basic(u8),
    Extended(u8),
    Hypervisor(u16),
    Any(u32),
}

fuzz_target!(|input: Input| {
    let leaf = match input.leaf {
        Leaf::Basic(low) => u32::from(low) % 0x28,
        Leaf::Extended(low) => 0x8000_0000 | u32::from(low) % 0x28,
        Leaf::Hypervisor(low) => 0x4000_0000 | u32::from(low),
        Leaf::Any(leaf) => leaf,
    };
    let [eax, ebx, ecx, edx] = input.physical;
    let physical = CpuidResult { eax, ebx, ecx, edx };
    let vcpu = CpuidContext {
        apic_id: input.apic_id,
        cpus: input.cpus,
        apic: input.apic,
        osxsave: input.osxsave,
        pke: input.pke,
        max_basic: input.max_basic,
        max_extended: input.max_extended,
        ledger_page: input.ledger_page,
        svm: None,
    };
    let shown = filter(leaf, input.subleaf, physical, &vcpu);
    assert_eq!(filter(leaf, input.subleaf, shown, &vcpu), shown);
    match leaf {
        // MONITOR, VMX, SMX, PDCM, TSC deadline; then what the guest always has.
        1 if leaf <= vcpu.max_basic => {
            assert_eq!(shown.ecx & (1 << 3 | 1 << 5 | 1 << 6 | 1 << 15 | 1 << 24), 0);
            assert_eq!(shown.ecx & (1 << 21 | 1 << 31), 1 << 21 | 1 << 31);
        }
        // SGX, TSX (two), PT; LA57, SGX_LC.
        7 if input.subleaf == 0 => {
            assert_eq!(shown.ebx & (1 << 2 | 1 << 4 | 1 << 11 | 1 << 25), 0);
            assert_eq!(shown.ecx & (1 << 16 | 1 << 30), 0);
        }
        0xA | 0x12 | 0x14 | 0x8000_000A | 0x8000_001B | 0x8000_001F => {
            assert_eq!(shown, CpuidResult::default());
        }
        // SVM, SKINIT, IBS, performance counters.
        0x8000_0001 => assert_eq!(shown.ecx & (1 << 2 | 1 << 10 | 1 << 12 | 1 << 23), 0),
        _ => {}
    }

    let (value, supported) = input.xcr0;
    for value in [value, value & XCR0_OFFERED] {
        if xcr0_allowed(value, supported) {
            assert!(value & 1 != 0 && value & !(supported & XCR0_OFFERED) == 0);
            let avx512 = value & 0xE0;
            assert!(value & 4 == 0 || value & 2 != 0);
            assert!(avx512 == 0 || (avx512 == 0xE0 && value & 4 != 0));
        }
    }
});
