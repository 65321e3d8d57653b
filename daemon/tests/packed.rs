//! Packed rings: places and wrap counters, over the borders of the ring, stops and changes of the
//! program, kills with requests under way.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::{FLUSH, IN, OUT};
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

/// What the front ends here say where the ring begins, wherever it is: as QEMU at its start.
const BASE: u32 = 0x8000_8000;

/// A front end with one packed ring of two requests at a time.
struct Front {
    wire: Wire,
    memory: File,
    kick: OwnedFd,
    call: OwnedFd,
    records: Option<(Vec<u8>, OwnedFd)>,
    /// Descriptors that are offered, and that are answered.
    offered: u64,
    answered: u64,
}

impl Front {
    fn connect(daemon: &Daemon) -> Front {
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd"));
        memory.set_len(LEN).expect("it grows");
        let event = || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        let (kick, call) = (event(), event());
        let wire = Wire::connect(&daemon.socket());
        let (offered, answered) = (0, 0);
        let mut front = Front { wire, memory, kick, call, records: None, offered, answered };
        front.say_memory();
        front
    }

    fn connect_again(&mut self, daemon: &Daemon) {
        self.wire = Wire::connect(&daemon.socket());
        self.say_memory();
    }

    fn say_memory(&mut self) {
        let offered = u64::from_le_bytes(self.wire.ask(1, &[]).try_into().expect("a word"));
        assert_eq!(offered & ACCEPTED, ACCEPTED);
        let protocol = self.wire.ask(15, &[]);
        self.wire.send(16, 1, &protocol, &[]);
        self.wire.tell(2, &ACCEPTED.to_le_bytes(), &[]);
        let region = [words32([1, 0]), words64([0, LEN, USER, 0])].concat();
        self.wire.tell(5, &region, &[self.memory.as_fd()]);
    }

    /// Has memory for records made the first time, and hands it over.
    fn hand_records(&mut self) {
        let (described, file) = self.records.take().unwrap_or_else(|| {
            let asked = [&[0; 16][..], &[1, 0, ELEMENTS as u8, 0, 0, 0, 0, 0]].concat();
            self.wire.send(31, 1, &asked, &[]);
            let (reply, file) = self.wire.receive();
            (reply, file.expect("memory for records"))
        });
        self.wire.tell(32, &described, &[file.as_fd()]);
        self.records = Some((described, file));
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
        assert_eq!(self.offered, self.answered);
        let (index, wrap) = self.place(self.offered);
        let half = u32::from(index) | if wrap { WRAP } else { 0 };
        half << 16 | half
    }

    fn place(&self, at: u64) -> (u16, bool) {
        let elements = u64::from(ELEMENTS);
        ((at % elements) as u16, (at / elements).is_multiple_of(2))
    }

    fn offer(&mut self, kind: u32, sector: u64, data: &[u8; 512]) {
        self.offer_as(0, kind, sector, data);
    }

    /// Offers a request with this buffer ID, which says where its bytes are, too.
    fn offer_as(&mut self, id: u16, kind: u32, sector: u64, data: &[u8; 512]) {
        let put = |at: u64, bytes: &[u8]| self.memory.write_all_at(bytes, at).expect("in memory");
        let [header, place, status] = places(id);
        put(header, &[words32([kind, 0]), words64([sector])].concat());
        put(place, data);
        put(status, &[0xff]);
        let data_flags = if kind == IN { 3 } else { 1 };
        let chain = [(header, 16, 1), (place, 512, data_flags), (status, 1, 2)];
        let places: Vec<_> = (self.offered..).zip(chain).collect();
        // The first one is shown last.
        for (at, (address, len, flags)) in places.into_iter().rev() {
            let (index, wrap) = self.place(at);
            let flags = flags | if wrap { AVAILABLE } else { USED };
            let tail = [id.to_le_bytes(), flags.to_le_bytes()].concat();
            put(16 * u64::from(index), &[words64([address]), words32([len]), tail].concat());
        }
        self.offered += 3;
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("the kick is told");
    }

    fn answer(&mut self) -> u8 {
        self.next_answer().1
    }

