//! What the guest executes that devices post interrupts to, and what it and this kernel know of
//! each other.
//!
//! Each of its handlers counts its vector and notes it, when it begins and before it completes
//! ([`ENDS`]). Those of exceptions tell their vector. Of its registers only what
//! [`Registers`](super::block::Registers) has, RAX and RSP outlive an exit.

use super::super::block::Frame;
use crate::idt;
use core::sync::atomic::Ordering::SeqCst;

/// Words of [`DATA`]: where the device is for the guest; the device's vector; how many of its
/// interrupts were handled; how handlers behave; how many steps are noted.
pub const DEVICE: usize = 0;
/// As above.
pub const VECTOR: usize = 1;
/// As above.
pub const HANDLED: usize = 2;
/// As above.
pub const MODE: usize = 3;
/// As above.
pub const NOTED: usize = 4;
/// What the guest reads of CR8, and how many came while that, or its flag, held them back.
pub const PRIORITY: usize = 5;
/// As above.
pub const EARLY: usize = 6;
/// What SIDT stores before LIDT, what that loads, what SIDT stores after it.
pub const STORED: usize = 8;
/// As above.
pub const LOADED: usize = 10;
/// As above.
pub const STORED_AFTER: usize = 12;
/// 1: the guest is there; 2: it is to go.
pub const STAYS: usize = 14;
const NOTES: usize = 64;
const MOST_NOTES: u64 = 64;
const COUNTS: usize = 256;

/// Of [`MODE`]: a handler executes CPUID, which is told; lets others in before it completes;
/// doesn't complete.
pub const TELLS: u64 = 1;
/// As above.
pub const OPENS: u64 = 2;
/// As above.
pub const SILENT: u64 = 4;
/// Of a note: the handler is at its end.
pub const ENDS: u64 = 0x100;

core::arch::global_asm!(
    r#"
.balign 16
.global posted_stubs, posted_raises, posted_waits, posted_takes, posted_calls, posted_tables
.global posted_prefers, posted_completes, posted_stops, posted_strays, posted_reads
.global posted_tries, posted_clears, posted_stays, posted_asks, posted_holds
.global posted_identifies, posted_shows, posted_sets, posted_calls_on
posted_stubs:
.set posted_vector, 0
.rept 256
    .balign 16
    .byte 0x68
    .long posted_vector
    jmp posted_common
    .set posted_vector, posted_vector + 1
.endr
.balign 16
posted_common:
    push rax
    push rcx
    push rdx
    push rdi
    lea rdi, [rip + {data}]
    mov rdx, [rsp + 32]
    inc qword ptr [rdi + rdx * 8 + 2048]
    call posted_notes
    cmp edx, 32
    jb posted_excepts
    cmp rdx, [rdi + 8]
    jne 2f
    # The device is told: its interrupt status goes to its acknowledge register.
    mov rcx, [rdi]
    mov eax, [rcx + 0x24]
    mov [rcx + 0x64], eax
    inc qword ptr [rdi + 16]
2:  test byte ptr [rdi + 24], 1
    jz 3f
    mov rcx, rdx
    cpuid
    mov rdx, rcx
3:  test byte ptr [rdi + 24], 2
    jz 5f
    sti
    mov ecx, 2000
4:  pause
    dec ecx
    jnz 4b
    cli
5:  or edx, 0x100
    call posted_notes
    test byte ptr [rdi + 24], 4
    jnz 6f
    mov ecx, 0x80B
    xor eax, eax
    xor edx, edx
    wrmsr
6:  pop rdi
    pop rdx
    pop rcx
    pop rax
    add rsp, 8
    iretq
posted_notes:
    mov rax, [rdi + 32]
    cmp eax, 64
    jae 1f
    mov [rdi + rax * 8 + 512], rdx
    inc qword ptr [rdi + 32]
1:  ret
posted_excepts:
    vmmcall
    jmp posted_excepts
# RCX times.
posted_raises:
    sti
1:  mov rdx, [rdi + 16]
    mov dword ptr [rsi + 0x60], 1
2:  cmp [rdi + 16], rdx
    jne 3f
    pause
    jmp 2b
3:  dec rcx
    jnz 1b
    cli
    vmmcall
# Until more than RDX were handled.
posted_waits:
    sti
1:  pause
    cmp [rdi + 16], rdx
    je 1b
    cli
    vmmcall
posted_takes:
    sti
    mov ecx, 2000
1:  pause
    dec ecx
    jnz 1b
    cli
    vmmcall
posted_calls:
    int 0xF5
    vmmcall
posted_tables:
    sidt [rdi + 64]
    lidt [rdi + 80]
    sidt [rdi + 96]
    jmp posted_raises
# With CR8 as RCX says, and then without it.
posted_prefers:
    sti
    mov cr8, rcx
    mov rdx, [rdi + 16]
    mov dword ptr [rsi + 0x60], 1
    mov ecx, 20000
1:  pause
    dec ecx
    jnz 1b
    mov rcx, cr8
    mov [rdi + 40], rcx
    mov rcx, [rdi + 16]
    sub rcx, rdx
    mov [rdi + 48], rcx
    xor ecx, ecx
    mov cr8, rcx
    jmp posted_waits
# CR8, as it is while interrupts come by themselves.
posted_reads:
    mov cr8, rcx
    cpuid
    mov rcx, cr8
    mov [rdi + 40], rcx
    xor ecx, ecx
    mov cr8, rcx
    vmmcall
# The device's interrupt, and some time; how many came.
posted_tries:
    sti
    mov rdx, [rdi + 16]
    mov dword ptr [rsi + 0x60], 1
    mov ecx, 20000
1:  pause
    dec ecx
    jnz 1b
    cli
    mov rcx, [rdi + 16]
    sub rcx, rdx
    mov [rdi + 48], rcx
    vmmcall
# The same with the flag for all interrupts clear, and then with it set.
posted_clears:
    sti
    clgi
    cpuid
    mov rdx, [rdi + 16]
    mov dword ptr [rsi + 0x60], 1
    mov ecx, 20000
1:  pause
    dec ecx
    jnz 1b
    mov rcx, [rdi + 16]
    sub rcx, rdx
    mov [rdi + 48], rcx
    stgi
    jmp posted_waits
# Says that it is there, and stays until it is told to go.
posted_stays:
    sti
    mov qword ptr [rdi + 112], 1
1:  pause
    cmp qword ptr [rdi + 112], 2
    jne 1b
    cli
    vmmcall
# The same with interrupts held back, and takes what came then.
posted_holds:
    cli
    mov qword ptr [rdi + 112], 1
1:  pause
    cmp qword ptr [rdi + 112], 2
    jne 1b
    jmp posted_takes
# With interrupts held back: RDX times the local APIC's id, by its MSR.
posted_asks:
    cli
    mov r8, rdx
    mov ecx, 0x802
1:  rdmsr
    dec r8
    jnz 1b
    vmmcall
# Likewise, other things.
posted_identifies:
    cli
    mov r8, rdx
1:  xor eax, eax
    cpuid
    dec r8
    jnz 1b
    vmmcall
posted_shows:
    cli
    mov r8, rdx
1:  sidt [rdi + 64]
    dec r8
    jnz 1b
    vmmcall
posted_sets:
    cli
    mov r8, rdx
    mov ecx, 1
1:  mov cr8, rcx
    xor ecx, 1
    dec r8
    jnz 1b
    vmmcall
posted_calls_on:
    cli
    mov r8, rdx
1:  int 0xF5
    dec r8
    jnz 1b
    vmmcall
posted_completes:
    sti
1:  mov ecx, 0x80B
    xor eax, eax
    xor edx, edx
    wrmsr
    jmp 1b
posted_stops:
    cli
1:  hlt
    jmp 1b
posted_strays:
    lidt [rdi + 80]
    mov dword ptr [rsi + 0x60], 1
    sti
1:  pause
    jmp 1b
"#,
    data = sym DATA
);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $symbol:ident),+ $(,)?) => { $(
        $(#[$doc])*
        pub fn $name() -> u64 {
            unsafe extern "C" { static $symbol: u8; }
            (&raw const $symbol) as u64
        }
    )+ };
}

