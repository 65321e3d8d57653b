//! Protected mode of 32 bits, without paging and with each kind of it: exits there, and the loads
//! of control registers that a processor refuses.

use crate::{boot::Boot, console::check, cpu, idt::Fault};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use machine::legacy::{self, Mode, Outcome};

const PE: u32 = 1 << 0;
const ET: u32 = 1 << 4;
const CD: u32 = 1 << 30;
const PG: u32 = 1 << 31;
const PSE: u32 = 1 << 4;
const PAE: u32 = 1 << 5;
const PROTECTION: Fault = Fault { vector: 13, error: 0 };
const UNDEFINED: Fault = Fault { vector: 6, error: 0 };

/// Of an entry: present, written, a large page.
const LARGE: u64 = 0x83;
/// A bit of a pointer that must be 0, beside its presence.
const RESERVED: u64 = 0b10;
/// Where the second GiB begins, which the pointers lead to the first MiB once more.
const SECOND: u32 = 1 << 30;

#[repr(C, align(4096))]
struct Directories([[AtomicU64; 512]; 4]);
#[repr(C, align(4096))]
struct Directory([AtomicU32; 1024]);
/// The second four are used: CR3 has more bits of their address than of a page's.
#[repr(C, align(32))]
struct Pointers([AtomicU64; 4]);

static DIRECTORIES: Directories = Directories([const { [const { AtomicU64::new(0) }; 512] }; 4]);
static DIRECTORY: Directory = Directory([const { AtomicU32::new(0) }; 1024]);
static POINTERS: [Pointers; 2] = [const { Pointers([const { AtomicU64::new(0) }; 4]) }; 2];
static WORD: AtomicU32 = AtomicU32::new(0x5EED_0016);

const CPUID: &[u8] = &[0x0F, 0xA2];
const RDMSR: &[u8] = &[0x0F, 0x32];
const IN: &[u8] = &[0xEC];
const MOV_TO_CR0: &[u8] = &[0x0F, 0x22, 0xC0];
/// The same, as a processor takes it, too, which doesn't look at MOD; NOP behind it.
const MOV_TO_CR0_ODD: &[u8] = &[0x0F, 0x22, 0x00, 0x90];
const MOV_TO_CR3: &[u8] = &[0x0F, 0x22, 0xD8];
/// LMSW [ESI].
const LMSW: &[u8] = &[0x0F, 0x01, 0x36];
const VMCALL: &[u8] = &[0x0F, 0x01, 0xC1];
const LOCAL_APIC: u32 = 0x1B;
const LINE: u32 = 0x3FB;

fn pointers() -> &'static [AtomicU64; 4] {
    &POINTERS[1].0
}

