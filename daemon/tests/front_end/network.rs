//! A front end of a network with many rings, each in a part of its memory.
#![allow(dead_code, reason = "each test uses a part")]

use super::wire::{LIMIT, Wire, words32, words64};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

const USER: u64 = 0x7000_0000_0000;
/// What is where in the part of each ring.
const PART: u64 = 0x4_0000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const BUFFERS: u64 = 0x1_0000;
const BUFFER: u64 = 0x800;
const ELEMENTS: u16 = 64;
const HEADER: usize = 12;

/// VIRTIO_NET_F_CTRL_VQ, CTRL_RX, MQ.
pub const CTRL_VQ: u64 = 1 << 17;
pub const CTRL_RX: u64 = 1 << 18;
pub const MQ: u64 = 1 << 22;
/// VIRTIO_F_VERSION_1 and protocol features.
const ALWAYS: u64 = 1 << 32 | 1 << 30;

/// It, with its guest's memory.
pub struct Network {
    pub wire: Wire,
    memory: File,
    rings: Vec<Ring>,
}

struct Ring {
    kick: OwnedFd,
    call: OwnedFd,
    /// What was offered, and what was seen used.
    offered: u16,
    seen: u16,
}

impl Network {
    /// So many rings run, the receive rings with a buffer in each element; a driver accepted this.
    pub fn connect(path: &str, rings: u32, features: u64) -> Network {
        let mut front = Self::begin(path, rings, features);
        for ring in 0..rings {
            front.set_up(ring, 0);
            front.enable(ring, true);
        }
        front
    }

    /// The same, but that no ring was said anything of.
    pub fn begin(path: &str, rings: u32, features: u64) -> Network {
        let mut wire = Wire::connect(path);
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd"));
        memory.set_len(u64::from(rings) * PART).expect("it grows");
        let offered = u64::from_le_bytes(wire.ask(1, &[]).try_into().expect("a word"));
        let accepted = ALWAYS | features;
        assert_eq!(offered & accepted, accepted);
        let protocol = wire.ask(15, &[]);
        wire.send(16, 1, &protocol, &[]);
        wire.tell(2, &accepted.to_le_bytes(), &[]);
        let event = || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        let ring = |_| Ring { kick: event(), call: event(), offered: 0, seen: 0 };
        let mut front = Network { wire, memory, rings: (0..rings).map(ring).collect() };
        front.say_memory();
        front
    }

    /// Says where its memory is.
    pub fn say_memory(&mut self) {
        let len = self.rings.len() as u64 * PART;
        let region = [words32([1, 0]), words64([0, len, USER, 0])].concat();
        self.wire.tell(5, &region, &[self.memory.as_fd()]);
    }

    /// All that a ring needs but to be enabled. A receive ring, which is one of an even number with
    /// another one behind it, gets buffers.
    pub fn set_up(&mut self, ring: u32, base: u16) {
        let part = u64::from(ring) * PART;
        if ring.is_multiple_of(2) && ring as usize + 1 < self.rings.len() {
            for element in 0..ELEMENTS {
                self.describe(ring, element, BUFFER as u32, 2, 0);
                let at = part + AVAILABLE + 4 + 2 * u64::from(element);
                self.put(at, &element.to_le_bytes());
            }
            let end = base.wrapping_add(ELEMENTS);
            self.put(part + AVAILABLE + 2, &end.to_le_bytes());
        }
        self.wire.tell(8, &words32([ring, ELEMENTS.into()]), &[]);
        self.wire.tell(10, &words32([ring, base.into()]), &[]);
        let places = [0, USED, AVAILABLE].map(|at| USER + part + at);
        self.wire.tell(9, &[words32([ring, 0]), words64(places), words64([0])].concat(), &[]);
        let Ring { kick, call, .. } = &self.rings[ring as usize];
        self.wire.tell(13, &words64([ring.into()]), &[call.as_fd()]);
        self.wire.tell(12, &words64([ring.into()]), &[kick.as_fd()]);
    }

    /// The same after a reset, from the start, and enabled.
    pub fn set_up_again(&mut self, ring: u32) {
        let state = &mut self.rings[ring as usize];
        (state.offered, state.seen) = (0, 0);
        let part = u64::from(ring) * PART;
        self.put(part + AVAILABLE, &[0; 4]);
        self.put(part + USED, &[0; 4]);
        self.set_up(ring, 0);
        self.enable(ring, true);
    }

    pub fn enable(&mut self, ring: u32, on: bool) {
        self.wire.tell(18, &words32([ring, on.into()]), &[]);
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("in memory");
    }

    pub fn describe(&self, ring: u32, element: u16, len: u32, flags: u16, next: u16) {
        let address = u64::from(ring) * PART + BUFFERS + u64::from(element) * BUFFER;
        self.describe_at(ring, element, address, len, flags, next);
    }

