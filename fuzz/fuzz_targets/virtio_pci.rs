//! The registers of a virtio function under a guest that loads and stores anywhere, and a server
//! that lets go of the queues when it likes.
//!
//! Queues are given out once and only with agreed features, a queue that is enabled stays as it is,
//! and the status isn't zero while the server has them.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use virtio_pci::{Effect, Function, Host, NO_VECTOR, Queue, RING_PACKED, VERSION_1, bar, status};

#[derive(Arbitrary, Debug)]
struct Input {
    offered: u64,
    queues: u8,
    max_size: u16,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// Any place in the BAR, or beyond it.
    Read {
        offset: u64,
        size: u8,
    },
    Write {
        offset: u64,
        size: u8,
        value: u64,
    },
    /// A field of the common configuration by its own width.
    Field {
        field: u8,
        value: u32,
    },
    /// The server lets go of what it was told to.
    LetGo,
    NeedsReset,
    ConfigurationChanged,
    Restart,
}

/// Offsets and widths of what can be written.
const FIELDS: [(u64, u8); 15] = [
    (0x00, 4),
    (0x08, 4),
    (0x0C, 4),
    (0x10, 2),
    (0x14, 1),
    (0x16, 2),
    (0x18, 2),
    (0x1A, 2),
    (0x1C, 2),
    (0x20, 4),
    (0x24, 4),
    (0x28, 4),
    (0x2C, 4),
    (0x30, 4),
    (0x34, 4),
];

const CONFIG: [u8; 24] = [0xA5; 24];

fn host(served: bool) -> Host<'static> {
    Host { idle: !served, config: &CONFIG, pending: 1 }
}

fn field(function: &Function, offset: u64, size: u8) -> u64 {
    function.clone().read(bar::COMMON + offset, size, &host(true))
}

fn check(function: &Function, offered: u64, max_size: u16) {
    let features = function.features();
    let agreed = field(function, 0x14, 1) & u64::from(status::FEATURES_OK) != 0;
    if function.is_running() {
        assert!(agreed && features & !(offered | VERSION_1) == 0 && features & VERSION_1 != 0);
    }
    for queue in function.queues() {
        let known = usize::from(queue.vector) <= function.queues().len();
        assert!(known || queue.vector == NO_VECTOR);
        assert!((1..=max_size.max(1)).contains(&queue.size));
        if queue.enabled {
            assert!(agreed);
            assert!(queue.size.is_power_of_two() || features & RING_PACKED != 0);
        }
    }
}

fuzz_target!(|input: Input| {
    let Ok(mut function) = Function::new(input.offered, input.queues.into(), input.max_size) else {
        assert!(!(1..=virtio_pci::MAX_QUEUES).contains(&input.queues.into()));
        return;
    };
    let mut served = false;
    for step in input.steps {
        let before = function.clone();
        let mut effect = Effect::None;
        let mut store = |offset, size, value| function.write(offset, size, value, &host(served));
        match step {
            Step::Write { offset, size, value } => effect = store(offset, size, value),
            Step::Field { field, value } => {
                let (offset, size) = FIELDS[usize::from(field) % FIELDS.len()];
                effect = store(bar::COMMON + offset, size, value.into());
            }
            Step::Read { offset, size } => {
                function.read(offset, size, &host(served));
            }
            Step::LetGo => served &= function.is_running(),
            Step::NeedsReset => {
                let told = function.needs_reset();
                assert!(told.is_none() || before.is_running());
            }
            Step::ConfigurationChanged => {
                let told = function.configuration_changed();
                assert!(told.is_none() || before.is_running());
            }
            Step::Restart => {
                function.reset();
                effect = Effect::Reset;
            }
        }
        if effect == Effect::Start {
            assert!(!served && !before.is_running() && function.is_running());
            served = true;
        }
        let running = effect == Effect::Start || before.is_running() && effect != Effect::Reset;
        assert_eq!(function.is_running(), running);
        assert!(!served || field(&function, 0x14, 1) != 0, "zero while the queues are held");
        if let Effect::Notify(queue) = effect {
            assert!(running && function.queues()[usize::from(queue)].enabled);
        }
        if effect != Effect::Reset {
            for (old, new) in before.queues().iter().zip(function.queues()) {
                let vector = new.vector;
                assert!(!old.enabled || Queue { vector, ..*old } == *new, "it is locked");
            }
        }
        check(&function, input.offered, input.max_size);
    }
});
