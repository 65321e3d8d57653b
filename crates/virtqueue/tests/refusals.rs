//! What a hostile driver, or a wrong one, is refused: each with a queue of its own.
use virtqueue::{
    Area, Broken, Chain, Features, Layout, LayoutError, Position, Queue, SEGMENTS, State,
};
use window::{Memory, Window};

const TABLE: u64 = 0x1000;
const DRIVER: u64 = 0x2000;
const DEVICE: u64 = 0x3000;
const BUFFER: u64 = 0x8000;
const END: u64 = 0x1_0000;
const SIZE: u16 = 8;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

const SPLIT: Features = Features { indirect: true, event_index: true, packed: false };
const PACKED: Features = Features { packed: true, ..SPLIT };
const LAYOUT: Layout = Layout { size: SIZE, descriptors: TABLE, driver: DRIVER, device: DEVICE };

/// Two regions that adjoin, and a hole behind.
fn memory() -> Memory {
    Memory::new(&[(0, 0x9000), (0x9000, END - 0x9000)], 0)
}

fn queue(memory: &Memory, features: Features) -> Queue {
    Queue::new(&memory.window(), LAYOUT, features, State::at_reset(features)).unwrap()
}

/// A descriptor of either kind: `last` is flags and next, or ID and flags.
fn put(window: &Window, at: u64, address: u64, len: u32, last: [u16; 2]) {
    window.write(at, &address.to_le_bytes()).unwrap();
    window.write(at + 8, &len.to_le_bytes()).unwrap();
    window.write(at + 12, &last[0].to_le_bytes()).unwrap();
    window.write(at + 14, &last[1].to_le_bytes()).unwrap();
}

/// Descriptor `index` of the split ring's table.
fn split(memory: &Memory, index: u16, address: u64, len: u32, flags: u16, next: u16) {
    put(&memory.window(), TABLE + 16 * u64::from(index), address, len, [flags, next]);
}

/// Descriptor `index` of the packed ring, available in the first round.
fn packed(memory: &Memory, index: u16, address: u64, len: u32, flags: u16, id: u16) {
    put(&memory.window(), TABLE + 16 * u64::from(index), address, len, [id, flags | 1 << 7]);
}

fn offer(memory: &Memory, place: u16, head: u16) {
    let window = memory.window();
    window.write(DRIVER + 4 + 2 * u64::from(place % SIZE), &head.to_le_bytes()).unwrap();
    window.write(DRIVER + 2, &(place + 1).to_le_bytes()).unwrap();
}

fn take(memory: &Memory, queue: &mut Queue) -> Result<bool, Broken> {
    queue.take(&memory.window(), &mut Chain::new())
}

/// Takes the chain whose head is descriptor 0.
fn first(memory: &Memory, features: Features) -> Result<bool, Broken> {
    offer(memory, 0, 0);
    take(memory, &mut queue(memory, features))
}

#[test]
fn sizes() {
    let memory = memory();
    let make = |features: Features, size| {
        let layout = Layout { size, ..LAYOUT };
        let queue: Result<Queue, _> =
            Queue::new(&memory.window(), layout, features, State::at_reset(features));
        queue.map(|queue| queue.size())
    };
    for size in [0, 3, 6, 255, 512, 32768, 65535] {
        assert_eq!(make(SPLIT, size), Err(LayoutError::Size(size)));
    }
    for size in [1, 2, 256] {
        assert_eq!(make(SPLIT, size), Ok(size));
    }
    for size in [0, 257, 32769] {
        assert_eq!(make(PACKED, size), Err(LayoutError::Size(size)));
    }
    for size in [1, 3, 255] {
        assert_eq!(make(PACKED, size), Ok(size));
    }
}

