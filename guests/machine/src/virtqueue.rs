//! A split virtqueue as the driver has it (virtio 1.2, 2.7), in memory that the caller gives.
//!
//! Guarantees: what is read of the ring is what the device wrote, and nothing is assumed of it. One
//! CPU at a time puts chains in; one at a time takes used ones out.

use crate::{cpu, virtio::feature};
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::SeqCst};

/// Bytes of memory that a ring takes, from a page's start on.
pub const RING_BYTES: u64 = 0x3000;
/// The most entries there is room for.
pub const MAX_SIZE: u16 = 128;
const DRIVER: u64 = 0x1000;
const DEVICE: u64 = 0x2000;

/// A descriptor's flags (2.7.5).
pub const NEXT: u16 = 1;
/// The device writes to the buffer.
pub const WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub const INDIRECT: u16 = 4;

/// avail.flags and used.flags: the other side needn't say that it has put something in.
const SILENT: u16 = 1;
/// How far ahead an event index is that shall not be reached.
const FAR: u16 = 0x8000;

/// A descriptor.
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// Where the buffer is.
    pub address: u64,
    /// Its bytes.
    pub bytes: u32,
    /// Flags.
    pub flags: u16,
    /// The next one, with [`NEXT`].
    pub next: u16,
}

impl Descriptor {
    /// Stores it in a table, which may be an indirect one.
    pub fn put(self, table: u64, index: u16) {
        let at = table + 16 * u64::from(index);
        put(at, self.address);
        put(at + 8, self.bytes);
        put(at + 12, self.flags);
        put(at + 14, self.next);
    }
}

/// A ring.
pub struct Ring {
    base: AtomicU64,
    size: AtomicU16,
    event_index: AtomicBool,
    /// Where the device is told.
    kick: AtomicU64,
    number: AtomicU16,
    kicks: AtomicU64,
    /// Chains put in, as avail.idx has it.
    published: AtomicU16,
    /// Used chains taken out.
    seen: AtomicU16,
    quiet: AtomicBool,
}

impl Ring {
    /// One that isn't set up.
    pub const fn new() -> Ring {
        Ring {
            base: AtomicU64::new(0),
            size: AtomicU16::new(0),
            event_index: AtomicBool::new(false),
            kick: AtomicU64::new(0),
            number: AtomicU16::new(0),
            kicks: AtomicU64::new(0),
            published: AtomicU16::new(0),
            seen: AtomicU16::new(0),
            quiet: AtomicBool::new(false),
        }
    }

    /// Begins anew, in memory of [`RING_BYTES`] at `base`, with a size of a power of two.
    pub fn set_up(&self, base: u64, size: u16, features: u64) {
        (0..RING_BYTES / 8).for_each(|i| put(base + 8 * i, 0u64));
        self.base.store(base, SeqCst);
        self.size.store(size.min(MAX_SIZE), SeqCst);
        self.event_index.store(features & feature::EVENT_INDEX != 0, SeqCst);
        for index in [&self.published, &self.seen] {
            index.store(0, SeqCst);
        }
        self.kicks.store(0, SeqCst);
        self.be_quiet(false);
    }

    /// Where to kick the device, and with which number.
    pub fn set_kick(&self, address: u64, number: u16) {
        self.kick.store(address, SeqCst);
        self.number.store(number, SeqCst);
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.size.load(SeqCst)
    }

    /// Where its descriptors are.
    pub fn descriptors(&self) -> u64 {
        self.base.load(SeqCst)
    }

    /// Where what the driver writes is.
    pub fn driver(&self) -> u64 {
        self.descriptors() + DRIVER
    }

    /// Where what the device writes is.
    pub fn device(&self) -> u64 {
        self.descriptors() + DEVICE
    }

    fn mask(&self) -> u16 {
        self.size() - 1
    }

    /// Puts a chain in, and tells the device where it wants to be told (2.7.13).
    pub fn publish(&self, head: u16) {
        if self.add(head) {
            self.kick();
        }
    }

