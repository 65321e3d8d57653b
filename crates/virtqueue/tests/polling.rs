//! A device that polls: how rarely it is kicked, and what it writes.
mod driver;

use driver::{Driver, Heap, driver};
use virtqueue::{Chain, Features, Queue, State};
use window::Memory;

const REQUESTS: u32 = 100_000;

/// Serves many requests, so many at a time; how many kicks the driver would have sent.
fn kicks(features: Features, size: u16, batch: u32) -> u32 {
    let memory = Memory::new(&[(0, 1 << 16)], 0);
    let mut heap = Heap::new(memory.window(), 0, 1 << 16);
    let mut driver: Box<dyn Driver> = driver(&mut heap, size, features);
    let state = State::at_reset(features);
    let mut queue: Queue = Queue::new(&memory.window(), driver.layout(), features, state).unwrap();
    let buffers = [heap.put(b"header")];
    let mut chain = Chain::new();
    let mut kicks = 0;
    queue.suppress_kicks();
    for _ in 0..REQUESTS / batch {
        for _ in 0..batch {
            driver.add(&buffers).unwrap();
            kicks += u32::from(driver.kick());
        }
        while queue.take(&memory.window(), &mut chain).unwrap() {
            queue.complete(chain.head(), 0);
        }
        queue.publish();
        while driver.used().is_some() {}
    }
    assert_eq!(queue.enable_kicks(), Ok(0));
    driver.add(&buffers).unwrap();
    assert!(driver.kick(), "who sleeps is kicked");
    kicks
}

#[test]
fn a_queue_that_is_polled_is_never_kicked() {
    for (packed, event_index) in [(false, false), (false, true), (true, false), (true, true)] {
        let features = Features { indirect: false, event_index, packed };
        for (size, batch) in [(256, 1), (256, 256), (8, 5), (1, 1)] {
            assert_eq!(kicks(features, size, batch), 0, "{features:?}, {batch} at a time");
        }
    }
}

#[test]
fn what_is_known_to_wait_can_be_taken() {
    let features = Features { indirect: false, event_index: true, packed: false };
    let memory = Memory::new(&[(0, 1 << 16)], 0);
    let mut heap = Heap::new(memory.window(), 0, 1 << 16);
    let mut driver = driver(&mut heap, 16, features);
    let state = State::at_reset(features);
    let mut queue: Queue = Queue::new(&memory.window(), driver.layout(), features, state).unwrap();
    let buffers = [heap.put(b"header")];
    let mut chain = Chain::new();
    for _ in 0..3 {
        driver.add(&buffers).unwrap();
    }
    assert!(!queue.is_offered(), "nobody has looked yet");
    for left in [2, 1, 0] {
        assert_eq!(queue.take(&memory.window(), &mut chain), Ok(true));
        assert_eq!(queue.is_offered(), left > 0, "{left} are left");
    }
    driver.add(&buffers).unwrap();
    assert_eq!((queue.is_offered(), queue.available()), (false, Ok(1)));
}

/// Calls that are held back for longer than there are indices: they are asked for all the same.
#[test]
fn a_call_that_was_due_for_a_whole_round_of_indices() {
    let features = Features { indirect: false, event_index: true, packed: false };
    let memory = Memory::new(&[(0, 1 << 16)], 0);
    let mut heap = Heap::new(memory.window(), 0, 1 << 16);
    let mut driver = driver(&mut heap, 16, features);
    let state = State::at_reset(features);
    let mut queue: Queue = Queue::new(&memory.window(), driver.layout(), features, state).unwrap();
    let buffers = [heap.put(b"header")];
    let mut chain = Chain::new();
    driver.enable_calls();
    for _ in 0..1 << 16 {
        driver.add(&buffers).unwrap();
        assert_eq!(queue.take(&memory.window(), &mut chain), Ok(true));
        queue.complete(chain.head(), 0);
        queue.publish();
        assert!(driver.used().is_some());
    }
    assert!(queue.wants_call(), "the wish for the first one was passed");
    assert!(!queue.wants_call(), "nothing is due any more");
    queue.call_withheld();
    assert!(queue.call_due() && queue.wants_call());
}

/// What is shown and asked about in one go is what two steps give; what isn't asked about stays
/// due.
#[test]
fn to_publish_and_ask_is_to_publish_and_to_ask() {
    for (packed, event_index) in [(false, false), (false, true), (true, false), (true, true)] {
        let features = Features { indirect: false, event_index, packed };
        let answers = [false, true].map(|at_once| {
            let memory = Memory::new(&[(0, 1 << 16)], 0);
            let mut heap = Heap::new(memory.window(), 0, 1 << 16);
            let mut driver = driver(&mut heap, 16, features);
            let (layout, state) = (driver.layout(), State::at_reset(features));
            let mut queue: Queue =
                Queue::new(&memory.window(), layout, features, state).expect("it is right");
            let buffers = [heap.put(b"header")];
            let mut chain = Chain::new();
            let mut said = vec![];
            for step in 0..40 {
                driver.add(&buffers).expect("there is room");
                assert_eq!(queue.take(&memory.window(), &mut chain), Ok(true));
                queue.complete(chain.head(), 0);
                let asks = step % 3 != 0;
                let wants = if at_once {
                    queue.publish_and_ask(asks)
                } else {
                    queue.publish();
                    asks && queue.wants_call()
                };
                said.push((wants, queue.call_due()));
                assert_eq!(queue.call_due(), !asks, "{features:?}, step {step}");
                assert!(driver.used().is_some(), "it is shown, asked about or not");
            }
            said
        });
        assert_eq!(answers[0], answers[1], "{features:?}");
    }
}
