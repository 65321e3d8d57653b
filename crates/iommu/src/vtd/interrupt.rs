//! The interrupt remapping table (VT-d 5.1, 9.10): its entries, who has which, and the messages
//! that lead to them.

use crate::entries::Allocated;
use crate::tables::Tables;
use crate::{Bdf, Delivery, Error, InterruptRoute, Memory, Message};

const PRESENT: u64 = 1;

/// A present entry in remapped format with EIME, low and high half: physical destination, edge
/// triggered, and all bits of the source verified (SVT = 01, SQ = 00).
pub fn encode(route: InterruptRoute) -> (u64, u64) {
    const SVT_VERIFY_SID: u64 = 1 << 18;
    let (mode, vector) = match route.delivery {
        Delivery::Fixed(vector) => (0, vector),
        Delivery::Nmi => (4, 0),
    };
    let low = PRESENT | mode << 5 | u64::from(vector) << 16 | u64::from(route.destination) << 32;
    (low, u64::from(route.source.requester_id()) | SVT_VERIFY_SID)
}

/// The route of an entry, if it is present and of the kind that [`encode`] makes.
pub fn decode(low: u64, high: u64) -> Option<InterruptRoute> {
    let delivery = match low >> 5 & 7 {
        4 => Delivery::Nmi,
        _ => Delivery::Fixed((low >> 16) as u8),
    };
    let source = Bdf::from_requester_id(high as u16);
    let route = InterruptRoute { source, destination: (low >> 32) as u32, delivery };
    (encode(route) == (low, high)).then_some(route)
}

/// The message that raises the interrupt of entry `index` (VT-d 5.1.5.2), without a subhandle.
pub fn message(index: u16) -> Message {
    const REMAPPABLE: u64 = 1 << 4;
    let index = u64::from(index);
    let address = 0xFEE0_0000 | (index & 0x7FFF) << 5 | REMAPPABLE | (index >> 15) << 2;
    Message { address, data: 0 }
}

/// The message for an MSI capability with several messages: the device adds the message's number to
/// the data, the unit adds the data to the index of the block's `first` entry (SHV = 1).
pub fn block_message(first: u16) -> Message {
    const SHV: u64 = 1 << 3;
    let Message { address, data } = message(first);
    Message { address: address | SHV, data }
}

/// The redirection entry of an I/O APIC, unmasked, edge triggered and active high, that raises the
/// interrupt of entry `index` (VT-d 5.1.5.1). The vector has to be the entry's.
pub fn ioapic_entry(index: u16, vector: u8) -> u64 {
    const REMAPPABLE: u64 = 1 << 48;
    let index = u64::from(index);
    (index & 0x7FFF) << 49 | REMAPPABLE | (index >> 15) << 11 | u64::from(vector)
}

/// The table, and which of its entries are allocated.
pub struct Entries {
    base: u64,
    count: u32,
    allocated: Allocated,
}

impl Entries {
    pub fn new<M: Memory>(tables: &mut Tables<M>, count: u32) -> Result<Self, Error> {
        if !count.is_power_of_two() || !(256..=65536).contains(&count) {
            return Err(Error::TableSize { entries: count });
        }
        let base = tables.allocate(u64::from(count / 256))?;
        Ok(Entries { base, count, allocated: Allocated::new(count) })
    }

    /// Address and size, as IRTA wants them.
    pub fn irta(&self) -> u64 {
        self.base | u64::from(self.count.trailing_zeros() - 1)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Which of them somebody has.
    pub fn allocated(&mut self) -> &mut Allocated {
        &mut self.allocated
    }

    /// The entry's halves.
    pub fn get<M: Memory>(&self, tables: &mut Tables<M>, index: u16) -> (u64, u64) {
        let pa = self.address(index);
        (tables.read(pa), tables.read(pa + 8))
    }

    /// Whether an entry of this low half is present.
    pub fn is_present(low: u64) -> bool {
        low & PRESENT != 0
    }

    /// Writes the half with the present bit, vector and destination.
    pub fn set_low<M: Memory>(&self, tables: &mut Tables<M>, index: u16, low: u64) {
        tables.write(self.address(index), low);
    }

    /// Writes the half with the source, which only an entry that isn't present may get.
    pub fn set_high<M: Memory>(&self, tables: &mut Tables<M>, index: u16, high: u64) {
        tables.write(self.address(index) + 8, high);
    }

    fn address(&self, index: u16) -> u64 {
        self.base + u64::from(index) * 16
    }
}
