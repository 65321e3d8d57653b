//! The random guest: a stream of privileged operations made of a seed alone, so that the same seed
//! and count try the same again, whatever the machine answers. `random=SEED count=N` on the command
//! line.
//!
//! Guarantees: the seed is printed before the first operation, and how many of each kind were tried
//! at the end and every so often. It puts its own machine in order after each operation as far as
//! it can; one that it doesn't survive ends its VM, which is what its neighbours must not notice.

mod attempt;

use crate::fixture;
use attempt::{Registers, attempt};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use machine::{
    boot::Boot, console::println, cpu, edu, idt, nvme::Nvme, pci, random::Random, x2apic,
};

/// Kinds of operations, in the order of the counts.
const KINDS: [&str; 14] = [
    "rdmsr",
    "wrmsr",
    "in",
    "out",
    "config",
    "x2apic",
    "control",
    "tables",
    "paging",
    "device",
    "msi-x",
    "vmx-svm",
    "interrupts",
    "halt",
];
/// Operations between two reports, and between two times that all is put in order.
const REPORT: u64 = 512;
const ORDER: u64 = 128;
/// What of CR4 isn't changed: PAE, which QEMU lets go in long mode instead of refusing, and what
/// would take this kernel's memory from it (PCIDE, LA57, SMEP, SMAP, PKE, CET, PKS).
const CR4_OWN: u64 = 1 << 5 | 1 << 12 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 22 | 1 << 23 | 1 << 24;
/// What ends a sleep: the timer, at this vector.
const WAKE: u8 = 0x51;
/// The guest's own memory and code end below this.
const FAR: u64 = 0x4000_0000;

/// A number from the command line, decimal or with 0x.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Runs the stream that the command line asks for, if it does.
pub fn run(boot: &Boot) {
    let Some(seed) = boot.option("random").and_then(number) else { return };
    let count = boot.option("count").and_then(number).unwrap_or(u64::MAX);
    println!("random seed={seed:#x} count={count}");
    let mut stream = Stream { random: Random::new(seed), tried: [0; KINDS.len()] };
    STREAM.store((&raw mut stream) as u64, SeqCst);
    attempt::prepare();
    for n in 1..=count {
        attempt::around(one);
        if n % ORDER == 0 {
            attempt::around(order);
        }
        if n % REPORT == 0 {
            stream.report("tried");
        }
    }
    attempt::around(order);
    stream.report("over");
}

/// The stream, for what has no arguments.
static STREAM: AtomicU64 = AtomicU64::new(0);

extern "C" fn one() {
    // SAFETY: `run` put it there, lends it to nobody else meanwhile, and waits.
    unsafe { (*(STREAM.load(SeqCst) as *mut Stream)).operation() }
}

/// Puts tables and APIC in order, so that interrupts come again.
extern "C" fn order() {
    cpu::disable_interrupts();
    idt::init();
    x2apic::init_cpu();
    (0..=255).for_each(|_| x2apic::complete());
}

struct Stream {
    random: Random,
    tried: [u64; KINDS.len()],
}

