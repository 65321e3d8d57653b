//! Prefixes, lengths, operands, refusals.

use crate::machine::{Cpu, Lanes, Recorder};
use decode::{Error, Instruction, Mode, Op, Segment, decode, emulate_mmio};
use proptest::prelude::*;

#[test]
fn refusals_say_why() {
    let refused = |bytes: &[u8]| decode(bytes, Mode::Bits64).unwrap_err();
    assert_eq!(refused(&[]), Error::Truncated(0));
    assert_eq!(refused(&[0x8B, 0x87, 1, 2]), Error::Truncated(4));
    assert_eq!(refused(&[0x66; 15]), Error::TooLong);
    assert_eq!(refused(&[0x66; 14]), Error::Truncated(14));
    let store = [0xC7, 0x07, 1, 2]; // mov word [rdi], 0x0201
    let fits = [&[0x66; 11], &store[..]].concat();
    assert_eq!(decode(&fits, Mode::Bits64).map(|instruction| instruction.len), Ok(15));
    assert_eq!(refused(&[&[0x66; 12], &store[..]].concat()), Error::TooLong);
    for compare in [0xA6, 0xA7, 0xAE, 0xAF] {
        assert_eq!(refused(&[0xF3, compare]), Error::StringComparison(compare.into()));
    }
    assert_eq!(refused(&[0x89, 0xC0]), Error::RegisterForm(0x89));
    assert_eq!(refused(&[0xF0, 0x89, 0x07]), Error::Lock(0x89));
    assert_eq!(refused(&[0xF0, 0x39, 0x07]), Error::Lock(0x39));
    assert_eq!(refused(&[0xF0, 0xD1, 0x27]), Error::Lock(0xD1)); // lock shl dword [rdi], 1
    assert_eq!(refused(&[0xF0, 0x0F, 0xA3, 0x07]), Error::Lock(0x0FA3)); // lock bt [rdi], eax
    assert_eq!(refused(&[0xF0, 0x0F, 0xC3, 0x07]), Error::Lock(0x0FC3)); // lock movnti [rdi], eax
    assert_eq!(refused(&[0xF0, 0x0F, 0x22, 0xD8]), Error::Lock(0x0F22)); // lock mov cr3, rax
    assert_eq!(refused(&[0x66, 0x0F, 0xC3, 0x07]), Error::Unsupported(0x0FC3));
    assert_eq!(refused(&[0x0F, 0x6F, 0x07]), Error::Unsupported(0x0F6F)); // movq mm0, [rdi]
    assert_eq!(refused(&[0x0F, 0xBA, 0x17, 1]), Error::Unsupported(0x0FBA)); // no bit operation
    assert_eq!(refused(&[0xFF, 0x17]), Error::Unsupported(0xFF)); // call [rdi]
    assert_eq!(refused(&[0x66, 0x0F, 0x38, 0xF1, 0x07]), Error::Unsupported(0x0F_38F1)); // movbe
    // VEX with a second source, with a prefix before it, of another map; VMOVQ of 256 bits.
    assert_eq!(refused(&[0xC5, 0xF2, 0x6F, 0x07]), Error::Unsupported(0xC5));
    for prefix in [0x66, 0xF2, 0xF3, 0xF0, 0x40] {
        assert_eq!(refused(&[prefix, 0xC5, 0xFA, 0x6F, 0x07]), Error::Unsupported(0xC5));
    }
    assert_eq!(refused(&[0xC4, 0xE3, 0x79, 0x6F, 0x07]), Error::Unsupported(0xC4));
    assert_eq!(refused(&[0xC5, 0xFE, 0x7E, 0x07]), Error::Unsupported(0x0F7E));
    // Outside 64-bit mode an operand in memory makes it LES.
    assert_eq!(decode(&[0xC4, 0x07], Mode::Bits32), Err(Error::Unsupported(0xC4)));
    assert_eq!(refused(&[0x0F, 0x0B]), Error::Unsupported(0x0F0B));
    assert_eq!(
        refused(&[0x0F, 0x20, 0xC8]).to_string(),
        "opcode 0xf20 isn't one of the instructions that can be emulated"
    );
}

