//! A guest of the tests, and when rings are looked at, told and not listened to, by a clock that
//! the test moves.

use crate::clock::{Clock, HERTZ};
use crate::config::Limits;
use crate::counts::Counts;
use crate::device::{Device, Kind, Port};
use crate::disk::Disk;
use crate::foreign::Unclosed;
use crate::rings::{Rings, VAIN};
use daemon_os::{GuestMemory, GuestRegion, Mapping};
use proptest::prelude::*;
use std::cell::Cell;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use virtqueue::{Features, Layout, Queue, State};
use window::Span;

pub const ELEMENTS: u16 = 8;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
pub const MILLISECOND: u64 = HERTZ / 1000;

/// A disk whose driver offers as much as there is room for.
pub struct Guest {
    memory: GuestMemory,
    span: Span,
    pub place: usize,
}

impl Guest {
    pub fn new(rings: &mut Rings, limits: Limits) -> Guest {
        let disk = Disk::null(1 << 20, 1, false).expect("a disk");
        let device = rings.add_device(Device {
            name: "disk".into(),
            kind: Kind::Disk(disk),
            limits,
            coalesces: true,
            front_ends: 1,
            connected: 1,
            connections: 1,
            ended: Default::default(),
            gone: Counts::default(),
            unclosed: Unclosed::default(),
        });
        let mapping = Mapping::anonymous(0x10000).expect("memory");
        let span = mapping.span().expect("all of it");
        let regions = vec![GuestRegion::from((0, mapping))];
        let memory = GuestMemory::new(regions).expect("a region");
        // A read of a sector: header, data, status.
        let chain = [(0x3000_u64, 16_u32, 1_u16, 1_u16), (0x4000, 512, 3, 2), (0x5000, 1, 2, 0)];
        for ((address, len, flags, next), at) in chain.into_iter().zip(0..) {
            let tail = [flags.to_le_bytes(), next.to_le_bytes()].concat();
            let bytes = [&address.to_le_bytes()[..], &len.to_le_bytes(), &tail].concat();
            span.write(16 * at, &bytes).expect("inside");
        }
        let place = rings.add(device, 0, 0).expect("a ring");
        let guest = Guest { memory, span, place };
        guest.start(rings, State::at_reset(Features::default()));
        guest
    }

    /// It kicks, by what is given back: else its ring is polled for kicks that can't come.
    pub fn kicks(&self, rings: &mut Rings) -> UnixStream {
        let (kick, other) = UnixStream::pair().expect("two sockets");
        rings.get(self.place).expect("it is there").kick = Some(kick.into());
        other
    }

    pub fn start(&self, rings: &mut Rings, state: State) {
        let layout = Layout { size: ELEMENTS, descriptors: 0, driver: AVAILABLE, device: USED };
        let window = *self.memory.window();
        let queue = Queue::new(&window, layout, Features::default(), state).expect("a queue");
        rings.start(self.place, queue, window, 1 << 32).expect("it starts");
    }

    fn used(&self) -> u16 {
        let mut bytes = [0; 2];
        self.span.read(USED + 2, &mut bytes).expect("inside");
        u16::from_le_bytes(bytes)
    }

    /// Offers so many more than are answered.
    pub fn offer(&self, count: u16) {
        let index = self.used().wrapping_add(count);
        self.span.write(AVAILABLE + 2, &index.to_le_bytes()).expect("inside");
    }

    pub fn completed(&self, rings: &mut Rings) -> u64 {
        rings.get(self.place).expect("it is there").counts.completed
    }
}

pub fn manual() -> (Rings, Rc<Cell<u64>>) {
    let (rings, now, _) = stepping();
    (rings, now)
}

/// And how much passes until each look: nothing at first.
pub fn stepping() -> (Rings, Rc<Cell<u64>>, Rc<Cell<u64>>) {
    let (now, step) = (Rc::new(Cell::new(HERTZ)), Rc::default());
    (Rings::new(Clock::Manual(now.clone(), Rc::clone(&step))), now, step)
}

