//! A front end by its messages alone, and what its rings do.

use super::{Connection, Hands};
use crate::clock::{Clock, HERTZ};
use crate::config::Limits;
use crate::counts::Counts;
use crate::device::{Device, Kind};
use crate::disk::Disk;
use crate::foreign::Unclosed;
use crate::rings::Rings;
use crate::socket::Socket;
use crate::waits::Waits;
use anyhow::Result;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::cell::Cell;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use vhost_user::Header;

const LEN: u64 = 0x2_0000;
const RINGS: u16 = 2;

/// The daemon's side of it.
struct Side {
    rings: Rings,
    waits: Waits,
    connection: Connection,
    now: Rc<Cell<u64>>,
    memory: OwnedFd,
    _theirs: UnixStream,
}

fn words32<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words64<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn memory(len: u64) -> OwnedFd {
    let file = memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&file, len).expect("it grows");
    file
}

impl Side {
    /// All rings run, and log into a page.
    fn new() -> Side {
        daemon_os::watch_writes().expect("a handler");
        let now = Rc::new(Cell::new(HERTZ));
        let mut rings = Rings::new(Clock::Manual(now.clone(), Rc::default()));
        let device = rings.add_device(Device {
            name: "disk".into(),
            kind: Kind::Disk(Disk::null(1 << 20, RINGS, false).expect("a disk")),
            limits: Limits::default(),
            coalesces: true,
            front_ends: 1,
            connected: 1,
            connections: 1,
            ended: Default::default(),
            gone: Counts::default(),
            unclosed: Unclosed::default(),
        });
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        let socket = Socket::new(ours.into(), Unclosed::default());
        let connection = Connection::new(socket, device, 0, &mut rings).expect("there is room");
        let waits = Waits::new().expect("an epoll instance");
        let memory = memory(LEN);
        let region_file = memory.try_clone().expect("a copy");
        let mut side = Side { rings, waits, connection, now, memory, _theirs: theirs };
        let protocol = connection_protocol(&side);
        side.tell(16, &words64([protocol]), vec![]).expect("it is offered");
        side.tell(2, &words64([1 << 32 | 1 << 30 | 1 << 26]), vec![]).expect("it is offered");
        let region = [words32([1, 0]), words64([0, LEN, 0, 0])].concat();
        side.tell(5, &region, vec![region_file]).expect("it is mapped");
        side.log(0x1000).expect("it is mapped");
        side.say_rings();
        side
    }

    fn tell(&mut self, request: u32, payload: &[u8], with: Vec<OwnedFd>) -> Result<()> {
        let Side { rings, waits, connection, .. } = self;
        let header = Header { request, need_reply: false, size: payload.len() };
        let with = with.into_iter().map(Into::into).collect();
        connection.believe(header, payload, with, &mut Hands { rings, waits })
    }

    fn log(&mut self, len: u64) -> Result<()> {
        self.tell(6, &words64([len, 0]), vec![memory(0x1000)])
    }

    fn say_rings(&mut self) {
        let event = || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        for ring in 0..u32::from(RINGS) {
            let at = u64::from(ring) * 0x1_0000;
            let places = words64([at, at + 0x2000, at + 0x1000, 0]);
            let word = words64([ring.into()]);
            self.tell(8, &words32([ring, 8]), vec![]).expect("a size");
            self.tell(9, &[words32([ring, 0]), places].concat(), vec![]).expect("addresses");
            self.tell(12, &word, vec![event()]).expect("kicks");
            self.tell(13, &word, vec![event()]).expect("calls");
            self.tell(18, &words32([ring, 1]), vec![]).expect("it starts");
        }
    }

    fn running(&self) -> usize {
        self.rings.served.all.iter().filter(|(_, ring)| ring.running).count()
    }
}

fn connection_protocol(side: &Side) -> u64 {
    let device = side.rings.served.devices.get(side.connection.device).expect("it is there");
    device.protocol().bits()
}

/// The log before is gone, so no ring may go on to store there.
#[test]
fn a_log_that_is_too_short_stops_all_rings() {
    let mut side = Side::new();
    assert_eq!(side.running(), usize::from(RINGS));
    side.log(0x800).expect("it is long enough");
    assert_eq!(side.running(), usize::from(RINGS));
    assert!(side.log(1).is_err());
    assert_eq!(side.running(), 0);
}

#[test]
fn a_reset_forgets_all_but_the_memory() {
    let mut side = Side::new();
    side.tell(34, &[], vec![]).expect("it is reset");
    assert_eq!(side.running(), 0);
    for (_, ring) in &side.rings.served.all {
        assert!(ring.kick.is_none() && ring.call().is_none());
    }
    let Connection { kept, changes, .. } = &side.connection;
    assert!(kept.is_none() && changes.is_none());
    side.say_rings();
    assert_eq!(side.running(), usize::from(RINGS));
}

/// The driver has kicked by the descriptor before, and nobody has heard that yet.
#[test]
fn a_ring_whose_kicks_come_anew_is_looked_at() {
    let mut side = Side::new();
    while let (_, Some(at)) = side.rings.next_at() {
        side.now.set(side.now.get().max(at) + 1000);
        side.rings.serve();
    }
    let descriptor =
        |address: u64, len: u32, flags: u32| [words64([address]), words32([len, flags])].concat();
    // A read of a sector: header, data, status; each but the last goes on at the next.
    let chain = [
        descriptor(0x3000, 16, 1 | 1 << 16),
        descriptor(0x4000, 512, 3 | 2 << 16),
        descriptor(0x5000, 1, 2),
    ];
    let put = |at, bytes: &[u8]| {
        rustix::io::pwrite(&side.memory, bytes, at).expect("in memory");
    };
    put(0, &chain.concat());
    put(0x1002, &[1, 0]);
    let kick = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    side.tell(12, &words64([0]), vec![kick]).expect("it is one");
    side.rings.serve();
    let mut used = [0; 2];
    rustix::io::pread(&side.memory, &mut used, 0x2002).expect("in memory");
    assert_eq!(used, [1, 0]);
}

/// All that was said of rings holds.
#[test]
fn rings_of_an_owner_that_was_reset_go_on_when_they_are_enabled() {
    let mut side = Side::new();
    side.tell(4, &[], vec![]).expect("it may");
    assert_eq!(side.running(), 0);
    for ring in 0..u32::from(RINGS) {
        side.tell(18, &words32([ring, 1]), vec![]).expect("it may");
    }
    assert_eq!(side.running(), usize::from(RINGS));
}
