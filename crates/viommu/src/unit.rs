//! An IOMMU with registers, whichever vendor's: what whoever runs one needs to know of it.
//!
//! Guarantees: what `vtd` and `amdvi` say of their units. Nothing here allocates or panics.
//!
//! | model | registers | is told of faults by |
//! |---|---|---|
//! | [`Model::VtD`] | one page | records in the registers, a message |
//! | [`Model::AmdVi`] | four pages | a log in memory, the interrupt of its registers or function |

use crate::{Shape, Tables, Viommu, amdvi, vtd};
use core::sync::atomic::AtomicU32;
use thiserror::Error;
use window::Window;

/// Where the guest has the registers, if its writes are to exit and where ACPI says they are.
pub const BASE: u64 = 0xFED9_0000;

/// Whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Intel's.
    VtD,
    /// AMD's.
    AmdVi,
}

impl Model {
    /// Bytes of the registers.
    pub const fn bytes(self) -> u64 {
        match self {
            Model::VtD => vtd::BYTES,
            Model::AmdVi => amdvi::BYTES,
        }
    }

    /// Bits of addresses that the guest is told of.
    pub const fn width(self) -> u8 {
        match self {
            Model::VtD => vtd::WIDTH,
            Model::AmdVi => amdvi::WIDTH,
        }
    }

    /// The requester id of the IOAPIC.
    pub const fn ioapic(self) -> u16 {
        match self {
            Model::VtD => vtd::IOAPIC,
            Model::AmdVi => amdvi::IOAPIC,
        }
    }

    /// What the guest is shown of such a shape.
    pub fn narrowed(self, shape: Shape) -> Shape {
        match self {
            Model::VtD => vtd::narrowed(shape),
            Model::AmdVi => amdvi::narrowed(shape),
        }
    }
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There was nothing to do.
    Idle,
    /// Something was done, and there may be more.
    Worked,
    /// The routes of the guest's interrupts are to follow [`Unit::remapping`]; nothing goes on
    /// before [`Unit::rerouted`].
    Reroute,
}

/// A request of an endpoint that its unit blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its place among the endpoints.
    pub endpoint: usize,
    /// It wanted to write.
    pub is_write: bool,
    /// The page that it tried, as it has it.
    pub address: u64,
}

/// A message by an entry: the data and address that say the same without remapping, but for the
/// destination, which has 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remapped {
    /// Vector in bits 7:0, delivery mode in 10:8, level in 15.
    pub data: u32,
    /// The destination is a set.
    pub logical: bool,
    /// One of the set is enough.
    pub hint: bool,
    /// The destination.
    pub destination: u32,
    /// It is for a guest of the guest's, whose local APIC has its registers in memory.
    pub posted: Option<Posted>,
}

/// For whom an interrupt is that is posted (AMD IOMMU spec 48882, 2.2.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// Guest-physical address of the backing page of its local APIC.
    pub page: u64,
    /// What the guest logs it by, if nobody runs it and the guest wants to know.
    pub tag: Option<u32>,
    /// It is at a CPU: the destination.
    pub runs: bool,
}

/// Why a message is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Blocked {
    /// It is in a format that the guest doesn't let pass, or of a kind.
    #[error("nothing of its kind passes")]
    Format,
    /// There is no such entry, or it isn't in the guest's memory.
    #[error("there is no entry {0}")]
    NoEntry(u32),
    /// The entry isn't present, or has what isn't offered.
    #[error("entry {0} isn't present")]
    NotPresent(u32),
    /// It is another source's.
    #[error("entry {0} is another device's")]
    Source(u32),
}

/// An interrupt of the unit's own. Its entries don't remap it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The message of this address and data.
    Message(u64, u32),
    /// This one, with a destination of 32 bits.
    Wide(Remapped),
    /// The message of the MSI capability of the unit's own PCI function, if that is enabled.
    Function,
}

/// How interrupts are remapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remapping {
    /// By one table.
    VtD(vtd::Remapping),
    /// By each device's table.
    AmdVi(amdvi::Remapping),
}

impl Remapping {
    /// Is it on?
    pub fn is_on(&self) -> bool {
        match self {
            Remapping::VtD(by) => by.is_on(),
            Remapping::AmdVi(by) => by.is_on(),
        }
    }

    /// What an MSI of this address and data becomes; `None`: what it says itself.
    pub fn of_msi(
        &self,
        window: &Window,
        source: u16,
        message: (u64, u32),
    ) -> Result<Option<Remapped>, Blocked> {
        match self {
            Remapping::VtD(by) => by.of_msi(window, source, message),
            Remapping::AmdVi(by) => by.of_msi(window, source, message),
        }
    }

