//! Instructions of a 4 KiB read without a back end, ring and all:
//! `valgrind --tool=callgrind --toggle-collect='null_read::turn*'
//! target/release/examples/null_read`, divided by the requests it says. The driver's part isn't
//! counted.
//!
//! With `pass` it is all that a sidecore does in passes that find work: schedule, statistics and
//! interrupt coalescing, with one more queue that is idle. It then is what `PollingCore` does in
//! the image, but for the call itself and for orders. Other words: a number is the requests that
//! wait when a turn begins; `disks=14` is so many of them, each with a VM of its own, and then none
//! is idle; `indirect`, `packed`, `flags` (no event index).
#[path = "../../virtqueue/tests/driver/mod.rs"]
mod driver;

use blk::backend::Null;
use blk::config::{Config, Parameters};
use blk::{Budget, Server};
use coalesce::Coalescer;
use core::sync::atomic::{AtomicU64, Ordering};
use driver::{Buffer, Driver, Heap};
use sidecore::{Look, Next, Piece, Schedule, Settings, Turn};
use virtqueue::{Features, Queue, State};
use window::{Memory, Window};

const REQUESTS: usize = 32_000;
const HERTZ: u64 = 2_000_000_000;

/// What is counted: all that waits, in one turn of the scheduler.
#[inline(never)]
fn turn(server: &mut Server<256>, window: &Window, backend: &mut Null) -> u32 {
    let budget = Budget { requests: u32::MAX, charge: u64::MAX };
    let (done, _) = server.serve_some(window, backend, budget);
    if let Some(queue) = server.queue() {
        queue.publish();
        std::hint::black_box(queue.wants_call());
    }
    done.completed
}

/// Those of the core.
struct Queues {
    all: Vec<Box<Server<256>>>,
    /// The last piece saw the end of its ring.
    emptied: bool,
}

impl Look for Queues {
    fn waiting(&mut self, place: usize) -> u16 {
        self.all.get(place).map_or(0, |server| server.waiting())
    }

    #[inline(always)]
    fn has_more(&mut self, place: usize) -> bool {
        let known = |server: &Server<256>| server.has_offered() || server.waiting() > 0;
        !self.emptied && self.all.get(place).is_some_and(|server| known(server))
    }
}

struct Core {
    queues: Queues,
    schedule: Schedule,
    coalescers: Vec<Coalescer>,
    counts: [AtomicU64; 3],
    now: u64,
}

/// As in `PollingCore`, where these are atomics that others read.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// What is counted: a pass, with the turn that it has.
#[inline(never)]
fn turn_in_pass(core: &mut Core, window: &Window, backend: &mut Null) -> u32 {
    let Turn::Serve(place) = core.schedule.next(core.now, &mut core.queues) else { return 0 };
    let (mut all, mut unpublished) = (0, 0);
    loop {
        core.now += 100;
        let batch = core.schedule.batch();
        let budget = Budget { requests: batch.requests, charge: batch.cost };
        let Some(server) = core.queues.all.get_mut(place) else { break };
        let (done, ended) = server.serve_some(window, backend, budget);
        if ended.is_err() {
            break;
        }
        core.queues.emptied = !done.more && !done.full;
        (all, unpublished) = (all + done.completed, unpublished + done.completed);
        if done.charge == 0 {
            core.schedule.rest(place);
            break;
        }
        let requests = done.asked;
        let piece = Piece { cost: done.charge, bytes: done.bytes, requests };
        let next = core.schedule.served(place, piece, core.now, &mut core.queues);
        if next == Next::Switch {
            break;
        }
        if unpublished >= 8 {
            publish(core, place, unpublished, false);
            unpublished = 0;
        }
    }
    let emptied = core.queues.emptied;
    publish(core, place, unpublished, emptied);
    all
}

#[inline(always)]
fn publish(core: &mut Core, place: usize, completed: u32, emptied: bool) {
    let Some(server) = core.queues.all.get_mut(place).filter(|_| completed > 0) else { return };
    add(&core.counts[0], u64::from(completed) * 4096);
    add(&core.counts[1], completed.into());
    let left = if emptied { 0 } else { server.waiting() };
    let waiting = u32::from(left) + u32::from(server.in_flight());
    let Some(coalescer) = core.coalescers.get_mut(place) else { return };
    let (tell, withheld) = coalescer.completed_together(completed, core.now, waiting);
    add(&core.counts[2], withheld.into());
    if server.publish_and_ask(tell) {
        coalescer.delivered(core.now);
    } else if tell {
        coalescer.settled();
    }
}

/// A server with its driver.
fn served(
    window: &Window,
    heap: &mut Heap,
    features: Features,
) -> (Box<Server<256>>, Box<dyn Driver>) {
    let driver: Box<dyn Driver> = driver::driver(heap, 256, features);
    let config = Config::new(Parameters { capacity: 1 << 20, ..Parameters::default() });
    let config = config.expect("there can be such a disk");
    let mut server = Box::new(Server::<256>::new(config, 0));
    let state = State::at_reset(features);
    let queue = Queue::new(window, driver.layout(), features, state).expect("the rings are right");
    server.start(queue, config.features());
    (server, driver)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is = |word: &str| words.iter().any(|argument| argument == word);
    let depth = words.iter().find_map(|word| word.parse().ok()).unwrap_or(32);
    let features = Features { indirect: true, event_index: !is("flags"), packed: is("packed") };
    let disks = words.iter().find_map(|word| word.strip_prefix("disks=")?.parse().ok());
    let (busy, all) = disks.map_or((1, 2), |disks: usize| (disks, disks));
    let memory = Memory::new(&[(0, 64 << 20)], 0);
    let window = memory.window();
    let mut heap = Heap::new(window, 0, 64 << 20);
    let (servers, mut drivers): (Vec<_>, Vec<_>) =
        (0..all).map(|_| served(&window, &mut heap, features)).unzip();
    let mut schedule = Schedule::new(Settings::usual(HERTZ), all, all);
    (0..all).for_each(|place| assert!(schedule.poll(place, place, 0)));
    let mut core = Core {
        queues: Queues { all: servers, emptied: false },
        schedule,
        coalescers: vec![Coalescer::new(coalesce::Settings::paper(HERTZ), 0); all],
        counts: Default::default(),
        now: 0,
    };
    let chains: Vec<Vec<(u64, [Buffer; 3])>> =
        (0..busy).map(|_| chains(&mut heap, depth.min(80))).collect();
    let mut served = 0;
    while (served as usize) < REQUESTS {
        let mut left = 0;
        for (driver, chains) in drivers.iter_mut().zip(&chains) {
            for (table, buffers) in chains {
                let added = if is("indirect") {
                    driver.add_indirect(*table, buffers)
                } else {
                    driver.add(buffers)
                };
                added.expect("the ring has room");
                left += 1;
            }
        }
        while left > 0 {
            let done = if is("pass") {
                turn_in_pass(&mut core, &window, &mut Null)
            } else {
                turn(&mut core.queues.all[0], &window, &mut Null)
            };
            served += done;
            left -= done;
        }
        for driver in &mut drivers {
            while driver.used().is_some() {}
        }
    }
    println!("{served} requests");
}

/// What one driver asks for at a time.
fn chains(heap: &mut Heap, depth: usize) -> Vec<(u64, [Buffer; 3])> {
    let chain = |_| {
        // As drivers have it in memory of their own.
        let header = Buffer { address: heap.take(16, 16), len: 16, writable: false };
        let buffers = [header, heap.room(4096), heap.room(1)];
        (heap.take(48, 16), buffers)
    };
    (0..depth).map(chain).collect()
}
