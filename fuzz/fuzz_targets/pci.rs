//! PCI configuration space: a bus of functions made from any headers, and of virtio's, and a guest
//! that reads and writes all of it.
//!
//! Bits that aren't the guest's never change, a write reaches one function only, every change that
//! the host must follow is announced, and BARs are mapped in the windows, apart from each other.
//! Virtio's window into the BARs leads to nothing else.
#![no_main]

use arbitrary::Arbitrary;
use fuzz::one_line;
use libfuzzer_sys::fuzz_target;
use virtual_pc::msix::{pending_bytes, table_bytes};
use virtual_pc::pci::*;
use virtual_pc::ports::unclaimed;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    functions: Vec<Physical<'a>>,
    paravirtual: Vec<Paravirtual>,
    accesses: Vec<Access>,
}

#[derive(Arbitrary, Debug)]
struct Physical<'a> {
    /// The physical configuration space, from its beginning.
    header: &'a [u8],
    /// Capabilities over it, each linked to the next: place, kind, content.
    capabilities: Vec<(u8, u8, [u8; 16])>,
    bars: [Option<Bar>; 6],
}

#[derive(Arbitrary, Debug)]
struct Paravirtual {
    bars: [Option<Bar>; 6],
    /// Entries, and BAR and offset of the table and of the pending bits.
    msix: Option<(u16, u8, u16, u8, u16)>,
    /// Kind, BAR, offset and length.
    places: Vec<(u8, u8, u32, u32)>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Bar {
    kind: u8,
    size_bits: u8,
    prefetchable: bool,
    /// None: the next free address.
    address: Option<u64>,
}

#[derive(Arbitrary, Debug)]
enum Access {
    Address(u32),
    Select {
        device: u8,
        register: u8,
    },
    Read {
        offset: u8,
        size: u8,
    },
    Write {
        offset: u8,
        size: u8,
        value: u32,
    },
    /// Where configuration space is in memory: of a function, or anywhere.
    Load {
        function: u16,
        register: u16,
        size: u8,
    },
    Store {
        function: u16,
        register: u16,
        size: u8,
        value: u32,
    },
    /// To a capability of a function, by its place in the list.
    Capability {
        device: u8,
        index: u8,
        offset: u8,
        size: u8,
        value: u32,
    },
}

impl Physical<'_> {
    fn space(&self) -> [u8; 256] {
        let mut space = [0; 256];
        let length = self.header.len().min(256);
        space[..length].copy_from_slice(&self.header[..length]);
        if let Some((first, ..)) = self.capabilities.first() {
            space[0x0E] &= 0x80;
            space[0x06] |= 1 << 4;
            space[0x34] = *first;
        }
        let links = self.capabilities.iter().skip(1).map(|next| next.0).chain([0]);
        for ((at, kind, content), link) in self.capabilities.iter().zip(links) {
            let id = [0x01, 0x05, 0x10, 0x11, 0x09][usize::from(*kind) % 5];
            let bytes = [id, link].into_iter().chain(*content);
            space.iter_mut().skip(usize::from(at & 0xFC)).zip(bytes).for_each(|(to, b)| *to = b);
        }
        space
    }
}

impl Paravirtual {
    fn function(&self, free: &mut Addresses) -> Result<Function, Unsuitable> {
        let identity = Identity {
            vendor: 0x1AF4,
            device: 0x1041,
            revision: 1,
            class: 0x02_00_00,
            subsystem_vendor: 0x1AF4,
            subsystem: 0x1041,
        };
        let msix = self.msix.map(|(entries, table_bar, table, pba_bar, pba)| MsixLayout {
            entries: entries % 2048 + 1,
            table_bar: table_bar % 6,
            table_offset: u32::from(table) & !7,
            pba_bar: pba_bar % 6,
            pba_offset: u32::from(pba) & !7,
        });
        let place = |&(kind, bar, offset, length): &(u8, u8, u32, u32)| {
            let notify = Structure::Notify { multiplier: length };
            let all = [Structure::Common, notify, Structure::Isr, Structure::Device];
            Place { structure: all[usize::from(kind) % 4], bar, offset, length }
        };
        let places: Vec<_> = self.places.iter().map(place).collect();
        Function::paravirtual(&identity, &bars(&self.bars, free), msix, &places)
    }
}

