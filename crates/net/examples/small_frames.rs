//! Instructions of a frame of 64 bytes from one guest to another, both rings and all:
//! `valgrind --tool=callgrind --toggle-collect='small_frames::turn*'
//! target/release/examples/small_frames`, divided by the frames it says. The drivers' part isn't
//! counted.
//!
//! With `pass` it is all that a sidecore does in passes that find work: schedule, statistics and
//! interrupt coalescing of both queues, with the other guest's transmit queue idle. It then is what
//! `PollingCore` does in the image, but for the call itself and for orders. Other words: a number
//! is the frames that wait when a turn begins; `packed`; `bytes=` is the length of a frame; with
//! `cut` the virtio header has a buffer of its own at the sender's, with `room` at the receiver's;
//! with `pairs` each guest has two pairs of queues, of which it uses one.
#[path = "../../virtqueue/tests/driver/mod.rs"]
mod driver;

use coalesce::Coalescer;
use core::sync::atomic::{AtomicU64, Ordering};
use driver::{Buffer, Driver, Heap};
use net::{Config, Mac, Parameters, Plan, PortNumber, Switch};
use sidecore::{Look, Next, Piece, Schedule, Settings, Turn};
use virtqueue::{Features, Queue, State};
use window::Memory;

const ROUNDS: usize = 1000;
const MEMORY: u64 = 1 << 20;
const HERTZ: u64 = 2_000_000_000;

struct Guest {
    port: PortNumber,
    drivers: [Box<dyn Driver>; 2],
    _memory: Memory,
}

fn guest(switch: &mut Switch, number: u8, features: Features, pairs: u16) -> (Guest, Heap) {
    let memory = Memory::new(&[(0, MEMORY)], 0);
    let window = memory.window();
    let mut heap = Heap::new(window, 0, MEMORY);
    let mac = Mac([2, 0, 0, 0, 0, number]);
    let packed = features.packed;
    let config = Config::new(Parameters { mac, packed, pairs, ..Parameters::default() });
    let config = config.expect("there can be such a device");
    let port = switch.add(config, Plan::default()).expect("there is room");
    switch.start(port, window, config.features());
    let mut drivers = (0..2 * pairs).map(|index| {
        let driver = driver::driver(&mut heap, 128, features);
        let state = State::at_reset(features);
        let queue = Queue::new(&window, driver.layout(), features, state);
        let mut queue: Queue = queue.expect("the rings are right");
        queue.suppress_kicks();
        switch.attach(port, index, queue).expect("it has such a queue");
        driver
    });
    let drivers = [drivers.next(), drivers.next()].map(|driver| driver.expect("there are two"));
    (Guest { port, drivers, _memory: memory }, heap)
}

/// What is counted: all that waits, in one turn of the scheduler, told at its end.
#[inline(never)]
fn turn(switch: &mut Switch, from: PortNumber) -> u32 {
    let mut frames = 0;
    while let Ok(outcome) = switch.serve_burst(from, 1, 1) {
        frames += outcome.completed;
        let goes_on = outcome.more && switch.waiting(from, 1, 1) > 0;
        if let Some(queue) = switch.queue(from, 1) {
            std::hint::black_box(queue.publish_and_ask(!goes_on));
        }
        if !goes_on {
            break;
        }
    }
    while let Some(touched) = switch.touched() {
        if let Some(queue) = switch.queue(touched.port, touched.queue) {
            std::hint::black_box(queue.publish_and_ask(true));
        }
    }
    frames
}

/// A core's switch, whose ports' transmit queues have places by the ports.
struct Queues {
    switch: Switch,
    now: u64,
    /// The last piece saw the end of its ring.
    emptied: bool,
}

impl Look for Queues {
    fn waiting(&mut self, place: usize) -> u16 {
        self.switch.waiting(PortNumber(place as u8), 1, self.now)
    }

    #[inline(always)]
    fn has_more(&mut self, place: usize) -> bool {
        !self.emptied && self.waiting(place) > 0
    }
}

struct Core {
    queues: Queues,
    schedule: Schedule,
    /// By ports, of both queues: interrupts, and chains, bytes and what was withheld.
    signals: [[(Coalescer, [AtomicU64; 3]); 2]; 2],
}

/// As in `PollingCore`, where these are atomics that others read.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// What is counted: a pass, with the turn that it has.
#[inline(never)]
fn turn_in_pass(core: &mut Core) -> u32 {
    let now = core.queues.now;
    let Turn::Serve(place) = core.schedule.next(now, &mut core.queues) else { return 0 };
    let (mut all, mut unpublished, mut bytes) = (0, 0, 0);
    loop {
        let served = core.queues.switch.serve_burst(PortNumber(place as u8), 1, core.queues.now);
        let Ok(done) = served else { break };
        core.queues.now += 100;
        core.queues.emptied = !done.more && !done.full;
        (all, unpublished) = (all + done.completed, unpublished + done.completed);
        bytes += done.sent;
        if done.charge == 0 {
            core.schedule.rest(place);
            break;
        }
        let piece = Piece { cost: done.charge, bytes: done.sent, requests: done.completed };
        let next = core.schedule.served(place, piece, core.queues.now, &mut core.queues);
        if next == Next::Switch {
            break;
        }
        if unpublished >= 8 {
            publish(core, place, unpublished, bytes, false);
            (unpublished, bytes) = (0, 0);
        }
    }
    let emptied = core.queues.emptied;
    publish(core, place, unpublished, bytes, emptied);
    all
}

