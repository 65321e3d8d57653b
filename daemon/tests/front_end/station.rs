//! A front end of a network: a receive ring and a transmit ring.
#![allow(dead_code, reason = "each test uses a part")]

use super::wire::{LIMIT, Wire, words32, words64};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

const LEN: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000_0000;
/// What is where in the part of each ring.
const PART: u64 = 0x8_0000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const BUFFERS: u64 = 0x1_0000;
const BUFFER: u64 = 0x800;
const ELEMENTS: u16 = 8;
const HEADER: usize = 12;
/// VIRTIO_F_VERSION_1, protocol features, VIRTIO_NET_F_MAC.
const ACCEPTED: u64 = 1 << 32 | 1 << 30 | 1 << 5;

/// It, with its guest's memory.
pub struct Station {
    wire: Wire,
    memory: File,
    kicks: [OwnedFd; 2],
    calls: [OwnedFd; 2],
    sent: u16,
    received: u16,
}

impl Station {
    /// Both rings run, and the receive ring has a buffer in each element.
    pub fn connect(path: &str) -> Station {
        Self::with(path, 0)
    }

    /// The same, and its driver accepts these features, too.
    pub fn with(path: &str, features: u64) -> Station {
        let accepted = ACCEPTED | features;
        let mut wire = Wire::connect(path);
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd"));
        memory.set_len(LEN).expect("it grows");
        let event = || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        let (kicks, calls) = ([event(), event()], [event(), event()]);
        let offered = u64::from_le_bytes(wire.ask(1, &[]).try_into().expect("a word"));
        assert_eq!(offered & accepted, accepted);
        let protocol = wire.ask(15, &[]);
        wire.send(16, 1, &protocol, &[]);
        // As QEMU's network: rings are enabled first.
        for ring in 0..2 {
            wire.tell(18, &words32([ring, 1]), &[]);
        }
        wire.tell(2, &accepted.to_le_bytes(), &[]);
        let region = [words32([1, 0]), words64([0, LEN, USER, 0])].concat();
        wire.tell(5, &region, &[memory.as_fd()]);
        let station = Station { wire, memory, kicks, calls, sent: 0, received: 0 };
        for element in 0..u64::from(ELEMENTS) {
            station.describe(0, element, BUFFER as u32, 2);
            station.put(AVAILABLE + 4 + 2 * element, &(element as u16).to_le_bytes());
        }
        station.put(AVAILABLE + 2, &ELEMENTS.to_le_bytes());
        station.start()
    }

    fn start(mut self) -> Station {
        for ring in [0, 1] {
            let part = USER + u64::from(ring) * PART;
            self.wire.tell(8, &words32([ring, ELEMENTS.into()]), &[]);
            self.wire.tell(10, &words32([ring, 0]), &[]);
            let places = [0, USED, AVAILABLE].map(|at| part + at);
            let places = [words32([ring, 0]), words64(places), words64([0])].concat();
            self.wire.tell(9, &places, &[]);
            let word = words64([ring.into()]);
            self.wire.tell(12, &word, &[self.kicks[ring as usize].as_fd()]);
            self.wire.tell(13, &word, &[self.calls[ring as usize].as_fd()]);
        }
        self
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("in memory");
    }

    fn describe(&self, part: u64, element: u64, len: u32, flags: u16) {
        let address = part + BUFFERS + element * BUFFER;
        let tail = [flags.to_le_bytes(), [0, 0]].concat();
        self.put(part + 16 * element, &[words64([address]), words32([len]), tail].concat());
    }

    /// Sends a frame, and waits until it is taken.
    pub fn send(&mut self, frame: &[u8]) {
        self.send_as(&[0; HEADER], frame);
    }

    /// The same, behind this header.
    pub fn send_as(&mut self, header: &[u8; HEADER], frame: &[u8]) {
        let bytes = [header, frame].concat();
        self.put(PART + BUFFERS, &bytes);
        self.describe(PART, 0, bytes.len() as u32, 0);
        self.put(PART + AVAILABLE + 4 + 2 * u64::from(self.sent % ELEMENTS), &[0, 0]);
        self.sent = self.sent.wrapping_add(1);
        self.put(PART + AVAILABLE + 2, &self.sent.to_le_bytes());
        rustix::io::write(&self.kicks[1], &1u64.to_ne_bytes()).expect("the kick is told");
        self.wait(1, self.sent, &LIMIT);
    }

    /// The next frame that comes.
    pub fn receive(&mut self) -> Vec<u8> {
        self.receive_within(&LIMIT).split_off(HEADER)
    }

    /// The same, behind its header.
    pub fn receive_whole(&mut self) -> Vec<u8> {
        self.receive_within(&LIMIT)
    }

    /// The next frame that comes, from a guest that takes minutes to send one.
    pub fn receive_from_firmware(&mut self) -> Vec<u8> {
        self.receive_within(&Timespec { tv_sec: 300, tv_nsec: 0 }).split_off(HEADER)
    }

    fn receive_within(&mut self, limit: &Timespec) -> Vec<u8> {
        let at = u64::from(self.received % ELEMENTS);
        self.received = self.received.wrapping_add(1);
        self.wait(0, self.received, limit);
        let mut element = [0; 8];
        self.memory.read_exact_at(&mut element, USED + 4 + 8 * at).expect("in memory");
        let [id, _, _, _, len @ ..] = element;
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        let buffer = BUFFERS + u64::from(id) * BUFFER;
        self.memory.read_exact_at(&mut bytes, buffer).expect("in memory");
        self.put(AVAILABLE + 4 + 2 * at, &[id, 0]);
        self.put(AVAILABLE + 2, &self.received.wrapping_add(ELEMENTS).to_le_bytes());
        bytes
    }

    /// Frames that came and weren't received.
    pub fn waiting(&self) -> u16 {
        self.used(0).wrapping_sub(self.received)
    }

    /// Stops the receive ring, and starts it where it was.
    pub fn stop_and_go_on(mut self) -> Station {
        let reply = self.wire.ask(11, &words32([0, 0]));
        let base = u32::from_le_bytes(reply[4..8].try_into().expect("a word"));
        assert_eq!(base, u32::from(self.used(0)), "buffers for frames to come are taken again");
        self.wire.tell(10, &words32([0, base]), &[]);
        self.wire.tell(12, &words64([0]), &[self.kicks[0].as_fd()]);
        self
    }

    fn used(&self, part: u64) -> u16 {
        let mut used = [0; 2];
        self.memory.read_exact_at(&mut used, part + USED + 2).expect("in memory");
        u16::from_le_bytes(used)
    }

    fn wait(&self, ring: usize, index: u16, limit: &Timespec) {
        while (self.used(ring as u64 * PART).wrapping_sub(index) as i16) < 0 {
            let mut waits = [PollFd::from_borrowed_fd(self.calls[ring].as_fd(), PollFlags::IN)];
            assert_eq!(poll(&mut waits, Some(limit)), Ok(1), "no call came");
            rustix::io::read(&self.calls[ring], &mut [0; 8]).expect("there is one");
        }
    }
}
