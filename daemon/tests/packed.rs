//! Packed rings: places and wrap counters, over the borders of the ring, stops and changes of the
//! program.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::{IN, OUT};
use front_end::wire::{LIMIT, Wire, words32, words64};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::AsFd as _;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

const LEN: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000_0000;
const DRIVER: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
const HEADER: u64 = 0x3000;
const DATA: u64 = 0x4000;
const STATUS: u64 = 0x5000;
/// No power of two, and no multiple of a request's three descriptors.
const ELEMENTS: u16 = 7;
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const WRAP: u32 = 1 << 15;
/// VIRTIO_F_RING_PACKED.
const PACKED: u64 = 1 << 34;
const ACCEPTED: u64 = 1 << 32 | 1 << 30 | 1 << 9 | PACKED;

/// A front end with one packed ring of one request at a time.
struct Front {
    wire: Wire,
    memory: File,
    kick: OwnedFd,
    call: OwnedFd,
    /// Descriptors so far.
    next: u64,
}

impl Front {
    fn connect(daemon: &Daemon) -> Front {
        let mut wire = Wire::connect(&daemon.socket());
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd"));
        memory.set_len(LEN).expect("it grows");
        let offered = u64::from_le_bytes(wire.ask(1, &[]).try_into().expect("a word"));
        assert_eq!(offered & ACCEPTED, ACCEPTED);
        let protocol = wire.ask(15, &[]);
        let bits = u64::from_le_bytes(protocol[..].try_into().expect("a word"));
        assert_eq!(bits & 1 << 12, 0, "there are no records of packed rings");
        wire.send(16, 1, &protocol, &[]);
        wire.tell(2, &ACCEPTED.to_le_bytes(), &[]);
        let region = [words32([1, 0]), words64([0, LEN, USER, 0])].concat();
        wire.tell(5, &region, &[memory.as_fd()]);
        let event = || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        Front { wire, memory, kick: event(), call: event(), next: 0 }
    }

    fn start(&mut self, base: u32) {
        self.wire.tell(8, &words32([0, ELEMENTS.into()]), &[]);
        self.wire.tell(10, &words32([0, base]), &[]);
        let places = [0, DEVICE, DRIVER].map(|at| USER + at);
        self.wire.tell(9, &[words32([0, 0]), words64(places), words64([0])].concat(), &[]);
        self.wire.tell(12, &words64([0]), &[self.kick.as_fd()]);
        self.wire.tell(13, &words64([0]), &[self.call.as_fd()]);
        self.wire.tell(18, &words32([0, 1]), &[]);
    }

    fn stop(&mut self) -> u32 {
        let reply = self.wire.ask(11, &words32([0, 0]));
        u32::from_le_bytes(reply[4..8].try_into().expect("a word"))
    }

    /// Where both sides are, as the word of a base: nothing is in flight.
    fn base(&self) -> u32 {
        let (index, wrap) = self.place(self.next);
        let half = u32::from(index) | if wrap { WRAP } else { 0 };
        half << 16 | half
    }

    fn place(&self, at: u64) -> (u16, bool) {
        let elements = u64::from(ELEMENTS);
        ((at % elements) as u16, (at / elements).is_multiple_of(2))
    }

    fn offer(&mut self, kind: u32, sector: u64, data: &[u8; 512]) {
        let put = |at: u64, bytes: &[u8]| self.memory.write_all_at(bytes, at).expect("in memory");
        put(HEADER, &[words32([kind, 0]), words64([sector])].concat());
        put(DATA, data);
        put(STATUS, &[0xff]);
        let data_flags = if kind == IN { 3 } else { 1 };
        let chain = [(HEADER, 16, 1), (DATA, 512, data_flags), (STATUS, 1, 2)];
        let places: Vec<_> = (self.next..).zip(chain).collect();
        // The first one is shown last.
        for (at, (address, len, flags)) in places.into_iter().rev() {
            let (index, wrap) = self.place(at);
            let flags = flags | if wrap { AVAILABLE } else { USED };
            let tail = [3_u16.to_le_bytes(), flags.to_le_bytes()].concat();
            put(16 * u64::from(index), &[words64([address]), words32([len]), tail].concat());
        }
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("the kick is told");
    }

    fn answer(&mut self) -> u8 {
        let (index, wrap) = self.place(self.next);
        let used = if wrap { AVAILABLE | USED } else { 0 };
        loop {
            let mut flags = [0; 2];
            let at = 16 * u64::from(index) + 14;
            self.memory.read_exact_at(&mut flags, at).expect("in memory");
            if u16::from_le_bytes(flags) & (AVAILABLE | USED) == used {
                break;
            }
            let mut waits = [PollFd::from_borrowed_fd(self.call.as_fd(), PollFlags::IN)];
            assert_eq!(poll(&mut waits, Some(&LIMIT)), Ok(1), "no call came");
            rustix::io::read(&self.call, &mut [0; 8]).expect("there is one");
        }
        self.next += 3;
        let mut status = [0];
        self.memory.read_exact_at(&mut status, STATUS).expect("in memory");
        status[0]
    }

