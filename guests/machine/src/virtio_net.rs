//! A driver of virtio-net (virtio 1.2, 5.1), for tests: the first pair of queues of each interface,
//! and the control queue. Frames that arrive are taken out by the handler of the receive queue's
//! interrupt or by polling, and wait in an inbox in their order.
//!
//! Guarantees: each frame that is sent or received is counted once, and completions of nothing are
//! oddities. One CPU drives an interface.

use crate::{
    boot::Boot,
    idt,
    idt::Frame,
    virtio::{self, Virtio, feature},
    virtqueue::{Descriptor, MAX_SIZE, NEXT, RING_BYTES, Ring, WRITE, get, put},
    wait, x2apic,
};
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};

/// Vendor id of all virtio functions, and device id of modern network devices.
pub const NETWORK: u32 = 0x1041_1AF4;

/// Features of network devices (5.1.3).
pub mod features {
    /// VIRTIO_NET_F_MTU.
    pub const MTU: u64 = 1 << 3;
    /// VIRTIO_NET_F_MAC.
    pub const MAC: u64 = 1 << 5;
    /// VIRTIO_NET_F_STATUS.
    pub const STATUS: u64 = 1 << 16;
    /// VIRTIO_NET_F_CTRL_VQ.
    pub const CTRL_VQ: u64 = 1 << 17;
    /// VIRTIO_NET_F_CTRL_RX.
    pub const CTRL_RX: u64 = 1 << 18;
    /// VIRTIO_NET_F_CTRL_MAC_ADDR.
    pub const CTRL_MAC_ADDR: u64 = 1 << 23;
}

/// Interfaces that there is room for.
pub const INTERFACES: usize = 2;
/// Frames under way in each direction.
pub const DEPTH: usize = 64;
/// Bytes in front of each frame (5.1.6).
pub const HEADER: u64 = 12;
/// The most bytes of a frame.
pub const FRAME: usize = 1514;
/// The queues, by their indices (5.1.2); without MQ the control queue is the third.
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const CONTROL: u16 = 2;
const QUEUES: u64 = 3;
const SLOT: u64 = 0x800;
/// Memory of an interface: rings, slots of each direction, a page for commands.
pub const BYTES: u64 = QUEUES * RING_BYTES + 2 * DEPTH as u64 * SLOT + 0x1000;

/// An Ethernet address.
pub type Mac = [u8; 6];
/// All stations.
pub const BROADCAST: Mac = [0xFF; 6];

/// A network interface at work.
pub struct Interface {
    rings: [Ring; QUEUES as usize],
    /// Slots to send from that are the device's.
    busy: [AtomicU8; DEPTH],
    /// Slots with what arrived, as slot and length, in order.
    inbox: [AtomicU64; DEPTH],
    arrived: AtomicU64,
    looked: AtomicU64,
    sent: AtomicU64,
    completed: AtomicU64,
    by_interrupt: AtomicU64,
    odd: AtomicU64,
}

static ALL: [Interface; INTERFACES] = [const {
    Interface {
        rings: [const { Ring::new() }; QUEUES as usize],
        busy: [const { AtomicU8::new(0) }; DEPTH],
        inbox: [const { AtomicU64::new(0) }; DEPTH],
        arrived: AtomicU64::new(0),
        looked: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        by_interrupt: AtomicU64::new(0),
        odd: AtomicU64::new(0),
    }
}; INTERFACES];

/// Which interface's interrupt comes at a vector.
static BY_VECTOR: [AtomicU8; 256] = [const { AtomicU8::new(0) }; 256];

/// What an interface did since it was set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Frames given to the device.
    pub sent: u64,
    /// Those that it gave back.
    pub completed: u64,
    /// Frames that arrived.
    pub arrived: u64,
    /// Of them, those that an interrupt's handler took out.
    pub by_interrupt: u64,
    /// Completions of nothing.
    pub odd: u64,
}

/// An interface by its number.
pub fn interface(number: usize) -> &'static Interface {
    &ALL[number]
}

/// The address that a device has, as its configuration says (5.1.4).
pub fn mac(virtio: &Virtio) -> Mac {
    let ([a, b, c, d], [e, f, ..]) =
        (virtio.config(0).to_le_bytes(), virtio.config(4).to_le_bytes());
    [a, b, c, d, e, f]
}

