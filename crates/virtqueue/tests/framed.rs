//! Chains of three buffers: taken by straight code, they are what the walk takes.
mod driver;

use driver::{Buffer, Heap, driver, take_framed};
use proptest::prelude::*;
use virtqueue::{Broken, Chain, Features, Layout, Queue, SplitQueue, State};
use window::{Memory, Span, Window};

const LEN: u64 = 0x4000;
const TABLE: u64 = 0x800;
const LAYOUT: Layout = Layout { size: 8, descriptors: 0x100, driver: 0x400, device: 0x600 };

fn queue(window: &Window, indirect: bool) -> Queue {
    let features = Features { indirect, event_index: false, packed: false };
    Queue::new(window, LAYOUT, features, State::at_reset(features)).unwrap()
}

fn describe(window: &Window, at: u64, address: u64, len: u32, flags: u16, next: u16) {
    let word = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
    let bytes = [address.to_le_bytes(), word.to_le_bytes()];
    window.write(at, bytes.as_flattened()).unwrap();
}

fn offer(window: &Window, head: u16) {
    window.write(0x404, &head.to_le_bytes()).unwrap();
    window.write(0x402, &1u16.to_le_bytes()).unwrap();
}

/// All that a chain says.
fn told(chain: &Chain) -> impl PartialEq + std::fmt::Debug + use<> {
    let spans = |spans: &[Span]| -> Vec<Span> { spans.to_vec() };
    let lens = (chain.readable_len(), chain.writable_len(), chain.descriptors());
    (chain.head(), spans(chain.readable()), spans(chain.writable()), lens)
}

/// Descriptors of three buffers, any of whose words may be another one.
type Described = [(u64, u32, u16, u16); 3];

fn described() -> impl Strategy<Value = Described> {
    let address = prop_oneof![
        8 => 0x1000_u64..0x3000,
        1 => LEN / 2 - 20..LEN / 2 + 20,
        1 => LEN - 20..LEN + 20,
        1 => any::<u64>(),
    ];
    let of = move |len: u32, flags: u16, next: u16| {
        let len = prop_oneof![
            12 => Just(len),
            1 => prop::sample::select(vec![0_u32, 1, 2, 16, 48, 4096, u32::MAX - 17, u32::MAX]),
            1 => any::<u32>(),
        ];
        let flags = prop_oneof![12 => Just(flags), 1 => 0_u16..8, 1 => any::<u16>()];
        // Behind the ring's end is what counts round to the place.
        let next =
            prop_oneof![12 => Just(next), 1 => Just(next + 8), 1 => 0_u16..9, 1 => any::<u16>()];
        (address.clone(), len, flags, next)
    };
    (of(16, 1, 1), prop_oneof![of(512, 3, 2), of(512, 1, 2)], of(1, 2, 0))
        .prop_map(|(first, second, third)| [first, second, third])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// In the ring's table or in its own, wherever it lies, whatever is wrong with it.
    #[test]
    fn it_is_the_chain_that_the_walk_takes(
        all in described(),
        indirect in any::<bool>(),
        in_table in any::<bool>(),
        whole in any::<bool>(),
        table in prop_oneof![
            8 => Just((TABLE, 48_u32)),
            2 => (Just(TABLE), prop::sample::select(vec![0, 16, 32, 47, 64])),
            1 => (TABLE..TABLE + 32, prop::sample::select(vec![0, 16, 32, 47, 48, 64, 160])),
            1 => (any::<u64>(), any::<u32>()),
        ],
        head in (prop_oneof![12 => Just(4_u16), 1 => any::<u16>()],
            prop_oneof![12 => Just(4_u16), 1 => any::<u16>()], any::<u16>()),
    ) {
        let halves = [(0, LEN / 2), (LEN / 2, LEN / 2)];
        let memory = Memory::new(if whole { &[(0, LEN)] } else { &halves }, 1 << 40);
        let window = memory.window();
        let at = if in_table { table.0 } else { LAYOUT.descriptors };
        for (index, (address, len, flags, next)) in all.into_iter().enumerate() {
            let at = at.wrapping_add(16 * index as u64);
            if at < LEN - 16 {
                describe(&window, at, address, len, flags, next);
            }
        }
        let (head, flags, next) = head;
        if in_table {
            let at = LAYOUT.descriptors + 16 * u64::from(head % 16);
            describe(&window, at, table.0, table.1, flags, next);
        }
        offer(&window, if in_table { head } else { 0 });
        let (mut walked, mut straight) = (Chain::new(), Chain::new());
        let mut other = queue(&window, indirect);
        let wanted = queue(&window, indirect).take(&window, &mut walked);
        let taken = take_framed(&mut other, &window, &mut straight);
        prop_assert_eq!(wanted, taken);
        if taken == Ok(true) {
            prop_assert_eq!(told(&walked), told(&straight));
            prop_assert_eq!(1, other.state().in_flight.iter().filter(|count| **count != 0).count());
            prop_assert_eq!(Ok(0), other.available());
        }
    }
}

