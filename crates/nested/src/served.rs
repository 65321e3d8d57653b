//! An exit of L2's that L1 didn't ask for is served as L1's own: by what serves those, on 01, which
//! has L2's registers meanwhile.
//!
//! Guarantees: what is exchanged is L2's state and what its exit tells, as VMRUN and #VMEXIT move
//! them. All that bounds what runs stays where it is: intercepts, maps, tables, address space. What
//! VMLOAD and VMSAVE move is in 01 always ([`crate::loaded`]).

use core::mem::offset_of;
use svm::Vmcb;

/// Where it is: the first word, and how many.
const EXCHANGED: [(usize, usize); 10] = [
    // The interrupt shadow; why it was left, and EXITINTINFO.
    (offset_of!(Vmcb, interrupt_shadow), 5),
    (offset_of!(Vmcb, event_inj), 1),
    // The next RIP, and the bytes of the instruction.
    (offset_of!(Vmcb, next_rip), 3),
    // ES, CS, SS, DS.
    (offset_of!(Vmcb, es), 8),
    (offset_of!(Vmcb, gdtr), 2),
    (offset_of!(Vmcb, idtr), 2),
    // CPL, EFER.
    (offset_of!(Vmcb, cpl) & !7, 2),
    // CR4, CR3, CR0, DR7, DR6, RFLAGS, RIP.
    (offset_of!(Vmcb, cr4), 7),
    // Alone, as CR2 is.
    (offset_of!(Vmcb, rsp), 1),
    (offset_of!(Vmcb, rax), 1),
];

/// Has each block the other's of it. Twice: as before.
pub fn exchange(one: &mut Vmcb, other: &mut Vmcb) {
    for at in EXCHANGED.into_iter().flat_map(|(from, words)| (0..words).map(move |n| from + n * 8))
    {
        let word = one.word(at);
        one.set_word(at, other.word(at));
        other.set_word(at, word);
    }
    core::mem::swap(&mut one.cr2, &mut other.cr2);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{any_block, zeroed};
    use proptest::prelude::*;
    use zerocopy::IntoBytes as _;

    /// The same block, by hand: what differs is what isn't exchanged.
    fn kept(of: &Vmcb, state: &Vmcb) -> Box<Vmcb> {
        let mut v = zeroed();
        v.as_mut_bytes().copy_from_slice(of.as_bytes());
        (v.es, v.cs, v.ss, v.ds) = (state.es, state.cs, state.ss, state.ds);
        (v.gdtr, v.idtr) = (state.gdtr, state.idtr);
        (v.cr0, v.cr2, v.cr3, v.cr4) = (state.cr0, state.cr2, state.cr3, state.cr4);
        (v.dr6, v.dr7, v.rflags) = (state.dr6, state.dr7, state.rflags);
        (v.rip, v.rsp, v.rax) = (state.rip, state.rsp, state.rax);
        (v.interrupt_shadow, v.event_inj) = (state.interrupt_shadow, state.event_inj);
        (v.exit_code, v.exit_int_info) = (state.exit_code, state.exit_int_info);
        (v.exit_info1, v.exit_info2) = (state.exit_info1, state.exit_info2);
        v.next_rip = state.next_rip;
        (v.bytes_fetched, v.instruction) = (state.bytes_fetched, state.instruction);
        // CPL with what stands beside it.
        v.set_word(0x4C8, state.word(0x4C8));
        v.efer = state.efer;
        v
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "takes minutes")]
        fn state_changes_places_and_what_bounds_it_stays(a in any_block(), b in any_block()) {
            let copy = |of: &Vmcb| kept(of, of);
            let (mut one, mut other) = (copy(&a), copy(&b));
            exchange(&mut one, &mut other);
            let (mine, theirs) = (kept(&a, &b), kept(&b, &a));
            prop_assert_eq!(one.as_bytes(), mine.as_bytes());
            prop_assert_eq!(other.as_bytes(), theirs.as_bytes());
            exchange(&mut one, &mut other);
            prop_assert_eq!((one.as_bytes(), other.as_bytes()), (a.as_bytes(), b.as_bytes()));
        }
    }
}
