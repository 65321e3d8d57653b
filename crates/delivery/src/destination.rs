//! Whom an interrupt is for: the destinations of both modes of the local APIC, and how a receiver
//! compares itself with them (SDM vol. 3, 11.6.2 and 11.12.9; APM vol. 2, 16.5 and 16.12).
//!
//! A sender in x2APIC mode names others by 32 bits, one in xAPIC mode, an MSI and an IOAPIC entry
//! by eight. Eight bits of a logical destination mean what each receiver's own registers say. To
//! name a processor in xAPIC mode by a logical x2APIC id is beyond the manuals, which want all
//! processors in one mode: here that id is its x2APIC one all the same.

use crate::ApicMode;

/// The receivers of an inter-processor interrupt, in the guest's APIC ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The sender.
    Itself,
    /// Everybody, the sender too.
    All,
    /// Everybody else.
    Others,
    /// One physical APIC id.
    Physical(u32),
    /// A logical x2APIC destination: cluster in the upper half, members in the lower.
    Logical(u32),
    /// A logical destination of eight bits.
    Logical8(u8),
}

const SHORTHAND: u64 = 3 << 18;
const LOGICAL: u64 = 1 << 11;

impl Destination {
    /// The one that an interrupt command names in x2APIC mode.
    #[inline]
    pub const fn of(command: u64) -> Destination {
        let id = (command >> 32) as u32;
        // The frequent one, first.
        if command & (SHORTHAND | LOGICAL) == 0 && id != u32::MAX {
            return Destination::Physical(id);
        }
        match Self::shorthand(command) {
            Some(destination) => destination,
            // Broadcast, in both destination modes (SDM vol. 3, 11.12.9).
            None if id == u32::MAX => Destination::All,
            None => Destination::Logical(id),
        }
    }

    /// The one that an interrupt command names in xAPIC mode; its upper half is ICR's, with the
    /// destination in bits 63:56.
    pub const fn of_xapic(command: u64) -> Destination {
        match Self::shorthand(command) {
            Some(destination) => destination,
            None => Self::of_message((command >> 56) as u8, command & LOGICAL != 0),
        }
    }

    /// The one that a message's eight bits name.
    pub const fn of_message(destination: u8, logical: bool) -> Destination {
        match destination {
            // In both destination modes (SDM vol. 3, 11.6.2.1 and 11.6.2.2).
            0xFF => Destination::All,
            set if logical => Destination::Logical8(set),
            id => Destination::Physical(id as u32),
        }
    }

    /// The one that 32 bits name, of a message that an IOMMU remapped.
    pub const fn of_wide(destination: u32, logical: bool) -> Destination {
        match destination {
            // As in the command of an x2APIC (SDM vol. 3, 11.12.9).
            u32::MAX => Destination::All,
            set if logical => Destination::Logical(set),
            id => Destination::Physical(id),
        }
    }

    const fn shorthand(command: u64) -> Option<Destination> {
        match command >> 18 & 3 {
            0 => None,
            1 => Some(Destination::Itself),
            2 => Some(Destination::All),
            _ => Some(Destination::Others),
        }
    }

    /// Does it name its receivers, by id or as a set, instead of by a shorthand or as everybody?
    pub const fn names(self) -> bool {
        use Destination::{Logical, Logical8, Physical};
        matches!(self, Physical(_) | Logical(_) | Logical8(_))
    }

    /// The receivers among the local APICs 0 to 63, a bit each, of what `sender`, one of them,
    /// sends in x2APIC mode.
    #[inline]
    pub const fn members(self, sender: u32) -> u64 {
        match self {
            Destination::Physical(id) => bit(id),
            Destination::Others => !bit(sender),
            Destination::All => !0,
            Destination::Itself => bit(sender),
            Destination::Logical(set) if set >> 16 < 4 => (set as u64 & 0xFFFF) << (set >> 16 << 4),
            Destination::Logical(_) | Destination::Logical8(_) => 0,
        }
    }

