//! Prefixes, refusals, and what performing an instruction does to registers,
//! flags and the device.

use decode::{
    Alu, Bit, Device, Error, Instruction, Mode, Modify, Op, Places, Register, Registers, Segment,
    Shift, Source, Vectors, decode, emulate_mmio,
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

struct Lanes {
    vectors: [[u64; 4]; 16],
    /// How many bytes of each can be used: 0, 16 or 32.
    width: u8,
}

impl Default for Lanes {
    /// Each register's first lane has its number in the highest byte.
    fn default() -> Self {
        let lanes = [0x0002_0304_0506_0708, 0x1112, 0x2122, 0x3132];
        let vectors = core::array::from_fn(|n| lanes.map(|lane| lane | (n as u64) << 56));
        Self { vectors, width: 32 }
    }
}

impl Vectors for Lanes {
    fn usable(&self, vex: bool) -> bool {
        self.width >= if vex { 32 } else { 16 }
    }
    fn read(&self, number: u8, vex: bool) -> [u64; 4] {
        assert!(self.usable(vex));
        let [a, b, c, d] = self.vectors[usize::from(number)];
        if vex { [a, b, c, d] } else { [a, b, 0, 0] }
    }
    fn write(&mut self, number: u8, value: [u64; 4], vex: bool) {
        assert!(self.usable(vex));
        let lanes = if vex { 4 } else { 2 };
        self.vectors[usize::from(number)][..lanes].copy_from_slice(&value[..lanes]);
    }
}

#[derive(Debug, PartialEq)]
enum Access {
    Load(u8),
    Store(u8, u64),
    LoadVector(u8),
    StoreVector(u8, [u64; 4]),
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
    fn load_vector(&mut self, size: u8) -> [u64; 4] {
        self.accesses.push(Access::LoadVector(size));
        [self.value, self.value + 1, self.value + 2, self.value + 3]
    }
    fn store_vector(&mut self, size: u8, value: [u64; 4]) {
        self.accesses.push(Access::StoreVector(size, value));
    }
}

fn run(bytes: &[u8], cpu: &mut Cpu, value: u64) -> Vec<Access> {
    let mut lanes = Lanes::default();
    let accesses = run_vectors(bytes, cpu, &mut lanes, value);
    assert!(lanes.vectors == Lanes::default().vectors);
    accesses
}

fn run_vectors(bytes: &[u8], cpu: &mut Cpu, lanes: &mut Lanes, value: u64) -> Vec<Access> {
    let instruction = decode(bytes, Mode::Bits64).unwrap();
    assert_eq!(usize::from(instruction.len), bytes.len());
    let mut device = Recorder { value, accesses: Vec::new() };
    emulate_mmio(&instruction, cpu, lanes, &mut device).unwrap();
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
        (&[0x0F, 0xC3, 0x07], 4, 0x5566_7788),           // movnti [rdi], eax
        (&[0x4C, 0x0F, 0xC3, 0x07], 8, 0x1122_3344_5566_7788), // movnti [rdi], r8
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
fn other_read_modify_writes_leave_what_the_processor_leaves() {
    const CF: u64 = 1;
    let mut cpu = Cpu { rflags: 2 | CF, ..Cpu::default() };
    // lock inc dword [rdi]: CF stays
    assert_eq!(
        run(&[0xF0, 0xFF, 0x07], &mut cpu, 0xFFFF_FFFF),
        [Access::Load(4), Access::Store(4, 0)]
    );
    assert_eq!(cpu.rflags, 2 | CF | 0x54); // ZF, AF, PF
    // dec byte [rdi]: overflow
    assert_eq!(run(&[0xFE, 0x0F], &mut cpu, 0x80), [Access::Load(1), Access::Store(1, 0x7F)]);
    assert_eq!(cpu.rflags, 2 | CF | 0x810); // OF, AF
    // not word [rdi]: no flags
    cpu.rflags = 2 | 0x8D5;
    assert_eq!(
        run(&[0x66, 0xF7, 0x17], &mut cpu, 0xFF00),
        [Access::Load(2), Access::Store(2, 0xFF)]
    );
    assert_eq!(cpu.rflags, 2 | 0x8D5);
    // neg qword [rdi], of 1 and of 0
    assert_eq!(
        run(&[0x48, 0xF7, 0x1F], &mut cpu, 1),
        [Access::Load(8), Access::Store(8, u64::MAX)]
    );
    assert_eq!(cpu.rflags, 2 | CF | 0x94); // SF, AF, PF
    run(&[0x48, 0xF7, 0x1F], &mut cpu, 0);
    assert_eq!(cpu.rflags, 2 | 0x44);

    // lock xadd [rdi], ebx
    assert_eq!(
        run(&[0xF0, 0x0F, 0xC1, 0x1F], &mut cpu, 0xAABB_CC77),
        [Access::Load(4), Access::Store(4, 0x0022_43FF)]
    );
    assert_eq!((cpu.gpr[3], cpu.rflags), (0xAABB_CC77, 2 | CF | 4));

    // lock cmpxchg [rdi], ecx: equal, then not
    assert_eq!(
        run(&[0xF0, 0x0F, 0xB1, 0x0F], &mut cpu, 0x5566_7788),
        [Access::Load(4), Access::Store(4, 0x5566_7788)]
    );
    cpu.gpr[1] = 7;
    assert_eq!(
        run(&[0xF0, 0x0F, 0xB1, 0x0F], &mut cpu, 0x5566_7788),
        [Access::Load(4), Access::Store(4, 7)]
    );
    assert_eq!((cpu.gpr[0], cpu.rflags), (0x1122_3344_5566_7788, 2 | 0x44));
    assert_eq!(
        run(&[0xF0, 0x0F, 0xB1, 0x0F], &mut cpu, 0x5566_7789),
        [Access::Load(4), Access::Store(4, 0x5566_7789)]
    );
    assert_eq!((cpu.gpr[0], cpu.rflags), (0x5566_7789, 2 | CF | 0x94));
    // cmpxchg [rdi], cl: bytes
    assert_eq!(run(&[0x0F, 0xB0, 0x0F], &mut cpu, 0x89), [Access::Load(1), Access::Store(1, 7)]);
}

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

#[test]
fn bits_are_those_of_the_index_that_fit_the_operand() {
    const CF: u64 = 1;
    for (bytes, rcx, before, after) in [
        (&[0x0F, 0xAB, 0x0F][..], 35, 0, Some(8)), // bts [rdi], ecx
        (&[0x48, 0x0F, 0xAB, 0x0F], 35, 0, Some(1 << 35)), // bts [rdi], rcx
        (&[0x66, 0x0F, 0xB3, 0x0F], 19, 0xFF, Some(0xF7)), // btr [rdi], cx
        (&[0x0F, 0xBB, 0x0F], u64::MAX, 1 << 31, Some(0)), // btc [rdi], ecx
        (&[0x0F, 0xA3, 0x0F], 3, 8, None),         // bt [rdi], ecx
        (&[0x0F, 0xBA, 0x27, 0x23], 0, 8, None),   // bt dword [rdi], 0x23
        (&[0xF0, 0x0F, 0xBA, 0x2F, 0x05], 0, 0, Some(0x20)), // lock bts dword [rdi], 5
        (&[0x0F, 0xBA, 0x37, 0x05], 0, 0x60, Some(0x40)), // btr dword [rdi], 5
        (&[0x0F, 0xBA, 0x3F, 0xFF], 0, 0, Some(1 << 31)), // btc dword [rdi], 0xff
    ] {
        let mut cpu = Cpu { rflags: 2 | 0x8D4, ..Cpu::default() };
        cpu.gpr[1] = rcx;
        let size = if bytes[0] == 0x48 {
            8
        } else if bytes[0] == 0x66 {
            2
        } else {
            4
        };
        let accesses = run(bytes, &mut cpu, before);
        let expected = after.map(|after| Access::Store(size, after));
        assert_eq!(accesses[0], Access::Load(size), "{bytes:x?}");
        assert_eq!(accesses.get(1), expected.as_ref(), "{bytes:x?}");
        let was_set = after.is_none_or(|after| after & before != before);
        assert_eq!(cpu.rflags, 2 | 0x8D4 | if was_set { CF } else { 0 }, "{bytes:x?}");
    }
}

#[test]
fn vector_moves_reach_as_far_as_their_encoding_says() {
    let value = 0xF1F2_F3F4_F5F6_F7F0;
    let old = Lanes::default().vectors;
    let lane = |lane: u64| value + lane;
    for (bytes, register, size, expected) in [
        (&[0x0F, 0x10, 0x0F][..], 1, 16, [lane(0), lane(1), old[1][2], old[1][3]]), // movups
        (&[0x66, 0x44, 0x0F, 0x28, 0x0F], 9, 16, [lane(0), lane(1), old[9][2], old[9][3]]), // movapd
        (&[0xF3, 0x0F, 0x6F, 0x0F], 1, 16, [lane(0), lane(1), old[1][2], old[1][3]]), // movdqu
        (&[0xF3, 0x0F, 0x10, 0x0F], 1, 4, [0xF5F6_F7F0, 0, old[1][2], old[1][3]]),    // movss
        (&[0xF2, 0x0F, 0x10, 0x0F], 1, 8, [value, 0, old[1][2], old[1][3]]),          // movsd
        (&[0x66, 0x0F, 0x6E, 0x0F], 1, 4, [0xF5F6_F7F0, 0, old[1][2], old[1][3]]),    // movd
        (&[0x66, 0x48, 0x0F, 0x6E, 0x0F], 1, 8, [value, 0, old[1][2], old[1][3]]),    // movq
        (&[0xC5, 0xFA, 0x6F, 0x0F], 1, 16, [lane(0), lane(1), 0, 0]), // vmovdqu xmm1
        (&[0xC5, 0x7D, 0x6F, 0x0F], 9, 32, [lane(0), lane(1), lane(2), lane(3)]), // vmovdqa ymm9
        (&[0xC4, 0xE2, 0x7D, 0x2A, 0x0F], 1, 32, [lane(0), lane(1), lane(2), lane(3)]), // vmovntdqa
        (&[0xC4, 0xE1, 0xF9, 0x6E, 0x0F], 1, 8, [value, 0, 0, 0]),    // vmovq
        (&[0xC5, 0xF9, 0x6E, 0x0F], 1, 4, [0xF5F6_F7F0, 0, 0, 0]),    // vmovd
        (&[0xC5, 0xFA, 0x10, 0x0F], 1, 4, [0xF5F6_F7F0, 0, 0, 0]),    // vmovss
    ] {
        let (mut cpu, mut lanes) = (Cpu::default(), Lanes::default());
        let accesses = run_vectors(bytes, &mut cpu, &mut lanes, value);
        assert_eq!(accesses, [Access::LoadVector(size)], "{bytes:x?}");
        assert_eq!(lanes.vectors[register], expected, "{bytes:x?}");
        lanes.vectors[register] = old[register];
        assert!(lanes.vectors == old && cpu.gpr == Cpu::default().gpr && cpu.rflags == 2);
    }
    let [a, b, c, d] = old[9];
    for (bytes, size, expected) in [
        (&[0x44, 0x0F, 0x11, 0x0F][..], 16, [a, b, 0, 0]), // movups
        (&[0x44, 0x0F, 0x2B, 0x0F], 16, [a, b, 0, 0]),     // movntps
        (&[0x66, 0x44, 0x0F, 0xE7, 0x0F], 16, [a, b, 0, 0]), // movntdq
        (&[0x66, 0x44, 0x0F, 0x7E, 0x0F], 4, [a as u32 as u64, 0, 0, 0]), // movd
        (&[0x66, 0x4C, 0x0F, 0x7E, 0x0F], 8, [a, 0, 0, 0]), // movq
        (&[0x66, 0x44, 0x0F, 0xD6, 0x0F], 8, [a, 0, 0, 0]), // movq
        (&[0xF2, 0x44, 0x0F, 0x11, 0x0F], 8, [a, 0, 0, 0]), // movsd
        (&[0xC5, 0x7E, 0x7F, 0x0F], 32, [a, b, c, d]),     // vmovdqu ymm9
        (&[0xC5, 0x7A, 0x7F, 0x0F], 16, [a, b, 0, 0]),     // vmovdqu xmm9
        (&[0xC5, 0x7D, 0xE7, 0x0F], 32, [a, b, c, d]),     // vmovntdq
    ] {
        let mut cpu = Cpu::default();
        assert_eq!(run(bytes, &mut cpu, 0), [Access::StoreVector(size, expected)], "{bytes:x?}");
        assert!(cpu.gpr == Cpu::default().gpr && cpu.rflags == 2);
    }
}

#[test]
fn vector_registers_that_are_off_stay_untouched() {
    for (bytes, width) in [
        (&[0x0F, 0x10, 0x0F][..], 0),
        (&[0x0F, 0x11, 0x0F], 0),
        (&[0xC5, 0xFA, 0x6F, 0x0F], 16),
        (&[0xC5, 0xFA, 0x7F, 0x0F], 16),
    ] {
        let instruction = decode(bytes, Mode::Bits64).unwrap();
        let mut lanes = Lanes { width, ..Lanes::default() };
        let mut device = Recorder { value: 0, accesses: Vec::new() };
        let refused = emulate_mmio(&instruction, &mut Cpu::default(), &mut lanes, &mut device);
        assert_eq!(refused, Err(Error::NoVectors));
        assert!(device.accesses.is_empty() && lanes.vectors == Lanes::default().vectors);
    }
}

#[test]
fn elements_of_strings_move_pointers_and_count() {
    use Mode::{Bits16, Bits32, Bits64};
    const DF: u64 = 1 << 10;
    // RCX, RSI, RDI before and after one element, and whether another follows.
    for (bytes, mode, rflags, before, after, more) in [
        (&[0xA4][..], Bits64, 2, [3, 10, 20], [3, 11, 21], false), // movsb
        (&[0xF3, 0x48, 0xA5], Bits64, 2, [3, 16, 32], [2, 24, 40], true), // rep movsq
        (&[0xF3, 0xA5], Bits64, 2 | DF, [1, 16, 0], [0, 12, !3], false), // rep movsd, back
        (&[0xF2, 0xAA], Bits64, 2, [2, 5, 6], [1, 5, 7], true),    // repne stosb
        (&[0x66, 0xAB], Bits64, 2, [2, 5, 6], [2, 5, 8], false),   // stosw
        (&[0xF3, 0xAD], Bits64, 2, [9, 8, 7], [8, 12, 7], true),   // rep lodsd
        (&[0x67, 0xF3, 0xAC], Bits32, 2, [0x7_0001, 0x4_FFFF, 7], [0x7_0000, 0x4_0000, 7], false),
        (&[0xF3, 0xA5], Bits16, 2, [0x8_0002, 0xFFFE, 1], [0x8_0001, 0, 3], true), // rep movsw
        (&[0xF3, 0x67, 0xA4], Bits64, 2, [1 << 32 | 1, u32::MAX.into(), 1], [0, 0, 2], false),
        (&[0xF3, 0x6D], Bits64, 2, [2, 5, 6], [1, 5, 10], true), // rep insd
        (&[0x6E], Bits64, 2 | DF, [2, 5, 6], [2, 4, 6], false),  // outsb
    ] {
        let instruction = decode(bytes, mode).unwrap();
        let mut cpu = Cpu { rflags, ..Cpu::default() };
        (cpu.gpr[1], cpu.gpr[6], cpu.gpr[7]) = (before[0], before[1], before[2]);
        assert!(instruction.has_element(&cpu), "{bytes:x?}");
        assert_eq!(instruction.pass_element(&mut cpu), more, "{bytes:x?}");
        assert_eq!([cpu.gpr[1], cpu.gpr[6], cpu.gpr[7]], after, "{bytes:x?}");
        assert_eq!((cpu.rflags, cpu.gpr[0]), (rflags, Cpu::default().gpr[0]));
        let mut device = Recorder { value: 0, accesses: Vec::new() };
        let refused = emulate_mmio(&instruction, &mut cpu, &mut Lanes::default(), &mut device);
        assert_eq!((refused, device.accesses), (Err(Error::NotMemoryAccess), vec![]));
    }
    let mut cpu = Cpu::default();
    cpu.gpr[1] = 1 << 32;
    let has = |bytes: &[u8], mode| decode(bytes, mode).unwrap().has_element(&cpu);
    assert!(has(&[0xF3, 0xA4], Bits64) && has(&[0xA4], Bits32));
    assert!(!has(&[0xF3, 0xA4], Bits32) && !has(&[0x67, 0xF3, 0xAA], Bits64));
    assert!(!has(&[0x89, 0x07], Bits64), "no string instruction");
    let store = decode(&[0x89, 0x07], Bits64).unwrap();
    let mut cpu = Cpu::default();
    assert!(!decode(&[0xF4], Bits64).unwrap().pass_element(&mut cpu));
    assert!(!store.pass_element(&mut cpu) && cpu.gpr == Cpu::default().gpr);
}

#[test]
fn what_reads_memory_says_so() {
    for (bytes, loads) in [
        (&[0x8B, 0x07][..], true),
        (&[0x89, 0x07], false),
        (&[0x01, 0x07], true),
        (&[0x03, 0x07], true),
        (&[0xFF, 0x07], true),
        (&[0x87, 0x07], true),
        (&[0x0F, 0xC1, 0x07], true),
        (&[0x0F, 0xB1, 0x07], true),
        (&[0x0F, 0x10, 0x07], true),
        (&[0x0F, 0x11, 0x07], false),
        (&[0x0F, 0xA2], false),
    ] {
        assert_eq!(decode(bytes, Mode::Bits64).unwrap().op.loads(), loads, "{bytes:x?}");
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
