//! The instructions Rust has no words for: ports, MSRs, control registers,
//! descriptor tables, interrupt flag, and device memory.
//!
//! Safe functions here are safe in this kernel: it owns the machine it runs on,
//! keeps nothing in the registers they change and maps all memory one to one.
//! Whether the *host* stays safe is what the tests are for.

use crate::idt::{self, Fault};
use core::arch::{asm, x86_64};
use core::ops::RangeInclusive;

/// The ranges of MSRs that the SVM permission map covers (APM 15.11), and some that it doesn't.
pub const MSRS: [RangeInclusive<u32>; 6] = [
    0..=0x1FFF,
    0x4000_0000..=0x4000_01FF,
    0x4B56_4D00..=0x4B56_4D10,
    0xC000_0000..=0xC000_1FFF,
    0xC001_0000..=0xC001_1FFF,
    0xFFFF_FF00..=0xFFFF_FFFF,
];

/// OUT of one byte.
pub fn outb(port: u16, value: u8) {
    // SAFETY: OUT touches no memory of this kernel.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) }
}

/// OUT of two bytes.
pub fn outw(port: u16, value: u16) {
    // SAFETY: OUT touches no memory of this kernel.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nomem, nostack)) }
}

/// OUT of four bytes.
pub fn outl(port: u16, value: u32) {
    // SAFETY: OUT touches no memory of this kernel.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack)) }
}

/// IN of one byte.
pub fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: IN touches no memory of this kernel.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack)) }
    value
}

/// IN of two bytes.
pub fn inw(port: u16) -> u16 {
    let value;
    // SAFETY: IN touches no memory of this kernel.
    unsafe { asm!("in ax, dx", in("dx") port, out("ax") value, options(nomem, nostack)) }
    value
}

/// IN of four bytes.
pub fn inl(port: u16) -> u32 {
    let value;
    // SAFETY: IN touches no memory of this kernel.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack)) }
    value
}

/// OUTSB of `bytes` with a REP prefix.
pub fn out_string(port: u16, bytes: &[u8]) {
    // SAFETY: reads exactly the slice; DF is clear.
    unsafe {
        asm!("rep outsb", in("dx") port, inout("rsi") bytes.as_ptr() => _,
             inout("rcx") bytes.len() => _, options(nostack, readonly))
    }
}

/// RDMSR of a register that exists.
pub fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: RDMSR changes only its outputs; a #GP ends the test with a report.
    unsafe {
        asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nomem, nostack))
    }
    u64::from(high) << 32 | u64::from(low)
}

/// WRMSR of a register that exists.
pub fn wrmsr(msr: u32, value: u64) {
    // SAFETY: the registers written here steer interrupts, never memory. Not `nomem`:
    // handlers that an interrupt brings run inside.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32,
             options(nostack))
    }
}

/// RDMSR of a register that may not exist.
pub fn try_rdmsr(msr: u32) -> Result<u64, Fault> {
    let (low, high): (u32, u32);
    idt::expect_fault();
    // SAFETY: a fault resumes at label 2, with the outputs as they were.
    unsafe {
        asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", "rdmsr", "2:",
             t = out(reg) _, r = in(reg) idt::recovery(),
             in("ecx") msr, inout("eax") 0u32 => low, inout("edx") 0u32 => high)
    }
    idt::take_fault().map_or(Ok(u64::from(high) << 32 | u64::from(low)), Err)
}

/// WRMSR of a register that may not exist or may refuse the value.
pub fn try_wrmsr(msr: u32, value: u64) -> Result<(), Fault> {
    idt::expect_fault();
    // SAFETY: a fault resumes at label 2. The registers written never remap memory.
    unsafe {
        asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", "wrmsr", "2:",
             t = out(reg) _, r = in(reg) idt::recovery(),
             in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32)
    }
    idt::take_fault().map_or(Ok(()), Err)
}

