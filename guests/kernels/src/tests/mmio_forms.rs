//! Instructions on a device register that isn't memory: each form that drivers and compilers use,
//! on the I/O APIC's register select, which keeps 8 bits; and LOCK MOV CR0, which is MOV CR8.
//!
//! On the bare machine the CPU itself performs them, so that it says what is right.

use crate::idt::arena;
use crate::{boot::Boot, console::check, console::println, cpu, idt, state, wait, x2apic};
use core::arch::asm;
use machine::alias::{ALIAS, map_alias, map_alias_unseen};

/// Register select; its next three registers are nothing.
const SELECT: u64 = 0xFEC0_0000;
/// No memory, no device.
const NOWHERE: u64 = 0x9000_0000;
const PROTECTION: u8 = 13;

/// What an instruction left: the register, RAX, and CF.
#[derive(Debug, PartialEq)]
struct After(u32, u64, bool);

/// Runs instructions on the register, which holds `$before`, at `[{a}]`, with RAX and RCX.
macro_rules! on_register {
    ($before:expr, $rax:expr, $rcx:expr, $($instruction:literal),+) => {{
        cpu::mmio_write(SELECT, $before);
        let (rax, carry): (u64, u8);
        // SAFETY: they touch a register that nothing else uses meanwhile, and vector registers,
        // which this kernel doesn't use.
        unsafe {
            asm!($($instruction,)+ "setc {c}", a = in(reg) SELECT, c = out(reg_byte) carry,
                 inout("rax") $rax => rax, inout("rcx") $rcx => _, out("rdx") _);
        }
        After(cpu::mmio_read(SELECT), rax, carry != 0)
    }};
}

/// Every form.
pub fn forms(test: &str, _: &Boot) {
    arithmetic(test);
    bits(test);
    vectors(test);
    strings(test);
    cpu::mmio_write(SELECT, 0);
}

macro_rules! expect {
    ($test:expr, $($name:literal: $after:expr => $register:expr, $rax:expr, $carry:expr;)+) => { $({
        let (after, right) = ($after, After($register, $rax, $carry));
        check!($test, after == right, "{}: {after:x?}", $name);
    })+ };
}

fn arithmetic(test: &str) {
    expect!(test,
        "ADC": on_register!(0x10, 0x21u64, 0u64, "stc", "adc [{a}], eax") => 0x32, 0x21, false;
        "SBB": on_register!(0x30, 0x10u64, 0u64, "stc", "sbb [{a}], eax") => 0x1F, 0x10, false;
        "SBB, register": on_register!(0x30, 0x10u64, 0u64, "clc", "sbb eax, [{a}]")
            => 0x30, 0xFFFF_FFE0, true;
        "INC keeps CF": on_register!(7, 0u64, 0u64, "stc", "lock inc dword ptr [{a}]") => 8, 0, true;
        "DEC": on_register!(7, 0u64, 0u64, "clc", "dec dword ptr [{a}]") => 6, 0, false;
        "NOT": on_register!(0x0F, 0u64, 0u64, "clc", "not dword ptr [{a}]") => 0xF0, 0, false;
        "NEG": on_register!(1, 0u64, 0u64, "clc", "neg dword ptr [{a}]") => 0xFF, 0, true;
        "SHL": on_register!(0x11, 0u64, 3u64, "shl dword ptr [{a}], cl") => 0x88, 0, false;
        "SHR": on_register!(0x13, 0u64, 0u64, "shr dword ptr [{a}], 2") => 0x04, 0, true;
        "SAR": on_register!(0x42, 0u64, 0u64, "sar dword ptr [{a}], 1") => 0x21, 0, false;
        "ROL": on_register!(0x81, 0u64, 0u64, "rol dword ptr [{a}], 4") => 0x10, 0, false;
        "RCR": on_register!(0x80, 0u64, 0u64, "clc", "rcr dword ptr [{a}], 3") => 0x10, 0, false;
        "XADD": on_register!(0x20, 0x05u64, 0u64, "lock xadd [{a}], eax") => 0x25, 0x20, false;
        "XCHG": on_register!(0x20, 0x05u64, 0u64, "clc", "xchg [{a}], eax") => 5, 0x20, false;
        "CMPXCHG, equal": on_register!(0x20, 0x20u64, 0x33u64, "lock cmpxchg [{a}], ecx")
            => 0x33, 0x20, false;
        "CMPXCHG, unequal": on_register!(0x20, 0x10u64, 0x33u64, "lock cmpxchg [{a}], ecx")
            => 0x20, 0x20, true;
        "MOVNTI": on_register!(0, 0x44u64, 0u64, "clc", "movnti [{a}], eax") => 0x44, 0x44, false;
    );
}