/// All kinds of paging, one to one but for the second GiB of PAE paging.
fn modes() -> [(&'static str, Mode); 3] {
    for (gib, directory) in DIRECTORIES.0.iter().enumerate() {
        let at = (&raw const *directory) as u64;
        pointers()[gib].store(at | 1, SeqCst);
        let base = if gib == 1 { 0 } else { gib as u64 * 512 };
        for (page, entry) in (base..).zip(directory) {
            entry.store(page << 21 | LARGE, SeqCst);
        }
    }
    for (page, entry) in (0..).zip(&DIRECTORY.0) {
        entry.store(page << 22 | LARGE as u32, SeqCst);
    }
    let cr0 = PE | ET | PG;
    let pae = Mode { cr0, cr3: (&raw const *pointers()) as u32, cr4: PAE };
    let legacy = Mode { cr0, cr3: (&raw const DIRECTORY) as u32, cr4: PSE };
    let none = Mode { cr0: PE | ET, cr3: 0, cr4: 0 };
    [("none", none), ("32 bits", legacy), ("PAE", pae)]
}

fn execute(mode: &Mode, code: &[u8], registers: [u32; 6]) -> Outcome {
    // SAFETY: the code of these tests is a few instructions that write atomic words of theirs at
    // most, and the modes are of `modes`, which map what this kernel has one to one.
    unsafe { legacy::execute(mode, code, registers) }
}

/// Executes it, which must raise just this.
fn raises(test: &str, what: &str, outcome: Outcome, wanted: Option<Fault>) {
    let fault = outcome.fault;
    check!(test, fault == wanted, "{what}: {fault:x?}, {wanted:x?} wanted");
}

/// Exits in each, and what isn't taken for CR0.
pub fn modes_of_32_bits(test: &str, _: &Boot) {
    legacy::prepare();
    let vendor = cpu::cpuid(0).ebx;
    let base = cpu::rdmsr(LOCAL_APIC) as u32;
    let line = u32::from(cpu::inb(LINE as u16));
    for (paging, mode) in modes() {
        let run = |code, registers| execute(&mode, code, registers);
        let found = run(CPUID, [0; 6]);
        check!(test, found.registers[1] == vendor, "{paging}: CPUID gives {found:x?}");
        let found = run(RDMSR, [0, 0, LOCAL_APIC, 0, 0, 0]);
        check!(test, found.registers[0] == base, "{paging}: RDMSR gives {found:x?}");
        let found = run(IN, [0, 0, 0, LINE, 0, 0]);
        check!(test, found.registers[0] == line, "{paging}: IN gives {found:x?}");
        raises(test, paging, run(VMCALL, [0; 6]), Some(UNDEFINED));
        raises(test, paging, run(RDMSR, [0, 0, 0x4242_4242, 0, 0, 0]), Some(PROTECTION));

        let cr0 = mode.cr0;
        for code in [MOV_TO_CR0, MOV_TO_CR0_ODD] {
            let found = run(code, [cr0 | CD, 0, 0, 0, 0, 0]);
            let good = found.fault.is_none() && found.cr0 == cr0 | CD;
            check!(test, good, "{paging}: caches off by {code:02x?}: {found:x?}");
        }
        let refused = run(MOV_TO_CR0, [cr0 & !PE | PG, 0, 0, 0, 0, 0]);
        let good = refused.fault == Some(PROTECTION) && refused.cr0 == cr0;
        check!(test, good, "{paging}: PG without PE: {refused:x?}");
        // PE isn't LMSW's to clear.
        let word = 0xEu16;
        let found = run(LMSW, [0, 0, 0, 0, (&raw const word) as u32, 0]);
        let good = found.fault.is_none() && found.cr0 == cr0 | 0xE;
        check!(test, good, "{paging}: LMSW from memory: {found:x?}");
    }
    let [none, _, (_, pae)] = modes();
    begins(test, none.1, pae);
    keeps(test, pae);
}

/// Paging with PAE begins, or caches are switched, with a pointer that isn't right.
fn begins(test: &str, none: Mode, pae: Mode) {
    let second = &pointers()[1];
    let good = second.load(SeqCst);
    second.store(good | RESERVED, SeqCst);
    let begin = Mode { cr0: none.cr0, ..pae };
    let found = execute(&begin, MOV_TO_CR0, [pae.cr0, 0, 0, 0, 0, 0]);
    let refused = found.fault == Some(PROTECTION) && found.cr0 == none.cr0;
    check!(test, refused, "paging begins with a wrong pointer: {found:x?}");
    second.store(0, SeqCst);
    let found = execute(&begin, MOV_TO_CR0, [pae.cr0, 0, 0, 0, 0, 0]);
    let taken = found.fault.is_none() && found.cr0 == pae.cr0;
    check!(test, taken, "and with one that isn't present: {found:x?}");
    second.store(good, SeqCst);

    // MOV DWORD [ESI], EDI makes the pointer wrong that is in force.
    let at = (&raw const *second) as u32;
    let wrong = (good | RESERVED) as u32;
    for (what, load, value) in [("caches", MOV_TO_CR0, pae.cr0 | CD), ("CR3", MOV_TO_CR3, pae.cr3)]
    {
        let mut code = [0x90; 5];
        code[..2].copy_from_slice(&[0x89, 0x3E]);
        code[2..].copy_from_slice(load);
        let found = execute(&pae, &code, [value, 0, 0, 0, at, wrong]);
        let refused = found.fault == Some(PROTECTION) && found.cr0 == pae.cr0;
        check!(test, refused, "{what} with a wrong pointer: {found:x?}");
        second.store(good, SeqCst);
    }
}

/// The pointers in force are those of the last load, whatever stands in memory since.
fn keeps(test: &str, pae: Mode) {
    let second = &pointers()[1];
    let good = second.load(SeqCst);
    let at = (&raw const *second) as u32;
    let word = (&raw const WORD) as u32 + SECOND;
    let forget = [
        0x89, 0x3E, // MOV [ESI], EDI
        0x50, 0x53, 0x51, 0x52, // PUSH EAX, EBX, ECX, EDX
        0x0F, 0xA2, // CPUID
        0x5A, 0x59, 0x5B, 0x58, // POP EDX, ECX, EBX, EAX
        0x0F, 0x01, 0x3B, // INVLPG [EBX]
        0x8B, 0x0B, // MOV ECX, [EBX]
    ];
    let found = execute(&pae, &forget, [0, word, 0, 0, at, 0]);
    let read = found.fault.is_none() && found.registers[2] == WORD.load(SeqCst);
    check!(test, read, "a pointer is kept after an exit: {found:x?}");
    second.store(good, SeqCst);
    // What the hypervisor does for the guest goes by those, too.
    let line = cpu::inb(LINE as u16);
    let into = [
        0x89, 0x3E, // MOV [ESI], EDI
        0x89, 0xDF, // MOV EDI, EBX
        0x6C, // INSB
    ];
    WORD.store(u32::from(!line), SeqCst);
    let found = execute(&pae, &into, [0, word, 0, LINE, at, 0]);
    let put = found.fault.is_none() && WORD.load(SeqCst) == u32::from(line);
    check!(test, put, "a pointer is kept for INS: {found:x?}, {:x}", WORD.load(SeqCst));
    second.store(good, SeqCst);
    let mut anew = [0x90; 7];
    anew[..2].copy_from_slice(&forget[..2]);
    anew[2..5].copy_from_slice(MOV_TO_CR3);
    anew[5..].copy_from_slice(&[0x8B, 0x0B]);
    let found = execute(&pae, &anew, [pae.cr3, word, 0, 0, at, 0]);
    let faulted = found.fault == Some(Fault { vector: 14, error: 0 });
    check!(test, faulted, "and not after a load of CR3: {found:x?}");
    second.store(good, SeqCst);
}