#[test]
fn areas_are_aligned_and_in_memory() {
    let memory = memory();
    let make = |features: Features, layout| {
        let state = State::at_reset(features);
        let queue: Result<Queue, _> = Queue::new(&memory.window(), layout, features, state);
        queue.err()
    };
    for features in [SPLIT, PACKED] {
        let unaligned = [
            (Layout { descriptors: TABLE + 8, ..LAYOUT }, Area::Descriptors, TABLE + 8),
            (Layout { driver: DRIVER + 1, ..LAYOUT }, Area::Driver, DRIVER + 1),
            (Layout { device: DEVICE + 2, ..LAYOUT }, Area::Device, DEVICE + 2),
        ];
        for (layout, area, address) in unaligned {
            assert_eq!(make(features, layout), Some(LayoutError::Unaligned { area, address }));
        }
        // Beyond the end, over the border of regions, and over the end of all addresses.
        for address in [END - 16, 0x9000 - 16, u64::MAX - 15, END] {
            let layout = Layout { descriptors: address, ..LAYOUT };
            let area = Area::Descriptors;
            assert_eq!(make(features, layout), Some(LayoutError::Outside { area, address }));
        }
    }
    // The event indices are part of the rings, if there are any.
    let ends = Layout { driver: END - (4 + 2 * 8), device: END - (4 + 8 * 8), ..LAYOUT };
    assert_eq!(make(Features { event_index: false, ..SPLIT }, ends), None);
    let area = Area::Driver;
    let address = ends.driver;
    assert_eq!(make(SPLIT, ends), Some(LayoutError::Outside { area, address }));
    let device = Layout { driver: DRIVER, ..ends };
    let (area, address) = (Area::Device, ends.device);
    assert_eq!(make(SPLIT, device), Some(LayoutError::Outside { area, address }));
}

#[test]
fn states_that_no_queue_can_be_in() {
    let memory = memory();
    let make = |features, available, used, wrap: [bool; 2], flying: &[(usize, u16)]| {
        let mut state: State = State::at_reset(features);
        state.available = Position { index: available, wrap: wrap[0] };
        state.used = Position { index: used, wrap: wrap[1] };
        flying.iter().for_each(|(head, count)| state.in_flight[*head] = *count);
        Queue::new(&memory.window(), LAYOUT, features, state).is_ok()
    };
    let same = [true; 2];
    assert!(make(SPLIT, 1, 0, same, &[(7, 1)]));
    assert!(make(SPLIT, 0, 65535, same, &[(7, 1)]));
    assert!(!make(SPLIT, 1, 0, same, &[]));
    assert!(!make(SPLIT, 0, 0, same, &[(7, 1)]));
    assert!(!make(SPLIT, 1, 0, same, &[(8, 1)]), "there is no head 8");
    assert!(!make(SPLIT, 1, 0, same, &[(7, 2)]));
    assert!(!make(SPLIT, 0, 1, same, &[]));
    assert!(make(PACKED, 3, 0, same, &[(7, 3)]));
    assert!(make(PACKED, 1, 6, [false, true], &[(7, 2), (0, 1)]));
    assert!(make(PACKED, 0, 0, [false, true], &[(7, 8)]));
    assert!(!make(PACKED, 1, 0, [false, true], &[(7, 9)]));
    assert!(!make(PACKED, 0, 1, same, &[]));
    assert!(!make(PACKED, 8, 8, same, &[]));
    assert!(!make(PACKED, 1, 0, same, &[(8, 1)]));
}

#[test]
fn more_chains_than_the_ring_holds() {
    let memory = memory();
    let queue = queue(&memory, SPLIT);
    memory.window().write(DRIVER + 2, &8u16.to_le_bytes()).unwrap();
    assert_eq!(queue.available(), Ok(8));
    for index in [9u16, 0x8000, 0xFFFF] {
        memory.window().write(DRIVER + 2, &index.to_le_bytes()).unwrap();
        assert_eq!(queue.available(), Err(Broken::Jumped));
    }
}

