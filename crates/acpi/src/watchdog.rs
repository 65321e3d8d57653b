//! The watchdog that firmware's WDAT names (Microsoft's Hardware Watchdog Timers Design
//! Specification), and how it is kept from resetting the machine.
//!
//! Guarantees: only registers that the table names are touched, each in the width that it names,
//! and no more often than there are instructions; an action with an instruction that isn't
//! understood isn't begun. A watchdog that can be read is called stopped only when it says so
//! itself. It isn't told whether firmware has it running if the table has no way to ask: then it is
//! stopped and fed.

use alloc::vec::Vec;

/// Actions, by number (table 2 of the specification).
const FEED: u8 = 1;
const CONFIGURED_COUNT: u8 = 5;
const IS_RUNNING: u8 = 8;
const IS_STOPPED: u8 = 10;
const STOP: u8 = 11;
/// A watchdog is fed so many times before it would be due.
const TIMES: u32 = 4;

/// A watchdog that firmware says is there and may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// Milliseconds of one count; not 0.
    pub period_ms: u32,
    /// The least count that it can be set to.
    pub least_count: u32,
    /// The most; not below the least.
    pub most_count: u32,
    /// What its actions are made of, in order.
    pub instructions: Vec<Instruction>,
}

/// A step of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The action's number.
    pub action: u8,
    /// What is done, and where; none if that isn't understood, or out of reach.
    pub operation: Option<(Operation, WatchdogRegister)>,
    /// What is compared with, or written.
    pub value: u32,
    /// The field's bits, beginning with bit 0.
    pub mask: u32,
}

/// What an instruction does with its register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads the field: has it the instruction's value?
    Compare,
    /// Reads a count from the field.
    Count,
    /// Writes the instruction's value to the field.
    Write {
        /// The register's other bits stay as they are; else they are cleared.
        preserve: bool,
    },
}

/// A register of the watchdog's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchdogRegister {
    /// Where.
    pub place: Place,
    /// Bytes of an access: 1, 2 or 4.
    pub width: u8,
    /// The field's first bit: below the width's bits.
    pub shift: u8,
}

/// Where a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this I/O port, which isn't 0, and those behind it that its width takes.
    Port(u16),
    /// At this physical address, which its width divides.
    Memory(u64),
}

/// The watchdog's registers, as they are reached.
pub trait WatchdogRegisters {
    /// Reads one, in its width.
    fn read(&mut self, register: WatchdogRegister) -> u32;
    /// Writes one, in its width.
    fn write(&mut self, register: WatchdogRegister, value: u32);
}

/// How a watchdog was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quieted {
    /// It wasn't running.
    Idle,
    /// It was running, and says that it has stopped.
    Stopped,
    /// It was fed, and has to be again after so many milliseconds.
    Fed {
        /// A quarter of the time after which it would act.
        every_ms: u32,
    },
    /// It runs, as far as is known, and the table has no way to stop or to feed it.
    Running,
}

impl Watchdog {
    /// Stops the watchdog if it runs or may run; feeds it if it then doesn't say that it has
    /// stopped.
    pub fn quiet(&self, registers: &mut impl WatchdogRegisters) -> Quieted {
        if self.runs(registers) == Some(false) {
            return Quieted::Idle;
        }
        if self.act(STOP, registers).is_some() && self.runs(registers) == Some(false) {
            return Quieted::Stopped;
        }
        match self.feed(registers) {
            true => Quieted::Fed { every_ms: (self.timeout_ms(registers) / TIMES).max(1) },
            false => Quieted::Running,
        }
    }

    /// Has it begin its time anew; false if the table doesn't say how.
    pub fn feed(&self, registers: &mut impl WatchdogRegisters) -> bool {
        self.act(FEED, registers).is_some()
    }

    /// The registers of actions that are taken.
    pub fn registers(&self) -> impl Iterator<Item = WatchdogRegister> {
        let used = [FEED, CONFIGURED_COUNT, IS_RUNNING, IS_STOPPED, STOP];
        let steps = self.instructions.iter().filter(move |step| used.contains(&step.action));
        steps.filter_map(|step| step.operation.map(|(_, register)| register))
    }

    /// Whether it runs, if the table has a way to ask.
    fn runs(&self, registers: &mut impl WatchdogRegisters) -> Option<bool> {
        let running = self.act(IS_RUNNING, registers).and_then(|done| done.compared);
        running.or_else(|| {
            let stopped = self.act(IS_STOPPED, registers).and_then(|done| done.compared);
            stopped.map(|stopped| !stopped)
        })
    }

    /// After what time it acts: as it says, else the shortest that there can be.
    fn timeout_ms(&self, registers: &mut impl WatchdogRegisters) -> u32 {
        let count = self.act(CONFIGURED_COUNT, registers).and_then(|done| done.count);
        let count = count.filter(|count| *count != 0).unwrap_or(self.least_count);
        count.min(self.most_count).saturating_mul(self.period_ms)
    }

    /// Takes an action; nothing is done if the table doesn't have all of it.
    fn act(&self, action: u8, registers: &mut impl WatchdogRegisters) -> Option<Done> {
        let steps = || self.instructions.iter().filter(|step| step.action == action);
        if steps().next().is_none() || steps().any(|step| step.operation.is_none()) {
            return None;
        }
        let mut done = Done::default();
        for step in steps() {
            let Some((operation, register)) = step.operation else { continue };
            let field = |value: u32| value >> register.shift & step.mask;
            match operation {
                Operation::Compare => {
                    let equal = field(registers.read(register)) == step.value;
                    done.compared = Some(done.compared.unwrap_or(true) && equal);
                }
                Operation::Count => done.count = Some(field(registers.read(register))),
                Operation::Write { preserve } => {
                    let kept = if preserve { registers.read(register) } else { 0 };
                    let mask = step.mask << register.shift;
                    let value = (step.value & step.mask) << register.shift;
                    registers.write(register, kept & !mask | value);
                }
            }
        }
        Some(done)
    }
}

/// What the instructions of an action found.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    /// All fields that were compared have their value.
    compared: Option<bool>,
    /// The last count.
    count: Option<u32>,
}

#[cfg(test)]
mod tests;
