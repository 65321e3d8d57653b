//! The firmware's ACPI tables: any bytes where a BIOS puts them, and well-formed tables of any
//! content, damaged or not. Work stays in proportion to the bytes there are, what is read is where
//! the tables were said to be, and the machine that comes out is what its documentation promises.
#![no_main]

use acpi::{
    Covered, Ivrs, Machine, Physical, Place, Quieted, ResetRegister, SerialRegisters, Watchdog,
    WatchdogRegister, WatchdogRegisters, find_rsdp, places, probe,
};
use arbitrary::Arbitrary;
use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    ops::Range,
};

const BASE: u64 = 0xE_0000;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Segment of the extended BIOS data area.
    ebda: u16,
    content: Content<'a>,
}

#[derive(Arbitrary, Debug)]
enum Content<'a> {
    Bytes(&'a [u8]),
    Tables { revision: u8, tables: Vec<TableInput<'a>>, damage: Vec<(u16, u8)> },
}

#[derive(Arbitrary, Debug)]
struct TableInput<'a> {
    kind: u8,
    body: &'a [u8],
    /// Of right lengths, in the form that the kind of table has.
    structures: Vec<Structure<'a>>,
}

#[derive(Arbitrary, Debug)]
struct Structure<'a> {
    kind: u8,
    content: [u8; 20],
    scopes: Vec<(u8, [u8; 4], &'a [u8])>,
}

impl Structure<'_> {
    /// An entry of the DMAR: a DRHD has 16 bytes before its scopes, an RMRR 24.
    fn dmar(&self) -> Vec<u8> {
        let kind = self.kind % 3;
        let mut entry = vec![kind, 0, 0, 0];
        entry.extend(&self.content[..if kind == 0 { 12 } else { 20 }]);
        for (kind, content, path) in &self.scopes {
            let path = &path[..path.len().min(64)];
            entry.extend([kind % 7, 6 + path.len() as u8]);
            entry.extend(content);
            entry.extend(path);
        }
        let length = entry.len() as u16;
        entry[2..4].copy_from_slice(&length.to_le_bytes());
        entry
    }

    /// A block of the IVRS: an IVHD has 24 or 40 bytes before its device entries, an IVMD 32.
    fn ivrs(&self) -> Vec<u8> {
        let (kind, fixed) = [(0x10, 24), (0x11, 40), (0x40, 40), (0x20 + self.kind % 3, 32)]
            [usize::from(self.kind) % 4];
        let mut block = vec![kind, self.content[0], 0, 0];
        block.extend(&self.content[1..]);
        block.resize(fixed, 0);
        if kind & 0x20 != 0 {
            // Memory that isn't empty.
            block[24] |= 1;
        } else {
            // A base that can be one.
            block[8..10].fill(0);
            for (kind, content, more) in &self.scopes {
                block.extend(ivrs_entry(*kind, content, more));
            }
        }
        let length = block.len() as u16;
        block[2..4].copy_from_slice(&length.to_le_bytes());
        block
    }

    /// An instruction of the WDAT, mostly one that is understood.
    fn wdat(&self) -> Vec<u8> {
        let mut step = vec![self.kind % 14, self.content[0] & 0x83, 0, 0];
        step.extend([self.content[1] & 1, 32, self.content[2] & 31, self.content[3] & 3]);
        step.extend(&self.content[4..]);
        step
    }

    fn madt(&self) -> Vec<u8> {
        let (kind, length) =
            [(0, 8), (1, 12), (9, 16), (self.kind, 22)][usize::from(self.kind) % 4];
        [&[kind, length], &self.content[..usize::from(length) - 2]].concat()
    }
}

/// A device entry of the length that its type says.
fn ivrs_entry(kind: u8, content: &[u8; 4], more: &[u8]) -> Vec<u8> {
    const KNOWN: [u8; 10] = [1, 2, 3, 4, 0x42, 0x43, 0x46, 0x47, 0x48, 0xF0];
    let kind = KNOWN.get(usize::from(kind % 12)).copied().unwrap_or(kind);
    let mut entry = vec![kind];
    entry.extend(content);
    entry.extend(more);
    entry.resize(22, 0);
    let length = match kind {
        0..=63 => 4,
        64..=127 => 8,
        128..=191 => 16,
        0xF0 => 22 + usize::from(entry[21]),
        _ => 32,
    };
    entry.resize(length, 0);
    entry
}

impl TableInput<'_> {
    fn contents(&self, signature: &[u8]) -> Vec<u8> {
        let structures = self.structures.iter();
        let (fixed, structures): (usize, Vec<u8>) = match signature {
            b"APIC" => (8, structures.flat_map(Structure::madt).collect()),
            b"DMAR" => (12, structures.flat_map(Structure::dmar).collect()),
            b"IVRS" => (12, structures.flat_map(Structure::ivrs).collect()),
            b"WDAT" => (32, structures.flat_map(Structure::wdat).collect()),
            _ => (0, vec![]),
        };
        let mut contents = self.body.to_vec();
        if !structures.is_empty() {
            contents.resize(fixed, 0);
        }
        contents.extend(structures);
        if signature == b"WDAT" && !self.structures.is_empty() {
            contents[28..32].copy_from_slice(&(self.structures.len() as u32).to_le_bytes());
        }
        contents
    }
}

