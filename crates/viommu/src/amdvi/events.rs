//! What devices tried and weren't let, and errors of commands, as the log in the guest's memory
//! tells of them, with the interrupt for it (AMD IOMMU spec 48882, 2.5 and 3.4).
//!
//! Guarantees: an event is in the log before the tail says so, or the log is full, which the status
//! says until the guest clears it; until then nothing more is logged. An interrupt is sent when the
//! status says something new that the guest has an interrupt for, once until the guest clears it.
//! What it clears is cleared before something new is said.

use super::registers::{
    self as at, CLEARABLE, COMMANDS_RUN, ENABLE, EVENT_INTERRUPT, GUEST_LOG_INTERRUPT,
    GUEST_LOG_OVERFLOW, GUEST_LOG_RUNS, GUEST_LOGGED, GUEST_LOGS, LOG_RUNS, LOGGED, LOGS, OVERFLOW,
    OWN_INTERRUPT, Registers, WAIT_INTERRUPT, WAITED, ring,
};
use crate::unit::{Notice, Remapped};
use window::Window;

/// How often something is said that the guest clears at the same time.
const ATTEMPTS: u32 = 4;
/// Bytes of an event.
const BYTES: u32 = 16;
/// PR, RW, PE.
pub(super) const PRESENT: u64 = 1 << 52;
pub(super) const WRITES: u64 = 1 << 53;
pub(super) const FORBIDDEN: u64 = 1 << 54;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// ILLEGAL_DEV_TABLE_ENTRY: device, flags, the address that it tried.
    IllegalDevice(u16, u64, u64),
    /// IO_PAGE_FAULT: device, domain id, flags, address.
    PageFault(u16, u16, u64, u64),
    /// ILLEGAL_COMMAND_ERROR: where the command is.
    IllegalCommand(u64),
    /// COMMAND_HARDWARE_ERROR: what can't be accessed.
    CommandError(u64),
}

impl Event {
    fn words(self) -> [u64; 2] {
        match self {
            Event::IllegalDevice(device, flags, address) => {
                [1 << 60 | flags | u64::from(device), address]
            }
            Event::PageFault(device, domain, flags, address) => {
                [2 << 60 | flags | u64::from(domain) << 32 | u64::from(device), address]
            }
            Event::IllegalCommand(address) => [5 << 60, address],
            Event::CommandError(address) => [6 << 60, address],
        }
    }
}

/// The status, and the interrupt.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// What the status register is to say.
    bits: u32,
    /// The interrupt is to be sent.
    sends: bool,
    /// That of the log of what was posted.
    sends_posted: bool,
}

impl Events {
    /// Are commands fetched?
    pub(super) fn commands_run(&self) -> bool {
        self.bits & COMMANDS_RUN != 0
    }

    /// Goes by what the guest wrote to the status register. Did it?
    pub(super) fn follow_clears(&mut self, page: Registers<'_>, control: u64) -> bool {
        let Some(written) = page.cleared() else { return false };
        self.bits &= !(written & CLEARABLE);
        self.bits |= log_runs(control, self.bits);
        page.say(written, self.bits);
        true
    }

    /// Goes by another control register than it was, and by whether commands are fetched.
    pub(super) fn follow_control(&mut self, page: Registers<'_>, was: u64, control: u64) {
        let before = wanted(self.bits, was);
        self.bits &= !(COMMANDS_RUN | LOG_RUNS | GUEST_LOG_RUNS);
        self.bits |= log_runs(control, self.bits);
        if page.fetches(control) {
            self.bits |= COMMANDS_RUN;
        }
        self.sends |= wanted(self.bits, control) && !before;
        self.show(page);
    }

    /// Commands are fetched, or not.
    pub(super) fn set_fetching(&mut self, page: Registers<'_>, fetches: bool) {
        let bit = if fetches { COMMANDS_RUN } else { 0 };
        self.bits = self.bits & !COMMANDS_RUN | bit;
        self.show(page);
    }

    /// A wait with an interrupt is over.
    pub(super) fn waited(&mut self, page: Registers<'_>, control: u64) {
        self.set(page, control, WAITED);
    }