pub fn limited(iops: u64, burst: Option<u64>) -> Limits {
    Limits { iops: Some(iops), burst, ..Limits::default() }
}

/// A clock that goes on by a millisecond at each look, by which looks can be counted.
fn counting() -> (Rings, Rc<Cell<u64>>) {
    let (rings, now, step) = stepping();
    step.set(MILLISECOND);
    (rings, now)
}

#[test]
fn the_clock_is_looked_at_for_four_requests_of_however_many_turns() {
    let (mut rings, _now) = counting();
    let guests: Vec<Guest> = (0..12).map(|_| Guest::new(&mut rings, Limits::default())).collect();
    // A request for each turn; fewer than four are work, too.
    for (count, looks) in [(12, 3), (1, 1), (6, 2)] {
        let before = rings.time.busy;
        for guest in &guests[..count] {
            guest.offer(1);
            rings.poll_now(guest.place);
        }
        rings.serve();
        assert!(guests[..count].iter().all(|guest| guest.completed(&mut rings) > 0));
        assert_eq!(rings.time.busy - before, looks * MILLISECOND, "{count}");
    }
}

/// 'top' counts no polling as busy: work ends where a pass finds nothing, however few it served.
#[test]
fn time_behind_the_last_work_is_polling() {
    for count in [1, 3, ELEMENTS] {
        let (mut rings, now) = manual();
        let guest = Guest::new(&mut rings, Limits::default());
        guest.offer(count);
        rings.poll_now(guest.place);
        rings.serve();
        assert_eq!(guest.completed(&mut rings), u64::from(count));
        now.set(now.get() + MILLISECOND);
        rings.serve();
        assert_eq!((rings.time.busy, rings.time.polling), (0, MILLISECOND), "{count}");
    }
}

/// What is held back is told in time, though others have turns all the time.
#[test]
fn what_is_due_is_told_between_turns() {
    let (mut rings, now) = counting();
    let guests: Vec<Guest> = (0..3).map(|_| Guest::new(&mut rings, Limits::default())).collect();
    let [held, others @ ..] = &guests[..] else { panic!("three") };
    let settings =
        coalesce::Settings { epoch: 0, iops_threshold: 0, ..coalesce::Settings::paper(HERTZ) };
    let mut coalescer = coalesce::Coalescer::new(settings, now.get() - 1);
    while coalescer.completed(now.get(), 64) == coalesce::Verdict::Deliver {}
    now.set(now.get() + HERTZ - 2 * MILLISECOND);
    rings.deadline = coalescer.deadline();
    rings.get(held.place).expect("it is there").coalescer = coalescer;
    others.iter().for_each(|guest| guest.offer(ELEMENTS));
    rings.serve();
    assert!(others.iter().all(|guest| guest.used() == ELEMENTS));
    let held = rings.get(held.place).expect("it is there");
    assert_eq!((held.coalescer.deadline(), rings.deadline), (None, None));
}

/// Of eight at a time, two of which are completed together, 4/5 are told of at once, as vIC has it
/// from its second epoch on, or all.
#[test]
fn a_device_says_what_is_withheld() {
    for (coalesces, fewest, most) in [(true, 200, 500), (false, 0, 0)] {
        let (mut rings, now) = manual();
        let guest = Guest::new(&mut rings, limited(4000, Some(HERTZ / 4000)));
        let device = rings.get(guest.place).expect("it is there").device;
        rings.served.devices.get_mut(device).expect("its device").coalesces = coalesces;
        guest.start(&mut rings, State::at_reset(Features::default()));
        for _ in 0..1000 {
            guest.offer(ELEMENTS);
            rings.serve();
            now.set(now.get() + HERTZ / 2000);
        }
        let counts = rings.get(guest.place).expect("it is there").counts;
        assert!((1990..=2001).contains(&counts.completed), "{}", counts.completed);
        assert_eq!(counts.left, counts.completed * u64::from(ELEMENTS - 2));
        assert!((fewest..=most).contains(&counts.withheld), "{coalesces}: {}", counts.withheld);
    }
}

