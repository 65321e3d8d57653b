//! Instructions that a guest exits for: any bytes in any mode.
//!
//! What is accepted is read as iced-x86 reads it, and needs its own bytes and no others. Performing
//! it makes at most one load, then at most one store, each of the instruction's size, and changes
//! at most one general or vector register and the arithmetic flags. Passing an element of a string
//! changes two pointers and the count.
#![no_main]

use arbitrary::Arbitrary;
use decode::{
    Device, Error, Instruction, Mode, Op, Registers, Segment, Vectors, decode, emulate_mmio,
};
use fuzz::one_line;
use iced_x86::{Decoder, DecoderOptions, OpKind};
use libfuzzer_sys::fuzz_target;

const ARITHMETIC_FLAGS: u64 = 0x8D5;

#[derive(Arbitrary, Debug)]
struct Input {
    mode: u8,
    bytes: [u8; 20],
    length: u8,
    cpu: Cpu,
    value: u64,
    lanes: Lanes,
}

#[derive(Arbitrary, Clone, Debug, PartialEq)]
struct Cpu {
    gpr: [u64; 16],
    rflags: u64,
    rip: u64,
    segments: [u64; 6],
}

#[derive(Arbitrary, Clone, Debug, PartialEq)]
struct Lanes {
    registers: [[u64; 4]; 16],
    /// 0: none can be used; 1: 16 bytes each; else 32.
    width: u8,
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
        self.rip
    }
    fn segment_base(&self, segment: Segment) -> u64 {
        self.segments[segment as usize]
    }
}

impl Vectors for Lanes {
    fn usable(&self, vex: bool) -> bool {
        self.width > u8::from(vex)
    }
    fn read(&self, number: u8, vex: bool) -> [u64; 4] {
        assert!(self.usable(vex));
        self.registers[usize::from(number)]
    }
    fn write(&mut self, number: u8, value: [u64; 4], vex: bool) {
        assert!(self.usable(vex));
        self.registers[usize::from(number)] = value;
    }
}

/// One register that remembers how it was used.
struct Recorder {
    value: u64,
    loads: Vec<u8>,
    stores: Vec<(u8, u64)>,
}

impl Device for Recorder {
    fn load(&mut self, size: u8) -> u64 {
        assert!(self.stores.is_empty(), "a load after a store");
        self.loads.push(size);
        self.value
    }
    fn store(&mut self, size: u8, value: u64) {
        self.stores.push((size, value));
        assert!(matches!(size, 1 | 2 | 4 | 8) && (size == 8 || value >> (8 * size) == 0));
    }
    fn load_vector(&mut self, size: u8) -> [u64; 4] {
        self.load(size);
        [self.value; 4]
    }
    fn store_vector(&mut self, size: u8, value: [u64; 4]) {
        assert!(self.stores.is_empty() && matches!(size, 4 | 8 | 16 | 32));
        let beyond = (size..32).all(|at| value[usize::from(at / 8)] >> (8 * (at % 8)) & 0xFF == 0);
        assert!(beyond, "{size}: {value:x?}");
        self.stores.push((size, 0));
    }
}

fn same_as_iced(ours: &Instruction, bytes: &[u8], mode: Mode, cpu: &Cpu) {
    let bits = match mode {
        Mode::Bits16 => 16,
        Mode::Bits32 => 32,
        Mode::Bits64 => 64,
    };
    // AMD's option is for LOCK MOV CR0.
    let iced = Decoder::with_ip(bits, bytes, cpu.rip, DecoderOptions::AMD).decode();
    assert!(!iced.is_invalid(), "{ours:?} is invalid");
    assert_eq!(usize::from(ours.len), iced.len());
    // The kinds from the first to the last are operands in memory, of string instructions too.
    let in_memory = OpKind::MemorySegSI as usize..=OpKind::Memory as usize;
    let is_memory = |index: &u32| in_memory.contains(&(iced.op_kind(*index) as usize));
    let memory = (0..iced.op_count()).find(is_memory);
    assert_eq!(ours.memory.is_some(), memory.is_some());
    let Some(index) = memory else { return };
    // The processor uses 5 of the 6 bytes that iced counts for LGDT and LIDT under 16 bits.
    assert_eq!(usize::from(ours.size) + usize::from(ours.size == 5), iced.memory_size().size());
    let theirs = iced.virtual_address(index, 0, |register, _, _| {
        let number = register.full_register().number();
        Some(match register.size() {
            _ if register.is_segment_register() && bits == 64 && number < 4 => 0,
            _ if register.is_segment_register() => cpu.segments[number],
            2 => cpu.gpr[number] & 0xFFFF,
            4 => cpu.gpr[number] & 0xFFFF_FFFF,
            _ => cpu.gpr[number],
        })
    });
    let width = if bits == 64 { u64::MAX } else { 0xFFFF_FFFF };
    let theirs = theirs.map(|address| address & width);
    let away = bit_away(&iced, cpu);
    if away == 0 {
        assert_eq!(ours.linear_address(cpu, mode), theirs);
        return;
    }
    // The sum wraps at the size of the address, so that nothing above it can be compared.
    let unused = 64 - 8 * u32::from(ours.memory.map_or(8, |memory| memory.address_size));
    let moved = ours.linear_address(cpu, mode).zip(theirs);
    let moved = moved.map(|(ours, theirs)| ours.wrapping_sub(theirs) << unused);
    assert_eq!(moved, Some(away << unused));
}

