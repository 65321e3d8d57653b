//! Instructions of a 4 KiB read of a disk that is a part of an NVMe controller: ring, commands,
//! completions and all: `valgrind --tool=callgrind --toggle-collect='nvme_reads::turn*'
//! target/release/examples/nvme_reads`, divided by the requests it says. Neither the driver's part
//! is counted nor the controller's, but for its model's note of a doorbell. A number among the
//! words is the requests that wait when a turn begins; `indirect` is what it says.
#[path = "../../virtqueue/tests/driver/mod.rs"]
mod driver;
#[path = "../tests/model/mod.rs"]
mod model;

use blk::config::{Config, Parameters};
use blk::{Budget, Server};
use driver::{Buffer, Driver, Heap};
use model::World;
use nvme::{Part, State};
use virtqueue::{Features, Queue, State as QueueState};
use window::Window;

const REQUESTS: u32 = 16_000;
const BYTES: u64 = 1 << 20;

/// What is counted: all that waits becomes commands, and the controller is told.
#[inline(never)]
fn turn_to_it(server: &mut Server<128>, window: &Window, world: &mut World) {
    let budget = Budget { requests: u32::MAX, charge: u64::MAX };
    let _ = server.serve_some(window, &mut world.controller.disk(0), budget);
    world.now += 1;
    world.controller.step(world.now);
}

/// What is counted: all completions become answers.
#[inline(never)]
fn turn_back(server: &mut Server<128>, world: &mut World) -> u32 {
    world.now += 1;
    world.controller.step(world.now);
    let mut answered = 0;
    while let Some((_, completion)) = world.controller.poll() {
        answered += u32::from(server.finish(completion));
    }
    if let Some(queue) = server.queue() {
        queue.publish();
        std::hint::black_box(queue.wants_call());
    }
    answered
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let depth = words.iter().find_map(|word| word.parse().ok()).unwrap_or(32);
    let is_indirect = words.iter().any(|word| word == "indirect");
    let features = Features { indirect: true, event_index: true, packed: false };
    let mut world = World::new(BYTES as usize, 9, |_| {});
    assert_eq!(State::Running, world.start());
    world.controller.add_disk(Part { first: 0, bytes: BYTES }).expect("it has such a part");
    let window = world.memory.window();
    let mut heap = Heap::new(window, 0, model::GUEST);
    let mut driver: Box<dyn Driver> = driver::driver(&mut heap, 256, features);
    let config = Config::new(Parameters { capacity: BYTES / 512, ..Parameters::default() });
    let config = config.expect("there can be such a disk");
    let mut server = Box::new(Server::<128>::new(config, 0));
    let state = QueueState::at_reset(features);
    let queue = Queue::new(&window, driver.layout(), features, state).expect("the rings are right");
    server.start(queue, config.features());
    let chains: Vec<(u64, [Buffer; 3])> = (0..depth.min(80))
        .map(|_| {
            let data = Buffer { address: heap.take(4096, 4096), len: 4096, writable: true };
            let header = Buffer { address: heap.take(16, 16), len: 16, writable: false };
            (heap.take(48, 16), [header, data, heap.room(1)])
        })
        .collect();
    let mut served = 0;
    while served < REQUESTS {
        for (table, buffers) in &chains {
            let added = if is_indirect {
                driver.add_indirect(*table, buffers)
            } else {
                driver.add(buffers)
            };
            added.expect("the ring has room");
        }
        turn_to_it(&mut server, &window, &mut world);
        world.model.borrow_mut().run();
        while world.model.borrow_mut().end(0, 0).is_some() {}
        world.model.borrow_mut().touched.clear();
        served += turn_back(&mut server, &mut world);
        while driver.used().is_some() {}
    }
    println!("{served} requests");
}
