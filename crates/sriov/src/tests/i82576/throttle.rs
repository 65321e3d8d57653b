//! Interrupts held back: who writes which interval, and when.

use super::*;
use crate::i82576::LONGEST_US;
use coalesce::Settings;
use proptest::prelude::*;

/// Microseconds in a second, and in an epoch.
const SECOND: u64 = 1_000_000;
const EPOCH: u64 = 200_001;
const RECEIVED: u32 = 0x1_0010;
const SENT: u32 = 0x1_0014;

/// Of vector 0 of the function, by the table of the datasheet (7.3.2.12): 22 for function 0, 1 for
/// function 7.
fn eitr(function: u32) -> u32 {
    0x1680 + 4 * (22 - 3 * function)
}

fn held_back(functions: u8) -> (Handle, Controller<Handle>) {
    let (handle, mut controller) = started(functions);
    controller.hold_back(Settings::paper(SECOND), 0);
    handle.take_written();
    (handle, controller)
}

/// An epoch with this load of the function: 80,000 frames a second that nobody answers.
fn epoch(handle: &Handle, controller: &mut Controller<Handle>, function: u32, number: u64) {
    let at = RECEIVED + 0x100 * function;
    handle.set(at, handle.get(at).wrapping_add(16_000));
    controller.throttle(number * EPOCH);
}

#[test]
fn without_load_nothing_is_written_and_before_its_time_nothing_read() {
    let (handle, mut controller) = held_back(8);
    let before = handle.0.borrow().accesses;
    controller.throttle(EPOCH - 1);
    assert_eq!(handle.0.borrow().accesses, before);
    controller.throttle(EPOCH);
    controller.throttle(2 * EPOCH);
    assert_eq!(handle.take_written(), []);
    let counts = controller.throttled(7).unwrap();
    assert_eq!((counts.epochs, counts.held, counts.by_guest), (2, 0, 0));
    assert_eq!(controller.throttled(8), None);
    assert_eq!(started(1).1.throttled(0), None);
}

#[test]
fn a_load_sets_its_own_function_s_three_intervals() {
    let (handle, mut controller) = held_back(8);
    for function in [0, 7] {
        epoch(&handle, &mut controller, function, u64::from(function) + 1);
        // 16,000 in flight: the bound, 500 us, and the count goes on.
        let at = eitr(function);
        let all = [0, 4, 8].map(|vector| (at + vector, 500 << 2 | 1 << 31));
        let mut written = handle.take_written();
        written.retain(|(register, _)| (at..at + 12).contains(register));
        assert_eq!(written, all);
    }
    // The next epoch has no load.
    controller.throttle(9 * EPOCH);
    assert_eq!(handle.get(eitr(7)) & 0x7FFC, 0);
    let counts = controller.throttled(7).unwrap();
    assert_eq!((counts.held, counts.longest_us), (1, 500));
}

#[test]
fn counters_that_wrap_are_no_load() {
    let (handle, mut controller) = held_back(1);
    handle.set(RECEIVED, u32::MAX);
    handle.set(SENT, u32::MAX);
    controller.throttle(EPOCH);
    handle.set(RECEIVED, 50);
    handle.set(SENT, 50);
    handle.take_written();
    controller.throttle(2 * EPOCH);
    assert_eq!(handle.get(eitr(0)) & 0x7FFC, 0);
}

#[test]
fn what_waits_in_its_two_queues_is_in_flight() {
    let (handle, mut controller) = held_back(2);
    // 80,000 a second each way, and 64 descriptors in a ring of 256 that wraps.
    let load = |handle: &Handle, number: u32| {
        handle.set(RECEIVED + 0x100, 16_000 * number);
        handle.set(SENT + 0x100, 16_000 * number);
    };
    load(&handle, 1);
    controller.throttle(EPOCH);
    assert_eq!(handle.take_written(), [], "one in flight");
    for (number, queue) in [(2, 1), (3, 9)] {
        let queue = 0xE000 + 0x40 * queue;
        handle.set(queue + 0x08, 4096);
        handle.set(queue + 0x10, 250);
        handle.set(queue + 0x18, 58);
        load(&handle, number);
        controller.throttle(u64::from(number) * EPOCH);
        // 1/8 of 80,000, and 1/16.
        let expected = if number == 2 { 100 } else { 200 };
        assert_eq!(handle.get(eitr(1)) & 0x7FFC, expected << 2);
    }
}

#[test]
fn what_the_guest_sets_holds_if_it_is_longer() {
    let (handle, mut controller) = held_back(1);
    // With moderated immediate interrupts, which are the guest's, and a count that runs.
    handle.set(eitr(0), 900 << 2 | 1 << 15 | 77 << 21);
    epoch(&handle, &mut controller, 0, 1);
    let written = handle.take_written();
    assert_eq!(written.len(), 2, "the other vectors': {written:?}");
    assert_eq!(handle.get(eitr(0)) & 0x7FFC, 900 << 2);
    // It is shortened: for an epoch.
    handle.set(eitr(0), 20 << 2 | 1 << 15);
    epoch(&handle, &mut controller, 0, 2);
    assert_eq!(handle.take_written(), [(eitr(0), 500 << 2 | 1 << 15 | 1 << 31)]);
    // Without load the guest's own is back.
    controller.throttle(3 * EPOCH);
    assert_eq!(handle.get(eitr(0)) & 0x7FFC, 20 << 2);
    // A reset of the function takes all away.
    handle.set(eitr(0), 0);
    epoch(&handle, &mut controller, 0, 4);
    controller.throttle(5 * EPOCH);
    assert_eq!(handle.get(eitr(0)) & 0x7FFC, 0);
    assert_eq!(controller.throttled(0).unwrap().by_guest, 3);
}

proptest! {
    #[test]
    fn no_interval_is_beyond_the_part_s_and_no_other_register_is_written(
        registers in prop::collection::vec((0u32..64, any::<u32>()), 0..64),
        rate in 0u64..10,
        epochs in 1u64..5,
    ) {
        let (handle, mut controller) = started(2);
        let settings = Settings { iops_threshold: rate, ..Settings::paper(SECOND) };
        controller.hold_back(settings, 0);
        handle.take_written();
        for number in 1..=epochs {
            for (register, value) in &registers {
                let at = match register {
                    0..16 => 0x1680 + 4 * (register + 9),
                    16..32 => RECEIVED + 0x100 * (register & 1) + (register & 4),
                    _ => 0xE000 + 0x40 * (register & 9) + (register & 0x18),
                };
                handle.set(at, *value);
            }
            controller.throttle(number * EPOCH);
        }
        for (at, value) in handle.take_written() {
            prop_assert!((eitr(1)..eitr(0) + 12).contains(&at), "{at:#x}");
            prop_assert!(u64::from(value >> 2 & 0x1FFF) <= LONGEST_US);
            prop_assert_eq!(value & 0x7FFF_0003, 0);
        }
    }
}
