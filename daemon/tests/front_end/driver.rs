//! A front end with one ring of one request at a time.
#![allow(dead_code, reason = "each test uses a part")]

use super::daemon::Daemon;
use super::wire::{LIMIT, Wire, words32, words64};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;

/// Types of requests.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;

/// The memory: its length, and its address in this front end, as it says.
const LEN: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000_0000;
/// What is where in it.
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADER: u64 = 0x3000;
const DATA: u64 = 0x4000;
const STATUS: u64 = 0x5000;
const ELEMENTS: u16 = 8;

/// What is where, for others that set up this ring.
pub struct Ring {
    pub len: u64,
    pub user: u64,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub elements: u16,
}

pub const RING: Ring = Ring {
    len: LEN,
    user: USER,
    descriptors: DESCRIPTORS,
    available: AVAILABLE,
    used: USED,
    elements: ELEMENTS,
};

/// A front end, with its guest's memory.
pub struct FrontEnd {
    pub wire: Wire,
    memory: File,
    kick: OwnedFd,
    call: OwnedFd,
    records: Option<(Vec<u8>, OwnedFd)>,
    offered: u16,
}

impl FrontEnd {
    pub fn connect(daemon: &Daemon) -> FrontEnd {
        Self::new(Wire::connect(&daemon.socket()))
    }

    /// Its disk of this socket's name, with a ring that runs.
    pub fn at(daemon: &Daemon, name: &str) -> FrontEnd {
        let mut front = Self::new(Wire::connect(&daemon.path(name)));
        front.set_up(0, false);
        front
    }

    /// What is written is read.
    pub fn works(&mut self) {
        self.offer(OUT, 1, &[0xa5; 512]);
        assert_eq!(self.answer(), 0);
        self.offer(IN, 1, &[0; 512]);
        assert_eq!((self.answer(), self.data()), (0, [0xa5; 512]));
    }

    /// The guest's side alone: others talk to the daemon.
    pub fn apart() -> FrontEnd {
        Self::new(Wire::new(UnixStream::pair().expect("a pair").0))
    }

    pub fn new(wire: Wire) -> FrontEnd {
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd"));
        memory.set_len(LEN).expect("it grows");
        let event = || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        let (kick, call) = (event(), event());
        FrontEnd { wire, memory, kick, call, records: None, offered: 0 }
    }

    pub fn connect_again(&mut self, daemon: &Daemon) {
        self.wire = Wire::connect(&daemon.socket());
    }

    /// All that a ring needs. With `records`, memory for them is made the first time and handed
    /// over.
    pub fn set_up(&mut self, base: u32, records: bool) {
        let offered = self.wire.ask(1, &[]);
        let word = u64::from_le_bytes(offered.try_into().expect("a word"));
        assert!(word & (1 << 32 | 1 << 30) == 1 << 32 | 1 << 30);
        let protocol = self.wire.ask(15, &[]);
        self.wire.send(16, 1, &protocol, &[]);
        self.wire.tell(2, &(1u64 << 32 | 1 << 30 | 1 << 9).to_le_bytes(), &[]);
        let config = [words32([0, 57, 0]), vec![0; 57]].concat();
        assert_eq!(self.wire.ask(24, &config)[12..20], 2048u64.to_le_bytes());
        if records {
            let (described, file) = self.records.take().unwrap_or_else(|| {
                self.wire.send(31, 1, &[&[0; 16][..], &[1, 0, 8, 0, 0, 0, 0, 0]].concat(), &[]);
                let (reply, file) = self.wire.receive();
                (reply, file.expect("memory for records"))
            });
            self.wire.tell(32, &described, &[file.as_fd()]);
            self.records = Some((described, file));
        }
        let region = [words32([1, 0]), words64([0, LEN, USER, 0])].concat();
        let memory = self.memory.try_clone().expect("a copy");
        self.wire.tell(5, &region, &[memory.as_fd()]);
        self.start(base);
    }

