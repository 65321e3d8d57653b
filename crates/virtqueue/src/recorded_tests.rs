//! A packed ring with records against a driver: a program that ends at any store of any step, that
//! of going on among them, and one that goes on. Chains are answered once, whichever way they are
//! completed and in whatever order, and are read again as they were offered.
#[path = "../tests/driver/mod.rs"]
mod driver;

use crate::{
    BadRecords, Broken, Chain, Features, Head, NotRecorded, PackedRecords, Position, Queue, State,
    fuel,
};
use driver::{Buffer, Driver as _, Heap, PackedDriver};
use proptest::prelude::*;
use window::{Memory, Span, Window};

const MOST: u16 = 12;
const FEATURES: Features = Features { indirect: true, event_index: true, packed: true };
/// Where the records are, the tables, and the buffers, which nobody touches.
const RECORDS: u64 = 0x1000;
const TABLES: u64 = 0x2000;
const BUFFERS: u64 = 0x4000;
const MEMORY: u64 = 0x8000;

type Small = Queue<{ MOST as usize }>;

#[derive(Clone, Debug)]
enum Step {
    /// The driver offers a chain of so many buffers, if there is room.
    Offer {
        buffers: u16,
        indirect: bool,
    },
    Take,
    /// The back end ends one of those that it has, by this number.
    End(usize),
    Publish,
    /// The driver looks.
    Use,
    /// The program ends after so many stores from here on.
    Die(u32),
}

struct World {
    window: Window,
    driver: PackedDriver,
    start: Position,
    /// By buffer IDs: what the driver waits for.
    waits: Vec<Option<Vec<u64>>>,
    offers: u64,
    answers: u64,
    program: Option<Program>,
}

/// What is lost when it ends.
struct Program {
    queue: Small,
    chain: Chain,
    taken: Vec<Head>,
}

fn records(window: &Window) -> Span {
    let bytes = PackedRecords::<{ MOST as usize }>::bytes(MOST);
    window.span(RECORDS, bytes).expect("in memory")
}

fn addresses(chain: &Chain) -> Vec<u64> {
    chain.readable().iter().chain(chain.writable()).map(Span::dma).collect()
}

impl World {
    fn open(&self) -> Result<Small, NotRecorded> {
        // Wherever it went on before, the front end says this.
        let state = State { available: self.start, used: self.start, in_flight: [0; _] };
        let layout = self.driver.layout();
        Queue::recorded(&self.window, layout, FEATURES, state, records(&self.window))
    }

