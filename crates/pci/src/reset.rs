//! How a function is brought back to its first state, by what the standards have for that.
//!
//! Four ways, in this order: function-level reset (PCIe 6.0, 6.6.2), the same for conventional
//! functions (Advanced Features, ECN of 2006), from D3hot to D0 where that resets (PCI Power
//! Management 1.2, 5.4.1), and the reset of the bus behind a bridge (PCIe 6.0, 6.6.1), which is
//! taken only for a function that is alone there.
//!
//! Guarantees: what was on its way when a reset begins is waited for, as far as the function tells
//! of it; a reset is over only when the function answers again, or when [`PATIENCE_MS`] are over,
//! which it says then; it goes in steps of bounded work, with the wait between them left to the
//! caller. Doesn't keep what a reset takes: BARs, the command register, interrupt set-up.

use crate::Bdf;
use crate::config::{CAPABILITY_EXPRESS, COMMAND, Config};

/// How long a function may take to answer after a reset. The standard says a second, and lets a
/// function say "not yet" for longer (PCIe 6.0, 2.3.1.1).
pub const PATIENCE_MS: u32 = 60_000;

const CAPABILITY_POWER: u8 = 0x01;
const CAPABILITY_ADVANCED: u8 = 0x13;
/// How long requests that were on their way are waited for. The longest completion timeout that a
/// function is likely to have been given is of this order (PCIe 6.0, 7.5.3.16).
const DRAIN_MS: u32 = 1_000;
/// A function needs no less before it is looked at again (PCIe 6.0, 6.6.1 and 6.6.2).
const SETTLE_MS: u32 = 100;
/// From D0 to D3hot and back (PCI Power Management 1.2, table 5-6).
const POWER_MS: u32 = 10;
/// A bus is held in reset for a millisecond at least (PCI 3.0, 4.3.2: Trst).
const BUS_MS: u32 = 2;
/// The longest wait between two looks.
const LONGEST_MS: u32 = 1_000;

/// BRIDGE CONTROL of a bridge (PCI-to-PCI Bridge 1.2, 3.2.5.18).
const BRIDGE_CONTROL: u16 = 0x3E;
const SECONDARY_BUS_RESET: u16 = 1 << 6;

/// A reset that goes on.
#[derive(Clone, Debug)]
pub struct Reset {
    function: Bdf,
    way: Way,
    state: State,
}

/// How a function can be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the control register of its PCI Express capability, which is at this offset.
    FunctionLevel(u16),
    /// By its capability Advanced Features, which is at this offset.
    Advanced(u16),
    /// Through D3hot: offset of the control and status register.
    Power(u16),
    /// By this bridge above it.
    Bus(Bdf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for what is on its way, so many milliseconds so far.
    Drains(u32),
    /// The second write is due.
    Released,
    /// It is asked whether it answers, so many milliseconds after the first time.
    Wakes(u32),
    Over(Outcome),
}

/// How a reset ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The function answers, and is as after power on.
    Ready,
    /// It didn't answer in [`PATIENCE_MS`].
    Silent,
}

impl Way {
    /// What this function offers. `above`: the bridge that leads to its bus, if the function is
    /// alone there.
    pub fn of(config: &impl Config, function: Bdf, above: Option<Bdf>) -> Option<Way> {
        let bus = above.map(Way::Bus);
        express(config, function)
            .or_else(|| advanced(config, function))
            .or_else(|| power(config, function))
            .or(bus)
    }

    /// What it is called, as the end of a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Way::FunctionLevel(_) => "by function (FLR)",
            Way::Advanced(_) => "by function (Advanced Features)",
            Way::Power(_) => "by power state (D3hot)",
            Way::Bus(_) => "of its bus",
        }
    }
}

impl Reset {
    /// Nothing is done before the first step.
    pub fn new(function: Bdf, way: Way) -> Self {
        Reset { function, way, state: State::Drains(0) }
    }

    /// Does the next step. Gives how many milliseconds to wait before the one after it, or how the
    /// reset ended.
    pub fn step(&mut self, config: &impl Config) -> Result<u32, Outcome> {
        let (next, wait) = match self.state {
            State::Drains(so_far) if so_far < DRAIN_MS && self.is_busy(config) => {
                let wait = doubled(so_far);
                (State::Drains(so_far.saturating_add(wait)), wait)
            }
            State::Drains(_) => self.begin(config),
            State::Released => self.release(config),
            State::Wakes(_) if answers(config, self.function) => return self.end(Outcome::Ready),
            State::Wakes(so_far) if so_far >= PATIENCE_MS => return self.end(Outcome::Silent),
            State::Wakes(so_far) => {
                let wait = doubled(so_far);
                (State::Wakes(so_far.saturating_add(wait)), wait)
            }
            State::Over(outcome) => return Err(outcome),
        };
        self.state = next;
        Ok(wait)
    }

