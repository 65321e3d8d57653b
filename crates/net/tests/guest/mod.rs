//! Guests at a switch: each with memory of its own, a driver for each queue, and a port.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../virtqueue/tests/driver/mod.rs"]
mod driver;
pub mod hostile;
pub mod wire;

use driver::{Buffer, Driver, Heap};
use net::config::QueueKind;
use net::header::{HEADER_BYTES, Header};
use net::{Broken, Config, Features, Mac, Outcome, Parameters, Plan, PortNumber, Switch};
use std::collections::BTreeMap;
use virtqueue::{Queue, State};
use window::{Memory, Window};

pub const SECOND: u64 = 1_000_000_000;
const RING: u16 = 256;
/// Where things are in a guest's memory: rings, then what is sent, then what is received.
const SENT: u64 = 1 << 20;
const RECEIVED: u64 = 4 << 20;
const MEMORY: u64 = 16 << 20;

/// A chain's buffers.
type Buffers = Vec<(u64, u32)>;

pub struct Guest {
    _memory: Memory,
    pub window: Window,
    pub port: PortNumber,
    pub accepted: Features,
    pub config: Config,
    drivers: BTreeMap<u16, Box<dyn Driver>>,
    /// By queue and number: the writable buffers.
    posted: BTreeMap<(u16, u16), Buffers>,
    /// Where the next thing is.
    next_sent: u64,
    next_received: u64,
    /// Chains that were sent and came back.
    pub returned: u64,
}

pub struct Lan {
    pub switch: Switch,
    pub guests: Vec<Guest>,
    pub now: u64,
    /// Receive queues that were reported as broken.
    pub broken: Vec<(PortNumber, u16, Broken)>,
}

/// The address of the guest of this number.
pub fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number + 1])
}

/// Parameters of the guest of this number.
pub fn parameters(number: u8) -> Parameters {
    Parameters { mac: mac(number), packed: number % 2 == 1, ..Parameters::default() }
}

/// A frame of a type that nobody knows, with these bytes.
pub fn frame(to: Mac, from: Mac, data: &[u8]) -> Vec<u8> {
    [&to.0[..], &from.0, &[0x88, 0xb5], data].concat()
}

impl Lan {
    pub fn new() -> Lan {
        let switch = Switch::new(8, 300 * SECOND);
        Lan { switch, guests: Vec::new(), now: SECOND, broken: Vec::new() }
    }

    /// Guests of all features and this plan, with receive buffers of `room` bytes.
    pub fn of(count: u8, plan: Plan, room: u32) -> Lan {
        let mut lan = Lan::new();
        for number in 0..count {
            let guest = lan.add(parameters(number), plan, Features::empty());
            lan.post_many(guest, 100, room);
        }
        lan
    }

    /// A guest whose driver accepts all but `declined`. Its queues are attached.
    pub fn add(&mut self, asked: Parameters, plan: Plan, declined: Features) -> usize {
        let memory = Memory::new(&[(0, MEMORY)], 1 << 40);
        let config = Config::new(asked).unwrap();
        let accepted = config.accept((config.features() - declined).bits()).unwrap();
        let port = self.switch.add(config, plan).unwrap();
        self.guests.push(Guest {
            window: memory.window(),
            _memory: memory,
            port,
            accepted,
            config,
            drivers: BTreeMap::new(),
            posted: BTreeMap::new(),
            next_sent: SENT,
            next_received: RECEIVED,
            returned: 0,
        });
        let guest = self.guests.len() - 1;
        self.reset(guest);
        guest
    }

    /// Resets the device, and sets up all its queues.
    pub fn reset(&mut self, guest: usize) {
        let Lan { switch, guests, .. } = self;
        let guest = &mut guests[guest];
        switch.stop(guest.port);
        guest.window.span(0, SENT).unwrap().fill(0);
        guest.posted.clear();
        guest.drivers.clear();
        (guest.next_sent, guest.next_received) = (SENT, RECEIVED);
        switch.start(guest.port, guest.window, guest.accepted);
        let mut heap = Heap::new(guest.window, 0, SENT);
        let features = virtqueue::Features {
            indirect: guest.accepted.contains(Features::INDIRECT_DESC),
            event_index: guest.accepted.contains(Features::EVENT_IDX),
            packed: guest.accepted.contains(Features::RING_PACKED),
        };
        for index in 0.. {
            if guest.config.queue(index, guest.accepted).is_none() {
                break;
            }
            let driver = driver::driver(&mut heap, RING, features);
            let state = State::at_reset(features);
            let queue = Queue::new(&guest.window, driver.layout(), features, state).unwrap();
            switch.attach(guest.port, index, queue).unwrap();
            guest.drivers.insert(index, driver);
        }
    }

