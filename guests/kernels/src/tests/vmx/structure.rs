//! The processor's current control structure, with all that it points to, and the switch.
//!
//! Guarantees: a guest that is entered runs on this kernel's own memory, mapped one to one, and
//! keeps its hands off registers that the switch doesn't save; what comes of an entry is one
//! [`Came`]. For the first CPU alone.

use crate::cpu;
use core::arch::asm;
use core::mem::offset_of;
use paging::{Access, Ept, Format};
use vendor::Start;
use vmx::start::{self, Parts};
use vmx::{Area, Capabilities, Controls, FeatureControl, Field, Host, field};

const EFER: u32 = 0xC000_0080;
const PAT: u32 = 0x277;
const CR0_NE: u64 = 1 << 5;
const CR4_VMXE: u64 = 1 << 13;
/// Any selector of TR but 0: nothing here switches tasks.
const TASK: u16 = 0x18;

/// What the processor and the structure use, a page each.
#[repr(C, align(4096))]
struct Pages {
    root: [u64; 512],
    directories: [u64; 512],
    on: [u8; 4096],
    structure: [u8; 4096],
    ports: [[u8; 4096]; 2],
    msrs: [u8; 4096],
    virtual_apic: [u8; 4096],
}

static mut PAGES: Pages = Pages {
    root: [0; 512],
    directories: [0; 512],
    on: [0; 4096],
    structure: [0; 4096],
    ports: [[0xFF; 4096]; 2],
    msrs: [0xFF; 4096],
    virtual_apic: [0; 4096],
};

/// Memory is mapped one to one.
fn page(offset: usize) -> u64 {
    (&raw const PAGES) as u64 + offset as u64
}

/// What came of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// The guest was entered, and left.
    Left,
    /// Its state isn't one that can be entered.
    Invalid,
    /// The instruction failed, with this error.
    Failed(u32),
}

/// The current control structure.
pub struct Current {
    pub capabilities: Capabilities,
    pub controls: Controls,
    launched: bool,
}

impl Area for Current {
    fn read(&self, field: Field) -> u64 {
        let value: u64;
        // SAFETY: `Current::new` made one current.
        unsafe {
            asm!("vmread {}, {}", out(reg) value, in(reg) field.encoding(), options(nostack));
        }
        value
    }

    fn write(&mut self, field: Field, value: u64) {
        // SAFETY: as above; what is written is used at an entry.
        unsafe {
            asm!("vmwrite {}, {}", in(reg) field.encoding(), in(reg) value, options(nostack));
        }
    }
}

impl Current {
    /// Turns VMX on. None: something is lacking, which is said.
    pub fn new(report: impl Fn(bool, &dyn core::fmt::Display)) -> Option<Current> {
        let offered = cpu::cpuid(1).ecx >> 5 & 1 == 1;
        report(offered, &"CPUID 1 ECX says VMX");
        if !offered {
            return None;
        }
        match FeatureControl::of(cpu::rdmsr(FeatureControl::MSR)) {
            Ok(FeatureControl::Ready) => {}
            Ok(FeatureControl::Write(value)) => cpu::wrmsr(FeatureControl::MSR, value),
            Err(locked) => {
                report(false, &locked);
                return None;
            }
        }
        let bits = cpu::cpuid(0x8000_0008).eax & 0xFF;
        let capabilities = Capabilities::read(bits, cpu::rdmsr);
        let controls = match Controls::fit(&capabilities) {
            Ok(controls) => controls,
            Err(lack) => {
                report(false, &lack);
                return None;
            }
        };
        report(true, &"the CPU has all of VMX that is needed");
        let all = Access::READ | Access::WRITE | Access::EXECUTE;
        // SAFETY: one CPU, which makes this reference once; the processor uses none of it yet.
        let pages = unsafe { (&raw mut PAGES).as_mut_unchecked() };
        pages.root[0] = Ept.table(4, page(offset_of!(Pages, directories)));
        for (gib, entry) in (0..4).zip(&mut pages.directories) {
            *entry = Ept.leaf(3, gib << 30, all);
        }
        for region in [&mut pages.on, &mut pages.structure] {
            region[..4].copy_from_slice(&capabilities.revision.to_le_bytes());
        }
        let regions = [offset_of!(Pages, on), offset_of!(Pages, structure)].map(page);
        let failed: u8;
        // SAFETY: the bits are what VMX wants of CR0 and CR4; the regions are pages of their own
        // with the revision in them.
        unsafe {
            asm!(
                "mov {t}, cr0", "or {t}, {ne}", "mov cr0, {t}",
                "mov {t}, cr4", "or {t}, {vmxe}", "mov cr4, {t}",
                "vmxon [{regions}]",
                "setbe {failed}",
                "vmclear [{regions} + 8]",
                "vmptrld [{regions} + 8]",
                t = out(reg) _,
                ne = const CR0_NE,
                vmxe = const CR4_VMXE,
                regions = in(reg) regions.as_ptr(),
                failed = out(reg_byte) failed,
            );
        }
        report(failed == 0, &"VMXON");
        Some(Current { capabilities, controls, launched: false })
    }