impl Stream {
    fn report(&self, what: &str) {
        use core::fmt::Write as _;
        let mut console = machine::console::Console;
        let all: u64 = self.tried.iter().sum();
        // The console never fails.
        let _ = write!(console, "random {what} operations={all} faults={}", attempt::faults());
        for (kind, n) in KINDS.iter().zip(self.tried) {
            let _ = write!(console, " {kind}={n}");
        }
        println!();
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.random.number() >> 16) % n
    }

    /// A number of any size, often small or with few bits.
    fn any(&mut self) -> u64 {
        let value = self.random.number();
        match self.below(4) {
            0 => value,
            1 => value >> 32,
            2 => value & 0xFFF,
            _ => 1 << (value & 63),
        }
    }

    fn tries(&self, code: &[u8], registers: &Registers) {
        attempt(code, registers);
    }

    fn operation(&mut self) {
        let kind = self.below(KINDS.len() as u64) as usize;
        self.tried[kind] += 1;
        // As many numbers for each, so that nothing that happens changes what follows.
        let [a, b, c] = [self.any(), self.any(), self.any()];
        match kind {
            0 => self.msr(&[0x0F, 0x32], a, b),
            1 => self.msr(&[0x0F, 0x30], a, b),
            2 => self.port(false, a, b, c),
            3 => self.port(true, a, b, c),
            4 => config(a, b, c),
            5 => self.tries(&[0x0F, 0x30], &split(0x800 + a % 0x40, b)),
            6 => self.control(a, b),
            7 => self.tables(a, b),
            8 => self.paging(a, b, c),
            9 => device(a, b),
            10 => messages(a, b, c),
            11 => self.extension(a, b, c),
            12 => self.interrupts(a, b),
            _ => self.halt(a, b),
        }
    }

    fn msr(&mut self, code: &[u8], place: u64, value: u64) {
        let bases = [0, 0xC000_0000, 0xC001_0000, 0x4000_0000, 0x800, place & 0xFFFF_F000];
        let msr = bases[(place >> 12) as usize % bases.len()] | place & 0xFFF;
        self.tries(code, &split(msr, value));
    }

    fn port(&mut self, out: bool, place: u64, value: u64, width: u64) {
        let port = place as u16;
        // The console tells what was tried; the ends of the machine are attacks of their own.
        let kept = matches!(port, 0x3F8..=0x3FF | 0xF4..=0xF7 | 0x600..=0x607 | 0xCF9 | 0x64);
        if out && kept {
            return;
        }
        let code: &[u8] = match (out, width % 3) {
            (false, 0) => &[0xEC],
            (false, 1) => &[0x66, 0xED],
            (false, _) => &[0xED],
            (true, 0) => &[0xEE],
            (true, 1) => &[0x66, 0xEF],
            (true, _) => &[0xEF],
        };
        self.tries(code, &[value, 0, port.into(), 0, 0]);
    }

    /// CR0 to CR8 and DR0 to DR7, to and fro.
    fn control(&mut self, what: u64, value: u64) {
        let register = (what & 7) as u8;
        let modrm = 0xC0 | register << 3;
        let (opcode, write) = ([0x20, 0x21, 0x22, 0x23][(what >> 3) as usize & 3], what & 16 != 0);
        let here = controls();
        let value = match (opcode, register) {
            // But for its low bits that is the end of this kernel.
            (0x22, 3) => here[1] | value & 0xFFF,
            (0x22, 4) => here[2] ^ value & !CR4_OWN,
            (0x22, 0) => here[0] ^ value,
            _ => value,
        };
        if opcode & 2 == 0 || write {
            self.tries(&[0x0F, opcode, modrm], &[value, 0, 0, 0, 0]);
        }
        restore_controls(here);
        if what & 32 != 0 {
            self.tries(&[0x44, 0x0F, 0x22, 0xC0], &[value, 0, 0, 0, 0]);
        }
        // No breakpoint stays, nor a priority.
        self.tries(&[0x0F, 0x23, 0xF8], &[0x400, 0, 0, 0, 0]);
        self.tries(&[0x44, 0x0F, 0x22, 0xC0], &[0; 5]);
    }

    /// LIDT anywhere and an INT through it; the own table again.
    fn tables(&mut self, base: u64, limit: u64) {
        let pointer = [limit << 48, base];
        let at = (&raw const pointer) as u64 + 6;
        // LIDT [rsi], LIDT of the own table at [rbx].
        let own = [0xFFF_u64 << 48, idt::arena(0)];
        let back = (&raw const own) as u64 + 6;
        self.tries(&[0x0F, 0x01, 0x1E, 0x0F, 0x01, 0x1B], &[0, 0, 0, back, at]);
        idt::load();
    }

    /// An entry for far addresses, changed and used.
    fn paging(&mut self, place: u64, entry: u64, low: u64) {
        let address = FAR + ((place % 0xC000_0000) & !7);
        let table = |entry: u64| (entry & 0x000F_FFFF_FFFF_F000) as *mut u64;
        let read = |table: *mut u64, index: u64| {
            // SAFETY: the loader's identity map: tables are mapped and this kernel's own.
            unsafe { table.add(index as usize & 511).read_volatile() }
        };
        let pdpt = table(read(table(controls()[1]), 0));
        let directory = table(read(pdpt, address >> 30));
        let slot = directory.wrapping_add((address >> 21) as usize & 511);
        let old = read(directory, address >> 21);
        let entry = entry & 0x000F_FFFF_FFE0_0000 | 0x83 | low & 0x18;
        // SAFETY: an entry for memory that this kernel doesn't use.
        unsafe { slot.write_volatile(entry) };
        cpu::invalidate_page(address);
        // A load; a store where it isn't this kernel's own memory.
        let code: &[u8] = if entry & 0x000F_FFFF_FFE0_0000 >= FAR {
            &[0x48, 0x8B, 0x06, 0x48, 0x89, 0x06]
        } else {
            &[0x48, 0x8B, 0x06]
        };
        self.tries(code, &[low, 0, 0, 0, address]);
        // SAFETY: as above.
        unsafe { slot.write_volatile(old) };
        cpu::invalidate_page(address);
    }

    fn extension(&mut self, which: u64, a: u64, b: u64) {
        const CODES: [&[u8]; 16] = [
            &[0x0F, 0x01, 0xD8],       // VMRUN
            &[0x0F, 0x01, 0xD9],       // VMMCALL
            &[0x0F, 0x01, 0xDA],       // VMLOAD
            &[0x0F, 0x01, 0xDB],       // VMSAVE
            &[0x0F, 0x01, 0xDC],       // STGI
            &[0x0F, 0x01, 0xDE],       // SKINIT
            &[0x0F, 0x01, 0xDF],       // INVLPGA
            &[0x0F, 0x01, 0xC1],       // VMCALL
            &[0x0F, 0x01, 0xC4],       // VMXOFF
            &[0xF3, 0x0F, 0xC7, 0x36], // VMXON
            &[0x0F, 0x01, 0xC8],       // MONITOR
            &[0x0F, 0x01, 0xD1],       // XSETBV
            &[0x0F, 0x09],             // WBINVD
            &[0x0F, 0xA2],             // CPUID
            &[0x0F, 0x33],             // RDPMC
            &[0x0F, 0xAA],             // RSM
        ];
        self.tries(CODES[which as usize % CODES.len()], &[a, b & 0xFFFF, a >> 32, 0, 0]);
    }

    /// HLT until the timer, or a device, ends it. The APIC is put in order before: nothing else
    /// would.
    fn halt(&mut self, ticks: u64, which: u64) {
        cpu::disable_interrupts();
        idt::load();
        x2apic::init_cpu();
        x2apic::complete_all();
        if which & 1 != 0 {
            self.interrupts(ticks, which >> 1);
        }
        x2apic::start_timer(WAKE, false, 1000 + (ticks % 1_000_000) as u32);
        // STI; HLT; CLI
        self.tries(&[0xFB, 0xF4, 0xFA], &[0; 5]);
        x2apic::stop_timer();
    }

    /// INT n, and interrupts let in for a moment after one to itself.
    fn interrupts(&mut self, vector: u64, which: u64) {
        match which % 3 {
            0 => self.tries(&[0xCD, vector as u8], &[0; 5]),
            // STI; NOP; CLI
            1 => self.tries(&[0xFB, 0x90, 0xFA], &[0; 5]),
            // To this CPU alone: others' are refused, and INIT to itself is the end.
            _ => {
                let command = x2apic::command::SELF | vector & 0xCFF & !(4 << 8);
                self.tries(&[0x0F, 0x30], &split(x2apic::ICR.into(), x2apic::sendable(command)));
            }
        }
    }
}

