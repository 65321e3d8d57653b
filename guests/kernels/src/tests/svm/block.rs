//! A control block and the guest that runs by it: 64-bit code with this kernel's own page tables.

use super::inside;
use crate::{cpu, idt};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Offsets in a control block (APM vol. 2, appendix B), of words of eight bytes.
pub const EXCEPTIONS: usize = 0x08;
pub const MISC2: usize = 0x10;
pub const ASID: usize = 0x58;
pub const INT_CTL: usize = 0x60;
pub const EXIT_CODE: usize = 0x70;
pub const EXIT_INFO_1: usize = 0x78;
pub const EXIT_INFO_2: usize = 0x80;
pub const EXIT_INT_INFO: usize = 0x88;
pub const NESTED: usize = 0x90;
pub const EVENT_INJ: usize = 0xA8;
pub const NESTED_CR3: usize = 0xB0;
/// VMLOAD and VMSAVE by the guest.
pub const VIRTUAL: usize = 0xB8;
pub const CLEAN: usize = 0xC0;
pub const NEXT_RIP: usize = 0xC8;
pub const IDTR: usize = 0x480;
pub const EFER: usize = 0x4D0;
pub const CR4: usize = 0x548;
pub const CR0: usize = 0x558;
pub const DR7: usize = 0x560;
pub const DR6: usize = 0x568;
pub const RFLAGS: usize = 0x570;
pub const RIP: usize = 0x578;
pub const RSP: usize = 0x5D8;
pub const RAX: usize = 0x5F8;

/// V_GIF, and that the CPU keeps it.
pub const FLAG: u64 = 1 << 9;
pub const FLAG_KEPT: u64 = 1 << 25;
/// V_INTR_MASKING.
pub const MASKING: u64 = 1 << 24;

/// Exit codes.
pub mod exit {
    pub const INTR: u64 = 0x60;
    pub const NMI: u64 = 0x61;
    pub const INIT: u64 = 0x63;
    pub const CPUID: u64 = 0x72;
    pub const HLT: u64 = 0x78;
    pub const IOIO: u64 = 0x7B;
    pub const MSR: u64 = 0x7C;
    pub const SHUTDOWN: u64 = 0x7F;
    pub const VMMCALL: u64 = 0x81;
    pub const VMLOAD: u64 = 0x82;
    pub const STGI: u64 = 0x84;
    pub const NPF: u64 = 0x400;
    /// QEMU leaves the upper half out.
    pub const INVALID: u64 = 0xFFFF_FFFF;
}

/// INTR, CPUID, HLT, INVLPGA, IOIO, MSR, SHUTDOWN.
const MISC1_WANTED: u64 = 1 << 0 | 1 << 18 | 1 << 24 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 31;
/// VMRUN, VMMCALL and the rest of SVM.
const MISC2_WANTED: u64 = 0x7F;
/// Among the intercepts of word 3, beside those of exceptions.
pub const NMI_WANTED: u64 = 1 << 33;
pub const INIT_WANTED: u64 = 1 << 35;

/// Frames of this test.
#[repr(C, align(4096))]
pub struct Frame(pub [AtomicU64; 512]);

impl Frame {
    pub const fn new() -> Self {
        Frame([const { AtomicU64::new(0) }; 512])
    }

    pub fn address(&self) -> u64 {
        core::ptr::from_ref(self) as u64
    }
}

static BLOCK: Frame = Frame::new();
static HOST_SAVE: Frame = Frame::new();
static STACK: Frame = Frame::new();
static TABLE: Frame = Frame::new();
static MSRS: [Frame; 2] = [const { Frame::new() }; 2];
static PORTS: [Frame; 3] = [const { Frame::new() }; 3];

/// For VM_HSAVE_PA.
pub fn host_save() -> u64 {
    HOST_SAVE.address()
}

/// CLGI.
pub fn hold() {
    // SAFETY: holds interrupts back.
    unsafe { asm!("clgi", options(nostack)) }
}

