//! Brings a function back to its first state, by whatever it offers for that.
//!
//! What the standards have is `::pci::reset`; here are devices with a register of their own for it,
//! and how one is waited for. A function that offers nothing may go on with the rings it had, in
//! memory that has become something else. A reset takes a tenth of a second and more, so it is done
//! in steps, and whoever does it may do something else between them.

use crate::cpu::delay_us;
use crate::pci::{self, Config, Pci, acs};
use crate::watchdog;
use ::pci::reset::{self, Outcome, PATIENCE_MS, Way};
use iommu::Bdf;

/// How a function can be reset. Found out while booting, as the way there may be a bridge.
#[derive(Clone, Copy)]
pub struct Method {
    bdf: Bdf,
    how: How,
}

#[derive(Clone, Copy)]
enum How {
    Standard(Way),
    /// Devices with a register for it: Intel's 82574, by its BAR 0.
    Register(u64),
    /// Not at all.
    None,
}

/// A reset that goes on.
pub struct Reset {
    bdf: Bdf,
    state: State,
}

enum State {
    Standard(reset::Reset),
    Register(u64),
    /// Nothing is left to do. Did the function answer?
    Done(bool),
}

impl Method {
    /// Finds out how. The memory BARs of the function must have been mapped. Boot only.
    pub fn of(pci: &Pci, bdf: Bdf) -> Self {
        let how = register(pci, bdf)
            .or_else(|| Way::of(pci, bdf, alone_below(pci, bdf)).map(How::Standard))
            .unwrap_or(How::None);
        Method { bdf, how }
    }

    /// How, in a word; none if the function can't be reset.
    pub fn name(self) -> Option<&'static str> {
        match self.how {
            How::Standard(way) => Some(way.name()),
            How::Register(_) => Some("by a register of its own"),
            How::None => None,
        }
    }

    /// The reset, of which nothing is done yet.
    pub fn begin(self) -> Reset {
        let state = match self.how {
            How::Standard(way) => State::Standard(reset::Reset::new(self.bdf, way)),
            How::Register(bar) => State::Register(bar),
            How::None => State::Done(true),
        };
        Reset { bdf: self.bdf, state }
    }
}

impl Reset {
    /// Does the next step; gives the microseconds to wait before the one after it, or nothing when
    /// the function is reset, as far as it can be. Its BARs and its interrupt set-up are lost then.
    pub fn step(&mut self, pci: &Pci) -> Option<u64> {
        const REGISTER_US: u64 = 10_000;
        match &mut self.state {
            State::Standard(reset) => match reset.step(pci) {
                Ok(ms) => return Some(u64::from(ms) * 1_000),
                Err(outcome) => self.state = State::Done(outcome == Outcome::Ready),
            },
            State::Register(bar) => {
                by_register(pci, self.bdf, *bar);
                self.state = State::Done(true);
                return Some(REGISTER_US);
            }
            State::Done(_) => {}
        }
        acs::enable(pci, self.bdf);
        if !self.answered() {
            log::warn!(
                "device {} doesn't answer {} s after its reset; its guest finds nothing there",
                self.bdf,
                PATIENCE_MS / 1_000
            );
        }
        None
    }

    /// Does all steps and waits: while booting. True if the function answers afterwards.
    pub fn run(mut self, pci: &Pci) -> bool {
        while let Some(us) = self.step(pci) {
            // It may take longer than firmware's watchdog, and nobody else feeds that yet.
            watchdog::feed();
            delay_us(us);
        }
        self.answered()
    }

    fn answered(&self) -> bool {
        !matches!(self.state, State::Done(false))
    }
}

/// The bridge above a function that has its bus for itself.
fn alone_below(pci: &Pci, bdf: Bdf) -> Option<Bdf> {
    let functions = pci.scan();
    let place = |bdf: Bdf| (bdf.segment(), bdf.bus());
    let alone = functions.iter().all(|f| place(f.bdf) != place(bdf) || f.bdf == bdf);
    pci.bridge_to(bdf, &functions).filter(|_| alone)
}

/// Intel's 82574 (datasheet 3.4, 4.6.1), which has no function-level reset.
fn register(pci: &Pci, bdf: Bdf) -> Option<How> {
    const IDS: u32 = 0x10D3_8086;
    const BAR0: u16 = 0x10;
    const BAR_FLAGS: u32 = 0xF;
    if pci.read32(bdf, 0) != IDS {
        return None;
    }
    // Of 32 bits and 128 KiB, as the datasheet has it (9.1.10); the guest can't move it.
    let bar = u64::from(pci.read32(bdf, BAR0) & !BAR_FLAGS);
    (bar != 0).then_some(How::Register(bar))
}

fn by_register(pci: &Pci, bdf: Bdf, bar: u64) {
    const CONTROL: u64 = 0x0000;
    const RESET: u32 = 1 << 26;
    const MASK_CLEAR: u64 = 0x00D8;
    const RECEIVE: u64 = 0x0100;
    const TRANSMIT: u64 = 0x0400;
    pci.write16(bdf, pci::COMMAND, pci::COMMAND_MEMORY | pci::COMMAND_INTX_DISABLE);
    let at = |offset: u64| (bar + offset) as *mut u32;
    // SAFETY: registers of the device, inside its BAR 0, which `Method::of`'s caller has mapped; it
    // may not access memory meanwhile, as bus mastering is off.
    unsafe {
        at(MASK_CLEAR).write_volatile(u32::MAX);
        at(RECEIVE).write_volatile(0);
        at(TRANSMIT).write_volatile(0);
        at(CONTROL).write_volatile(at(CONTROL).read_volatile() | RESET);
    }
}
