//! What a VM's paravirtual function and the sidecore that serves it say to each other.
//!
//! Guarantees: the sidecore waits for nobody. It takes an order only if nobody is writing one, and
//! else at its next round. Whoever gave an order sees by [`Port::is_busy`] whether the sidecore
//! goes by it yet; once it does, it has let go of the queues of earlier orders and of all memory
//! that they led to. Says nothing of what the guest may order: that is `virtio_pci`'s matter.

use crate::cpu::{self, rdtsc};
use crate::sidecore::listeners::Listener;
use ::sidecore::handover::Home;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use proto::Served;
use spin::mutex::SpinMutex;
use virtio_pci::{MAX_QUEUES, NO_VECTOR};
use virtqueue::Layout;

/// Seconds that a sidecore is waited for at most: it may be stopped by the machine alone, for a
/// machine check or an SMI.
const PATIENCE: u64 = 10;

/// What a device is to serve.
#[derive(Clone, Copy, Default)]
pub struct Order {
    /// Counts the device's resets, from 1: another one means new queues, whatever else is the same.
    pub life: u32,
    /// The guest lets the device read and write memory (bus master); else its queues stand still.
    pub may_access: bool,
    /// What the driver accepted of the features, as in the transport's words.
    pub features: u64,
    /// The queues that the driver enabled; none: the device is reset.
    pub queues: [Option<Layout>; MAX_QUEUES],
}

/// Counts of a queue since the VM started, as [`Served`] has them. The sidecore alone writes them,
/// but for the kicks.
#[derive(Default)]
pub struct Counts {
    pub completed: AtomicU64,
    pub bytes: AtomicU64,
    pub dropped: AtomicU64,
    pub calls: AtomicU64,
    pub withheld: AtomicU64,
    /// The vCPUs' side counts these.
    kicks: AtomicU64,
    /// The longest that the queue waited while it had requests, in passes of the sidecore.
    pub longest_wait: AtomicU64,
    /// The same in what others were served meanwhile, in bytes.
    pub longest_wait_bytes: AtomicU64,
    /// Times that the device came from another sidecore.
    moves: AtomicU64,
    /// TSC ticks for which the VM was at its limit by what this queue was served.
    pub held: AtomicU64,
}

/// So many more, in a count that nobody else writes.
#[inline]
pub fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// Between one paravirtual function and its sidecore.
pub struct Port {
    order: SpinMutex<Order>,
    /// Counts the orders, those that the sidecore has seen, and those that it goes by.
    asked: AtomicU32,
    seen: AtomicU32,
    followed: AtomicU32,
    /// The sidecores, and the one of them that is told that there is an order.
    listeners: &'static [Listener],
    home: Home,
    /// The MSI-X entries, in the device's table, of the queues and of changes of configuration.
    vectors: [AtomicU16; MAX_QUEUES],
    config_vector: AtomicU16,
    /// A bit for each queue that was kicked since the sidecore last looked.
    kicked: AtomicU32,
    /// The sidecore goes by kicks; else it polls, and they are only counted.
    kicks: bool,
    /// The last of the device's lives in which a queue was given up: the driver did what none may.
    broken: AtomicU32,
    counts: Box<[Counts]>,
    /// What the driver accepted, while it drives a queue: for whoever watches.
    features: AtomicU64,
}

impl Port {
    /// Nothing is ordered, of a device with so many queues. `at`: its sidecore among these.
    pub fn new(listeners: &'static [Listener], at: usize, queues: usize, kicks: bool) -> Self {
        Port {
            order: Default::default(),
            asked: AtomicU32::new(0),
            seen: AtomicU32::new(0),
            followed: AtomicU32::new(0),
            listeners,
            home: Home::new(at),
            vectors: [const { AtomicU16::new(NO_VECTOR) }; MAX_QUEUES],
            config_vector: AtomicU16::new(NO_VECTOR),
            kicked: AtomicU32::new(0),
            kicks,
            broken: AtomicU32::new(0),
            counts: (0..queues).map(|_| Counts::default()).collect(),
            features: AtomicU64::new(0),
        }
    }
}

/// The paravirtual function's side, with the VM's lock held, or when all of its vCPUs are out of
/// the guest.
impl Port {
    /// The driver kicked a queue, and that came to the host. It may be one that is polled anyway.
    pub fn kick(&self, queue: u16) {
        if let Some(counts) = self.counts(queue.into()) {
            counts.kicks.fetch_add(1, Ordering::Relaxed);
            if self.kicks {
                self.kicked.fetch_or(1 << queue, Ordering::AcqRel);
                self.ring();
            }
        }
    }

    /// Tells the sidecore that something is new.
    fn ring(&self) {
        if let Some(listener) = self.listeners.get(self.home.tell()) {
            listener.ring();
        }
    }

    /// The core of the sidecore that serves it.
    pub fn core(&self) -> usize {
        self.listeners.get(self.home.at()).map_or(0, Listener::core)
    }