/// Kicks that bring nothing are listened to some times, and then once in 10 ms; work that comes
/// meanwhile is served at the end of that.
#[test]
fn vain_kicks_are_throttled_and_no_request_is_lost() {
    let (mut rings, now) = manual();
    let guest = Guest::new(&mut rings, Limits::default());
    let _other = guest.kicks(&mut rings);
    let sleep = |rings: &mut Rings| {
        rings.serve();
        now.set(now.get() + MILLISECOND);
        rings.serve();
    };
    for _ in 0..1000 {
        sleep(&mut rings);
        rings.kicked(guest.place);
    }
    let counts = rings.get(guest.place).expect("it is there").counts;
    // 1,000 kicks in 1,000 ms: the first ones, and one in 10 ms or so.
    assert!(counts.kicks <= u64::from(VAIN) + 1 + 100, "{}", counts.kicks);
    assert!(counts.throttled >= 80, "{}", counts.throttled);
    while rings.get(guest.place).expect("it is there").again_at.is_none() {
        sleep(&mut rings);
        rings.kicked(guest.place);
    }
    guest.offer(1);
    rings.kicked(guest.place);
    rings.serve();
    assert_eq!(guest.completed(&mut rings), 0, "nobody listens");
    let (_, next) = rings.next_at();
    now.set(next.expect("it is looked at again"));
    rings.serve();
    assert_eq!(guest.completed(&mut rings), 1);
}

/// A ring that isn't listened to is held, by a message or an upgrade that fails, for longer than
/// that: its kicks are heard again.
#[test]
fn a_ring_that_was_held_hears_its_kicks_again() {
    let (mut rings, now) = manual();
    let guest = Guest::new(&mut rings, Limits::default());
    let _other = guest.kicks(&mut rings);
    let sleep = |rings: &mut Rings| {
        while let (_, Some(at)) = rings.next_at() {
            now.set(now.get().max(at) + MILLISECOND);
            rings.serve();
        }
    };
    sleep(&mut rings);
    while rings.get(guest.place).expect("it is there").again_at.is_none() {
        rings.kicked(guest.place);
        rings.serve();
        now.set(now.get() + MILLISECOND);
        rings.serve();
    }
    rings.settle().expect("nothing is under way");
    now.set(now.get() + HERTZ);
    rings.serve();
    rings.resume();
    sleep(&mut rings);
    guest.offer(1);
    rings.kicked(guest.place);
    sleep(&mut rings);
    assert_eq!(guest.completed(&mut rings), 1);
}

/// What happens, in any order.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The driver offers a request, and kicks if it is asked to.
    Offer,
    /// The kick arrives.
    Arrive,
    Serve,
    /// So many microseconds pass.
    Pass(u16),
    /// Kicks that nobody asked for; each until the ring sleeps again.
    Vain,
    Deaf,
    /// All rings are held for so many milliseconds.
    Hold(u64),
    /// The ring stops, and goes on where it was.
    Restart,
    /// Its device may have so many requests a second.
    Limit(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Offer),
        4 => Just(Step::Arrive),
        4 => Just(Step::Serve),
        4 => (0..400_u16).prop_map(Step::Pass),
        4 => Just(Step::Vain),
        1 => Just(Step::Deaf),
        4 => (0..20_u64).prop_map(Step::Hold),
        4 => Just(Step::Restart),
        4 => (1_000..20_000_u64).prop_map(Step::Limit),
    ]
}