/// Publishes and tells what was sent from a port, and then what arrived at others.
#[inline(always)]
fn publish(core: &mut Core, place: usize, completed: u32, bytes: u64, emptied: bool) {
    if completed == 0 {
        return;
    }
    let waiting = if emptied { 0 } else { core.queues.waiting(place).into() };
    let now = core.queues.now;
    let (port, switch) = (PortNumber(place as u8), &mut core.queues.switch);
    tell(switch.queue(port, 1), &mut core.signals[place][1], completed, bytes, waiting, now);
    while let Some(touched) = switch.touched() {
        let signal = &mut core.signals[usize::from(touched.port.0)][0];
        let net::Counts { frames, bytes, .. } = touched.counts;
        let ring = switch.queue(touched.port, touched.queue);
        tell(ring, signal, frames, bytes, waiting, now);
    }
}

/// Counts what was completed in a ring, shows it, and tells of it if that is to be.
#[inline(always)]
fn tell(
    ring: Option<&mut Queue>,
    (coalescer, counts): &mut (Coalescer, [AtomicU64; 3]),
    completed: u32,
    bytes: u64,
    waiting: u32,
    now: u64,
) {
    add(&counts[0], completed.into());
    add(&counts[1], bytes);
    let (tell, withheld) = coalescer.completed_together(completed, now, waiting);
    add(&counts[2], withheld.into());
    if ring.expect("it has such a queue").publish_and_ask(tell) {
        coalescer.delivered(now);
    } else if tell {
        coalescer.settled();
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is = |word: &str| words.iter().any(|argument| argument == word);
    let depth = words.iter().find_map(|word| word.parse().ok()).unwrap_or(8).min(60);
    let bytes = words.iter().find_map(|word| word.strip_prefix("bytes=")?.parse().ok());
    let features = Features { indirect: true, event_index: true, packed: is("packed") };
    let mut switch: Switch = Switch::new(2, 1 << 40);
    let pairs = if is("pairs") { 2 } else { 1 };
    let (mut one, mut heap) = guest(&mut switch, 1, features, pairs);
    let (mut other, mut room) = guest(&mut switch, 2, features, pairs);
    // Header, addresses, a type that nobody knows, and what is in it.
    let mut frame = vec![0_u8; 12 + bytes.unwrap_or(64)];
    frame[12..24].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame[24..26].copy_from_slice(&[0x88, 0xB5]);
    // By which pair the other one sends, it receives.
    let mut back = frame.clone();
    back[12..24].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    other.drivers[1].add(&[room.put(&back)]).expect("the ring has room");
    assert_eq!(Ok(1), switch.serve(other.port, 1, 1).map(|outcome| outcome.completed));
    while switch.touched().is_some() {}
    let whole = if is("cut") { vec![&frame[..12], &frame[12..]] } else { vec![&frame[..]] };
    let rooms = if is("room") { vec![12, 2048] } else { vec![2048] };
    let sent: Vec<Vec<Buffer>> =
        (0..depth).map(|_| whole.iter().map(|part| heap.put(part)).collect()).collect();
    let received: Vec<Vec<Buffer>> =
        (0..depth).map(|_| rooms.iter().map(|part| room.room(*part)).collect()).collect();
    let mut schedule = Schedule::new(Settings::usual(HERTZ), 2, 2);
    (0..2).for_each(|place| assert!(schedule.poll(place, place, 0)));
    let signal = || (Coalescer::new(coalesce::Settings::paper(HERTZ), 0), Default::default());
    let signals = [(); 2].map(|()| [(); 2].map(|()| signal()));
    let mut core = Core { queues: Queues { switch, now: 1, emptied: false }, schedule, signals };
    let (mut frames, mut arrived) = (0, 0);
    for _ in 0..ROUNDS {
        for (sent, received) in sent.iter().zip(&received) {
            other.drivers[0].add(received).expect("the ring has room");
            one.drivers[1].add(sent).expect("the ring has room");
        }
        let mut left = depth as u32;
        while left > 0 {
            let taken = if is("pass") {
                turn_in_pass(&mut core)
            } else {
                turn(&mut core.queues.switch, one.port)
            };
            frames += taken;
            left -= taken;
        }
        while one.drivers[1].used().is_some() {}
        while other.drivers[0].used().is_some() {
            arrived += 1;
        }
    }
    assert_eq!((frames, 0), (arrived, core.queues.switch.statistics(one.port).unknown));
    println!("{frames} frames");
}
