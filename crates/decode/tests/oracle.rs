//! Compares the decoder with iced-x86 over random bytes: whatever is accepted,
//! iced reads in the same way, and the instructions promised are accepted.

use decode::{Alu, Error, Instruction, Mode, Op, Registers, Segment, Source, decode};
use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic, OpKind, Register};
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

fn oracle(bytes: &[u8], mode: Mode) -> iced_x86::Instruction {
    Decoder::with_ip(bits(mode), bytes, RIP, DecoderOptions::NONE).decode()
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
        Alu::And => Mnemonic::And,
        Alu::Sub => Mnemonic::Sub,
        Alu::Xor => Mnemonic::Xor,
        Alu::Cmp => Mnemonic::Cmp,
        Alu::Test => Mnemonic::Test,
    }
}

/// The operation and its register and immediate operands.
fn same_operation(ours: &Instruction, iced: &iced_x86::Instruction) {
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
            &[M::Mov]
        }
        Op::AluToMemory(alu, source) => {
            same_source(iced, source, ours.size);
            &[mnemonic(alu)]
        }
        Op::AluToRegister(alu, register) => {
            same_register(iced, 0, register, ours.size);
            &[mnemonic(alu)]
        }
        Op::Exchange(register) => {
            same_register(iced, 1, register, ours.size);
            &[M::Xchg]
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

/// Segment and base of operand `index`, if it is the memory of INS or OUTS, and the size of
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
    assert_eq!(ours.linear_address(&Fixed, mode), Some(theirs));
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
    ) || format!("{:?}", iced.code()).ends_with("imm8_82");
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
    );
    name && general && !aliases && memory_index(iced).is_some()
}

fn check(bytes: &[u8], mode: Mode) -> Result<Instruction, Error> {
    let iced = oracle(bytes, mode);
    let ours = decode(bytes, mode);
    match &ours {
        Ok(ours) => {
            assert!(!iced.is_invalid(), "{ours:?} is invalid");
            assert_eq!(usize::from(ours.len), iced.len());
            same_operation(ours, &iced);
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
    let two = select(vec![0x01, 0x06, 0x08, 0x09, 0x20, 0x22, 0x30, 0x32, 0xA2])
        .prop_map(|opcode| vec![0x0F, opcode]);
    let extend = select(vec![0xB6, 0xB7, 0xBE, 0xBF]).prop_map(|opcode| vec![0x0F, opcode]);
    let group =
        select(vec![0x80, 0x81, 0x83, 0xC6, 0xC7, 0xF6, 0xF7]).prop_map(|opcode| vec![opcode]);
    (
        vec(prefix, 0..5),
        prop_oneof![3 => one, 1 => two, 1 => extend, 1 => group],
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

/// Every opcode with every ModRM byte, so that nothing rests on chance.
#[test]
fn agrees_on_every_opcode_and_modrm() {
    let mut accepted = 0;
    for mode in [Mode::Bits16, Mode::Bits32, Mode::Bits64] {
        for prefix in [&[][..], &[0x66], &[0x67], &[0xF0], &[0xF3], &[0x48], &[0x4F], &[0x65]] {
            for opcode in 0..=0x1FF_u16 {
                for modrm in 0..=255 {
                    let mut bytes = prefix.to_vec();
                    if opcode > 0xFF {
                        bytes.push(0x0F);
                    }
                    bytes.extend([opcode as u8, modrm]);
                    bytes.extend([0x8D, 0x91, 0xA2, 0xB3, 0xC4, 0xD5, 0xE6, 0xF7]);
                    bytes.resize(24, 0x55);
                    accepted += usize::from(check(&bytes, mode).is_ok());
                }
            }
        }
    }
    assert!(accepted > 100_000, "only {accepted} accepted");
}
