//! Rings of disks that such a server keeps: those that wait for room, and what ends late.

use super::{LOOKS, answer_all, done, next, request, serve, server, shake};
use crate::clock::{Clock, HERTZ};
use crate::config::Limits;
use crate::counts::Counts;
use crate::device::{Device, Kind};
use crate::disk::Disk;
use crate::foreign::Unclosed;
use crate::rings::{Rings, VAIN};
use crate::storage::{Store, own_token};
use blk::{Backend as _, Operation, Submitted};
use daemon_os::{GuestMemory, GuestRegion, Mapping};
use std::cell::Cell;
use std::io::Write as _;
use std::rc::Rc;
use std::sync::mpsc;
use tempfile::TempDir;
use virtqueue::{Features, Layout, Queue, State};
use window::Span;

/// A ring of eight reads, of a disk that such a server keeps.
fn ring(uri: &str, operations: usize) -> (Rings, GuestMemory, Span, usize) {
    let mut rings = Rings::new(Clock::Manual(Rc::new(Cell::new(HERTZ)), Rc::default()));
    let mut disk = Disk::nbd(&server(uri), None, 1, false).expect("a disk");
    if let Store::Nbd(nbd) = &mut disk.store {
        nbd.bounds.operations = operations;
    }
    let device = rings.add_device(Device {
        name: "disk".into(),
        kind: Kind::Disk(disk),
        limits: Limits::default(),
        coalesces: true,
        front_ends: 1,
        connected: 1,
        connections: 1,
        ended: Default::default(),
        gone: Counts::default(),
        unclosed: Unclosed::default(),
    });
    let mapping = Mapping::anonymous(0x10000).expect("memory");
    let span = mapping.span().expect("all of it");
    let memory = GuestMemory::new(vec![GuestRegion::from((0, mapping))]).expect("a region");
    // Header, data, status.
    let chain = [(0x3000_u64, 16_u32, 1_u16, 1_u16), (0x4000, 512, 3, 2), (0x5000, 1, 2, 0)];
    for request in 0..8_u16 {
        let first = 3 * request;
        for ((address, len, flags, next), at) in chain.into_iter().zip(0..) {
            let tail = [flags.to_le_bytes(), (first + next).to_le_bytes()].concat();
            let bytes = [&address.to_le_bytes()[..], &len.to_le_bytes(), &tail].concat();
            span.write(16 * (u64::from(first) + at), &bytes).expect("inside");
        }
        span.write(0x1004 + 2 * u64::from(request), &first.to_le_bytes()).expect("inside");
    }
    let place = rings.add(device, 0, 0).expect("a ring");
    let layout = Layout { size: 32, descriptors: 0, driver: 0x1000, device: 0x2000 };
    let features = Features::default();
    let window = *memory.window();
    let queue = Queue::new(&window, layout, features, State::at_reset(features));
    rings.start(place, queue.expect("a queue"), window, 1 << 32).expect("it starts");
    (rings, memory, span, device)
}

fn disk(rings: &mut Rings, device: usize) -> &mut Disk {
    match &mut rings.served.devices.get_mut(device).expect("it is there").kind {
        Kind::Disk(disk) => disk,
        Kind::Port(_) => panic!("it is a disk"),
    }
}

/// A server that answers reads once it is told to.
fn serve_later() -> (TempDir, String, mpsc::Sender<()>) {
    let (go, may_answer) = mpsc::channel();
    let (folder, _, uri) = serve(move |listener| {
        let mut socket = shake(next(&listener), false);
        let _ = may_answer.recv();
        while let Some((_, cookie)) = request(&mut socket) {
            let _ = socket.write_all(&[&done(cookie)[..], &[1; 512]].concat());
        }
    });
    (folder, uri, go)
}

/// Serves until a used ring has this index, which is there.
fn wait_for(rings: &mut Rings, device: usize, index: &Span, answered: u16) {
    let is_answered = |_| {
        rings.serve();
        disk(rings, device).store.wait();
        let mut used = [0; 2];
        index.read(0, &mut used).expect("inside");
        used == answered.to_le_bytes()
    };
    assert!((0..LOOKS).any(is_answered), "it stands still");
}

