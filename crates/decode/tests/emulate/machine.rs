//! A CPU and a device for instructions to be performed on.

use decode::{Device, Mode, Registers, Segment, Vectors, decode, emulate_mmio};

pub struct Cpu {
    pub gpr: [u64; 16],
    pub rflags: u64,
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

pub struct Lanes {
    pub vectors: [[u64; 4]; 16],
    /// How many bytes of each can be used: 0, 16 or 32.
    pub width: u8,
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
pub enum Access {
    Load(u8),
    Store(u8, u64),
    LoadVector(u8),
    StoreVector(u8, [u64; 4]),
}

/// One register that remembers how it was used. Loads return noise above their size.
pub struct Recorder {
    pub value: u64,
    pub accesses: Vec<Access>,
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

pub fn run(bytes: &[u8], cpu: &mut Cpu, value: u64) -> Vec<Access> {
    let mut lanes = Lanes::default();
    let accesses = run_vectors(bytes, cpu, &mut lanes, value);
    assert!(lanes.vectors == Lanes::default().vectors);
    accesses
}

pub fn run_vectors(bytes: &[u8], cpu: &mut Cpu, lanes: &mut Lanes, value: u64) -> Vec<Access> {
    let instruction = decode(bytes, Mode::Bits64).unwrap();
    assert_eq!(usize::from(instruction.len), bytes.len());
    let mut device = Recorder { value, accesses: Vec::new() };
    emulate_mmio(&instruction, cpu, lanes, &mut device).unwrap();
    device.accesses
}