/// How far a bit's index in a register leads, in bytes; iced leaves it out of the address.
fn bit_away(iced: &iced_x86::Instruction, cpu: &Cpu) -> u64 {
    use iced_x86::Mnemonic::{Bt, Btc, Btr, Bts};
    if !matches!(iced.mnemonic(), Bt | Btc | Btr | Bts) || iced.op1_kind() != OpKind::Register {
        return 0;
    }
    let register = cpu.gpr[iced.op1_register().number()];
    match iced.memory_size().size() {
        2 => (i64::from(register as i16) >> 4 << 1) as u64,
        4 => (i64::from(register as i32) >> 5 << 2) as u64,
        _ => (register as i64 >> 6 << 3) as u64,
    }
}

fn perform(instruction: &Instruction, before: &Cpu, lanes_before: &Lanes, value: u64) {
    let (mut cpu, mut lanes) = (before.clone(), lanes_before.clone());
    let mut device = Recorder { value, loads: Vec::new(), stores: Vec::new() };
    let result = emulate_mmio(instruction, &mut cpu, &mut lanes, &mut device);
    let Recorder { loads, stores, .. } = device;
    if let Err(refusal) = result {
        one_line(&refusal);
        assert!(loads.is_empty() && stores.is_empty() && cpu == *before);
        assert_eq!(lanes, *lanes_before);
        return;
    }
    let size = instruction.size;
    assert!(instruction.memory.is_some() && matches!(size, 1 | 2 | 4 | 8 | 16 | 32));
    assert_eq!(instruction.op.loads(), !loads.is_empty());
    assert!(loads.len() <= 1 && stores.len() <= 1 && loads.len() + stores.len() > 0);
    assert!(loads.iter().all(|loaded| *loaded == size));
    assert!(stores.iter().all(|(stored, _)| *stored == size), "{stores:x?}");
    let changed = cpu.gpr.iter().zip(&before.gpr).filter(|(new, old)| new != old).count()
        + lanes.registers.iter().zip(&lanes_before.registers).filter(|(n, o)| n != o).count();
    assert!(changed <= 1 && (cpu.rflags ^ before.rflags) & !ARITHMETIC_FLAGS == 0);
}

/// One element after the other: no other register changes, and the count says when it ends.
fn pass_elements(instruction: &Instruction, before: &Cpu) {
    const RCX: usize = 1;
    const RSI: usize = 6;
    const RDI: usize = 7;
    let mut cpu = before.clone();
    let (repeat, pointers) = match instruction.op {
        Op::Movs { repeat, .. } => (repeat, &[RSI, RDI][..]),
        Op::Lods { repeat } | Op::Outs { repeat } => (repeat, &[RSI][..]),
        Op::Stos { repeat } | Op::Ins { repeat } => (repeat, &[RDI][..]),
        _ => return assert!(!instruction.has_element(before)),
    };
    for _ in 0..3 {
        if !instruction.has_element(&cpu) {
            break;
        }
        let (last, more) = (cpu.clone(), instruction.pass_element(&mut cpu));
        assert!(pointers.iter().all(|pointer| cpu.gpr[*pointer] != last.gpr[*pointer]));
        assert_eq!(cpu.gpr[RCX] != last.gpr[RCX], repeat);
        assert_eq!(more, repeat && instruction.has_element(&cpu));
    }
    for (number, (new, old)) in cpu.gpr.iter().zip(&before.gpr).enumerate() {
        assert!(number == RCX || pointers.contains(&number) || new == old);
    }
    assert_eq!(cpu.rflags, before.rflags);
}

fuzz_target!(|input: Input| {
    let mode = [Mode::Bits16, Mode::Bits32, Mode::Bits64][usize::from(input.mode) % 3];
    let bytes = &input.bytes[..usize::from(input.length).min(input.bytes.len())];
    let instruction = match decode(bytes, mode) {
        Ok(instruction) => instruction,
        Err(refusal) => return one_line(&refusal),
    };
    let length = usize::from(instruction.len);
    assert!((1..=15).contains(&length));
    assert_eq!(decode(&bytes[..length], mode), Ok(instruction));
    assert_eq!(decode(&bytes[..length - 1], mode), Err(Error::Truncated(length - 1)));
    same_as_iced(&instruction, bytes, mode, &input.cpu);
    perform(&instruction, &input.cpu, &input.lanes, input.value);
    pass_elements(&instruction, &input.cpu);
});
