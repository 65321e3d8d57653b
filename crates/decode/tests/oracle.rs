//! Compares the decoder with iced-x86 over random bytes: whatever is accepted,
//! iced reads in the same way, and the instructions promised are accepted.

use decode::{
    Alu, Bit, Error, Instruction, MemoryOperand, Mode, Modify, Op, Places, Registers, Segment,
    Shift, Source, decode,
};
use iced_x86::{Code, Decoder, DecoderOptions, EncodingKind, Mnemonic, OpKind, Register};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const RIP: u64 = 0x0123_4567_89AB_CDEF;

/// Registers with distinct values; nothing here writes them.
struct Fixed;

impl Registers for Fixed {
    fn gpr(&self, number: u8) -> u64 {
        0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(u64::from(number) + 1)
    }
    fn set_gpr(&mut self, _: u8, _: u64) {}
    fn rflags(&self) -> u64 {
        2
    }
    fn set_rflags(&mut self, _: u64) {}
    fn rip(&self) -> u64 {
        RIP
    }
    fn segment_base(&self, segment: Segment) -> u64 {
        0xC2B2_AE35 * (segment as u64 + 1)
    }
}

fn bits(mode: Mode) -> u32 {
    match mode {
        Mode::Bits16 => 16,
        Mode::Bits32 => 32,
        Mode::Bits64 => 64,
    }
}

/// AMD's option is for LOCK MOV CR0.
fn oracle(bytes: &[u8], mode: Mode) -> iced_x86::Instruction {
    Decoder::with_ip(bits(mode), bytes, RIP, DecoderOptions::AMD).decode()
}

fn number(register: Register) -> u8 {
    register.full_register().number() as u8
}

