//! The device table (48882, 2.2.2): what each of the 65,536 requester ids may do.
//!
//! An entry is 256 bits. The low half decides about DMA alone, the high half about interrupts
//! alone, and each changes by one store of 128 bits. V, TV and IV are set from the beginning and
//! stay, since an entry without them lets everything pass. So the unit may read the halves at
//! different times, and whatever it puts together is for each of them what was asked for before or
//! is asked for now.

use crate::tables::Tables;
use crate::{Domain, DomainId, Error, Memory, Remapping};

/// How many entries there are.
pub const DEVICES: u32 = 1 << 16;
/// Frames of the table, in a row.
const FRAMES: u64 = 512;
const FRAME: u64 = 0x000F_FFFF_FFFF_F000;

/// V: the low half counts.
const VALID: u64 = 1 << 0;
/// TV: what it says about translation counts.
const TRANSLATION_VALID: u64 = 1 << 1;
/// Mode: levels of the page tables; 0: none, DMA passes as IR and IW say. QEMU's unit (10.2 to
/// 11.1) lets it pass whatever they say.
const MODE: u32 = 9;
/// Levels of the empty tables; every unit knows so many.
const LEVELS: u64 = 4;
/// IR, IW: DMA reads and writes are allowed, as far as the page tables say.
const READ_WRITE: u64 = 0b11 << 61;

/// IV: the high half counts.
const INTERRUPTS_VALID: u64 = 1 << 0;
/// IntTabLen: 256 entries.
const LENGTH_256: u64 = 8 << 1;
/// IntCtl: fixed and arbitrated interrupts pass as they are.
const FORWARD: u64 = 0b01 << 60;
/// IntCtl: they are remapped by the table.
const REMAP: u64 = 0b10 << 60;

/// The low half of a device without a domain: tables that are `empty`, a frame of zeroes, and
/// neither IR nor IW. In the rest of it, EX = 0 leaves the exclusion range without effect,
/// SysMgt = 00 blocks system management messages, IoCtl = 00 port I/O, and I = 0 the device's own
/// TLB.
fn denied(empty: u64) -> (u64, u64) {
    (empty & FRAME | VALID | TRANSLATION_VALID | LEVELS << MODE, 0)
}

/// The high half of a device without an interrupt table. INIT, ExtInt, NMI, LINT0 and LINT1 are
/// blocked in any case; fixed and arbitrated interrupts too (IntCtl = 00) where interrupts are
/// remapped.
pub fn silent(remapping: Remapping) -> (u64, u64) {
    match remapping {
        Remapping::On => (INTERRUPTS_VALID, 0),
        Remapping::Off => (INTERRUPTS_VALID | FORWARD, 0),
    }
}

/// The low half of a device in this domain.
pub fn translated(to: Domain) -> (u64, u64) {
    let mode = u64::from(to.levels & 7) << MODE;
    (to.root & FRAME | VALID | TRANSLATION_VALID | mode | READ_WRITE, u64::from(to.id.0))
}

/// The domain that a low half names, unless it denies: with neither IR nor IW, and with tables.
/// Sense it makes only for what [`translated`] gives.
pub fn domain((low, high): (u64, u64)) -> Option<Domain> {
    let levels = (low >> MODE & 7) as u8;
    let to = Domain { id: DomainId(high as u16), root: low & FRAME, levels };
    (low & READ_WRITE != 0 || levels == 0).then_some(to)
}

/// The high half of a device with the table of 256 interrupt entries at `table`.
pub fn remapped(table: u64) -> (u64, u64) {
    (INTERRUPTS_VALID | LENGTH_256 | table & FRAME | REMAP, 0)
}

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct DeviceTable {
    base: u64,
    /// A frame of zeroes: page tables that lead nowhere.
    empty: u64,
}

impl DeviceTable {
    /// One that denies everything.
    pub fn new<M: Memory>(tables: &mut Tables<M>, remapping: Remapping) -> Result<Self, Error> {
        let empty = tables.allocate(1)?;
        let ((low, high), (interrupts, rest)) = (denied(empty), silent(remapping));
        let base = tables.allocate_filled(FRAMES, &[low, high, interrupts, rest])?;
        Ok(DeviceTable { base, empty })
    }

    /// The low half of a device without a domain: its DMA is blocked.
    pub fn denied(&self) -> (u64, u64) {
        denied(self.empty)
    }

    /// Address and size, as the register wants them.
    pub fn register(&self) -> u64 {
        self.base | (FRAMES - 1)
    }

    /// Where the low half of this entry is.
    pub fn low(&self, id: u16) -> u64 {
        self.base + u64::from(id) * 32
    }

    /// Where its high half is.
    pub fn high(&self, id: u16) -> u64 {
        self.low(id) + 16
    }

    /// Says where DMA of this id leads.
    pub fn set_dma<M: Memory>(&self, tables: &mut Tables<M>, id: u16, half: (u64, u64)) {
        tables.write_pair(self.low(id), half);
    }

    /// Says what becomes of its interrupts.
    pub fn set_interrupts<M: Memory>(&self, tables: &mut Tables<M>, id: u16, half: (u64, u64)) {
        tables.write_pair(self.high(id), half);
    }
}
