//! 02, as it is made.

use super::*;
use crate::Flush;
use crate::avic::Avic;
use svm::vmcb::{int_ctl, misc1};

proptest! {
    /// Whatever L1 wants, the host has its intercepts, its address space and its maps.
    #[test]
    fn the_host_keeps_what_it_needs(v in any_taken(), more: u32, exceptions: u32) {
        let (mut v01, mut v02) = (hosts(), fresh());
        v01.intercept_misc1 |= more;
        v01.intercept_exceptions |= exceptions;
        // A virtual GIF, and VMLOAD and VMSAVE by the CPU: for L1 alone.
        v01.intercept_misc2 = misc2::VMRUN;
        v01.int_ctl = 1 << 25 | 1 << 9;
        v01.other_virtualization = 2;
        let block = InMemory::of(&v);
        let entry = Nest::new().enter(&mut v02, &v01, &offer(), (AT, &block));
        prop_assert!(entry.is_ok());
        prop_assert_eq!(ALWAYS_MISC1 & !v02.intercept_misc1, 0);
        let (flag, loads) = (v.int_ctl >> 25 & 1 != 0, v.other_virtualization >> 1 & 1 != 0);
        let loads = loads && v.nested_control & 1 != 0;
        let open = if flag { 3 << 4 } else { 0 } | if loads { 3 << 2 } else { 0 };
        prop_assert_eq!(ALWAYS_MISC2 & !open & !v02.intercept_misc2, 0);
        prop_assert_eq!(v02.intercept_misc2 & open, v.intercept_misc2 & open, "as L1 wants");
        // INTR is L1's wish alone.
        prop_assert_eq!(v01.intercept_misc1 & !1 & !v02.intercept_misc1, 0);
        prop_assert_eq!(v02.intercept_misc1 & 1, v.intercept_misc1 & 1);
        prop_assert_eq!((exceptions | ALWAYS_EXCEPTIONS) & !v02.intercept_exceptions, 0);
        prop_assert_eq!(v.intercept_misc1 & !v02.intercept_misc1, 0);
        prop_assert_eq!(v.intercept_misc2 & !v02.intercept_misc2, 0);
        prop_assert_eq!(v.intercept_exceptions & !v02.intercept_exceptions, 0);
        prop_assert_eq!(v.intercept_cr_write & !v02.intercept_cr_write, 0);
        prop_assert_eq!(v.intercept_dr_read & !v02.intercept_dr_read, 0);
        prop_assert_eq!((v02.asid, v02.msrpm_base, v02.iopm_base), (7, 0x8000, 0xA000));
        prop_assert_eq!((v02.nested_control, v02.other_virtualization), (1, u64::from(loads) << 1));
        let flags = 1 << 25 | 1 << 9;
        prop_assert_eq!(v02.int_ctl & (int_ctl::VIRTUALIZED | flags), v.int_ctl & flags);
        prop_assert_eq!(v02.tsc_offset, v.tsc_offset.wrapping_add(1_000));
        prop_assert_eq!(v02.efer >> 10 & 1, v.efer >> 8 & v.cr0 >> 31 & 1, "LMA follows");
    }

    /// L2 has its state, and each word is read once.
    #[test]
    fn the_state_is_l2s(v in any_taken()) {
        let block = InMemory::of(&v);
        let mut v02 = fresh();
        let entry = Nest::new().enter(&mut v02, &hosts(), &offer(), (AT, &block));
        prop_assert!(entry.is_ok());
        prop_assert_eq!((v02.es, v02.cs, v02.ss, v02.ds), (v.es, v.cs, v.ss, v.ds));
        prop_assert_eq!((v02.gdtr, v02.idtr, v02.cpl), (v.gdtr, v.idtr, v.cpl));
        prop_assert_eq!((v02.cr0, v02.cr2, v02.cr3, v02.cr4), (v.cr0, v.cr2, v.cr3, v.cr4));
        prop_assert_eq!((v02.dr6, v02.dr7), (v.dr6, v.dr7));
        prop_assert_eq!((v02.rip, v02.rsp, v02.rax, v02.rflags), (v.rip, v.rsp, v.rax, v.rflags));
        prop_assert_eq!(v02.event_inj, v.event_inj);
        prop_assert_eq!(v02.interrupt_shadow, v.interrupt_shadow & 1);
        prop_assert_eq!(v02.pause_filter_count, v.pause_filter_count);
        prop_assert_eq!(v02.pause_filter_threshold, v.pause_filter_threshold);
        prop_assert!(block.reads.borrow().iter().all(|reads| *reads <= 1));
    }

    /// A second VMRUN of the same block: what is called clean isn't read, whatever stands there.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn what_is_clean_isnt_read(first in any_taken(), second in any_taken(), clean: u64) {
        let (mut nest, mut v02, v01) = (Nest::new(), fresh(), hosts());
        let block = InMemory::of(&first);
        prop_assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &block)).is_ok());
        let mut second = second.0;
        second.clean = clean;
        let block = InMemory::of(&second);
        prop_assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &block)).is_ok());
        let read = |at: usize| block.reads.borrow()[at / 8];
        for (bit, at) in [
            (0, 0x00), (0, 0x08), (0, 0x10), (0, 0x38), (0, 0x50), (1, 0x40), (1, 0x48),
            (4, 0x90), (4, 0xB0), (5, 0x4D0), (5, 0x548), (5, 0x550), (5, 0x558), (6, 0x560),
            (6, 0x568), (7, 0x460), (7, 0x488), (8, 0x400), (8, 0x410), (8, 0x438), (8, 0x4C8),
            (9, 0x640),
        ] {
            prop_assert_eq!(read(at), 1 - (clean >> bit & 1) as u32, "{:#x}", at);
        }
        // Those that the CPU changes.
        for at in [0x58, 0x60, 0x68, 0xA8, 0xC0, 0x570, 0x578, 0x5D8, 0x5F8] {
            prop_assert_eq!(read(at), 1, "{:#x}", at);
        }
        let cr3 = if clean >> 5 & 1 != 0 { first.cr3 } else { second.cr3 };
        prop_assert_eq!(v02.cr3, cr3);
    }
}

