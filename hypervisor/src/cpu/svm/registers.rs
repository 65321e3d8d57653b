//! The guest's registers where the VMCB and the switch keep them.

use super::SvmCpu;
use decode::{Registers, Segment};

impl Registers for SvmCpu {
    fn gpr(&self, number: u8) -> u64 {
        match number & 15 {
            0 => self.vmcb.rax,
            4 => self.vmcb.rsp,
            n => self.registers.0[n as usize],
        }
    }

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
