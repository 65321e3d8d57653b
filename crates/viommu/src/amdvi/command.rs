//! What a guest may ask for by its command buffer (AMD IOMMU spec 48882, 2.4).

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To write a word when all before is done, if one is to be written, and to interrupt.
    Wait {
        /// Where, and what.
        store: Option<(u64, u64)>,
        interrupts: bool,
    },
    /// A device's entry, of DMA and of interrupts, may have changed.
    Device(u16),
    /// What this range of a domain maps may have.
    Mappings {
        domain: u16,
        /// First and last address.
        first: u64,
        last: u64,
    },
    /// Entries for interrupts may have.
    Interrupts,
    /// All may have.
    All,
    /// Something that devices have cached: none has.
    Nothing,
}

/// What a command asks for; `None`: it is none of those that are offered, or has reserved bits.
pub fn read([low, high]: [u64; 2]) -> Option<Asked> {
    let has_none = |reserved: u64| low & reserved == 0;
    match low >> 60 {
        // S, I, F, and the address.
        1 if has_none(0x0FF0_0000_0000_0000) => {
            let store = (low & 1 != 0).then_some((low & 0x000F_FFFF_FFFF_FFF8, high));
            Some(Asked::Wait { store, interrupts: low & 2 != 0 })
        }
        2 if has_none(0x0FFF_FFFF_FFFF_0000) && high == 0 => Some(Asked::Device(low as u16)),
        // No PASID without version 2, and so no GN.
        3 if has_none(0x0FFF_0000_FFFF_FFFF) && high & 0xFFC == 0 => {
            let (first, last) = range(high);
            Some(Asked::Mappings { domain: (low >> 32) as u16, first, last })
        }
        4 => Some(Asked::Nothing),
        5 if has_none(0x0FFF_FFFF_FFFF_0000) && high == 0 => Some(Asked::Interrupts),
        8 if has_none(0x0FFF_FFFF_FFFF_FFFF) && high == 0 => Some(Asked::All),
        _ => None,
    }
}

/// First and last address: a page, or with S as many as the lowest bit from 12 on says that is
/// clear. All, if that is 51 or more, as Linux has it.
fn range(high: u64) -> (u64, u64) {
    let order = if high & 1 == 0 { 0 } else { (high >> 12).trailing_ones() + 1 };
    if order >= 40 {
        return (0, u64::MAX);
    }
    let size = 1_u64 << (12 + order);
    let first = high & !(size - 1);
    (first, first + (size - 1))
}