    /// What an IOAPIC's redirection entry becomes; `None`: what it says itself.
    pub fn of_redirection(&self, window: &Window, entry: u64) -> Result<Option<Remapped>, Blocked> {
        match self {
            Remapping::VtD(by) => by.of_redirection(window, entry),
            Remapping::AmdVi(by) => by.of_redirection(window, entry),
        }
    }
}

#[derive(Debug)]
enum Words {
    VtD(&'static vtd::Page),
    AmdVi(amdvi::Page),
}

/// The registers, as memory that the guest and the unit share, with what the unit keeps beside them
/// to see what was written.
#[derive(Debug)]
pub struct Page(Words);

impl Page {
    /// In these words, of which there are as many as [`Model::bytes`] says; `None`: there are
    /// fewer. `posts`: the unit, if it is AMD's, posts to guests of the guest's. They are to be reset ([`Unit::reset`]).
    pub fn new(model: Model, posts: bool, words: &'static [AtomicU32]) -> Option<Page> {
        Some(Page(match model {
            Model::VtD => Words::VtD(words.first_chunk()?),
            Model::AmdVi => Words::AmdVi(amdvi::Page::new(posts, words.first_chunk()?)),
        }))
    }
}

/// The page as whoever runs the unit sees it, and whoever serves its guest's exits.
#[derive(Clone, Copy, Debug)]
pub struct Registers<'a> {
    page: &'a Page,
}

/// The registers of one vendor's unit.
macro_rules! registers {
    ($self:ident, $page:ident => $what:expr) => {
        match &$self.page.0 {
            Words::VtD(page) => {
                let $page = vtd::Registers::new(page);
                $what
            }
            Words::AmdVi(page) => {
                let $page = amdvi::Registers::new(page);
                $what
            }
        }
    };
}

impl<'a> Registers<'a> {
    /// Of this page.
    pub fn new(page: &'a Page) -> Self {
        Registers { page }
    }

    /// Whose they are.
    pub fn model(&self) -> Model {
        match self.page.0 {
            Words::VtD(_) => Model::VtD,
            Words::AmdVi(_) => Model::AmdVi,
        }
    }

    /// The word at this offset.
    #[inline]
    pub fn get(&self, at: usize) -> u32 {
        registers!(self, page => page.get(at))
    }

    /// The same of two words; the guest may write between.
    pub fn get64(&self, at: usize) -> u64 {
        registers!(self, page => page.get64(at))
    }

    /// Has the guest asked for something that isn't done? Also if it wrote where it can't.
    #[inline]
    pub fn is_news(&self) -> bool {
        registers!(self, page => page.is_news())
    }

    /// Do they say that DMA is translated?
    pub fn translates(&self) -> bool {
        registers!(self, page => page.translates())
    }

    /// A guest's write that exits: `size` bytes of `value`. What it can't write stays.
    pub fn write(&self, at: u64, size: u8, value: u64) {
        registers!(self, page => page.write(at, size, value));
    }
}

/// The unit. In all calls, the registers are those of its own model: else nothing happens.
#[derive(Debug)]

pub enum Unit {
    /// Intel's.
    VtD(vtd::Vtd),
    /// AMD's.
    AmdVi(amdvi::AmdVi),
}

impl Unit {
    /// As at power on, before these endpoints and domains. The page is to be reset, too.
    pub fn new(model: Model, device: &Viommu) -> Unit {
        match model {
            Model::VtD => Unit::VtD(vtd::Vtd::new(device)),
            Model::AmdVi => Unit::AmdVi(amdvi::AmdVi::new(device)),
        }
    }

    /// The machine starts again: nothing is translated or remapped. The endpoints have left their
    /// domains ([`Viommu::change`]).
    pub fn reset(&mut self, device: &Viommu, page: Registers<'_>) {
        match (self, &page.page.0) {
            (Unit::VtD(unit), Words::VtD(page)) => unit.reset(device, vtd::Registers::new(page)),
            (Unit::AmdVi(unit), Words::AmdVi(page)) => {
                unit.reset(device, amdvi::Registers::new(page));
            }
            _ => {}
        }
    }

    /// Does a piece of work.
    pub fn step(
        &mut self,
        page: Registers<'_>,
        window: &Window,
        on: (&mut Viommu, &mut dyn Tables),
    ) -> Step {
        match (self, &page.page.0) {
            (Unit::VtD(unit), Words::VtD(page)) => unit.step(vtd::Registers::new(page), window, on),
            (Unit::AmdVi(unit), Words::AmdVi(page)) => {
                unit.step(amdvi::Registers::new(page), window, on)
            }
            _ => Step::Idle,
        }
    }

    /// Tells the guest, whose memory this is, of what an endpoint tried, unless it translates
    /// nothing for it.
    pub fn record(&mut self, device: &Viommu, page: Registers<'_>, window: &Window, fault: Fault) {
        match (self, &page.page.0) {
            (Unit::VtD(unit), Words::VtD(page)) => {
                unit.record(device, vtd::Registers::new(page), fault);
            }
            (Unit::AmdVi(unit), Words::AmdVi(page)) => {
                unit.record(device, amdvi::Registers::new(page), window, fault);
            }
            _ => {}
        }
    }

