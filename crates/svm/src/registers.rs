//! The guest's registers where the control block and the switch keep them.

use crate::Vcpu;
use decode::{Registers, Segment};

/// The guest's general registers that VMRUN doesn't switch, numbered as instructions encode them.
/// Slots 0 (RAX) and 4 (RSP) live in the control block and aren't used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GeneralRegisters(pub [u64; 16]);

impl Registers for Vcpu {
    #[inline]
    fn gpr(&self, number: u8) -> u64 {
        match number & 15 {
            0 => self.vmcb.rax,
            4 => self.vmcb.rsp,
            n => self.registers.0[n as usize],
        }
    }

    #[inline]
    fn set_gpr(&mut self, number: u8, value: u64) {
        match number & 15 {
            0 => self.vmcb.rax = value,
            4 => self.vmcb.rsp = value,
            n => self.registers.0[n as usize] = value,
        }
    }

    fn rflags(&self) -> u64 {
        self.vmcb.rflags
    }

    fn set_rflags(&mut self, value: u64) {
        self.vmcb.rflags = value;
    }

    #[inline]
    fn rip(&self) -> u64 {
        self.vmcb.rip
    }

    fn segment_base(&self, segment: Segment) -> u64 {
        let v = &*self.vmcb;
        match segment {
            Segment::Es => v.es.base,
            Segment::Cs => v.cs.base,
            Segment::Ss => v.ss.base,
            Segment::Ds => v.ds.base,
            Segment::Fs => v.fs.base,
            Segment::Gs => v.gs.base,
        }
    }
}
