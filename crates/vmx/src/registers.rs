//! The guest's registers where the control structure and the switch keep them.

use crate::field::{self, Segment as Part};
use crate::{Area, Vcpu};
use decode::{Registers, Segment};

/// RSP is in the control structure.
const RSP: usize = 4;

impl<A: Area> Registers for Vcpu<A> {
    #[inline]
    fn gpr(&self, number: u8) -> u64 {
        match number as usize & 15 {
            RSP => self.area.read(field::GUEST_RSP),
            n => self.registers[n],
        }
    }

    #[inline]
    fn set_gpr(&mut self, number: u8, value: u64) {
        match number as usize & 15 {
            RSP => self.area.write(field::GUEST_RSP, value),
            n => self.registers[n] = value,
        }
    }

    fn rflags(&self) -> u64 {
        self.area.read(field::GUEST_RFLAGS)
    }

    fn set_rflags(&mut self, value: u64) {
        self.area.write(field::GUEST_RFLAGS, value);
    }

    #[inline]
    fn rip(&self) -> u64 {
        self.area.read(field::GUEST_RIP)
    }

    fn segment_base(&self, segment: Segment) -> u64 {
        let part = match segment {
            Segment::Es => Part::Es,
            Segment::Cs => Part::Cs,
            Segment::Ss => Part::Ss,
            Segment::Ds => Part::Ds,
            Segment::Fs => Part::Fs,
            Segment::Gs => Part::Gs,
        };
        self.area.read(part.base())
    }
}
