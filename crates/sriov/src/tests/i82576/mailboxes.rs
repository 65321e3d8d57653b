//! What functions ask for by their mailboxes.

use super::*;
use proptest::prelude::*;

#[test]
fn a_reset_tells_the_address_and_opens_the_function_alone() {
    let (handle, mut controller) = started(3);
    let [low, high] = words(mac(1));
    // Linux's igbvf compares the first word with exactly this.
    assert_eq!(handle.reset(1, &mut controller), [0x8000_0001, low, high]);
    assert_eq!(handle.0.borrow().told[1], 3, "received and answered");
    assert_eq!((handle.get(VFRE), handle.get(VFTE)), (2, 2));
    handle.reset(2, &mut controller);
    assert_eq!(handle.get(VFRE), 6);
    // Reset and no more: closed, and the other stays open.
    handle.set(VFLRE, 1 << 2);
    controller.serve();
    assert_eq!((handle.get(VFRE), handle.get(VFLRE)), (2, 0));
}

#[test]
fn a_reset_at_any_moment_is_answered_and_lasts() {
    for earlier in [None, Some(1), Some(2)] {
        for access in 0..40 {
            let (handle, mut controller) = started(2);
            handle.reset(1, &mut controller);
            if let Some(kind) = earlier {
                handle.post(1, &[kind]);
            }
            handle.0.borrow_mut().resets = Some((1, access));
            for _ in 0..30 {
                controller.serve();
            }
            let model = handle.0.borrow();
            assert_eq!((model.resets, model.unsaid), (None, None), "it wasn't played");
            drop(model);
            assert_eq!(handle.get(VFRE), 2, "reset before access {access}, after {earlier:?}");
            assert_eq!(handle.get(VFTE), 2, "reset before access {access}, after {earlier:?}");
            let granted = handle.ask(1, &[4, 0], &mut controller);
            assert_eq!(granted, 4 | GRANTED | CLEAR, "reset before access {access}");
        }
    }
}

#[test]
fn nothing_is_granted_before_a_reset() {
    let (handle, mut controller) = started(2);
    let [low, high] = words(mac(0));
    assert_eq!(handle.ask(0, &[2, low, high], &mut controller), 2 | REFUSED);
    assert_eq!(handle.ask(0, &[3 | 1 << 16, 7], &mut controller), 3 | REFUSED);
    assert_eq!(handle.get(MTA), 0);
    handle.reset(0, &mut controller);
    assert_eq!(handle.ask(0, &[2, low, high], &mut controller), 2 | GRANTED | CLEAR);
}

#[test]
fn a_guest_has_its_own_address_and_no_other() {
    let (handle, mut controller) = started(2);
    handle.reset(0, &mut controller);
    for other in [mac(1), OWN, [2; 6]] {
        let [low, high] = words(other);
        let refused = 2 | REFUSED | CLEAR;
        assert_eq!(handle.ask(0, &[2, low, high], &mut controller), refused);
        assert_eq!(handle.ask(0, &[2 | 2 << 16, low, high], &mut controller), refused);
    }
    // Further addresses aren't given, not even one's own once more.
    let [low, high] = words(mac(0));
    let more = handle.ask(0, &[2 | 2 << 16, low, high], &mut controller);
    assert_eq!(more, 2 | REFUSED | CLEAR);
    assert_eq!(handle.ask(0, &[2 | 1 << 16], &mut controller), 2 | GRANTED | CLEAR);
}

#[test]
fn groups_pass_to_those_who_asked() {
    let (handle, mut controller) = started(2);
    handle.reset(0, &mut controller);
    handle.reset(1, &mut controller);
    let vmolr = |vf: u32| handle.get(VMOLR + 4 * vf) & 1 << 25;
    // Hashes 0x021 and 0xFFF, of two that are counted.
    handle.ask(0, &[3 | 2 << 16, 0xFFFF_0021, 0x0040], &mut controller);
    assert_eq!((handle.get(MTA + 4), handle.get(MTA + 4 * 127)), (2, 1 << 31));
    assert_eq!(handle.get(MTA + 8), 0);
    assert!(vmolr(0) != 0 && vmolr(1) == 0);
    handle.ask(1, &[3 | 1 << 16, 0x21], &mut controller);
    handle.ask(0, &[3], &mut controller);
    assert_eq!((handle.get(MTA + 4), handle.get(MTA + 4 * 127)), (2, 0));
    assert!(vmolr(0) == 0 && vmolr(1) != 0);
    handle.reset(1, &mut controller);
    assert_eq!((handle.get(MTA + 4), vmolr(1)), (0, 0));
}