struct Firmware {
    bytes: Vec<u8>,
    ebda: u16,
    reads: Cell<u64>,
    /// Nothing else may be read, if there is any such thing.
    kept: RefCell<Option<Vec<Range<u64>>>>,
}

impl Physical for Firmware {
    fn read(&self, pa: u64, buf: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        if pa == 0x40E && buf.len() == 2 {
            buf.copy_from_slice(&self.ebda.to_le_bytes());
            return true;
        }
        let place = pa.checked_sub(BASE).and_then(|start| {
            let start = start as usize;
            self.bytes.get(start..start.checked_add(buf.len())?)
        });
        let there = place.map(|bytes| buf.copy_from_slice(bytes)).is_some();
        if let (true, Some(kept)) = (there, &*self.kept.borrow()) {
            let end = pa + buf.len() as u64;
            assert!(kept.iter().any(|k| k.start <= pa && end <= k.end), "{pa:#x} isn't kept");
        }
        there
    }
}

/// Makes `bytes` sum to zero by the byte at `at`.
fn balance(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    bytes[at] = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
}

/// A table with its common header.
fn table(signature: &[u8], body: &[u8]) -> Vec<u8> {
    let mut table = vec![0; 36];
    table[..4].copy_from_slice(signature);
    table.extend(body);
    let length = table.len() as u32;
    table[4..8].copy_from_slice(&length.to_le_bytes());
    balance(&mut table, 9);
    table
}

fn append(memory: &mut Vec<u8>, table: &[u8]) -> u64 {
    memory.resize(memory.len().next_multiple_of(16), 0);
    let address = BASE + memory.len() as u64;
    memory.extend(table);
    address
}

fn firmware(revision: u8, tables: &[TableInput]) -> Vec<u8> {
    const KINDS: [&[u8; 4]; 8] =
        [b"APIC", b"FACP", b"MCFG", b"DMAR", b"IVRS", b"SSDT", b"SPCR", b"WDAT"];
    let mut memory = vec![0; 36];
    let mut addresses = Vec::new();
    for input in tables {
        let signature = KINDS[usize::from(input.kind) % KINDS.len()];
        addresses.push(append(&mut memory, &table(signature, &input.contents(signature))));
    }
    let long: Vec<u8> = addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
    let short: Vec<u8> = addresses.iter().flat_map(|a| (*a as u32).to_le_bytes()).collect();
    let rsdt = append(&mut memory, &table(b"RSDT", &short));
    let xsdt = append(&mut memory, &table(b"XSDT", &long));
    memory[..8].copy_from_slice(b"RSD PTR ");
    memory[15] = revision % 3;
    memory[16..20].copy_from_slice(&(rsdt as u32).to_le_bytes());
    memory[20..24].copy_from_slice(&36_u32.to_le_bytes());
    memory[24..32].copy_from_slice(&xsdt.to_le_bytes());
    balance(&mut memory[..20], 8);
    balance(&mut memory[..36], 32);
    memory
}

fn check_ivrs(ivrs: &Ivrs) {
    assert!(ivrs.memory.iter().all(|m| m.base <= m.limit && !m.devices.is_empty()));
    let bases: BTreeSet<u64> = ivrs.hardware.iter().map(|unit| unit.base).collect();
    assert!(bases.iter().all(|base| *base != 0 && base.is_multiple_of(16 << 10)));
    assert_eq!(bases.len(), ivrs.hardware.len(), "each unit once");
    for unit in &ivrs.hardware {
        let covered = Covered::of_hardware(unit);
        for entry in &unit.devices {
            assert!(!entry.ids.is_empty());
            assert!(covered.contains(*entry.ids.end()) || unit.include_all());
            assert!(entry.alias.is_none_or(|alias| covered.contains(alias)));
            let seen = covered.requester(*entry.ids.start());
            assert!(covered.contains(seen) || unit.include_all());
        }
        assert!(unit.special.iter().all(|device| covered.contains(device.id)));
        one_line(&covered);
    }
}

/// A watchdog's registers: what is read is noise, and what isn't the table's mustn't be touched.
struct Noise<'a> {
    watchdog: &'a Watchdog,
    accesses: u32,
}

impl Noise<'_> {
    fn reach(&mut self, register: WatchdogRegister) {
        self.accesses += 1;
        let width = u64::from(register.width);
        assert!([1, 2, 4].contains(&width) && u64::from(register.shift) < width * 8);
        assert!(self.watchdog.registers().any(|named| named == register));
        match register.place {
            Place::Port(port) => assert!(port != 0 && u64::from(port) + width <= 0x1_0000),
            Place::Memory(address) => assert!(address != 0 && address.is_multiple_of(width)),
        }
    }
}

