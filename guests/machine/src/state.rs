//! What a CPU holds besides general registers and segments: extended state, debug addresses, CR2,
//! CR8, and MSRs that a guest reaches itself.
//!
//! Guarantees: [`State::now`] changes nothing that it reads; this kernel is built without SSE, so
//! between two looks nobody but a test, or a host, changes any of it. Doesn't look at the x87
//! unit's last-error pointers, which QEMU doesn't keep.

use crate::{cpu, random::Random};
use core::arch::asm;

/// CR4: SSE, its exceptions, XSAVE.
const EXTENSIONS: u64 = 1 << 9 | 1 << 10 | 1 << 18;
/// States of the x87 unit and of SSE; with AVX.
const LEGACY: u64 = 0b011;
const AVX: u64 = 0b111;
/// Bytes of an XSAVE area: legacy region, header, upper halves of YMM and whatever may lie between.
const AREA: usize = 1024;
/// Where the XSAVE area has things (SDM vol. 1, 13.4).
const CONTROL: usize = 0;
const TAGS: usize = 4;
const MXCSR: usize = 24;
const X87: usize = 32;
const XMM: usize = 160;
const HEADER: usize = 512;
/// Upper halves of YMM, where every CPU has them.
const YMM: usize = 576;
const REGISTERS: usize = 16;

/// After a reset or FNINIT; and as the manuals have it after a reset alone.
const X87_CONTROL: [u16; 2] = [0x037F, 0x0040];
const MXCSR_RESET: u32 = 0x1F80;
const PAT_RESET: u64 = 0x0007_0406_0007_0406;

const SPEC_CTRL: u32 = 0x48;
const PAT: u32 = 0x277;
const TSC_AUX: u32 = 0xC000_0103;
/// Bits that a value of any kind may have: a canonical address of the lower half.
const ADDRESS: u64 = (1 << 47) - 1;

/// Registers, what of a random number may be written, and their names.
const MSRS: [(u32, u64, &str); 13] = [
    (SPEC_CTRL, 1, "SPEC_CTRL"),
    (PAT, 0, "PAT"),
    (TSC_AUX, 0xFFFF_FFFF, "TSC_AUX"),
    (0x174, 0xFFF8, "SYSENTER_CS"),
    (0x175, ADDRESS, "SYSENTER_ESP"),
    (0x176, ADDRESS, "SYSENTER_EIP"),
    (0xC000_0081, !0, "STAR"),
    (0xC000_0082, ADDRESS, "LSTAR"),
    (0xC000_0083, ADDRESS, "CSTAR"),
    (0xC000_0084, 0xFFFF_FFFF, "SFMASK"),
    (0xC000_0100, ADDRESS, "FS base"),
    (0xC000_0101, ADDRESS, "GS base"),
    (0xC000_0102, ADDRESS, "KERNEL_GS_BASE"),
];

#[derive(Clone)]
#[repr(C, align(64))]
struct Area([u8; AREA]);

/// All of it.
#[derive(Clone)]
pub struct State {
    extended: Area,
    xcr0: u64,
    debug: [u64; 4],
    debug_status: u64,
    debug_control: u64,
    cr2: u64,
    cr8: u64,
    msrs: [u64; MSRS.len()],
}

/// Turns XSAVE on, and AVX if `avx` and the CPU has it; gives what XCR0 was. Changes nothing else
/// that a [`State`] has.
pub fn prepare(avx: bool) -> u64 {
    // SAFETY: this kernel uses neither; what it turns on is there on every CPU with SVM or VMX.
    unsafe {
        asm!("mov {t}, cr4", "or {t}, {e}", "mov cr4, {t}", t = out(reg) _, e = in(reg) EXTENSIONS,
             options(nostack));
        asm!("mov {t}, cr0", "and {t}, -13", "or {t}, 2", "mov cr0, {t}", t = out(reg) _,
             options(nostack));
    }
    let before = xcr0();
    set_xcr0(enabled(avx));
    before
}

/// What XCR0 is after [`prepare`].
pub fn enabled(avx: bool) -> u64 {
    if avx && has_avx() { AVX } else { LEGACY }
}

