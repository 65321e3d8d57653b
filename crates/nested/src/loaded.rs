//! What VMLOAD and VMSAVE move (APM vol. 2, 15.5.2), which VMRUN leaves as it is: L2 starts with
//! what L1 has, and L1 finds what L2 left.

use crate::block::{Block, read_segment, write_segment};
use core::mem::offset_of;
use svm::Vmcb;

/// From one control block to another.
pub fn carry(to: &mut Vmcb, from: &Vmcb) {
    (to.fs, to.gs, to.ldtr, to.tr) = (from.fs, from.gs, from.ldtr, from.tr);
    (to.star, to.lstar, to.cstar, to.sfmask) = (from.star, from.lstar, from.cstar, from.sfmask);
    to.kernel_gs_base = from.kernel_gs_base;
    to.sysenter_cs = from.sysenter_cs;
    (to.sysenter_esp, to.sysenter_eip) = (from.sysenter_esp, from.sysenter_eip);
}

/// VMLOAD of L1's.
pub fn load(to: &mut Vmcb, block: &dyn Block) {
    to.fs = read_segment(block, offset_of!(Vmcb, fs));
    to.gs = read_segment(block, offset_of!(Vmcb, gs));
    to.ldtr = read_segment(block, offset_of!(Vmcb, ldtr));
    to.tr = read_segment(block, offset_of!(Vmcb, tr));
    to.star = block.read(offset_of!(Vmcb, star));
    to.lstar = block.read(offset_of!(Vmcb, lstar));
    to.cstar = block.read(offset_of!(Vmcb, cstar));
    to.sfmask = block.read(offset_of!(Vmcb, sfmask));
    to.kernel_gs_base = block.read(offset_of!(Vmcb, kernel_gs_base));
    to.sysenter_cs = block.read(offset_of!(Vmcb, sysenter_cs));
    to.sysenter_esp = block.read(offset_of!(Vmcb, sysenter_esp));
    to.sysenter_eip = block.read(offset_of!(Vmcb, sysenter_eip));
}

/// VMSAVE of L1's.
pub fn save(from: &Vmcb, block: &mut dyn Block) {
    for (at, segment) in [
        (offset_of!(Vmcb, fs), &from.fs),
        (offset_of!(Vmcb, gs), &from.gs),
        (offset_of!(Vmcb, ldtr), &from.ldtr),
        (offset_of!(Vmcb, tr), &from.tr),
    ] {
        write_segment(block, at, segment);
    }
    for (at, value) in [
        (offset_of!(Vmcb, star), from.star),
        (offset_of!(Vmcb, lstar), from.lstar),
        (offset_of!(Vmcb, cstar), from.cstar),
        (offset_of!(Vmcb, sfmask), from.sfmask),
        (offset_of!(Vmcb, kernel_gs_base), from.kernel_gs_base),
        (offset_of!(Vmcb, sysenter_cs), from.sysenter_cs),
        (offset_of!(Vmcb, sysenter_esp), from.sysenter_esp),
        (offset_of!(Vmcb, sysenter_eip), from.sysenter_eip),
    ] {
        block.write(at, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{InMemory, any_block, zeroed};
    use proptest::prelude::*;
    use zerocopy::IntoBytes as _;

    proptest! {
        /// By each of the three ways the same is moved, and nothing else.
        #[test]
        fn what_is_saved_is_what_is_loaded_and_carried(from in any_block(), before in any_block()) {
            let (mut carried, mut loaded) = (zeroed(), zeroed());
            carry(&mut carried, &from);
            load(&mut loaded, &InMemory::of(&from));
            prop_assert_eq!(carried.as_bytes(), loaded.as_bytes());
            let mut memory = InMemory::of(&before);
            save(&from, &mut memory);
            let mut saved = memory.block();
            load(&mut loaded, &memory);
            prop_assert_eq!(carried.as_bytes(), loaded.as_bytes());
            carry(&mut saved, &before);
            prop_assert_eq!(saved.as_bytes(), before.as_bytes(), "the rest stayed");
        }
    }

    #[test]
    fn it_is_what_the_manual_lists() {
        let (mut from, mut to) = (zeroed(), zeroed());
        from.as_mut_bytes().fill(0xFF);
        carry(&mut to, &from);
        let moved: Vec<_> = (0..4096).step_by(8).filter(|at| to.as_bytes()[*at] != 0).collect();
        let segments = [0x440, 0x450, 0x470, 0x490].into_iter().flat_map(|at| [at, at + 8]);
        let registers = (0x600..0x640).step_by(8);
        assert_eq!(moved, segments.chain(registers).collect::<Vec<_>>());
    }
}
