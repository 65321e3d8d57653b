//! The permission maps of SVM: which MSRs (APM vol. 2, 15.11) and I/O ports (15.10) a
//! guest reaches without an exit.
//!
//! Everything exits unless it is opened here, and each opening is argued: what the
//! guest can do with the register reaches no further than its own state.

use crate::memory;
use delivery::Mode;
use platform::msr::PASSED_THROUGH;

const MSRPM_BYTES: u64 = 8192;
const IOPM_BYTES: u64 = 12288;

/// x2APIC current count: the core's timer runs with the guest's values.
const TIMER_CURRENT: u32 = 0x839;
/// x2APIC task priority: in direct mode the physical one is the guest's.
const TASK_PRIORITY: u32 = 0x808;
/// x2APIC end of interrupt: exitless completion (paper 4.4).
const EOI: u32 = 0x80B;

/// x2APIC processor priority.
const PROCESSOR_PRIORITY: u32 = 0x80A;
/// x2APIC in service, trigger mode and requested: on a dedicated core all of it is the guest's.
const INTERRUPT_STATE: core::ops::RangeInclusive<u32> = 0x810..=0x827;
/// x2APIC timer: initial count and divider. Not its LVT entry: it has no delivery mode by the
/// manuals, but QEMU obeys one that is written there, SMI among them.
const TIMER: [u32; 2] = [0x838, 0x83E];
/// x2APIC self-IPI: reaches no further than the core.
const SELF_IPI: u32 = 0x83F;

/// The maps of one vCPU, by physical address.
pub struct Bitmaps {
    direct: u64,
    injection: u64,
    dedicated: u64,
    /// I/O permission map.
    pub ports: u64,
}

impl Bitmaps {
    /// Makes the maps; `open_ports` need no exit, in or out; with `completions_exit` EOI exits in
    /// direct mode too; the count of a `shared` timer isn't the guest's. `None`: out of memory.
    pub fn new(
        open_ports: core::ops::Range<u16>,
        completions_exit: bool,
        shared: bool,
    ) -> Option<Self> {
        let direct = memory::allocate(MSRPM_BYTES, 4096)?;
        let injection = memory::allocate(MSRPM_BYTES, 4096)?;
        let dedicated = memory::allocate(MSRPM_BYTES, 4096)?;
        let ports = memory::allocate(IOPM_BYTES, 4096)?;
        for map in [direct, injection, dedicated] {
            fill(map, MSRPM_BYTES);
            // Guest state that VMLOAD and VMSAVE switch, PAT, which is the guest's own copy with
            // nested paging (APM vol. 2, 15.25.8), and controls of speculation that end with the core.
            for msr in PASSED_THROUGH {
                open(map, msr, true, true);
            }
            open(map, TIMER_CURRENT, !shared, false);
        }
        for map in [direct, dedicated] {
            open(map, EOI, false, map == dedicated || !completions_exit);
            open(map, TASK_PRIORITY, true, true);
        }
        for msr in INTERRUPT_STATE.chain([PROCESSOR_PRIORITY]) {
            open(dedicated, msr, true, false);
        }
        for msr in TIMER {
            open(dedicated, msr, true, true);
        }
        open(dedicated, SELF_IPI, false, true);
        fill(ports, IOPM_BYTES);
        for port in open_ports {
            clear(ports, port as u64);
        }
        Some(Bitmaps { direct, injection, dedicated, ports })
    }

    /// The MSR permission map for a mode.
    pub fn msrs(&self, mode: Mode) -> u64 {
        match mode {
            Mode::Direct => self.direct,
            Mode::Injection => self.injection,
            Mode::Dedicated => self.dedicated,
        }
    }
}

fn fill(map: u64, bytes: u64) {
    // SAFETY: `map` was just allocated with `bytes` bytes, identity-mapped, and is ours.
    unsafe { core::ptr::write_bytes(map as *mut u8, 0xFF, bytes as usize) }
}

fn clear(map: u64, bit: u64) {
    // SAFETY: callers pass bits inside the map that `new` allocated; no guest runs on it yet.
    unsafe { *((map + bit / 8) as *mut u8) &= !(1 << (bit % 8)) }
}

fn open(map: u64, msr: u32, read: bool, write: bool) {
    let bit = match msr {
        0..0x2000 => msr as u64 * 2,
        0xC000_0000..0xC000_2000 => 0x800 * 8 + (msr as u64 - 0xC000_0000) * 2,
        _ => return,
    };
    if read {
        clear(map, bit);
    }
    if write {
        clear(map, bit + 1);
    }
}
