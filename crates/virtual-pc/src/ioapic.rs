//! The IOAPIC (82093AA with the EOI register of version 0x20), 24 pins.
//!
//! Guarantees the 82093AA's rules: an edge on a masked pin is lost, not latched; a
//! level pin sends one message and then waits, Remote IRR set, for the EOI of its
//! vector; a level still asserted at EOI or at unmasking sends again. Entries that
//! the guest may not use (see [`Refused`]) send nothing. `level` always means
//! asserted: the polarity bit is stored, not acted upon. Messages are delivered
//! the moment they are sent, so Delivery Status always reads idle.

use crate::message::{Message, Refused};
use arrayvec::ArrayVec;

/// Number of pins.
pub const PINS: usize = 24;
/// The messages that one guest write can send: at most one per pin.
pub type Messages = ArrayVec<Message, PINS>;

/// What a redirection entry means: [`Message::from_redirection`], if nobody remaps it.
pub type Read<'a> = &'a dyn Fn(u64) -> Result<Message, Refused>;

/// Offsets of the registers in the page (82093AA, 3.1; EOI register as in later chipsets).
const SELECT: u32 = 0x00;
const WINDOW: u32 = 0x10;
const EOI: u32 = 0x40;

/// Indirect registers (82093AA, 3.2).
const ID: u8 = 0x00;
const VERSION: u8 = 0x01;
const ARBITRATION: u8 = 0x02;
const REDIRECTION: u8 = 0x10;

const VERSION_VALUE: u32 = 0x20 | (PINS as u32 - 1) << 16;
const ID_BITS: u32 = 0xF << 24;

/// Redirection entry bits (82093AA, 3.2.4).
const REMOTE_IRR: u64 = 1 << 14;
const LEVEL: u64 = 1 << 15;
const MASKED: u64 = 1 << 16;
/// What a write can change: vector, delivery and destination mode, polarity,
/// trigger mode, mask, destination; not Delivery Status and Remote IRR. Below the destination
/// there are eight more bits, as in chipsets whose messages an IOMMU remaps: of that format's (bit
/// 48), and of its index.
const WRITABLE: u64 = 0xFFFF << 48 | 0x1_AFFF;

/// One IOAPIC.
#[derive(Clone, Debug)]
pub struct Ioapic {
    select: u8,
    id: u32,
    entries: [u64; PINS],
    asserted: u32,
    /// The pins with Remote IRR: local APICs complete vectors often, and hardly ever one of these.
    owed: u32,
}

impl Default for Ioapic {
    fn default() -> Self {
        Self::new()
    }
}

impl Ioapic {
    /// An IOAPIC after reset: id 0, every pin masked.
    pub const fn new() -> Self {
        Ioapic { select: 0, id: 0, entries: [MASKED; PINS], asserted: 0, owed: 0 }
    }

    /// The guest loads 32 bits at `offset` in the page; unknown ones read zero.
    pub fn read(&self, offset: u32) -> u32 {
        match offset {
            SELECT => self.select.into(),
            WINDOW => match self.select {
                ID | ARBITRATION => self.id,
                VERSION => VERSION_VALUE,
                _ => match self.selected() {
                    Some((pin, high)) => (self.entry(pin) >> if high { 32 } else { 0 }) as u32,
                    None => 0,
                },
            },
            _ => 0,
        }
    }

    /// The guest stores 32 bits at `offset` in the page; gives what must be
    /// delivered because of it.
    pub fn write(&mut self, read: Read<'_>, offset: u32, value: u32) -> Messages {
        let mut messages = Messages::new();
        match offset {
            SELECT => self.select = value as u8,
            WINDOW if self.select == ID => self.id = value & ID_BITS,
            WINDOW => {
                if let Some((pin, high)) = self.selected() {
                    messages.extend(self.write_entry(read, pin, high, value));
                }
            }
            EOI => return self.eoi(read, value as u8),
            _ => {}
        }
        messages
    }