    /// A ring without memory, as of a front end whose guest's isn't shared.
    pub fn shares_no_memory(&mut self) {
        self.wire.ask(1, &[]);
        let protocol = self.wire.ask(15, &[]);
        self.wire.send(16, 1, &protocol, &[]);
        self.wire.send(2, 1, &(1u64 << 32 | 1 << 30).to_le_bytes(), &[]);
        self.wire.send(8, 1, &words32([0, ELEMENTS.into()]), &[]);
        self.wire.send(10, 1, &words32([0, 0]), &[]);
        let places = [DESCRIPTORS, USED, AVAILABLE].map(|at| USER + at);
        let addresses = [words32([0, 0]), words64(places), words64([0])].concat();
        self.wire.send(9, 1, &addresses, &[]);
        let kick = self.kick.try_clone().expect("a copy");
        self.wire.send(12, 1, &words64([0]), &[kick.as_fd()]);
        self.wire.send(18, 1, &words32([0, 1]), &[]);
    }

    /// Hands over new memory for records, whether the ring runs or not: its file.
    pub fn change_records(&mut self) -> File {
        self.wire.send(31, 1, &[&[0; 16][..], &[1, 0, 8, 0, 0, 0, 0, 0]].concat(), &[]);
        let (described, file) = self.wire.receive();
        let file = file.expect("memory for records");
        self.wire.tell(32, &described, &[file.as_fd()]);
        let copy = file.try_clone().expect("a copy");
        self.records = Some((described, file));
        copy.into()
    }

    /// Starts the ring; the base comes before the addresses.
    pub fn start(&mut self, base: u32) {
        self.wire.tell(8, &words32([0, ELEMENTS.into()]), &[]);
        self.wire.tell(10, &words32([0, base]), &[]);
        let places = [DESCRIPTORS, USED, AVAILABLE].map(|at| USER + at);
        self.wire.tell(9, &[words32([0, 0]), words64(places), words64([0])].concat(), &[]);
        let kick = self.kick.try_clone().expect("a copy");
        let call = self.call.try_clone().expect("a copy");
        self.wire.tell(12, &words64([0]), &[kick.as_fd()]);
        self.wire.tell(13, &words64([0]), &[call.as_fd()]);
        self.wire.tell(18, &words32([0, 1]), &[]);
    }

    /// Stops the ring: the available index.
    pub fn stop(&mut self) -> u32 {
        let reply = self.wire.ask(11, &words32([0, 0]));
        u32::from_le_bytes(reply[4..8].try_into().expect("a word"))
    }

    /// Asks for it, and doesn't wait for the answer.
    pub fn begin_to_stop(&mut self) {
        self.wire.send(11, 1, &words32([0, 0]), &[]);
    }

    /// Asks what the device has, and doesn't wait for the answer. Was the connection there still?
    pub fn ask_features(&mut self) -> bool {
        self.wire.is_sent(1, 1, &[], &[])
    }

    /// Is there an answer now?
    pub fn is_answered(&self) -> bool {
        self.wire.has_come(0)
    }

    /// Does one come?
    pub fn waits_for_answer(&self) -> bool {
        self.wire.has_come(20)
    }

    /// The answer to that.
    pub fn stopped(&mut self) -> u32 {
        let (reply, _) = self.wire.receive();
        u32::from_le_bytes(reply[4..8].try_into().expect("a word"))
    }

    /// Resets the device, and begins with an empty ring.
    pub fn reset(&mut self) {
        self.wire.tell(34, &[], &[]);
        self.begin_anew();
    }

    /// The ring is empty, and begins at 0.
    pub fn begin_anew(&mut self) {
        self.memory.write_all_at(&[0; 0x3000], 0).expect("it is written");
        self.offered = 0;
    }

    /// What it is called by.
    pub fn call(&self) -> &OwnedFd {
        &self.call
    }

    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Whether all that was offered is answered.
    pub fn is_served(&self) -> bool {
        self.used() == self.offered
    }

    /// Offers a request of 512 bytes and kicks.
    pub fn offer(&mut self, kind: u32, sector: u64, data: &[u8; 512]) {
        self.offer_as(0, kind, sector, data);
    }

    /// The same, while that one may be under way.
    pub fn offer_beside(&mut self, kind: u32, sector: u64, data: &[u8; 512]) {
        self.offer_as(1, kind, sector, data);
    }