    /// Offers a chain of receive buffers of these lengths in this pair.
    pub fn post(&mut self, guest: usize, pair: u16, lens: &[u32]) {
        let guest = &mut self.guests[guest];
        let mut buffers = Vec::new();
        for len in lens {
            if guest.next_received + u64::from(*len) > MEMORY {
                guest.next_received = RECEIVED;
            }
            buffers.push((guest.next_received, *len));
            guest.next_received += u64::from(*len);
        }
        guest.offer(2 * pair, &buffers, true);
    }

    pub fn post_many(&mut self, guest: usize, count: usize, len: u32) {
        for _ in 0..count {
            self.post(guest, 0, &[len]);
        }
    }

    /// Sends a frame by this pair, in buffers that end at these places of header and frame.
    pub fn send_cut(
        &mut self,
        guest: usize,
        pair: u16,
        header: Header,
        frame: &[u8],
        cuts: &[usize],
    ) {
        let bytes = [&header.bytes(), frame].concat();
        self.guests[guest].give(2 * pair + 1, &bytes, cuts);
    }

    /// Sends a frame that is complete.
    pub fn send(&mut self, guest: usize, frame: &[u8]) {
        self.send_cut(guest, 0, Header::default(), frame, &[HEADER_BYTES]);
    }

    /// A turn of this pair's transmit queue. What it touched is published.
    pub fn turn(&mut self, guest: usize, pair: u16) -> Result<Outcome, Broken> {
        self.serve(guest, 2 * pair + 1)
    }

    pub fn serve(&mut self, guest: usize, index: u16) -> Result<Outcome, Broken> {
        self.serve_as(guest, index, Switch::serve)
    }

    /// The same of many frames.
    pub fn burst(&mut self, guest: usize) -> Result<Outcome, Broken> {
        self.serve_as(guest, 1, Switch::serve_burst)
    }

    fn serve_as(
        &mut self,
        guest: usize,
        index: u16,
        serve: fn(&mut Switch, PortNumber, u16, u64) -> Result<Outcome, Broken>,
    ) -> Result<Outcome, Broken> {
        let port = self.guests[guest].port;
        let outcome = serve(&mut self.switch, port, index, self.now);
        while let Some(touched) = self.switch.touched() {
            if let Some(broken) = touched.broken {
                self.broken.push((touched.port, touched.queue, broken));
            } else {
                self.switch.queue(touched.port, touched.queue).unwrap().publish();
            }
        }
        self.switch.queue(port, index).expect("it is attached").publish();
        let guest = &mut self.guests[guest];
        while index % 2 == 1
            && let Some((_, written)) = guest.drivers.get_mut(&index).unwrap().used()
        {
            assert_eq!(0, written);
            guest.returned += 1;
        }
        outcome
    }

    /// Sends and serves.
    pub fn pass(&mut self, guest: usize, header: Header, frame: &[u8]) -> Outcome {
        self.send_cut(guest, 0, header, frame, &[HEADER_BYTES]);
        let outcome = self.turn(guest, 0).unwrap();
        assert_eq!((1, true), (outcome.completed, outcome.more));
        outcome
    }

    /// What arrived in this pair: headers and frames. Its buffers aren't offered again.
    pub fn received_by(&mut self, guest: usize, pair: u16) -> Vec<(Header, Vec<u8>)> {
        let guest = &mut self.guests[guest];
        let mut all = Vec::new();
        while let Some(first) = guest.take(2 * pair) {
            let mut bytes = first;
            let header = Header::parse(bytes.first_chunk().expect("a buffer begins with it"));
            for _ in 1..header.num_buffers {
                bytes.extend(guest.take(2 * pair).expect("num_buffers is right"));
            }
            assert!(header.num_buffers >= 1);
            all.push((header, bytes.split_off(HEADER_BYTES)));
        }
        all
    }

    /// The frames that arrived in the first pair.
    pub fn received(&mut self, guest: usize) -> Vec<Vec<u8>> {
        self.received_by(guest, 0).into_iter().map(|(_, frame)| frame).collect()
    }

    /// Has a command carried out: the answer.
    pub fn command(&mut self, guest: usize, class: u8, command: u8, data: &[u8]) -> u8 {
        self.command_cut(guest, [class, command], data, &[2])
    }