#[test]
fn heads_and_next_descriptors_that_dont_exist() {
    let memory = memory();
    for head in [8, 256, 65535] {
        offer(&memory, 0, head);
        assert_eq!(take(&memory, &mut queue(&memory, SPLIT)), Err(Broken::Index(head)));
    }
    split(&memory, 0, BUFFER, 1, NEXT, 8);
    assert_eq!(first(&memory, SPLIT), Err(Broken::Index(8)));
    for id in [8, 256, 65535] {
        packed(&memory, 0, BUFFER, 1, 0, id);
        assert_eq!(take(&memory, &mut queue(&memory, PACKED)), Err(Broken::Index(id)));
    }
}

#[test]
fn what_is_in_flight_isnt_offered_again() {
    let memory = memory();
    let mut queue = queue(&memory, SPLIT);
    split(&memory, 3, BUFFER, 1, 0, 0);
    offer(&memory, 0, 3);
    assert_eq!(take(&memory, &mut queue), Ok(true));
    offer(&memory, 1, 3);
    assert_eq!(take(&memory, &mut queue), Err(Broken::InFlight(3)));

    let memory = self::memory();
    let mut queue = self::queue(&memory, PACKED);
    packed(&memory, 0, BUFFER, 1, 0, 5);
    packed(&memory, 1, BUFFER, 1, 0, 5);
    assert_eq!(take(&memory, &mut queue), Ok(true));
    assert_eq!(take(&memory, &mut queue), Err(Broken::InFlight(5)));
}

#[test]
fn chains_that_loop_or_are_too_long() {
    let memory = memory();
    split(&memory, 0, BUFFER, 1, NEXT, 0);
    assert_eq!(first(&memory, SPLIT), Err(Broken::TooLong));
    // Of no bytes, so that no sum grows.
    split(&memory, 0, BUFFER, 0, NEXT, 1);
    split(&memory, 1, BUFFER, 0, NEXT, 0);
    assert_eq!(first(&memory, SPLIT), Err(Broken::TooLong));
    // In an indirect table.
    put(&memory.window(), BUFFER, BUFFER, 0, [NEXT, 0]);
    split(&memory, 0, BUFFER, 16, INDIRECT, 0);
    assert_eq!(first(&memory, SPLIT), Err(Broken::TooLong));
    // Round and round the packed ring.
    let memory = self::memory();
    (0..SIZE).for_each(|index| packed(&memory, index, BUFFER, 0, NEXT, 0));
    assert_eq!(take(&memory, &mut queue(&memory, PACKED)), Err(Broken::Overrun));
    // More than is free in the packed ring.
    packed(&memory, 0, BUFFER, 0, 0, 0);
    let mut queue = self::queue(&memory, PACKED);
    assert_eq!(take(&memory, &mut queue), Ok(true));
    assert_eq!(take(&memory, &mut queue), Err(Broken::Overrun));
}

#[test]
fn an_indirect_table_has_as_many_descriptors_as_a_chain() {
    let memory = memory();
    let window = memory.window();
    for (count, expected) in [(SEGMENTS, Ok(true)), (SEGMENTS + 1, Err(Broken::TooLong))] {
        for index in 0..count {
            let next = if index + 1 < count { NEXT } else { 0 };
            let at = BUFFER + 16 * index as u64;
            put(&window, at, BUFFER, 1, [next, index as u16 + 1]);
        }
        split(&memory, 0, BUFFER, 16 * count as u32, INDIRECT, 0);
        assert_eq!(first(&memory, SPLIT), expected);
        // NEXT means nothing in the other one's table.
        (0..count as u64).for_each(|index| put(&window, BUFFER + 16 * index, BUFFER, 1, [9, NEXT]));
        packed(&memory, 0, BUFFER, 16 * count as u32, INDIRECT, 0);
        assert_eq!(take(&memory, &mut queue(&memory, PACKED)), expected);
    }
}

