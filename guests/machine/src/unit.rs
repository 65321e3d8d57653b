//! A guest's own IOMMU with registers, whichever vendor's, as its drivers here have it.
//!
//! Guarantees: no wait without a limit. What is asked is asked as it is, right or wrong.

use crate::boot::Boot;

/// Where ACPI says that the registers are.
pub const BASE: u64 = 0xFED9_0000;

/// Access that a mapping allows.
pub const READ: u64 = 1;
/// As above.
pub const WRITE: u64 = 2;
/// As above.
pub const BOTH: u64 = READ | WRITE;

/// What a device's DMA is led to.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// The domain of this id, with tables from this root on.
    Domain(u16, u64),
    /// Memory, as it is.
    Through,
    /// Nothing.
    Nowhere,
}

/// What may have changed.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// Where this device is led to.
    Device(u32),
    /// All that is mapped.
    All,
    /// All that this domain maps.
    Domain(u16),
    /// So many pages of this domain's, as a power of two.
    Pages(u16, u64, u64),
    /// This source's entries for interrupts.
    Interrupts(u16),
}

/// A request that was blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whose it was.
    pub source: u16,
    /// It was to read, not to write.
    pub is_read: bool,
    /// The page.
    pub address: u64,
    /// Why, in the vendor's words ([`Unit::code`]).
    pub code: u32,
}

/// Why a request was blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Nothing is mapped there, in the domain of this id.
    Absent(u16),
    /// What is mapped there, in the domain of this id, doesn't allow that.
    Right(u16),
    /// Its device is led nowhere.
    Nowhere,
}

/// The driver of a unit, with its queue or command buffer running.
pub trait Unit: Sized {
    /// What it is.
    const NAME: &str;
    /// The IOAPIC's id as a source, by ACPI.
    const IOAPIC: u16;

    /// Finds it and starts its queue; nothing is translated yet.
    fn start(boot: &Boot) -> Option<Self>;

    /// Has it forget whatever state it is in, and starts it.
    fn start_anew(boot: &Boot) -> Option<Self>;

    /// The first memory behind its own.
    fn memory_behind(&self) -> u64;

    /// A page for a table; the last one again and again when there are no more.
    fn table(&self) -> u64;

    /// A root whose tables are all the same page, as often as that may be.
    fn looping(&self) -> u64;

    /// Leads a device there; the unit isn't told.
    fn lead(&self, device: u32, to: Place);

    /// Has a page, or a large one, lead there with such access, or nowhere; makes the tables that
    /// lead to it. The unit isn't told.
    fn map(&self, root: u64, at: u64, large: bool, to: Option<(u64, u64)>);

    /// Asks for this, and waits until it is done.
    fn ask(&self, all: &[Ask]) -> bool;

    /// Asks for this, and doesn't wait.
    fn flood(&self, all: &[Ask]);

    /// Maps a page, or unmaps it, and has the unit know it.
    fn map_page(&self, root: u64, domain: u16, at: u64, to: Option<(u64, u64)>) -> bool {
        self.map(root, at, false, to);
        self.ask(&[Ask::Pages(domain, at, 0)])
    }

    /// Has DMA be translated from now on, with nothing known of this device from before.
    fn begin(&self, device: u32) -> bool;

    /// Has DMA be translated, or not.
    fn translate(&self, on: bool) -> bool;

    /// How many answers weren't there at the first look, if Linux has no clock yet by which it
    /// could wait for them.
    fn late(&self) -> Option<u32>;

    /// Has interrupts be remapped, or not.
    fn remap(&self, on: bool) -> bool;

    /// Has the entry for interrupts at this index be this source's alone, for this vector of this
    /// CPU, or for none. The unit isn't told, but for a table that it doesn't know yet.
    fn set_entry(&self, index: u64, to: Option<(usize, u8)>, source: u16) -> bool;

    /// The address and data of a message that goes by this entry.
    fn message(index: u64) -> (u64, u32);

    /// What an IOAPIC has at this pin, to send by this entry.
    fn redirection(index: u64, pin: u32) -> u64;

    /// Has CPU 0 be interrupted by this vector when a request is blocked.
    fn aim_faults(&self, vector: u8) -> bool;

    /// Masks that interrupt, or lets it through.
    fn mask_faults(&self, masked: bool) -> bool;

    /// Is it told of a blocked request?
    fn has_told(&self) -> bool;

    /// Was there no room to tell of one?
    fn overflows(&self) -> bool;

    /// Takes what it is told, as Linux does. Gives the first, and how many there were.
    fn take_told(&self) -> (Option<Told>, u64);

    /// The vendor's words for this.
    fn code(why: Why, is_read: bool) -> u32;

    /// Has it stopped for what was asked?
    fn is_wrong(&self) -> bool;
}
