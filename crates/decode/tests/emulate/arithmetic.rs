//! Results and flags, against their definitions.

use crate::machine::{Access, Cpu, Lanes, Recorder, run};
use decode::{Alu, Bit, Instruction, Modify, Op, Places, Register, Shift, Source, emulate_mmio};
use proptest::prelude::*;

const ARITHMETIC: u64 = 0x8D5;

/// CF out of a sum or difference with a carry in, where the operands differ by nothing, one or
/// much.
#[test]
fn a_carry_in_counts_where_operands_are_equal() {
    for (carry, memory, register, sum_carries, difference_borrows) in [
        (0, 5, 5, false, false),
        (1, 5, 5, false, true),
        (1, 6, 5, false, false),
        (1, 5, 6, false, true),
        (0, 0xFFFF_FFFF, 1, true, false),
        (1, 0xFFFF_FFFF, 0, true, false),
        (1, 0xFFFF_FFFE, 0, false, false),
        (1, 0xFFFF_FFFF, 0xFFFF_FFFF, true, true),
        (1, 0, 0xFFFF_FFFF, true, true),
    ] {
        for (opcode, carries) in [(0x11, sum_carries), (0x19, difference_borrows)] {
            let mut cpu = Cpu { rflags: 2 | carry, ..Cpu::default() };
            cpu.gpr[1] = register;
            run(&[opcode, 0x0F], &mut cpu, memory); // adc or sbb [rdi], ecx
            let text = format!("{opcode:#x}: {memory:#x}, {register:#x}, {carry}");
            assert_eq!(cpu.rflags & 1, u64::from(carries), "{text}");
        }
    }
}

/// The flags by their definitions, in wider arithmetic than the crate uses.
fn expected_flags(alu: Alu, left: u64, right: u64, bits: u32, rflags: u64) -> (u64, u64) {
    let wide = |value: u64| i128::from(value & (u64::MAX >> (64 - bits)));
    let signed =
        |value: i128| if value >> (bits - 1) & 1 == 1 { value - (1 << bits) } else { value };
    let (l, r) = (wide(left), wide(right));
    let c = i128::from(rflags & 1);
    let (full, exact, nibble) = match alu {
        Alu::Add => (l + r, signed(l) + signed(r), (l & 15) + (r & 15)),
        Alu::Adc => (l + r + c, signed(l) + signed(r) + c, (l & 15) + (r & 15) + c),
        Alu::Sbb => (l - r - c, signed(l) - signed(r) - c, (l & 15) - (r & 15) - c),
        Alu::Sub | Alu::Cmp => (l - r, signed(l) - signed(r), (l & 15) - (r & 15)),
        Alu::And | Alu::Test => (l & r, signed(l & r), 0),
        Alu::Or => (l | r, signed(l | r), 0),
        Alu::Xor => (l ^ r, signed(l ^ r), 0),
    };
    let result = full & ((1 << bits) - 1);
    let bit = |set: bool, position: u32| u64::from(set) << position;
    let flags = bit(full != result, 0)
        | bit((result & 0xFF).count_ones().is_multiple_of(2), 2)
        | bit(!(0..16).contains(&nibble), 4)
        | bit(result == 0, 6)
        | bit(signed(result) < 0, 7)
        | bit(exact != signed(result), 11);
    (result as u64, flags)
}

const SHIFTS: [Shift; 7] =
    [Shift::Rol, Shift::Ror, Shift::Rcl, Shift::Rcr, Shift::Shl, Shift::Shr, Shift::Sar];

/// A shift, against as many shifts of one place as CL or the immediate says, each by its
/// definition.
fn check_shift(shift: Shift, value: u64, size: u8, (cl, immediate): (u8, bool), rflags: u64) {
    let places = if immediate { Places::Immediate(cl) } else { Places::Cl };
    let op = Op::Modify(Modify::Shift(shift, places));
    let instruction = Instruction { len: 2, op, size, memory: None };
    let mut cpu = Cpu { rflags, ..Cpu::default() };
    cpu.gpr[1] = 0xFF00 | if immediate { 0 } else { u64::from(cl) };
    let mut device = Recorder { value, accesses: Vec::new() };
    emulate_mmio(&instruction, &mut cpu, &mut Lanes::default(), &mut device).unwrap();

    let bits = 8 * u32::from(size);
    let mask = u64::MAX >> (64 - bits);
    let count = u32::from(cl) % if size == 8 { 64 } else { 32 };
    let (mut result, mut carry) = (value & mask, rflags & 1);
    for _ in 0..count {
        let (top, low) = (result >> (bits - 1) & 1, result & 1);
        let (left, right) = (result << 1 & mask, result >> 1);
        (result, carry) = match shift {
            Shift::Rol => (left | top, top),
            Shift::Ror => (right | low << (bits - 1), low),
            Shift::Rcl => (left | carry, top),
            Shift::Rcr => (right | carry << (bits - 1), low),
            Shift::Shl => (left, top),
            Shift::Shr => (right, low),
            Shift::Sar => (right | top << (bits - 1), low),
        };
    }
    assert_eq!(device.accesses, [Access::Load(size), Access::Store(size, result)]);
    let logical = matches!(shift, Shift::Shl | Shift::Shr | Shift::Sar);
    let bit = |set: bool, position: u32| u64::from(set) << position;
    // OF is defined for one place alone, AF never, the others never for rotates.
    let (mut defined, mut flags) = (1, carry);
    if logical {
        defined |= 0xC4;
        flags |= bit((result & 0xFF).count_ones().is_multiple_of(2), 2)
            | bit(result == 0, 6)
            | bit(result >> (bits - 1) == 1, 7);
    }
    if count == 1 {
        let (before, after) = ((value & mask) >> (bits - 1), result >> (bits - 1));
        defined |= 0x800;
        flags |= bit(before != after, 11);
    }
    if count == 0 {
        assert_eq!(cpu.rflags, rflags);
    } else {
        assert_eq!(cpu.rflags & defined, flags);
        let touched = if logical { ARITHMETIC } else { 0x801 };
        assert_eq!(cpu.rflags & !touched, rflags & !touched);
    }
}

