//! A modern virtio function on PCI (virtio 1.2, 4.1): its structures, negotiation, queues, MSI-X.
//! Which device it is doesn't matter here.
//!
//! Guarantees: no wait without a limit. It doesn't guarantee that the device keeps to the standard:
//! tests compare.

use crate::{cpu, edu, pci, pci::Function, virtqueue::Ring, wait};

/// Vendor id of all virtio functions, and device id of modern block devices.
pub const BLOCK: u32 = 0x1042_1AF4;

/// Device status (2.1).
pub mod status {
    /// ACKNOWLEDGE.
    pub const ACKNOWLEDGE: u8 = 1;
    /// DRIVER.
    pub const DRIVER: u8 = 2;
    /// DRIVER_OK.
    pub const DRIVER_OK: u8 = 4;
    /// FEATURES_OK.
    pub const FEATURES_OK: u8 = 8;
    /// DEVICE_NEEDS_RESET.
    pub const NEEDS_RESET: u8 = 64;
}

/// Features of every device (6).
pub mod feature {
    /// VIRTIO_F_INDIRECT_DESC.
    pub const INDIRECT: u64 = 1 << 28;
    /// VIRTIO_F_EVENT_IDX.
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// VIRTIO_F_VERSION_1.
    pub const VERSION_1: u64 = 1 << 32;
}

/// No MSI-X entry (4.1.5.1.2).
pub const NO_VECTOR: u16 = 0xFFFF;

/// cfg_type of the structures (4.1.4).
const COMMON_CFG: u8 = 1;
const NOTIFY_CFG: u8 = 2;
const ISR_CFG: u8 = 3;
const DEVICE_CFG: u8 = 4;

/// Fields of the common configuration (4.1.4.3): their offsets in it.
pub mod field {
    /// Which half of the offered features is shown, and that half.
    pub const DEVICE_FEATURE_SELECT: u64 = 0x00;
    /// As above.
    pub const DEVICE_FEATURE: u64 = 0x04;
    /// Which half of the accepted features is written, and that half.
    pub const DRIVER_FEATURE_SELECT: u64 = 0x08;
    /// As above.
    pub const DRIVER_FEATURE: u64 = 0x0C;
    /// The MSI-X entry of changes of the configuration.
    pub const CONFIG_VECTOR: u64 = 0x10;
    /// How many queues there are.
    pub const NUM_QUEUES: u64 = 0x12;
    /// Device status.
    pub const DEVICE_STATUS: u64 = 0x14;
    /// Changes when the configuration does.
    pub const GENERATION: u64 = 0x15;
    /// Which queue the fields from here on are of.
    pub const QUEUE_SELECT: u64 = 0x16;
    /// Its entries.
    pub const QUEUE_SIZE: u64 = 0x18;
    /// Its MSI-X entry.
    pub const QUEUE_VECTOR: u64 = 0x1A;
    /// It is in use.
    pub const QUEUE_ENABLE: u64 = 0x1C;
    /// Where it is kicked.
    pub const QUEUE_NOTIFY_OFF: u64 = 0x1E;
    /// Its areas.
    pub const QUEUE_DESC: u64 = 0x20;
    /// As above.
    pub const QUEUE_DRIVER: u64 = 0x28;
    /// As above.
    pub const QUEUE_DEVICE: u64 = 0x30;
}
use field::*;

const MSIX_ENABLE: u32 = 1 << 31;
const MASKED: u32 = 1;

/// A virtio function.
#[derive(Clone, Copy)]
pub struct Virtio {
    /// Its place in configuration space.
    pub function: Function,
    common: u64,
    notify: u64,
    multiplier: u64,
    isr: u64,
    device: u64,
    msix: u8,
    table: u64,
    pending: u64,
}

impl Virtio {
    /// All functions with these ids, their memory and bus master turned on, and MSI-X with every
    /// entry masked.
    pub fn all(ids: u32) -> impl Iterator<Item = Virtio> {
        Function::all().filter(move |f| f.read(0) == ids).filter_map(Virtio::of)
    }

