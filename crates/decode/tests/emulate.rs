//! Prefixes, refusals, and what performing an instruction does to registers,
//! flags and the device.

use decode::{
    Alu, Device, Error, Instruction, Mode, Op, Register, Registers, Segment, Source, decode,
    emulate_mmio,
};
use proptest::prelude::*;

const ARITHMETIC: u64 = 0x8D5;

struct Cpu {
    gpr: [u64; 16],
    rflags: u64,
}

impl Default for Cpu {
    fn default() -> Self {
        Self { gpr: [0x1122_3344_5566_7788; 16], rflags: 2 }
    }
}

impl Registers for Cpu {
    fn gpr(&self, number: u8) -> u64 {
        self.gpr[usize::from(number)]
    }
    fn set_gpr(&mut self, number: u8, value: u64) {
        self.gpr[usize::from(number)] = value;
    }
    fn rflags(&self) -> u64 {
        self.rflags
    }
    fn set_rflags(&mut self, value: u64) {
        self.rflags = value;
    }
    fn rip(&self) -> u64 {
        0x1000
    }
    fn segment_base(&self, segment: Segment) -> u64 {
        0x10_0000 * segment as u64
    }
}

#[derive(Debug, PartialEq)]
enum Access {
    Load(u8),
    Store(u8, u64),
}

/// One register that remembers how it was used. Loads return noise above their size.
struct Recorder {
    value: u64,
    accesses: Vec<Access>,
}

impl Device for Recorder {
    fn load(&mut self, size: u8) -> u64 {
        self.accesses.push(Access::Load(size));
        self.value
    }
    fn store(&mut self, size: u8, value: u64) {
        self.accesses.push(Access::Store(size, value));
    }
}

fn run(bytes: &[u8], cpu: &mut Cpu, value: u64) -> Vec<Access> {
    let instruction = decode(bytes, Mode::Bits64).unwrap();
    assert_eq!(usize::from(instruction.len), bytes.len());
    let mut device = Recorder { value, accesses: Vec::new() };
    emulate_mmio(&instruction, cpu, &mut device).unwrap();
    device.accesses
}

#[test]
fn loads_fill_registers_as_their_size_says() {
    let value = 0xF1F2_F3F4_F5F6_F7F8;
    for (bytes, register, expected, size) in [
        (&[0x8B, 0x07][..], 0, 0xF5F6_F7F8, 4), // mov eax, [rdi]
        (&[0x48, 0x8B, 0x07], 0, value, 8),     // mov rax, [rdi]
        (&[0x66, 0x8B, 0x07], 0, 0x1122_3344_5566_F7F8, 2), // mov ax, [rdi]
        (&[0x8A, 0x07], 0, 0x1122_3344_5566_77F8, 1), // mov al, [rdi]
        (&[0x8A, 0x27], 0, 0x1122_3344_5566_F888, 1), // mov ah, [rdi]
        (&[0x40, 0x8A, 0x27], 4, 0x1122_3344_5566_77F8, 1), // mov spl, [rdi]
        (&[0x44, 0x8B, 0x07], 8, 0xF5F6_F7F8, 4), // mov r8d, [rdi]
        (&[0x0F, 0xB6, 0x07], 0, 0xF8, 1),      // movzx eax, byte [rdi]
        (&[0x66, 0x0F, 0xB6, 0x07], 0, 0x1122_3344_5566_00F8, 1), // movzx ax, byte [rdi]
        (&[0x0F, 0xB7, 0x07], 0, 0xF7F8, 2),    // movzx eax, word [rdi]
        (&[0x0F, 0xBE, 0x07], 0, 0xFFFF_FFF8, 1), // movsx eax, byte [rdi]
        (&[0x48, 0x0F, 0xBF, 0x07], 0, 0xFFFF_FFFF_FFFF_F7F8, 2), // movsx rax, word [rdi]
        (&[0x48, 0x63, 0x07], 0, 0xFFFF_FFFF_F5F6_F7F8, 4), // movsxd rax, dword [rdi]
        (&[0xA0, 0, 0, 0, 0xFE, 0, 0, 0, 0], 0, 0x1122_3344_5566_77F8, 1), // mov al, [moffs]
    ] {
        let mut cpu = Cpu::default();
        assert_eq!(run(bytes, &mut cpu, value), [Access::Load(size)], "{bytes:x?}");
        assert_eq!(cpu.gpr[register], expected, "{bytes:x?}");
        assert_eq!(cpu.rflags, 2);
    }
}

#[test]
fn stores_send_the_operand_alone() {
    for (bytes, size, value) in [
        (&[0x89, 0x07][..], 4, 0x5566_7788),             // mov [rdi], eax
        (&[0x48, 0x89, 0x07], 8, 0x1122_3344_5566_7788), // mov [rdi], rax
        (&[0x66, 0x89, 0x07], 2, 0x7788),                // mov [rdi], ax
        (&[0x88, 0x27], 1, 0x77),                        // mov [rdi], ah
        (&[0x40, 0x88, 0x27], 1, 0x88),                  // mov [rdi], spl
        (&[0xC6, 0x07, 0x9C], 1, 0x9C),                  // mov byte [rdi], 0x9c
        (&[0x66, 0xC7, 0x07, 0x01, 0x9C], 2, 0x9C01),    // mov word [rdi], 0x9c01
        (&[0xC7, 0x07, 1, 2, 3, 0xF4], 4, 0xF403_0201),  // mov dword [rdi], 0xf4030201
        (&[0x48, 0xC7, 0x07, 1, 2, 3, 0xF4], 8, 0xFFFF_FFFF_F403_0201), // mov qword [rdi], …
        (&[0xA3, 0, 0, 0, 0xFE, 0, 0, 0, 0], 4, 0x5566_7788), // mov [moffs], eax
    ] {
        let mut cpu = Cpu::default();
        assert_eq!(run(bytes, &mut cpu, 0), [Access::Store(size, value)], "{bytes:x?}");
        assert_eq!(cpu.gpr, Cpu::default().gpr);
    }
}