/// Whether the CPU has AVX.
pub fn has_avx() -> bool {
    cpu::cpuid(1).ecx >> 28 & 1 == 1
}

fn set_xcr0(value: u64) {
    // SAFETY: `prepare` turned XSAVE on; this kernel keeps nothing in these registers.
    unsafe { asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") 0, options(nostack)) }
}

/// XGETBV of XCR0; needs [`prepare`], or CR4.OSXSAVE otherwise.
pub fn xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a register.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// MSRs that this CPU has.
fn has(msr: u32) -> bool {
    match msr {
        SPEC_CTRL => {
            let (amd, intel) = (cpu::cpuid(0x8000_0008).ebx, cpu::cpuid(7).edx);
            amd & (1 << 14) != 0 || intel & 1 << 26 != 0
        }
        TSC_AUX => cpu::cpuid(0x8000_0001).edx >> 27 & 1 == 1,
        _ => true,
    }
}

/// A page-attribute table of legal types.
fn page_attributes(random: u64) -> u64 {
    const TYPES: [u8; 6] = [0, 1, 4, 5, 6, 7];
    u64::from_le_bytes(random.to_le_bytes().map(|b| TYPES[usize::from(b) % TYPES.len()]))
}

impl State {
    /// What the CPU holds now.
    pub fn now() -> State {
        let mut state = State {
            extended: Area([0; AREA]),
            xcr0: xcr0(),
            debug: [0; 4],
            debug_status: 0,
            debug_control: 0,
            cr2: cpu::cr2(),
            cr8: cpu::cr8(),
            msrs: MSRS.map(|(msr, ..)| if has(msr) { cpu::rdmsr(msr) } else { 0 }),
        };
        let area = state.extended.0.as_mut_ptr();
        let [a, b, c, d] = &mut state.debug;
        // SAFETY: the area holds the states up to AVX, and no others are asked for.
        unsafe {
            asm!("xsave64 [{}]", in(reg) area, in("eax") AVX as u32, in("edx") 0,
                 options(nostack));
            asm!(
                "mov {}, dr0",
                "mov {}, dr1",
                "mov {}, dr2",
                "mov {}, dr3",
                out(reg) * a,
                out(reg) * b,
                out(reg) * c,
                out(reg) * d,
                options(nomem, nostack)
            );
            asm!("mov {}, dr6", "mov {}, dr7", out(reg) state.debug_status,
                 out(reg) state.debug_control, options(nomem, nostack));
        }
        state
    }

    /// Something else each time, in the states that [`prepare`] turned on.
    pub fn random(random: &mut Random) -> State {
        let mut state = State::now();
        let area = &mut state.extended.0;
        for chunk in area[X87..HEADER].chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.number().to_le_bytes());
        }
        // The last six bytes of a register's sixteen are reserved, and what follows XMM15, too.
        for register in area[X87..XMM].chunks_exact_mut(16) {
            register[10..].fill(0);
        }
        area[XMM + REGISTERS * 16..HEADER].fill(0);
        area[HEADER..YMM].fill(0);
        area[HEADER] = state.xcr0 as u8;
        let upper = if state.xcr0 & AVX == AVX { REGISTERS * 16 } else { 0 };
        for chunk in area[YMM..YMM + upper].chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.number().to_le_bytes());
        }
        // All exceptions masked; rounding and precision as it comes, all registers in use.
        let control = random.number();
        area[CONTROL..][..2].copy_from_slice(&(0x037F ^ control as u16 & 0x0C00).to_le_bytes());
        area[CONTROL + 2..][..2].fill(0);
        area[TAGS] = 0xFF;
        let mxcsr = MXCSR_RESET | (control >> 32) as u32 & 0x6000;
        area[MXCSR..][..4].copy_from_slice(&mxcsr.to_le_bytes());
        state.debug = core::array::from_fn(|_| random.number() & ADDRESS);
        state.cr2 = random.number() & ADDRESS;
        state.cr8 = random.number() & 15;
        for ((msr, bits, _), value) in MSRS.into_iter().zip(&mut state.msrs) {
            *value = match msr {
                PAT => page_attributes(random.number()),
                _ if has(msr) => random.number() & bits,
                _ => 0,
            };
        }
        state
    }

    /// Gives it to the CPU, but for XCR0, DR6 and DR7.
    pub fn load(&self) {
        let [a, b, c, d] = self.debug;
        for ((msr, ..), value) in MSRS.into_iter().zip(self.msrs).filter(|((msr, ..), _)| has(*msr))
        {
            cpu::wrmsr(msr, value);
        }
        cpu::set_cr8(self.cr8);
        // SAFETY: the area is as `random` or `now` made it; DR7 enables no breakpoint, nothing uses
        // CR2 but a report.
        unsafe {
            asm!("xrstor64 [{}]", in(reg) self.extended.0.as_ptr(), in("eax") AVX as u32,
                 in("edx") 0, options(nostack, readonly));
            asm!("mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}", in(reg) a, in(reg) b,
                 in(reg) c, in(reg) d, options(nomem, nostack));
            asm!("mov cr2, {}", in(reg) self.cr2, options(nomem, nostack));
        }
    }

    fn part(&self, from: usize, bytes: usize) -> &[u8] {
        &self.extended.0[from..from + bytes]
    }

    /// The names of what isn't the same.
    pub fn unlike<'a>(&'a self, other: &'a State) -> impl Iterator<Item = &'static str> + 'a {
        let parts = [
            (CONTROL, 5, "x87 control, status and tags"),
            (MXCSR, 4, "MXCSR"),
            (X87, 8 * 16, "x87 registers"),
            (XMM, REGISTERS * 16, "XMM"),
            (YMM, REGISTERS * 16, "upper halves of YMM"),
        ];
        let parts =
            parts.into_iter().map(|(at, n, name)| (name, self.part(at, n) == other.part(at, n)));
        let others = [
            ("XCR0", self.xcr0 == other.xcr0),
            ("DR0 to DR3", self.debug == other.debug),
            ("DR6", self.debug_status == other.debug_status),
            ("DR7", self.debug_control == other.debug_control),
            ("CR2", self.cr2 == other.cr2),
            ("CR8", self.cr8 == other.cr8),
        ];
        let msrs = MSRS.into_iter().enumerate();
        let msrs = msrs.map(|(i, (.., name))| (name, self.msrs[i] == other.msrs[i]));
        let all = parts.chain(others).chain(msrs);
        all.filter(|(_, same)| !same).map(|(name, _)| name)
    }

    /// The names of what isn't as after a reset. XCR0 must have been looked at before [`prepare`].
    pub fn not_reset(&self) -> impl Iterator<Item = &'static str> + '_ {
        let control = u16::from_le_bytes([self.extended.0[CONTROL], self.extended.0[CONTROL + 1]]);
        let zero = |from, bytes| self.part(from, bytes).iter().all(|b| *b == 0);
        let looks = [
            ("x87 control", X87_CONTROL.contains(&control)),
            ("x87 status", zero(CONTROL + 2, 2)),
            ("x87 registers", zero(X87, 8 * 16)),
            ("MXCSR", self.part(MXCSR, 4) == MXCSR_RESET.to_le_bytes()),
            ("XMM", zero(XMM, REGISTERS * 16)),
            ("upper halves of YMM", zero(YMM, REGISTERS * 16)),
            ("DR0 to DR3", self.debug == [0; 4]),
            ("DR6", self.debug_status == 0xFFFF_0FF0),
            ("DR7", self.debug_control == 0x400),
            ("CR2", self.cr2 == 0),
            ("CR8", self.cr8 == 0),
        ];
        let msrs = MSRS.into_iter().zip(self.msrs);
        let msrs = msrs
            .map(|((msr, _, name), value)| (name, value == if msr == PAT { PAT_RESET } else { 0 }));
        looks.into_iter().chain(msrs).filter(|(_, good)| !good).map(|(name, _)| name)
    }
}