#[test]
fn shifts_by_each_number_of_places_are_repeated_shifts_by_one() {
    let numbers = [0x8000_0000_8000_8081, 0x4000_0000_4000_4040, 0x1234_5678_9ABC_DE01];
    for shift in SHIFTS {
        for size in [1, 2, 4, 8] {
            for (value, rflags) in numbers.iter().flat_map(|n| [(*n, 2), (*n, 0xFFFF)]) {
                (0..=65).for_each(|cl| check_shift(shift, value, size, (cl, false), rflags));
                check_shift(shift, value, size, (1, true), rflags);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn flags_and_results_are_those_of_the_definitions(
        left in prop_oneof![any::<u64>(), (0_u64..3), (u64::MAX - 2..=u64::MAX)],
        right in prop_oneof![any::<u64>(), (0_u64..3), (u64::MAX - 2..=u64::MAX)],
        rflags in any::<u64>(),
        size in prop::sample::select(vec![1_u8, 2, 4, 8]),
        alu in prop::sample::select(vec![
            Alu::Add, Alu::Or, Alu::Adc, Alu::Sbb, Alu::And, Alu::Sub, Alu::Xor, Alu::Cmp, Alu::Test,
        ]),
    ) {
        let register = Register { number: 9, high: false };
        let op = Op::AluToMemory(alu, Source::Register(register));
        let instruction = Instruction { len: 2, op, size, memory: None };
        let mut cpu = Cpu { rflags, ..Cpu::default() };
        cpu.gpr[9] = right;
        let mut device = Recorder { value: left, accesses: Vec::new() };
        emulate_mmio(&instruction, &mut cpu, &mut Lanes::default(), &mut device).unwrap();
        let (result, flags) = expected_flags(alu, left, right, 8 * u32::from(size), rflags);
        prop_assert_eq!(cpu.rflags & ARITHMETIC, flags);
        prop_assert_eq!(cpu.rflags & !ARITHMETIC, rflags & !ARITHMETIC);
        let mut expected = vec![Access::Load(size)];
        if !matches!(alu, Alu::Cmp | Alu::Test) {
            expected.push(Access::Store(size, result));
        }
        prop_assert_eq!(device.accesses, expected);
    }

    #[test]
    fn shifts_are_repeated_shifts_by_one(
        value in prop_oneof![any::<u64>(), (0_u64..3), (u64::MAX - 2..=u64::MAX)],
        places in any::<(u8, bool)>(),
        rflags in any::<u64>(),
        size in prop::sample::select(vec![1_u8, 2, 4, 8]),
        shift in prop::sample::select(SHIFTS.to_vec()),
    ) {
        check_shift(shift, value, size, places, rflags);
    }

    #[test]
    fn incrementing_is_adding_one_but_for_the_carry(
        value in prop_oneof![any::<u64>(), (0_u64..3), (u64::MAX - 2..=u64::MAX)],
        rflags in any::<u64>(),
        size in prop::sample::select(vec![1_u8, 2, 4, 8]),
        modify in prop::sample::select(vec![
            Modify::Inc, Modify::Dec, Modify::Neg,
            Modify::Bit(Bit::Bts, Source::Immediate(5)), Modify::Bit(Bit::Bt, Source::Immediate(5)),
        ]),
    ) {
        let instruction = Instruction { len: 2, op: Op::Modify(modify), size, memory: None };
        let mut cpu = Cpu { rflags, ..Cpu::default() };
        let mut device = Recorder { value, accesses: Vec::new() };
        emulate_mmio(&instruction, &mut cpu, &mut Lanes::default(), &mut device).unwrap();
        let bits = 8 * u32::from(size);
        let carry = |(result, flags): (u64, u64), carry| (result, flags & !1 | carry);
        let rest = rflags & ARITHMETIC & !1;
        let value = value & (u64::MAX >> (64 - bits));
        let (result, flags) = match modify {
            Modify::Inc => carry(expected_flags(Alu::Add, value, 1, bits, 0), rflags & 1),
            Modify::Dec => carry(expected_flags(Alu::Sub, value, 1, bits, 0), rflags & 1),
            Modify::Neg => expected_flags(Alu::Sub, 0, value, bits, 0),
            _ => (value | 0x20, rest | value >> 5 & 1),
        };
        let mut expected = vec![Access::Load(size)];
        if modify != Modify::Bit(Bit::Bt, Source::Immediate(5)) {
            expected.push(Access::Store(size, result));
        }
        prop_assert_eq!(device.accesses, expected);
        prop_assert_eq!(cpu.rflags & ARITHMETIC, flags);
        prop_assert_eq!(cpu.rflags & !ARITHMETIC, rflags & !ARITHMETIC);
    }
}
