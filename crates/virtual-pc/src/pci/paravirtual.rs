//! Functions that the host makes: virtio devices of the modern kind (virtio 1.2, 4.1).
//!
//! Guarantees: the list has MSI-X if the function has it, a capability for each structure, and the
//! window into the BARs that every such device must have (4.1.4.9). All of it is read-only but for
//! MSI-X control, and for where the window points. There is no interrupt pin, no function-level
//! reset and no power management: a driver resets the device by its status.

use super::bar::BarInfo;
use super::capabilities::{FIRST, MSIX, MsixLayout, Offered, POINTER, STATUS, STATUS_CAPABILITIES};
use super::function::{Function, Space, Unsuitable, check_msix, open_header};

const VENDOR: u8 = 0x09;
/// `struct virtio_pci_cap` (4.1.4), without what some kinds have after it.
const PLAIN: u8 = 16;
/// With a word after it.
const WITH_WORD: u8 = 20;
/// The window's fields: the BAR, the offset in it, the length, and the data (4.1.4.9).
const CFG_TYPE: u8 = 5;
const BAR: usize = 4;
const OFFSET: usize = 8;
const LENGTH: usize = 12;
const DATA: usize = 16;

/// What the header says of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor id; virtio's is 0x1AF4.
    pub vendor: u16,
    /// Device id; 0x1040 and the type of the virtio device (4.1.2).
    pub device: u16,
    /// At least 1 of a modern virtio device.
    pub revision: u8,
    /// Class, subclass and programming interface, in bits 23:0.
    pub class: u32,
    /// Subsystem vendor id.
    pub subsystem_vendor: u16,
    /// Subsystem id; 0x40 or higher, so that no legacy driver takes it (4.1.2.1).
    pub subsystem: u16,
}

/// A structure of a virtio device, which a capability tells of (4.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Common configuration (4.1.4.3).
    Common,
    /// Notifications; a queue's address is its `queue_notify_off` times this (4.1.4.4).
    Notify {
        /// `notify_off_multiplier`, in bytes.
        multiplier: u32,
    },
    /// ISR status (4.1.4.5).
    Isr,
    /// What is the device type's own (4.1.4.6).
    Device,
}

/// Where a structure lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which one.
    pub structure: Structure,
    /// The BAR.
    pub bar: u8,
    /// The offset in it, in bytes.
    pub offset: u32,
    /// Its length, in bytes.
    pub length: u32,
}

impl Structure {
    /// `cfg_type`, and the word that the capability ends with.
    const fn kind(self) -> (u8, Option<u32>) {
        match self {
            Structure::Common => (1, None),
            Structure::Notify { multiplier } => (2, Some(multiplier)),
            Structure::Isr => (3, None),
            Structure::Device => (4, None),
        }
    }
}

/// A piece of a BAR, which the guest reaches through configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The BAR, which is memory.
    pub bar: u8,
    /// The offset in it, a multiple of the size.
    pub offset: u32,
    /// 1, 2 or 4 bytes, which lie in the BAR.
    pub size: u8,
}

impl Function {
    /// Makes a function with these BARs. A structure that doesn't lie in its BAR is refused, and so
    /// are more of them than there is room for.
    pub fn paravirtual(
        identity: &Identity,
        bars: &[Option<BarInfo>; 6],
        msix: Option<MsixLayout>,
        places: &[Place],
    ) -> Result<Function, Unsuitable> {
        let mut space = Space { value: [0; 256], writable: [0; 256] };
        space.set_u16(0x00, identity.vendor);
        space.set_u16(0x02, identity.device);
        space.set_u32(0x08, identity.class << 8 | u32::from(identity.revision));
        space.set_u16(0x2C, identity.subsystem_vendor);
        space.set_u16(0x2E, identity.subsystem);
        open_header(&mut space, bars)?;
        let mut list = List { space, link: POINTER, next: FIRST.into() };
        let mut offered = Offered::default();
        if let Some(layout) = msix {
            check_msix(bars, &layout)?;
            offered.msix = Some((list.add_msix(&layout)?, layout));
        }
        for place in places {
            let end = u64::from(place.offset) + u64::from(place.length);
            let info = bars.get(usize::from(place.bar)).copied().flatten();
            if !info.is_some_and(|info| !info.kind.is_io() && end <= info.size) {
                return Err(Unsuitable::StructureOutside { bar: place.bar, end });
            }
            list.add_structure(place)?;
        }
        offered.window = Some(list.add_window()?);
        Ok(Function { space: list.space, bars: *bars, offered })
    }