    /// The program goes on. It may end meanwhile.
    fn go_on(&mut self) {
        let queue = self.open().expect("they are ours");
        if fuel::is_out() {
            fuel::set(u32::MAX);
            return;
        }
        let mut program = Program { queue, chain: Chain::new(), taken: Vec::new() };
        while let Some(head) = program.queue.next_left() {
            let again = program.queue.take_again(&self.window, head, &mut program.chain);
            again.expect("it is as it was");
            let waits = self.waits[usize::from(head.index())].as_ref();
            assert_eq!(waits, Some(&addresses(&program.chain)), "{head:?} is none that waits");
            program.taken.push(head);
        }
        self.program = Some(program);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Offer { buffers, indirect } => self.offer(buffers, indirect),
            Step::Use => self.hear(),
            Step::Die(stores) => fuel::set(stores),
            _ if self.program.is_none() => self.go_on(),
            _ => self.work(step),
        }
        if self.program.is_some() && fuel::is_out() {
            self.program = None;
            fuel::set(u32::MAX);
        }
    }

    fn work(&mut self, step: &Step) {
        let Some(Program { queue, chain, taken }) = &mut self.program else { return };
        match *step {
            Step::Take if queue.take(&self.window, chain).expect("it isn't broken") => {
                let head = chain.head();
                let waits = self.waits[usize::from(head.index())].as_ref();
                assert_eq!(waits, Some(&addresses(chain)), "{head:?} is none that waits");
                assert!(!taken.contains(&head), "{head:?} is taken twice");
                taken.push(head);
            }
            Step::End(which) if !taken.is_empty() => {
                let head = taken.swap_remove(which % taken.len());
                queue.complete(head, u32::from(head.index()));
            }
            Step::Publish => queue.publish(),
            _ => {}
        }
    }

    fn offer(&mut self, count: u16, indirect: bool) {
        let at = |place: u16| BUFFERS + 64 * (self.offers % 16) + 2 * u64::from(place);
        let buffer = |place| Buffer { address: at(place), len: 1, writable: 2 * place > count };
        let buffers: Vec<_> = (0..count).map(buffer).collect();
        let offered = match indirect {
            true => self.driver.add_indirect(TABLES + 0x100 * (self.offers % 16), &buffers),
            false => self.driver.add(&buffers),
        };
        if let Some(id) = offered {
            let buffers = buffers.iter().map(|buffer| buffer.address).collect();
            self.waits[usize::from(id)] = Some(buffers);
            self.offers += 1;
        }
    }

    fn hear(&mut self) {
        while let Some((id, written)) = self.driver.used() {
            assert_eq!(written, u32::from(id));
            let waited = self.waits[usize::from(id)].take();
            assert!(waited.is_some(), "{id} is answered twice");
            self.answers += 1;
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offer = (1..5_u16, any::<bool>());
    let step = prop_oneof![
        6 => offer.prop_map(|(buffers, indirect)| Step::Offer { buffers, indirect }),
        6 => Just(Step::Take),
        6 => any::<usize>().prop_map(Step::End),
        3 => Just(Step::Publish),
        3 => Just(Step::Use),
        3 => (0..40_u32).prop_map(Step::Die),
    ];
    prop::collection::vec(step, 1..150)
}

fn world(memory: &Memory, size: u16, start: Position) -> World {
    let window = memory.window();
    let start = Position { index: start.index % size, ..start };
    World {
        window,
        driver: PackedDriver::new(&mut Heap::new(window, 0, RECORDS), size, FEATURES, start),
        start,
        waits: vec![None; size.into()],
        offers: 0,
        answers: 0,
        program: None,
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_and_nothing_is_answered_twice(
        steps in steps(),
        size in 1..=MOST,
        (index, wrap) in (0..MOST, any::<bool>()),
    ) {
        fuel::set(u32::MAX);
        let memory = Memory::new(&[(0, MEMORY)], 0);
        let mut world = world(&memory, size, Position { index, wrap });
        steps.iter().for_each(|step| world.step(step));
        fuel::set(u32::MAX);
        // Whoever goes on ends all.
        for _ in 0..2 * MOST {
            [Step::Take, Step::End(0), Step::Publish, Step::Use]
                .iter()
                .for_each(|step| world.step(step));
        }
        prop_assert_eq!(world.answers, world.offers, "a request is lost");
    }

    /// Records of whatever content: they are refused, or gone on with.
    #[test]
    fn nonsense_is_survived(
        noise in prop::collection::vec((0..416_u64, any::<u8>()), 0..40),
        (taken, index, wrap) in (0..4_u16, 0..MOST, any::<bool>()),
    ) {
        fuel::set(u32::MAX);
        let memory = Memory::new(&[(0, MEMORY)], 0);
        let mut world = world(&memory, MOST, Position { index, wrap });
        world.go_on();
        for _ in 0..taken {
            world.offer(3, false);
            world.step(&Step::Take);
        }
        for (at, byte) in noise {
            records(&world.window).write(at, &[byte]).expect("inside");
        }
        if let Ok(mut queue) = world.open() {
            let mut chain = Chain::new();
            while let Some(head) = queue.next_left() {
                prop_assert!(head.index() < MOST);
                if queue.take_again(&world.window, head, &mut chain).is_ok() {
                    queue.complete(head, 0);
                }
            }
            queue.publish();
            while let Ok(true) = queue.take(&world.window, &mut chain) {
                queue.complete(chain.head(), 0);
            }
            queue.publish();
        }
    }
}

/// What a guest, or the device, does next.
#[derive(Clone, Debug)]
enum Attack {
    /// The guest writes a descriptor, so many places behind the next one that the device looks at.
    Describe {
        ahead: u16,
        /// It looks as if it were available.
        right: bool,
        id: u16,
        flags: u16,
        buffer: (u16, u8),
    },
    Take,
    End(usize),
    Publish,
}

fn attacks() -> impl Strategy<Value = Vec<Attack>> {
    let flags = prop_oneof![4 => Just(0_u16), 4 => Just(1), 2 => 0..4_u16, 1 => any::<u16>()];
    let ahead = prop_oneof![4 => Just(0_u16), 4 => 0..4_u16, 1 => 0..MOST];
    let buffer = (0..MEMORY as u16, any::<u8>());
    let describe = (ahead, prop::bool::weighted(0.9), 0..=MOST, flags, buffer);
    let attack = prop_oneof![
        8 => describe.prop_map(|(ahead, right, id, flags, buffer)|
            Attack::Describe { ahead, right, id, flags, buffer }),
        6 => Just(Attack::Take),
        4 => any::<usize>().prop_map(Attack::End),
        1 => Just(Attack::Publish),
    ];
    prop::collection::vec(attack, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever a guest does to its ring: who goes on has the chains that were in flight, in order
    /// and as they were read.
    #[test]
    fn no_guest_spoils_its_records(
        attacks in attacks(),
        size in 1..=MOST,
        (index, wrap) in (0..MOST, any::<bool>()),
    ) {
        fuel::set(u32::MAX);
        let memory = Memory::new(&[(0, MEMORY)], 0);
        let world = world(&memory, size, Position { index, wrap });
        let layout = world.driver.layout();
        let ring = world.window.span(layout.descriptors, 16 * u64::from(size)).expect("inside");
        let (mut queue, mut chain) = (world.open().expect("it is new"), Chain::new());
        let mut taken: Vec<(Head, Vec<u64>)> = Vec::new();
        for attack in attacks {
            match attack {
                Attack::Describe { ahead, right, id, flags, buffer: (address, len) } => {
                    let at = queue.state().available.step(ahead % size, size);
                    let available = if at.wrap { 1 << 7 } else { 1 << 15 };
                    // No tables: those are read anew, and say what the guest has put there since.
                    let flags = if right { flags & 3 | available } else { flags & !4 };
                    let word = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
                    let place = 16 * u64::from(at.index);
                    ring.store_u64(place, address.into()).expect("inside");
                    ring.store_u64(place + 8, word).expect("inside");
                }
                // It is stopped in earnest when it is broken; here it goes on.
                Attack::Take if queue.take(&world.window, &mut chain) == Ok(true) => {
                    taken.push((chain.head(), addresses(&chain)));
                }
                Attack::End(which) if !taken.is_empty() => {
                    let (head, _) = taken.remove(which % taken.len());
                    queue.complete(head, 0);
                }
                Attack::Publish => queue.publish(),
                _ => {}
            }
        }
        queue.publish();
        let state = queue.state();
        let mut queue = world.open().expect("they are ours");
        prop_assert_eq!(state, queue.state());
        for (head, addresses_then) in taken {
            prop_assert_eq!(Some(head), queue.next_left());
            prop_assert_eq!(Ok(()), queue.take_again(&world.window, head, &mut chain));
            prop_assert_eq!(addresses_then, addresses(&chain));
        }
        prop_assert_eq!(None, queue.next_left());
    }
}

/// A chain that is completed behind another, and isn't published when the program ends, isn't seen
/// when the other one is published alone.
#[test]
fn what_was_not_published_is_taken_back() {
    fuel::set(u32::MAX);
    let memory = Memory::new(&[(0, MEMORY)], 0);
    let mut world = world(&memory, 8, Position { index: 6, wrap: true });
    for step in [
        Step::Offer { buffers: 3, indirect: false },
        Step::Offer { buffers: 3, indirect: false },
        Step::Take,
        Step::Take,
        Step::Take,
        Step::End(1),
        Step::End(0),
    ] {
        world.step(&step);
    }
    world.program = None;
    world.go_on();
    for answers in [1, 2] {
        [Step::End(0), Step::Publish, Step::Use].iter().for_each(|step| world.step(step));
        assert_eq!(world.answers, answers);
    }
}

#[test]
fn a_ring_goes_on_where_its_records_are() {
    fuel::set(u32::MAX);
    let memory = Memory::new(&[(0, MEMORY)], 0);
    let mut world = world(&memory, 5, Position { index: 4, wrap: false });
    let round = [Step::Take, Step::Take, Step::End(0), Step::Publish, Step::Use];
    for _ in 0..20 {
        world.program = None;
        world.step(&Step::Offer { buffers: 3, indirect: false });
        round.iter().for_each(|step| world.step(step));
    }
    assert_eq!(world.answers, 20);
    let queue = world.open().expect("they are ours");
    let at = Position { index: 4, wrap: false }.step(3, 5);
    let at = (1..20).fold(at, |at, _| at.step(3, 5));
    assert_eq!((queue.state().used, queue.state().available), (at, at));
}

/// A driver that offers a place again before it sees it as used: there is no entry to record the
/// chain in while those of what was completed are kept.
#[test]
fn a_place_is_not_taken_again_before_it_is_published() {
    const SIZE: u16 = 7;
    fuel::set(u32::MAX);
    let memory = Memory::new(&[(0, MEMORY)], 0);
    let start = Position { index: 0, wrap: true };
    let mut world = world(&memory, SIZE, start);
    (0..SIZE).for_each(|_| world.offer(1, false));
    let bytes = PackedRecords::<{ MOST as usize }>::bytes(SIZE);
    let records = world.window.span(RECORDS, bytes).expect("in memory");
    let state = State { available: start, used: start, in_flight: [0; _] };
    let layout = world.driver.layout();
    let mut queue =
        Small::recorded(&world.window, layout, FEATURES, state, records).expect("it is new");
    let mut chain = Chain::new();
    for _ in 0..SIZE {
        assert_eq!(queue.take(&world.window, &mut chain), Ok(true));
        queue.complete(chain.head(), 0);
    }
    assert_eq!(queue.take(&world.window, &mut chain), Ok(false));
    // The first place, available in the next round: length, buffer ID, flags.
    let first = world.window.span(layout.descriptors, 16).expect("in memory");
    first.store_u64(8, 1 | 1 << 63).expect("inside");
    assert_eq!(queue.take(&world.window, &mut chain), Err(Broken::Overrun));
    queue.publish();
    (0..SIZE).for_each(|id| assert_eq!(world.driver.used(), Some((id, 0))));
}

#[test]
fn another_size_is_refused_while_something_is_in_flight() {
    fuel::set(u32::MAX);
    let memory = Memory::new(&[(0, MEMORY)], 0);
    let mut first = world(&memory, 8, Position { index: 0, wrap: true });
    first.go_on();
    first.offer(2, false);
    first.step(&Step::Take);
    let second = world(&memory, 12, Position { index: 0, wrap: true });
    assert_eq!(second.open().err(), Some(NotRecorded::Records(BadRecords::Size(8))));
    [Step::End(0), Step::Publish].iter().for_each(|step| first.step(step));
    assert!(second.open().is_ok());
}
