//! Kernels: any bytes, and images of each format with any of their bytes changed, on any machine.
//!
//! A plan that comes out is checked against the memory map and nothing else: every piece in RAM
//! that nothing reserves, no two pieces overlapping, the entry point in the kernel.
#![no_main]

#[path = "../../crates/loader/tests/common/mod.rs"]
mod common;

use arbitrary::Arbitrary;
use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use loader::{EntryMode, Format, GuestMachine, Load, MemoryRegion, RegionKind};

const LIMIT: u64 = 1 << 32;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    kernel: Kernel<'a>,
    /// MiB of RAM, under the guest's usual memory map.
    memory: u16,
    /// More regions: start and length (in units of their own), kind.
    regions: Vec<(u32, u32, u8, u8)>,
    initrd: Option<u64>,
    cmdline: &'a str,
}

#[derive(Arbitrary, Debug)]
enum Kernel<'a> {
    Bytes(&'a [u8]),
    Image { format: u8, length: Option<u16>, changes: Vec<Change> },
}

#[derive(Arbitrary, Debug)]
enum Change {
    Byte(u16, u8),
    Word(u16, u32),
    Long(u16, u64),
}

impl Kernel<'_> {
    fn bytes(&self) -> Vec<u8> {
        let (format, length, changes) = match self {
            Kernel::Bytes(bytes) => return bytes.to_vec(),
            Kernel::Image { format, length, changes } => (format, length, changes),
        };
        let mut image = match format % 4 {
            0 => common::bzimage(),
            1 => common::pvh64(),
            2 => common::multiboot32(),
            _ => common::multiboot_addressed(),
        };
        for change in changes {
            let (at, value, size) = match *change {
                Change::Byte(at, value) => (at, value.into(), 1),
                Change::Word(at, value) => (at, value.into(), 4),
                Change::Long(at, value) => (at, value, 8),
            };
            for (byte, new) in
                image.iter_mut().skip(at.into()).zip(&u64::to_le_bytes(value)[..size])
            {
                *byte = *new;
            }
        }
        if let Some(length) = length {
            image.resize((*length).into(), 0);
        }
        image
    }
}

fn region(&(start, len, shift, kind): &(u32, u32, u8, u8)) -> MemoryRegion {
    let kind = match kind % 4 {
        0 => RegionKind::Ram,
        1 => RegionKind::Reserved,
        2 => RegionKind::AcpiReclaimable,
        _ => RegionKind::AcpiNvs,
    };
    let shift = shift % 33;
    MemoryRegion { start: u64::from(start) << shift, len: u64::from(len) << shift, kind }
}

/// All of `start..end` is RAM, whichever regions say so, and no other region touches it.
fn usable(regions: &[MemoryRegion], start: u64, end: u64) -> bool {
    let bounds = |r: &MemoryRegion| (r.start, r.start.saturating_add(r.len));
    let mut ram: Vec<_> =
        regions.iter().filter(|r| r.kind == RegionKind::Ram).map(bounds).collect();
    ram.sort();
    let covered = ram.iter().fold(start, |at, r| if r.0 <= at { at.max(r.1) } else { at });
    let reserved = |r: &MemoryRegion| {
        r.kind != RegionKind::Ram && r.len > 0 && bounds(r).0 < end && start < bounds(r).1
    };
    covered >= end && !regions.iter().any(reserved)
}

fn check(load: &Load, kernel: &[u8], initrd: Option<u64>, regions: &[MemoryRegion]) {
    let mut pieces: Vec<(u64, u64)> =
        load.segments.iter().map(|s| (s.at, s.bytes.len() as u64 + s.zeros)).collect();
    let rip = load.entry.rip;
    assert!(pieces.iter().any(|(at, size)| (*at..at + size).contains(&rip)), "entry outside");
    if load.format == Format::Linux {
        // What the kernel uses before it has read the memory map is its own, too.
        pieces[0].1 = pieces[0].1.max(common::get32(kernel, 0x260).into());
    }
    for blob in &load.blobs {
        assert!(blob.at >= 0x1000 && blob.at.is_multiple_of(0x1000));
        pieces.push((blob.at, blob.bytes.len() as u64));
    }
    let initrd = initrd.filter(|size| *size > 0);
    assert_eq!(load.initrd_at.is_some(), initrd.is_some());
    assert!(load.initrd_at.is_none_or(|at| at >= 0x1000 && at.is_multiple_of(0x1000)));
    pieces.extend(load.initrd_at.zip(initrd));
    pieces.sort();
    let mut previous = 0;
    for (at, size) in pieces {
        let end = at.checked_add(size).expect("an address");
        assert!(size > 0 && previous <= at && end <= LIMIT, "{at:#x}..{end:#x}");
        assert!(usable(regions, at, end), "{at:#x}..{end:#x} isn't free RAM");
        previous = end;
    }
    if let EntryMode::Bits64 { cr3, gdt, gdt_limit } = load.entry.mode {
        let tables = common::blob(load, cr3);
        assert_eq!(tables.len(), 6 * 0x1000);
        assert_eq!(common::blob(load, gdt).len(), usize::from(gdt_limit) + 1);
        common::blob(load, load.entry.rsi);
    }
}

fuzz_target!(|input: Input| {
    let kernel = input.kernel.bytes();
    let mut regions = common::regions((u64::from(input.memory) + 1) << 20);
    regions.extend(input.regions.iter().map(region));
    let machine = GuestMachine { regions: &regions, rsdp: common::RSDP };
    match loader::load(&kernel, input.initrd, input.cmdline, &machine) {
        Ok(load) => check(&load, &kernel, input.initrd, &regions),
        Err(refusal) => one_line(&refusal),
    }
});