/// The flag is clear, as that of a hypervisor which has run guests already.
pub fn hold_again() {
    (0..2).for_each(|_| {
        let_in();
        hold();
    });
}

/// STGI.
pub fn let_in() {
    // SAFETY: every vector has a gate.
    unsafe { asm!("stgi", options(nostack)) }
}

/// Whether the guest may read and write an MSR without an exit.
pub fn let_msr(msr: u32, read: bool, write: bool) {
    let (range, first) = match msr {
        0xC000_0000.. => (1 + (msr >> 16 & 1), msr & 0xFFFF_0000),
        _ => (0, 0),
    };
    let bit = (range * 0x800 * 8 + (msr - first) * 2) as usize;
    for (bit, open) in [(bit, read), (bit + 1, write)] {
        let word = &MSRS[bit / 64 / 512].0[bit / 64 % 512];
        if open {
            word.fetch_and(!(1 << (bit % 64)), SeqCst);
        } else {
            word.fetch_or(1 << (bit % 64), SeqCst);
        }
    }
}

/// Whether accesses to a port exit.
pub fn open_port(port: u16, open: bool) {
    let bit = usize::from(port);
    let word = &PORTS[bit / 64 / 512].0[bit / 64 % 512];
    if open {
        word.fetch_and(!(1 << (bit % 64)), SeqCst);
    } else {
        word.fetch_or(1 << (bit % 64), SeqCst);
    }
}

/// The control block.
pub struct Block;

impl Block {
    /// A guest in long mode that has this kernel's page tables, and exits for what it can.
    pub fn new() -> Self {
        BLOCK.0.iter().for_each(|word| word.store(0, SeqCst));
        for frame in MSRS.iter().chain(&PORTS) {
            frame.0.iter().for_each(|word| word.store(u64::MAX, SeqCst));
        }
        let (cr3, cr4): (u64, u64);
        let mut gdtr = [0u8; 10];
        // SAFETY: reads registers, and stores ten bytes.
        unsafe {
            asm!("mov {}, cr3", "mov {}, cr4", out(reg) cr3, out(reg) cr4);
            asm!("sgdt [{}]", in(reg) gdtr.as_mut_ptr());
        }
        let [l0, l1, base @ ..] = gdtr;
        let gdt = (u64::from_le_bytes(base), u64::from(u16::from_le_bytes([l0, l1])));
        let (idt, idt_limit) = cpu::stored_idt();
        let flat = |selector: u64, attributes: u64| selector | attributes << 16 | 0xFFFF_FFFF << 32;
        let block = Block;
        for (at, value) in [
            (EXCEPTIONS, MISC1_WANTED << 32),
            (MISC2, MISC2_WANTED),
            (0x40, PORTS[0].address()),
            (0x48, MSRS[0].address()),
            (ASID, 1),
            (INT_CTL, MASKING),
            (0x400, flat(0x10, 0xC93)),
            (0x410, flat(8, 0xA9B)),
            (0x420, flat(0x10, 0xC93)),
            (0x430, flat(0x10, 0xC93)),
            (0x460, gdt.1 << 32),
            (0x468, gdt.0),
            (IDTR, u64::from(idt_limit) << 32),
            (IDTR + 8, idt),
            (EFER, cpu::rdmsr(0xC000_0080)),
            (CR4, cr4),
            (0x550, cr3),
            (CR0, cpu::cr0()),
            (DR7, 0x400),
            (DR6, 0xFFFF_0FF0),
            (RFLAGS, 2),
            (RSP, STACK.address() + 4096),
            (0x668, 0x0007_0406_0007_0406),
        ] {
            block.put(at, value);
        }
        block
    }

    pub fn address() -> u64 {
        BLOCK.address()
    }

    pub fn get(&self, at: usize) -> u64 {
        BLOCK.0[at / 8].load(SeqCst)
    }

    pub fn put(&self, at: usize, value: u64) {
        BLOCK.0[at / 8].store(value, SeqCst);
    }