    /// What was done for each queue so far.
    pub fn served(&self) -> impl Iterator<Item = Served> {
        self.counts.iter().map(|counts| {
            let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
            Served {
                completed: of(&counts.completed),
                bytes: of(&counts.bytes),
                dropped: of(&counts.dropped),
                calls: of(&counts.calls),
                calls_withheld: of(&counts.withheld),
                kicks: of(&counts.kicks),
                longest_wait: of(&counts.longest_wait),
                longest_wait_bytes: of(&counts.longest_wait_bytes),
                moves: of(&counts.moves),
                held: of(&counts.held),
            }
        })
    }

    /// What the driver accepted of the device's features; 0 while it drives no queue.
    pub fn features(&self) -> u64 {
        self.features.load(Ordering::Relaxed)
    }

    /// From here on the device is to do this.
    pub fn order(&self, order: Order) {
        let drives = order.queues.iter().any(Option::is_some);
        self.features.store(if drives { order.features } else { 0 }, Ordering::Relaxed);
        let mut current = self.order.lock();
        *current = order;
        self.asked.fetch_add(1, Ordering::Release);
        drop(current);
        self.ring();
    }

    /// Does the sidecore still go by an earlier order? Where there is none, nobody goes by any but
    /// in the VM's own exits.
    pub fn is_busy(&self) -> bool {
        let is_served = self.listeners.get(self.home.at()).is_some();
        is_served && self.followed.load(Ordering::Acquire) != self.asked.load(Ordering::Relaxed)
    }

    /// The device is to let go of its queues, and of all memory that they led to, as if it had
    /// never been used. A controller may need long for what it was asked for ([`Port::is_busy`]).
    pub fn let_go(&self) {
        self.order(Order::default());
    }

    /// Returns as soon as the sidecore has finished the piece of work it is at: it begins none any
    /// more by earlier orders. Panics if that doesn't come.
    pub fn settle(&self) {
        let (start, patience) = (rdtsc(), cpu::tsc_hz() * PATIENCE);
        while self.seen.load(Ordering::Acquire) != self.asked.load(Ordering::Relaxed) {
            core::hint::spin_loop();
            let waited = rdtsc().wrapping_sub(start);
            assert!(waited < patience, "a sidecore has seen no order for {PATIENCE} s");
        }
    }

    /// Which MSI-X entry a queue's interrupts go by.
    pub fn set_vector(&self, queue: usize, vector: u16) {
        if let Some(v) = self.vectors.get(queue) {
            v.store(vector, Ordering::Release);
        }
    }

    /// Which one tells of changes of the configuration.
    pub fn set_config_vector(&self, vector: u16) {
        self.config_vector.store(vector, Ordering::Release);
    }

    /// Was a queue given up in this life of the device?
    pub fn is_broken(&self, life: u32) -> bool {
        self.broken.load(Ordering::Acquire) == life
    }
}

/// The sidecore's side.
impl Port {
    /// The counts of a queue.
    #[inline]
    pub fn counts(&self, queue: usize) -> Option<&Counts> {
        self.counts.get(queue)
    }

    /// Which sidecore is told of what is new.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// The device came from another sidecore.
    pub fn count_move(&self) {
        self.counts.iter().for_each(|counts| add(&counts.moves, 1));
    }

    /// An order that it doesn't go by yet, if nobody is writing one just now, with the number that
    /// [`Port::follow`] wants. From here on it begins nothing but by this one.
    pub fn take(&self) -> Option<(Order, u32)> {
        let asked = self.asked.load(Ordering::Acquire);
        if asked == self.followed.load(Ordering::Relaxed) {
            return None;
        }
        let order = self.order.try_lock()?;
        let asked = self.asked.load(Ordering::Relaxed);
        self.seen.store(asked, Ordering::Release);
        Some((*order, asked))
    }

    /// The queues that were kicked since this was last asked, a bit each.
    pub fn take_kicks(&self) -> u32 {
        self.kicked.swap(0, Ordering::AcqRel)
    }

    /// It goes by the order of this number.
    pub fn follow(&self, number: u32) {
        self.followed.store(number, Ordering::Release);
    }

    /// The MSI-X entry of a queue.
    #[inline]
    pub fn vector(&self, queue: usize) -> Option<u16> {
        self.vectors.get(queue).map(|v| v.load(Ordering::Acquire)).filter(|v| *v != NO_VECTOR)
    }

    /// The MSI-X entry of changes of the configuration.
    pub fn config_vector(&self) -> Option<u16> {
        Some(self.config_vector.load(Ordering::Acquire)).filter(|v| *v != NO_VECTOR)
    }

    /// Gives a queue up, in this life. The driver sees it in the device's status.
    pub fn set_broken(&self, life: u32) {
        self.broken.store(life, Ordering::Release);
    }
}