#[test]
fn another_block_is_never_clean() {
    let (mut nest, mut v02, v01) = (Nest::new(), fresh(), hosts());
    let mut v = taken();
    let block = InMemory::of(&v);
    assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &block)).is_ok());
    (v.clean, v.cr3) = (u64::MAX, 0x9000);
    let block = InMemory::of(&v);
    assert!(nest.enter(&mut v02, &v01, &offer(), (AT + 0x1000, &block)).is_ok());
    assert_eq!(v02.cr3, 0x9000);
    nest.forget();
    v.cr3 = 0xA000;
    let block = InMemory::of(&v);
    assert!(nest.enter(&mut v02, &v01, &offer(), (AT + 0x1000, &block)).is_ok());
    assert_eq!(v02.cr3, 0xA000);
}

#[test]
fn translations_are_dropped_when_l1_asks_and_when_its_space_is_another() {
    let (mut nest, mut v02, v01) = (Nest::new(), fresh(), hosts());
    let mut v = taken();
    let mut enter = |v: &Vmcb| {
        let entry = nest.enter(&mut v02, &v01, &offer(), (AT, &InMemory::of(v)));
        // The world switch takes the request back.
        (entry.map(|entry| (entry.flush, entry.space)), std::mem::take(&mut v02.tlb_control))
    };
    assert_eq!(enter(&v), (Ok((Flush::Nothing, 1)), 1), "the first time");
    assert_eq!(enter(&v), (Ok((Flush::Nothing, 1)), 0));
    let hows = [(1, Flush::All), (3, Flush::Space), (7, Flush::Space), (2, Flush::All)];
    for (how, flush) in hows {
        v.tlb_control = how;
        assert_eq!(enter(&v), (Ok((flush, 1)), 1), "{how}");
    }
    v.tlb_control = 0;
    v.asid = 2;
    assert_eq!(enter(&v), (Ok((Flush::Nothing, 2)), 1));
    v.nested_cr3 = 0x8000;
    assert_eq!(enter(&v), (Ok((Flush::Nothing, 2)), 1));
    assert_eq!(enter(&v), (Ok((Flush::Nothing, 2)), 0));
}

/// Between VMRUN and the entry, or between an exit and the next entry, L1 may be told of something:
/// an NMI, say. The frames that were given up for the flush are others' by then.
#[test]
fn a_flush_stands_until_l2_was_entered() {
    let (mut nest, mut v02, mut v01) = (Nest::new(), fresh(), hosts());
    let block = InMemory::of(&taken());
    let mut enter = |v02: &mut Vmcb, v01: &Vmcb| {
        assert!(nest.enter(v02, v01, &offer(), (AT, &block)).is_ok());
        v02.tlb_control
    };
    assert_eq!(enter(&mut v02, &v01), 1);
    assert_eq!(enter(&mut v02, &v01), 1, "it wasn't entered");
    v02.tlb_control = 0;
    assert_eq!(enter(&mut v02, &v01), 0);
    // Some of its tables were given up while a page was put in.
    v02.tlb_control = 1;
    assert_eq!(enter(&mut v02, &v01), 1);
    // The CPU refused it, and the world switch took the request back all the same.
    (v02.tlb_control, v02.exit_code) = (0, u64::MAX);
    nest.left(&mut v02, &mut v01);
    assert_eq!(v02.tlb_control, 1);
    (v02.tlb_control, v02.exit_code) = (0, 0x72);
    nest.left(&mut v02, &mut v01);
    assert_eq!(v02.tlb_control, 0);
}

