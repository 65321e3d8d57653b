//! Another program's front end against the daemon: rust-vmm's, which Cloud Hypervisor and
//! Firecracker have. What it takes for a wrong reply is an error here.

#[allow(dead_code, reason = "the other test has the rest")]
mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::{FrontEnd, IN, OUT, RING};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight,
    VhostUserProtocolFeatures as Protocol, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const MARK: [u8; 512] = [0xa7; 512];
const VERSION_1: u64 = 1 << 32;
/// Of the daemon's disk in memory, in sectors.
const SECTORS: u64 = 2048;
const LIMIT: Duration = Duration::from_secs(20);

/// Connected, and all that it knows negotiated.
fn negotiated(daemon: &Daemon) -> Frontend {
    let mut front = Frontend::connect(daemon.socket(), 1).expect("it listens");
    front.set_owner().expect("it may");
    let offered = front.get_features().expect("it may");
    let protocol_bit = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    assert_eq!(offered & (VERSION_1 | protocol_bit), VERSION_1 | protocol_bit);
    let offers = front.get_protocol_features().expect("it may");
    let wanted = Protocol::REPLY_ACK
        | Protocol::MQ
        | Protocol::CONFIG
        | Protocol::INFLIGHT_SHMFD
        | Protocol::RESET_DEVICE
        | Protocol::CONFIGURE_MEM_SLOTS;
    assert!(offers.contains(wanted), "{offers:?}");
    front.set_protocol_features(wanted).expect("it was offered");
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    front.set_features(VERSION_1 | protocol_bit).expect("it was offered");
    front
}

fn region(guest: &FrontEnd) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: RING.len,
        userspace_addr: RING.user,
        mmap_offset: 0,
        mmap_handle: guest.memory().as_raw_fd(),
    }
}

/// The guest's side of the ring, and eventfds of that crate's own type.
struct Guest {
    ring: FrontEnd,
    kick: EventFd,
    call: EventFd,
}

impl Guest {
    fn new() -> Guest {
        let event = || EventFd::new(EFD_NONBLOCK).expect("an eventfd");
        Guest { ring: FrontEnd::apart(), kick: event(), call: event() }
    }

    /// Offers a request, and waits for the call: the status.
    fn ask(&mut self, kind: u32, sector: u64, data: &[u8; 512]) -> u8 {
        self.ring.offer(kind, sector, data);
        self.kick.write(1).expect("the kick is told");
        let began = Instant::now();
        while self.call.read().is_err() || !self.ring.is_served() {
            assert!(began.elapsed() < LIMIT, "no call came");
            std::thread::yield_now();
        }
        self.ring.answer()
    }
}

/// Starts the ring at this index.
fn start(front: &mut Frontend, guest: &Guest, base: u16) {
    front.set_vring_num(0, RING.elements).expect("it may");
    front.set_vring_base(0, base).expect("it may");
    let data = VringConfigData {
        queue_max_size: RING.elements,
        queue_size: RING.elements,
        flags: 0,
        desc_table_addr: RING.user + RING.descriptors,
        used_ring_addr: RING.user + RING.used,
        avail_ring_addr: RING.user + RING.available,
        log_addr: None,
    };
    front.set_vring_addr(0, &data).expect("it may");
    front.set_vring_call(0, &guest.call).expect("it may");
    front.set_vring_kick(0, &guest.kick).expect("it may");
    front.set_vring_enable(0, true).expect("it may");
}

#[test]
fn it_says_what_that_front_end_expects() {
    let daemon = Daemon::ram();
    let mut front = negotiated(&daemon);
    assert_eq!(front.get_queue_num().expect("it may"), 1);
    assert_eq!(front.get_max_mem_slots().expect("it may"), 8);
    let flags = VhostUserConfigFlags::empty();
    let (head, space) = front.get_config(0, 60, flags, &[0; 60]).expect("it may");
    assert_eq!({ head.size }, 60);
    assert_eq!(space[..8], SECTORS.to_le_bytes());
    let asked = VhostUserInflight { num_queues: 1, queue_size: 128, ..Default::default() };
    let (made, file) = front.get_inflight_fd(&asked).expect("it may");
    let of_file = file.metadata().expect("it is a file").len();
    assert!(made.mmap_size > 0 && made.mmap_offset + made.mmap_size <= of_file);
    front.set_inflight_fd(&made, file.as_raw_fd()).expect("what it made itself");
}

#[test]
fn requests_are_served_over_a_stop_and_a_reset() {
    let daemon = Daemon::ram();
    let mut guest = Guest::new();
    let mut front = negotiated(&daemon);
    front.set_mem_table(&[region(&guest.ring)]).expect("it may");
    start(&mut front, &guest, 0);
    for sector in 0..20 {
        assert_eq!(guest.ask(OUT, sector, &MARK), 0);
    }
    let index = front.get_vring_base(0).expect("it stops");
    assert_eq!(index, 20);
    start(&mut front, &guest, 20);
    assert_eq!(guest.ask(IN, 19, &[0; 512]), 0);
    assert_eq!(guest.ring.data(), MARK);
    front.reset_device().expect("it was negotiated");
    guest.ring.begin_anew();
    start(&mut front, &guest, 0);
    assert_eq!(guest.ask(IN, 3, &[0; 512]), 0);
    assert_eq!(guest.ring.data(), MARK);
}

/// Memory that comes and goes in slots; what is refused is told in the answer.
#[test]
fn memory_comes_and_goes_in_slots() {
    let daemon = Daemon::ram();
    let mut guest = Guest::new();
    let mut front = negotiated(&daemon);
    let first = region(&guest.ring);
    let second = VhostUserMemoryRegionInfo {
        guest_phys_addr: 1 << 30,
        userspace_addr: RING.user + (1 << 30),
        ..first
    };
    front.add_mem_region(&first).expect("there is room");
    front.add_mem_region(&second).expect("there is room");
    start(&mut front, &guest, 0);
    assert_eq!(guest.ask(OUT, 1, &MARK), 0);
    front.remove_mem_region(&second).expect("it is there");
    assert_eq!(guest.ask(IN, 1, &[0; 512]), 0);
    assert_eq!(guest.ring.data(), MARK);
    assert!(front.remove_mem_region(&second).is_err(), "it is gone");
    // Refused, and nothing has changed.
    assert_eq!(guest.ask(IN, 1, &[0; 512]), 0);
    assert_eq!(front.get_queue_num().expect("it may"), 1);
}