    /// The same, in buffers that end at these places.
    pub fn command_cut(
        &mut self,
        guest: usize,
        command: [u8; 2],
        data: &[u8],
        cuts: &[usize],
    ) -> u8 {
        let index = (0..).find(|index| {
            let Guest { config, accepted, .. } = &self.guests[guest];
            config.queue(*index, *accepted) == Some(QueueKind::Control)
        });
        let index = index.unwrap();
        let bytes = [&command, data].concat();
        let readable = self.guests[guest].put(&bytes, cuts);
        let answer = self.guests[guest].put(&[0xee], &[]);
        let mut buffers = readable;
        buffers.push(Buffer { writable: true, ..answer[0] });
        let number = self.guests[guest].drivers.get_mut(&index).unwrap().add(&buffers).unwrap();
        assert_eq!(1, self.serve(guest, index).unwrap().completed);
        let guest = &mut self.guests[guest];
        assert_eq!(Some((number, 1)), guest.drivers.get_mut(&index).unwrap().used());
        let mut byte = [0];
        guest.window.read(answer[0].address, &mut byte).unwrap();
        byte[0]
    }

    /// How many more descriptors its first receive queue surely has.
    pub fn room(&self, guest: usize) -> usize {
        let posted = self.guests[guest].posted.iter().filter(|((index, _), _)| *index == 0);
        usize::from(RING) - posted.map(|(_, buffers)| buffers.len()).sum::<usize>()
    }

    pub fn statistics(&self, guest: usize) -> net::Statistics {
        self.switch.statistics(self.guests[guest].port)
    }
}

impl Guest {
    /// Puts bytes into memory, in buffers that end at these places.
    fn put(&mut self, bytes: &[u8], cuts: &[usize]) -> Vec<Buffer> {
        if self.next_sent + bytes.len() as u64 > RECEIVED {
            self.next_sent = SENT;
        }
        let at = self.next_sent;
        self.window.write(at, bytes).unwrap();
        self.next_sent += bytes.len() as u64;
        let mut ends: Vec<usize> = cuts.iter().map(|cut| (*cut).min(bytes.len())).collect();
        ends.push(bytes.len());
        ends.sort();
        let mut start = 0;
        let buffers = ends.iter().filter_map(|end| {
            let (from, len) = (start, end - start);
            start = *end;
            let address = at + from as u64;
            (len > 0).then_some(Buffer { address, len: len as u32, writable: false })
        });
        buffers.collect()
    }

    /// Sends any bytes.
    pub fn give(&mut self, index: u16, bytes: &[u8], cuts: &[usize]) {
        self.try_give(index, bytes, cuts).expect("the ring has room");
    }

    /// Sends any bytes, if the ring has room.
    pub fn try_give(&mut self, index: u16, bytes: &[u8], cuts: &[usize]) -> Option<u16> {
        let buffers = self.put(bytes, cuts);
        self.drivers.get_mut(&index)?.add(&buffers)
    }

    /// Sends a command of any bytes, with room for an answer.
    pub fn try_command(&mut self, index: u16, bytes: &[u8]) -> Option<u16> {
        let mut buffers = self.put(bytes, &[]);
        buffers.extend(self.put(&[0xee], &[]).into_iter().map(|b| Buffer { writable: true, ..b }));
        self.drivers.get_mut(&index)?.add(&buffers)
    }

    /// Offers any one buffer.
    pub fn try_offer(&mut self, index: u16, address: u64, len: u32, writable: bool) -> Option<u16> {
        self.drivers.get_mut(&index)?.add(&[Buffer { address, len, writable }])
    }

    /// Offers a chain of buffers that it has already.
    pub fn offer(&mut self, index: u16, buffers: &[(u64, u32)], writable: bool) {
        self.offer_mixed(index, buffers, |_| writable);
    }

    /// The same, some of which may be written.
    pub fn offer_mixed(
        &mut self,
        index: u16,
        buffers: &[(u64, u32)],
        writable: impl Fn(usize) -> bool,
    ) {
        let buffer = |(at, (address, len)): (usize, &(u64, u32))| Buffer {
            address: *address,
            len: *len,
            writable: writable(at),
        };
        let chain: Vec<Buffer> = buffers.iter().enumerate().map(buffer).collect();
        let number = self.drivers.get_mut(&index).unwrap().add(&chain).expect("there is room");
        self.posted.insert((index, number), buffers.to_vec());
    }

    /// The bytes of the next receive buffer that is used.
    fn take(&mut self, index: u16) -> Option<Vec<u8>> {
        let (number, written) = self.drivers.get_mut(&index)?.used()?;
        let buffers = self.posted.remove(&(index, number)).expect("it was offered");
        let mut bytes = Vec::new();
        for (at, len) in buffers {
            let mut part = vec![0; len as usize];
            self.window.read(at, &mut part).unwrap();
            bytes.extend(part);
        }
        assert!(written as usize <= bytes.len());
        bytes.truncate(written as usize);
        Some(bytes)
    }
}