/// SPEC_CTRL where the CPU switches it, and the PAT without nested tables of L1's: VMRUN and
/// #VMEXIT leave both as they are.
#[test]
fn what_l1_and_l2_share_is_one() {
    let (mut nest, mut v02, mut v01) = (Nest::new(), fresh(), hosts());
    let mut v = taken();
    v.spec_ctrl = 7;
    v01.spec_ctrl = 1;
    let own = v01.g_pat;
    for (nested, left) in [(1, own), (0, 0x0606_0606_0606_0606)] {
        v.nested_control = nested;
        assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &InMemory::of(&v))).is_ok());
        assert_eq!((v02.spec_ctrl, v02.g_pat), (1, own));
        (v02.spec_ctrl, v02.g_pat) = (5, 0x0606_0606_0606_0606);
        nest.left(&mut v02, &mut v01);
        assert_eq!((v01.spec_ctrl, v01.g_pat), (5, left));
        v01.spec_ctrl = 1;
    }
}

/// INT n that L1 injects returns to where L1 says, not to where L2's last exit was.
#[test]
fn an_injected_instruction_has_its_return_address() {
    let (mut nest, mut v02, v01) = (Nest::new(), fresh(), hosts());
    let mut v = taken();
    (v.event_inj, v.next_rip, v02.next_rip) = (0x8000_0480, 0x1002, 0x5555);
    assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &InMemory::of(&v))).is_ok());
    assert_eq!(v02.next_rip, 0x1002);
}

/// The virtual GIF, and VMLOAD and VMSAVE by the CPU, for an L1 that has them for its L2.
#[test]
fn what_the_cpu_keeps_for_l2_is_l1s_wish_and_in_the_offer() {
    const KEPT: u64 = 1 << 25;
    let mut v = taken();
    v.int_ctl = KEPT | int_ctl::V_INTR_MASKING;
    v.other_virtualization = 3;
    let open = |v: &Vmcb, offer: Offer| {
        let (mut nest, mut v02, mut v01) = (Nest::new(), fresh(), hosts());
        let mut block = InMemory::of(v);
        assert!(nest.enter(&mut v02, &v01, &offer, (AT, &block)).is_ok());
        let has = (v02.int_ctl & (KEPT | 1 << 9), v02.other_virtualization);
        let exits = v02.intercept_misc2 >> 2 & 0xF;
        // L2 changes its flag.
        v02.int_ctl ^= 1 << 9;
        nest.left(&mut v02, &mut v01);
        nest.leave(&v02, &crate::Told::of(&v02, 0x72, 0), &mut block);
        (has, exits, block.block().int_ctl >> 9 & 1)
    };
    let base = Offer::new(CR4, EFER, BITS);
    assert_eq!(open(&v, base.on(u32::MAX)), ((KEPT, 2), 0, 1));
    assert_eq!(open(&v, base.on(1 << 15)), ((0, 2), 0b1100, 0), "no virtual GIF");
    assert_eq!(open(&v, base.on(1 << 16)), ((KEPT, 0), 0b0011, 1), "no VMLOAD");
    assert_eq!(open(&v, base), ((0, 0), 0b1111, 0));
    v.int_ctl |= 1 << 9;
    assert_eq!(open(&v, base.on(u32::MAX)), ((KEPT | 1 << 9, 2), 0, 0));
    v.intercept_misc2 |= misc2::STGI | misc2::VMSAVE;
    assert_eq!(open(&v, base.on(u32::MAX)).1, 0b0110);
    // Without nested paging the CPU has nothing to translate by.
    v.nested_control = 0;
    assert_eq!(open(&v, base.on(u32::MAX)), ((KEPT | 1 << 9, 0), 0b0111, 0));
    // L1's own flag isn't L2's.
    (v.int_ctl, v.other_virtualization) = (int_ctl::V_INTR_MASKING, 0);
    assert_eq!(open(&v, base.on(u32::MAX)).0, (0, 0));
}

