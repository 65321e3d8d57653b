//! Any accesses in any order.

use proptest::prelude::*;
use virtio_pci::{Effect, Function, Host, NO_VECTOR, RING_PACKED, VERSION_1, bar, status};

const CONFIG: [u8; 24] = [0xA5; 24];
const QUEUES: u16 = 3;
const OFFERED: u64 = VERSION_1 | RING_PACKED | 1 << 29;

#[derive(Clone, Debug)]
enum Step {
    Read { offset: u64, size: u8, idle: bool },
    Write { offset: u64, size: u8, value: u64, idle: bool },
    NeedsReset,
    Changed,
}

fn host(idle: bool) -> Host<'static> {
    Host { idle, config: &CONFIG, pending: 1 }
}

/// The fields of the common configuration and their widths.
const FIELDS: [(u64, u8); 19] = [
    (0x00, 4),
    (0x04, 4),
    (0x08, 4),
    (0x0C, 4),
    (0x10, 2),
    (0x12, 2),
    (0x14, 1),
    (0x15, 1),
    (0x16, 2),
    (0x18, 2),
    (0x1A, 2),
    (0x1C, 2),
    (0x1E, 2),
    (0x20, 4),
    (0x24, 4),
    (0x28, 4),
    (0x2C, 4),
    (0x30, 4),
    (0x34, 4),
];

/// Mostly fields, so that the walk comes far; a value that is often one that counts.
fn place() -> impl Strategy<Value = (u64, u8)> {
    prop_oneof![
        12 => prop::sample::select(&FIELDS[..]),
        1 => (0..bar::SIZE + 16, prop::sample::select(&[0_u8, 1, 2, 3, 4, 8, 16, 255][..])),
        1 => any::<(u64, u8)>(),
    ]
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..6_u64, 2 => Just(0x0F), 2 => (0..64_u32).prop_map(|bit| 1 << bit), 1 => any::<u64>()]
}

fn step() -> impl Strategy<Value = Step> {
    let idle = any::<bool>();
    prop_oneof![
        2 => (place(), idle).prop_map(|((offset, size), idle)| Step::Read { offset, size, idle }),
        8 => (place(), value(), any::<bool>()).prop_map(
            |((offset, size), value, idle)| Step::Write { offset, size, value, idle }
        ),
        // The way to a queue that is served.
        2 => prop::sample::select(&[
            (0x08, 4, 1), (0x0C, 4, 1), (0x14, 1, 0x0B), (0x1C, 2, 1), (0x14, 1, 0x0F), (0x16, 2, 0),
        ][..]).prop_map(
            |(offset, size, value)| Step::Write { offset, size, value, idle: true }
        ),
        1 => Just(Step::NeedsReset),
        1 => Just(Step::Changed),
    ]
}

/// The status as the guest would read it, and nothing changed.
fn status_of(function: &Function) -> u8 {
    function.clone().read(bar::COMMON + 0x14, 1, &host(false)) as u8
}

fn check(before: &Function, after: &Function, effect: Effect) -> Result<(), TestCaseError> {
    let (was, is) = (status_of(before), status_of(after));
    let agreed = |status: u8| status & status::FEATURES_OK != 0;
    // A reset that ended at this access is one, too.
    let reset = effect == Effect::Reset || (was != 0 && is == 0) || !keeps(was, is);
    let stopping = is & status::DRIVER_OK != 0 && !after.is_running();
    if agreed(is) && !stopping {
        let features = after.features();
        prop_assert!(features & !OFFERED == 0 && features & VERSION_1 != 0);
    }
    if agreed(was) && agreed(is) && !reset && !stopping {
        prop_assert_eq!(before.features(), after.features());
    }
    for (old, new) in before.queues().iter().zip(after.queues()) {
        if old.enabled && !reset {
            let vector = new.vector;
            prop_assert_eq!(virtio_pci::Queue { vector, ..*old }, *new, "locked");
        }
        prop_assert!(new.vector <= QUEUES || new.vector == NO_VECTOR);
        prop_assert!((1..=64).contains(&new.size));
        if new.enabled {
            prop_assert!(agreed(is));
            prop_assert!(new.size.is_power_of_two() || after.features() & RING_PACKED != 0);
            prop_assert!(old.enabled || !before.is_running(), "none is added while it runs");
        }
    }
    match effect {
        Effect::Start => prop_assert!(
            !before.is_running() && after.is_running() && is & status::DRIVER_OK != 0 && agreed(is)
        ),
        Effect::Reset => prop_assert!(!after.is_running() && after.features() == 0),
        Effect::Entry(entry) => prop_assert!(entry <= QUEUES.into()),
        Effect::Notify(queue) => {
            prop_assert!(after.is_running() && after.queues()[usize::from(queue)].enabled);
        }
        Effect::Vectors | Effect::None | Effect::Config { .. } => {}
    }
    let started = effect == Effect::Start;
    prop_assert_eq!(after.is_running(), started || before.is_running() && effect != Effect::Reset);
    Ok(())
}

/// Every bit that was set still is.
fn keeps(was: u8, is: u8) -> bool {
    was & !is == 0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_promises_hold(steps in prop::collection::vec(step(), 1..80)) {
        let mut function = Function::new(OFFERED, QUEUES, 64).unwrap();
        // The server has the queues, or may have them.
        let mut served = false;
        for step in steps {
            let before = function.clone();
            let effect = match step {
                Step::Read { offset, size, idle } => {
                    function.read(offset, size, &host(idle));
                    served &= !idle || function.is_running();
                    Effect::None
                }
                Step::Write { offset, size, value, idle } => {
                    served &= !idle || before.is_running();
                    let effect = function.write(offset, size, value, &host(idle));
                    prop_assert!(!(effect == Effect::Start && served), "given out twice");
                    served |= effect == Effect::Start;
                    effect
                }
                Step::NeedsReset => {
                    let entry = function.needs_reset();
                    prop_assert!(entry.is_none_or(|entry| entry <= QUEUES && before.is_running()));
                    prop_assert!(!before.is_running() || status_of(&function) & status::NEEDS_RESET != 0);
                    Effect::None
                }
                Step::Changed => {
                    prop_assert!(function.configuration_changed().is_none_or(|entry| entry <= QUEUES));
                    Effect::None
                }
            };
            prop_assert!(!served || status_of(&function) != 0, "zero while the queues are held");
            check(&before, &function, effect)?;
        }
    }
}
