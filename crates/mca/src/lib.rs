//! Machine checks (APM vol. 2, 9; SDM vol. 3, 17): what the banks of error-reporting registers
//! tell, and giving them back to the machine.
//!
//! Guarantees: [`take`] looks at a bounded number of banks, touches no register that a bank doesn't
//! say it has, clears what it has read, and says last that the machine check was handled: another
//! before that would be a shutdown. Doesn't decide who goes on: a guest that was interrupted by a
//! machine check is ended by the hypervisor, and a machine check in the hypervisor itself is a
//! panic.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

use arrayvec::ArrayVec;
use core::fmt;

/// Number of banks, in bits 7:0.
const MCG_CAP: u32 = 0x179;
/// State of the machine check that is being handled.
const MCG_STATUS: u32 = 0x17A;
/// The first bank's registers: control, status, address, miscellaneous; 4 for each bank.
const FIRST_BANK: u32 = 0x400;
const STATUS: u32 = 1;
const ADDRESS: u32 = 2;
const MISCELLANEOUS: u32 = 3;

/// A machine check is being handled.
const MCIP: u64 = 1 << 2;

const VALID: u64 = 1 << 63;
const OVERFLOW: u64 = 1 << 62;
const UNCORRECTED: u64 = 1 << 61;
const HAS_MISCELLANEOUS: u64 = 1 << 59;
const HAS_ADDRESS: u64 = 1 << 58;
const CONTEXT_CORRUPT: u64 = 1 << 57;
/// AMD's: data that nobody has used yet can't be corrected.
const DEFERRED: u64 = 1 << 44;

/// The banks that there can be (the manuals have room for so many).
const MOST_BANKS: u32 = 32;
/// So many errors are told; there is seldom more than one.
const MOST_ERRORS: usize = 4;

/// Model-specific registers of the core this runs on.
pub trait Registers {
    /// RDMSR.
    fn read(&self, register: u32) -> u64;
    /// WRMSR.
    fn write(&mut self, register: u32, value: u64);
}

/// An error in a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Of which bank.
    pub bank: u32,
    /// What it is.
    pub status: u64,
    /// Where, as the bank defines it.
    pub address: Option<u64>,
    /// More about it.
    pub miscellaneous: Option<u64>,
}

/// The banks' report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// MCG_STATUS.
    pub global: u64,
    /// The first errors.
    pub errors: ArrayVec<Error, MOST_ERRORS>,
    /// How many there were besides.
    pub more: u32,
}

impl Report {
    /// Is there an error, or a machine check that isn't finished?
    pub fn tells_something(&self) -> bool {
        !self.errors.is_empty() || self.global & MCIP != 0
    }

    /// Was all of it corrected, without a machine check?
    pub fn is_harmless(&self) -> bool {
        let corrected = |error: &Error| error.status & (UNCORRECTED | DEFERRED) == 0;
        self.more == 0 && self.global & MCIP == 0 && self.errors.iter().all(corrected)
    }
}

/// Is a machine check being handled on this core?
pub fn in_progress(registers: &impl Registers) -> bool {
    registers.read(MCG_STATUS) & MCIP != 0
}

/// Reads all banks and clears them; the machine check is handled then.
pub fn take(registers: &mut impl Registers) -> Report {
    let mut report =
        Report { global: registers.read(MCG_STATUS), errors: ArrayVec::new(), more: 0 };
    let banks = (registers.read(MCG_CAP) as u32 & 0xFF).min(MOST_BANKS);
    for bank in 0..banks {
        let register = |n: u32| FIRST_BANK + 4 * bank + n;
        let status = registers.read(register(STATUS));
        if status & VALID == 0 {
            continue;
        }
        let told = |flag, n| (status & flag != 0).then(|| registers.read(register(n)));
        let error = Error {
            bank,
            status,
            address: told(HAS_ADDRESS, ADDRESS),
            miscellaneous: told(HAS_MISCELLANEOUS, MISCELLANEOUS),
        };
        if report.errors.try_push(error).is_err() {
            report.more += 1;
        }
        registers.write(register(STATUS), 0);
    }
    registers.write(MCG_STATUS, 0);
    report
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "bank {}, status {:#x}", self.bank, self.status)?;
        if self.status & (UNCORRECTED | DEFERRED) == 0 {
            write!(f, ", corrected")?;
        }
        for (flag, words) in [
            (UNCORRECTED, "uncorrected"),
            (DEFERRED, "deferred"),
            (CONTEXT_CORRUPT, "the processor's state is corrupt"),
            (OVERFLOW, "others are lost"),
        ] {
            if self.status & flag != 0 {
                write!(f, ", {words}")?;
            }
        }
        if let Some(address) = self.address {
            write!(f, ", address {address:#x}")?;
        }
        if let Some(miscellaneous) = self.miscellaneous {
            write!(f, ", more {miscellaneous:#x}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.global & MCIP {
            0 => write!(f, "errors that raised no machine check")?,
            _ => write!(f, "machine check, global status {:#x}", self.global)?,
        }
        if self.errors.is_empty() {
            write!(f, ": no bank tells of an error")?;
        }
        self.errors.iter().try_for_each(|error| write!(f, "; {error}"))?;
        if self.more != 0 {
            write!(f, "; {} more", self.more)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
