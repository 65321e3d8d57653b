//! Compares the decoder with iced-x86 over random bytes: whatever is accepted,
//! iced reads in the same way, and the instructions promised are accepted.

mod memory;
mod operation;

use decode::{Error, Instruction, Mode, Registers, Segment, decode};
use iced_x86::{Decoder, DecoderOptions, Register};
use memory::same_memory;
use operation::{promised, same_operation};
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
