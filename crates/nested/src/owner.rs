//! Whose an exit of L2 is: the host's own events first, then whatever L1 asked for.

use crate::Control;
use svm::Vmcb;
use svm::vmcb::exit;

/// Vector of a machine check.
const MACHINE_CHECK: u32 = 18;
/// MOV to CR0.
const CR0_WRITE: u32 = 0x10;
/// The first MSR that no map has, in each of the three ranges of 0x2000.
const RANGE: u32 = 0x2000;
/// Bytes of the map for each range of MSRs.
const RANGE_BYTES: u32 = 0x800;

/// Who handles an exit of L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The host. An instruction is carried out as if L1 had executed it: L1 let L2.
    Host,
    /// L1, which sees this exit code.
    L1(u32),
    /// L1, if its nested tables don't translate the address as it was accessed; else the host.
    Tables,
}

/// L1's permission maps, in its memory. What isn't memory is all ones.
pub trait PermissionMaps {
    /// The two bytes from `at` on, below 12 KiB, of the map of ports: the lower one is the first's.
    fn ports(&self, at: u32) -> u16;
    /// The byte at `at`, below 8 KiB, of the map of MSRs.
    fn msrs(&self, at: u32) -> u8;
}

impl Control {
    /// Whose the exit in 02 is. `msr`: ECX of L2; `machine_check`: is one being handled?
    pub fn owner<M: PermissionMaps>(
        &self,
        v: &Vmcb,
        msr: u32,
        maps: &M,
        machine_check: impl FnOnce() -> bool,
    ) -> Owner {
        let code = v.exit_code as u32;
        let wanted = match code {
            // The host's means to get its core back.
            exit::NMI => false,
            // A machine check shuts down where L2 has CR4.MCE clear.
            exit::SHUTDOWN => self.has(code) && !machine_check(),
            _ if code == exit::EXCEPTION_BASE + MACHINE_CHECK => false,
            exit::NPF => return if self.nested_paging() { Owner::Tables } else { Owner::Host },
            // The checks let nothing through that the CPU refuses: if it does, L1 hears of it.
            exit::INVALID => true,
            exit::IOIO => self.has(code) && is_closed_port(v.exit_info1, maps),
            exit::MSR => self.has(code) && is_closed_msr(msr, v.exit_info1 & 1 != 0, maps),
            // The CPU looks at all writes first.
            exit::CR0_SELECTIVE if self.has(CR0_WRITE) => return Owner::L1(CR0_WRITE),
            _ => self.has(code),
        };
        if wanted { Owner::L1(code) } else { Owner::Host }
    }

    /// Does L1 let L2 write this MSR?
    pub fn lets_write<M: PermissionMaps>(&self, msr: u32, maps: &M) -> bool {
        !self.has(exit::MSR) || !is_closed_msr(msr, true, maps)
    }

    /// Does L1 intercept what has this exit code? The codes below 0xC0 are numbered like the bits
    /// (APM vol. 2, appendix C).
    pub fn has(&self, code: u32) -> bool {
        self.intercepts.get(code as usize / 64).is_some_and(|word| word >> (code % 64) & 1 != 0)
    }
}

/// Is any port of the access closed in L1's map (15.10.2)? `info`: of the exit. Ports beyond the
/// last one have bits of their own.
fn is_closed_port<M: PermissionMaps>(info: u64, maps: &M) -> bool {
    let port = (info >> 16 & 0xFFFF) as u32;
    let size = (info >> 4 & 7) as u32;
    let bits = u32::from(maps.ports(port / 8)) >> (port % 8);
    bits & ((1 << size) - 1) != 0
}

/// Is the access closed in L1's map (15.11)? Registers without a bit are.
fn is_closed_msr<M: PermissionMaps>(msr: u32, write: bool, maps: &M) -> bool {
    let (range, first) = match msr {
        0..RANGE => (0, 0),
        0xC000_0000..0xC000_2000 => (1, 0xC000_0000),
        0xC001_0000..0xC001_2000 => (2, 0xC001_0000),
        _ => return true,
    };
    let bit = (msr - first) * 2 + u32::from(write);
    maps.msrs(range * RANGE_BYTES + bit / 8) >> (bit % 8) & 1 != 0
}
