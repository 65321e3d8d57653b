//! What an inner guest with a local APIC of its own executes: a script, also in its handlers, so
//! that the checks say in one place what it does. Handlers tell the vector, and go on with the
//! script that the hypervisor gives them; or they have one from the start, and tell nothing.

use super::super::block::{self, Frame, Guest, exit};
use super::super::{inside, paging};
use crate::counters::{Counted, Window};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

core::arch::global_asm!(
    r#"
.balign 16
.global avic_main, avic_ends, avic_tells, avic_reads, avic_writes, avic_loads, avic_stores
.global avic_taken, avic_tells_vector, avic_repeats
avic_main:
    call avic_script
avic_ends:
    vmmcall
    hlt
# The script at RSI: three words each.
avic_script:
    mov rax, [rsi]
    mov rcx, [rsi + 8]
    mov rdx, [rsi + 16]
    add rsi, 24
    lea r8, [rip + 2f]
    movsxd rax, dword ptr [r8 + 4 * rax]
    add rax, r8
    jmp rax
.balign 4
2:  .long avic_returns - 2b, 3f - 2b, avic_reads - 2b, 4f - 2b, 5f - 2b, 6f - 2b, 7f - 2b
    .long avic_stores - 2b, avic_loads - 2b, 8f - 2b, 9f - 2b, avic_tells - 2b
3:  mov eax, edx
    shr rdx, 32
avic_writes:
    wrmsr
    jmp avic_script
avic_reads:
    rdmsr
    mov [rsi - 8], eax
    mov [rsi - 4], edx
    jmp avic_script
4:  mov cr8, rcx
    jmp avic_script
5:  mov rax, cr8
    mov [rsi - 8], rax
    jmp avic_script
6:  sti
    nop
    jmp avic_script
7:  cli
    jmp avic_script
avic_stores:
    mov [rcx], edx
    jmp avic_script
avic_loads:
    mov eax, [rcx]
    mov [rsi - 8], rax
    jmp avic_script
8:  lock or [rcx], edx
    jmp avic_script
9:  pause
    cmp [rcx], edx
    jne 9b
    jmp avic_script
avic_tells:
    vmmcall
    jmp avic_script
avic_returns:
    ret
avic_repeats:
    rep stosd
    vmmcall
avic_takes:
    lock inc qword ptr [rip + {taken}]
    push r8
    test rdi, rdi
    jnz 3f
avic_tells_vector:
    vmmcall
    mov rsi, rdi
    xor edi, edi
    jmp 4f
3:  mov rsi, rdi
4:  call avic_script
    pop r8
    pop rsi
    pop rdx
    pop rcx
    pop rax
    iretq
"#,
    taken = sym TAKEN,
);

core::arch::global_asm!(
    r#"
.balign 16
avic_taken:
.set vector, 0
.rept 256
    .balign 16
    push %rax
    push %rcx
    push %rdx
    push %rsi
    mov $vector, %edx
    jmp avic_takes
    .set vector, vector + 1
.endr
"#,
    options(att_syntax)
);

macro_rules! labels {
    ($($name:ident = $symbol:ident),+ $(,)?) => { $(
        pub fn $name() -> u64 {
            unsafe extern "C" { static $symbol: u8; }
            (&raw const $symbol) as u64
        }
    )+ };
}

labels!(
    main = avic_main,
    ends = avic_ends,
    tells = avic_tells,
    reads = avic_reads,
    writes = avic_writes,
    loads = avic_loads,
    stores = avic_stores,
    taken = avic_taken,
    repeats = avic_repeats,
    tells_vector = avic_tells_vector,
);

/// How many interrupts it took.
pub static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The first vector that has a handler.
const FIRST: usize = 16;
const PROTECTION: usize = 13;
const CODE_SEGMENT: u64 = 8;
const GATE: u64 = 0x8E00;
/// VMMCALL's, and those of RDMSR and WRMSR.
const CALL: u64 = 3;
pub const MSR_BYTES: u64 = 2;
pub const X2APIC: core::ops::Range<u32> = 0x800..0x900;

/// Bits of `int_ctl`, and where a block has the rest (APM vol. 2, appendix B).
pub const AVIC: u64 = 1 << 31;
pub const X2AVIC: u64 = 1 << 30;
pub const BAR: usize = 0x98;
pub const BACKING: usize = 0xE0;