fn split(msr: u64, value: u64) -> Registers {
    [value & 0xFFFF_FFFF, msr & 0xFFFF_FFFF, value >> 32, 0, 0]
}

/// Any bytes in the configuration space of any function, but for where its own device is switched
/// off.
fn config(place: u64, register: u64, value: u64) {
    let functions = [(place >> 3) as u8 & 31, 1, 2, 3][(place & 3) as usize];
    let function = pci::Function { device: functions, function: (place >> 8) as u8 & 7 };
    if value & 1 == 0 {
        let _ = function.read(register as u8);
    } else {
        function.write(register as u8, value as u32);
    }
}

/// Commands of its own device, DMA to and from anywhere among them.
fn device(register: u64, value: u64) {
    let Some(edu) = fixture::device() else { return };
    const REGISTERS: [u64; 7] = [0x08, 0x20, 0x60, 0x64, 0x80, 0x88, 0x98];
    let at = edu.base() + REGISTERS[register as usize % REGISTERS.len()];
    // Where its registers are was read just now.
    if edu.base() >= FAR {
        cpu::mmio_write(at, value as u32);
    }
}

/// A controller's table of messages, a word of it or one that is well-formed, its mask and its
/// switch, and now and then a completion that sends one.
fn messages(place: u64, value: u64, what: u64) {
    let Some(mut nvme) = Nvme::find() else { return };
    let Some((capability, table)) = nvme.table() else { return };
    let entry = table + (place & 3) * 16;
    match what % 32 {
        0..8 => cpu::mmio_write(entry + (place >> 8 & 12), value as u32),
        8..20 => {
            // For this CPU, at a vector that isn't an exception's; or for others, too, and at one
            // that is.
            let reserved = what % 32 >= 16;
            let id = if reserved { place as u32 >> 4 & 3 } else { 0 };
            let vector = if reserved { value & 0x1F } else { value & 0xFF | 0x20 };
            cpu::mmio_write(entry, edu::message_address(id) as u32);
            cpu::mmio_write(entry + 4, 0);
            cpu::mmio_write(entry + 8, vector as u32);
            cpu::mmio_write(entry + 12, 0);
        }
        20..24 => cpu::mmio_write(entry + 12, value as u32 & 1),
        24..28 => nvme.function.write(capability, value as u32),
        28..31 => {
            let on = nvme.function.read(capability) & !(1 << 30) | 1 << 31;
            nvme.function.write(capability, on);
            nvme.ring(place as u32, value as u32);
        }
        _ => {
            // Commands of zeroes, which it refuses, each with a completion.
            nvme.start();
        }
    }
}

/// CR0, CR3, CR4.
fn controls() -> [u64; 3] {
    let (cr0, cr3, cr4);
    // SAFETY: reads registers.
    unsafe {
        core::arch::asm!("mov {}, cr0", "mov {}, cr3", "mov {}, cr4",
                         out(reg) cr0, out(reg) cr3, out(reg) cr4, options(nomem, nostack));
    }
    [cr0, cr3, cr4]
}

fn restore_controls([cr0, cr3, cr4]: [u64; 3]) {
    // SAFETY: what the registers held a moment ago.
    unsafe {
        core::arch::asm!("mov cr4, {}", "mov cr0, {}", "mov cr3, {}",
                         in(reg) cr4, in(reg) cr0, in(reg) cr3, options(nostack));
    }
}
