//! Front ends of a network that are hostile: rings of nonsense, messages that can't be, memory that
//! goes away. Each ends its own connection, with a sentence; whoever is at the same switch goes on.
//! What a guest alone says, in frames and commands, ends nothing.

mod front_end {
    pub mod daemon;
    pub mod network;
    pub mod station;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::network::{CTRL_RX, CTRL_VQ, Network, flow};
use front_end::station::Station;
use front_end::wire::{words32, words64};
use rustix::fd::AsFd as _;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashMap;

/// The rings: that of frames to it, from it, and of commands.
const RECEIVES: u32 = 0;
const SENDS: u32 = 1;
const COMMANDS: u32 = 2;
/// Flags of a descriptor.
const NEXT: u16 = 1;
const WRITABLE: u16 = 2;
const INDIRECT: u16 = 4;
/// VIRTIO_NET_F_CSUM, HOST_TSO4, HOST_USO.
const LEAVES: u64 = 1 | 1 << 11 | 1 << 56;

/// What a front end does, and what the log says then.
type Attack = (&'static str, fn(&mut Network));

const ON_RINGS: [Attack; 13] = [
    ("ring 1 is broken: 60 bytes at 0x10000000000 aren't in memory", |it| {
        it.describe_at(SENDS, 0, 1 << 40, 60, 0, 0);
        it.offer(SENDS, 0, 1);
    }),
    ("ring 1 is broken: 60 bytes at 0xffffffffffffffff aren't in memory", |it| {
        it.describe_at(SENDS, 0, u64::MAX, 60, 0, 0);
        it.offer(SENDS, 0, 1);
    }),
    ("ring 1 is broken: a chain has too many descriptors", |it| {
        it.describe(SENDS, 0, 60, NEXT, 0);
        it.offer(SENDS, 0, 1);
    }),
    ("ring 1 is broken: the driver named descriptor 999, which doesn't exist", |it| {
        it.offer(SENDS, 999, 1);
    }),
    ("ring 1 is broken: the driver named descriptor 64, which doesn't exist", |it| {
        it.describe(SENDS, 0, 60, NEXT, 64);
        it.offer(SENDS, 0, 1);
    }),
    ("ring 1 is broken: the driver offered more chains than the ring holds", |it| {
        it.offer(SENDS, 0, 200);
    }),
    ("ring 1 is broken: a readable descriptor is behind a writable one", |it| {
        it.describe(SENDS, 0, 60, NEXT | WRITABLE, 1);
        it.describe(SENDS, 1, 60, 0, 0);
        it.offer(SENDS, 0, 1);
    }),
    ("ring 1 is broken: an indirect descriptor is where none may be", |it| {
        it.describe(SENDS, 0, 16, INDIRECT, 0);
        it.offer(SENDS, 0, 1);
    }),
    ("ring 2 is broken: a chain has no writable byte", |it| {
        it.describe(COMMANDS, 0, 2, 0, 0);
        it.offer(COMMANDS, 0, 1);
    }),
    // These are found when a frame comes for it.
    ("ring 0 is broken: a chain has no writable byte", |it| {
        (0..64).for_each(|element| it.describe(RECEIVES, element, 0x800, 0, 0));
    }),
    ("ring 0 is broken: a receive buffer has a part that nothing can be written to", |it| {
        (0..64).for_each(|element| it.describe(RECEIVES, element, 8, NEXT, 63));
        it.describe(RECEIVES, 63, 0x800, WRITABLE, 0);
    }),
    ("the guest's memory became shorter while it was in use", |it| {
        it.describe(SENDS, 0, 60, 0, 0);
        it.offer(SENDS, 0, 1);
        it.resize(0);
    }),
    ("the guest's memory became shorter while it was in use", |it| it.resize(0)),
];

const BY_MESSAGES: [Attack; 12] = [
    ("request 999 isn't offered", |it| it.wire.send(999, 1, &[], &[])),
    ("request 1 has 4294967295 bytes, which is more than any message has", |it| {
        it.wire.send_bytes(&words32([1, 1, u32::MAX]));
    }),
    ("the front end speaks version 2 of vhost-user", |it| it.wire.send(1, 2, &[], &[])),
    ("were accepted and not offered", |it| {
        it.wire.send(2, 1, &words64([u64::MAX]), &[]);
    }),
    ("ring 1 is to have 0 elements", |it| it.wire.send(8, 1, &words32([SENDS, 0]), &[])),
    ("ring 1 is to have 65536 elements", |it| it.wire.send(8, 1, &words32([SENDS, 1 << 16]), &[])),
    ("ring 200 isn't there", |it| it.wire.send(18, 1, &words32([200, 1]), &[])),
    ("request 18 has 3 bytes, which don't fit it", |it| it.wire.send(18, 1, &[0; 3], &[])),
    ("request 19 has 7 bytes, which don't fit it", |it| it.wire.send(19, 1, &[2; 7], &[])),
    ("request 5 came with 0 descriptors", |it| {
        let table = [words32([1, 0]), words64([0, 1 << 20, 0, 0])].concat();
        it.wire.send(5, 1, &table, &[]);
    }),
    ("isn't an eventfd", |it| {
        let file = memfd_create("call", MemfdFlags::CLOEXEC).expect("a memfd");
        it.wire.send(13, 1, &words64([SENDS.into()]), &[file.as_fd()]);
    }),
    ("ring 1 lies at 0x100000, where no memory is", |it| {
        let places = [1 << 20, 1 << 21, 1 << 22];
        let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK);
        let _ = it.wire.ask(11, &words32([SENDS, 0]));
        it.wire.send(9, 1, &[words32([SENDS, 0]), words64(places), words64([0])].concat(), &[]);
        it.wire.send(12, 1, &words64([SENDS.into()]), &[kick.expect("an eventfd").as_fd()]);
    }),
];

fn network(name: &str, number: u8) -> String {
    let mac = format!("mac = '02:00:00:00:00:{number:02}'\n");
    format!("[network.{name}]\nsocket = 'FOLDER/{name}'\nswitch = 'lan'\n{mac}")
}

/// One that is hostile, and two that aren't.
fn three() -> Daemon {
    let networks = network("hostile", 9) + &network("b", 2) + &network("c", 3);
    Daemon::run(&(networks + "[host]\ncontrol = \"control\"\n"))
}

/// Two that talk to each other, and to all.
struct Others([Station; 2]);

impl Others {
    fn at(daemon: &Daemon) -> Others {
        Others(["b", "c"].map(|name| Station::connect(&daemon.path(name))))
    }