/// The backing page.
pub static PAGE: Frame = Frame::new();
static TABLE: Frame = Frame::new();
static MAIN: Frame = Frame::new();
/// Each for one of the handlers that interrupt each other.
static HANDLERS: [Frame; 4] = [const { Frame::new() }; 4];

/// What it does.
#[derive(Clone, Copy)]
pub enum Op {
    /// WRMSR.
    Write(u32, u64),
    /// RDMSR.
    Read(u32),
    /// MOV to CR8.
    SetCr8(u64),
    /// MOV from CR8.
    Cr8,
    /// STI, NOP.
    Open,
    /// CLI.
    Close,
    /// MOV of four bytes to memory.
    Store(u64, u32),
    /// MOV from there.
    Load(u64),
    /// LOCK OR.
    Or(u64, u32),
    /// Waits until these four bytes are there.
    Until(u64, u32),
    /// VMMCALL.
    Tell,
}

impl Op {
    fn words(self) -> [u64; 3] {
        match self {
            Op::Write(msr, value) => [1, msr.into(), value],
            Op::Read(msr) => [2, msr.into(), 0],
            Op::SetCr8(value) => [3, value, 0],
            Op::Cr8 => [4, 0, 0],
            Op::Open => [5, 0, 0],
            Op::Close => [6, 0, 0],
            Op::Store(at, value) => [7, at, value.into()],
            Op::Load(at) => [8, at, 0],
            Op::Or(at, bits) => [9, at, bits.into()],
            Op::Until(at, value) => [10, at, value.into()],
            Op::Tell => [11, 0, 0],
        }
    }
}

fn put_script(frame: &Frame, ops: &[Op]) -> u64 {
    let words = ops.iter().flat_map(|op| op.words()).chain([0; 3]);
    frame.0.iter().zip(words).for_each(|(at, word)| at.store(word, SeqCst));
    frame.address()
}

/// What came of running it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// It is in the handler of this vector.
    Taken(u64),
    /// At [`Op::Tell`].
    Told,
    /// The script is over.
    Ended,
    /// It had #GP.
    Refused,
    /// Another exit: its code, EXITINFO1, EXITINFO2, and RIP.
    Exit(u64, u64, u64, u64),
}

/// A register of the backing page.
pub fn register(offset: usize) -> u32 {
    PAGE.0[offset / 8].load(SeqCst) as u32
}

/// Puts one there.
pub fn put(offset: usize, value: u32) {
    PAGE.0[offset / 8].store(value.into(), SeqCst);
}

/// The registers of eight times 32 vectors.
pub const ISR: usize = 0x100;
pub const TMR: usize = 0x180;
pub const IRR: usize = 0x200;

/// Where a vector's bit is: the address of its word, and the bit.
pub fn bit(bank: usize, vector: u8) -> (u64, u32) {
    let at = bank + usize::from(vector / 32) * 16;
    (PAGE.address() + at as u64, 1 << (vector % 32))
}

/// Sets it.
pub fn set(bank: usize, vector: u8) {
    let at = bank + usize::from(vector / 32) * 16;
    PAGE.0[at / 8].fetch_or(1 << (vector % 32), SeqCst);
}

/// Clears it.
pub fn clear(bank: usize, vector: u8) {
    let at = bank + usize::from(vector / 32) * 16;
    PAGE.0[at / 8].fetch_and(!(1 << (vector % 32)), SeqCst);
}

/// Is just this in the bank?
pub fn is(bank: usize, vectors: &[u8]) -> bool {
    (0..=255).all(|vector| {
        let (at, bit) = (bank + usize::from(vector / 32) * 16, 1 << (vector % 32));
        vectors.contains(&vector) == (register(at) & bit != 0)
    })
}

/// The last word of an operation of a handler that tells nothing.
pub fn word_of_handler(nth: usize) -> u64 {
    HANDLERS[0].address() + 8 * (3 * nth as u64 + 2)
}

/// The inner guest.
pub struct Inner {
    pub guest: Guest,
    handlers: usize,
}

