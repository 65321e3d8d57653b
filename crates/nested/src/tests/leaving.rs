//! What L1 reads in its block after #VMEXIT.

use super::*;
use crate::{Told, host_state};
use delivery::{Event, EventKind};

proptest! {
    /// The state goes back as it is, and comes in again as it went; nothing else is written.
    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn state_goes_back(first in any_taken(), now in any_taken(), code in 0_u32..0xC0, int_info: u64) {
        let (mut nest, mut v02, mut v01) = (Nest::new(), fresh(), hosts());
        let mut block = InMemory::of(&first);
        prop_assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &block)).is_ok());
        // L2 ran.
        (v02.es, v02.cs, v02.ss, v02.ds, v02.cpl) = (now.es, now.cs, now.ss, now.ds, now.cpl);
        (v02.gdtr, v02.idtr) = (now.gdtr, now.idtr);
        (v02.cr0, v02.cr2, v02.cr3, v02.cr4, v02.efer) = (now.cr0, now.cr2, now.cr3, now.cr4, now.efer);
        (v02.dr6, v02.dr7) = (now.dr6, now.dr7);
        (v02.rip, v02.rsp, v02.rax, v02.rflags) = (now.rip, now.rsp, now.rax, now.rflags);
        (v02.exit_info1, v02.exit_info2) = (now.exit_info1, now.exit_info2);
        (v02.next_rip, v02.bytes_fetched, v02.instruction) = (now.next_rip, now.bytes_fetched, now.instruction);
        (v02.interrupt_shadow, v02.event_inj) = (now.interrupt_shadow & 1, 0);
        nest.left(&mut v02, &mut v01);
        nest.leave(&v02, &Told::of(&v02, code, int_info), &mut block);
        let seen = block.block();
        prop_assert_eq!((seen.exit_code, seen.exit_info1, seen.exit_info2), (code.into(), now.exit_info1, now.exit_info2));
        prop_assert_eq!((seen.exit_int_info, seen.event_inj), (int_info, 0));
        prop_assert_eq!((seen.next_rip, seen.bytes_fetched, seen.instruction), (now.next_rip, now.bytes_fetched, now.instruction));
        prop_assert_eq!((seen.rip, seen.rsp, seen.rax, seen.rflags), (now.rip, now.rsp, now.rax, now.rflags));
        prop_assert_eq!((seen.es, seen.cs, seen.ss, seen.ds, seen.cpl), (now.es, now.cs, now.ss, now.ds, now.cpl));
        prop_assert_eq!((seen.gdtr, seen.idtr), (now.gdtr, now.idtr));
        prop_assert_eq!((seen.cr0, seen.cr2, seen.cr3, seen.cr4, seen.efer), (now.cr0, now.cr2, now.cr3, now.cr4, now.efer));
        prop_assert_eq!((seen.dr6, seen.dr7), (now.dr6, now.dr7));
        // What VMRUN and #VMEXIT don't touch.
        prop_assert_eq!((seen.fs, seen.gs, seen.tr, seen.ldtr), (first.fs, first.gs, first.tr, first.ldtr));
        prop_assert_eq!((seen.star, seen.lstar, seen.kernel_gs_base, seen.sysenter_eip), (first.star, first.lstar, first.kernel_gs_base, first.sysenter_eip));
        prop_assert_eq!(&seen.as_bytes()[..0x60], &first.as_bytes()[..0x60]);
        prop_assert_eq!((seen.nested_control, seen.nested_cr3, seen.clean), (first.nested_control, first.nested_cr3, first.clean));
        // And again, all of it called clean.
        block.words[0xC0 / 8] = u64::MAX;
        let before = (v02.cr0, v02.cr3, v02.cs, v02.idtr, v02.rip, v02.rsp);
        prop_assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &block)).is_ok());
        prop_assert_eq!((v02.cr0, v02.cr3, v02.cs, v02.idtr, v02.rip, v02.rsp), before);
    }
}