    fn talk(&mut self, number: u8) {
        let [b, c] = &mut self.0;
        let frame = |to: [u8; 6], from| {
            [&to[..], &[2, 0, 0, 0, 0, from], &[0x88, 0xb5], &[number; 80]].concat()
        };
        for source in [2, 3] {
            let (from, to) = if source == 2 { (&mut *b, &mut *c) } else { (&mut *c, &mut *b) };
            for whom in [[0xff; 6], [2, 0, 0, 0, 0, 5 - source]] {
                from.send(&frame(whom, source));
                assert_eq!(to.receive(), frame(whom, source));
            }
        }
    }
}

#[test]
fn each_attack_ends_its_own_connection_with_a_sentence() {
    let daemon = three();
    let mut others = Others::at(&daemon);
    let mut expected = HashMap::new();
    for (number, (sentence, attack)) in (0..).zip(ON_RINGS.into_iter().chain(BY_MESSAGES)) {
        let mut front = Network::connect(&daemon.path("hostile"), 3, CTRL_VQ | CTRL_RX);
        attack(&mut front);
        others.talk(number);
        front.wire.expect_end();
        let count = expected.entry(sentence).or_insert(0);
        *count += 1;
        daemon.wait_until_said(sentence, *count);
        others.talk(number);
    }
    // One reason each, and none of the others'.
    let report = daemon.report();
    let ended = |at: usize| report["devices"][at]["ended"]["count"].as_u64();
    let all = (ON_RINGS.len() + BY_MESSAGES.len()) as u64;
    assert_eq!([ended(0), ended(1), ended(2)], [Some(all), Some(0), Some(0)], "{report}");
    daemon.wait_until_asleep();
}

/// A guest may say them by a front end that does all right.
#[test]
fn commands_that_arent_known_are_refused_and_nothing_ends() {
    let daemon = three();
    let mut others = Others::at(&daemon);
    let mut front = Network::connect(&daemon.path("hostile"), 3, CTRL_VQ | CTRL_RX);
    let many = u32::MAX.to_le_bytes();
    let commands: [(u8, u8, &[u8]); 11] = [
        // VIRTIO_NET_CTRL_GUEST_OFFLOADS_SET, which isn't offered.
        (5, 0, &[0xff; 8]),
        (5, 0, &[]),
        (4, 0, &[0, 0]),
        (4, 0, &[0xff, 0xff]),
        (4, 1, &[0; 64]),
        (1, 0, &many),
        (1, 0, &[&many[..], &[0; 60]].concat()),
        (1, 1, &[0xff; 6]),
        (0, 200, &[1]),
        (0, 0, &[]),
        (255, 255, &[0xff; 900]),
    ];
    for (class, command, data) in commands {
        assert_eq!(front.command(class, command, data), 1, "{class} {command} {data:?}");
    }
    // One that is known is carried out.
    assert_eq!(front.command(0, 0, &[1]), 0);
    others.talk(1);
    assert_eq!(daemon.report()["devices"][0]["ended"]["count"], 0);
}

/// Headers that lie, and frames that are none: each is dropped, and the next one goes.
#[test]
fn frames_that_arent_right_are_dropped_and_nothing_ends() {
    let daemon = three();
    let mut others = Others::at(&daemon);
    let features = CTRL_VQ | CTRL_RX | LEAVES;
    let mut front = Network::connect(&daemon.path("hostile"), 3, features);
    // Flags, kind; lengths of headers and segments; where the checksum is.
    let header = |flags: u8, kind: u8, size: u16, start: u16, offset: u16| {
        let words = [54, size, start, offset, 0].map(u16::to_le_bytes);
        let bytes = [&[flags, kind][..], &words.concat()].concat();
        <[u8; 12]>::try_from(bytes).expect("twelve")
    };
    let lies = [
        header(1, 0, 0, 0xffff, 0xffff),
        header(1, 0, 0, 13, 0),
        header(1, 1, 1, 34, 16),
        header(1, 5, 0, 34, 6),
        header(1, 5, 1, 34, 16),
        header(1, 0x85, 8, 34, 6),
        header(0, 5, 8, 34, 6),
        header(0xff, 0xff, 0xffff, 0xffff, 0xffff),
    ];
    let frame = flow(7);
    for header in lies {
        front.send_as(SENDS, &header, &frame);
    }
    for len in 0..14 {
        front.send(SENDS, &frame[..len]);
    }
    // In another's name.
    let mut anothers = frame.clone();
    anothers[11] = 2;
    front.send(SENDS, &anothers);
    front.send(SENDS, &frame);
    assert_eq!(others.0[0].receive(), frame, "none before it came");
    assert_eq!(others.0[1].receive(), frame);
    others.talk(1);
    assert_eq!(daemon.report()["devices"][0]["ended"]["count"], 0);
}
