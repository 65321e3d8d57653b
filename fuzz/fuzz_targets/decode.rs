//! Instructions that a guest exits for: any bytes in any mode.
//!
//! What is accepted is read as iced-x86 reads it, and needs its own bytes and no others. Performing
//! it makes at most one load, then at most one store, each of the instruction's size, and changes
//! at most one general register and the arithmetic flags.
#![no_main]

use arbitrary::Arbitrary;
use decode::{Device, Error, Instruction, Mode, Registers, Segment, decode, emulate_mmio};
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
}

#[derive(Arbitrary, Clone, Debug, PartialEq)]
struct Cpu {
    gpr: [u64; 16],
    rflags: u64,
    rip: u64,
    segments: [u64; 6],
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
    }
}

fn same_as_iced(ours: &Instruction, bytes: &[u8], mode: Mode, cpu: &Cpu) {
    let bits = match mode {
        Mode::Bits16 => 16,
        Mode::Bits32 => 32,
        Mode::Bits64 => 64,
    };
    let iced = Decoder::with_ip(bits, bytes, cpu.rip, DecoderOptions::NONE).decode();
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
    assert_eq!(ours.linear_address(cpu, mode), theirs.map(|address| address & width));
}

fn perform(instruction: &Instruction, before: &Cpu, value: u64) {
    let mut cpu = before.clone();
    let mut device = Recorder { value, loads: Vec::new(), stores: Vec::new() };
    let result = emulate_mmio(instruction, &mut cpu, &mut device);
    let Recorder { loads, stores, .. } = device;
    if let Err(refusal) = result {
        one_line(&refusal);
        assert!(loads.is_empty() && stores.is_empty() && cpu == *before);
        return;
    }
    let size = instruction.size;
    assert!(instruction.memory.is_some() && matches!(size, 1 | 2 | 4 | 8));
    assert!(loads.len() <= 1 && stores.len() <= 1 && loads.len() + stores.len() > 0);
    assert!(loads.iter().all(|loaded| *loaded == size));
    let fits = |value: u64| size == 8 || value >> (8 * size) == 0;
    assert!(stores.iter().all(|(stored, value)| *stored == size && fits(*value)), "{stores:x?}");
    let changed = cpu.gpr.iter().zip(&before.gpr).filter(|(new, old)| new != old).count();
    assert!(changed <= 1 && (cpu.rflags ^ before.rflags) & !ARITHMETIC_FLAGS == 0);
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
    perform(&instruction, &input.cpu, input.value);
});
