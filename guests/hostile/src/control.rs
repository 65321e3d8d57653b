//! Control and debug registers, and instructions that aren't a guest's.

use crate::fixture;
use core::{
    arch::asm,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};
use machine::{attempt, boot::Boot, cpu, edu, idt, random::Random, wait};

const SEED: u64 = 0xC0_0001;
const CR4_PAE: u64 = 0x20;
const OSXSAVE: u64 = 1 << 18;
const NOWHERE: u64 = 0x9000_0000;

/// CR0: every bit flipped alone, paging and protection too, and caches off and on.
pub fn cr0_bits(_: &str, _: &Boot) {
    let home = cpu::cr0();
    for bit in 0..64 {
        let _ = attempt!(home ^ 1 << bit, "mov cr0, {v}");
        cpu::cpuid(0);
        let _ = attempt!(home, "mov cr0, {v}");
    }
    for i in 0..2000u64 {
        let _ = attempt!(home ^ (i & 1) << 30, "mov cr0, {v}");
    }
    let _ = attempt!(home, "mov cr0, {v}");
}

/// CR4, bit by bit. Not PAE, which QEMU lets go in long mode instead of refusing; nor LA57 and what
/// would take its own memory from it.
pub fn cr4_bits(_: &str, _: &Boot) {
    const OWN: u64 = 1 << 5 | 1 << 12 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23 | 1 << 24;
    for bit in (0..64).filter(|bit| OWN >> bit & 1 == 0) {
        let _ = attempt!(CR4_PAE | 1 << bit, "mov cr4, {v}");
    }
    let _ = attempt!(CR4_PAE, "mov cr4, {v}");
}

#[repr(C, align(4096))]
struct PageTable([AtomicU64; 512]);
static COPY: PageTable = PageTable([const { AtomicU64::new(0) }; 512]);

unsafe extern "C" {
    static pml4: [AtomicU64; 512];
}

/// CR3 reloaded thousands of times, pointing at a copy of its tables elsewhere and back, with
/// interrupts and exits on either.
pub fn cr3_storm(_: &str, _: &Boot) {
    // SAFETY: the boot code's top-level table.
    let own = unsafe { &pml4 };
    COPY.0.iter().zip(own).for_each(|(to, from)| to.store(from.load(SeqCst), SeqCst));
    cpu::enable_interrupts();
    for i in 0..20_000u32 {
        for table in [&COPY.0, own] {
            // SAFETY: the same translations again.
            unsafe { asm!("mov cr3, {}", in(reg) table.as_ptr()) }
            match i % 32 {
                0 => edu::raise(),
                1 => {
                    cpu::cpuid(0);
                }
                _ => {}
            }
        }
    }
    cpu::disable_interrupts();
}

/// XCR0 with what no CPU takes, then with what this one does.
pub fn xcr0(_: &str, _: &Boot) {
    if cpu::cpuid(1).ecx >> 26 & 1 == 0 {
        return fixture::skip("the CPU has no XSAVE");
    }
    let _ = attempt!(OSXSAVE | CR4_PAE, "mov cr4, {v}");
    let mut random = Random::new(SEED);
    for i in 0..300u64 {
        let value = if i < 64 { 1 << i } else { random.number() };
        let _ = cpu::try_xcr0(value);
        let _ = attempt!(value, "mov rax, {v}", "mov rdx, 0", "mov rcx, {v}", "xsetbv");
    }
    let _ = cpu::try_xcr0(7);
    let _ = attempt!(CR4_PAE, "mov cr4, {v}");
}

/// Debug registers: breakpoints on the table's page and on the host's addresses, reserved bits,
/// single steps through an exit.
pub fn debug(_: &str, _: &Boot) {
    idt::on(1, |frame| {
        frame.rflags &= !0x100;
        // SAFETY: breakpoints off.
        unsafe { asm!("mov dr7, {}", in(reg) 0x400u64) }
    });
    for address in [idt::arena(0), 0xFED0_0000, 0x10_0000, !0u64 << 47] {
        let _ = attempt!(address, "mov dr0, {v}");
        let _ = attempt!(address, "mov dr3, {v}");
        for control in [0x3u64, 0x3_0003, 0xF_0003, 0xF0F0_00FF, 0x2000 | 0xFF, !0] {
            let _ = attempt!(control, "mov dr7, {v}");
            cpu::cpuid(0);
            let _ = attempt!(0x400u64, "mov dr7, {v}");
        }
    }
    let _ = attempt!(!0u64, "mov dr6, {v}");
    for _ in 0..200 {
        // SAFETY: the handler ends single-stepping; RBX is kept.
        unsafe {
            asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq", "mov {b}, rbx", "xor eax, eax", "cpuid",
                 "mov rbx, {b}", "nop", b = out(reg) _, out("eax") _, out("ecx") _, out("edx") _)
        }
    }
    let _ = attempt!(0u64, "mov dr0, {v}");
    let _ = attempt!(0u64, "mov dr3, {v}");
    let _ = attempt!(0x400u64, "mov dr7, {v}");
}