/// Negotiates these features and sets up the queues of an interface, each with the MSI-X entry
/// after its number; no entry is unmasked. Says whether it all went well.
pub fn start(virtio: &Virtio, number: usize, features: u64, boot: &Boot) -> bool {
    let one = &ALL[number];
    let memory = memory(boot, number);
    if !virtio.negotiate(features) || memory.end > boot.free_memory().end {
        return false;
    }
    one.forget();
    let queues = if features & features::CTRL_VQ == 0 { 2 } else { 3 };
    let all = (0..queues).all(|queue| {
        let ring = &one.rings[usize::from(queue)];
        let size = virtio.size(queue).min(MAX_SIZE);
        ring.set_up(memory.start + RING_BYTES * u64::from(queue), size, features);
        let kick = virtio.set_up(queue, ring, queue + 1);
        ring.set_kick(kick.unwrap_or(memory.start), queue);
        kick.is_some() && size == MAX_SIZE
    });
    // What was sent is looked for when there is need.
    one.rings[usize::from(TRANSMIT)].be_quiet(true);
    one.rings[usize::from(CONTROL)].be_quiet(true);
    // The buffers are there before the device runs: a frame that comes at once finds one. The
    // device may be told only then (3.1.1).
    let wanted = (0..DEPTH).filter(|slot| one.provide(*slot)).count() > 0;
    virtio.go();
    if wanted {
        one.receiving().kick();
    }
    all && virtio.status() & virtio::status::NEEDS_RESET == 0
}

/// The memory of an interface.
pub fn memory(boot: &Boot, number: usize) -> Range<u64> {
    let first = boot.free_memory().start.next_multiple_of(0x1000) + BYTES * number as u64;
    first..first + BYTES
}

/// Has an interface's receive interrupts come to this CPU at a vector.
pub fn handle(virtio: &Virtio, number: usize, vector: u8) {
    BY_VECTOR[usize::from(vector)].store(number as u8, SeqCst);
    idt::on(vector, handler);
    virtio.route(RECEIVE + 1, x2apic::id() as usize, vector);
}

fn handler(frame: &mut Frame) {
    let number = BY_VECTOR[frame.vector as usize].load(SeqCst);
    if let Some(one) = ALL.get(usize::from(number)) {
        one.drain(true);
    }
    x2apic::complete();
}

impl Interface {
    fn forget(&self) {
        self.busy.iter().for_each(|slot| slot.store(0, SeqCst));
        for count in [
            &self.arrived,
            &self.looked,
            &self.sent,
            &self.completed,
            &self.by_interrupt,
            &self.odd,
        ] {
            count.store(0, SeqCst);
        }
    }

    /// The ring of what is received.
    pub fn receiving(&self) -> &Ring {
        &self.rings[usize::from(RECEIVE)]
    }

    /// The ring of what is sent.
    pub fn sending(&self) -> &Ring {
        &self.rings[usize::from(TRANSMIT)]
    }

    fn base(&self) -> u64 {
        self.receiving().descriptors()
    }

    fn received_at(&self, slot: usize) -> u64 {
        self.base() + QUEUES * RING_BYTES + SLOT * slot as u64
    }

    fn sent_at(&self, slot: usize) -> u64 {
        self.received_at(DEPTH + slot)
    }

    /// What was counted.
    pub fn account(&self) -> Account {
        Account {
            sent: self.sent.load(SeqCst),
            completed: self.completed.load(SeqCst),
            arrived: self.arrived.load(SeqCst),
            by_interrupt: self.by_interrupt.load(SeqCst),
            odd: self.odd.load(SeqCst),
        }
    }

    /// Sends a frame of these bytes; whether there was a slot for it.
    pub fn send(&self, bytes: &[u8]) -> bool {
        self.reclaim();
        let free = |slot: &AtomicU8| slot.load(SeqCst) == 0;
        let Some(slot) = self.busy.iter().position(free) else { return false };
        let at = self.sent_at(slot);
        // Neither flags nor an offload.
        (0..HEADER / 4).for_each(|i| put(at + 4 * i, 0u32));
        bytes.iter().enumerate().for_each(|(i, byte)| put(at + HEADER + i as u64, *byte));
        self.busy[slot].store(1, SeqCst);
        self.sent.fetch_add(1, SeqCst);
        let whole = HEADER as u32 + bytes.len() as u32;
        let descriptor = Descriptor { address: at, bytes: whole, flags: 0, next: 0 };
        descriptor.put(self.sending().descriptors(), slot as u16);
        self.sending().publish(slot as u16);
        true
    }

