//! The guest's state on its core that no vendor's extension switches: extended state, debug address
//! registers, and a few MSRs.
//!
//! Guarantees: after [`Extra::load`] the core holds what [`Extra::save`] found, whoever had the
//! core in between, or what a reset leaves after [`Extra::reset`]. Nothing of another vCPU's is
//! left. The host uses none of it, so nothing is switched at an exit.

use crate::cpu::vendor::{PAT_AT_RESET, xsave};
use crate::cpu::{control, msr};
use crate::memory;
use core::arch::asm;

const SPEC_CTRL: u32 = 0x48;
const PRED_CMD: u32 = 0x49;
const PAT: u32 = 0x277;
const TSC_AUX: u32 = 0xC000_0103;
/// PRED_CMD: forget what was learnt of indirect branches.
const BRANCH_BARRIER: u64 = 1;

/// Only the x87 state is on.
const XCR0_AT_RESET: (u32, u32) = (1, 0);

const fn halves(value: u64) -> (u32, u32) {
    (value as u32, (value >> 32) as u32)
}

/// How a vCPU starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fresh {
    /// It has started.
    No,
    /// By INIT and a start-up.
    StartUp,
    /// As after a reset of the machine.
    Reset,
}

/// The state of a vCPU that isn't on its core.
pub struct Extra {
    /// Physical address of its XSAVE area, of the size for all states that the CPU has.
    area: u64,
    /// The states that the CPU has.
    states: (u32, u32),
    xcr0: (u32, u32),
    debug: [u64; 4],
    /// MSRs as their halves, which is how they are read and written.
    /// `None`: it is switched at each entry and exit.
    pat: Option<(u32, u32)>,
    /// `None`: the CPU hasn't this MSR.
    speculation: Option<(u32, u32)>,
    auxiliary: Option<(u32, u32)>,
    barrier: bool,
    /// XRSTOR leaves the x87 pointers to the last instruction as they are (APM vol. 2, 11.4.4).
    keeps_pointers: bool,
}

impl Extra {
    /// As after reset; `None`: out of memory. `pat`: with the guest's PAT.
    pub fn new(pat: bool) -> Option<Self> {
        let cpuid = raw_cpuid::native_cpuid::cpuid_count;
        let states = cpuid(0xD, 0);
        let area = memory::allocate(u64::from(states.ecx), 4096)?;
        let features = cpuid(0x8000_0008, 0).ebx;
        let structured = cpuid(7, 0);
        let speculation = features & (1 << 14 | 1 << 15 | 1 << 24) != 0
            || structured.edx & (1 << 26 | 1 << 27 | 1 << 31) != 0;
        let auxiliary = cpuid(0x8000_0001, 0).edx & 1 << 27 != 0 || structured.ecx & 1 << 22 != 0;
        let mut extra = Extra {
            area,
            states: (states.eax, states.edx),
            xcr0: XCR0_AT_RESET,
            debug: [0; 4],
            pat: pat.then_some((0, 0)),
            speculation: speculation.then_some((0, 0)),
            auxiliary: auxiliary.then_some((0, 0)),
            barrier: features & 1 << 12 != 0 || structured.edx & 1 << 26 != 0,
            keeps_pointers: features & 1 << 2 == 0,
        };
        extra.reset();
        Some(extra)
    }

    /// As after a reset.
    pub fn reset(&mut self) {
        // SAFETY: the area is ours, and as large as its legacy region and header at the least.
        let area = unsafe { &mut *(self.area as *mut [u8; xsave::HEADER_END]) };
        xsave::reset(area);
        self.xcr0 = XCR0_AT_RESET;
        self.debug = [0; 4];
        self.pat = self.pat.map(|_| halves(PAT_AT_RESET));
        self.speculation = self.speculation.map(|_| (0, 0));
        self.auxiliary = self.auxiliary.map(|_| (0, 0));
    }

    /// Takes the state from this core.
    pub fn save(&mut self) {
        self.xcr0 = control::xcr0();
        if self.xcr0 != self.states {
            control::set_xcr0(self.states);
        }
        let (low, high) = self.states;
        // SAFETY: the area is ours and large enough for all states; debug registers and these MSRs
        // exist, as `new` found.
        unsafe {
            asm!("xsave64 [{}]", in(reg) self.area, in("eax") low, in("edx") high, options(nostack));
            asm!(
                "mov {}, dr0", "mov {}, dr1", "mov {}, dr2", "mov {}, dr3",
                out(reg) self.debug[0], out(reg) self.debug[1],
                out(reg) self.debug[2], out(reg) self.debug[3],
                options(nostack, nomem)
            );
            if let Some(value) = &mut self.pat {
                *value = msr::read_halves(PAT);
            }
            if let Some(value) = &mut self.speculation {
                *value = msr::read_halves(SPEC_CTRL);
            }
            if let Some(value) = &mut self.auxiliary {
                *value = msr::read_halves(TSC_AUX);
            }
        }
    }

    /// Gives it to this core.
    #[inline]
    pub fn load(&self) {
        // So it is where another vCPU's was saved.
        if control::xcr0() != self.states {
            control::set_xcr0(self.states);
        }
        let (low, high) = self.states;
        // SAFETY: as in `save`; the values were the core's or are those after reset, and
        // breakpoints mean nothing while DR7 of the host enables none.
        unsafe {
            if self.keeps_pointers {
                asm!("fninit", options(nostack, nomem));
            }
            asm!("xrstor64 [{}]", in(reg) self.area, in("eax") low, in("edx") high, options(nostack, readonly));
            asm!(
                "mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}",
                in(reg) self.debug[0], in(reg) self.debug[1],
                in(reg) self.debug[2], in(reg) self.debug[3],
                options(nostack, nomem)
            );
            if let Some(value) = self.pat {
                msr::write_halves(PAT, value);
            }
            if let Some(value) = self.speculation {
                msr::write_halves(SPEC_CTRL, value);
            }
            if let Some(value) = self.auxiliary {
                msr::write_halves(TSC_AUX, value);
            }
            if self.barrier {
                msr::write(PRED_CMD, BRANCH_BARRIER);
            }
        }
        if self.xcr0 != self.states {
            control::set_xcr0(self.xcr0);
        }
    }
}

/// The debug address registers, as INIT leaves them.
pub fn clear_debug_addresses() {
    // SAFETY: breakpoints mean nothing while DR7 of the host enables none.
    unsafe {
        asm!(
            "mov dr0, {0}", "mov dr1, {0}", "mov dr2, {0}", "mov dr3, {0}",
            in(reg) 0u64,
            options(nostack, nomem)
        );
    }
}