fn bars(bars: &[Option<Bar>; 6], free: &mut Addresses) -> [Option<BarInfo>; 6] {
    bars.map(|bar| {
        let Bar { kind, size_bits, prefetchable, address } = bar?;
        let kind = [BarKind::Mem32, BarKind::Mem64, BarKind::Io][usize::from(kind) % 3];
        let size = 1 << (size_bits % 64);
        let address = address.or_else(|| free.choose(kind, size))?;
        Some(BarInfo { kind, size, prefetchable, address })
    })
}

/// What there is of all functions, as the guest reads it.
fn contents(bus: &Bus) -> Vec<[u32; 64]> {
    let dword = |f: &Function, i: usize| f.read(4 * i as u8, 4);
    bus.functions().iter().map(|f| std::array::from_fn(|i| dword(f, i))).collect()
}

/// The bits that a write of ones or of zeros changes, without the reset that it may cause.
fn writable(function: &Function) -> [u32; 64] {
    let write = |i: usize, value| {
        let mut function = function.clone();
        function.write(4 * i as u8, 4, value);
        function.read(4 * i as u8, 4)
    };
    std::array::from_fn(|i| {
        write(i, 0) ^ write(i, u32::MAX) | write(i, 0) ^ function.read(4 * i as u8, 4)
    })
}

/// Where every BAR of the bus is mapped.
fn placements(bus: &Bus) -> Vec<Option<u64>> {
    let bars = (0..MAX_FUNCTIONS).flat_map(|i| (0..6).map(move |bar| (i, bar)));
    bars.map(|(i, bar)| bus.placement(i, bar).map_err(|why| one_line(&why)).ok().flatten())
        .collect()
}

fn check_placements(bus: &Bus, placements: &[Option<u64>]) {
    let mut ranges = Vec::new();
    for (place, address) in placements.iter().enumerate() {
        let Some(address) = *address else { continue };
        let info = bus.function(place / 6).and_then(|f| f.bar(place % 6)).expect("a BAR");
        let end = address + info.size;
        let inside = |window: std::ops::Range<u64>| window.start <= address && end <= window.end;
        assert!(match info.kind.is_io() {
            true => inside(IO_WINDOW),
            false => inside(MEM32_WINDOW) || inside(MEM64_WINDOW),
        });
        assert!(address.is_multiple_of(info.size));
        ranges.push((info.kind.is_io(), address, end));
    }
    ranges.sort();
    assert!(ranges.windows(2).all(|pair| pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1));
}

/// A write to a function announced everything that changed by it.
fn check_actions(before: &Bus, after: &Bus, index: usize, actions: Actions) {
    let (old, new) = (before.function(index).unwrap(), after.function(index).unwrap());
    assert!(old.bus_master() == new.bus_master() || actions.contains(Actions::BUS_MASTER));
    assert!(old.msi() == new.msi() || actions.contains(Actions::MSI));
    assert!(old.msix_control() == new.msix_control() || actions.contains(Actions::MSIX_CONTROL));
    let moved = placements(before) != placements(after);
    assert!(!moved || actions.intersects(Actions::DECODE | Actions::BARS_MOVED));
    if actions.contains(Actions::RESET) {
        let off = !new.bus_master() && !new.msix_control().enabled;
        assert!(off && new.msi().is_none_or(|msi| !msi.enabled));
        assert!((0..6).all(|bar| new.placement(bar) == Ok(None)));
    }
}

fn check_layout(function: &Function) {
    let Some(layout) = function.msix_layout() else { return };
    let entries = u64::from(layout.entries);
    assert!((1..=2048).contains(&entries));
    for (bar, offset, length) in [
        (layout.table_bar, layout.table_offset, table_bytes(entries)),
        (layout.pba_bar, layout.pba_offset, pending_bytes(entries)),
    ] {
        let info = function.bar(bar.into()).expect("the BAR is there");
        assert!(!info.kind.is_io() && u64::from(offset) + length <= info.size);
    }
}

/// Writes at the register selected, and checks all that must hold of it.
fn check_write(
    bus: &mut Bus,
    access: Option<ConfigAccess>,
    value: u32,
    first: &[[u32; 64]],
    writable: &[[u32; 64]],
) {
    let before = bus.clone();
    let written = access.and_then(|access| bus.write(access, value));
    for (index, (old, new)) in contents(&before).iter().zip(contents(bus)).enumerate() {
        assert!(*old == new || written.is_some_and(|(i, _)| i == index));
        for (register, new) in new.iter().enumerate() {
            let fixed = !writable[index][register];
            assert_eq!(new & fixed, first[index][register] & fixed, "{register:#x}");
        }
    }
    if let Some((index, actions)) = written {
        check_actions(&before, bus, index, actions);
    }
    check_placements(bus, &placements(bus));
}

