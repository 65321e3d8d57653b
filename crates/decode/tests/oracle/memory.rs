//! Memory operands.

use crate::{Fixed, RIP, number};
use decode::{Instruction, MemoryOperand, Mode, Registers};
use iced_x86::{OpKind, Register};

pub fn memory_index(iced: &iced_x86::Instruction) -> Option<u32> {
    (0..iced.op_count()).find(|&index| {
        iced.op_kind(index) == OpKind::Memory || string_operand(iced, index).is_some()
    })
}

/// Segment and base of operand `index`, if it is a string instruction's memory, and the size of
/// the address.
fn string_operand(iced: &iced_x86::Instruction, index: u32) -> Option<(Register, u8, u8)> {
    let (segment, base, size) = match iced.op_kind(index) {
        OpKind::MemoryESDI => (Register::ES, 7, 2),
        OpKind::MemoryESEDI => (Register::ES, 7, 4),
        OpKind::MemoryESRDI => (Register::ES, 7, 8),
        OpKind::MemorySegSI => (iced.memory_segment(), 6, 2),
        OpKind::MemorySegESI => (iced.memory_segment(), 6, 4),
        OpKind::MemorySegRSI => (iced.memory_segment(), 6, 8),
        _ => return None,
    };
    Some((segment, base, size))
}

pub fn same_memory(ours: &Instruction, iced: &iced_x86::Instruction, mode: Mode) {
    let index = memory_index(iced);
    assert_eq!(ours.memory.is_some(), index.is_some());
    let (Some(memory), Some(index)) = (ours.memory, index) else { return };

    // iced counts 6 bytes for LGDT and LIDT with a 16-bit operand size too; the
    // processor uses 5 of them (APM volume 3, LGDT).
    let size = usize::from(if ours.size == 5 { 6 } else { ours.size });
    assert_eq!(size, iced.memory_size().size());
    let linear = same_operand(&memory, iced, index, mode);
    // The oracle leaves out what a bit's index adds.
    if !matches!(ours.op, decode::Op::Modify(decode::Modify::Bit(..))) {
        assert_eq!(ours.linear_address(&Fixed, mode), Some(linear));
    }
}

/// The memory operand `index` of `iced`; its linear address.
pub fn same_operand(
    memory: &MemoryOperand,
    iced: &iced_x86::Instruction,
    index: u32,
    mode: Mode,
) -> u64 {
    let general = |register: Register| register.is_gpr().then(|| number(register));
    let string = string_operand(iced, index);
    match string {
        Some((_, base, size)) => {
            assert_eq!((memory.base, memory.address_size), (Some(base), size));
        }
        None => assert_eq!(memory.base, general(iced.memory_base())),
    }
    assert_eq!(memory.index, general(iced.memory_index()));
    assert_eq!(memory.rip_relative, iced.is_ip_rel_memory_operand());
    if memory.index.is_some() {
        assert_eq!(u32::from(memory.scale), iced.memory_index_scale());
    }
    let segment = string.map_or(iced.memory_segment(), |(segment, ..)| segment).number() as u8;
    if mode != Mode::Bits64 || segment >= 4 || memory.segment as u8 >= 4 {
        assert_eq!(memory.segment as u8, segment);
    }

    let theirs = iced
        .virtual_address(index, 0, |register, _, _| {
            Some(if !register.is_segment_register() {
                let value = Fixed.gpr(number(register));
                match register.size() {
                    2 => value & 0xFFFF,
                    4 => value & 0xFFFF_FFFF,
                    _ => value,
                }
            } else if mode == Mode::Bits64 && register.number() < 4 {
                0
            } else {
                0xC2B2_AE35 * (register.number() as u64 + 1)
            })
        })
        .unwrap();
    let theirs = if mode == Mode::Bits64 { theirs } else { theirs & 0xFFFF_FFFF };
    let next_rip = RIP.wrapping_add(iced.len() as u64);
    assert_eq!(memory.linear_address(&Fixed, next_rip, mode), theirs);
    theirs
}
