//! A virtio-iommu's driver (virtio 1.2, 5.13): requests one by one, each waited for in the ring.
//!
//! Guarantees: no wait without a limit. What is asked is asked as it is, right or wrong.

use crate::boot::Boot;
use crate::virtio::{Virtio, feature};
use crate::virtqueue::{Descriptor, MAX_SIZE, NEXT, RING_BYTES, Ring, WRITE, get, put};
use crate::wait;

/// Vendor and device id.
pub const IDS: u32 = 0x1057_1AF4;
/// Its own features.
pub mod features {
    /// VIRTIO_IOMMU_F_MAP_UNMAP.
    pub const MAP_UNMAP: u64 = 1 << 2;
    /// VIRTIO_IOMMU_F_PROBE.
    pub const PROBE: u64 = 1 << 4;
    /// VIRTIO_IOMMU_F_BYPASS_CONFIG.
    pub const BYPASS_CONFIG: u64 = 1 << 6;
}
/// The place of `bypass` in its configuration.
pub const BYPASS: u64 = 36;

/// Access that a mapping allows.
pub const READ: u32 = 1;
/// As above.
pub const WRITES: u32 = 2;

/// Answers.
pub mod status {
    /// Done.
    pub const OK: u8 = 0;
    /// A field is wrong.
    pub const INVALID: u8 = 4;
    /// An address is out of range.
    pub const RANGE: u8 = 5;
    /// There is no such thing.
    pub const NO_ENTRY: u8 = 6;
    /// There is no memory for it.
    pub const NO_MEMORY: u8 = 8;
}

static REQUESTS: Ring = Ring::new();
/// Bytes of memory for it, from a page's start on.
pub const BYTES: u64 = RING_BYTES + 0x2000;
const REQUEST: u64 = RING_BYTES;
const ANSWER: u64 = RING_BYTES + 0x1000;

/// The device, running.
pub struct Viommu {
    /// Its function.
    pub virtio: Virtio,
    memory: u64,
}

impl Viommu {
    /// Finds it and starts it, with its queue in the first free memory.
    pub fn start(boot: &Boot) -> Option<Viommu> {
        let virtio = Virtio::all(IDS).next()?;
        let memory = boot.free_memory().start.next_multiple_of(0x1000);
        let features = features::MAP_UNMAP | features::PROBE | features::BYPASS_CONFIG;
        if !virtio.negotiate(feature::VERSION_1 | features) {
            return None;
        }
        REQUESTS.set_up(memory, virtio.size(0).min(MAX_SIZE), 0);
        REQUESTS.be_quiet(true);
        let kick = virtio.set_up(0, &REQUESTS, 1)?;
        REQUESTS.set_kick(kick, 0);
        virtio.go();
        Some(Viommu { virtio, memory })
    }

    /// Memory behind its own.
    pub fn memory_behind(&self) -> u64 {
        self.memory + BYTES
    }

    /// Asks for `bytes`, with so much room for the answer; gives how much was written, and the byte
    /// at `at` of it. None: there is no answer.
    pub fn ask(&self, bytes: &[u8], room: u32, at: u64) -> Option<(u32, u8)> {
        let (request, answer) = (self.memory + REQUEST, self.memory + ANSWER);
        (request..).zip(bytes).for_each(|(at, byte)| put(at, *byte));
        put(answer + at, 0xFFu8);
        let table = REQUESTS.descriptors();
        let (len, next) = (bytes.len() as u32, 1);
        Descriptor { address: request, bytes: len, flags: NEXT, next }.put(table, 0);
        Descriptor { address: answer, bytes: room, flags: WRITE, next: 0 }.put(table, 1);
        REQUESTS.publish(0);
        let mut used = None;
        wait::patiently(|| {
            used = REQUESTS.take();
            used.is_some()
        });
        used.map(|(_, written)| (written, get(answer + at)))
    }

    fn tail(&self, bytes: &[u8]) -> Option<u8> {
        self.ask(bytes, 4, 0).map(|(_, status)| status)
    }

    /// Attaches an endpoint to a domain.
    pub fn attach(&self, domain: u32, endpoint: u32, flags: u32) -> Option<u8> {
        let mut bytes = [0; 20];
        fill(&mut bytes, 1, &[(4, domain.into()), (8, endpoint.into()), (12, flags.into())]);
        self.tail(&bytes)
    }

    /// Detaches it.
    pub fn detach(&self, domain: u32, endpoint: u32) -> Option<u8> {
        let mut bytes = [0; 20];
        fill(&mut bytes, 2, &[(4, domain.into()), (8, endpoint.into())]);
        self.tail(&bytes)
    }

    /// Maps `first..=last` to memory from `to` on.
    pub fn map(&self, domain: u32, (first, last): (u64, u64), to: u64, flags: u32) -> Option<u8> {
        let mut bytes = [0; 36];
        let fields = [(4, domain.into()), (8, first), (16, last), (24, to), (32, flags.into())];
        fill(&mut bytes, 3, &fields);
        self.tail(&bytes)
    }

    /// Unmaps `first..=last`.
    pub fn unmap(&self, domain: u32, (first, last): (u64, u64)) -> Option<u8> {
        let mut bytes = [0; 28];
        fill(&mut bytes, 4, &[(4, domain.into()), (8, first), (16, last)]);
        self.tail(&bytes)
    }

    /// Sets what endpoints in no domain reach.
    pub fn set_bypass(&self, on: bool) {
        crate::cpu::mmio_write8(self.virtio.device_registers() + BYPASS, on.into());
    }

    /// Whether the device wants no kicks: it polls.
    pub fn is_polled(&self) -> bool {
        REQUESTS.is_polled()
    }
}

/// A request's type, and words at places in it; what doesn't fit isn't written.
fn fill(bytes: &mut [u8], kind: u8, words: &[(usize, u64)]) {
    if let Some(first) = bytes.first_mut() {
        *first = kind;
    }
    for (at, word) in words {
        let there = bytes.iter_mut().skip(*at);
        there.zip(word.to_le_bytes()).for_each(|(to, byte)| *to = byte);
    }
}