    /// Waits for the next answer: of which request, and its status.
    fn next_answer(&mut self) -> (u16, u8) {
        let (index, wrap) = self.place(self.answered);
        let used = if wrap { AVAILABLE | USED } else { 0 };
        let id = loop {
            let mut tail = [0; 4];
            let at = 16 * u64::from(index) + 12;
            self.memory.read_exact_at(&mut tail, at).expect("in memory");
            let [id, flags] = [[tail[0], tail[1]], [tail[2], tail[3]]].map(u16::from_le_bytes);
            if flags & (AVAILABLE | USED) == used {
                break id;
            }
            let mut waits = [PollFd::from_borrowed_fd(self.call.as_fd(), PollFlags::IN)];
            assert_eq!(poll(&mut waits, Some(&LIMIT)), Ok(1), "no call came");
            rustix::io::read(&self.call, &mut [0; 8]).expect("there is one");
        };
        self.answered += 3;
        let mut status = [0];
        self.memory.read_exact_at(&mut status, places(id)[2]).expect("in memory");
        (id, status[0])
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

/// Where the header of this request is, its data and its status.
fn places(id: u16) -> [u64; 3] {
    let id = u64::from(id);
    [HEADER + 0x100 * id, DATA + 0x400 * id, STATUS + 0x10 * id]
}

#[test]
fn a_packed_ring_stops_and_goes_on_where_it_was() {
    let daemon = Daemon::controlled(&["--ram", "1M", "--packed"]);
    let mut front = Front::connect(&daemon);
    front.start(BASE);
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

/// Killed right after requests were offered, wherever it is with them: all are answered, once, and
/// what was written is read. Whatever came of the daemon, the front end says the same base.
fn killed_again_and_again(mut daemon: Daemon) {
    let mut front = Front::connect(&daemon);
    front.hand_records();
    front.start(BASE);
    for round in 0..60_u16 {
        let (sector, mark) = (u64::from(round) * 8, [round as u8 + 1; 512]);
        front.offer_as(0, OUT, sector, &mark);
        front.offer_as(1, IN, 2000, &[1; 512]);
        let mut answered = Vec::new();
        if round % 3 == 0 {
            answered.push(front.next_answer());
        }
        daemon.kill();
        daemon.start_again();
        front.connect_again(&daemon);
        front.hand_records();
        front.start(BASE);
        while answered.len() < 2 {
            answered.push(front.next_answer());
        }
        answered.sort_unstable();
        assert_eq!(answered, [(0, 0), (1, 0)], "round {round}");
        front.offer(IN, sector, &[0; 512]);
        assert_eq!((front.answer(), front.data()), (0, mark), "round {round}");
    }
    front.offer(FLUSH, 0, &[0; 512]);
    assert_eq!(front.answer(), 0);
    assert_eq!(front.stop(), front.base());
}

#[test]
fn killed_again_and_again_it_loses_nothing() {
    killed_again_and_again(Daemon::file_with(&["--packed"]));
}

/// Whoever goes on, and wherever: requests are answered at once, several together.
#[test]
fn a_new_program_and_one_that_was_killed_go_on_by_records() {
    let mut daemon = Daemon::controlled(&["--null", "1M", "--packed"]);
    let mut front = Front::connect(&daemon);
    front.hand_records();
    front.start(BASE);
    for round in 0..14 {
        front.offer_as(round % 2, OUT, 9, &[7; 512]);
        front.offer_as(1 - round % 2, OUT, 9, &[7; 512]);
        match round % 3 {
            0 => daemon.upgrade(),
            1 => assert_eq!(front.next_answer().1, 0),
            _ => {
                daemon.kill();
                daemon.start_again();
                front.connect_again(&daemon);
                front.hand_records();
                front.start(BASE);
            }
        }
        while front.answered < front.offered {
            assert_eq!(front.next_answer().1, 0);
        }
    }
    assert_eq!(front.stop(), front.base());
}

/// Its own connection ends, and no other.
#[test]
fn records_that_contradict_each_other_end_the_connection() {
    let daemon = Daemon::controlled(&["--ram", "1M", "--packed"]);
    let mut front = Front::connect(&daemon);
    front.hand_records();
    front.start(BASE);
    front.offer(OUT, 9, &[7; 512]);
    assert_eq!(front.answer(), 0);
    assert_eq!(front.stop(), front.base());
    // The first free entry is none.
    let (_, file) = front.records.as_ref().expect("they were made");
    let file = File::from(file.try_clone().expect("a copy"));
    file.write_all_at(&[0xff; 4], 12).expect("it is there");
    front.wire.send(12, 1, &words64([0]), &[front.kick.as_fd()]);
    front.wire.expect_end();
    daemon.wait_until_said("the records in flight contradict each other", 1);
    let mut front = Front::connect(&daemon);
    front.start(BASE);
    front.works(1);
}

/// The ring is handed over in each place, with a request that was offered right before.
#[test]
fn a_new_program_goes_on_with_a_packed_ring() {
    let mut daemon = Daemon::controlled(&["--ram", "1M", "--packed"]);
    let mut front = Front::connect(&daemon);
    front.start(BASE);
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
    front.start(BASE);
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
    front.start(BASE);
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