codes!(
    stubs = posted_stubs,
    /// Has the device raise its interrupt and waits for it, RCX times; VMMCALL.
    raises = posted_raises,
    /// Waits until more than RDX were handled; VMMCALL.
    waits = posted_waits,
    /// Takes what is there; VMMCALL.
    takes = posted_takes,
    /// INT F5h, VMMCALL.
    calls = posted_calls,
    /// SIDT, LIDT, SIDT, and goes on as `raises`.
    tables = posted_tables,
    /// CR8 as RCX says, the device's interrupt, after some time CR8 0, and goes on as `waits`.
    prefers = posted_prefers,
    /// CR8 as RCX says, CPUID, reads CR8, VMMCALL.
    reads = posted_reads,
    /// Has the device raise its interrupt, counts what comes for some time; VMMCALL.
    tries = posted_tries,
    /// CLGI, CPUID, likewise, STGI, and goes on as `waits`.
    clears = posted_clears,
    /// Says that it is there, lets interrupts in until it is told to go; VMMCALL.
    stays = posted_stays,
    /// Says that it is there, holds interrupts back until it is told to go, takes them; VMMCALL.
    holds = posted_holds,
    /// Holds interrupts back and reads a register of its local APIC, RDX times; VMMCALL.
    asks = posted_asks,
    /// The same with CPUID, SIDT, MOV to CR8, INT F5h.
    identifies = posted_identifies,
    /// As above.
    shows = posted_shows,
    /// As above.
    sets = posted_sets,
    /// As above.
    calls_on = posted_calls_on,
    /// Completes interrupts without end.
    completes = posted_completes,
    /// CLI, HLT.
    stops = posted_stops,
    /// LIDT, the device's interrupt, STI, and nothing more without end.
    strays = posted_strays,
);

/// What both know.
pub static DATA: Frame = Frame::new();
/// The guest's table of interrupts.
pub static TABLE: Frame = Frame::new();

/// Fills that table, and forgets what was noted and counted.
pub fn set_up() {
    for vector in 0..=u8::MAX {
        let gate = idt::gate_to(stubs() + 16 * u64::from(vector));
        let at = 2 * usize::from(vector);
        TABLE.0[at].store(gate[0], SeqCst);
        TABLE.0[at + 1].store(gate[1], SeqCst);
    }
    DATA.0.iter().for_each(|word| word.store(0, SeqCst));
}

/// A word.
pub fn get(word: usize) -> u64 {
    DATA.0[word].load(SeqCst)
}

/// Stores it.
pub fn put(word: usize, value: u64) {
    DATA.0[word].store(value, SeqCst);
}

/// How often the guest took a vector.
pub fn count(vector: u8) -> u64 {
    get(COUNTS + usize::from(vector))
}

/// Notes anew from here.
pub fn forget_notes() {
    put(NOTED, 0);
}

/// Are these the steps that were noted?
pub fn noted(steps: &[u64]) -> bool {
    get(NOTED).min(MOST_NOTES) as usize == steps.len()
        && steps.iter().enumerate().all(|(n, step)| get(NOTES + n) == *step)
}

/// The first steps that were noted, for failures.
pub fn notes() -> [u64; 8] {
    core::array::from_fn(|n| if (n as u64) < get(NOTED) { get(NOTES + n) } else { 0 })
}