#[test]
fn indirect_tables() {
    let memory = memory();
    let window = memory.window();
    put(&window, BUFFER, BUFFER, 1, [0, 0]);
    let refused = |len, flags| {
        split(&memory, 0, BUFFER, len, INDIRECT | flags, 0);
        let of_split = first(&memory, SPLIT);
        packed(&memory, 0, BUFFER, len, INDIRECT | flags, 0);
        assert_eq!(take(&memory, &mut queue(&memory, PACKED)), of_split);
        of_split
    };
    assert_eq!(refused(16, 0), Ok(true));
    // The device ignores WRITE here.
    assert_eq!(refused(16, WRITE), Ok(true));
    for len in [0, 8, 17, u32::MAX] {
        assert_eq!(refused(len, 0), Err(Broken::TableLength(len)));
    }
    assert_eq!(refused(16, NEXT), Err(Broken::Indirect));
    let without = Features { indirect: false, ..SPLIT };
    split(&memory, 0, BUFFER, 16, INDIRECT, 0);
    assert_eq!(first(&memory, without), Err(Broken::Indirect));
    packed(&memory, 0, BUFFER, 16, INDIRECT, 0);
    let without = Features { indirect: false, ..PACKED };
    assert_eq!(take(&memory, &mut queue(&memory, without)), Err(Broken::Indirect));
    // One in another; of a packed ring the flag means nothing there.
    put(&window, BUFFER, BUFFER, 16, [INDIRECT, 0]);
    split(&memory, 0, BUFFER, 16, INDIRECT, 0);
    assert_eq!(first(&memory, SPLIT), Err(Broken::Indirect));
    put(&window, BUFFER, BUFFER, 16, [0, INDIRECT | NEXT]);
    packed(&memory, 0, BUFFER, 16, INDIRECT, 0);
    assert_eq!(take(&memory, &mut queue(&memory, PACKED)), Ok(true));
    // A next descriptor that the table hasn't.
    put(&window, BUFFER, BUFFER, 1, [NEXT, 1]);
    split(&memory, 0, BUFFER, 16, INDIRECT, 0);
    assert_eq!(first(&memory, SPLIT), Err(Broken::Index(1)));
    // Descriptors before it: right for a split ring, wrong for a packed one (2.7.5.3.2, 2.8.17).
    put(&window, BUFFER, BUFFER, 1, [0, 0]);
    split(&memory, 0, BUFFER, 1, NEXT, 1);
    split(&memory, 1, BUFFER, 16, INDIRECT, 0);
    assert_eq!(first(&memory, SPLIT), Ok(true));
    packed(&memory, 0, BUFFER, 1, NEXT, 0);
    packed(&memory, 1, BUFFER, 16, INDIRECT, 0);
    assert_eq!(take(&memory, &mut queue(&memory, PACKED)), Err(Broken::Indirect));
}

#[test]
fn readable_behind_writable() {
    let memory = memory();
    for len in [0, 1] {
        split(&memory, 0, BUFFER, len, NEXT | WRITE, 1);
        split(&memory, 1, BUFFER, len, 0, 0);
        assert_eq!(first(&memory, SPLIT), Err(Broken::Order));
        packed(&memory, 0, BUFFER, len, NEXT | WRITE, 0);
        packed(&memory, 1, BUFFER, len, 0, 0);
        assert_eq!(take(&memory, &mut queue(&memory, PACKED)), Err(Broken::Order));
    }
}

#[test]
fn buffers_are_in_memory_and_less_than_four_gigabytes() {
    let memory = memory();
    for (address, len) in
        [(END, 1), (END - 1, 2), (u64::MAX, 1), (u64::MAX, u32::MAX), (0, u32::MAX), (1 << 40, 1)]
    {
        split(&memory, 0, address, len, 0, 0);
        assert_eq!(first(&memory, SPLIT), Err(Broken::Outside { address, len }));
        split(&memory, 0, address, 16, INDIRECT, 0);
        let outside = Broken::Outside { address, len: 16 };
        if len == 1 {
            assert_eq!(first(&memory, SPLIT), Err(outside));
        }
    }
    split(&memory, 0, BUFFER, 1, NEXT, 1);
    split(&memory, 1, BUFFER, u32::MAX, 0, 0);
    assert_eq!(first(&memory, SPLIT), Err(Broken::TooMuch));
}