    /// A descriptor of memory that may be none.
    pub fn describe_at(
        &self,
        ring: u32,
        element: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let part = u64::from(ring) * PART;
        let tail = [flags.to_le_bytes(), next.to_le_bytes()].concat();
        let bytes = [words64([address]), words32([len]), tail].concat();
        self.put(part + 16 * u64::from(element), &bytes);
    }

    /// Offers what begins at this descriptor, as if it were so many chains, and kicks.
    pub fn offer(&mut self, ring: u32, head: u16, count: u16) {
        let part = u64::from(ring) * PART;
        let state = &mut self.rings[ring as usize];
        let at = part + AVAILABLE + 4 + 2 * u64::from(state.offered % ELEMENTS);
        state.offered = state.offered.wrapping_add(count);
        let (offered, place) = (state.offered, part + AVAILABLE + 2);
        self.put(at, &head.to_le_bytes());
        self.put(place, &offered.to_le_bytes());
        self.kick(ring);
    }

    pub fn kick(&self, ring: u32) {
        let kick = &self.rings[ring as usize].kick;
        rustix::io::write(kick, &1u64.to_ne_bytes()).expect("the kick is told");
    }

    /// Offers what begins at the first descriptor, and waits until it is taken.
    fn take_first(&mut self, ring: u32) {
        self.offer(ring, 0, 1);
        while self.used(ring) != self.rings[ring as usize].offered {
            self.wait(&[ring]);
        }
    }

    /// Its memory has so many bytes from now on.
    pub fn resize(&self, len: u64) {
        self.memory.set_len(len).expect("it is ours");
    }

    /// Sends a frame by this ring, and waits until it is taken.
    pub fn send(&mut self, ring: u32, frame: &[u8]) {
        self.send_as(ring, &[0; HEADER], frame);
    }

    /// The same, behind this header.
    pub fn send_as(&mut self, ring: u32, header: &[u8; HEADER], frame: &[u8]) {
        let bytes = [&header[..], frame].concat();
        self.put(u64::from(ring) * PART + BUFFERS, &bytes);
        self.describe(ring, 0, bytes.len() as u32, 0, 0);
        self.take_first(ring);
    }

    /// Has a command carried out by the last ring: the answer.
    pub fn command(&mut self, class: u8, command: u8, data: &[u8]) -> u8 {
        let ring = self.rings.len() as u32 - 1;
        let part = u64::from(ring) * PART;
        let bytes = [&[class, command], data].concat();
        self.put(part + BUFFERS, &bytes);
        self.put(part + BUFFERS + BUFFER, &[0xee]);
        self.describe(ring, 0, bytes.len() as u32, 1, 1);
        self.describe(ring, 1, 1, 2, 0);
        self.take_first(ring);
        let mut answer = [0];
        self.memory.read_exact_at(&mut answer, part + BUFFERS + BUFFER).expect("in memory");
        answer[0]
    }

    pub fn used(&self, ring: u32) -> u16 {
        let mut used = [0; 2];
        let at = u64::from(ring) * PART + USED + 2;
        self.memory.read_exact_at(&mut used, at).expect("in memory");
        u16::from_le_bytes(used)
    }

    /// Waits until so many frames have come by these rings, and offers their buffers anew: how many
    /// by each.
    pub fn receive<const N: usize>(&mut self, rings: [u32; N], count: u16) -> [u16; N] {
        let new = |front: &Self, ring: u32| {
            front.used(ring).wrapping_sub(front.rings[ring as usize].seen)
        };
        while rings.iter().map(|ring| new(self, *ring)).sum::<u16>() < count {
            self.wait(&rings);
        }
        rings.map(|ring| {
            let (part, count) = (u64::from(ring) * PART, new(self, ring));
            let seen = self.used(ring);
            self.rings[ring as usize].seen = seen;
            // Buffers come back in their order, so the ring's elements name them still.
            self.put(part + AVAILABLE + 2, &seen.wrapping_add(ELEMENTS).to_le_bytes());
            count
        })
    }

    fn wait(&self, rings: &[u32]) {
        let call = |ring: &u32| &self.rings[*ring as usize].call;
        let wait = |ring| PollFd::new(call(ring), PollFlags::IN);
        let mut waits: Vec<_> = rings.iter().map(wait).collect();
        assert!(poll(&mut waits, Some(&LIMIT)).is_ok_and(|told| told > 0), "no call came");
        for ring in rings {
            let _ = rustix::io::read(call(ring), &mut [0; 8]);
        }
    }
}

/// A frame to all, of this flow.
pub fn flow(number: u8) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[8, 0, 0x45, 0, 0, 28]].concat();
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([4, number, 0, 53, 0, 8, 0, 0]);
    frame.resize(60, 0);
    frame
}
