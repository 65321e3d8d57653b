//! Segments of every ring, a TSS, pages that a user may use; and what isn't a user's, tried from
//! rings 1 to 3.

use core::{
    arch::global_asm,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
};
use machine::{
    boot::Boot,
    console::{check, println},
    cpu, idt,
};

global_asm!(
    r#"
    # RDI: what IRETQ takes; RSI: RAX, RCX, RDX, RSI, RDI there. Gives 0 for INT 0x61, 1 for all
    # else that leads back.
    .global ring_attempt
    ring_attempt:
        push rbx
        push rbp
        push r12
        push r13
        push r14
        push r15
        mov [rip + ring_stack], rsp
        mov rsp, rdi
        mov rax, [rsi]
        mov rcx, [rsi + 8]
        mov rdx, [rsi + 16]
        mov rdi, [rsi + 32]
        mov rsi, [rsi + 24]
        iretq
    .global ring_refused
    ring_refused:
        mov ebx, 1
        jmp 2f
    .global ring_done
    ring_done:
        xor ebx, ebx
    2:  cld
        mov eax, 0x10
        mov ds, eax
        mov es, eax
        mov ss, eax
        mov rsp, [rip + ring_stack]
        mov eax, ebx
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbp
        pop rbx
        ret
    .section .bss.ring, "aw", @nobits
    .balign 8
    ring_stack: .skip 8
    .text
    "#
);

unsafe extern "C" {
    fn ring_attempt(frame: *const [u64; 5], registers: *const [u64; 5]) -> u64;
    static ring_refused: u8;
    static ring_done: u8;
    static pml4: [AtomicU64; 512];
}

const RINGS: u64 = 3;
/// Null, code, data, the TSS's two halves, then code and data of each further ring.
static DESCRIPTORS: [AtomicU64; 5 + 2 * RINGS as usize] =
    [const { AtomicU64::new(0) }; 5 + 2 * RINGS as usize];
const CODE: u64 = 0x00AF_9B00_0000_FFFF;
const DATA: u64 = 0x00CF_9300_0000_FFFF;
const SELECTOR: u16 = 3 * 8;
/// A TSS in its words of four bytes (SDM 3A, 8.7).
static TASK_STATE: [AtomicU32; 26] = [const { AtomicU32::new(0) }; 26];
/// Its last byte. The map of ports lies behind it: no port is a user's.
const LIMIT: u64 = 0x67;

/// Loads descriptors like those in force with others for rings 1 to 3, and a TSS with a stack for
/// ring 0.
fn load_task(stack: u64) {
    TASK_STATE[1].store(stack as u32, SeqCst);
    TASK_STATE[2].store((stack >> 32) as u32, SeqCst);
    // The first of the interrupt stacks.
    TASK_STATE[9].store(stack as u32, SeqCst);
    TASK_STATE[10].store((stack >> 32) as u32, SeqCst);
    TASK_STATE[25].store((LIMIT as u32 + 1) << 16, SeqCst);
    let base = TASK_STATE.as_ptr() as u64;
    let task = LIMIT | (base & 0xFF_FFFF) << 16 | 0x89 << 40 | (base >> 24 & 0xFF) << 56;
    let rings = (1..=RINGS).flat_map(|ring| [CODE | ring << 45, DATA | ring << 45]);
    let all = [0, CODE, DATA, task, base >> 32].into_iter().chain(rings);
    DESCRIPTORS.iter().zip(all).for_each(|(to, descriptor)| to.store(descriptor, SeqCst));
    cpu::load_task(DESCRIPTORS.as_ptr() as u64, (DESCRIPTORS.len() * 8 - 1) as u16, SELECTOR);
}

/// The same with a stack below the one in use, which this gives.
pub fn load_task_below() -> u64 {
    let stack = below();
    load_task(stack);
    stack
}

/// The selectors of a ring's code and data.
fn selectors(ring: u64) -> [u64; 2] {
    [(5 + 2 * (ring - 1)) << 3 | ring, (6 + 2 * (ring - 1)) << 3 | ring]
}

#[repr(C, align(4096))]
struct Page([AtomicU64; 512]);
static TABLES: [Page; 3] = [const { Page([const { AtomicU64::new(0) }; 512]) }; 3];
static USERS_CODE: Page = Page([const { AtomicU64::new(0) }; 512]);
static USERS_STACK: Page = Page([const { AtomicU64::new(0) }; 512]);