macro_rules! each {
    ($value:expr, $($bytes:literal),+ $(,)?) => { $(
        let _ = attempt!($value, "mov rax, {v}", "xor ecx, ecx", "xor edx, edx", $bytes);
    )+ };
}

/// SVM's and VMX's instructions, on addresses of its own, of nobody's and of the host's.
pub fn virtualization(_: &str, _: &Boot) {
    for address in [0x20_0000u64, 0, NOWHERE, 0xFED9_0000, 1 << 40, !0xFFF] {
        for _ in 0..20 {
            each!(
                address,
                ".byte 0x0F, 0x01, 0xD8", // VMRUN
                ".byte 0x0F, 0x01, 0xD9", // VMMCALL
                ".byte 0x0F, 0x01, 0xDA", // VMLOAD
                ".byte 0x0F, 0x01, 0xDB", // VMSAVE
                ".byte 0x0F, 0x01, 0xDC", // STGI
                ".byte 0x0F, 0x01, 0xDD", // CLGI
                ".byte 0x0F, 0x01, 0xDE", // SKINIT
                ".byte 0x0F, 0x01, 0xDF", // INVLPGA
                ".byte 0x0F, 0x01, 0xC1", // VMCALL
                ".byte 0x0F, 0x01, 0xC2", // VMLAUNCH
                ".byte 0x0F, 0x01, 0xC3", // VMRESUME
                ".byte 0x0F, 0x01, 0xC4", // VMXOFF
                ".byte 0x0F, 0x01, 0xD4", // VMFUNC
                // VMXON, VMCLEAR, VMPTRLD, VMPTRST, VMREAD, VMWRITE, INVEPT, INVVPID, with what is
                // on the stack.
                ".byte 0xF3, 0x0F, 0xC7, 0x34, 0x24",
                ".byte 0x66, 0x0F, 0xC7, 0x34, 0x24",
                ".byte 0x0F, 0xC7, 0x34, 0x24",
                ".byte 0x0F, 0xC7, 0x3C, 0x24",
                ".byte 0x0F, 0x78, 0x04, 0x24",
                ".byte 0x0F, 0x79, 0x04, 0x24",
                ".byte 0x66, 0x0F, 0x38, 0x80, 0x04, 0x24",
                ".byte 0x66, 0x0F, 0x38, 0x81, 0x04, 0x24",
                // SEAMCALL, TDCALL.
                ".byte 0x66, 0x0F, 0x01, 0xCF",
                ".byte 0x66, 0x0F, 0x01, 0xCC",
                ".byte 0x0F, 0xAA",       // RSM
                ".byte 0x0F, 0x37",       // GETSEC
                ".byte 0x0F, 0x01, 0xCF", // ENCLS
            );
        }
    }
    // What a CLGI that worked would have left.
    cpu::enable_interrupts();
    wait::settle();
    cpu::disable_interrupts();
}

/// Instructions that stop or slow a core: MONITOR, MWAIT, PAUSE, WBINVD, INVD, in loops.
pub fn slow(_: &str, _: &Boot) {
    for _ in 0..500 {
        each!(
            0x20_0000u64,
            ".byte 0x0F, 0x01, 0xC8", // MONITOR
            ".byte 0x0F, 0x09",       // WBINVD
            ".byte 0x0F, 0x08",       // INVD
            ".byte 0xF3, 0x0F, 0x09", // WBNOINVD
            ".byte 0xF3, 0x90",       // PAUSE
        );
    }
    (0..200_000).for_each(|_| cpu::pause());
}

/// MWAIT with nothing to wait for. A timer's interrupt ends it where it is MWAIT.
pub fn mwait(_: &str, _: &Boot) {
    use machine::x2apic;
    idt::on(0x51, |_| x2apic::complete());
    cpu::enable_interrupts();
    x2apic::start_timer(0x51, true, 10_000_000);
    for _ in 0..20 {
        each!(0x20_0000u64, ".byte 0x0F, 0x01, 0xC8", ".byte 0x0F, 0x01, 0xC9");
    }
    x2apic::stop_timer();
}

/// Counters, random numbers, identity: whatever else has an opcode and might be the host's.
pub fn others(_: &str, _: &Boot) {
    for selector in [0u64, 1, 0x4000_0000, 0xFFFF_FFFF] {
        each!(
            selector,
            ".byte 0x0F, 0x33",                         // RDPMC
            ".byte 0x0F, 0x01, 0xF9",                   // RDTSCP
            ".byte 0x0F, 0x01, 0xFD",                   // RDPRU
            ".byte 0x0F, 0x01, 0xEE",                   // RDPKRU
            ".byte 0x0F, 0x01, 0xEF",                   // WRPKRU
            ".byte 0x0F, 0x01, 0xD0",                   // XGETBV
            ".byte 0x0F, 0x01, 0xFE",                   // INVLPGB
            ".byte 0x0F, 0x01, 0xFF",                   // TLBSYNC
            ".byte 0x0F, 0x06",                         // CLTS
            ".byte 0x0F, 0x0B",                         // UD2
            ".byte 0xF1",                               // ICEBP
            ".byte 0x66, 0x0F, 0x38, 0x82, 0x04, 0x24", // INVPCID, by what is on the stack
        );
    }
}