impl Inner {
    /// With AVIC in x2APIC mode, and each register of it open.
    pub fn new() -> Self {
        let inner = Inner { guest: paging::guest(), handlers: 0 };
        X2APIC.for_each(|msr| block::let_msr(msr, true, true));
        let gate = |vector: usize, at: u64| {
            let low = at & 0xFFFF | CODE_SEGMENT << 16 | GATE << 32 | (at >> 16 & 0xFFFF) << 48;
            TABLE.0[2 * vector].store(low, SeqCst);
            TABLE.0[2 * vector + 1].store(at >> 32, SeqCst);
        };
        (FIRST..256).for_each(|vector| gate(vector, taken() + 16 * vector as u64));
        gate(PROTECTION, inside::refuses());
        inner.control(AVIC | X2AVIC);
        inner.guest.block().put(BACKING, PAGE.address());
        inner
    }

    /// The bits of `int_ctl` beside V_INTR_MASKING.
    pub fn control(&self, bits: u64) {
        self.guest.block().put(block::INT_CTL, block::MASKING | bits);
    }

    /// The page as after reset, but for an id, a version and a logical id.
    pub fn fresh(&self) {
        PAGE.0.iter().for_each(|word| word.store(0, SeqCst));
        for (offset, value) in [(0x20, 0x77), (0x30, 0x0005_0014), (0xD0, 0x0003_0008)] {
            put(offset, value);
        }
        self.priority(0);
        TAKEN.store(0, SeqCst);
    }

    /// Its task priority, in the page and in the block.
    pub fn priority(&self, value: u32) {
        put(0x80, value);
        let kept = self.guest.block().get(block::INT_CTL) & !0xF;
        self.guest.block().put(block::INT_CTL, kept | u64::from(value >> 4));
    }

    /// Starts a script. Handlers tell.
    pub fn start(&mut self, ops: &[Op]) -> Came {
        self.prepare(ops);
        self.run()
    }

    /// The same, where handlers do this without a word.
    pub fn start_with(&mut self, ops: &[Op], handler: &[Op]) -> Came {
        self.prepare(ops);
        self.guest.registers.rdi = put_script(&HANDLERS[0], handler);
        self.run()
    }

    /// To be run.
    pub fn prepare(&mut self, ops: &[Op]) {
        self.guest.restart(main());
        self.guest.block().put(block::IDTR, 0xFFF << 32);
        self.guest.block().put(block::IDTR + 8, TABLE.address());
        self.guest.registers.rsi = put_script(&MAIN, ops);
    }

    /// VMRUN.
    pub fn run(&mut self) -> Came {
        self.guest.run();
        self.came()
    }

    /// The same, with the exits that this has.
    pub fn count(&mut self) -> (Came, Counted) {
        let window = Window::open();
        self.guest.enter();
        let counted = window.close();
        block::let_in();
        (self.came(), counted)
    }

    /// It goes on behind VMMCALL.
    pub fn go_on(&mut self) -> Came {
        self.guest.skip(CALL);
        self.run()
    }

    /// The handler that told its vector is to do this.
    pub fn prepare_handler(&mut self, ops: &[Op]) {
        self.handlers = (self.handlers + 1) % HANDLERS.len();
        self.guest.registers.rdi = put_script(&HANDLERS[self.handlers], ops);
        self.guest.skip(CALL);
    }

    /// And does it.
    pub fn handle(&mut self, ops: &[Op]) -> Came {
        self.prepare_handler(ops);
        self.run()
    }

    /// What an operation of the script read.
    pub fn read(&self, nth: usize) -> u64 {
        MAIN.0[3 * nth + 2].load(SeqCst)
    }

    /// Of the block: V_TPR.
    pub fn told_priority(&self) -> u64 {
        self.guest.block().get(block::INT_CTL) & 0xFF
    }

    fn came(&self) -> Came {
        let block = self.guest.block();
        let (rip, rdx) = (block.get(block::RIP), self.guest.registers.rdx);
        match self.guest.code() {
            exit::VMMCALL if rip == tells_vector() => Came::Taken(rdx),
            exit::VMMCALL if rip == tells() => Came::Told,
            exit::VMMCALL if rip == ends() => Came::Ended,
            exit::VMMCALL if rdx == inside::REFUSED => Came::Refused,
            code => {
                let infos = (block.get(block::EXIT_INFO_1), block.get(block::EXIT_INFO_2));
                Came::Exit(code, infos.0, infos.1, rip)
            }
        }
    }
}
