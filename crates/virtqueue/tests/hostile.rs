//! Guests that write anything, anywhere in the rings, between any two steps.
//!
//! What must hold: nothing panics, each call ends, all spans are in the window, a head is in flight
//! once, and the device writes nowhere but where the standard says.
mod driver;

use driver::take_framed;
use proptest::prelude::*;
use std::collections::HashSet;
use virtqueue::{Broken, Chain, Features, Head, Layout, One, Ones, Queue, SEGMENTS, State};
use window::{Memory, Span, Window};

const LEN: u64 = 0x2000;
const DMA: u64 = 1 << 40;

#[derive(Clone, Debug)]
enum Step {
    Write {
        at: u16,
        bytes: Vec<u8>,
    },
    /// A descriptor that is nearly right.
    Describe {
        index: u8,
        address: u16,
        len: u8,
        last: [u16; 2],
    },
    Offer {
        index: u16,
        heads: [u8; 4],
    },
    Take,
    /// The same by [`Ones::take_one`], writable chains or readable ones.
    TakeOne(bool),
    TakeFramed,
    Complete {
        which: usize,
        written: u32,
    },
    Publish,
    Call,
    Suppress,
    Enable,
}

fn take_one(
    queue: &mut Queue,
    writable: bool,
    window: &Window,
    chain: &mut Chain,
    taken: &mut Result<bool, Broken>,
) -> Option<One> {
    if let Queue::Split(split) = queue {
        return match writable {
            true => split.take_one::<true>(window, chain, taken),
            false => split.take_one::<false>(window, chain, taken),
        };
    }
    let Queue::Packed(packed) = queue else { panic!("no other is made here") };
    match writable {
        true => packed.take_one::<true>(window, chain, taken),
        false => packed.take_one::<false>(window, chain, taken),
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flags = || prop_oneof![0u16..8, (0u16..8).prop_map(|flags| flags | 0x80), any::<u16>()];
    let last = prop_oneof![
        (flags(), 0u16..20).prop_map(|(flags, next)| [flags, next]),
        (0u16..20, flags()).prop_map(|(id, flags)| [id, flags]),
    ];
    let step = prop_oneof![
        2 => (0..LEN as u16, prop::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(at, bytes)| Step::Write { at, bytes }),
        4 => (0u8..16, any::<u16>(), any::<u8>(), last)
            .prop_map(|(index, address, len, last)| Step::Describe { index, address, len, last }),
        2 => (0u16..20, any::<[u8; 4]>()).prop_map(|(index, heads)| Step::Offer { index, heads }),
        4 => Just(Step::Take),
        4 => any::<bool>().prop_map(Step::TakeOne),
        4 => Just(Step::TakeFramed),
        4 => (any::<usize>(), any::<u32>())
            .prop_map(|(which, written)| Step::Complete { which, written }),
        2 => Just(Step::Publish),
        2 => Just(Step::Call),
        1 => Just(Step::Suppress),
        1 => Just(Step::Enable),
    ];
    prop::collection::vec(step, 1..150)
}

fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; LEN as usize];
    window.read(0, &mut bytes).unwrap();
    bytes
}

fn spans(chain: &Chain) -> (u16, &[Span], &[Span], u64) {
    (chain.head().index(), chain.readable(), chain.writable(), chain.descriptors())
}

