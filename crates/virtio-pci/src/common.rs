//! The common configuration (4.1.4.3): negotiation, queues, and what follows from their registers.

use crate::{MAX_QUEUES, RING_PACKED, VERSION_1};
use arrayvec::ArrayVec;

/// The bits of the device status (2.1).
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
    /// FAILED.
    pub const FAILED: u8 = 128;
}
use status::{ACKNOWLEDGE, DRIVER, DRIVER_OK, FAILED, FEATURES_OK, NEEDS_RESET};

/// VIRTIO_MSI_NO_VECTOR: no MSI-X entry (4.1.5.1.2).
pub const NO_VECTOR: u16 = 0xFFFF;

/// What the hypervisor has to do after an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// The driver is ready: serve [`crate::Function::queues`] with [`crate::Function::features`].
    Start,
    /// The function is at its reset: let go of the queues, if they are served. Their vectors are
    /// gone, too. Until [`crate::Host::idle`] the driver doesn't see that it is done.
    Reset,
    /// [`crate::Function::config_vector`] or a queue's may be another.
    Vectors,
    /// This MSI-X entry is another.
    Entry(usize),
    /// The driver notifies this queue, which has waited for it: by the window of configuration
    /// space, or since the notify page isn't mapped.
    Notify(u16),
    /// The driver wrote to the device configuration, of which nothing is kept here.
    Config {
        /// The offset in it.
        at: u64,
        /// Bytes.
        size: u8,
        /// What was written.
        value: u64,
    },
}

/// A queue as the driver has set it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Entries: at most the function's maximum, and a power of two unless the ring is packed.
    pub size: u16,
    /// The MSI-X entry of its interrupts, or [`NO_VECTOR`].
    pub vector: u16,
    /// It is in use.
    pub enabled: bool,
    /// queue_desc, a guest address as all three are; unchecked.
    pub descriptors: u64,
    /// queue_driver.
    pub driver: u64,
    /// queue_device.
    pub device: u64,
}

/// Who has the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The driver, to set them up.
    Down,
    /// The server, from DRIVER_OK on.
    Running,
    /// The server still, which was told to let go of them.
    Stopping,
}

#[derive(Clone, Debug)]
pub(crate) struct Common {
    offered: u64,
    max_size: u16,
    phase: Phase,
    device_select: u32,
    driver_select: u32,
    accepted: u64,
    /// The driver asked for a feature beyond the 64 that there are.
    asks_beyond: bool,
    status: u8,
    generation: u8,
    config_vector: u16,
    select: u16,
    queues: ArrayVec<Queue, MAX_QUEUES>,
}

impl Common {
    /// `queues` beyond [`MAX_QUEUES`] don't exist.
    pub fn new(offered: u64, queues: u16, max_size: u16) -> Self {
        let reset = at_reset(max_size);
        Common {
            offered: offered | VERSION_1,
            max_size,
            phase: Phase::Down,
            device_select: 0,
            driver_select: 0,
            accepted: 0,
            asks_beyond: false,
            status: 0,
            generation: 0,
            config_vector: NO_VECTOR,
            select: 0,
            queues: (0..queues).map(|_| reset).take(MAX_QUEUES).collect(),
        }
    }

    pub fn features(&self) -> u64 {
        self.accepted
    }

    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    pub fn config_vector(&self) -> u16 {
        self.config_vector
    }

    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// The device configuration is another (4.1.4.3.1).
    pub fn next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// The device can't go on (2.1.2). Says whether the driver is to be told, which it is once.
    pub fn needs_reset(&mut self) -> bool {
        let tell = self.is_running() && self.status & NEEDS_RESET == 0;
        if tell {
            self.status |= NEEDS_RESET;
        }
        tell
    }

    /// All registers as after reset. The status stays until a running server is [`Common::idle`].
    pub fn reset(&mut self) {
        let reset = at_reset(self.max_size);
        self.device_select = 0;
        self.driver_select = 0;
        self.accepted = 0;
        self.asks_beyond = false;
        self.config_vector = NO_VECTOR;
        self.select = 0;
        self.queues.iter_mut().for_each(|queue| *queue = reset);
        if self.phase == Phase::Down {
            self.status = 0;
        } else {
            self.phase = Phase::Stopping;
        }
    }

    /// The server has no queue of this function. That ends a reset, if one is under way.
    pub fn idle(&mut self) {
        if self.phase == Phase::Stopping {
            self.phase = Phase::Down;
            self.status = 0;
        }
    }

