//! The interrupt command register (SDM vol. 3, 11.6.1 and 11.12.9; APM vol. 2, 16.5): what a write
//! sends. Nothing is sent from here, and nothing is ever on its way.

use super::*;

/// Delivery status.
const SEND_PENDING: u64 = 1 << 12;

impl LocalApic {
    /// The most frequent interrupt command of x2APIC mode: a fixed interrupt to one receiver, with
    /// a vector that is no exception's. Gives the receiver's id, or that of everybody (all ones),
    /// and the vector; `None` for any other command.
    #[inline]
    pub fn quick_physical(&mut self, value: u64) -> Option<(u32, u8)> {
        /// The other delivery modes, destination modes and shorthands.
        const OTHERS: u64 = 0b111 << 8 | 1 << 11 | 3 << 18 | ICR_RESERVED;
        /// Some of these is set in a vector that is no exception's, by `is_ordinary`.
        const ORDINARY: u64 = 0xE0;
        // All of `OTHERS` is above: one comparison tells that none is set, and some of these.
        if (value & (OTHERS | ORDINARY)).wrapping_sub(1) >= ORDINARY {
            return None;
        }
        self.icr = value & !SEND_PENDING;
        Some(((value >> 32) as u32, value as u8))
    }

    /// The frequent interrupt command of x2APIC mode: a fixed interrupt with a vector that is no
    /// exception's. Returns the receiver and the vector, or `None` for any other command, which
    /// [`LocalApic::write`] takes.
    #[inline]
    pub fn quick_command(&mut self, value: u64) -> Option<(Destination, u8)> {
        /// The delivery modes but fixed and lowest priority.
        const OTHER_MODES: u64 = 0b110 << 8;
        if value & (OTHER_MODES | ICR_RESERVED) != 0 || !is_ordinary(value as u8) {
            return None;
        }
        self.icr = value & !SEND_PENDING;
        Some((Destination::of(value), value as u8))
    }

    /// An EOI of x2APIC mode, as [`LocalApic::write`] takes it: what it completed, or nothing was
    /// in service. `None`: no such EOI, and nothing was done.
    #[inline]
    pub fn quick_complete(&mut self, value: u64) -> Option<Option<u8>> {
        (value == 0 && self.mode() == ApicMode::X2apic).then(|| self.complete())
    }

    /// The interrupt command register (SDM vol. 3, 11.6.1 and 11.12.9).
    pub(super) fn command(&mut self, value: u64, destination: Destination) -> WriteEffect {
        /// Level triggered, and not asserted: the end of an INIT, which means nothing any more.
        const DEASSERT: (u64, u64) = (1 << 15 | 1 << 14, 1 << 15);
        self.icr = value & !SEND_PENDING;
        let vector = value as u8;
        match value >> 8 & 7 {
            0 => self.fixed(destination, vector),
            // Lowest priority, which x2APIC hardware may treat as fixed.
            1 => match self.fixed(destination, vector) {
                WriteEffect::Interrupt { destination, vector }
                    if self.mode() == ApicMode::Xapic =>
                {
                    WriteEffect::OneOf { destination, vector }
                }
                sent => sent,
            },
            4 => WriteEffect::Nmi(destination),
            5 if value & DEASSERT.0 == DEASSERT.1 => WriteEffect::None,
            5 => WriteEffect::Init(destination),
            6 => WriteEffect::StartUp { destination, page: vector },
            _ => WriteEffect::None,
        }
    }

    #[inline]
    pub(super) fn fixed(&mut self, destination: Destination, vector: u8) -> WriteEffect {
        if vector >= FIRST_VECTOR {
            return WriteEffect::Interrupt { destination, vector };
        }
        self.error(ERROR_SEND_VECTOR).map_or(WriteEffect::None, |vector| WriteEffect::Interrupt {
            destination: Destination::Itself,
            vector,
        })
    }
}
