//! Interrupt messages: what an MSI write or an IOAPIC entry asks of a local APIC.
//!
//! Guarantees that a [`Message`] is one the host may deliver on the guest's
//! behalf: fixed or lowest priority, vector 16 or higher. Everything else (NMI,
//! SMI, INIT, ExtINT, a write that isn't an interrupt at all) is [`Refused`].
//! Whether the destination exists is the host's question.

/// How the destination takes the message (SDM vol. 3, 11.11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMode {
    /// Every listed processor takes it.
    Fixed,
    /// One of the listed processors takes it.
    LowestPriority,
}

/// Edge or level; a level interrupt wants its EOI reported to the IOAPIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Edge triggered.
    Edge,
    /// Level triggered.
    Level,
}

/// What a function writes to raise an interrupt: what it means says who takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where it is written.
    pub address: u64,
    /// What is.
    pub data: u32,
}

impl Written {
    /// The message that it is, if nobody remaps it.
    pub fn message(&self) -> Result<Message, Refused> {
        Message::from_msi(self.address, self.data)
    }
}

/// An interrupt on its way to a local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The vector, 16 or higher.
    pub vector: u8,
    /// The destination field: an APIC id, or a logical set.
    pub destination: u32,
    /// That has 32 bits, since the message was remapped; else 8.
    pub wide: bool,
    /// Destination mode: logical instead of physical.
    pub logical: bool,
    /// Redirection hint: one processor of the set is enough. False from an IOAPIC.
    pub redirection_hint: bool,
    /// Fixed or lowest priority.
    pub delivery: DeliveryMode,
    /// Edge or level.
    pub trigger: Trigger,
}

/// Why an interrupt message isn't delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The address isn't one of interrupt messages.
    #[error("message address {address:#x} is no interrupt address: it must be 0xFEExxxxx")]
    Address {
        /// What was found.
        address: u64,
    },
    /// A delivery mode that the guest isn't offered.
    #[error("delivery mode {mode} is not offered: it must be 0 (fixed) or 1 (lowest priority)")]
    DeliveryMode {
        /// Bits 10:8 of the data.
        mode: u8,
    },
    /// The guest's own IOMMU lets nothing through.
    #[error("the guest's own IOMMU blocks it")]
    Blocked,
    /// A vector that no local APIC accepts.
    #[error("vector {vector} is reserved for exceptions: it must be 16 or higher")]
    Vector {
        /// What was found.
        vector: u8,
    },
}

impl Message {
    /// Reads an MSI address and data pair (SDM vol. 3, 11.11). Address bits 11:4
    /// are don't-care, as they are on hardware without interrupt remapping.
    pub fn from_msi(address: u64, data: u32) -> Result<Self, Refused> {
        if address >> 20 != 0xFEE {
            return Err(Refused::Address { address });
        }
        Ok(Message {
            destination: (address >> 12) as u32 & 0xFF,
            redirection_hint: address & 1 << 3 != 0,
            logical: address & 1 << 2 != 0,
            ..Self::from_low_bits(data)?
        })
    }

    /// Reads an IOAPIC redirection entry (82093AA, 3.2.4): destination in bits
    /// 63:56, destination mode in bit 11, vector, delivery and trigger as in MSI data.
    pub fn from_redirection(entry: u64) -> Result<Self, Refused> {
        Ok(Message {
            destination: (entry >> 56) as u32,
            logical: entry & 1 << 11 != 0,
            ..Self::from_low_bits(entry as u32)?
        })
    }

    /// Of a remapped interrupt: vector, delivery mode and trigger mode as in MSI data.
    pub fn remapped(
        data: u32,
        destination: u32,
        logical: bool,
        hint: bool,
    ) -> Result<Self, Refused> {
        let plain = Self::from_low_bits(data)?;
        Ok(Message { destination, wide: true, logical, redirection_hint: hint, ..plain })
    }

