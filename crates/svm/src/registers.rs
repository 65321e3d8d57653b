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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vcpu::tests::{HARDWARE, setup, vcpu};

    #[test]
    fn each_register_has_a_place_of_its_own() {
        let mut cpu = vcpu(&setup(HARDWARE));
        (0..16).for_each(|n| cpu.set_gpr(n, 0x100 + u64::from(n)));
        for n in 0..16 {
            let value = 0x100 + u64::from(n);
            // Bits above the number don't count.
            assert_eq!((cpu.gpr(n), cpu.gpr(n | 0xF0)), (value, value));
        }
        cpu.set_gpr(0x13, 7);
        assert_eq!((cpu.gpr(3), cpu.vmcb.rax, cpu.vmcb.rsp), (7, 0x100, 0x104));
        cpu.set_rflags(0x246);
        cpu.vmcb.rip = 0x1234;
        assert_eq!((cpu.rflags(), cpu.vmcb.rflags, cpu.rip()), (0x246, 0x246, 0x1234));
        let v = &mut *cpu.vmcb;
        for (n, segment) in
            (1..).zip([&mut v.es, &mut v.cs, &mut v.ss, &mut v.ds, &mut v.fs, &mut v.gs])
        {
            segment.base = n << 12;
        }
        use Segment::*;
        assert_eq!(
            [Es, Cs, Ss, Ds, Fs, Gs].map(|s| cpu.segment_base(s)),
            [1, 2, 3, 4, 5, 6].map(|n| n << 12)
        );
    }
}