    /// Fields are read with their own width (4.1.3.1), 64-bit ones by halves; all else is zero.
    pub fn read(&self, offset: u64, size: u8) -> u64 {
        let half = |value: u64, select: u32| match select {
            0 => value & 0xFFFF_FFFF,
            1 => value >> 32,
            _ => 0,
        };
        let queue = self.queues.get(usize::from(self.select));
        match (offset, size) {
            (0x00, 4) => self.device_select.into(),
            (0x04, 4) => half(self.offered, self.device_select),
            (0x08, 4) => self.driver_select.into(),
            (0x0C, 4) => half(self.accepted, self.driver_select),
            (0x10, 2) => self.config_vector.into(),
            (0x12, 2) => self.queues.len() as u64,
            (0x14, 1) => self.status.into(),
            (0x15, 1) => self.generation.into(),
            (0x16, 2) => self.select.into(),
            _ => queue.map_or(0, |queue| match (offset, size) {
                (0x18, 2) => queue.size.into(),
                (0x1A, 2) => queue.vector.into(),
                (0x1C, 2) => queue.enabled.into(),
                // queue_notify_off.
                (0x1E, 2) => self.select.into(),
                (0x20, 4) => half(queue.descriptors, 0),
                (0x24, 4) => half(queue.descriptors, 1),
                (0x28, 4) => half(queue.driver, 0),
                (0x2C, 4) => half(queue.driver, 1),
                (0x30, 4) => half(queue.device, 0),
                (0x34, 4) => half(queue.device, 1),
                _ => 0,
            }),
        }
    }

    /// As [`Common::read`]. While a reset is under way nothing is taken: a driver waits for its end
    /// (4.1.4.3.2).
    pub fn write(&mut self, offset: u64, size: u8, value: u64) -> Effect {
        if self.phase == Phase::Stopping {
            return Effect::None;
        }
        match (offset, size) {
            (0x00, 4) => self.device_select = value as u32,
            (0x08, 4) => self.driver_select = value as u32,
            (0x0C, 4) => self.accept(value as u32),
            (0x10, 2) => {
                self.config_vector = self.vector(value as u16);
                return Effect::Vectors;
            }
            (0x14, 1) => return self.set_status(value as u8),
            (0x16, 2) => self.select = value as u16,
            (0x1A, 2) => {
                let vector = self.vector(value as u16);
                let Some(queue) = self.queues.get_mut(usize::from(self.select)) else {
                    return Effect::None;
                };
                queue.vector = vector;
                return Effect::Vectors;
            }
            _ => self.set_up(offset, size, value),
        }
        Effect::None
    }

    /// driver_feature, which is closed once the device has agreed.
    fn accept(&mut self, value: u32) {
        if self.status & FEATURES_OK != 0 {
            return;
        }
        let value = u64::from(value);
        match self.driver_select {
            0 => self.accepted = self.accepted & !0xFFFF_FFFF | value,
            1 => self.accepted = self.accepted & 0xFFFF_FFFF | value << 32,
            // One word that asks for nothing doesn't take back what another asked for.
            _ => self.asks_beyond |= value != 0,
        }
    }

    /// Bits of the status are set, and cleared by a reset alone (2.1.1). FEATURES_OK and DRIVER_OK
    /// stay clear if the device doesn't agree.
    fn set_status(&mut self, value: u8) -> Effect {
        if value == 0 {
            self.reset();
            return Effect::Reset;
        }
        self.status |= value & (ACKNOWLEDGE | DRIVER | FAILED);
        let known = self.accepted & !self.offered == 0 && !self.asks_beyond;
        let agreed = known && self.accepted & VERSION_1 != 0;
        if agreed {
            self.status |= value & FEATURES_OK;
        }
        let starts = self.phase == Phase::Down && self.status & FEATURES_OK != 0;
        if value & DRIVER_OK == 0 || !starts {
            return Effect::None;
        }
        self.status |= DRIVER_OK;
        self.phase = Phase::Running;
        Effect::Start
    }

    /// A vector beyond the table is none (4.1.5.1.2.1).
    fn vector(&self, value: u16) -> u16 {
        if usize::from(value) <= self.queues.len() { value } else { NO_VECTOR }
    }

    /// Registers of the selected queue, which are the driver's until it is enabled or the device
    /// runs.
    fn set_up(&mut self, offset: u64, size: u8, value: u64) {
        let packed = self.accepted & RING_PACKED != 0;
        let max = self.max_size;
        let agreed = self.status & FEATURES_OK != 0;
        let Some(queue) = self.queues.get_mut(usize::from(self.select)) else { return };
        if queue.enabled || self.phase != Phase::Down {
            return;
        }
        let fits = |size: u16| (1..=max).contains(&size) && (packed || size.is_power_of_two());
        match (offset, size) {
            (0x18, 2) if fits(value as u16) => queue.size = value as u16,
            // The size may have been set when packed rings were still asked for.
            (0x1C, 2) => queue.enabled = value as u16 == 1 && agreed && fits(queue.size),
            (0x20, 4) => set_low(&mut queue.descriptors, value),
            (0x24, 4) => set_high(&mut queue.descriptors, value),
            (0x28, 4) => set_low(&mut queue.driver, value),
            (0x2C, 4) => set_high(&mut queue.driver, value),
            (0x30, 4) => set_low(&mut queue.device, value),
            (0x34, 4) => set_high(&mut queue.device, value),
            _ => {}
        }
    }
}

fn at_reset(max_size: u16) -> Queue {
    Queue {
        size: max_size,
        vector: NO_VECTOR,
        enabled: false,
        descriptors: 0,
        driver: 0,
        device: 0,
    }
}

fn set_low(field: &mut u64, value: u64) {
    *field = *field & !0xFFFF_FFFF | value & 0xFFFF_FFFF;
}

fn set_high(field: &mut u64, value: u64) {
    *field = *field & 0xFFFF_FFFF | value << 32;
}

#[cfg(test)]
mod tests;
