//! Operations with their register and immediate operands, and which of them are promised.

use crate::memory::{memory_index, same_operand};
use crate::{is_high, number};
use decode::{Alu, Bit, Instruction, Mode, Modify, Op, Places, Shift, Source};
use iced_x86::{Code, EncodingKind, Mnemonic, OpKind, Register};

/// Operand `index` of `iced` is the register `ours`, of `size` bytes.
fn same_register(iced: &iced_x86::Instruction, index: u32, ours: decode::Register, size: u8) {
    let theirs = iced.op_register(index);
    assert_eq!((ours.number, ours.high), (number(theirs), is_high(theirs)));
    assert_eq!(usize::from(size), theirs.size());
}

fn same_source(iced: &iced_x86::Instruction, ours: Source, size: u8) {
    match ours {
        Source::Register(register) => same_register(iced, 1, register, size),
        Source::Immediate(value) => {
            let mask = u64::MAX >> (64 - 8 * u32::from(size));
            assert_eq!(value & mask, iced.immediate(1) & mask);
        }
    }
}

fn mnemonic(alu: Alu) -> Mnemonic {
    match alu {
        Alu::Add => Mnemonic::Add,
        Alu::Or => Mnemonic::Or,
        Alu::Adc => Mnemonic::Adc,
        Alu::Sbb => Mnemonic::Sbb,
        Alu::And => Mnemonic::And,
        Alu::Sub => Mnemonic::Sub,
        Alu::Xor => Mnemonic::Xor,
        Alu::Cmp => Mnemonic::Cmp,
        Alu::Test => Mnemonic::Test,
    }
}

/// What a read-modify-write with one operand in memory is, and its other operand.
fn same_modify(iced: &iced_x86::Instruction, ours: Modify, size: u8) -> Mnemonic {
    match ours {
        Modify::Inc => Mnemonic::Inc,
        Modify::Dec => Mnemonic::Dec,
        Modify::Not => Mnemonic::Not,
        Modify::Neg => Mnemonic::Neg,
        Modify::Shift(shift, places) => {
            match places {
                Places::Immediate(places) => {
                    assert_eq!(iced.op1_kind(), OpKind::Immediate8);
                    assert_eq!(places, iced.immediate8());
                }
                Places::Cl => assert_eq!(iced.op1_register(), Register::CL),
            }
            match shift {
                Shift::Rol => Mnemonic::Rol,
                Shift::Ror => Mnemonic::Ror,
                Shift::Rcl => Mnemonic::Rcl,
                Shift::Rcr => Mnemonic::Rcr,
                Shift::Shl => Mnemonic::Shl,
                Shift::Shr => Mnemonic::Shr,
                Shift::Sar => Mnemonic::Sar,
            }
        }
        Modify::Bit(bit, index) => {
            same_source(iced, index, size);
            match bit {
                Bit::Bt => Mnemonic::Bt,
                Bit::Bts => Mnemonic::Bts,
                Bit::Btr => Mnemonic::Btr,
                Bit::Btc => Mnemonic::Btc,
            }
        }
    }
}

/// The vector register at operand `index`, whose width says whether 16 or 32 bytes are moved.
fn same_vector(iced: &iced_x86::Instruction, index: u32, number: u8, vex: bool) {
    let theirs = iced.op_register(index);
    assert!(theirs.is_xmm() || theirs.is_ymm());
    assert_eq!(usize::from(number), theirs.number());
    assert_eq!(vex, iced.code().encoding() == EncodingKind::VEX);
}

const VECTOR_MOVES: &[Mnemonic] = {
    use Mnemonic as M;
    &[
        M::Movups,
        M::Movupd,
        M::Movaps,
        M::Movapd,
        M::Movdqa,
        M::Movdqu,
        M::Lddqu,
        M::Movss,
        M::Movsd,
        M::Movd,
        M::Movq,
        M::Movntps,
        M::Movntpd,
        M::Movntdq,
        M::Movntdqa,
        M::Vmovups,
        M::Vmovupd,
        M::Vmovaps,
        M::Vmovapd,
        M::Vmovdqa,
        M::Vmovdqu,
        M::Vlddqu,
        M::Vmovss,
        M::Vmovsd,
        M::Vmovd,
        M::Vmovq,
        M::Vmovntps,
        M::Vmovntpd,
        M::Vmovntdq,
        M::Vmovntdqa,
    ]
};

