//! Why an instruction was refused. Each variant displays as one sentence.

use thiserror::Error;

/// The reason an instruction isn't decoded or performed. Opcodes of two and three bytes are
/// written with their escapes: `0x0f01` is `0F 01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Error {
    /// The bytes end inside the instruction.
    #[error("the instruction doesn't end within the {0} bytes that were fetched")]
    Truncated(usize),
    /// The processor raises #GP for more than 15 bytes.
    #[error("the instruction is longer than the 15 bytes a processor accepts")]
    TooLong,
    /// An opcode outside the set this crate knows.
    #[error("opcode {0:#04x} isn't one of the instructions that can be emulated")]
    Unsupported(u32),
    /// CMPS and SCAS.
    #[error("opcode {0:#04x} compares strings; of device registers they can only be moved")]
    StringComparison(u32),
    /// The ModRM byte names a register where only memory makes sense.
    #[error("opcode {0:#04x} has a register operand; only its memory form can be emulated")]
    RegisterForm(u32),
    /// The processor raises #UD for LOCK here.
    #[error("opcode {0:#04x} has a LOCK prefix, which it doesn't take")]
    Lock(u32),
    /// The instruction was decoded, but it isn't a load, a store or a read-modify-write.
    #[error("the instruction doesn't move data between a register and memory")]
    NotMemoryAccess,
    /// The instruction can't have been the one that was executed.
    #[error("the instruction moves a vector register that the guest has switched off")]
    NoVectors,
}