    /// Logs an event, if the guest has a log.
    pub(super) fn log(&mut self, page: Registers<'_>, window: &Window, control: u64, event: Event) {
        self.follow_clears(page, control);
        if self.bits & LOG_RUNS == 0 {
            return;
        }
        let Some((base, bytes)) = ring(page.get64(at::EVENTS)) else { return };
        let tail = page.get(at::EVENT_TAIL) & at::POINTER & (bytes - 1);
        let next = (tail + BYTES) & (bytes - 1);
        if next == page.get(at::EVENT_HEAD) & at::POINTER {
            self.bits &= !LOG_RUNS;
            return self.set(page, control, OVERFLOW);
        }
        let [low, high] = event.words();
        let span = base.checked_add(tail.into()).and_then(|at| window.span(at, BYTES.into()));
        // The kind, by which a driver sees that it is there, comes last.
        if let Some(span) = span
            && span.store_u64(8, high).is_ok()
            && span.store_u64_release(0, low).is_ok()
        {
            page.set(at::EVENT_TAIL, next);
            self.set(page, control, LOGGED);
        }
    }

    /// Logs what was posted to a guest of the guest's by its tag, if the guest has a log for that.
    pub(super) fn log_posted(
        &mut self,
        page: Registers<'_>,
        window: &Window,
        control: u64,
        tag: u32,
    ) {
        const BYTES: u32 = 8;
        const KIND: u64 = 1 << 60;
        self.follow_clears(page, control);
        if self.bits & GUEST_LOG_RUNS == 0 {
            return;
        }
        let register = page.get64(at::GUEST_LOG);
        let order = (register >> 56 & 0xF) as u32;
        let bytes = BYTES << order;
        let tail = page.get(at::GUEST_LOG_TAIL) & at::POINTER_OF_8 & (bytes - 1);
        let next = (tail + BYTES) & (bytes - 1);
        if next == page.get(at::GUEST_LOG_HEAD) & at::POINTER_OF_8 {
            self.bits &= !GUEST_LOG_RUNS;
            return self.set(page, control, GUEST_LOG_OVERFLOW);
        }
        let base = register & 0x000F_FFFF_FFFF_F000;
        let span = base.checked_add(tail.into()).and_then(|at| window.span(at, BYTES.into()));
        if let Some(span) = span
            && span.store_u64_release(0, KIND | u64::from(tag)).is_ok()
        {
            page.set(at::GUEST_LOG_TAIL, next);
            self.set(page, control, GUEST_LOGGED);
        }
    }

    /// Says something, after what the guest has cleared.
    fn set(&mut self, page: Registers<'_>, control: u64, bit: u32) {
        for _ in 0..ATTEMPTS {
            self.follow_clears(page, control);
            let says = self.bits & bit == 0;
            self.sends |= says && wanted(bit, control);
            self.sends_posted |= says && wanted_posted(bit, control);
            self.bits |= bit;
            if self.show(page) {
                break;
            }
        }
    }

    /// Has the status register say what there is, if the guest didn't write to it.
    fn show(&self, page: Registers<'_>) -> bool {
        page.say(page.status(), self.bits)
    }

    /// The interrupt, if it is to be sent. Once.
    #[inline]
    pub(super) fn take_interrupt(&mut self, page: Registers<'_>, control: u64) -> Option<Notice> {
        let register = if core::mem::take(&mut self.sends) {
            at::INTERRUPT
        } else if core::mem::take(&mut self.sends_posted) {
            at::GUEST_INTERRUPT
        } else {
            return None;
        };
        Some(match control & OWN_INTERRUPT {
            0 => Notice::Function,
            _ => Notice::Wide(message(page.get64(register))),
        })
    }
}

/// Are the logs running, by this control register and status?
fn log_runs(control: u64, bits: u32) -> u32 {
    let runs = |on: u64, over: u32, runs: u32| {
        if control & on == on && bits & over == 0 { runs } else { 0 }
    };
    runs(ENABLE | LOGS, OVERFLOW, LOG_RUNS)
        | runs(ENABLE | GUEST_LOGS, GUEST_LOG_OVERFLOW, GUEST_LOG_RUNS)
}

/// Does the guest have an interrupt for something that the status says?
fn wanted(bits: u32, control: u64) -> bool {
    let events = bits & (LOGGED | OVERFLOW) != 0 && control & EVENT_INTERRUPT != 0;
    events || bits & WAITED != 0 && control & WAIT_INTERRUPT != 0
}

/// The same of the log of what was posted.
fn wanted_posted(bits: u32, control: u64) -> bool {
    bits & (GUEST_LOGGED | GUEST_LOG_OVERFLOW) != 0 && control & GUEST_LOG_INTERRUPT != 0
}

/// What the register says of the unit's own interrupt (48882, 3.4.10).
fn message(register: u64) -> Remapped {
    let destination = register >> 8 & 0xFF_FFFF | register >> 56 << 24;
    Remapped {
        // The vector; lowest priority, or fixed.
        data: (register >> 32 & 0xFF | (register >> 40 & 1) << 8) as u32,
        logical: register & 1 << 2 != 0,
        hint: false,
        destination: destination as u32,
        posted: None,
    }
}