    /// The first block device as it is, while another CPU drives it.
    pub fn first_block() -> Option<Virtio> {
        Virtio::read(Function::all().find(|f| f.read(0) == BLOCK)?)
    }

    fn of(function: Function) -> Option<Virtio> {
        let found = Virtio::read(function)?;
        function.write(pci::COMMAND, pci::MEMORY_AND_MASTER);
        (0..found.entries()).for_each(|entry| found.mask(entry, true));
        function.write(found.msix, function.read(found.msix) | MSIX_ENABLE);
        Some(found)
    }

    fn read(function: Function) -> Option<Virtio> {
        let structure = |kind: u8| {
            let mut all = function.capabilities(pci::VENDOR);
            let at = all.find(|at| (function.read(*at) >> 24) as u8 == kind)?;
            let bar = function.low_bar(function.read(at + 4) as u8);
            Some((at, bar + u64::from(function.read(at + 8))))
        };
        let msix = function.capability(pci::MSIX)?;
        let place = |register: u8| {
            let word = function.read(register);
            function.low_bar((word & 7) as u8) + u64::from(word & !7)
        };
        let (notify_at, notify) = structure(NOTIFY_CFG)?;
        Some(Virtio {
            function,
            common: structure(COMMON_CFG)?.1,
            notify,
            multiplier: u64::from(function.read(notify_at + 16)),
            isr: structure(ISR_CFG)?.1,
            device: structure(DEVICE_CFG)?.1,
            msix,
            table: place(msix + 4),
            pending: place(msix + 8),
        })
    }

    /// Device status.
    pub fn status(&self) -> u8 {
        cpu::mmio_read8(self.common + DEVICE_STATUS)
    }

    /// Sets bits of it.
    pub fn add_status(&self, bits: u8) {
        cpu::mmio_write8(self.common + DEVICE_STATUS, self.status() | bits);
    }

    /// Begins to reset it.
    pub fn begin_reset(&self) {
        cpu::mmio_write8(self.common + DEVICE_STATUS, 0);
    }

    /// Resets it, and waits until it has; says whether it came to that (2.4).
    pub fn reset(&self) -> bool {
        self.begin_reset();
        wait::until(|| self.status() == 0)
    }

    /// The features that it offers.
    pub fn offered(&self) -> u64 {
        let half = |select: u32| {
            cpu::mmio_write(self.common + DEVICE_FEATURE_SELECT, select);
            u64::from(cpu::mmio_read(self.common + DEVICE_FEATURE))
        };
        half(0) | half(1) << 32
    }

    /// Resets it and asks for these features alone (3.1.1); whether it takes them.
    pub fn negotiate(&self, features: u64) -> bool {
        let reset = self.reset();
        self.add_status(status::ACKNOWLEDGE);
        self.add_status(status::DRIVER);
        for select in 0..2u32 {
            cpu::mmio_write(self.common + DRIVER_FEATURE_SELECT, select);
            cpu::mmio_write(self.common + DRIVER_FEATURE, (features >> (32 * select)) as u32);
        }
        self.add_status(status::FEATURES_OK);
        reset && self.status() & status::FEATURES_OK != 0
    }

    /// DRIVER_OK: it may use its queues from now on.
    pub fn go(&self) {
        self.add_status(status::DRIVER_OK);
    }

    /// How many queues it has.
    pub fn queues(&self) -> u16 {
        cpu::mmio_read16(self.common + NUM_QUEUES)
    }

    /// Changes when its configuration does.
    pub fn generation(&self) -> u8 {
        cpu::mmio_read8(self.common + GENERATION)
    }

    /// The ISR, which reading clears.
    pub fn isr(&self) -> u8 {
        cpu::mmio_read8(self.isr)
    }

    /// The vector of its configuration, and that of a queue with whether it is enabled.
    pub fn vectors(&self, queue: u16) -> (u16, u16, bool) {
        cpu::mmio_write16(self.common + QUEUE_SELECT, queue);
        let of = |field| cpu::mmio_read16(self.common + field);
        (of(CONFIG_VECTOR), of(QUEUE_VECTOR), of(QUEUE_ENABLE) == 1)
    }