    /// All of it, as a vCPU has it at this start.
    pub fn build(&mut self, start: Start) {
        let parts = Parts {
            nested_root: page(offset_of!(Pages, root)),
            vpid: 1,
            ports: [0, 4096].map(|more| page(offset_of!(Pages, ports) + more)),
            msrs: page(offset_of!(Pages, msrs)),
            virtual_apic: page(offset_of!(Pages, virtual_apic)),
        };
        let (capabilities, controls) = (self.capabilities, self.controls);
        start::set_up(self, &capabilities, &controls, &parts);
        // What a start-up leaves alone is as after a reset.
        start::reset(self, &capabilities, long(0));
        start::reset(self, &capabilities, start);
        host().write(self);
    }

    /// Enters the guest.
    pub fn enter(&mut self) -> Came {
        let failed: u64;
        // SAFETY: what an exit loads is this kernel's state as it is now, with this stack; the
        // guest leaves the registers alone that aren't named.
        unsafe {
            asm!(
                "push rbx",
                "push rbp",
                "mov edx, {host_rsp}",
                "vmwrite rdx, rsp",
                "mov edx, {host_rip}",
                "lea rcx, [rip + 3f]",
                "vmwrite rdx, rcx",
                "test eax, eax",
                "jnz 2f",
                "vmlaunch",
                "jmp 4f",
                "2:",
                "vmresume",
                "4:",
                "mov eax, 1",
                "jmp 5f",
                "3:",
                "mov eax, 0",
                "5:",
                "pop rbp",
                "pop rbx",
                host_rsp = const field::HOST_RSP.encoding(),
                host_rip = const field::HOST_RIP.encoding(),
                inout("rax") u64::from(self.launched) => failed,
                out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
                out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            );
        }
        if failed != 0 {
            return Came::Failed(self.read(field::INSTRUCTION_ERROR) as u32);
        }
        if self.read(field::EXIT_REASON) >> 31 & 1 != 0 {
            return Came::Invalid;
        }
        self.launched = true;
        Came::Left
    }
}

/// Long mode on this kernel's own tables, at this instruction.
pub fn long(rip: u64) -> Start {
    Start::Kernel {
        rip,
        page_tables: Some(cpu::cr3()),
        gdt: (0, 0),
        selectors: (0x08, 0x10),
        registers: (0, 0, 0),
    }
}

/// This kernel's state; where it goes on is each entry's.
fn host() -> Host {
    Host {
        control: [cpu::cr0(), cpu::cr3(), cpu::cr4()],
        efer: cpu::rdmsr(EFER),
        pat: cpu::rdmsr(PAT),
        selectors: [0x08, TASK],
        bases: [0, 0],
        task: 0,
        tables: [cpu::stored_gdt(), cpu::stored_idt().0],
        rip: 0,
    }
}
