//! Posted interrupts (SDM vol. 3, 30.6) and the local APIC that the CPU keeps for a guest (30.1): a
//! descriptor to which any core posts, and the page of registers that the CPU reads and writes.
//!
//! Guarantees: who posts stores the vector before it notifies, and notifies once until somebody has
//! looked. Whoever looks sees all that was posted before the notification that it found; what is
//! posted later is notified of anew. So a notification that comes while the guest's core is in the
//! host may be lost, if the core looks after it and before it enters the guest.

use core::sync::atomic::AtomicU32;
use delivery::VectorSet;
use sync::{AtomicU64, Ordering};

/// A notification is outstanding.
const OUTSTANDING: u64 = 1 << 0;
const VECTOR_SHIFT: u32 = 16;
const DESTINATION_SHIFT: u32 = 32;

/// What is posted for a vCPU, as processors and IOMMUs read and write it: 64 bytes, at a multiple
/// of as many; Bochs 3.0 wants it at a multiple of 4096.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Descriptor {
    /// The vectors that were posted.
    requests: [AtomicU64; 4],
    /// From bit 256 on: a notification is outstanding (ON), none is wanted (SN), which is never
    /// set; at bit 16 the vector of notifications (NV), at bit 32 the APIC id of the core (NDST).
    control: AtomicU64,
    reserved: [u64; 3],
}

/// The interrupt by which the guest's core learns of what was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// APIC id of the core.
    pub destination: u32,
    /// The vector.
    pub vector: u8,
}

impl Descriptor {
    /// Bytes from one to the next.
    pub const BYTES: usize = size_of::<Descriptor>();

    /// Nothing is posted; notifications go there.
    pub fn new(to: Notification) -> Descriptor {
        let control =
            u64::from(to.vector) << VECTOR_SHIFT | u64::from(to.destination) << DESTINATION_SHIFT;
        Descriptor {
            requests: core::array::from_fn(|_| AtomicU64::new(0)),
            control: AtomicU64::new(control),
            reserved: [0; 3],
        }
    }

    /// Where notifications go.
    pub fn notification(&self) -> Notification {
        let control = self.control.load(Ordering::Relaxed);
        Notification {
            destination: (control >> DESTINATION_SHIFT) as u32,
            vector: (control >> VECTOR_SHIFT) as u8,
        }
    }

    /// From any core: posts a vector. The notification is the caller's to send; none where one is
    /// outstanding.
    #[must_use = "without the notification the guest's core doesn't look"]
    pub fn post(&self, vector: u8) -> Option<Notification> {
        if let Some(word) = self.requests.get(usize::from(vector >> 6)) {
            word.fetch_or(1 << (vector & 63), Ordering::AcqRel);
        }
        let before = self.control.fetch_or(OUTSTANDING, Ordering::AcqRel);
        (before & OUTSTANDING == 0).then(|| self.notification())
    }

    /// The guest's core, out of the guest: takes what was posted, 64 vectors an element.
    #[inline]
    pub fn take(&self) -> Option<[u64; 4]> {
        let any = self.control.load(Ordering::Acquire) & OUTSTANDING != 0;
        any.then(|| {
            self.control.fetch_and(!OUTSTANDING, Ordering::AcqRel);
            self.requests.each_ref().map(|word| word.swap(0, Ordering::AcqRel))
        })
    }
}

/// Offsets of the first registers of what is in service, and of what is pending: eight, 16 bytes
/// apart.
const IN_SERVICE: usize = 0x100;
const REQUESTED: usize = 0x200;

/// The registers of the local APIC that the CPU keeps for a guest.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Registers([AtomicU32; 1024]);

impl Default for Registers {
    fn default() -> Self {
        Registers(core::array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl Registers {
    fn register(&self, first: usize, index: u8) -> Option<&AtomicU32> {
        self.0.get((first + 16 * usize::from(index)) / 4)
    }

    fn set(&self, first: usize) -> VectorSet {
        VectorSet::from_registers(|index| {
            self.register(first, index).map_or(0, |r| r.load(Ordering::Relaxed))
        })
    }

    fn store(&self, first: usize, vectors: &VectorSet) {
        for index in 0..8 {
            if let Some(register) = self.register(first, index) {
                register.store(vectors.register(index), Ordering::Relaxed);
            }
        }
    }

    /// What is pending, and what is in service.
    pub fn interrupts(&self) -> [VectorSet; 2] {
        [REQUESTED, IN_SERVICE].map(|first| self.set(first))
    }

    /// These are, and no others.
    pub fn set_interrupts(&self, [pending, in_service]: [&VectorSet; 2]) {
        self.store(REQUESTED, pending);
        self.store(IN_SERVICE, in_service);
    }
}

/// The guest's interrupt status: the highest vector that is pending, and the highest in service
/// above it (SDM vol. 3, 25.4.2).
pub(crate) fn status([pending, in_service]: [&VectorSet; 2]) -> u64 {
    let of = |set: &VectorSet| u64::from(set.highest().unwrap_or(0));
    of(pending) | of(in_service) << 8
}

#[cfg(test)]
#[path = "posted_tests.rs"]
mod tests;