/// Room for two: the rest is asked for when something ended, without another kick.
#[test]
fn a_ring_goes_on_when_a_full_store_has_room() {
    let (_folder, uri, go) = serve_later();
    let (mut rings, _memory, span, device) = ring(&uri, 2);
    span.write(0x1002, &8u16.to_le_bytes()).expect("inside");
    rings.serve();
    assert_eq!(disk(&mut rings, device).store.outstanding(), 2, "it is full");
    // It isn't polled meanwhile: nothing but an answer has the thread go on.
    rings.serve();
    assert_eq!(rings.next_at().1, None, "the thread is kept awake");
    go.send(()).expect("it waits");
    wait_for(&mut rings, device, &span.sub(0x2002, 2).expect("inside"), 8);
}

/// A kick that brought a request wasn't in vain, though nothing has ended yet: who kicks for each
/// of many on a slow disk is heard.
#[test]
fn a_kick_for_what_ends_late_is_not_in_vain() {
    let (_folder, uri, go) = serve_later();
    let (mut rings, _memory, span, device) = ring(&uri, 8);
    rings.get(0).expect("it is there").vain = VAIN;
    span.write(0x1002, &1u16.to_le_bytes()).expect("inside");
    rings.serve();
    assert_eq!(disk(&mut rings, device).store.outstanding(), 1);
    assert_eq!(rings.get(0).expect("it is there").vain, 0);
    go.send(()).expect("it waits");
    wait_for(&mut rings, device, &span.sub(0x2002, 2).expect("inside"), 1);
}

/// A front end may have a ring looked at as often as it likes: it waits for room once.
#[test]
fn a_ring_waits_for_room_once() {
    let (_folder, uri, go) = serve_later();
    let (mut rings, _memory, span, device) = ring(&uri, 2);
    span.write(0x1002, &8u16.to_le_bytes()).expect("inside");
    for _ in 0..100 {
        rings.poll_now(0);
        rings.serve();
        assert_eq!(disk(&mut rings, device).awaited_by, [0]);
    }
    go.send(()).expect("it waits");
    wait_for(&mut rings, device, &span.sub(0x2002, 2).expect("inside"), 8);
}

/// A ring that has nothing under way itself: what ends of another one makes room for it.
#[test]
fn a_ring_goes_on_when_another_one_made_room() {
    let (_folder, uri, go) = serve_later();
    let (mut rings, memory, span, device) = ring(&uri, 2);
    span.write(0x1002, &2u16.to_le_bytes()).expect("inside");
    rings.serve();
    assert_eq!(disk(&mut rings, device).store.outstanding(), 2, "it is full");
    // The same chains, by a ring of its own: its first request waits.
    let place = rings.add(device, 1, 0).expect("a ring");
    let layout = Layout { size: 32, descriptors: 0, driver: 0x6000, device: 0x7000 };
    let features = Features::default();
    let window = *memory.window();
    span.write(0x6002, &1u16.to_le_bytes()).expect("inside");
    let queue = Queue::new(&window, layout, features, State::at_reset(features));
    rings.start(place, queue.expect("a queue"), window, 1 << 32).expect("it starts");
    rings.serve();
    assert_eq!(disk(&mut rings, device).store.outstanding(), 2, "it has no room");
    go.send(()).expect("it waits");
    wait_for(&mut rings, device, &span.sub(0x7002, 2).expect("inside"), 1);
}

/// A flush of the program's own that ends when nobody waits for it is none of a ring that is gone.
#[test]
fn a_late_flush_is_no_rings() {
    let (_folder, _, uri) = serve(answer_all);
    let (mut rings, _memory, _, device) = ring(&uri, 2);
    let disk_of = disk(&mut rings, device);
    disk_of.abandoned = 1;
    assert_eq!(disk_of.store.submit(own_token(1), Operation::Flush), Submitted::Accepted);
    for _ in 0..LOOKS {
        rings.collect_of(device);
        if disk(&mut rings, device).store.outstanding() == 0 {
            break;
        }
        disk(&mut rings, device).store.wait();
    }
    assert_eq!(disk(&mut rings, device).store.outstanding(), 0);
    assert_eq!(disk(&mut rings, device).abandoned, 1);
    assert_eq!(rings.take_recovered(), [0; 0]);
}