    /// Is the local APIC `id`, addressed like `receiver`, among the receivers of what `sender`
    /// sends?
    pub const fn includes(self, id: u32, sender: u32, receiver: Addressing) -> bool {
        match self {
            Destination::Itself => sender == id,
            Destination::All => true,
            Destination::Others => sender != id,
            Destination::Physical(only) => only == id,
            Destination::Logical(set) => set >> 16 == id >> 4 && set & 1 << (id & 15) != 0,
            Destination::Logical8(set) => receiver.is_in(set, id),
        }
    }
}

const fn bit(id: u32) -> u64 {
    if id < 64 { 1 << id } else { 0 }
}

/// What of a local APIC others must know to address it: one word, to be kept in an atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addressing(u32);

/// Bits 7:0: the logical id of xAPIC mode.
const LOGICAL_ID: u32 = 0xFF;
const CLUSTERS: u32 = 1 << 8;
const XAPIC: u32 = 1 << 9;
const X2APIC: u32 = 1 << 10;

impl Addressing {
    /// `logical`: bits 31:24 of LDR; `clusters`: DFR says cluster model, not flat model. Both mean
    /// something in xAPIC mode alone.
    pub const fn new(mode: ApicMode, logical: u8, clusters: bool) -> Self {
        match mode {
            ApicMode::Disabled => Addressing(0),
            ApicMode::X2apic => Addressing(X2APIC),
            ApicMode::Xapic => {
                Addressing(XAPIC | if clusters { CLUSTERS } else { 0 } | logical as u32)
            }
        }
    }

    /// From the atomic's value.
    pub const fn from_bits(bits: u32) -> Self {
        Addressing(bits)
    }

    /// To the atomic's value.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Is there a local APIC at all, which NMI, INIT and start-up reach?
    pub const fn present(self) -> bool {
        self.0 & (XAPIC | X2APIC) != 0
    }

