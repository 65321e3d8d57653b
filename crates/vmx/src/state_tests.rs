//! What the rest of the hypervisor changes of the guest's state is as the CPU would have it, and
//! can be entered.

use super::*;
use crate::area::tests::Model;
use crate::entry::check;
use crate::exits::reason;
use crate::start::CR0_MASK;
use crate::vcpu::tests::{FLAT, LONG, debug, vcpu};
use delivery::Event;

#[test]
fn paging_begins_and_ends_long_mode() {
    let mut v = vcpu(FLAT, false);
    let none = |_| unreachable!("no PAE paging");
    v.area.write(field::GUEST_CR4, 0x2020);
    v.set_efer(0x100);
    assert!(!v.long_mode());
    assert!(v.set_cr0(0x8000_0011, none) && v.long_mode());
    assert_eq!(v.paging().cr0, 0x8000_0011);
    assert_eq!(v.area.read(field::GUEST_CR0) & !CR0_MASK, 0, "TS and MP are the guest's");
    assert!(v.take_flush() && !v.take_flush());
    check(&v.area, &v.capabilities).unwrap();
    assert!(v.set_cr0(0x11, none) && !v.long_mode());
    v.set_efer(0);
    assert!(!v.set_cr0(0x8000_0011, |_| [0x1007, 0, 0, 0]), "reserved bits in a pointer");
    assert_eq!(v.paging().cr0, 0x11);
    assert!(v.set_cr0(0x8000_0011, |_| [0x1001, 0x6, 0, 0x2001]), "one isn't present");
    assert_eq!(v.area.read(field::GUEST_PDPTE3), 0x2001);
}

/// What the CPU refuses at MOV to CR0 it would refuse at the entry, and the VM would end.
#[test]
fn long_mode_doesnt_begin_in_a_task_of_16_bits() {
    let none = |_| unreachable!("no PAE paging");
    let mut v = vcpu(FLAT, false);
    v.area.write(field::GUEST_CR4, 0x2060);
    v.set_efer(0x100);
    let usual = v.area.read(Segment::Tr.rights());
    v.area.write(Segment::Tr.rights(), 0x83);
    assert!(!v.set_cr0(0x8000_0011, none));
    assert_eq!((v.paging().cr0, v.long_mode()), (0x11, false));
    check(&v.area, &v.capabilities).unwrap();
    v.area.write(Segment::Tr.rights(), usual);
    assert!(v.set_cr0(0x8000_0011, none) && v.long_mode());
    check(&v.area, &v.capabilities).unwrap();
    // It goes on where it runs, whatever the task is.
    v.area.write(Segment::Tr.rights(), 0x83);
    assert!(v.set_cr0(0x8001_0011, none) && v.long_mode());
}

/// It doesn't begin in code of 64 bits, either: who asks looks at CS.L, outside of long mode, too.
#[test]
fn the_code_segment_says_what_it_is_for_in_any_mode() {
    let mut v = vcpu(FLAT, false);
    assert!(!v.cs_long());
    v.area.write(Segment::Cs.rights(), 0xA09B);
    assert!(v.cs_long() && !v.long_mode() && v.code_mode() == Mode::Bits16);
}

#[test]
fn an_instruction_ends_its_shadow_and_steps() {
    let mut v = vcpu(LONG, false);
    v.area.write(field::GUEST_INTERRUPTIBILITY, 0b1001);
    v.area.write(field::GUEST_RFLAGS, 1 << 16 | 2);
    v.advance(0x1_0000_0002);
    let read = |v: &Vcpu<Model>, field| v.area.read(field);
    assert_eq!(read(&v, field::GUEST_RIP), 0x1_0000_0002);
    assert_eq!(read(&v, field::GUEST_INTERRUPTIBILITY), 0b1000);
    assert_eq!((read(&v, field::GUEST_RFLAGS), read(&v, field::GUEST_PENDING_DEBUG)), (2, 0));
    v.area.write(field::GUEST_RFLAGS, 1 << 8 | 2);
    v.advance(4);
    assert_eq!(read(&v, field::GUEST_PENDING_DEBUG), 1 << 14);
    check(&v.area, &v.capabilities).unwrap();
    v.area.write(field::QUALIFICATION, 1 << 14);
    v.area.write(field::GUEST_DR7, 0x2400);
    assert_eq!(
        (v.take_debug_status(0xFFFF_8FF3), read(&v, field::GUEST_DR7)),
        (0xFFFF_CFF0, 0x400)
    );
    let mut v = vcpu(FLAT, false);
    v.advance(0x1_0000_0002);
    assert_eq!(v.area.read(field::GUEST_RIP), 2, "as wide as the code");
}

