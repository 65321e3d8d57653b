//! What VMLOAD and VMSAVE move (APM vol. 2, 15.5.2), which VMRUN leaves as it is: L2 starts with
//! what L1 has, and L1 finds what L2 left. So the CPU moves it to and from 01 alone, whoever runs.

use crate::block::{Block, copy_in, copy_out};
use core::mem::offset_of;
use svm::Vmcb;

/// Where it is: the first word, and how many. FS and GS; LDTR; TR; STAR to SYSENTER_EIP.
const MOVED: [(usize, usize); 4] = [
    (offset_of!(Vmcb, fs), 4),
    (offset_of!(Vmcb, ldtr), 2),
    (offset_of!(Vmcb, tr), 2),
    (offset_of!(Vmcb, star), 8),
];

/// VMLOAD of L1's.
pub fn load<B: Block>(to: &mut Vmcb, block: &B) {
    MOVED.into_iter().for_each(|(from, words)| copy_in(to, block, from, words));
}

/// VMSAVE of L1's.
pub fn save<B: Block>(from: &Vmcb, block: &mut B) {
    MOVED.into_iter().for_each(|(at, words)| copy_out(block, from, at, words));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{InMemory, any_block, zeroed};
    use proptest::prelude::*;
    use zerocopy::IntoBytes as _;

    proptest! {
        /// What is saved is what is loaded, and nothing else is touched.
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn what_is_saved_is_what_is_loaded(from in any_block(), before in any_block()) {
            let (mut direct, mut loaded) = (zeroed(), zeroed());
            load(&mut direct, &InMemory::of(&from.0));
            let mut memory = InMemory::of(&before);
            save(&from, &mut memory);
            load(&mut loaded, &memory);
            prop_assert_eq!(direct.as_bytes(), loaded.as_bytes());
            save(&before, &mut memory);
            let all = memory.block();
            prop_assert_eq!(all.as_bytes(), before.as_bytes(), "the rest stayed");
        }
    }

    #[test]
    fn it_is_what_the_manual_lists() {
        let (mut from, mut to) = (zeroed(), zeroed());
        from.as_mut_bytes().fill(0xFF);
        load(&mut to, &InMemory::of(&from));
        let to = to.as_bytes();
        let moved: Vec<_> = (0..4096).step_by(8).filter(|at| to[*at] != 0).collect();
        let segments = [0x440, 0x450, 0x470, 0x490].into_iter().flat_map(|at| [at, at + 8]);
        let registers = (0x600..0x640).step_by(8);
        assert_eq!(moved, segments.chain(registers).collect::<Vec<_>>());
    }
}