/// Its control queue needs a feature that the driver doesn't accept.
#[test]
fn a_port_whose_first_ring_cant_start_keeps_no_memory() {
    let (mut rings, _now) = manual();
    let mut switch = net::Switch::new(net::MAX_PORTS, HERTZ);
    let parameters = net::Parameters { mac: net::Mac([2, 0, 0, 0, 0, 1]), ..Default::default() };
    let config = net::Config::new(parameters).expect("it can be");
    let number = switch.add(config, net::Plan::default()).expect("there is room");
    rings.served.switches.push(switch);
    let device = rings.add_device(Device {
        name: "port".into(),
        kind: Kind::Port(Port { switch: 0, number, config }),
        limits: Limits::default(),
        coalesces: true,
        front_ends: 1,
        connected: 1,
        connections: 1,
        ended: Default::default(),
        gone: Counts::default(),
        unclosed: Unclosed::default(),
    });
    let places: Vec<usize> = (0..3).map(|at| rings.add(device, at, 7).expect("a ring")).collect();
    let mapping = Mapping::anonymous(0x10000).expect("memory");
    let memory = GuestMemory::new(vec![GuestRegion::from((0, mapping))]).expect("a region");
    let layout = Layout { size: ELEMENTS, descriptors: 0, driver: AVAILABLE, device: USED };
    let features = Features::default();
    let start = |rings: &mut Rings, place| {
        let window = *memory.window();
        let queue = Queue::new(&window, layout, features, State::at_reset(features));
        rings.start(place, queue.expect("a queue"), window, 1 << 32)
    };
    let runs = |rings: &Rings| rings.served.switches[0].kind(number, 0).is_some();
    assert!(start(&mut rings, places[2]).is_err());
    assert!(!runs(&rings), "the port has no driver");
    // With another one that runs, it stays until that one stops.
    start(&mut rings, places[1]).expect("it starts");
    assert!(start(&mut rings, places[2]).is_err());
    assert!(runs(&rings));
    assert!(rings.stop(places[1]).is_some());
    assert!(!runs(&rings));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Kicks are told by edge: one that is taken while the ring is polled isn't told again. What
    /// the memory's order adds is tried by loom (`virtqueue`).
    #[test]
    fn no_kick_is_lost(steps in prop::collection::vec(step(), 0..200)) {
        let (mut rings, now) = manual();
        let guest = Guest::new(&mut rings, Limits::default());
        let _other = guest.kicks(&mut rings);
        let (mut offered, mut kicked) = (0_u16, false);
        for step in steps {
            match step {
                Step::Offer if offered.wrapping_sub(guest.used()) < ELEMENTS => {
                    offered = offered.wrapping_add(1);
                    guest.span.write(AVAILABLE + 2, &offered.to_le_bytes()).expect("inside");
                    let mut flags = [0; 2];
                    guest.span.read(USED, &mut flags).expect("inside");
                    kicked |= flags[0] & 1 == 0;
                }
                Step::Arrive if kicked => {
                    kicked = false;
                    rings.kicked(guest.place);
                }
                Step::Vain => (0..40).for_each(|_| rings.kicked(guest.place)),
                Step::Deaf => (0..=VAIN + 1).for_each(|_| {
                    rings.kicked(guest.place);
                    rings.serve();
                    now.set(now.get() + MILLISECOND);
                    rings.serve();
                }),
                Step::Pass(micros) => now.set(now.get() + u64::from(micros) * 1000),
                Step::Serve => rings.serve(),
                Step::Hold(millis) => {
                    rings.settle().expect("nothing is under way");
                    now.set(now.get() + millis * MILLISECOND);
                    rings.serve();
                    rings.resume();
                }
                Step::Restart => {
                    if let Some(state) = rings.stop(guest.place) {
                        guest.start(&mut rings, state);
                    }
                }
                Step::Limit(iops) => rings.set_limits(0, limited(iops, None)),
                _ => {}
            }
        }
        // Until it sleeps for good; and a request that comes then.
        for more in [0, 1] {
            offered = offered.wrapping_add(more);
            guest.span.write(AVAILABLE + 2, &offered.to_le_bytes()).expect("inside");
            if kicked || more > 0 {
                rings.kicked(guest.place);
            }
            while let (_, Some(at)) = rings.next_at() {
                now.set(now.get().max(at) + 1000);
                rings.serve();
            }
            prop_assert_eq!(guest.used(), offered);
        }
    }
}