/// A load of four bytes from an address that may not be there.
pub fn try_load(address: u64) -> Result<u32, Fault> {
    let value: u32;
    idt::expect_fault();
    // SAFETY: only reads; a fault resumes at label 2.
    unsafe {
        asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", "mov {v:e}, [{a}]", "2:",
             t = out(reg) _, r = in(reg) idt::recovery(), a = in(reg) address,
             v = inout(reg) 0u32 => value)
    }
    idt::take_fault().map_or(Ok(value), Err)
}

/// CPUID.
pub fn cpuid(leaf: u32) -> x86_64::CpuidResult {
    x86_64::__cpuid(leaf)
}

/// RDTSC.
pub fn tsc() -> u64 {
    // SAFETY: RDTSC has no effect but its value.
    unsafe { x86_64::_rdtsc() }
}

/// STI.
pub fn enable_interrupts() {
    // SAFETY: every vector has a gate. Not `nomem`: handlers run.
    unsafe { asm!("sti", "nop", options(nostack)) }
}

/// CLI.
pub fn disable_interrupts() {
    // SAFETY: holds handlers back, nothing else.
    unsafe { asm!("cli", options(nostack)) }
}

/// STI and HLT, so that no interrupt is taken between the two; CLI after it.
pub fn halt_until_interrupt() {
    // SAFETY: every vector has a gate.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) }
}

/// HLT once, with interrupts as they are.
pub fn halt() {
    // SAFETY: an NMI ends it.
    unsafe { asm!("hlt", options(nostack)) }
}

/// HLT for good.
pub fn halt_forever() -> ! {
    loop {
        // SAFETY: with interrupts off nothing more happens.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) }
    }
}

/// LIDT.
pub fn load_idt(base: u64, limit: u16) {
    let pointer = descriptor(base, limit);
    // SAFETY: the caller filled the table; a bad one ends in a report or a triple fault.
    unsafe { asm!("lidt [{}]", in(reg) pointer.as_ptr(), options(nostack, readonly)) }
}

/// LGDT with descriptors in which those in use stay what they are, and LTR.
pub fn load_task(base: u64, limit: u16, selector: u16) {
    let pointer = descriptor(base, limit);
    // SAFETY: the caller filled the table; CS and SS keep their descriptors.
    unsafe {
        asm!("lgdt [{}]", "ltr {:x}", in(reg) pointer.as_ptr(), in(reg) selector, options(nostack))
    }
}

/// SIDT: base and limit.
pub fn stored_idt() -> (u64, u16) {
    let mut pointer = [0u8; 10];
    // SAFETY: writes exactly ten bytes.
    unsafe { asm!("sidt [{}]", in(reg) pointer.as_mut_ptr(), options(nostack)) }
    let [l0, l1, base @ ..] = pointer;
    (u64::from_le_bytes(base), u16::from_le_bytes([l0, l1]))
}

/// SGDT: the base.
pub fn stored_gdt() -> u64 {
    let mut pointer = [0u8; 10];
    // SAFETY: writes exactly ten bytes.
    unsafe { asm!("sgdt [{}]", in(reg) pointer.as_mut_ptr(), options(nostack)) }
    let [_, _, base @ ..] = pointer;
    u64::from_le_bytes(base)
}

fn descriptor(base: u64, limit: u16) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&limit.to_le_bytes());
    bytes[2..].copy_from_slice(&base.to_le_bytes());
    bytes
}

/// MOV to CR8.
pub fn set_cr8(class: u64) {
    // SAFETY: the task priority only holds interrupts back.
    unsafe { asm!("mov cr8, {}", in(reg) class, options(nostack)) }
}

/// MOV from CR8.
pub fn cr8() -> u64 {
    let class;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr8", out(reg) class, options(nomem, nostack)) }
    class
}

/// MOV from CR0.
pub fn cr0() -> u64 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr0", out(reg) value, options(nomem, nostack)) }
    value
}