#[test]
fn read_modify_write_loads_once_and_stores_once() {
    let mut cpu = Cpu::default();
    // lock or dword [rdi], 1
    let accesses = run(&[0xF0, 0x83, 0x0F, 0x01], &mut cpu, 0xFFFF_FFFF_8000_0000);
    assert_eq!(accesses, [Access::Load(4), Access::Store(4, 0x8000_0001)]);
    assert_eq!(cpu.rflags, 2 | 0x80); // SF; an odd number of ones in the low byte

    // xchg [rdi], bh
    let accesses = run(&[0x86, 0x3F], &mut cpu, 0xAABB);
    assert_eq!(accesses, [Access::Load(1), Access::Store(1, 0x77)]);
    assert_eq!(cpu.gpr[3], 0x1122_3344_5566_BB88);

    // test dword [rdi], 0x55667788 and cmp eax, [rdi]: flags alone
    let accesses = run(&[0xF7, 0x07, 0x88, 0x77, 0x66, 0x55], &mut cpu, 0);
    assert_eq!(accesses, [Access::Load(4)]);
    assert_eq!(cpu.rflags, 2 | 0x44); // ZF, PF
    let accesses = run(&[0x3B, 0x07], &mut cpu, 0x5566_7789);
    assert_eq!(accesses, [Access::Load(4)]);
    assert_eq!(cpu.rflags, 2 | 0x95); // CF, PF, AF, SF
    assert_eq!(cpu.gpr[0], 0x1122_3344_5566_7788);

    // sub eax, [rdi]: the register changes, the device doesn't
    let accesses = run(&[0x2B, 0x07], &mut cpu, 0x5566_7788);
    assert_eq!(accesses, [Access::Load(4)]);
    assert_eq!(cpu.gpr[0], 0);
}

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
    assert_eq!(refused(&[0xF3, 0xAB]), Error::StringInstruction(0xAB));
    assert_eq!(refused(&[0x89, 0xC0]), Error::RegisterForm(0x89));
    assert_eq!(refused(&[0xF0, 0x89, 0x07]), Error::Lock(0x89));
    assert_eq!(refused(&[0xF0, 0x39, 0x07]), Error::Lock(0x39));
    assert_eq!(refused(&[0x11, 0x07]), Error::Unsupported(0x11));
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
        (&[0x41, 0x0F, 0x20, 0xC7], Op::ReadCr { cr: 0, to: 15 }),
        (&[0x41, 0x0F, 0x23, 0xFF], Op::WriteDr { dr: 7, from: 15 }),
        (&[0x0F, 0x06], Op::Clts),
    ] {
        let Instruction { len, op: decoded, memory, .. } = decode(bytes, Mode::Bits64).unwrap();
        assert_eq!((usize::from(len), decoded, memory), (bytes.len(), op, None));
    }
    let mut cpu = Cpu::default();
    let mut device = Recorder { value: 0, accesses: Vec::new() };
    let cpuid = decode(&[0x0F, 0xA2], Mode::Bits64).unwrap();
    assert_eq!(emulate_mmio(&cpuid, &mut cpu, &mut device), Err(Error::NotMemoryAccess));
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

/// The flags by their definitions, in wider arithmetic than the crate uses.
fn expected_flags(alu: Alu, left: u64, right: u64, bits: u32) -> (u64, u64) {
    let wide = |value: u64| i128::from(value & (u64::MAX >> (64 - bits)));
    let signed =
        |value: i128| if value >> (bits - 1) & 1 == 1 { value - (1 << bits) } else { value };
    let (l, r) = (wide(left), wide(right));
    let (full, exact, nibble) = match alu {
        Alu::Add => (l + r, signed(l) + signed(r), (l & 15) + (r & 15)),
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn flags_and_results_are_those_of_the_definitions(
        left in prop_oneof![any::<u64>(), (0_u64..3), (u64::MAX - 2..=u64::MAX)],
        right in prop_oneof![any::<u64>(), (0_u64..3), (u64::MAX - 2..=u64::MAX)],
        rflags in any::<u64>(),
        size in prop::sample::select(vec![1_u8, 2, 4, 8]),
        alu in prop::sample::select(vec![
            Alu::Add, Alu::Or, Alu::And, Alu::Sub, Alu::Xor, Alu::Cmp, Alu::Test,
        ]),
    ) {
        let register = Register { number: 9, high: false };
        let op = Op::AluToMemory(alu, Source::Register(register));
        let instruction = Instruction { len: 2, op, size, memory: None };
        let mut cpu = Cpu { rflags, ..Cpu::default() };
        cpu.gpr[9] = right;
        let mut device = Recorder { value: left, accesses: Vec::new() };
        emulate_mmio(&instruction, &mut cpu, &mut device).unwrap();
        let (result, flags) = expected_flags(alu, left, right, 8 * u32::from(size));
        prop_assert_eq!(cpu.rflags & ARITHMETIC, flags);
        prop_assert_eq!(cpu.rflags & !ARITHMETIC, rflags & !ARITHMETIC);
        let mut expected = vec![Access::Load(size)];
        if !matches!(alu, Alu::Cmp | Alu::Test) {
            expected.push(Access::Store(size, result));
        }
        prop_assert_eq!(device.accesses, expected);
    }

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
                let done = emulate_mmio(&instruction, &mut cpu, &mut device);
                prop_assert_eq!(done.is_ok(), !device.accesses.is_empty());
            }
        }
    }
}