    /// Vector, delivery mode and trigger mode lie alike in MSI data and IOAPIC entries.
    fn from_low_bits(low: u32) -> Result<Self, Refused> {
        let vector = low as u8;
        let delivery = match low >> 8 & 7 {
            0 => DeliveryMode::Fixed,
            1 => DeliveryMode::LowestPriority,
            mode => return Err(Refused::DeliveryMode { mode: mode as u8 }),
        };
        if vector < 16 {
            return Err(Refused::Vector { vector });
        }
        let trigger = if low & 1 << 15 != 0 { Trigger::Level } else { Trigger::Edge };
        Ok(Message {
            vector,
            destination: 0,
            wide: false,
            logical: false,
            redirection_hint: false,
            delivery,
            trigger,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_linux_writes_for_apic_3_vector_0x41() {
        let m = Message::from_msi(0xFEE0_3000, 0x41).unwrap();
        assert_eq!(
            (m.vector, m.destination, m.logical, m.redirection_hint),
            (0x41, 3, false, false)
        );
        assert_eq!((m.delivery, m.trigger), (DeliveryMode::Fixed, Trigger::Edge));
        let m = Message::from_msi(0xFEE0_100C, 0xC1FF).unwrap();
        assert!(m.logical && m.redirection_hint);
        assert_eq!((m.delivery, m.trigger), (DeliveryMode::LowestPriority, Trigger::Level));
    }

    /// SDM vol. 3, 11.11.1: destination 19:12, redirection hint 3, destination mode 2.
    #[test]
    fn a_message_address_has_its_fields_where_the_manual_says() {
        let read = |address| {
            let m = Message::from_msi(address, 0x10).unwrap();
            (m.vector, m.destination, m.redirection_hint, m.logical)
        };
        assert_eq!(read(0xFEEF_F000), (16, 0xFF, false, false));
        assert_eq!(read(0xFEE8_1008), (16, 0x81, true, false));
        assert_eq!(read(0xFEE0_0004), (16, 0, false, true));
        assert_eq!(read(0xFEE0_0FF3), (16, 0, false, false), "the rest is none's");
    }

    /// 82093AA, 3.2.4: destination 63:56, trigger mode 15, destination mode 11, delivery mode 10:8.
    #[test]
    fn a_redirection_entry_has_its_fields_where_the_data_sheet_says() {
        let read = |entry| {
            let m = Message::from_redirection(entry).unwrap();
            assert!(!m.redirection_hint);
            (m.destination, m.vector, m.logical, m.delivery, m.trigger)
        };
        use {DeliveryMode::*, Trigger::*};
        assert_eq!(read(0xA5 << 56 | 0x41), (0xA5, 0x41, false, Fixed, Edge));
        assert_eq!(read(0x01 << 56 | 0x0800 | 0xFE), (1, 0xFE, true, Fixed, Edge));
        assert_eq!(read(0x8000 | 0x41), (0, 0x41, false, Fixed, Level));
        assert_eq!(read(0x0100 | 0x10), (0, 0x10, false, LowestPriority, Edge));
        assert_eq!(
            read(0x00FF_FFFF_FFFF_50FF),
            (0, 0xFF, false, Fixed, Edge),
            "the rest is none's"
        );
        for entry in [0x0F, 0x0241, 0x0441, 0x0741] {
            assert!(Message::from_redirection(entry).is_err(), "{entry:#x}");
        }
    }

    #[test]
    fn a_remapped_message_has_a_wide_destination() {
        let m = Message::remapped(0x8141, 0x1_0003, true, true).unwrap();
        assert_eq!((m.vector, m.destination, m.wide), (0x41, 0x1_0003, true));
        assert!(m.logical && m.redirection_hint && m.trigger == Trigger::Level);
        assert!(Message::remapped(0x0F, 0, false, false).is_err());
        assert!(!Message::from_msi(0xFEE0_0000, 0x41).unwrap().wide);
    }

    #[test]
    fn refusals_name_what_was_found() {
        let text = |r: Result<Message, Refused>| r.unwrap_err().to_string();
        assert!(text(Message::from_msi(0x1_FEE0_0000, 0x41)).contains("0x1fee00000"));
        assert!(text(Message::from_msi(0, 0x41)).contains("0xFEExxxxx"));
        assert!(text(Message::from_msi(0xFEE0_0000, 0x441)).contains("delivery mode 4"));
        assert!(text(Message::from_msi(0xFEE0_0000, 15)).contains("vector 15"));
    }

    proptest! {
        #[test]
        fn an_accepted_message_is_deliverable(address: u64, data: u32, near in any::<bool>()) {
            let address = if near { 0xFEE0_0000 | address & 0xF_FFFF } else { address };
            match Message::from_msi(address, data) {
                Ok(m) => {
                    prop_assert_eq!(address >> 20, 0xFEE);
                    prop_assert!(m.vector >= 16 && m.vector == data as u8);
                    prop_assert!(m.destination <= 0xFF);
                    prop_assert!(data >> 8 & 7 <= 1);
                }
                Err(_) => prop_assert!(address >> 20 != 0xFEE || data as u8 <= 15 || data >> 8 & 7 > 1),
            }
        }
    }
}