/// CD and NW have the pointers of PAE paging read again, too.
#[test]
fn caches_switched_read_the_pointers_again() {
    let mut v = vcpu(FLAT, false);
    v.area.write(field::GUEST_CR4, 0x2060);
    assert!(v.set_cr0(0x8000_0011, |_| [0x1001; 4]));
    assert!(v.set_cr0(0x8000_0013, |_| unreachable!("MP")));
    assert!(v.set_cr0(0xC000_0011, |_| [0x2001; 4]));
    assert_eq!(v.area.read(field::GUEST_PDPTE0), 0x2001);
    assert!(!v.set_cr0(0x8000_0011, |_| [0x2003; 4]));
}

/// XSA-308: INT1 behind MOV SS, by a user who single-steps. Also STI, stepped.
#[test]
fn a_debug_exception_in_a_shadow_can_be_raised() {
    for (privileged, blocking) in [(true, 2), (true, 1), (false, 1), (false, 2), (true, 0)] {
        let mut v = vcpu(LONG, false);
        let rip = v.area.read(field::GUEST_RIP);
        debug(&mut v, privileged, blocking, true);
        v.area.write(field::QUALIFICATION, 1 << 14);
        let dr6 = v.take_debug_status(0xFFFF_0FF2);
        v.inject(Event::exception(1, None));
        assert_eq!(check(&v.area, &v.capabilities), Ok(()));
        let (length, status) = if privileged { (1, 0xFFFF_0FF2) } else { (0, 0xFFFF_4FF0) };
        assert_eq!((v.area.read(field::GUEST_RIP), dr6), (rip + length, status));
    }
}

/// A user's INT1 in the last byte of 4 GiB, by code of 32 bits: behind it addresses begin anew.
#[test]
fn int1_at_the_end_of_32_bits_can_be_raised() {
    for (start, next) in [(FLAT, 0), (LONG, 1 << 32)] {
        let mut v = vcpu(start, false);
        v.area.write(field::GUEST_RIP, 0xFFFF_FFFF);
        debug(&mut v, true, 0, false);
        v.take_debug_status(0xFFFF_0FF0);
        v.inject(Event::exception(1, None));
        assert_eq!(check(&v.area, &v.capabilities), Ok(()));
        assert_eq!(v.area.read(field::GUEST_RIP), next);
    }
}

/// What isn't offered is #GP; MCE is as the guest wrote it, and as the host wants it.
#[test]
fn cr4_has_what_is_offered_and_machine_checks() {
    let mut v = vcpu(LONG, false);
    v.area.write(field::EXIT_REASON, reason::CR_ACCESS.into());
    // MOV to CR4 from RCX.
    v.area.write(field::QUALIFICATION, 0x104);
    let mask = v.area.read(field::CR4_MASK);
    for bit in [13, 14, 12, 19, 23, 24, 25, 27, 28, 32] {
        assert!(mask >> bit & 1 != 0, "{bit}");
        // Without MCE beside it, and with.
        for value in [0x20 | 1 << bit, 0x60 | 1 << bit] {
            v.set_gpr(1, value);
            assert_eq!((v.exit(), v.cr4()), (Exit::Forbidden, 0x20), "{bit}");
        }
    }
    assert_eq!(mask & 0x77_0FFF, 0x40, "of what is offered MCE alone exits");
    assert_eq!(v.area.read(field::GUEST_CR4) & 0x2040, 0x2040);
    for (value, shown) in [(0x60, 0x60), (0x20, 0x20)] {
        v.set_gpr(1, value);
        assert_eq!((v.exit(), v.cr4()), (Exit::Nothing, shown));
        assert_eq!(v.exit(), Exit::Forbidden, "nothing is to be done twice");
    }
    // A register has 32 bits outside 64-bit code.
    let mut v = vcpu(FLAT, false);
    v.area.write(field::EXIT_REASON, reason::CR_ACCESS.into());
    v.area.write(field::QUALIFICATION, 0x104);
    v.set_gpr(1, 0x1_0000_0040);
    assert_eq!((v.exit(), v.cr4()), (Exit::Nothing, 0x40));
    assert_eq!(check(&v.area, &v.capabilities), Ok(()));
}
