//! Moves between vector registers and memory, in their legacy and VEX encodings (APM volume 4;
//! the VEX prefix: volume 3, 1.2.7).

use crate::cursor::Cursor;
use crate::prefixes::{Mandatory, Prefixes};
use crate::{Error, Op};

/// What a VEX prefix says beside what it puts into [`Prefixes`].
pub struct Vex {
    /// Two or three bytes, as if the opcode had been written with its escape.
    pub opcode: u32,
    /// The 256-bit form.
    wide: bool,
}

impl Vex {
    /// Reads the rest of a VEX prefix whose first byte is `first`, 0xC4 or 0xC5, and the opcode.
    /// The caller has made sure that the byte isn't LES or LDS.
    pub fn read(cursor: &mut Cursor, prefixes: &mut Prefixes, first: u8) -> Result<Self, Error> {
        let second = cursor.u8()?;
        // The three-byte form has R, X, B and the map first, then W with the rest.
        let (registers, map, last) = match first {
            0xC5 => (second & 0x80 | 0x60, 1, second & 0x7F),
            _ => (second & 0xE0, second & 0x1F, cursor.u8()?),
        };
        let legacy = prefixes.lock || prefixes.mandatory() != Mandatory::None || prefixes.has_rex();
        let escape = match map {
            1 => 0x0F00,
            2 => 0x0F_3800,
            _ => return Err(Error::Unsupported(first.into())),
        };
        // No move has a second source: vvvv, inverted, must be zero.
        if legacy || last & 0x78 != 0x78 {
            return Err(Error::Unsupported(first.into()));
        }
        prefixes.set_vex(!registers >> 5, last & 0x80 != 0, last & 3);
        Ok(Self { opcode: escape | u32::from(cursor.u8()?), wide: last & 4 != 0 })
    }
}

/// Which way, and how many bytes.
enum Move {
    Load(u8),
    Store(u8),
}

/// The operation and its size in memory, if `opcode` is such a move; `register` is the number in
/// the ModRM byte's `reg` field.
pub fn operation(
    opcode: u32,
    prefixes: &Prefixes,
    vex: Option<&Vex>,
    register: u8,
) -> Option<(Op, u8)> {
    use Mandatory::{None as Plain, Operand, Rep, Repne};
    use Move::{Load, Store};
    let wide = vex.is_some_and(|vex| vex.wide);
    let full = if wide { 32 } else { 16 };
    let general = if prefixes.rex_w() { 8 } else { 4 };
    let found = match (opcode, prefixes.mandatory()) {
        // MOVUPS, MOVUPD, MOVAPS, MOVAPD; non-temporal; MOVDQA, MOVDQU; LDDQU; MOVNTDQA.
        (0x0F10 | 0x0F28, Plain | Operand) => Load(full),
        (0x0F11 | 0x0F29 | 0x0F2B, Plain | Operand) => Store(full),
        (0x0F6F, Operand | Rep) => Load(full),
        (0x0F7F, Operand | Rep) => Store(full),
        (0x0FE7, Operand) => Store(full),
        (0x0FF0, Repne) => Load(full),
        (0x0F_382A, Operand) => Load(full),
        // MOVSS and MOVSD, which are never wide.
        (0x0F10, Rep) => Load(4),
        (0x0F11, Rep) => Store(4),
        (0x0F10, Repne) => Load(8),
        (0x0F11, Repne) => Store(8),
        // MOVD and MOVQ, which have no wide form.
        _ if wide => return None,
        (0x0F6E, Operand) => Load(general),
        (0x0F7E, Operand) => Store(general),
        (0x0F7E, Rep) => Load(8),
        (0x0FD6, Operand) => Store(8),
        _ => return None,
    };
    let vex = vex.is_some();
    Some(match found {
        Load(size) => (Op::VectorLoad { to: register, vex }, size),
        Store(size) => (Op::VectorStore { from: register, vex }, size),
    })
}
