//! The guest's registers, as instructions name them.

use super::VmxCpu;
use decode::{Registers, Segment};

impl Registers for VmxCpu {
    #[inline(never)]
    fn gpr(&self, number: u8) -> u64 {
        self.vcpu.gpr(number)
    }

    #[inline]
    fn set_gpr(&mut self, number: u8, value: u64) {
        self.vcpu.set_gpr(number, value);
    }

    #[inline(never)]
    fn rflags(&self) -> u64 {
        self.vcpu.rflags()
    }

    #[inline(never)]
    fn set_rflags(&mut self, value: u64) {
        self.vcpu.set_rflags(value);
    }

    #[inline]
    fn rip(&self) -> u64 {
        self.vcpu.rip()
    }

    #[inline(never)]
    fn segment_base(&self, segment: Segment) -> u64 {
        self.vcpu.segment_base(segment)
    }
}