/// Linear addresses that a user may use: code, stack, then what [`prepare`] is given.
const SLOT: u64 = 100;
const USER: u64 = SLOT << 39;
const ANYBODYS: u64 = 7;
const IOAPIC: u64 = 0xFEC0_0000;
const NOWHERE: u64 = 0x9000_0000;
const LOCAL_APIC: u64 = 0xFEE0_0000;
const LEDGER: u64 = 0xFED0_0000;
/// What INT from there leads back by.
const BACK: u8 = 0x61;

/// The user's page of this number.
const fn users(page: u64) -> u64 {
    USER + page * 4096
}

/// Maps the user's pages, and loads a table whose exceptions all lead back.
fn prepare() {
    let [top, middle, low] = [0, 1, 2].map(|i| &TABLES[i].0);
    let page = |page: &Page| page.0.as_ptr() as u64;
    // SAFETY: the boot code's top-level table; only its first slot is in use.
    unsafe { pml4[SLOT as usize].store(page(&TABLES[0]) | ANYBODYS, SeqCst) }
    top[0].store(page(&TABLES[1]) | ANYBODYS, SeqCst);
    middle[0].store(page(&TABLES[2]) | ANYBODYS, SeqCst);
    let table = idt::arena(0x1000);
    let pages = [page(&USERS_CODE), page(&USERS_STACK), table, IOAPIC, NOWHERE, LOCAL_APIC, LEDGER];
    for (number, (entry, at)) in (0..).zip(low.iter().zip(pages)) {
        entry.store(at | ANYBODYS, SeqCst);
        cpu::invalidate_page(users(number));
    }
    crate::tables::fill(table);
    let anybodys = |code: *const u8| {
        let [low, high] = idt::gate_to(code as u64);
        [low | 3 << 45, high]
    };
    (0..32).for_each(|v| idt::write_gate(table, v, anybodys(&raw const ring_refused)));
    idt::write_gate(table, BACK, anybodys(&raw const ring_done));
    cpu::load_idt(table, (idt::TABLE_BYTES - 1) as u16);
}

/// Executes an instruction in a ring with this I/O privilege; whether it was refused.
fn refused(ring: u64, privilege: u64, code: &[u8], registers: &[u64; 5]) -> bool {
    leads_back(ring, privilege << 12, code, registers)
}

/// The same with these flags, for whatever raises an exception.
fn leads_back(ring: u64, flags: u64, code: &[u8], registers: &[u64; 5]) -> bool {
    let mut bytes = [0x90; 24];
    bytes[..code.len()].copy_from_slice(code);
    bytes[16..20].copy_from_slice(&[0xCD, BACK, 0xEB, 0xFE]);
    for (word, to) in bytes.chunks_exact(8).zip(&USERS_CODE.0) {
        to.store(u64::from_le_bytes(word.try_into().unwrap_or_default()), SeqCst);
    }
    let [cs, ss] = selectors(ring);
    let frame = [users(0), cs, 2 | flags, users(2) - 16, ss];
    // SAFETY: what is executed is the point; everything it can raise leads back, on this stack.
    unsafe { ring_attempt(&frame, registers) == 1 }
}