#[test]
fn long_frames_up_to_what_the_controller_has() {
    let (handle, mut controller) = started(1);
    handle.reset(0, &mut controller);
    assert_eq!(handle.ask(0, &[5, 1518], &mut controller), 5 | GRANTED | CLEAR);
    assert_eq!(handle.get(VMOLR) & 0x1_3FFF, 0x1_0000 | 1522);
    assert_eq!(handle.ask(0, &[5, 0x2600], &mut controller), 5 | REFUSED | CLEAR);
    assert_eq!(handle.ask(0, &[5, u32::MAX], &mut controller), 5 | REFUSED | CLEAR);
    assert_eq!(handle.get(VMOLR) & 0x3FFF, 1522);
    // A shorter limit takes the longer one's place, and the rest stays.
    assert_eq!(handle.ask(0, &[5, 0x201], &mut controller), 5 | GRANTED | CLEAR);
    assert_eq!(handle.get(VMOLR), 0xC901_0205);
    assert_eq!(handle.ask(0, &[5, 0x201], &mut controller), 5 | GRANTED | CLEAR);
    assert_eq!(handle.get(VMOLR), 0xC901_0205);
}

#[test]
fn tags_and_what_is_unknown_are_refused() {
    let (handle, mut controller) = started(1);
    handle.reset(0, &mut controller);
    assert_eq!(handle.ask(0, &[4 | 1 << 16, 0], &mut controller), 4 | GRANTED | CLEAR);
    assert_eq!(handle.ask(0, &[4 | 1 << 16, 7], &mut controller), 4 | REFUSED | CLEAR);
    assert_eq!(handle.ask(0, &[6 | 2 << 16], &mut controller), 6 | REFUSED | CLEAR);
    assert_eq!(handle.ask(0, &[0xABCD_1234], &mut controller), 0x1234 | REFUSED | CLEAR);
}

#[test]
fn a_mailbox_that_its_guest_holds_waits_and_holds_up_nobody() {
    let (handle, mut controller) = started(2);
    handle.0.borrow_mut().held = 1;
    handle.post(0, &[1]);
    assert_eq!(handle.reset(1, &mut controller)[0], 1 | GRANTED);
    assert_eq!(handle.answer(0)[0], 1, "untouched");
    handle.0.borrow_mut().held = 0;
    controller.serve();
    assert_eq!(handle.answer(0)[0], 1 | GRANTED);
}

#[test]
fn several_mailboxes_that_are_held_all_wait() {
    let (handle, mut controller) = started(3);
    handle.0.borrow_mut().held = 0b110;
    handle.post(1, &[1]);
    controller.serve();
    handle.post(2, &[1]);
    controller.serve();
    assert_eq!([handle.answer(1)[0], handle.answer(2)[0]], [1, 1], "untouched");
    handle.0.borrow_mut().held = 0;
    // Who waits isn't forgotten for who comes, and is answered once.
    handle.post(1, &[1]);
    controller.serve();
    assert_eq!([handle.answer(1)[0], handle.answer(2)[0]], [1 | GRANTED, 1 | GRANTED]);
    handle.take_written();
    controller.serve();
    assert_eq!(handle.take_written(), []);
}

proptest! {
    /// A guest's messages, of any content, change only what is its own.
    #[test]
    fn whatever_one_guest_writes_the_other_keeps_what_it_has(
        messages in prop::collection::vec(prop::collection::vec(prop_oneof![0u32..8, any::<u32>()], 1..16), 1..20),
        held: u32,
    ) {
        let (handle, mut controller) = started(2);
        handle.reset(0, &mut controller);
        handle.ask(0, &[3 | 1 << 16, 0x123], &mut controller);
        let settings = handle.get(VMOLR);
        let (ra, told) = (|| (8..192).step_by(4).map(|at| handle.get(RA + at)).collect::<Vec<_>>(), handle.answer(0));
        let before = ra();
        for (i, words) in messages.iter().enumerate() {
            handle.0.borrow_mut().held = (held >> (i % 32) & 1) << 1;
            handle.post(1, words);
            handle.0.borrow_mut().accesses = 0;
            controller.serve();
            prop_assert!(handle.0.borrow().accesses < 400, "{} accesses", handle.0.borrow().accesses);
            prop_assert_eq!(handle.get(VMOLR), settings);
            prop_assert_eq!(handle.get(VFRE) & 1, 1);
            prop_assert_ne!(handle.get(MTA + 4 * 9) & 1 << 3, 0);
            prop_assert_eq!(ra(), before.clone());
            prop_assert_eq!(handle.answer(0), told);
            prop_assert_eq!(handle.get(MBVFICR), 0);
        }
    }
}