    fn data(&self) -> [u8; 512] {
        let mut bytes = [0; 512];
        self.memory.read_exact_at(&mut bytes, DATA).expect("in memory");
        bytes
    }

    fn works(&mut self, byte: u8) {
        self.offer(OUT, u64::from(byte), &[byte; 512]);
        assert_eq!(self.answer(), 0);
        self.offer(IN, u64::from(byte), &[0; 512]);
        assert_eq!((self.answer(), self.data()), (0, [byte; 512]));
    }
}

#[test]
fn a_packed_ring_stops_and_goes_on_where_it_was() {
    let daemon = Daemon::controlled(&["--ram", "1M", "--packed"]);
    let mut front = Front::connect(&daemon);
    // As QEMU says it at the start.
    front.start(0x8000_8000);
    for round in 0..30 {
        front.works(round);
        daemon.wait_until_asleep();
        if round % 3 == 1 {
            let base = front.stop();
            assert_eq!(base, front.base(), "round {round}");
            front.start(base);
        }
    }
}

/// The ring is handed over in each place, with a request that was offered right before.
#[test]
fn a_new_program_goes_on_with_a_packed_ring() {
    let mut daemon = Daemon::controlled(&["--ram", "1M", "--packed"]);
    let mut front = Front::connect(&daemon);
    front.start(0x8000_8000);
    for round in 0..14 {
        front.offer(OUT, 9, &[round; 512]);
        daemon.upgrade();
        assert_eq!(front.answer(), 0);
        front.works(round);
    }
    assert_eq!(front.stop(), front.base());
}

/// The ring itself is what the device writes to, and so is its event area.
#[test]
fn changes_of_a_packed_ring_are_marked() {
    let daemon = Daemon::controlled(&["--ram", "1M", "--packed"]);
    let mut front = Front::connect(&daemon);
    front.start(0x8000_8000);
    let log = File::from(memfd_create("log", MemfdFlags::CLOEXEC).expect("a memfd"));
    log.set_len(LEN / 4096 / 8).expect("it grows");
    front.wire.send(6, 1, &words64([LEN / 4096 / 8, 0]), &[log.as_fd()]);
    assert_eq!(front.wire.receive().0.len(), 8);
    front.wire.tell(2, &(ACCEPTED | 1 << 26).to_le_bytes(), &[]);
    let places = [0, DEVICE, DRIVER].map(|at| USER + at);
    let said = [words32([0, 1]), words64(places), words64([DEVICE])].concat();
    front.wire.tell(9, &said, &[]);
    for round in 0..10 {
        log.write_all_at(&[0; 32], 0).expect("it is there");
        front.works(round);
        front.wire.ask(1, &[]);
        let mut bits = [0; 4];
        log.read_exact_at(&mut bits, 0).expect("it is there");
        let wanted = [0, DEVICE, DATA, STATUS].map(|at| 1 << (at / 4096));
        assert_eq!(u32::from_le_bytes(bits), wanted.iter().sum::<u32>(), "round {round}");
    }
}

#[test]
fn places_that_cant_be_end_the_connection() {
    let daemon = Daemon::controlled(&["--ram", "1M", "--packed"]);
    // Beyond the ring; with something in flight that nobody knows of; of a split ring.
    for base in [0x8007_8007, 0x8000_8001, 0x7fff_ffff, 0x8000_8003] {
        let mut front = Front::connect(&daemon);
        front.wire.send(8, 1, &words32([0, ELEMENTS.into()]), &[]);
        front.wire.send(10, 1, &words32([0, base]), &[]);
        let places = [0, DEVICE, DRIVER].map(|at| USER + at);
        let places = [words32([0, 0]), words64(places), words64([0])].concat();
        front.wire.send(9, 1, &places, &[]);
        front.wire.send(18, 1, &words32([0, 1]), &[]);
        front.wire.send(12, 1, &words64([0]), &[front.kick.as_fd()]);
        front.wire.expect_end();
    }
    let mut front = Front::connect(&daemon);
    front.start(0x8000_8000);
    front.works(1);
}

#[test]
fn without_packed_rings_there_are_no_such_places() {
    let daemon = Daemon::ram();
    let mut wire = Wire::connect(&daemon.socket());
    let offered = u64::from_le_bytes(wire.ask(1, &[]).try_into().expect("a word"));
    assert_eq!(offered & PACKED, 0);
    wire.send(10, 1, &words32([0, 0x8000_8000]), &[]);
    wire.expect_end();
}