/// MOV from CR3.
pub fn cr3() -> u64 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack)) }
    value
}

/// MOV from CR4.
pub fn cr4() -> u64 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nomem, nostack)) }
    value
}

/// MOV from CR2.
pub fn cr2() -> u64 {
    let address;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack)) }
    address
}

/// INVLPG.
pub fn invalidate_page(address: u64) {
    // SAFETY: drops a translation.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack)) }
}

/// A load of four bytes of device memory.
pub fn mmio_read(address: u64) -> u32 {
    // SAFETY: the address is a BAR's, mapped one to one.
    unsafe { (address as *const u32).read_volatile() }
}

/// A load of eight bytes of device memory.
pub fn mmio_read64(address: u64) -> u64 {
    // SAFETY: the address is a BAR's, mapped one to one.
    unsafe { (address as *const u64).read_volatile() }
}

/// A load of two bytes of device memory.
pub fn mmio_read16(address: u64) -> u16 {
    // SAFETY: the address is a BAR's, mapped one to one.
    unsafe { (address as *const u16).read_volatile() }
}

/// A load of one byte of device memory.
pub fn mmio_read8(address: u64) -> u8 {
    // SAFETY: the address is a BAR's, mapped one to one.
    unsafe { (address as *const u8).read_volatile() }
}

/// The two bytes at any address of low memory.
pub fn word(address: u64) -> u16 {
    // SAFETY: memory is mapped one to one; what the firmware left is read, whatever it is.
    unsafe { (address as *const u16).read_unaligned() }
}

/// A store of four bytes of device memory.
pub fn mmio_write(address: u64, value: u32) {
    // SAFETY: the address is a BAR's, mapped one to one.
    unsafe { (address as *mut u32).write_volatile(value) }
}

/// A store of two bytes of device memory.
pub fn mmio_write16(address: u64, value: u16) {
    // SAFETY: the address is a BAR's, mapped one to one.
    unsafe { (address as *mut u16).write_volatile(value) }
}

/// A store of one byte of device memory.
pub fn mmio_write8(address: u64, value: u8) {
    // SAFETY: the address is a BAR's, mapped one to one.
    unsafe { (address as *mut u8).write_volatile(value) }
}

/// A store of eight bytes of device memory.
pub fn mmio_write64(address: u64, value: u64) {
    // SAFETY: the address is a BAR's, mapped one to one.
    unsafe { (address as *mut u64).write_volatile(value) }
}

/// MFENCE: loads after it see what others stored before they saw the stores ahead of it. Rust's
/// fence is a locked instruction where SSE isn't used, which QEMU doesn't take for a barrier on a
/// machine of one CPU, though its devices have threads of their own.
pub fn fence() {
    // SAFETY: orders memory, nothing else.
    unsafe { asm!("mfence", options(nostack, preserves_flags)) }
}

/// A spin-loop hint.
pub fn pause() {
    core::hint::spin_loop();
}

/// XSETBV of XCR0, and the fault it raised.
pub fn try_xcr0(value: u64) -> Option<crate::idt::Fault> {
    crate::attempt!(value, "mov rax, {v}", "mov rdx, {v}", "shr rdx, 32", "xor ecx, ecx", "xsetbv")
}

/// Executes one instruction on `$value`, which RCX, RDX and RAX are free for, and
/// gives the fault it raised.
#[macro_export]
macro_rules! attempt {
    ($value:expr, $($instruction:literal),+) => {{
        let value = $value;
        $crate::idt::expect_fault();
        // SAFETY: a fault resumes at label 2; no instruction tried here touches memory
        // of this kernel.
        unsafe {
            core::arch::asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", $($instruction,)+ "2:",
                 t = out(reg) _, r = in(reg) $crate::idt::recovery(), v = in(reg) value,
                 out("rax") _, out("rcx") _, out("rdx") _)
        }
        $crate::idt::take_fault()
    }};
}