    /// One was posted to a guest of the guest's that isn't at a CPU, which is logged by this tag.
    pub fn log_posted(&mut self, page: Registers<'_>, window: &Window, tag: u32) {
        if let (Unit::AmdVi(unit), Words::AmdVi(page)) = (self, &page.page.0) {
            unit.log_posted(amdvi::Registers::new(page), window, tag);
        }
    }

    /// The interrupt that is to be sent now, if one is. Once.
    pub fn take_interrupt(&mut self, page: Registers<'_>) -> Option<Notice> {
        match (self, &page.page.0) {
            (Unit::VtD(unit), Words::VtD(page)) => {
                let message = unit.take_interrupt(vtd::Registers::new(page));
                message.map(|(address, data)| Notice::Message(address, data))
            }
            (Unit::AmdVi(unit), Words::AmdVi(page)) => {
                unit.take_interrupt(amdvi::Registers::new(page))
            }
            _ => None,
        }
    }

    /// How many commands and descriptors were carried out since this was last asked.
    pub fn take_finished(&mut self) -> u32 {
        match self {
            Unit::VtD(unit) => unit.take_finished(),
            Unit::AmdVi(unit) => unit.take_finished(),
        }
    }

    /// How many words of the guest's memory were read since this was last asked.
    pub fn take_words(&mut self) -> u64 {
        match self {
            Unit::VtD(unit) => unit.take_words(),
            Unit::AmdVi(unit) => unit.take_words(),
        }
    }

    /// How interrupts are remapped.
    pub fn remapping(&self) -> Remapping {
        match self {
            Unit::VtD(unit) => Remapping::VtD(unit.remapping()),
            Unit::AmdVi(unit) => Remapping::AmdVi(unit.remapping()),
        }
    }

    /// The routes of all interrupts follow it.
    pub fn rerouted(&mut self) {
        match self {
            Unit::VtD(unit) => unit.rerouted(),
            Unit::AmdVi(unit) => unit.rerouted(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::model;

    fn words(model: Model) -> &'static [AtomicU32] {
        let words: Vec<_> = (0..model.bytes() / 4).map(|_| AtomicU32::new(0)).collect();
        Vec::leak(words)
    }

    #[test]
    fn each_model_has_its_registers() {
        let all = [(Model::VtD, 4096, 48, 0xFFF8), (Model::AmdVi, 0x4000, 48, 0xA0)];
        for (model, bytes, width, ioapic) in all {
            assert_eq!((model.bytes(), model.width(), model.ioapic()), (bytes, width, ioapic));
            let words = words(model);
            assert!(Page::new(model, false, &words[1..]).is_none());
            let page = Page::new(model, false, words).unwrap();
            assert_eq!(Registers::new(&page).model(), model);
        }
    }

    #[test]
    fn a_unit_works_by_its_own_registers_alone() {
        let memory = window::Memory::new(&[(0, 4096)], 0);
        for (model, other) in [(Model::VtD, Model::AmdVi), (Model::AmdVi, Model::VtD)] {
            let device = &mut Viommu::new(model.narrowed(model::shape()), 0);
            let tables = &mut model::Unit::new(16);
            let [own, others] = [model, other].map(|m| Page::new(m, false, words(m)).unwrap());
            let [own, others] = [&own, &others].map(Registers::new);
            let mut unit = Unit::new(model, device);
            unit.reset(device, others);
            unit.reset(device, own);
            assert_eq!(others.get64(8) | others.get64(0x30), 0);
            assert_ne!(own.get64(8) | own.get64(0x30), 0);
            // Translation: the command of the one, the control register of the other.
            for page in [own, others] {
                page.write(0x18, 4, if page.model() == Model::VtD { 1 << 31 } else { 1 });
            }
            let window = memory.window();
            assert_eq!(unit.step(others, &window, (device, tables)), Step::Idle);
            assert!(own.is_news() && !own.translates() && !unit.remapping().is_on());
            while own.is_news() {
                match unit.step(own, &window, (device, tables)) {
                    Step::Reroute => unit.rerouted(),
                    step => assert_eq!(step, Step::Worked),
                }
            }
            assert!(own.translates() && !others.translates());
            assert_eq!((unit.take_finished(), unit.take_finished()), (1, 0));
            assert!(unit.take_words() > 0);
            let fault = Fault { endpoint: 0, is_write: true, address: 0 };
            unit.record(device, others, &window, fault);
            assert_eq!(unit.take_interrupt(others), None);
            assert_eq!(unit.remapping().is_on(), model == Model::AmdVi);
        }
    }
}
