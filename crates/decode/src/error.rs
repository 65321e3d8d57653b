//! Why an instruction was refused. Each variant displays as one sentence.

use thiserror::Error;

/// The reason an instruction isn't decoded or performed. Two-byte opcodes are
/// written with their escape: `0x0f01` is `0F 01`.
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
    Unsupported(u16),
    /// MOVS, STOS and their like.
    #[error("opcode {0:#04x} is a string instruction; device registers need a plain load or store")]
    StringInstruction(u16),
    /// The ModRM byte names a register where only memory makes sense.
    #[error("opcode {0:#04x} has a register operand; only its memory form can be emulated")]
    RegisterForm(u16),
    /// The processor raises #UD for LOCK here.
    #[error("opcode {0:#04x} has a LOCK prefix, which it doesn't take")]
    Lock(u16),
    /// The instruction was decoded, but it isn't a load, a store or a read-modify-write.
    #[error("the instruction doesn't move data between a register and memory")]
    NotMemoryAccess,
}