    fn end(&mut self, outcome: Outcome) -> Result<u32, Outcome> {
        self.state = State::Over(outcome);
        Err(outcome)
    }

    /// Has the function sent requests that aren't answered?
    fn is_busy(&self, config: &impl Config) -> bool {
        /// DEVICE STATUS: Transactions Pending.
        const EXPRESS: (u16, u16) = (0x0A, 1 << 5);
        /// AF STATUS, in the high byte: Transactions Pending.
        const ADVANCED: (u16, u16) = (0x04, 1 << 8);
        let (at, (register, pending)) = match self.way {
            Way::Advanced(at) => (Some(at), ADVANCED),
            _ => (config.capability(self.function, CAPABILITY_EXPRESS), EXPRESS),
        };
        at.is_some_and(|at| config.read16(self.function, at + register) & pending != 0)
    }

    /// The write that resets, or the first of two.
    fn begin(&self, config: &impl Config) -> (State, u32) {
        const INITIATE: u16 = 1 << 15;
        const ADVANCED_INITIATE: u16 = 1;
        match self.way {
            Way::FunctionLevel(control) => {
                let value = config.read16(self.function, control) | INITIATE;
                config.write16(self.function, control, value);
                (State::Wakes(0), SETTLE_MS)
            }
            Way::Advanced(at) => {
                config.write16(self.function, at + 4, ADVANCED_INITIATE);
                (State::Wakes(0), SETTLE_MS)
            }
            Way::Power(control) => {
                set_power(config, self.function, control, D3HOT);
                (State::Released, POWER_MS)
            }
            Way::Bus(bridge) => {
                let value = config.read16(bridge, BRIDGE_CONTROL) | SECONDARY_BUS_RESET;
                config.write16(bridge, BRIDGE_CONTROL, value);
                (State::Released, BUS_MS)
            }
        }
    }

    /// The second write.
    fn release(&self, config: &impl Config) -> (State, u32) {
        match self.way {
            Way::Power(control) => {
                set_power(config, self.function, control, D0);
                (State::Wakes(0), POWER_MS)
            }
            Way::Bus(bridge) => {
                let value = config.read16(bridge, BRIDGE_CONTROL) & !SECONDARY_BUS_RESET;
                config.write16(bridge, BRIDGE_CONTROL, value);
                (State::Wakes(0), SETTLE_MS)
            }
            Way::FunctionLevel(_) | Way::Advanced(_) => (State::Wakes(0), 0),
        }
    }
}

/// As long again as it took so far, so that few looks find a long wait's end soon after it.
fn doubled(so_far: u32) -> u32 {
    so_far.clamp(1, LONGEST_MS)
}

/// Does the function answer? One that isn't ready lets reads of its ids say so, with vendor 0001
/// (PCIe 6.0, 2.3.1.1), and others fail. A virtual function's ids are ones for good (SR-IOV 1.1,
/// 3.4.1.1), so the next register counts.
fn answers(config: &impl Config, function: Bdf) -> bool {
    const NOT_YET: u16 = 0x0001;
    config.read16(function, 0) != NOT_YET && config.read32(function, COMMAND) != u32::MAX
}

fn express(config: &impl Config, function: Bdf) -> Option<Way> {
    const DEVICE_CAPABILITIES: u16 = 4;
    const DEVICE_CONTROL: u16 = 8;
    const CAPABLE: u32 = 1 << 28;
    let at = config.capability(function, CAPABILITY_EXPRESS)?;
    let capable = config.read32(function, at + DEVICE_CAPABILITIES) & CAPABLE != 0;
    capable.then_some(Way::FunctionLevel(at + DEVICE_CONTROL))
}

fn advanced(config: &impl Config, function: Bdf) -> Option<Way> {
    const AF_CAPABILITIES: u16 = 3;
    /// Transactions Pending and function-level reset: the one isn't without the other.
    const CAPABLE: u8 = 0b11;
    let at = config.capability(function, CAPABILITY_ADVANCED)?;
    let capable = config.read8(function, at + AF_CAPABILITIES) & CAPABLE == CAPABLE;
    capable.then_some(Way::Advanced(at))
}

fn power(config: &impl Config, function: Bdf) -> Option<Way> {
    const CONTROL: u16 = 4;
    const NO_SOFT_RESET: u16 = 1 << 3;
    let at = config.capability(function, CAPABILITY_POWER)?;
    let resets = config.read16(function, at + CONTROL) & NO_SOFT_RESET == 0;
    resets.then_some(Way::Power(at + CONTROL))
}

const D0: u16 = 0;
const D3HOT: u16 = 3;

fn set_power(config: &impl Config, function: Bdf, control: u16, state: u16) {
    const STATE: u16 = 3;
    let value = config.read16(function, control) & !STATE | state;
    config.write16(function, control, value);
}
