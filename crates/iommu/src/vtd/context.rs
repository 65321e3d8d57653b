//! Root and context tables in legacy mode (VT-d 9.1, 9.3): which page tables a device's DMA goes
//! through. A device without a present entry is blocked.

use crate::tables::Tables;
use crate::{Bdf, Domain, DomainId, Error, Memory};

const PRESENT: u64 = 1;
const FRAME: u64 = 0x000F_FFFF_FFFF_F000;

/// A context entry: translate untranslated requests (TT = 0), by second-level tables.
pub fn encode(domain: Domain) -> (u64, u64) {
    let aw = u64::from(domain.levels.saturating_sub(2)) & 7;
    (domain.root & FRAME | PRESENT, u64::from(domain.id.0) << 8 | aw)
}

/// The domain that a context entry names, if it is present.
pub fn decode((low, high): (u64, u64)) -> Option<Domain> {
    let levels = (high & 7) as u8 + 2;
    let id = DomainId((high >> 8) as u16);
    (low & PRESENT != 0).then_some(Domain { id, root: low & FRAME, levels })
}

/// The root table, and below it a context table per bus that has ever had a device attached.
pub struct Contexts {
    root: u64,
}

impl Contexts {
    pub fn new<M: Memory>(tables: &mut Tables<M>) -> Result<Self, Error> {
        Ok(Contexts { root: tables.allocate(1)? })
    }

    /// Address of the root table.
    pub fn root(&self) -> u64 {
        self.root
    }

    pub fn get<M: Memory>(&self, tables: &mut Tables<M>, device: Bdf) -> Option<Domain> {
        let pa = self.entry(tables, device)?;
        decode((tables.read(pa), tables.read(pa + 8)))
    }

    /// Makes an entry that isn't present, present. The present bit is written last.
    pub fn set<M: Memory>(
        &self,
        tables: &mut Tables<M>,
        device: Bdf,
        domain: Domain,
    ) -> Result<(), Error> {
        let pa = match self.entry(tables, device) {
            Some(pa) => pa,
            None => {
                let table = tables.allocate(1)?;
                tables.write(self.root_entry(device), table | PRESENT);
                table + offset(device)
            }
        };
        let (low, high) = encode(domain);
        tables.write(pa + 8, high);
        tables.write(pa, low);
        Ok(())
    }

    /// Makes the entry not present. The rest of it stays until the next use, out of force.
    pub fn clear<M: Memory>(&self, tables: &mut Tables<M>, device: Bdf) {
        if let Some(pa) = self.entry(tables, device) {
            tables.write(pa, 0);
        }
    }

    /// Address of the device's entry, if its bus has a table.
    fn entry<M: Memory>(&self, tables: &mut Tables<M>, device: Bdf) -> Option<u64> {
        let entry = tables.read(self.root_entry(device));
        (entry & PRESENT != 0).then_some((entry & FRAME) + offset(device))
    }

    fn root_entry(&self, device: Bdf) -> u64 {
        self.root + u64::from(device.bus()) * 16
    }
}

/// Offset of a device's entry in its bus's table.
fn offset(device: Bdf) -> u64 {
    u64::from(device.requester_id() & 0xFF) * 16
}