/// An instruction, and whether a user may not execute it.
type Tried = (&'static [u8], bool);

/// By no user, whatever the I/O privilege.
const PRIVILEGED: &[Tried] = &[
    (&[0x0F, 0x01, 0xD8], true),       // VMRUN
    (&[0x0F, 0x01, 0xD9], true),       // VMMCALL
    (&[0x0F, 0x01, 0xDA], true),       // VMLOAD
    (&[0x0F, 0x01, 0xDB], true),       // VMSAVE
    (&[0x0F, 0x01, 0xDC], true),       // STGI
    (&[0x0F, 0x01, 0xDD], true),       // CLGI
    (&[0x0F, 0x01, 0xDE], true),       // SKINIT
    (&[0x0F, 0x01, 0xDF], true),       // INVLPGA
    (&[0x0F, 0x01, 0xC1], true),       // VMCALL
    (&[0x0F, 0x01, 0xD1], true),       // XSETBV
    (&[0x0F, 0x01, 0xC8], true),       // MONITOR
    (&[0x0F, 0x01, 0xC9], true),       // MWAIT
    (&[0xF4], true),                   // HLT
    (&[0x0F, 0x08], true),             // INVD
    (&[0x0F, 0x09], true),             // WBINVD
    (&[0x0F, 0x32], true),             // RDMSR
    (&[0x0F, 0x30], true),             // WRMSR
    (&[0x0F, 0x33], true),             // RDPMC
    (&[0x0F, 0x20, 0xC0], true),       // MOV RAX, CR0
    (&[0x0F, 0x22, 0xC0], true),       // MOV CR0, RAX
    (&[0x44, 0x0F, 0x22, 0xC0], true), // MOV CR8, RAX
    (&[0x0F, 0x23, 0xF8], true),       // MOV DR7, RAX
    (&[0x0F, 0x01, 0xF0], true),       // LMSW AX
    (&[0x0F, 0x06], true),             // CLTS
    (&[0x0F, 0x01, 0x1E], true),       // LIDT [RSI]
    (&[0x0F, 0x01, 0x3E], true),       // INVLPG [RSI]
    (&[0x0F, 0xAA], true),             // RSM
    (&[0xF1], true),                   // ICEBP, which leads back
    (&[0xCD, 0x40], true),             // INT of the device's vector
    (&[0xCD, 0xF1], true),             // INT of the host's
    (&[0xCD, 0xF2], true),             // the same
    (&[0x0F, 0xA2], false),            // CPUID
    (&[0x0F, 0x01, 0x0E], false),      // SIDT [RSI]
    (&[0xF3, 0x90], false),            // PAUSE
];

/// By a user whose I/O privilege is the ring's.
const PORTS: &[Tried] = &[
    (&[0xEE], true),       // OUT DX, AL
    (&[0xED], true),       // IN EAX, DX
    (&[0x6E], true),       // OUTSB
    (&[0xF3, 0x6F], true), // REP OUTSD
    (&[0x6C], true),       // INSB
    (&[0xFA], true),       // CLI
];

/// Everything that isn't a user's, from rings 1 to 3.
pub fn privileged(test: &str, _: &Boot) {
    load_task(below());
    prepare();
    let mut wrong = 0;
    for ring in 1..=RINGS {
        for _ in 0..20 {
            let (own, port) = (users(1), 0x80);
            for (code, none) in PRIVILEGED {
                let otherwise = refused(ring, 0, code, &[7, 0, port, own, own]) != *none;
                if otherwise && wrong < 4 {
                    println!("  not as on a CPU: {code:02x?} in ring {ring}");
                }
                wrong += u32::from(otherwise);
            }
            for (code, none) in PORTS {
                let tried = |privilege| refused(ring, privilege, code, &[0, 4, port, own, own]);
                wrong += u32::from(tried(0) != *none || tried(ring));
            }
        }
    }
    idt::load();
    check!(test, wrong == 0, "{wrong} times something else became of it than a CPU has it");
}

/// Instructions that use memory at RSI or RDI.
const ACCESSES: [&[u8]; 9] = [
    &[0x8B, 0x06],             // MOV EAX, [RSI]
    &[0x89, 0x07],             // MOV [RDI], EAX
    &[0x48, 0x8B, 0x46, 0xFC], // MOV RAX, [RSI - 4]
    &[0xF0, 0x01, 0x07],       // LOCK ADD [RDI], EAX
    &[0x87, 0x07],             // XCHG [RDI], EAX
    &[0xF3, 0xA5],             // REP MOVSD
    &[0xF3, 0x48, 0xAB],       // REP STOSQ
    &[0xF3, 0x6E],             // REP OUTSB
    &[0xF3, 0x6C],             // REP INSB
];

/// Device registers, the page of the table in use, and nothing, by a user that has them mapped; and
/// the same pages by addresses that are the kernel's.
pub fn accesses(test: &str, _: &Boot) {
    load_task(below());
    prepare();
    let mut wrong = 0;
    for ring in 1..=RINGS {
        for code in ACCESSES {
            // The last gates, which nothing uses.
            for at in [users(2) + 0xFC0, users(3), users(4), users(5) + 0x80, users(6)] {
                wrong += u32::from(refused(ring, 3, code, &[0, 2, 0x80, at, at]));
            }
            let forbidden = [IOAPIC, NOWHERE, LOCAL_APIC, LEDGER, idt::arena(0x1000)];
            for at in forbidden.map(|at| at + 8) {
                // To pages rings 1 and 2 are the kernel's own.
                if ring == 3 {
                    wrong += u32::from(!refused(ring, 3, code, &[0, 2, 0x80, at, at]));
                }
            }
        }
    }
    idt::load();
    check!(test, wrong == 0, "{wrong} accesses ended otherwise than by the page tables");
}

/// Instructions that store at RDI, some after a load from there, and some by it alone on an
/// emulated CPU, whose access exits as a load then.
const STORES: [&[u8]; 7] = [
    &[0x89, 0x07],       // MOV [RDI], EAX
    &[0x01, 0x07],       // ADD [RDI], EAX
    &[0xFF, 0x07],       // INC DWORD [RDI]
    &[0x0F, 0xAB, 0x0F], // BTS [RDI], ECX
    &[0xF0, 0x01, 0x07], // LOCK ADD [RDI], EAX
    &[0x87, 0x07],       // XCHG [RDI], EAX
    &[0xAB],             // STOSD
];

/// Device registers that a user may only read.
pub fn read_only(test: &str, _: &Boot) {
    load_task(below());
    prepare();
    TABLES[2].0[3].store(IOAPIC | ANYBODYS & !2, SeqCst);
    cpu::invalidate_page(users(3));
    let mut wrong = 0;
    for code in STORES {
        for _ in 0..20 {
            cpu::mmio_write(IOAPIC, 1);
            let tried = refused(3, 0, code, &[0x10, 33, 0, 0, users(3)]);
            wrong += u32::from(!tried || cpu::mmio_read(IOAPIC) != 1);
        }
        let loads = &[0x8B, 0x07]; // MOV EAX, [RDI]
        wrong += u32::from(refused(3, 0, loads, &[0, 0, 0, 0, users(3)]));
    }
    idt::load();
    check!(test, wrong == 0, "{wrong} accesses to a page that is read-only ended otherwise");
}

/// What isn't emulated, of device registers, and code in them: the user's fault, not its kernel's.
const UNKNOWN: [&[u8]; 4] = [
    &[0x0F, 0xAE, 0x07], // FXSAVE [RDI]
    &[0xA6],             // CMPSB
    &[0x0F, 0xC7, 0x0F], // CMPXCHG8B [RDI]
    &[0xFF, 0xE7],       // JMP RDI
];

/// A user of this kernel's at instructions that would end the VM.
pub fn unemulated(test: &str, _: &Boot) {
    load_task(below());
    prepare();
    let mut wrong = 0;
    for code in UNKNOWN {
        for _ in 0..5 {
            wrong += u32::from(!refused(3, 0, code, &[0, 0, 0, users(3), users(3)]));
        }
    }
    idt::load();
    check!(test, wrong == 0, "{wrong} of a user's instructions weren't refused");
}

/// What a user executes step by step, from a stack segment that is loaded with EAX on.
const STEPPED: [&[u8]; 6] = [
    &[0x8E, 0xD0, 0xF1],             // MOV SS, EAX; INT1
    &[0x8E, 0xD0, 0x8E, 0xD0, 0xF1], // twice
    &[0x8E, 0xD0, 0x0F, 0x01, 0xC1], // VMCALL behind it
    &[0x8E, 0xD0, 0x0F, 0xA2],       // CPUID behind it
    &[0x8E, 0xD0, 0xCC],             // INT3 behind it
    &[0xFB, 0x0F, 0xA2],             // STI, CPUID
];

/// Exits in the shadow of MOV SS or STI while a user single-steps: the CPU mustn't be entered again
/// as they leave it (XSA-308).
pub fn shadows(test: &str, _: &Boot) {
    const TF: u64 = 1 << 8;
    const ALL_PORTS: u64 = 3 << 12;
    load_task(below());
    prepare();
    let mut wrong = 0;
    for ring in 1..=RINGS {
        let [_, ss] = selectors(ring);
        for code in STEPPED.into_iter().cycle().take(120) {
            wrong += u32::from(!leads_back(ring, TF | ALL_PORTS, code, &[ss, 0, 0, 0, 0]));
        }
    }
    idt::load();
    check!(test, wrong == 0, "{wrong} of them raised nothing");
}

/// A place for another stack, on the one in use.
fn below() -> u64 {
    let here = 0u64;
    (&raw const here as u64 - 0x4000) & !0xF
}