fn check(chain: &Chain, size: u16, flying: &mut HashSet<u16>) {
    assert!(chain.head().index() < size && flying.insert(chain.head().index()));
    assert!(chain.readable().len() + chain.writable().len() <= SEGMENTS);
    let sum = |spans: &[Span]| spans.iter().map(Span::len).sum::<u64>();
    assert_eq!(sum(chain.readable()), chain.readable_len().into());
    assert_eq!(sum(chain.writable()), chain.writable_len().into());
    for span in chain.readable().iter().chain(chain.writable()) {
        assert!(span.dma() >= DMA && span.dma() + span.len() <= DMA + LEN && !span.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_a_guest_writes_harms_the_device(
        [indirect, event_index, packed]: [bool; 3],
        power in 0u32..5,
        steps in steps(),
    ) {
        let features = Features { indirect, event_index, packed };
        let size = 1u16 << power;
        // Two regions, so that buffers go over the border.
        let memory = Memory::new(&[(0, LEN / 2), (LEN / 2, LEN / 2)], DMA);
        let window = memory.window();
        let layout = Layout { size, descriptors: 0x100, driver: 0x400, device: 0x600 };
        let state = State::at_reset(features);
        let mut queue: Queue = Queue::new(&window, layout, features, state).unwrap();
        let mut chain = Chain::new();
        let mut heads: Vec<Head> = Vec::new();
        let mut flying = HashSet::new();
        for step in steps {
            let before = contents(&window);
            match step {
                Step::Write { at, bytes } => {
                    let _ = window.write(at.into(), &bytes);
                    continue;
                }
                Step::Describe { index, address, len, last } => {
                    let at = 0x100 + 16 * u64::from(index);
                    let address = u64::from(address) % (LEN + 0x100);
                    let bytes = [
                        address.to_le_bytes(),
                        (u64::from(len) | u64::from(last[0]) << 32 | u64::from(last[1]) << 48)
                            .to_le_bytes(),
                    ];
                    window.write(at, bytes.as_flattened()).unwrap();
                    continue;
                }
                Step::Offer { index, heads } => {
                    for (place, head) in heads.iter().enumerate() {
                        let at = 0x404 + 2 * place as u64;
                        window.write(at, &[head % 20, 0]).unwrap();
                    }
                    window.write(0x402, &index.to_le_bytes()).unwrap();
                    continue;
                }
                Step::Take | Step::TakeFramed => {
                    // It is stopped in earnest when it is broken; here it goes on.
                    let taken = match step {
                        Step::Take => queue.take(&window, &mut chain),
                        _ => take_framed(&mut queue, &window, &mut chain),
                    };
                    if taken == Ok(true) {
                        check(&chain, size, &mut flying);
                        heads.push(chain.head());
                        prop_assert!(heads.len() <= size.into());
                    }
                }
                Step::TakeOne(writable) => {
                    // What it has seen to be offered another one doesn't know.
                    if queue.is_offered() {
                        continue;
                    }
                    // Another queue that is where this one is takes what it should.
                    let mut other: Queue =
                        Queue::new(&window, layout, features, queue.state()).unwrap();
                    let mut expected = Chain::new();
                    let whole = other.take(&window, &mut expected);
                    let mut taken = Ok(false);
                    let one = take_one(&mut queue, writable, &window, &mut chain, &mut taken);
                    if let Some(one) = one {
                        prop_assert_eq!(Ok(true), whole);
                        if expected.head().index().is_multiple_of(2) {
                            if let Queue::Split(split) = &mut queue {
                                split.used_one(one, 7);
                            } else if let Queue::Packed(packed) = &mut queue {
                                packed.used_one(one, 7);
                            }
                            prop_assert_eq!(1, expected.descriptors());
                            other.complete(expected.head(), 7);
                            prop_assert_eq!(other.state(), queue.state());
                            queue.publish();
                            continue;
                        }
                        if let Queue::Split(split) = &mut queue {
                            split.hold_one(one, writable, &mut chain);
                        } else if let Queue::Packed(packed) = &mut queue {
                            packed.hold_one(one, writable, &mut chain);
                        }
                        taken = Ok(true);
                    }
                    prop_assert_eq!(&whole, &taken);
                    if taken == Ok(true) {
                        prop_assert_eq!(format!("{:?}", spans(&expected)), format!("{:?}", spans(&chain)));
                        check(&chain, size, &mut flying);
                        heads.push(chain.head());
                    }
                    prop_assert_eq!(other.state(), queue.state());
                }
                Step::Complete { which, written } if !heads.is_empty() => {
                    let head = heads.swap_remove(which % heads.len());
                    flying.remove(&head.index());
                    queue.complete(head, written);
                }
                Step::Complete { .. } => {}
                Step::Publish => queue.publish(),
                Step::Call => {
                    let due = queue.call_due();
                    prop_assert!(due || !queue.wants_call());
                }
                Step::Suppress => queue.suppress_kicks(),
                Step::Enable => {
                    prop_assert!(queue.enable_kicks().is_ok_and(|n| n <= size) || !packed);
                }
            }
            // The packed ring is of both sides; else the device writes its own area alone.
            let after = contents(&window);
            let elements = usize::from(size);
            let ring = 0x100..if packed { 0x100 + 16 * elements } else { 0x100 };
            let own = 0x600..if packed { 0x604 } else { 0x600 + 6 + 8 * elements };
            for (at, (before, after)) in before.iter().zip(&after).enumerate() {
                prop_assert!(before == after || ring.contains(&at) || own.contains(&at));
            }
        }
        prop_assert_eq!(queue.state().in_flight.iter().filter(|n| **n != 0).count(), heads.len());
    }
}