    /// Puts a chain in, and says whether the device wants to be told.
    pub fn add(&self, head: u16) -> bool {
        let old = self.published.load(SeqCst);
        let new = old.wrapping_add(1);
        put(self.driver() + 4 + 2 * u64::from(old & self.mask()), head);
        cpu::fence();
        put(self.driver() + 2, new);
        self.published.store(new, SeqCst);
        cpu::fence();
        if self.event_index.load(SeqCst) {
            let event: u16 = get(self.device() + 4 + 8 * u64::from(self.size()));
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            get::<u16>(self.device()) & SILENT == 0
        }
    }

    /// Tells the device that there is something, whether it wants to know or not.
    pub fn kick(&self) {
        self.kicks.fetch_add(1, SeqCst);
        // With the queue's number, as without VIRTIO_F_NOTIFICATION_DATA (4.1.5.2).
        put(self.kick.load(SeqCst), self.number.load(SeqCst));
    }

    /// How often the device was told since the set-up.
    pub fn kicks(&self) -> u64 {
        self.kicks.load(SeqCst)
    }

    /// Whether the device wants to be told of none of the next thousand chains: it polls.
    pub fn is_polled(&self) -> bool {
        if self.event_index.load(SeqCst) {
            let event: u16 = get(self.device() + 4 + 8 * u64::from(self.size()));
            event.wrapping_sub(self.published.load(SeqCst)) > 1_000
        } else {
            get::<u16>(self.device()) & SILENT != 0
        }
    }

    /// How many chains the device has given back that weren't taken out.
    pub fn waiting(&self) -> u16 {
        get::<u16>(self.device() + 2).wrapping_sub(self.seen.load(SeqCst))
    }

    /// Takes a used chain out: its head, and how much was written.
    pub fn take(&self) -> Option<(u32, u32)> {
        if self.waiting() == 0 {
            return None;
        }
        cpu::fence();
        let seen = self.seen.load(SeqCst);
        let at = self.device() + 4 + 8 * u64::from(seen & self.mask());
        self.seen.store(seen.wrapping_add(1), SeqCst);
        Some((get(at), get(at + 4)))
    }

    /// Asks for an interrupt at the next used chain, or for none; says whether there is one
    /// already, for which none may come (2.7.14).
    pub fn ask(&self) -> bool {
        let quiet = self.quiet.load(SeqCst);
        if self.event_index.load(SeqCst) {
            let event = self.seen.load(SeqCst).wrapping_add(if quiet { FAR } else { 0 });
            put(self.driver() + 4 + 2 * u64::from(self.size()), event);
        } else {
            put(self.driver(), if quiet { SILENT } else { 0 });
        }
        cpu::fence();
        self.waiting() > 0
    }

    /// Prints where both sides are; for failures.
    pub fn print(&self) {
        let word = |at| get::<u16>(at);
        let (published, seen) = (self.published.load(SeqCst), self.seen.load(SeqCst));
        let avail_event = word(self.device() + 4 + 8 * u64::from(self.size()));
        let used_event = word(self.driver() + 4 + 2 * u64::from(self.size()));
        crate::console::println!(
            "  published {published}, used {}, taken out {seen}, avail_event {avail_event}, used_event {used_event}, flags {} and {}, {} kicks",
            word(self.device() + 2),
            word(self.driver()),
            word(self.device()),
            self.kicks()
        );
    }

    /// Whether interrupts aren't wanted.
    pub fn be_quiet(&self, quiet: bool) {
        self.quiet.store(quiet, SeqCst);
        self.ask();
    }

    /// Whether they aren't.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(SeqCst)
    }
}

impl Default for Ring {
    fn default() -> Self {
        Ring::new()
    }
}

/// Stores to memory that a device has, too.
pub fn put<T: Copy>(address: u64, value: T) {
    // SAFETY: memory that the caller of the driver gave, mapped one to one, aligned.
    unsafe { (address as *mut T).write_volatile(value) }
}

/// Loads from such memory.
pub fn get<T: Copy>(address: u64) -> T {
    // SAFETY: as above.
    unsafe { (address as *const T).read_volatile() }
}
