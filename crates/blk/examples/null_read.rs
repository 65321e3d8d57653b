//! Instructions of a 4 KiB read without a back end, ring and all:
//! `valgrind --tool=callgrind --toggle-collect='*turn*' target/release/examples/null_read`, divided
//! by the requests it says. The driver's part isn't counted.
#[path = "../../virtqueue/tests/driver/mod.rs"]
mod driver;

use blk::Server;
use blk::backend::Null;
use blk::config::{Config, Parameters};
use driver::{Buffer, Driver, Heap};
use virtqueue::{Features, Queue, State};
use window::{Memory, Window};

const DEPTH: usize = 32;
const ROUNDS: usize = 1000;

/// What is counted: all that waits, in one turn of the scheduler.
#[inline(never)]
fn turn(server: &mut Server<256>, window: &Window, backend: &mut Null) -> u32 {
    let mut completed = 0;
    while let Ok(outcome) = server.serve(window, backend) {
        completed += outcome.completed;
        if !outcome.more {
            break;
        }
    }
    if let Some(queue) = server.queue() {
        queue.publish();
        std::hint::black_box(queue.wants_call());
    }
    completed
}

fn main() {
    let packed = std::env::args().any(|argument| argument == "packed");
    let indirect = std::env::args().any(|argument| argument == "indirect");
    let features = Features { indirect: true, event_index: true, packed };
    let memory = Memory::new(&[(0, 1 << 20)], 0);
    let window = memory.window();
    let mut heap = Heap::new(window, 0, 1 << 20);
    let mut driver: Box<dyn Driver> = driver::driver(&mut heap, 128, features);
    let config = Config::new(Parameters { capacity: 1 << 20, ..Parameters::default() });
    let config = config.expect("there can be such a disk");
    let mut server = Box::new(Server::<256>::new(config, 0));
    let state = State::at_reset(features);
    let queue = Queue::new(&window, driver.layout(), features, state).expect("the rings are right");
    server.start(queue, config.features());
    let chains: Vec<(u64, [Buffer; 3])> = (0..DEPTH)
        .map(|_| {
            let buffers = [heap.put(&[0; 16]), heap.room(4096), heap.room(1)];
            (heap.take(48, 16), buffers)
        })
        .collect();
    let mut served = 0;
    for _ in 0..ROUNDS {
        for (table, buffers) in &chains {
            let added =
                if indirect { driver.add_indirect(*table, buffers) } else { driver.add(buffers) };
            added.expect("the ring has room");
        }
        served += turn(&mut server, &window, &mut Null);
        while driver.used().is_some() {}
    }
    println!("{served} requests");
}