    /// A device pulses a pin: asserted and released again. Pins beyond 23 do nothing.
    pub fn raise(&mut self, read: Read<'_>, pin: usize) -> Option<Message> {
        let message = self.set_level(read, pin, true);
        self.set_level(read, pin, false);
        message
    }

    /// A device drives a pin; gives the message that this sends, if any.
    pub fn set_level(&mut self, read: Read<'_>, pin: usize, level: bool) -> Option<Message> {
        let bit = if pin < PINS { 1 << pin } else { return None };
        let rises = level && self.asserted & bit == 0;
        self.asserted = if level { self.asserted | bit } else { self.asserted & !bit };
        if self.entry(pin) & LEVEL != 0 {
            self.send_level(read, pin)
        } else if rises && self.entry(pin) & MASKED == 0 {
            self.redirection(read, pin)?.ok()
        } else {
            None
        }
    }

    /// A local APIC completed this vector of a level interrupt; also what a write
    /// to the EOI register does. Gives the messages of lines that are still asserted.
    pub fn eoi(&mut self, read: Read<'_>, vector: u8) -> Messages {
        let mut messages = Messages::new();
        if self.owed == 0 {
            return messages;
        }
        for pin in 0..PINS {
            let entry = self.entry(pin);
            if entry & REMOTE_IRR != 0 && entry as u8 == vector {
                self.set_entry(pin, entry & !REMOTE_IRR);
                messages.extend(self.send_level(read, pin));
            }
        }
        messages
    }

    /// Does some pin wait for a completion? While none does [`Ioapic::eoi`] does nothing.
    pub const fn awaits(&self) -> bool {
        self.owed != 0
    }

    /// What a pin's entry would send, masked or not, or why it can't.
    pub fn redirection(&self, read: Read<'_>, pin: usize) -> Option<Result<Message, Refused>> {
        self.entries.get(pin).map(|entry| read(*entry))
    }

    /// The pin and half that the selected redirection register is.
    fn selected(&self) -> Option<(usize, bool)> {
        let register = self.select.checked_sub(REDIRECTION)?;
        let pin = usize::from(register / 2);
        (pin < PINS).then_some((pin, register % 2 == 1))
    }

    fn write_entry(
        &mut self,
        read: Read<'_>,
        pin: usize,
        high: bool,
        value: u32,
    ) -> Option<Message> {
        let (shift, half) = if high { (32, u64::MAX << 32) } else { (0, 0xFFFF_FFFF) };
        let writable = WRITABLE & half;
        let mut entry = self.entry(pin) & !writable | u64::from(value) << shift & writable;
        // Remote IRR means nothing for an edge pin. Drivers of IOAPICs without an
        // EOI register clear it by a visit to edge mode.
        if entry & LEVEL == 0 {
            entry &= !REMOTE_IRR;
        }
        self.set_entry(pin, entry);
        self.send_level(read, pin)
    }

    /// Sends for a level pin that is asserted, unmasked and not waiting for an EOI.
    fn send_level(&mut self, read: Read<'_>, pin: usize) -> Option<Message> {
        let entry = self.entry(pin);
        let ready = entry & (LEVEL | MASKED | REMOTE_IRR) == LEVEL;
        if !ready || self.asserted >> pin & 1 == 0 {
            return None;
        }
        let message = read(entry).ok()?;
        self.set_entry(pin, entry | REMOTE_IRR);
        Some(message)
    }

    fn entry(&self, pin: usize) -> u64 {
        self.entries.get(pin).copied().unwrap_or(MASKED)
    }

    fn set_entry(&mut self, pin: usize, entry: u64) {
        if let Some(slot) = self.entries.get_mut(pin) {
            *slot = entry;
            let owed = u32::from(entry & REMOTE_IRR != 0) << pin;
            self.owed = self.owed & !(1 << pin) | owed;
        }
    }
}

#[cfg(test)]
mod tests;
