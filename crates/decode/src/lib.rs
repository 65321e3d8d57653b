//! Decodes and performs the few x86 instructions a hypervisor must emulate:
//! loads, stores and read-modify-writes of device registers, moves of strings and
//! vectors, string input and output, and the privileged instructions whose length or operands the
//! processor doesn't report.
//!
//! Guarantees: an instruction that is accepted has the length, the operands and
//! the sizes the processor gives it; every other input is refused with a
//! sentence, in bounded time, without allocation and without a panic.
//! It doesn't guarantee that the guest may execute the instruction: privilege,
//! segment limits and canonical addresses were checked by the processor before
//! it exited, or are the caller's to check.
//!
//! Encodings are those of the AMD64 Architecture Programmer's Manual (APM)
//! volume 3, chapter 1 and appendix A.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod alu;
mod cursor;
mod decode;
mod emulate;
mod error;
mod flags;
mod instruction;
mod memory;
mod modify;
mod prefixes;
mod registers;
mod string;
mod vector;

pub use alu::Alu;
pub use decode::decode;
pub use emulate::{Device, emulate_mmio};
pub use error::Error;
pub use instruction::{Instruction, Op, Source};
pub use memory::{MemoryOperand, Segment};
pub use modify::{Bit, Modify, Places, Shift};
pub use prefixes::Mode;
pub use registers::{Register, Registers, Vectors};