    fn offer_as(&mut self, which: u16, kind: u32, sector: u64, data: &[u8; 512]) {
        let put = |at: u64, bytes: &[u8]| self.memory.write_all_at(bytes, at).expect("in memory");
        let shift = 0x400 * u64::from(which);
        let (header, place, status) = (HEADER + shift, DATA + shift, STATUS + shift);
        let head = 3 * which;
        put(header, &[words32([kind, 0]), words64([sector])].concat());
        put(place, data);
        put(status, &[0xff]);
        let descriptor = |address: u64, len: u32, flags: u16, next: u16| {
            let tail = [flags.to_le_bytes(), next.to_le_bytes()].concat();
            [words64([address]), words32([len]), tail].concat()
        };
        let data_flags = if kind == IN { 3 } else { 1 };
        let chain = [
            descriptor(header, 16, 1, head + 1),
            descriptor(place, 512, data_flags, head + 2),
            descriptor(status, 1, 2, 0),
        ];
        put(DESCRIPTORS + 16 * u64::from(head), &chain.concat());
        put(AVAILABLE + 4 + 2 * u64::from(self.offered % ELEMENTS), &head.to_le_bytes());
        self.offered = self.offered.wrapping_add(1);
        put(AVAILABLE + 2, &self.offered.to_le_bytes());
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("the kick is told");
    }

    /// Kicks without a request.
    pub fn kick(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("the kick is told");
    }

    /// Waits by calls until all that was offered is answered: the status.
    pub fn answer(&mut self) -> u8 {
        self.wait_for(self.offered);
        self.status()
    }

    /// Waits by calls until so many are answered, or more.
    pub fn wait_for(&mut self, answers: u16) {
        while answers.wrapping_sub(self.used()) as i16 > 0 {
            let mut waits = [PollFd::from_borrowed_fd(self.call.as_fd(), PollFlags::IN)];
            assert_eq!(poll(&mut waits, Some(&LIMIT)), Ok(1), "no call came");
            rustix::io::read(&self.call, &mut [0; 8]).expect("there is one");
        }
    }

    /// How many are answered.
    pub fn used(&self) -> u16 {
        let mut used = [0; 2];
        self.memory.read_exact_at(&mut used, USED + 2).expect("in memory");
        u16::from_le_bytes(used)
    }

    /// The status of the last one that was offered by itself.
    pub fn status(&self) -> u8 {
        let mut status = [0];
        self.memory.read_exact_at(&mut status, STATUS).expect("in memory");
        status[0]
    }

    pub fn data(&self) -> [u8; 512] {
        let mut bytes = [0; 512];
        self.memory.read_exact_at(&mut bytes, DATA).expect("in memory");
        bytes
    }

    /// Has whoever calls wait: the eventfd is full, and no longer non-blocking.
    pub fn fill_call(&mut self) {
        let _ = rustix::io::read(&self.call, &mut [0; 8]);
        rustix::io::write(&self.call, &(u64::MAX - 1).to_ne_bytes()).expect("there is room");
        rustix::fs::fcntl_setfl(&self.call, rustix::fs::OFlags::RDWR).expect("it may");
    }

    /// What is written at several places, and made durable, is there.
    pub fn tries_disk(&mut self) {
        for sector in [0, 1, 77, 2047] {
            self.offer(OUT, sector, &[sector as u8 ^ 0x5a; 512]);
            assert_eq!(self.answer(), 0);
        }
        self.offer(FLUSH, 0, &[0; 512]);
        assert_eq!(self.answer(), 0);
        for sector in [2047, 77, 1, 0] {
            self.offer(IN, sector, &[0; 512]);
            assert_eq!(self.answer(), 0);
            assert_eq!(self.data(), [sector as u8 ^ 0x5a; 512]);
        }
    }

    /// Takes the memory away, and kicks.
    pub fn shrink(&mut self) {
        self.memory.set_len(0).expect("it shrinks");
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("the kick is told");
    }

    pub fn send_nonsense(&mut self) {
        self.wire.send(999, 1, &[1, 2, 3], &[]);
    }

    /// The daemon closes the connection.
    pub fn expect_end(&mut self) {
        self.wire.expect_end();
    }
}