#[test]
fn privileged_instructions_have_their_length_with_prefixes() {
    for (bytes, op) in [
        (&[0x0F, 0xA2][..], Op::Cpuid),
        (&[0x66, 0x0F, 0xA2], Op::Cpuid),
        (&[0x0F, 0x30], Op::Wrmsr),
        (&[0x2E, 0x48, 0x0F, 0x32], Op::Rdmsr),
        (&[0xF4], Op::Hlt),
        (&[0x0F, 0x01, 0xD9], Op::Vmmcall),
        (&[0x0F, 0x01, 0xD1], Op::Xsetbv),
        (&[0x66, 0xED], Op::In),
        (&[0xE6, 0x80], Op::Out),
        (&[0x44, 0x0F, 0x22, 0xC0], Op::WriteCr { cr: 8, from: 0 }),
        (&[0xF0, 0x0F, 0x22, 0xC3], Op::WriteCr { cr: 8, from: 3 }),
        (&[0xF0, 0x41, 0x0F, 0x20, 0xC0], Op::ReadCr { cr: 8, to: 8 }),
        (&[0x0F, 0x23, 0xC0], Op::WriteDr { dr: 0, from: 0 }),
        (&[0x0F, 0x23, 0xF9], Op::WriteDr { dr: 7, from: 1 }),
        (&[0x41, 0x0F, 0x20, 0xC7], Op::ReadCr { cr: 0, to: 15 }),
        (&[0x41, 0x0F, 0x23, 0xFF], Op::WriteDr { dr: 7, from: 15 }),
        (&[0x0F, 0x06], Op::Clts),
        (&[0x0F, 0x08], Op::Invd),
        (&[0x0F, 0x09], Op::Wbinvd),
    ] {
        let Instruction { len, op: decoded, memory, .. } = decode(bytes, Mode::Bits64).unwrap();
        assert_eq!((usize::from(len), decoded, memory), (bytes.len(), op, None));
    }
    let mut cpu = Cpu::default();
    let mut device = Recorder { value: 0, accesses: Vec::new() };
    let cpuid = decode(&[0x0F, 0xA2], Mode::Bits64).unwrap();
    assert_eq!(
        emulate_mmio(&cpuid, &mut cpu, &mut Lanes::default(), &mut device),
        Err(Error::NotMemoryAccess)
    );
    assert_eq!(device.accesses, []);
}

#[test]
fn string_port_instructions_have_the_sizes_of_their_prefixes() {
    use Mode::{Bits16, Bits32, Bits64};
    let (ins, outs) = (Op::Ins { repeat: false }, Op::Outs { repeat: false });
    let (rep_ins, rep_outs) = (Op::Ins { repeat: true }, Op::Outs { repeat: true });
    for (bytes, mode, op, size, segment, address_size) in [
        (&[0x6C][..], Bits64, ins, 1, Segment::Es, 8),
        (&[0x6D], Bits64, ins, 4, Segment::Es, 8),
        (&[0x66, 0x6D], Bits64, ins, 2, Segment::Es, 8),
        (&[0x48, 0x6D], Bits64, ins, 4, Segment::Es, 8),
        (&[0x64, 0xF3, 0x67, 0x6C], Bits64, rep_ins, 1, Segment::Es, 4),
        (&[0x67, 0x6D], Bits32, ins, 4, Segment::Es, 2),
        (&[0x6D], Bits16, ins, 2, Segment::Es, 2),
        (&[0x6E], Bits64, outs, 1, Segment::Ds, 8),
        (&[0xF3, 0x66, 0x6F], Bits64, rep_outs, 2, Segment::Ds, 8),
        (&[0xF2, 0x6F], Bits64, rep_outs, 4, Segment::Ds, 8),
        (&[0x65, 0x6E], Bits64, outs, 1, Segment::Gs, 8),
        (&[0x36, 0x6F], Bits32, outs, 4, Segment::Ss, 4),
        (&[0x66, 0x67, 0x6F], Bits16, outs, 4, Segment::Ds, 4),
    ] {
        let instruction = decode(bytes, mode).unwrap();
        let memory = instruction.memory.unwrap();
        let base = if matches!(op, Op::Ins { .. }) { 7 } else { 6 };
        assert_eq!((usize::from(instruction.len), instruction.op), (bytes.len(), op), "{bytes:x?}");
        assert_eq!((instruction.size, memory.segment), (size, segment), "{bytes:x?}");
        assert_eq!((memory.base, memory.index, memory.displacement), (Some(base), None, 0));
        assert_eq!(memory.address_size, address_size, "{bytes:x?}");
    }
    assert_eq!(decode(&[0xF0, 0x6C], Bits64), Err(Error::Lock(0x6C)));
}

/// Group 7 (APM volume 3, appendix A.2): `reg` of the ModRM byte says which, where the operand is
/// in memory. Number 5 isn't among what exits.
#[test]
fn a_group_of_system_instructions_is_told_apart_by_reg() {
    let ops = [
        (0, Op::Sgdt, 10),
        (1, Op::Sidt, 10),
        (2, Op::Lgdt, 10),
        (3, Op::Lidt, 10),
        (6, Op::Lmsw(None), 2),
        (7, Op::Invlpg, 0),
    ];
    for (reg, op, size) in ops {
        let found = decode(&[0x0F, 0x01, reg << 3 | 3], Mode::Bits64).unwrap();
        assert_eq!((found.len, found.op, found.size), (3, op, size));
        assert_eq!(found.memory.unwrap().base, Some(3), "{op:?}");
    }
    for reg in [4, 5] {
        let refused = decode(&[0x0F, 0x01, reg << 3 | 3], Mode::Bits64);
        assert_eq!(refused, Err(Error::Unsupported(0x0F01)), "{reg}");
    }
}