    /// The piece of a BAR that an access of `size` bytes at `register` is for: the one to the data
    /// of virtio's window, as the guest has set it up. The host does it, whether or not the BAR is
    /// decoded. `None`: the access is for configuration space itself. There the data reads as zero.
    pub fn window(&self, register: u8, size: u8) -> Option<Window> {
        let at = self.offered.window.filter(|at| at + DATA == usize::from(register))?;
        let (bar, offset) = (self.space.u8(at + BAR), self.space.u32(at + OFFSET));
        let length = self.space.u32(at + LENGTH);
        let info = self.bar(bar.into()).filter(|info| !info.kind.is_io())?;
        let inside = u64::from(offset) + u64::from(length) <= info.size;
        let whole = matches!(length, 1 | 2 | 4) && offset.is_multiple_of(length);
        let wide = u32::from(size) >= length;
        (inside && whole && wide).then_some(Window { bar, offset, size: length as u8 })
    }
}

/// A capability list that grows.
struct List {
    space: Space,
    /// Where the offset of the next one goes.
    link: usize,
    next: usize,
}

impl List {
    /// Room for one more of so many bytes; gives where.
    fn add(&mut self, id: u8, length: u8) -> Result<usize, Unsuitable> {
        let (at, end) = (self.next, self.next + usize::from(length));
        if end > self.space.value.len() {
            return Err(Unsuitable::Capability { offset: at as u8 });
        }
        self.space.set_u8(at, id);
        self.space.set_u8(self.link, at as u8);
        self.space.value[STATUS] |= STATUS_CAPABILITIES;
        (self.link, self.next) = (at + 1, end.next_multiple_of(4));
        Ok(at)
    }

    /// PCIe 5.0, 7.7.2.
    fn add_msix(&mut self, layout: &MsixLayout) -> Result<usize, Unsuitable> {
        let at = self.add(MSIX, 12)?;
        self.space.set_u16(at + 2, layout.entries.wrapping_sub(1) & 0x7FF);
        self.space.set_u32(at + 4, layout.table_offset & !7 | u32::from(layout.table_bar & 7));
        self.space.set_u32(at + 8, layout.pba_offset & !7 | u32::from(layout.pba_bar & 7));
        self.space.allow_u16(at + 2, 1 << 15 | 1 << 14);
        Ok(at)
    }

    fn add_structure(&mut self, place: &Place) -> Result<(), Unsuitable> {
        let (kind, word) = place.structure.kind();
        let at = self.add_virtio(kind, word.map_or(PLAIN, |_| WITH_WORD))?;
        self.space.set_u8(at + BAR, place.bar);
        self.space.set_u32(at + OFFSET, place.offset);
        self.space.set_u32(at + LENGTH, place.length);
        if let Some(word) = word {
            self.space.set_u32(at + DATA, word);
        }
        Ok(())
    }

    fn add_window(&mut self) -> Result<usize, Unsuitable> {
        let at = self.add_virtio(CFG_TYPE, WITH_WORD)?;
        self.space.writable[at + BAR] = 0xFF;
        self.space.allow_u32(at + OFFSET, !0);
        self.space.allow_u32(at + LENGTH, !0);
        Ok(at)
    }

    fn add_virtio(&mut self, kind: u8, length: u8) -> Result<usize, Unsuitable> {
        let at = self.add(VENDOR, length)?;
        self.space.set_u8(at + 2, length);
        self.space.set_u8(at + 3, kind);
        Ok(at)
    }
}

#[cfg(test)]
mod tests;