    /// Takes back what was sent.
    pub fn reclaim(&self) {
        while let Some((head, _)) = self.sending().take() {
            let slot = self.busy.get(head as usize);
            let was = slot.map_or(0, |slot| slot.swap(0, SeqCst));
            let count = if was == 1 { &self.completed } else { &self.odd };
            count.fetch_add(1, SeqCst);
        }
    }

    /// Whether the device has given back all that was sent; waits for it.
    pub fn all_sent(&self) -> bool {
        wait::patiently(|| {
            self.reclaim();
            self.completed.load(SeqCst) == self.sent.load(SeqCst)
        })
    }

    /// Has the device receive into this slot; says whether it wants to be told.
    fn provide(&self, slot: usize) -> bool {
        let (address, bytes) = (self.received_at(slot), SLOT as u32);
        let descriptor = Descriptor { address, bytes, flags: WRITE, next: 0 };
        descriptor.put(self.receiving().descriptors(), slot as u16);
        self.receiving().add(slot as u16)
    }

    /// Takes out what has arrived, without an interrupt.
    pub fn poll(&self) {
        self.drain(false);
    }

    fn drain(&self, by_interrupt: bool) {
        loop {
            while let Some((head, written)) = self.receiving().take() {
                let arrived = self.arrived.load(SeqCst);
                let fits = (HEADER as u32 + 14..=SLOT as u32).contains(&written);
                if head as usize >= DEPTH || !fits {
                    self.odd.fetch_add(1, SeqCst);
                    continue;
                }
                let word = u64::from(head) << 32 | u64::from(written);
                self.inbox[arrived as usize % DEPTH].store(word, SeqCst);
                self.by_interrupt.fetch_add(u64::from(by_interrupt), SeqCst);
                self.arrived.store(arrived + 1, SeqCst);
            }
            if !self.receiving().ask() {
                break;
            }
        }
    }

    /// The next frame that arrived: its bytes are copied there, and how many it has is told. Its
    /// slot takes another one then.
    pub fn receive(&self, into: &mut [u8]) -> Option<usize> {
        let looked = self.looked.load(SeqCst);
        if looked == self.arrived.load(SeqCst) {
            return None;
        }
        let word = self.inbox[looked as usize % DEPTH].load(SeqCst);
        let (slot, bytes) = ((word >> 32) as usize, word as u32 as usize - HEADER as usize);
        let at = self.received_at(slot) + HEADER;
        let copied = into.iter_mut().take(bytes).enumerate();
        copied.for_each(|(i, byte)| *byte = get(at + i as u64));
        self.looked.store(looked + 1, SeqCst);
        if self.provide(slot) {
            self.receiving().kick();
        }
        Some(bytes)
    }

    /// A command of the control queue (5.1.6.5): its answer, or none if there never is one.
    pub fn command(&self, class: u8, command: u8, data: &[u8]) -> Option<u8> {
        let ring = &self.rings[usize::from(CONTROL)];
        let at = self.sent_at(DEPTH);
        let answer = at + 0x800;
        put(at, class);
        put(at + 1, command);
        data.iter().enumerate().for_each(|(i, byte)| put(at + 2 + i as u64, *byte));
        put(answer, 0xEEu8);
        let bytes = 2 + data.len() as u32;
        Descriptor { address: at, bytes, flags: NEXT, next: 1 }.put(ring.descriptors(), 0);
        let last = Descriptor { address: answer, bytes: 1, flags: WRITE, next: 0 };
        last.put(ring.descriptors(), 1);
        ring.publish(0);
        let done = wait::patiently(|| ring.waiting() > 0);
        (done && ring.take().is_some()).then(|| get(answer))
    }
}

/// What every driver here asks for, where the device offers it.
pub const WANTED: u64 = feature::VERSION_1
    | feature::EVENT_INDEX
    | features::MTU
    | features::MAC
    | features::STATUS
    | features::CTRL_VQ
    | features::CTRL_RX
    | features::CTRL_MAC_ADDR;