#[test]
fn descriptor_tables_have_the_size_of_their_mode() {
    let size = |bytes: &[u8], mode| decode(bytes, mode).unwrap().size;
    assert_eq!(size(&[0x0F, 0x01, 0x17], Mode::Bits64), 10);
    assert_eq!(size(&[0x66, 0x0F, 0x01, 0x17], Mode::Bits64), 10);
    assert_eq!(size(&[0x0F, 0x01, 0x17], Mode::Bits32), 6);
    assert_eq!(size(&[0x66, 0x0F, 0x01, 0x17], Mode::Bits32), 5);
    assert_eq!(size(&[0x0F, 0x01, 0x1F], Mode::Bits16), 5);
    assert_eq!(size(&[0x0F, 0x01, 0x07], Mode::Bits16), 6);
}

#[test]
fn segments_count_where_the_mode_says() {
    let mut cpu = Cpu::default();
    (cpu.gpr[5], cpu.gpr[7]) = (0x2000, 0x3000);
    let linear =
        |bytes: &[u8], mode| decode(bytes, mode).unwrap().linear_address(&cpu, mode).unwrap();
    assert_eq!(linear(&[0x8B, 0x07], Mode::Bits64), 0x3000);
    assert_eq!(linear(&[0x36, 0x8B, 0x07], Mode::Bits64), 0x3000);
    assert_eq!(linear(&[0x65, 0x2E, 0x8B, 0x07], Mode::Bits64), 0x50_3000);
    assert_eq!(linear(&[0x8B, 0x07], Mode::Bits32), 0x30_3000);
    assert_eq!(linear(&[0x8B, 0x45, 0xFF], Mode::Bits32), 0x20_1FFF); // SS by default
    assert_eq!(linear(&[0x67, 0x8B, 0x00], Mode::Bits32), 0x30_0000 + 0xEF10); // [bx+si] wraps
    assert_eq!(linear(&[0x8B, 0x05, 0xFA, 0xFF, 0xFF, 0xFF], Mode::Bits64), 0x1000);
}

#[test]
fn what_reads_and_writes_memory_says_so() {
    for (bytes, loads, stores) in [
        (&[0x8B, 0x07][..], true, false),
        (&[0x89, 0x07], false, true),
        (&[0xC7, 0x07, 1, 0, 0, 0], false, true),
        (&[0x01, 0x07], true, true),
        (&[0x39, 0x07], true, false),
        (&[0x03, 0x07], true, false),
        (&[0xFF, 0x07], true, true),
        (&[0x0F, 0xA3, 0x0F], true, false),
        (&[0x0F, 0xAB, 0x0F], true, true),
        (&[0x87, 0x07], true, true),
        (&[0x0F, 0xC1, 0x07], true, true),
        (&[0x0F, 0xB1, 0x07], true, true),
        (&[0x0F, 0x10, 0x07], true, false),
        (&[0x0F, 0x11, 0x07], false, true),
        (&[0x0F, 0xA2], false, false),
    ] {
        let op = decode(bytes, Mode::Bits64).unwrap().op;
        assert_eq!((op.loads(), op.stores()), (loads, stores), "{bytes:x?}");
    }
}

/// APM volume 3, BT: the index is signed, and leads to the operand's neighbours.
#[test]
fn a_bits_index_adds_to_the_address() {
    let at = |bytes: &[u8], index: u64| {
        let mut cpu = Cpu::default();
        (cpu.gpr[1], cpu.gpr[7]) = (index, 0x3000);
        decode(bytes, Mode::Bits64).unwrap().linear_address(&cpu, Mode::Bits64)
    };
    for (bytes, size) in [
        (&[0x66, 0x0F, 0xAB, 0x0F][..], 2),
        (&[0x0F, 0xAB, 0x0F], 4),
        (&[0x48, 0x0F, 0xAB, 0x0F], 8),
    ] {
        for (index, operands) in [(0i64, 0i64), (1, 1), (3, 3), (-1, -1), (-3, -3)] {
            let bits = 8 * size;
            for bit in [0, bits - 1] {
                let expected = (0x3000 + operands * size) as u64;
                let found = at(bytes, (index * bits + bit) as u64);
                assert_eq!(found, Some(expected), "{bytes:x?}, {index} * {bits} + {bit}");
            }
        }
    }
    // An immediate index stays in the operand.
    assert_eq!(at(&[0x0F, 0xBA, 0x2F, 0xFF], 0), Some(0x3000));
    assert_eq!(at(&[0x01, 0x0F], 100), Some(0x3000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn no_bytes_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..24),
        gpr in any::<[u64; 16]>(),
        value in any::<u64>(),
    ) {
        for mode in [Mode::Bits16, Mode::Bits32, Mode::Bits64] {
            if let Ok(instruction) = decode(&bytes, mode) {
                let mut cpu = Cpu { gpr, rflags: 2 };
                let mut device = Recorder { value, accesses: Vec::new() };
                instruction.linear_address(&cpu, mode);
                let done = emulate_mmio(&instruction, &mut cpu, &mut Lanes::default(), &mut device);
                prop_assert_eq!(done.is_ok(), !device.accesses.is_empty());
            }
        }
    }
}