/// Buffers that may lie in memory, one over the other, and are together more than 32 bits can say.
#[test]
fn no_chain_has_four_gigabytes() {
    const HEADER: u32 = 16;
    let memory = Memory::new(&[(0, 1 << 32)], 0);
    let window = memory.window();
    for in_table in [false, true] {
        let at = if in_table { TABLE } else { LAYOUT.descriptors };
        if in_table {
            describe(&window, LAYOUT.descriptors, TABLE, 48, 4, 0);
        }
        for (len, fits) in [(u32::MAX - HEADER - 1, true), (u32::MAX - HEADER, false)] {
            describe(&window, at, 0x1000, HEADER, 1, 1);
            describe(&window, at + 16, 0, len, 3, 2);
            describe(&window, at + 32, 0x3000, 1, 2, 0);
            offer(&window, 0);
            let wanted = if fits { Ok(true) } else { Err(Broken::TooMuch) };
            let (mut walked, mut straight) = (Chain::new(), Chain::new());
            assert_eq!(wanted, queue(&window, in_table).take(&window, &mut walked));
            let mut other = queue(&window, in_table);
            assert_eq!(wanted, take_framed(&mut other, &window, &mut straight));
            if fits {
                assert_eq!(told(&walked), told(&straight));
                assert_eq!(u32::MAX, straight.readable_len() + straight.writable_len());
            }
        }
    }
}

fn taken_straight(queue: &mut SplitQueue<256>, window: &Window) -> Option<bool> {
    let mut untaken = None;
    let taken = match queue.has_tables() {
        true => queue.take_framed::<16, 1, true>(window, &mut untaken),
        false => queue.take_framed::<16, 1, false>(window, &mut untaken),
    };
    taken.map(|framed| {
        queue.hold_framed(&framed);
        framed.writable
    })
}

/// What a driver that keeps to the standard lays out so is taken so.
#[test]
fn reads_and_writes_of_one_buffer_are_taken_straight() {
    for indirect in [false, true] {
        let memory = Memory::new(&[(0, 1 << 16)], 0);
        let window = memory.window();
        let mut heap = Heap::new(window, 0, 1 << 16);
        let features = Features { indirect, event_index: true, packed: false };
        let mut driver = driver(&mut heap, 16, features);
        let queue = Queue::new(&window, driver.layout(), features, State::at_reset(features));
        let Ok(Queue::Split(mut queue)) = queue else { panic!("it is a split one") };
        let (header, status) = (heap.put(&[0; 16]), heap.room(1));
        for data in [heap.room(4096), Buffer { writable: false, ..heap.room(512) }] {
            let buffers = [header, data, status];
            let added = match indirect {
                true => driver.add_indirect(heap.take(48, 16), &buffers),
                false => driver.add(&buffers),
            };
            assert!(added.is_some());
            assert_eq!(Some(data.writable), taken_straight(&mut queue, &window), "{indirect}");
        }
        let mut untaken = None;
        assert_eq!(queue.take_framed::<16, 1, true>(&window, &mut untaken), None);
        assert!(untaken.is_none());
    }
}

/// The guest changes what was read, and found to be otherwise, before it is walked.
#[test]
fn what_was_read_counts_whatever_the_guest_writes_then() {
    for (in_table, len, wanted) in [
        (false, 2, Ok(true)),
        (true, 2, Ok(true)),
        (false, u32::MAX, Err(Broken::TooMuch)),
        (true, u32::MAX, Err(Broken::TooMuch)),
    ] {
        let memory = Memory::new(&[(0, LEN)], 0);
        let window = memory.window();
        let at = if in_table { TABLE } else { LAYOUT.descriptors };
        describe(&window, at, 0x1000, 16, 1, 1);
        describe(&window, at + 16, 0x2000, 512, 3, 2);
        describe(&window, at + 32, 0x3000, len, 2, 0);
        if in_table {
            describe(&window, LAYOUT.descriptors, TABLE, 48, 4, 0);
        }
        offer(&window, 0);
        let mut walked = Chain::new();
        let by_walk = queue(&window, in_table).take(&window, &mut walked);
        let mut other = queue(&window, in_table);
        let Queue::Split(split) = &mut other else { panic!("it is a split one") };
        let mut untaken = None;
        let taken = match in_table {
            true => split.take_framed::<16, 1, true>(&window, &mut untaken),
            false => split.take_framed::<16, 1, false>(&window, &mut untaken),
        };
        assert_eq!(taken, None);
        let Some(seen) = untaken else { panic!("it isn't of that kind") };
        for index in 0..3 {
            describe(&window, TABLE + 16 * index, 0x1800, 7, 0, 0);
            describe(&window, LAYOUT.descriptors + 16 * index, 0x1800, 7, 0, 0);
        }
        let mut chain = Chain::new();
        let taken = other.take_other(&seen, &window, &mut chain);
        if wanted.is_ok() {
            assert_eq!((wanted, wanted), (by_walk, taken));
            assert_eq!(told(&walked), told(&chain));
        } else {
            assert!(taken.is_err() && taken == by_walk, "{taken:?}");
        }
    }
}