    /// Is it, with the physical id `id`, in the logical set of eight bits?
    const fn is_in(self, set: u8, id: u32) -> bool {
        let own = (self.0 & LOGICAL_ID) as u8;
        if self.0 & X2APIC != 0 {
            // Cluster 0, of which eight bits can name half.
            id < 8 && set & 1 << id != 0
        } else if self.0 & CLUSTERS != 0 {
            own >> 4 == set >> 4 && own & set & 0xF != 0
        } else {
            own & set != 0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const X2: Addressing = Addressing::new(ApicMode::X2apic, 0, false);

    fn flat(logical: u8) -> Addressing {
        Addressing::new(ApicMode::Xapic, logical, false)
    }

    fn cluster(logical: u8) -> Addressing {
        Addressing::new(ApicMode::Xapic, logical, true)
    }

    #[test]
    fn commands_of_xapic_mode() {
        let of = |high: u64, low| Destination::of_xapic(high << 32 | low);
        assert_eq!(of(5 << 24, 0x50), Destination::Physical(5));
        assert_eq!(of(0xFF << 24, 0x50), Destination::All);
        assert_eq!(of(5 << 24, 0x850), Destination::Logical8(5));
        assert_eq!(of(0xFF << 24, 0x850), Destination::All);
        assert_eq!(of(5, 0x50), Destination::Physical(0), "only bits 31:24 count");
        for logical in [0, LOGICAL] {
            assert_eq!(of(5 << 24, 1 << 18 | logical), Destination::Itself);
            assert_eq!(of(5 << 24, 2 << 18 | logical), Destination::All);
            assert_eq!(of(5 << 24, 3 << 18 | logical), Destination::Others);
        }
    }

    #[test]
    fn flat_and_cluster_model() {
        let reached = |set, receiver| Destination::Logical8(set).includes(40, 0, receiver);
        assert!(reached(0b0110, flat(0b0100)) && !reached(0b0110, flat(0b1000)));
        assert!(!reached(0xFE, flat(0)), "a logical id of 0 is in no set");
        assert!(reached(0x23, cluster(0x22)) && !reached(0x23, cluster(0x24)));
        assert!(!reached(0x23, cluster(0x12)), "another cluster");
        assert!(!reached(0x20, cluster(0x2F)), "nobody of the cluster");
        assert!(reached(0x23, flat(0x12)), "in the flat model these share a bit");
    }

    #[test]
    fn eight_bits_to_x2apic_mode_are_members_of_cluster_0() {
        for id in 0..40 {
            let reached = Destination::Logical8(0b1010_0001).includes(id, 1, X2);
            assert_eq!(reached, matches!(id, 0 | 5 | 7), "{id}");
        }
    }

    #[test]
    fn a_physical_destination_is_one_and_no_other() {
        for id in 0..40 {
            assert_eq!(Destination::Physical(35).includes(id, 1, X2), id == 35, "{id}");
            assert_eq!(Destination::Physical(35).includes(id, 35, flat(0xFF)), id == 35, "{id}");
        }
    }

    #[test]
    fn logical_x2apic_ids() {
        let set = Destination::Logical(2 << 16 | 1 << 3);
        assert!(set.includes(35, 0, X2) && !set.includes(3, 0, X2) && !set.includes(34, 0, X2));
    }

    /// The 65th local APIC and those after it have no bit, nor does another one's stand for them.
    #[test]
    fn whoever_is_beyond_64_is_no_member() {
        for id in (0..200).chain([1 << 16, u32::MAX]) {
            let alone = if id < 64 { 1 << id } else { 0 };
            assert_eq!(Destination::Physical(id).members(0), alone, "{id}");
            let logical = id >> 4 << 16 | 1 << (id & 15);
            assert_eq!(Destination::Logical(logical).members(0), alone, "{logical:#x}");
        }
    }

    #[test]
    fn a_disabled_one_is_absent_and_in_no_set() {
        let none = Addressing::new(ApicMode::Disabled, 0xFF, false);
        assert!(!none.present() && X2.present() && flat(0).present() && cluster(1).present());
        assert!(!Destination::Logical8(0x7F).includes(0, 1, none));
    }

    #[test]
    fn shorthands_and_broadcast_name_nobody() {
        use Destination::*;
        assert!(Physical(1).names() && Logical(1).names() && Logical8(1).names());
        assert!(!Itself.names() && !All.names() && !Others.names());
    }

    proptest! {
        #[test]
        fn a_set_of_receivers_is_who_is_included(command in any::<u64>(), near in 0u64..64, sender in 0u32..64) {
            // Mostly destinations that exist.
            for command in [command, command & 0xFFFF_FFFF | near << 32, command & 0x3_FFFF_FFFF_FFFF] {
                let destination = Destination::of(command);
                let members = destination.members(sender);
                for id in 0..64 {
                    prop_assert_eq!(members >> id & 1 != 0, destination.includes(id, sender, X2));
                }
            }
        }

        /// As the manual's sentences have it, said another way.
        #[test]
        fn logical_destinations_of_eight_bits(set: u8, own: u8, id in 0u32..256, clusters: bool) {
            let receiver = Addressing::new(ApicMode::Xapic, own, clusters);
            let nibbles = |n: u8| (n / 16, n % 16);
            let ((c, members), (mine, bit)) = (nibbles(set), nibbles(own));
            let expected = if clusters {
                c == mine && (0..4).any(|i| members >> i & 1 == 1 && bit >> i & 1 == 1)
            } else {
                (0..8).any(|i| set >> i & 1 == 1 && own >> i & 1 == 1)
            };
            prop_assert_eq!(Destination::Logical8(set).includes(id, 0, receiver), expected);
            prop_assert_eq!(Addressing::from_bits(receiver.bits()), receiver);
        }
    }
}