/// The window at the register selected, if it is open, leads into a BAR of the function.
fn check_window(bus: &Bus, access: Option<ConfigAccess>, size: u8) {
    let Some((index, window)) = access.and_then(|access| bus.window(access)) else { return };
    let info =
        bus.function(index).and_then(|f| f.bar(window.bar.into())).expect("the BAR is there");
    assert!(!info.kind.is_io() && window.size <= size);
    assert!(u64::from(window.offset) + u64::from(window.size) <= info.size);
    assert!(window.offset.is_multiple_of(window.size.into()));
}

/// Selects a register of a device, or of one that isn't there.
fn select(bus: &mut Bus, device: u8, register: u8) {
    let device = u32::from(device) % (bus.functions().len() as u32 + 2);
    bus.write_address(1 << 31 | device << 11 | u32::from(register));
}

/// Widths of accesses to memory, most of which configuration space has.
const SIZES: [u8; 5] = [1, 2, 4, 8, 3];

/// An access to configuration space in memory: mostly to a device that may be there, and to its
/// first registers.
fn in_memory(bus: &Bus, function: u16, register: u16, size: u8) -> Option<ConfigAccess> {
    let function = if function >> 13 == 0 { function } else { (function % 10) << 3 };
    let register = register & if register >> 13 == 0 { 0xFFF } else { 0x10F };
    let at = u64::from(function) << 12 | u64::from(register);
    bus.by_memory(at, SIZES[usize::from(size) % SIZES.len()])
}

/// Reads, and checks that no more than `size` bytes came.
fn read(bus: &Bus, access: Option<ConfigAccess>, size: u8) -> u32 {
    let value = access.map_or(unclaimed(size), |access| bus.read(access));
    assert_eq!(value & !unclaimed(size), 0);
    value
}

/// The place of a capability, found as a driver finds it.
fn capability(bus: &mut Bus, device: u8, index: u8) -> u8 {
    let mut link = 0x34;
    for _ in 0..=index % 6 {
        select(bus, device, link);
        link = (read(bus, bus.by_port(link & 3, 1), 1) as u8 & 0xFC) + 1;
    }
    link - 1
}

fuzz_target!(|input: Input| {
    let (mut bus, mut free) = (Bus::new(), Addresses::new());
    let mut made = Vec::new();
    for f in &input.functions {
        made.push(Function::assigned(&f.space(), &bars(&f.bars, &mut free)));
    }
    made.extend(input.paravirtual.iter().map(|f| f.function(&mut free)));
    for function in made {
        match function {
            Ok(function) => {
                check_layout(&function);
                if bus.assign(function).is_err() {
                    break;
                }
            }
            Err(refusal) => one_line(&refusal),
        }
    }
    let first = contents(&bus);
    let writable: Vec<_> = bus.functions().iter().map(writable).collect();
    for access in &input.accesses {
        match *access {
            Access::Address(value) => bus.write_address(value),
            Access::Select { device, register } => select(&mut bus, device, register),
            Access::Read { offset, size } => {
                let size = 1 << (size % 3);
                let access = bus.by_port(offset, size);
                check_window(&bus, access, size);
                read(&bus, access, size);
            }
            Access::Write { offset, size, value } => {
                let access = bus.by_port(offset, 1 << (size % 3));
                check_write(&mut bus, access, value, &first, &writable);
            }
            Access::Load { function, register, size } => {
                let access = in_memory(&bus, function, register, size);
                check_window(&bus, access, SIZES[usize::from(size) % SIZES.len()]);
                read(&bus, access, SIZES[usize::from(size) % SIZES.len()]);
            }
            Access::Store { function, register, size, value } => {
                let access = in_memory(&bus, function, register, size);
                check_write(&mut bus, access, value, &first, &writable);
            }
            Access::Capability { device, index, offset, size, value } => {
                let register = capability(&mut bus, device, index).wrapping_add(offset % 28);
                select(&mut bus, device, register);
                check_window(&bus, bus.by_port(register & 3, 4), 4);
                let access = bus.by_port(register & 3, 1 << (size % 3));
                check_write(&mut bus, access, value, &first, &writable);
            }
        }
    }
});