impl WatchdogRegisters for Noise<'_> {
    fn read(&mut self, register: WatchdogRegister) -> u32 {
        self.reach(register);
        self.accesses.wrapping_mul(0x9E37_79B9)
    }

    fn write(&mut self, register: WatchdogRegister, _: u32) {
        self.reach(register);
    }
}

fn check_watchdog(watchdog: &Watchdog) {
    assert!(watchdog.period_ms != 0 && watchdog.least_count <= watchdog.most_count);
    assert!(watchdog.instructions.len() <= 128);
    let mut noise = Noise { watchdog, accesses: 0 };
    if let Quieted::Fed { every_ms } = watchdog.quiet(&mut noise) {
        assert!(every_ms != 0 && watchdog.feed(&mut noise));
    }
    assert!(noise.accesses as usize <= 8 * watchdog.instructions.len());
}

fn check(machine: &Machine) {
    let ids: BTreeSet<u32> = machine.cpus.iter().map(|cpu| cpu.apic_id).collect();
    assert_eq!(ids.len(), machine.cpus.len(), "each processor once");
    for ecam in &machine.ecams {
        assert!(ecam.bus_start <= ecam.bus_end);
        assert!(ecam.base.checked_add((u64::from(ecam.bus_end) + 1) << 20).is_some());
    }
    assert!(machine.pm_timer.is_none_or(|timer| timer.port != 0));
    match machine.reset.map(|reset| reset.register) {
        Some(ResetRegister::Port(port)) => assert!(port != 0),
        Some(ResetRegister::Memory(address)) => assert!(address != 0),
        Some(ResetRegister::Config { device, function, .. }) => {
            assert!(device < 32 && function < 8);
        }
        None => {}
    }
    match &machine.console {
        Some(Ok(port)) => {
            match port.registers {
                SerialRegisters::Ports(port) => assert!((1..=0xFFF8).contains(&port)),
                SerialRegisters::Memory { address, stride, width } => {
                    assert!([1, 2, 4].contains(&width) && [1, 2, 4].contains(&stride));
                    assert!(stride >= width && address != 0 && address % u64::from(width) == 0);
                    assert!(address.checked_add(8 * u64::from(stride)).is_some());
                }
            }
            assert!(port.function.is_none_or(|f| f.device < 32 && f.function < 8));
            assert!(port.baud != Some(0) && port.clock != Some(0));
        }
        Some(Err(error)) => one_line(error),
        None => {}
    }
    match &machine.watchdog {
        Some(Ok(watchdog)) => check_watchdog(watchdog),
        Some(Err(error)) => one_line(error),
        None => {}
    }
    machine.ivrs.iter().for_each(check_ivrs);
    let Some(dmar) = &machine.dmar else { return };
    assert!(dmar.interrupt_remapping || !dmar.x2apic_opt_out);
    assert!(dmar.reserved.iter().all(|reserved| reserved.base <= reserved.limit));
    let scopes = dmar.units.iter().map(|unit| &unit.scopes);
    for scope in scopes.chain(dmar.reserved.iter().map(|reserved| &reserved.scopes)).flatten() {
        assert!(!scope.path.is_empty());
        assert!(scope.path.iter().all(|step| step.device < 32 && step.function < 8), "{scope:?}");
    }
}

fuzz_target!(|input: Input| {
    let bytes = match input.content {
        Content::Bytes(bytes) => bytes.to_vec(),
        Content::Tables { revision, tables, damage } => {
            let mut bytes = firmware(revision, &tables);
            for (at, value) in damage {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            bytes
        }
    };
    let (reads, kept) = (Cell::new(0), RefCell::default());
    let memory = Firmware { bytes, ebda: input.ebda, reads, kept };
    for rsdp in [find_rsdp(&memory), Ok(BASE)] {
        let mut found = Vec::new();
        let named = rsdp.clone().and_then(|rsdp| places(&memory, rsdp, |place| found.push(place)));
        assert!(found.len() <= 1026, "{} places", found.len());
        assert!(found.iter().all(|place| (1..=1 << 20).contains(&(place.end - place.start))));
        *memory.kept.borrow_mut() = named.is_ok().then_some(found);
        let machine = rsdp.and_then(|rsdp| probe(&memory, rsdp));
        *memory.kept.borrow_mut() = None;
        match machine {
            Ok(machine) => {
                assert!(named.is_ok(), "{named:?}");
                check(&machine);
            }
            Err(refusal) => one_line(&refusal),
        }
    }
    let bound = 20_000 + 60 * memory.bytes.len() as u64;
    assert!(memory.reads.get() < bound, "{} reads", memory.reads.get());
});
