//! The function as a whole: which structure an access reaches, interrupts, what it is at reset.

use crate::bar::Place;
use crate::common::{Common, Effect, Queue};
use crate::{MAX_QUEUES, NO_VECTOR};
use arrayvec::ArrayVec;
use virtual_pc::message::Written;
use virtual_pc::msix::{Control, Entry, Table};

/// ISR status (4.1.4.5): the device configuration changed. The bit of the queues is never set: it
/// goes with an interrupt pin, and there is none.
const CONFIGURATION: u8 = 1 << 1;

/// What is outside and decides what an access sees. To be sampled at the access.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Who serves the queues holds none of this function, and no order to start is on its way.
    pub idle: bool,
    /// The device configuration (5); zero beyond its end.
    pub config: &'a [u8],
    /// The pending bits of the MSI-X entries, the first the lowest.
    pub pending: u64,
}

/// Refusal of a function that can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{queues} queues: it must be 1 to {MAX_QUEUES}")]
pub struct TooMany {
    /// What was asked for.
    pub queues: u16,
}

/// A virtio function's registers.
#[derive(Clone, Debug)]
pub struct Function {
    common: Common,
    isr: u8,
    table: Table<ArrayVec<Entry, { MAX_QUEUES + 1 }>>,
}

impl Function {
    /// A function at its reset. `offered`: the device's features, to which VERSION_1 is added;
    /// `max_size`: the most entries of a queue, which is made a power of two.
    pub fn new(offered: u64, queues: u16, max_size: u16) -> Result<Self, TooMany> {
        if !(1..=MAX_QUEUES).contains(&usize::from(queues)) {
            return Err(TooMany { queues });
        }
        let entries = (0..=queues).map(|_| Entry::RESET).collect();
        // 32768 is the largest (2.7).
        let max_size = 1 << max_size.max(1).ilog2();
        let common = Common::new(offered, queues, max_size);
        Ok(Function { common, isr: 0, table: Table::new(entries) })
    }

    /// The guest loads `size` bytes at `offset` in the BAR. A read of the ISR clears it.
    pub fn read(&mut self, offset: u64, size: u8, host: &Host) -> u64 {
        self.look(host);
        match Place::of(offset, size) {
            Place::Common(at) => self.common.read(at, size),
            Place::Isr(0) if size == 1 => core::mem::take(&mut self.isr).into(),
            Place::Device(at) => bytes(host.config, at, size),
            Place::Table(at) => self.table.read(at, size),
            Place::Pending(at) => bytes(&host.pending.to_le_bytes(), at, size),
            Place::Isr(_) | Place::Notify(_) | Place::Nothing => 0,
        }
    }

    /// The guest stores `size` bytes at `offset` in the BAR.
    pub fn write(&mut self, offset: u64, size: u8, value: u64, host: &Host) -> Effect {
        self.look(host);
        match Place::of(offset, size) {
            Place::Common(at) => {
                let effect = self.common.write(at, size, value);
                if effect == Effect::Reset {
                    self.isr = 0;
                }
                effect
            }
            Place::Device(at) => Effect::Config { at, size, value },
            Place::Table(at) => {
                self.table.write(at, size, value).map_or(Effect::None, Effect::Entry)
            }
            // The store is the queue's index, wherever it is (4.1.5.2).
            Place::Notify(_) if size == 2 => {
                let enabled = self.common.queues().get(value as u16 as usize).map(|q| q.enabled);
                let served = self.common.is_running() && enabled == Some(true);
                if served { Effect::Notify(value as u16) } else { Effect::None }
            }
            _ => Effect::None,
        }
    }

    /// A reset ends if the server has let go of the queues. Each access looks first.
    pub fn look(&mut self, host: &Host) {
        if host.idle {
            self.settled();
        }
    }

    /// Who served the queues has let go of them: a reset is over, though nobody has looked.
    pub fn settled(&mut self) {
        self.common.idle();
    }

    /// The features that the driver has accepted; final from [`Effect::Start`] to the next reset.
    pub fn features(&self) -> u64 {
        self.common.features()
    }

    /// All queues by their index; those that aren't enabled aren't in use.
    pub fn queues(&self) -> &[Queue] {
        self.common.queues()
    }

    /// The MSI-X entry of changes of the configuration, or [`NO_VECTOR`].
    pub fn config_vector(&self) -> u16 {
        self.common.config_vector()
    }

    /// The driver has the device running, and hasn't reset it since.
    pub fn is_running(&self) -> bool {
        self.common.is_running()
    }

    /// What is written for the interrupt of an MSI-X entry now; `None` while masked, off or not
    /// there.
    pub fn written(&self, entry: usize, control: Control) -> Option<Written> {
        self.table.written(entry, control)
    }

    /// A queue is broken: DEVICE_NEEDS_RESET, until the next reset. Gives the MSI-X entry to be
    /// signalled, if any, the first time.
    pub fn needs_reset(&mut self) -> Option<u16> {
        let tell = self.common.needs_reset();
        self.configuration_interrupt(tell)
    }

    /// The device configuration has changed: another generation. Gives the MSI-X entry to be
    /// signalled, if any.
    pub fn configuration_changed(&mut self) -> Option<u16> {
        self.common.next_generation();
        self.configuration_interrupt(self.common.is_running())
    }

    fn configuration_interrupt(&mut self, tell: bool) -> Option<u16> {
        if tell {
            self.isr |= CONFIGURATION;
        }
        Some(self.config_vector()).filter(|vector| tell && *vector != NO_VECTOR)
    }

    /// The function is as new, as at its VM's restart; as after [`Effect::Reset`], the queues are
    /// to be let go of.
    pub fn reset(&mut self) {
        self.common.reset();
        self.isr = 0;
        self.table.reset();
    }
}

/// An access of 1, 2, 4 or 8 bytes to some bytes; zero beyond their end.
fn bytes(from: &[u8], at: u64, size: u8) -> u64 {
    if !matches!(size, 1 | 2 | 4 | 8) {
        return 0;
    }
    let mut value = [0; 8];
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    let there = from.iter().skip(at).take(size.into());
    value.iter_mut().zip(there).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(value)
}

#[cfg(test)]
mod tests;