/// The operation and its register and immediate operands.
pub fn same_operation(ours: &Instruction, iced: &iced_x86::Instruction, mode: Mode) {
    use Mnemonic as M;
    let name = iced.mnemonic();
    let allowed: &[M] = match ours.op {
        Op::Load { to, to_size, signed } => {
            same_register(iced, 0, to, to_size);
            if signed {
                &[M::Movsx, M::Movsxd]
            } else if to_size == ours.size {
                &[M::Mov, M::Movzx]
            } else {
                &[M::Movzx]
            }
        }
        Op::Store(source) => {
            same_source(iced, source, ours.size);
            &[M::Mov, M::Movnti]
        }
        Op::AluToMemory(alu, source) => {
            same_source(iced, source, ours.size);
            &[mnemonic(alu)]
        }
        Op::AluToRegister(alu, register) => {
            same_register(iced, 0, register, ours.size);
            &[mnemonic(alu)]
        }
        Op::Modify(modify) => &[same_modify(iced, modify, ours.size)],
        Op::Exchange(register) => {
            same_register(iced, 1, register, ours.size);
            &[M::Xchg]
        }
        Op::ExchangeAdd(register) => {
            same_register(iced, 1, register, ours.size);
            &[M::Xadd]
        }
        Op::CompareExchange(register) => {
            same_register(iced, 1, register, ours.size);
            &[M::Cmpxchg]
        }
        Op::VectorLoad { to, vex } => {
            same_vector(iced, 0, to, vex);
            VECTOR_MOVES
        }
        Op::VectorStore { from, vex } => {
            same_vector(iced, 1, from, vex);
            VECTOR_MOVES
        }
        Op::Movs { repeat, source } => {
            assert_eq!(repeat, iced.has_rep_prefix() || iced.has_repne_prefix());
            same_operand(&source, iced, 1, mode);
            &[M::Movsb, M::Movsw, M::Movsd, M::Movsq]
        }
        Op::Stos { repeat } => {
            assert_eq!(repeat, iced.has_rep_prefix() || iced.has_repne_prefix());
            &[M::Stosb, M::Stosw, M::Stosd, M::Stosq]
        }
        Op::Lods { repeat } => {
            assert_eq!(repeat, iced.has_rep_prefix() || iced.has_repne_prefix());
            &[M::Lodsb, M::Lodsw, M::Lodsd, M::Lodsq]
        }
        Op::WriteCr { cr, from } => {
            assert_eq!((cr, from), (number(iced.op0_register()), number(iced.op1_register())));
            assert!(iced.op0_register().is_cr());
            &[M::Mov]
        }
        Op::ReadCr { cr, to } => {
            assert_eq!((to, cr), (number(iced.op0_register()), number(iced.op1_register())));
            assert!(iced.op1_register().is_cr());
            &[M::Mov]
        }
        Op::WriteDr { dr, from } => {
            assert_eq!((dr, from), (number(iced.op0_register()), number(iced.op1_register())));
            assert!(iced.op0_register().is_dr());
            &[M::Mov]
        }
        Op::Lmsw(register) => {
            assert_eq!(register.is_some(), iced.op0_kind() == OpKind::Register);
            if let Some(register) = register {
                assert_eq!(register, number(iced.op0_register()));
            }
            &[M::Lmsw]
        }
        Op::Lgdt => &[M::Lgdt],
        Op::Lidt => &[M::Lidt],
        Op::Sgdt => &[M::Sgdt],
        Op::Sidt => &[M::Sidt],
        Op::Invlpg => &[M::Invlpg],
        Op::Clts => &[M::Clts],
        Op::Cpuid => &[M::Cpuid],
        Op::Hlt => &[M::Hlt],
        Op::In => &[M::In],
        Op::Out => &[M::Out],
        Op::Ins { repeat } => {
            assert_eq!(repeat, iced.has_rep_prefix() || iced.has_repne_prefix());
            &[M::Insb, M::Insw, M::Insd]
        }
        Op::Outs { repeat } => {
            assert_eq!(repeat, iced.has_rep_prefix() || iced.has_repne_prefix());
            &[M::Outsb, M::Outsw, M::Outsd]
        }
        Op::Invd => &[M::Invd],
        Op::Rdmsr => &[M::Rdmsr],
        Op::Vmmcall => &[M::Vmmcall],
        Op::Wbinvd => &[M::Wbinvd, M::Wbnoinvd],
        Op::Wrmsr => &[M::Wrmsr],
        Op::Xsetbv => &[M::Xsetbv],
    };
    assert!(allowed.contains(&name), "{:?} is {name:?}", ours.op);
}

/// The loads, stores, read-modify-writes and string port instructions this crate promises to
/// decode.
pub fn promised(iced: &iced_x86::Instruction) -> bool {
    use Mnemonic as M;
    let aliases = matches!(
        iced.code(),
        Code::Test_rm8_imm8_F6r1
            | Code::Test_rm16_imm16_F7r1
            | Code::Test_rm32_imm32_F7r1
            | Code::Test_rm64_imm32_F7r1
            | Code::Movsxd_r16_rm16
            | Code::Movsxd_r32_rm32
    ) || iced.mnemonic() == Mnemonic::Sal
        || format!("{:?}", iced.code()).ends_with("imm8_82");
    let general = (0..iced.op_count())
        .all(|index| iced.op_kind(index) != OpKind::Register || iced.op_register(index).is_gpr());
    let name = matches!(
        iced.mnemonic(),
        M::Mov
            | M::Movzx
            | M::Movsx
            | M::Movsxd
            | M::And
            | M::Or
            | M::Xor
            | M::Add
            | M::Sub
            | M::Cmp
            | M::Test
            | M::Xchg
            | M::Insb
            | M::Insw
            | M::Insd
            | M::Outsb
            | M::Outsw
            | M::Outsd
            | M::Adc
            | M::Sbb
            | M::Inc
            | M::Dec
            | M::Not
            | M::Neg
            | M::Rol
            | M::Ror
            | M::Rcl
            | M::Rcr
            | M::Shl
            | M::Shr
            | M::Sar
            | M::Bt
            | M::Bts
            | M::Btr
            | M::Btc
            | M::Xadd
            | M::Cmpxchg
            | M::Movnti
            | M::Movsb
            | M::Movsw
            | M::Movsd
            | M::Movsq
            | M::Stosb
            | M::Stosw
            | M::Stosd
            | M::Stosq
            | M::Lodsb
            | M::Lodsw
            | M::Lodsd
            | M::Lodsq
    );
    let vector = VECTOR_MOVES.contains(&iced.mnemonic())
        && matches!(iced.code().encoding(), EncodingKind::Legacy | EncodingKind::VEX)
        && (0..iced.op_count()).any(|index| {
            let register = iced.op_register(index);
            register.is_xmm() || register.is_ymm()
        });
    (name && general && !aliases || vector) && memory_index(iced).is_some()
}