#[test]
fn a_refused_block_keeps_its_state() {
    let mut v = taken();
    (v.rip, v.exit_info1, v.exit_info2, v.exit_int_info) = (0x1234, 1, 2, 3);
    let mut block = InMemory::of(&v);
    Nest::new().refuse(&mut block);
    let seen = block.block();
    assert_eq!((seen.exit_code, seen.exit_info1, seen.exit_info2), (u64::MAX, 0, 0));
    assert_eq!((seen.exit_int_info, seen.rip), (0, 0x1234));
}

#[test]
fn an_invalid_exit_is_as_wide_as_the_manual_has_it() {
    let mut v02 = fresh();
    v02.exit_code = 0xFFFF_FFFF;
    assert_eq!(Told::of(&v02, 0xFFFF_FFFF, 0).code, u64::MAX);
}

#[test]
fn l1_goes_on_as_after_vmexit() {
    let mut v01 = hosts();
    (v01.cr0, v01.rflags, v01.dr7, v01.cpl) = (0x8000_0000, 0x2_0202, 0x7FF, 3);
    (v01.rip, v01.rsp, v01.rax) = (1, 2, 3);
    host_state(&mut v01);
    assert_eq!((v01.cr0, v01.rflags, v01.dr7, v01.cpl), (0x8000_0001, 0x202, 0x400, 0));
    assert_eq!((v01.rip, v01.rsp, v01.rax), (1, 2, 3));
}

#[test]
fn the_leaf_offers_what_is_served() {
    let [revision, asids, _, features] = Offer::leaf(u32::MAX);
    assert_eq!((revision, asids), (1, 64));
    // No LBR, SVM lock, TSC rate, no virtual NMI.
    for bit in [1, 2, 4, 25] {
        assert_eq!(features >> bit & 1, 0, "{bit}");
    }
    assert_eq!(features >> 15 & 3, 3, "VMLOAD by the CPU, the virtual GIF");
    // A CPU without its assists: what the host fills in is still there.
    let avic = 1 << 13 | 1 << 18;
    assert_eq!(Offer::leaf(1)[3], 1 | 1 << 5 | 1 << 6 | avic | 1 << 28);
    assert_eq!(Offer::new(0, 0, 64).physical_bits, 52);
}

/// What L1 injected for an instruction is injected again, what L2 executed is executed again.
#[test]
fn an_interrupted_event_is_delivered_after_all() {
    let (mut nest, mut v02, v01) = (Nest::new(), fresh(), hosts());
    let mut v = taken();
    for (kind, vector) in [(EventKind::Software, 0x80), (EventKind::Exception, 3)] {
        let event = Event { kind, vector, error_code: None };
        (v.event_inj, v.next_rip, v.rip, v.rsp) = (svm::injected(event), 0x1002, 0x1000, 0x5000);
        assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &InMemory::of(&v))).is_ok());
        let mut again = |rip, rsp, event| {
            (v02.event_inj, v02.next_rip, v02.rip, v02.rsp) = (0, 0x5555, rip, rsp);
            nest.redeliver(&mut v02, event);
            (v02.event_inj, v02.next_rip)
        };
        assert_eq!(again(0x1000, 0x5000, event), (v.event_inj, 0x1002));
        assert_eq!(again(0x1002, 0x5000, event), (0, 0x5555));
        assert_eq!(again(0x1000, 0x4FF8, event), (0, 0x5555));
        let other = Event { vector: vector + 1, ..event };
        assert_eq!(again(0x1000, 0x5000, other), (0, 0x5555));
        let fault = Event::exception(14, Some(2));
        assert_eq!(again(0x1000, 0x5000, fault), (svm::injected(fault), 0x5555));
        (v.event_inj, v.rip) = (0, 0x1000);
        assert!(nest.enter(&mut v02, &v01, &offer(), (AT, &InMemory::of(&v))).is_ok());
        nest.redeliver(&mut v02, event);
        assert_eq!(v02.event_inj, 0, "nothing was injected");
    }
}