    /// The most entries of a queue: valid before it is set up.
    pub fn size(&self, queue: u16) -> u16 {
        cpu::mmio_write16(self.common + QUEUE_SELECT, queue);
        cpu::mmio_read16(self.common + QUEUE_SIZE)
    }

    /// Gives it a queue, with an MSI-X entry; where to kick it, if it took the entry.
    pub fn set_up(&self, queue: u16, ring: &Ring, entry: u16) -> Option<u64> {
        self.place(queue, ring.size(), [ring.descriptors(), ring.driver(), ring.device()], entry)
    }

    /// The same of areas anywhere: those of descriptors, of the driver, of the device.
    pub fn place(&self, queue: u16, size: u16, areas: [u64; 3], entry: u16) -> Option<u64> {
        cpu::mmio_write16(self.common + QUEUE_SELECT, queue);
        cpu::mmio_write16(self.common + QUEUE_SIZE, size);
        let fields = [QUEUE_DESC, QUEUE_DRIVER, QUEUE_DEVICE];
        for (field, address) in fields.into_iter().zip(areas) {
            cpu::mmio_write(self.common + field, address as u32);
            cpu::mmio_write(self.common + field + 4, (address >> 32) as u32);
        }
        cpu::mmio_write16(self.common + QUEUE_VECTOR, entry);
        let taken = cpu::mmio_read16(self.common + QUEUE_VECTOR) == entry;
        cpu::mmio_write16(self.common + QUEUE_ENABLE, 1);
        let offset = u64::from(cpu::mmio_read16(self.common + QUEUE_NOTIFY_OFF));
        taken.then_some(self.notify + offset * self.multiplier)
    }

    /// By which MSI-X entry it tells of changes of its configuration.
    pub fn configuration_by(&self, entry: u16) {
        cpu::mmio_write16(self.common + CONFIG_VECTOR, entry);
    }

    /// Where the device's configuration is.
    pub fn device_registers(&self) -> u64 {
        self.device
    }

    /// Four bytes of the device's configuration.
    pub fn config(&self, offset: u64) -> u32 {
        cpu::mmio_read(self.device + offset)
    }

    /// How many MSI-X entries it has.
    pub fn entries(&self) -> u16 {
        (self.function.read(self.msix) >> 16) as u16 % 0x800 + 1
    }

    /// Where its common configuration is.
    pub fn registers(&self) -> u64 {
        self.common
    }

    /// Where its queues are kicked.
    pub fn kicks(&self) -> u64 {
        self.notify
    }

    /// Where its pending bits of MSI-X are.
    pub fn pending_bits(&self) -> u64 {
        self.pending
    }

    /// The register of its MSI-X capability.
    pub fn msix(&self) -> u8 {
        self.msix
    }

    /// Where an MSI-X entry is.
    pub fn entry(&self, entry: u16) -> u64 {
        self.table + 16 * u64::from(entry)
    }

    /// Masks an MSI-X entry, or unmasks it.
    pub fn mask(&self, entry: u16, masked: bool) {
        cpu::mmio_write(self.entry(entry) + 12, if masked { MASKED } else { 0 });
    }

    /// Points an MSI-X entry at a vector of a CPU and unmasks it. It is masked meanwhile, as it has
    /// to be (PCI Express 6.0, 6.1.4.2).
    pub fn route(&self, entry: u16, cpu: usize, vector: u8) {
        let (at, address) = (self.entry(entry), edu::message_address(cpu as u32));
        self.mask(entry, true);
        cpu::mmio_write(at, address as u32);
        cpu::mmio_write(at + 4, (address >> 32) as u32);
        cpu::mmio_write(at + 8, u32::from(vector));
        self.mask(entry, false);
    }

    /// Whether an MSI-X entry's interrupt waits for its being unmasked.
    pub fn is_pending(&self, entry: u16) -> bool {
        let word = cpu::mmio_read(self.pending + u64::from(entry) / 32 * 4);
        word >> (entry % 32) & 1 == 1
    }
}