fn bits(test: &str) {
    expect!(test,
        "BT": on_register!(8, 3u64, 0u64, "bt [{a}], eax") => 8, 3, true;
        "BTS": on_register!(8, 4u64, 0u64, "lock bts [{a}], eax") => 0x18, 4, false;
        "BTR": on_register!(8, 0u64, 0u64, "lock btr dword ptr [{a}], 3") => 0, 0, true;
        "BTC": on_register!(8, 0u64, 0u64, "btc dword ptr [{a}], 35") => 0, 0, true;
        // The index leads back from beyond the register: a bit string.
        "BTS, bit string": on_register!(1, u64::MAX - 30, 0u64, "bts [{a} + 4], eax")
            => 3, u64::MAX - 30, false;
    );
}

fn vectors(test: &str) {
    state::prepare(true);
    expect!(test,
        "MOVD to": on_register!(0x51, 0u64, 0u64, "clc", "movd xmm9, [{a}]", "movd eax, xmm9")
            => 0x51, 0x51, false;
        "MOVD from": on_register!(0, 0x52u64, 0u64, "clc", "movd xmm3, eax", "movd [{a}], xmm3")
            => 0x52, 0x52, false;
        "MOVUPS to": on_register!(0x53, 0u64, 0u64, "clc", "movups xmm15, [{a}]", "movq rax, xmm15")
            => 0x53, 0x53, false;
        "MOVDQA from": on_register!(0, 0x54u64, 0u64, "clc", "movq xmm0, rax", "movdqa [{a}], xmm0")
            => 0x54, 0x54, false;
        "MOVNTDQ": on_register!(0, 0x55u64, 0u64, "clc", "movq xmm7, rax", "movntdq [{a}], xmm7")
            => 0x55, 0x55, false;
        "MOVSD": on_register!(0x56, 0u64, 0u64, "clc", "movsd xmm1, [{a}]", "movq rax, xmm1")
            => 0x56, 0x56, false;
    );
    if !state::has_avx() {
        return check!(test, true, "no AVX here");
    }
    // What a 256-bit store puts into the window goes to the version register, which is read-only.
    expect!(test,
        "VMOVDQU to": on_register!(1, 0u64, 0u64, "clc", "vmovdqu ymm12, [{a}]", "vmovq rax, xmm12")
            => 1, 1, false;
        "VMOVUPS from": on_register!(0, 1u64, 0u64, "clc", "vmovq xmm5, rax", "vmovups [{a}], ymm5")
            => 1, 1, false;
        "VMOVD clears what is above": on_register!(0x58, !0u64, 0u64, "clc", "vmovq xmm2, rax",
            "vinsertf128 ymm2, ymm2, xmm2, 1", "vmovd xmm2, [{a}]", "vextractf128 xmm2, ymm2, 1",
            "movq rax, xmm2") => 0x58, 0, false;
        "MOVD keeps what is above": on_register!(0x59, 0x77u64, 0u64, "clc", "vmovq xmm2, rax",
            "vinsertf128 ymm2, ymm2, xmm2, 1", "movd xmm2, [{a}]", "vextractf128 xmm2, ymm2, 1",
            "movq rax, xmm2") => 0x59, 0x77, false;
    );
}

/// What a string instruction left: RCX, RSI, RDI.
type Pointers = [u64; 3];

macro_rules! string {
    ($rax:expr, $pointers:expr, $($instruction:literal),+) => {{
        let [mut rcx, mut rsi, mut rdi]: Pointers = $pointers;
        let rax: u64;
        // SAFETY: callers point into the I/O APIC, nowhere, or into a buffer of theirs.
        unsafe {
            asm!($($instruction,)+ "cld", inout("rax") $rax => rax, inout("rcx") rcx,
                 inout("rsi") rsi, inout("rdi") rdi);
        }
        (rax, [rcx, rsi, rdi])
    }};
}

