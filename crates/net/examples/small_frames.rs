//! Instructions of a frame of 64 bytes from one guest to another, both rings and all:
//! `valgrind --tool=callgrind --toggle-collect='*turn*' target/release/examples/small_frames`,
//! divided by the frames it says. The drivers' part isn't counted.
#[path = "../../virtqueue/tests/driver/mod.rs"]
mod driver;

use driver::{Buffer, Driver, Heap};
use net::{Config, Mac, Parameters, Plan, PortNumber, Switch};
use virtqueue::{Features, Queue, State};
use window::{Memory, Window};

const ROUNDS: usize = 1000;
const MEMORY: u64 = 1 << 20;

struct Guest {
    port: PortNumber,
    drivers: [Box<dyn Driver>; 2],
    _memory: Memory,
}

fn guest(switch: &mut Switch, number: u8, features: Features) -> (Guest, Heap, Window) {
    let memory = Memory::new(&[(0, MEMORY)], 0);
    let window = memory.window();
    let mut heap = Heap::new(window, 0, MEMORY);
    let mac = Mac([2, 0, 0, 0, 0, number]);
    let config = Config::new(Parameters { mac, packed: features.packed, ..Parameters::default() });
    let config = config.expect("there can be such a device");
    let port = switch.add(config, Plan::default()).expect("there is room");
    switch.start(port, window, config.features());
    let drivers = [0, 1].map(|index| {
        let driver = driver::driver(&mut heap, 128, features);
        let state = State::at_reset(features);
        let queue = Queue::new(&window, driver.layout(), features, state);
        let mut queue: Queue = queue.expect("the rings are right");
        queue.suppress_kicks();
        switch.attach(port, index, queue).expect("it has such a queue");
        driver
    });
    (Guest { port, drivers, _memory: memory }, heap, window)
}

/// What is counted: all that waits, in one turn of the scheduler, told at its end.
#[inline(never)]
fn turn(switch: &mut Switch, from: PortNumber) -> u64 {
    let mut bytes = 0;
    while switch.waiting(from, 1, 1) > 0 {
        let Ok(outcome) = switch.serve_burst(from, 1, 1) else { break };
        bytes += outcome.bytes;
        if let Some(queue) = switch.queue(from, 1) {
            queue.publish();
        }
    }
    while let Some(touched) = switch.touched() {
        if let Some(queue) = switch.queue(touched.port, touched.queue) {
            queue.publish();
            std::hint::black_box(queue.wants_call());
        }
    }
    if let Some(queue) = switch.queue(from, 1) {
        std::hint::black_box(queue.wants_call());
    }
    bytes
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is = |word: &str| words.iter().any(|argument| argument == word);
    let depth = words.iter().find_map(|word| word.parse().ok()).unwrap_or(8).min(128);
    let packed = is("packed");
    let features = Features { indirect: true, event_index: true, packed };
    let mut switch: Switch = Switch::new(2, 1 << 40);
    let (mut one, mut heap, _) = guest(&mut switch, 1, features);
    let (mut other, mut room, _) = guest(&mut switch, 2, features);
    // Header, addresses, a type that nobody knows, and what is in it.
    let mut frame = [0_u8; 12 + 64];
    frame[12..24].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame[24..26].copy_from_slice(&[0x88, 0xB5]);
    let sent: Vec<Buffer> = (0..depth).map(|_| heap.put(&frame)).collect();
    let received: Vec<Buffer> = (0..depth).map(|_| room.room(2048)).collect();
    let (mut frames, mut bytes) = (0, 0);
    for _ in 0..ROUNDS {
        for (sent, received) in sent.iter().zip(&received) {
            other.drivers[0].add(&[*received]).expect("the ring has room");
            one.drivers[1].add(&[*sent]).expect("the ring has room");
        }
        bytes += turn(&mut switch, one.port);
        while one.drivers[1].used().is_some() {}
        while other.drivers[0].used().is_some() {
            frames += 1;
        }
    }
    println!("{frames} frames, {bytes} bytes");
}