#[test]
fn interrupts_wait_for_the_flag_that_masks_them() {
    let (mut nest, mut v02, mut v01) = (Nest::new(), fresh(), hosts());
    let mut v = taken();
    for (masking, own, l2s) in [0, 1, 2, 3, 4, 5, 6, 7].map(|n| (n & 1, n >> 1 & 1, n >> 2)) {
        v.int_ctl = masking * int_ctl::V_INTR_MASKING;
        (v01.rflags, v.rflags) = (own << 9, l2s << 9);
        assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &InMemory::of(&v))).is_ok());
        let lets = if masking != 0 { own } else { l2s };
        assert_eq!(nest.control().holds_interrupts(&v01, &v02), lets == 0);
    }
}

/// An offer of the host's to L1 is L2's to take, unless L2's interrupts are its own.
#[test]
fn an_offer_reaches_whoever_has_interrupts_on() {
    let mine = int_ctl::V_INTR_MASKING | int_ctl::V_IRQ | 5 << 16 | 0x51 << 32;
    let yours = int_ctl::V_IRQ | 6 << 16 | 0x61 << 32;
    let (mut nest, mut v02, mut v01) = (Nest::new(), fresh(), hosts());
    v01.intercept_misc1 |= misc1::INTR;
    v01.int_ctl = mine;
    let mut v = taken();
    v.int_ctl = yours;
    let mut block = InMemory::of(&v);
    assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &block)).is_ok());
    assert_eq!(v02.int_ctl, mine);
    // L2 takes it, and raises its task priority.
    v02.int_ctl = v02.int_ctl & !int_ctl::V_IRQ | 3;
    nest.left(&mut v02, &mut v01);
    nest.leave(&v02, &crate::Told::of(&v02, 0x72, 0), &mut block);
    assert_eq!((v01.int_ctl, block.block().int_ctl), (mine & !int_ctl::V_IRQ | 3, yours));
    // With none of the host's, L1's is on offer, by the host's priority.
    assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &block)).is_ok());
    assert_eq!(v02.int_ctl, yours | int_ctl::V_INTR_MASKING | 3);
    v02.int_ctl &= !int_ctl::V_IRQ;
    nest.left(&mut v02, &mut v01);
    nest.leave(&v02, &crate::Told::of(&v02, 0x72, 0), &mut block);
    assert_eq!(block.block().int_ctl, yours & !int_ctl::V_IRQ);
    // L2's interrupts are its own: the host's offer waits.
    v01.int_ctl = mine;
    v.int_ctl = yours | int_ctl::V_INTR_MASKING | 2;
    let mut block = InMemory::of(&v);
    assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &block)).is_ok());
    assert_eq!(v02.int_ctl, yours | int_ctl::V_INTR_MASKING | 2);
    v02.int_ctl = int_ctl::V_INTR_MASKING | 9 | 6 << 16 | 0x61 << 32;
    nest.left(&mut v02, &mut v01);
    nest.leave(&v02, &crate::Told::of(&v02, 0x72, 0), &mut block);
    assert_eq!(v01.int_ctl, mine);
    assert_eq!(block.block().int_ctl, int_ctl::V_INTR_MASKING | 9 | 6 << 16 | 0x61 << 32);
}

#[test]
fn msrs_are_open_where_both_maps_are_and_l2_uses_them() {
    use crate::{MSR_WORDS, OpenWords, TooMany, Used};
    use svm::maps::msr_bit;
    let bit = |msr, write| msr_bit(msr).map_or(usize::MAX, |bit| bit + usize::from(write));
    // FS.Base and GS.Base; writes of C001_0000.
    let mut own = [u64::MAX; MSR_WORDS];
    (own[264], own[512]) = (!0b1111, !0b10);
    let Ok(open) = OpenWords::of(&own) else { panic!() };
    let mut merged = [u64::MAX; MSR_WORDS];
    let mut used = Used::default();
    let mut merge = |used: &mut Used, theirs: &dyn Fn(usize) -> u64| {
        open.merge(used, &mut merged, theirs);
        merged
    };
    assert_eq!(merge(&mut used, &|at| panic!("word {at} was read for nothing")), [u64::MAX; 1024]);
    for (msr, write) in
        [(0xC000_0102, false), (0xC001_0000, false), (0xC000_0080, true), (0x48, true), (!0, true)]
    {
        assert!(!open.add(&mut used, bit(msr, write)) && used.is_empty(), "{msr:#x}");
    }
    assert!(open.add(&mut used, bit(0xC000_0101, true)) && !used.is_empty());
    let now = merge(&mut used, &|at| if at == 264 { !0b0101 } else { panic!("word {at}") });
    assert_eq!(now[264], !0b0101);
    assert!(now.iter().enumerate().all(|(at, word)| at == 264 || *word == u64::MAX));
    // L1 opens all: no more than the host's.
    assert!(open.add(&mut used, bit(0xC001_0000, true)));
    assert_eq!(merge(&mut used, &|_| 0), own);
    // Closed again, as L1 wants it now, and not looked at any more.
    assert_eq!(merge(&mut used, &|at| if at == 264 { u64::MAX } else { 0 })[264], u64::MAX);
    assert_eq!(merge(&mut used, &|at| if at == 512 { 0 } else { panic!("word {at}") })[512], !0b10);
    assert_eq!(merge(&mut used, &|_| u64::MAX), [u64::MAX; MSR_WORDS]);
    assert!(used.is_empty());
    // As if all were used.
    used = open.all();
    assert_eq!(merge(&mut used, &|_| 0), own);
    assert_eq!(OpenWords::of(&[0; MSR_WORDS]).err(), Some(TooMany));
}