fn is_high(register: Register) -> bool {
    matches!(register, Register::AH | Register::CH | Register::DH | Register::BH)
}

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
fn same_operation(ours: &Instruction, iced: &iced_x86::Instruction, mode: Mode) {
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

fn memory_index(iced: &iced_x86::Instruction) -> Option<u32> {
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

fn same_memory(ours: &Instruction, iced: &iced_x86::Instruction, mode: Mode) {
    let index = memory_index(iced);
    assert_eq!(ours.memory.is_some(), index.is_some());
    let (Some(memory), Some(index)) = (ours.memory, index) else { return };

    // iced counts 6 bytes for LGDT and LIDT with a 16-bit operand size too; the
    // processor uses 5 of them (APM volume 3, LGDT).
    let size = usize::from(if ours.size == 5 { 6 } else { ours.size });
    assert_eq!(size, iced.memory_size().size());
    let linear = same_operand(&memory, iced, index, mode);
    assert_eq!(ours.linear_address(&Fixed, mode), Some(linear));
}

/// The memory operand `index` of `iced`; its linear address.
fn same_operand(
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

/// The loads, stores, read-modify-writes and string port instructions this crate promises to
/// decode.
fn promised(iced: &iced_x86::Instruction) -> bool {
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

fn check(bytes: &[u8], mode: Mode) -> Result<Instruction, Error> {
    let iced = oracle(bytes, mode);
    let ours = decode(bytes, mode);
    match &ours {
        Ok(ours) => {
            assert!(!iced.is_invalid(), "{ours:?} is invalid");
            assert_eq!(usize::from(ours.len), iced.len());
            same_operation(ours, &iced, mode);
            same_memory(ours, &iced, mode);
        }
        Err(error) => {
            assert!(iced.is_invalid() || !promised(&iced), "{error}: {:?}", iced.code());
        }
    }
    ours
}

fn modes() -> impl Strategy<Value = Mode> {
    select(vec![Mode::Bits16, Mode::Bits32, Mode::Bits64])
}

/// Mostly prefixes and opcodes that mean something here.
fn likely() -> impl Strategy<Value = Vec<u8>> {
    let prefix = select(vec![
        0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3, 0x41, 0x42, 0x44, 0x48,
        0x4F,
    ]);
    let one = (0_u8..=255).prop_map(|opcode| vec![opcode]);
    let two = select(vec![
        0x01, 0x06, 0x08, 0x09, 0x20, 0x22, 0x30, 0x32, 0xA2, 0xA3, 0xAB, 0xB3, 0xBB, 0xBA, 0xB0,
        0xB1, 0xC0, 0xC1, 0xC3,
    ])
    .prop_map(|opcode| vec![0x0F, opcode]);
    let moves = vec![
        0x10, 0x11, 0x28, 0x29, 0x2B, 0x6E, 0x6F, 0x7E, 0x7F, 0xD6, 0xE7, 0xF0, 0x2A, 0x12, 0xF7,
    ];
    let vector = (
        select(moves),
        select(vec![&[0x0F][..], &[0x0F, 0x38], &[0xC5], &[0xC4, 0xE1], &[0xC4, 0xE2], &[0xC4]]),
        any::<bool>(),
        any::<u8>(),
    )
        .prop_map(|(opcode, escape, likely, byte)| {
            // Of the last byte of a VEX prefix most values name a source that no move has.
            let byte = if likely { byte | 0x78 } else { byte };
            let vex = if escape[0] == 0x0F { &[][..] } else { &[byte][..] };
            [escape, vex, &[opcode]].concat()
        });
    let extend = select(vec![0xB6, 0xB7, 0xBE, 0xBF]).prop_map(|opcode| vec![0x0F, opcode]);
    let group =
        select(vec![0x80, 0x81, 0x83, 0xC0, 0xC6, 0xC7, 0xD1, 0xD3, 0xF6, 0xF7, 0xFE, 0xFF])
            .prop_map(|opcode| vec![opcode]);
    (
        vec(prefix, 0..5),
        prop_oneof![3 => one, 1 => two, 1 => extend, 1 => group, 2 => vector],
        vec(any::<u8>(), 16),
    )
        .prop_map(|(prefixes, opcode, tail)| [prefixes, opcode, tail].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn agrees_on_likely_bytes(bytes in likely(), mode in modes()) {
        let _ = check(&bytes, mode);
    }

    #[test]
    fn agrees_on_any_bytes(bytes in vec(any::<u8>(), 0..20), mode in modes()) {
        let _ = check(&bytes, mode);
    }

    #[test]
    fn needs_its_own_bytes_and_no_others(bytes in likely(), mode in modes()) {
        if let Ok(instruction) = decode(&bytes, mode) {
            let len = usize::from(instruction.len);
            prop_assert!((1..=15).contains(&len));
            prop_assert_eq!(decode(&bytes[..len], mode), Ok(instruction));
            for short in 0..len {
                prop_assert_eq!(decode(&bytes[..short], mode), Err(Error::Truncated(short)));
            }
        }
    }
}

/// Every opcode with every ModRM byte, or many, so that nothing rests on chance.
#[test]
fn agrees_on_every_opcode_and_modrm() {
    const ESCAPES: [&[u8]; 8] = [
        &[],
        &[0x0F],
        &[0x0F, 0x38],
        &[0xC5, 0xFA],
        &[0xC5, 0x7D],
        &[0xC4, 0xE1, 0xF9],
        &[0xC4, 0x41, 0x7F],
        &[0xC4, 0xC2, 0x7D],
    ];
    let mut accepted = [0; ESCAPES.len()];
    for mode in [Mode::Bits16, Mode::Bits32, Mode::Bits64] {
        for prefix in
            [&[][..], &[0x66], &[0x67], &[0xF0], &[0xF2], &[0xF3], &[0x48], &[0x4F], &[0x65]]
        {
            for (escape, accepted) in ESCAPES.iter().zip(&mut accepted) {
                // Behind the longer escapes a seventh of the ModRM bytes, others each time.
                let step = if escape.len() < 2 { 1 } else { 7 };
                for both in (0..=0xFFFF_u16).step_by(step) {
                    let (opcode, modrm) = ((both >> 8) as u8, both as u8);
                    let mut bytes = [prefix, escape, &[opcode, modrm]].concat();
                    bytes.extend([0x8D, 0x91, 0xA2, 0xB3, 0xC4, 0xD5, 0xE6, 0xF7]);
                    bytes.resize(24, 0x55);
                    *accepted += usize::from(check(&bytes, mode).is_ok());
                }
            }
        }
    }
    let least = [150_000, 100_000, 50, 400, 400, 120, 120, 12];
    assert!(accepted.iter().zip(least).all(|(found, least)| *found >= least), "{accepted:?}");
}