#[test]
fn a_buffer_over_the_border_of_regions_is_two_spans() {
    let memory = memory();
    split(&memory, 0, 0x8FFF, 3, WRITE, 0);
    offer(&memory, 0, 0);
    let mut chain = Chain::new();
    assert_eq!(queue(&memory, SPLIT).take(&memory.window(), &mut chain), Ok(true));
    let lengths: Vec<u64> = chain.writable().iter().map(|span| span.len()).collect();
    assert_eq!((lengths, chain.writable_len()), (vec![1, 2], 3));
    chain.write(0, &[1, 2, 3]).unwrap();
    let mut bytes = [0; 3];
    memory.window().read(0x8FFF, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3]);
    assert!(chain.write(1, &[1, 2, 3]).is_err() && chain.read(0, &mut bytes).is_err());
    assert!(chain.write(3, &[]).is_ok() && chain.write(4, &[]).is_err());
}

#[test]
fn reads_and_writes_go_over_the_borders_of_buffers() {
    let memory = memory();
    let window = memory.window();
    window.write(0x8FFE, &[1, 2, 3, 4]).unwrap();
    window.write(BUFFER, &[5, 6]).unwrap();
    split(&memory, 0, 0x8FFE, 4, NEXT, 1);
    split(&memory, 1, BUFFER, 2, NEXT, 2);
    split(&memory, 2, 0x5000, 2, NEXT | WRITE, 3);
    split(&memory, 3, 0x6000, 2, WRITE, 0);
    offer(&memory, 0, 0);
    let mut chain = Chain::new();
    assert_eq!(queue(&memory, SPLIT).take(&window, &mut chain), Ok(true));
    assert_eq!((chain.readable().len(), chain.readable_len()), (3, 6));
    assert_eq!((chain.writable().len(), chain.writable_len()), (2, 4));
    for (at, len) in [(0, 6), (1, 4), (1, 5), (3, 1), (4, 2), (5, 1), (6, 0)] {
        let mut bytes = vec![0; len];
        chain.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6][at as usize..][..len]);
        assert!(chain.read(at, &mut vec![0; 7 - at as usize]).is_err());
    }
    chain.write(1, &[7, 8, 9]).unwrap();
    let mut bytes = [[0; 2]; 2];
    window.read(0x5000, &mut bytes[0]).unwrap();
    window.read(0x6000, &mut bytes[1]).unwrap();
    assert_eq!(bytes, [[0, 7], [8, 9]]);
}

#[test]
fn a_buffer_without_bytes_has_no_span_and_any_address() {
    let memory = memory();
    split(&memory, 0, u64::MAX, 0, NEXT, 1);
    split(&memory, 1, BUFFER, 2, NEXT, 2);
    split(&memory, 2, u64::MAX, 0, WRITE, 0);
    offer(&memory, 0, 0);
    let mut chain = Chain::new();
    assert_eq!(queue(&memory, SPLIT).take(&memory.window(), &mut chain), Ok(true));
    assert_eq!((chain.readable().len(), chain.writable().len()), (1, 0));
}

#[test]
fn the_largest_queues() {
    let memory = Memory::new(&[(0, 1 << 20)], 0);
    let layout = Layout { size: 32768, descriptors: 0, driver: 0x8_0000, device: 0xA_0000 };
    for features in [SPLIT, PACKED] {
        let state: State<32768> = State::at_reset(features);
        let mut queue = Queue::new(&memory.window(), layout, features, state).unwrap();
        memory.window().write(0x8_0002, &32768u16.to_le_bytes()).unwrap();
        memory.window().write(14, &0x80u16.to_le_bytes()).unwrap();
        assert_eq!(queue.available(), Ok(if features.packed { 1 } else { 32768 }));
        let mut chain = Chain::new();
        assert_eq!(queue.take(&memory.window(), &mut chain), Ok(true));
        queue.complete(chain.head(), 0);
        queue.publish();
        assert!(queue.wants_call());
    }
}