#[test]
fn one_look_sees_whether_either_map_is_used() {
    use crate::{OpenWords, UsedMaps};
    let Ok(open) = OpenWords::of(&[0]) else { panic!() };
    let (mut ports, mut msrs) = (UsedMaps::default(), UsedMaps::default());
    assert!(ports.is_empty() && open.add(&mut ports.ports, 0) && open.add(&mut msrs.msrs, 63));
    assert!(!ports.is_empty() && !msrs.is_empty());
}

/// AVIC has V_IRQ mean nothing, and L2's interrupts be its own.
#[test]
fn with_avic_what_waits_is_in_its_page() {
    const AVIC: u64 = int_ctl::AVIC;
    let yours = int_ctl::V_IRQ | 6 << 16 | 0x61 << 32 | 5;
    let (mut nest, mut v02, mut v01) = (Nest::new(), fresh(), hosts());
    v01.int_ctl = int_ctl::V_IRQ | 5 << 16 | 0x51 << 32;
    let mut v = taken();
    (v.nested_control, v.avic_bar, v.avic_backing_page) = (1, 0xFEE0_0000, 0x5_0FFF);
    v.intercept_misc1 |= misc1::VINTR;
    let offered = offer().on(0);
    for (mode, bar) in [(0, Some(0xFEE0_0000)), (int_ctl::X2AVIC, None)] {
        v.int_ctl = yours | AVIC | mode;
        let mut block = InMemory::of(&v);
        assert!(nest.enter(&mut v02, &v01, &offered, (AT, &block)).is_ok());
        assert_eq!(nest.control().avic(), Some(Avic { page: 0x5_0000, bar }));
        nest.control().follow_avic(&mut v02, &v01);
        assert_eq!(v02.int_ctl, int_ctl::V_INTR_MASKING | 5);
        assert_eq!(v02.intercept_misc1 & misc1::VINTR, 0);
        // The host's own offer for it, taken or not, is none of L1's.
        v02.int_ctl = int_ctl::V_INTR_MASKING | 7 << 16 | 0x71 << 32 | 9;
        nest.control().leave_avic(&mut v02);
        nest.left(&mut v02, &mut v01);
        nest.leave(&v02, &crate::Told::of(&v02, 0x72, 0), &mut block);
        let kept = yours & !0xFF | AVIC | mode | int_ctl::V_INTR_MASKING;
        assert_eq!(block.block().int_ctl, kept | 9);
    }
    // x2AVIC alone is nothing, and neither is what isn't offered.
    for (mode, offer) in [(int_ctl::X2AVIC, offered), (AVIC, Offer::new(CR4, EFER, BITS))] {
        v.int_ctl = yours | mode;
        assert!(nest.enter(&mut v02, &v01, &offer, (AT, &InMemory::of(&v))).is_ok());
        assert_eq!((nest.control().avic(), v02.int_ctl & int_ctl::V_IRQ), (None, int_ctl::V_IRQ));
        assert_ne!(v02.intercept_misc1 & misc1::VINTR, 0);
    }
    (v.int_ctl, v.nested_control) = (AVIC, 0);
    let why = nest.enter(&mut v02, &v01, &offered, (AT, &InMemory::of(&v))).err();
    assert_eq!(why, Some(crate::Illegal::Avic(0x5_0000)), "without nested paging");
}