    /// VMSAVE.
    pub fn save(&self) {
        // SAFETY: writes to the block alone.
        unsafe { asm!("vmsave rax", in("rax") Block::address()) }
    }

    /// VMLOAD of what VMSAVE stored, but for what the test changed.
    pub fn load(&self) {
        // SAFETY: the segments are this kernel's own.
        unsafe { asm!("vmload rax", in("rax") Block::address()) }
    }
}

/// Those of the guest's registers that tests look at.
#[derive(Clone, Copy, Default)]
pub struct Registers {
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
}

/// A guest.
pub struct Guest {
    block: Block,
    pub registers: Registers,
}

impl Guest {
    /// At its first instruction.
    pub fn new(rip: u64) -> Self {
        let guest = Guest { block: Block::new(), registers: Registers::default() };
        guest.block.put(RIP, rip);
        guest
    }

    /// By the block as it is, which another CPU has made.
    pub fn as_it_is() -> Self {
        Guest { block: Block, registers: Registers::default() }
    }

    /// Another one, by the same block.
    pub fn restart(&mut self, rip: u64) {
        let idt = cpu::stored_idt();
        self.block.put(IDTR, u64::from(idt.1) << 32);
        self.block.put(IDTR + 8, idt.0);
        self.block.put(RIP, rip);
        self.block.put(RFLAGS, 2);
        self.block.put(RSP, STACK.address() + 4096);
        self.block.put(EVENT_INJ, 0);
        self.registers = Registers::default();
    }

    /// It counts its interrupts in RDI, whatever their vectors: this kernel's handlers aren't for
    /// guests.
    pub fn count_interrupts(&self) {
        let gate = idt::gate_to(inside::takes());
        for (word, value) in TABLE.0.iter().zip(gate.into_iter().cycle()) {
            word.store(value, SeqCst);
        }
        self.block.put(IDTR, 0xFFF << 32);
        self.block.put(IDTR + 8, TABLE.address());
    }

    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Why it was left.
    pub fn code(&self) -> u64 {
        let code = self.block.get(EXIT_CODE);
        if code == u64::MAX { exit::INVALID } else { code }
    }

    /// The instruction is done.
    pub fn skip(&self, bytes: u64) {
        self.block.put(RIP, self.block.get(RIP) + bytes);
    }

    /// VMRUN, and STGI behind it.
    pub fn run(&mut self) {
        self.enter();
        let_in();
    }

    /// VMRUN. The global interrupt flag is clear afterwards.
    #[inline(never)]
    pub fn enter(&mut self) {
        let r = &mut self.registers;
        // SAFETY: the guest uses its own stack and what tests give it; all registers that it
        // leaves behind are named or saved.
        unsafe {
            asm!(
                "push rbx",
                "push rbp",
                "vmrun rax",
                "pop rbp",
                "pop rbx",
                inout("rax") Block::address() => _,
                inout("rcx") r.rcx, inout("rdx") r.rdx, inout("rsi") r.rsi, inout("rdi") r.rdi,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
                out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            );
        }
    }

    /// CLGI, STI, VMRUN, CLI: as a hypervisor runs its guests, with its interrupts let in.
    pub fn enter_open(&mut self) {
        // SAFETY: with the global interrupt flag clear nothing comes in before VMRUN.
        unsafe { asm!("clgi", "sti", options(nostack)) }
        self.enter();
        cpu::disable_interrupts();
    }

    /// The same again and again, while it is left for interrupts, which are taken.
    pub fn enter_through(&mut self) {
        self.enter_open();
        while self.code() == exit::INTR {
            let_in();
            cpu::enable_interrupts();
            cpu::disable_interrupts();
            self.enter_open();
        }
    }

    /// It is left for these, too, of the words of exceptions and of word 3.
    pub fn leave_for(&self, wanted: u64) {
        self.block.put(EXCEPTIONS, self.block.get(EXCEPTIONS) | wanted);
    }
}