fn strings(test: &str) {
    let mut buffer = [0x61_u32, 0x62, 0x63, 0x64];
    let at = buffer.as_mut_ptr() as u64;
    let register = || cpu::mmio_read(SELECT);

    let (_, moved) = string!(0u64, [1, at, SELECT], "rep movsd");
    let right = register() == 0x61 && moved == [0, at + 4, SELECT + 4];
    check!(test, right, "REP MOVSD to a register: {moved:x?}");
    let (_, moved) = string!(0u64, [0, at + 4, SELECT], "rep movsd");
    check!(test, register() == 0x61 && moved == [0, at + 4, SELECT], "none of them: {moved:x?}");
    let (_, moved) = string!(0u64, [9, at + 4, SELECT], "std", "movsb");
    let right = register() == 0x62 && moved == [9, at + 3, SELECT - 1];
    check!(test, right, "MOVSB, backwards: {moved:x?}");

    let (_, moved) = string!(0u64, [4, SELECT, at], "rep movsd");
    // SAFETY: the buffer, which the string instruction wrote.
    let found = unsafe { (at as *const [u32; 4]).read_volatile() };
    let right = found == [0x62, 0, 0, 0] && moved == [0, SELECT + 16, at + 16];
    check!(test, right, "REP MOVSD from registers: {found:x?}, {moved:x?}");

    let (rax, moved) = string!(!0u64, [5, SELECT, at], "lodsd");
    check!(test, rax == 0x62 && moved == [5, SELECT + 4, at], "LODSD: {rax:#x}, {moved:x?}");
    let (rax, moved) = string!(0x1163u64, [3, at, SELECT], "rep stosb");
    let right = register() == 0x63 && rax == 0x1163 && moved == [0, at, SELECT + 3];
    check!(test, right, "REP STOSB: {moved:x?}");
    let (_, moved) = string!(7u64, [100, at, NOWHERE], "rep stosq");
    check!(test, moved == [0, at, NOWHERE + 800], "a long one, to nothing: {moved:x?}");

    // The load is the device's, the store the fault.
    idt::expect_fault();
    let (mut rcx, mut rsi, mut rdi) = (2u64, SELECT, 1u64 << 63);
    // SAFETY: a fault resumes at label 2; nothing is written.
    unsafe {
        asm!("lea {t}, [rip + 2f]", "mov [{r}], {t}", "rep movsd", "2:", t = out(reg) _,
             r = in(reg) idt::recovery(), inout("rcx") rcx, inout("rsi") rsi, inout("rdi") rdi);
    }
    let fault = idt::take_fault();
    let left = [rcx, rsi, rdi];
    let right = fault.is_some_and(|f| f.vector == PROTECTION && f.error == 0);
    let right = right && left == [2, SELECT, 1 << 63];
    check!(test, right, "a destination that isn't canonical: {fault:x?}, {left:x?}");
}

/// AMD's other way to CR8, where CPUID has it.
pub fn lock_mov_cr0(test: &str, _: &Boot) {
    const VECTOR: u8 = 0x35;
    if cpu::cpuid(0x8000_0001).ecx >> 4 & 1 == 0 {
        return check!(test, true, "CPUID doesn't have it");
    }
    let set = |priority: u64| {
        // SAFETY: the task priority holds back interrupts of this kernel alone.
        unsafe { asm!(".byte 0xF0, 0x0F, 0x22, 0xC0", in("rax") priority) }
    };
    let before = idt::count(VECTOR);
    set(5);
    let read: u64;
    // SAFETY: reads the task priority.
    unsafe { asm!(".byte 0xF0, 0x0F, 0x20, 0xC0", out("rax") read) }
    let priority = cpu::cr8();
    check!(test, (read, priority) == (5, 5), "the priority is {priority}, or {read}");
    cpu::enable_interrupts();
    x2apic::self_ipi(VECTOR);
    wait::settle();
    check!(test, idt::count(VECTOR) == before, "it holds an interrupt back");
    // With one pending, the host has to see the change.
    set(4);
    check!(test, cpu::cr8() == 4 && idt::count(VECTOR) == before, "and a lower one does");
    set(0);
    let came = wait::until(|| idt::count(VECTOR) == before + 1);
    check!(test, came && cpu::cr8() == 0, "which comes when it is lowered");
}

/// The CPU runs a plain load that exits; where the host looks for it stands an instruction of AVX,
/// which is off. It ends this VM and must not end the host.
pub fn exchanged(test: &str, _: &Boot) {
    const LOAD: [u8; 3] = [0x8B, 0x07, 0xC3]; // mov eax, [rdi]; ret
    const VECTOR_LOAD: [u8; 5] = [0xC5, 0xFC, 0x10, 0x07, 0xC3]; // vmovups ymm0, [rdi]; ret
    let write = |page: u64, code: &[u8]| {
        for (at, byte) in (page..).zip(code) {
            // SAFETY: the arena is for tests to fill.
            unsafe { (at as *mut u8).write_volatile(*byte) }
        }
    };
    let (first, second) = (arena(0x1000), arena(0x2000));
    write(first, &LOAD);
    write(second, &VECTOR_LOAD);
    let call = |address: u64| {
        // SAFETY: either page's code loads from the address and returns.
        unsafe { asm!("call {}", in(reg) ALIAS, in("rdi") address, out("rax") _) }
    };
    println!("code at {ALIAS:#x} now");
    map_alias(first);
    call(first);
    map_alias_unseen(second);
    call(SELECT);
    check!(test, false, "the host performed what the CPU didn't");
}
