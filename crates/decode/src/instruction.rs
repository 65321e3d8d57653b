//! A decoded instruction.

use crate::{Alu, MemoryOperand, Mode, Modify, Register, Registers};

/// The result of [`crate::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Length in bytes with all prefixes, 1 to 15.
    pub len: u8,
    /// Its operation.
    pub op: Op,
    /// Bytes it moves between processor and memory, or an element has; 0 if it has no memory
    /// operand.
    pub size: u8,
    /// The memory operand; of MOVS the destination. A bit's index in a register adds to its
    /// address.
    pub memory: Option<MemoryOperand>,
}

impl Instruction {
    /// The linear address of the bytes that its memory operand means, if it has one.
    pub fn linear_address(&self, registers: &impl Registers, mode: Mode) -> Option<u64> {
        let next_rip = registers.rip().wrapping_add(u64::from(self.len));
        let away = match self.op {
            Op::Modify(modify) => modify.bytes_away(registers, self.size),
            _ => 0,
        };
        self.memory.map(|memory| {
            let displacement = memory.displacement.wrapping_add(away);
            MemoryOperand { displacement, ..memory }.linear_address(registers, next_rip, mode)
        })
    }
}

/// The right-hand side of a store or an arithmetic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A general register of the instruction's size.
    Register(Register),
    /// A constant, sign-extended to 64 bits.
    Immediate(u64),
}

/// What an instruction does. "Memory" is its memory operand of
/// [`Instruction::size`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// MOV, MOVZX, MOVSX, MOVSXD: register := memory.
    Load {
        /// Where the value goes.
        to: Register,
        /// Size of the register operand, at least that of the memory operand.
        to_size: u8,
        /// The value is sign-extended to `to_size`, else zero-extended.
        signed: bool,
    },
    /// MOV: memory := source.
    Store(Source),
    /// memory := memory op source; CMP and TEST set the flags alone.
    AluToMemory(Alu, Source),
    /// register := register op memory; CMP sets the flags alone.
    AluToRegister(Alu, Register),
    /// memory := op memory; BT sets CF alone.
    Modify(Modify),
    /// XCHG with memory.
    Exchange(Register),
    /// XADD: memory := memory + register, and the register becomes what memory was.
    ExchangeAdd(Register),
    /// CMPXCHG: memory := register if it is equal to rAX, which else becomes what memory was.
    CompareExchange(Register),
    /// A vector register := memory, and zero above it up to 16 bytes.
    VectorLoad {
        /// Number of the vector register.
        to: u8,
        /// What lies above the 16 bytes is set, too: from memory, if that is 32 bytes, or to zero.
        vex: bool,
    },
    /// memory := the lower part of a vector register.
    VectorStore {
        /// Number of the vector register.
        from: u8,
        /// By an instruction of AVX.
        vex: bool,
    },
    /// MOVS: memory := memory. Both base registers then move by the size, back with RFLAGS.DF.
    Movs {
        /// As often as rCX, of the size of the address, says.
        repeat: bool,
        /// The other memory operand.
        source: MemoryOperand,
    },
    /// STOS: memory := rAX, else as MOVS.
    Stos {
        /// As often as rCX, of the size of the address, says.
        repeat: bool,
    },
    /// LODS: rAX := memory, else as MOVS.
    Lods {
        /// As often as rCX, of the size of the address, says.
        repeat: bool,
    },
    /// MOV CRn, register.
    WriteCr {
        /// 0, 2, 3, 4 or 8.
        cr: u8,
        /// Number of the general register.
        from: u8,
    },
    /// MOV register, CRn.
    ReadCr {
        /// 0, 2, 3, 4 or 8.
        cr: u8,
        /// Number of the general register.
        to: u8,
    },
    /// MOV DRn, register.
    WriteDr {
        /// 0 to 7.
        dr: u8,
        /// Number of the general register.
        from: u8,
    },
    /// LGDT: the size is 5 (a base of 24 bits), 6 or 10 bytes.
    Lgdt,
    /// LIDT: the size is as for LGDT.
    Lidt,
    /// SGDT: the size is 6 or 10 bytes.
    Sgdt,
    /// SIDT: the size is 6 or 10 bytes.
    Sidt,
    /// LMSW from a general register, or from memory if there is none.
    Lmsw(Option<u8>),
    /// INVLPG: the operand is the address itself; no bytes are moved.
    Invlpg,
    /// CLTS.
    Clts,
    /// CPUID.
    Cpuid,
    /// HLT.
    Hlt,
    /// IN; ports and sizes come with the exit.
    In,
    /// OUT; ports and sizes come with the exit.
    Out,
    /// INS: memory := port. The base register then moves by the size, back with RFLAGS.DF.
    Ins {
        /// As often as rCX, of the size of the address, says.
        repeat: bool,
    },
    /// OUTS: port := memory, else as INS.
    Outs {
        /// As often as rCX, of the size of the address, says.
        repeat: bool,
    },
    /// INVD.
    Invd,
    /// RDMSR.
    Rdmsr,
    /// VMMCALL.
    Vmmcall,
    /// WBINVD, or WBNOINVD.
    Wbinvd,
    /// WRMSR.
    Wrmsr,
    /// XSETBV.
    Xsetbv,
}

impl Op {
    /// LOCK is allowed: it writes memory it has read.
    pub(crate) fn takes_lock(&self) -> bool {
        match self {
            Op::AluToMemory(alu, _) => alu.writes(),
            Op::Modify(modify) => modify.takes_lock(),
            Op::Exchange(_) | Op::ExchangeAdd(_) | Op::CompareExchange(_) => true,
            _ => false,
        }
    }

    /// It writes its memory operand, as one that [`crate::emulate_mmio`] performs; CMPXCHG does in
    /// any case.
    pub fn stores(&self) -> bool {
        match self {
            Op::AluToMemory(alu, _) => alu.writes(),
            Op::Modify(modify) => modify.writes(),
            Op::Store(_)
            | Op::Exchange(_)
            | Op::ExchangeAdd(_)
            | Op::CompareExchange(_)
            | Op::VectorStore { .. } => true,
            _ => false,
        }
    }

    /// It reads its memory operand, as one that [`crate::emulate_mmio`] performs.
    pub fn loads(&self) -> bool {
        matches!(
            self,
            Op::Load { .. }
                | Op::AluToMemory(..)
                | Op::AluToRegister(..)
                | Op::Modify(_)
                | Op::Exchange(_)
                | Op::ExchangeAdd(_)
                | Op::CompareExchange(_)
                | Op::VectorLoad { .. }
        )
    }
}
