//! The guest's PCI bus: enumeration as Linux does it, and a hostile guest.

mod bars;
mod platform;

use super::*;
use proptest::prelude::*;

const NVME_BAR: u64 = 0x40_0000_0000;

/// An NVMe controller like QEMU's: MSI-X at 0x40, PCIe at 0x80, PM at 0x60, and a
/// vendor capability at 0x50 that must be hidden.
fn nvme_config() -> [u8; 256] {
    let mut c = [0u8; 256];
    let mut put = |at: usize, bytes: &[u8]| c[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x00, &[0x36, 0x1B, 0x10, 0x00, 0x06, 0x04, 0x18, 0xF8, 0x02, 0x02, 0x08, 0x01]);
    put(0x0E, &[0x80]);
    put(0x2C, &[0xF4, 0x1A, 0x00, 0x11]);
    put(0x30, &[0x01, 0x00, 0xFE, 0xFE]);
    put(0x34, &[0x40]);
    put(0x3C, &[11, 1, 7, 9]);
    put(0x40, &[0x11, 0x50, 0x40, 0xC0, 0x00, 0x20, 0, 0, 0x00, 0x30, 0, 0]);
    put(0x50, &[0x09, 0x80, 0x10, 0xAA, 0xBB]);
    put(0x80, &[0x10, 0x60, 0x02, 0x00, 0x00, 0x80, 0x00, 0x10, 0x1F, 0xA8, 0xFF, 0x00, 1, 2, 3]);
    put(0x60, &[0x01, 0x00, 0xFB, 0xFF, 0x03, 0x81]);
    c
}

fn mem64(size: u64, address: u64) -> Option<BarInfo> {
    Some(BarInfo { kind: BarKind::Mem64, size, prefetchable: false, address })
}

fn nvme_bars(address: u64) -> [Option<BarInfo>; 6] {
    [mem64(0x4000, address), None, None, None, None, None]
}

fn nvme() -> Function {
    Function::assigned(&nvme_config(), &nvme_bars(NVME_BAR)).unwrap()
}

/// A network card with MSI (64-bit, maskable), a port BAR and a 32-bit memory BAR.
fn card() -> Function {
    let mut c = [0u8; 256];
    c[..2].copy_from_slice(&[0x86, 0x80]);
    c[6] = 0x10;
    c[0x34] = 0xD0;
    c[0xD0..0xD4].copy_from_slice(&[0x05, 0, 0x8A, 0x01]);
    let bar = |kind, size, address| Some(BarInfo { kind, size, prefetchable: true, address });
    let bars = [bar(BarKind::Mem32, 0x2_0000, 0xC000_0000), bar(BarKind::Io, 32, 0x1000)];
    Function::assigned(&c, &[bars[0], bars[1], None, None, None, None]).unwrap()
}

fn bus() -> Bus {
    let mut bus = Bus::new();
    assert_eq!(bus.assign(nvme()), Ok(1));
    assert_eq!(bus.assign(card()), Ok(2));
    bus
}

/// Mechanism 1's data port.
pub(super) trait DataPort {
    fn read_data(&self, offset: u8, size: u8) -> u32;
    fn write_data(&mut self, offset: u8, size: u8, value: u32) -> Option<(usize, Actions)>;
}

impl DataPort for Bus {
    fn read_data(&self, offset: u8, size: u8) -> u32 {
        self.by_port(offset, size).map_or(unclaimed(size), |access| self.read(access))
    }

    fn write_data(&mut self, offset: u8, size: u8, value: u32) -> Option<(usize, Actions)> {
        self.write(self.by_port(offset, size)?, value)
    }
}

fn address(device: u32, register: u32) -> u32 {
    0x8000_0000 | device << 11 | register
}

fn read(bus: &mut Bus, device: u32, register: u32) -> u32 {
    bus.write_address(address(device, register));
    bus.read_data(0, 4)
}

fn write(bus: &mut Bus, device: u32, register: u32, value: u32) -> Actions {
    bus.write_address(address(device, register));
    bus.write_data(0, 4, value).unwrap().1
}

#[test]
fn linux_finds_mechanism_1_and_its_devices_only() {
    let mut bus = bus();
    bus.write_address(0x8000_0000);
    assert_eq!(bus.read_address(), 0x8000_0000);
    assert_eq!(read(&mut bus, 0, 0), 0x0008_1B36);
    assert_eq!(read(&mut bus, 0, 8) >> 16, 0x0600);
    assert_eq!(read(&mut bus, 0, 0x34), 0);
    assert_eq!(read(&mut bus, 1, 0), 0x0010_1B36);
    assert_eq!(read(&mut bus, 1, 8), 0x0108_0202);
    assert_eq!(read(&mut bus, 1, 0x0C) >> 16 & 0xFF, 0, "not multi-function");
    assert_eq!(read(&mut bus, 1, 0x2C), 0x1100_1AF4);
    for absent in
        [address(3, 0), address(1, 0x100), 1 << 16 | address(1, 0), 1 << 24 | address(1, 0), 0]
    {
        bus.write_address(absent);
        assert_eq!(bus.read_data(0, 4), 0xFFFF_FFFF, "{absent:#x}");
        assert_eq!(bus.write_data(0, 4, 0), None, "{absent:#x}");
    }
}

#[test]
fn bytes_and_words_are_parts_of_the_register() {
    let mut bus = bus();
    bus.write_address(address(1, 8));
    assert_eq!(
        (bus.read_data(3, 1), bus.read_data(2, 2), bus.read_data(0, 2)),
        (1, 0x0108, 0x0202)
    );
    assert_eq!(bus.read_data(2, 4), 0xFFFF_0108, "bytes beyond 0xCFF are nobody's");
    bus.write_address(address(1, 4));
    bus.write_data(0, 1, 6);
    assert_eq!(read(&mut bus, 1, 4) & 0xFFFF, 0x0406);
    assert_eq!(bus.write_data(3, 4, 0xFFFF_FFFF), Some((0, Actions::empty())));
}

#[test]
fn configuration_space_in_memory_is_the_same() {
    let mut bus = bus();
    for device in 0..4 {
        for register in (0..0x100).step_by(4) {
            let here = bus.by_memory(u64::from(device << 15 | register), 4).unwrap();
            assert_eq!(bus.read(here), read(&mut bus, device, register), "{device} {register:#x}");
        }
    }
    let nvme = |register: u64, size| bus.by_memory(1 << 15 | register, size);
    let parts = [(0xA, 2, 0x0108), (0xB, 1, 1), (8, 2, 0x0202)];
    for (register, size, value) in parts {
        assert_eq!(nvme(register, size).map(|access| bus.read(access)), Some(value));
    }
    for (register, size) in [(9, 2), (9, 4), (10, 4), (8, 8), (8, 0), (8, 3)] {
        assert_eq!(nvme(register, size), None, "{register} {size}");
    }
    let command = nvme(4, 2).unwrap();
    assert_eq!(bus.write(command, 6), Some((0, Actions::DECODE | Actions::BUS_MASTER)));
    assert_eq!(read(&mut bus, 1, 4) & 0xFFFF, 0x0406);
    // Functions and buses beyond, and what an extended capability would be.
    for absent in [1 << 12 | 1 << 15, 3 << 15, 1 << 20 | 1 << 15, 1 << 36 | 1 << 15, u64::MAX - 3] {
        let access = bus.by_memory(absent, 4).unwrap();
        assert_eq!((bus.read(access), bus.write(access, 0)), (!0, None), "{absent:#x}");
    }
    for (extended, size) in [(0x100, 4), (0x104, 2), (0xFFC, 4), (0xFFF, 1)] {
        let access = bus.by_memory(1 << 15 | extended, size).unwrap();
        assert_eq!((bus.read(access), bus.write(access, !0)), (0, None), "{extended:#x}");
        assert_eq!(bus.read(bus.by_memory(extended, size).unwrap()), 0, "of the host bridge");
    }
}

/// DMA and message interrupts hang on it, so that it is told from the bits beside it.
#[test]
fn a_function_is_bus_master_by_one_bit_of_its_command_register() {
    let mut function = nvme();
    let memory_and_io = 3;
    for (command, on) in [(0, false), (memory_and_io, false), (4, true), (7, true), (3, false)] {
        function.write(4, 2, command);
        assert_eq!(function.bus_master(), on, "command {command}");
    }
}

#[test]
fn the_capability_list_is_cut_to_what_is_offered() {
    let f = nvme();
    let mut found = Vec::new();
    let mut next = f.read(0x34, 1);
    while next != 0 {
        found.push((f.read(next as u8, 1), next));
        next = f.read(next as u8 + 1, 1);
    }
    assert_eq!(found, [(0x11, 0x40), (0x10, 0x80), (0x01, 0x60)]);
    assert_eq!(f.read(0x50, 4), 0, "hidden");
    assert_eq!(f.read(0x82, 2), 0x92, "an integrated endpoint");
    assert_eq!(f.read(0x8A, 2), 0, "no error status");
    assert_eq!(f.read(0x8C, 4), 0, "no link");
    assert_eq!(f.read(0x62, 2), 0x01FB, "no PME");
    assert_eq!(f.read(0x64, 2), 0x0008, "D0");
    assert_eq!(f.read(0x3C, 4), 0, "no interrupt pin");
    assert_eq!(f.read(0x04, 2), 0x0400, "INTx is disabled");
    let layout = f.msix_layout().unwrap();
    assert_eq!((layout.entries, layout.table_offset, layout.pba_offset), (65, 0x2000, 0x3000));
}

/// STATUS has its fixed bits and the list's, where there is one; no error of the device's shows.
#[test]
fn status_shows_what_never_changes() {
    let mut c = nvme_config();
    for (physical, shown) in [
        (0xFFFF_u16, 0x06B0),
        (0x0010, 0x0010),
        (0x0230, 0x0230),
        (0xF910, 0x0010),
        (0x0490, 0x0490),
        // Without that bit there is no list, whatever the pointer says.
        (0xFFEF, 0x06A0),
    ] {
        c[6..8].copy_from_slice(&physical.to_le_bytes());
        let f = Function::assigned(&c, &nvme_bars(NVME_BAR)).unwrap();
        assert_eq!(f.read(6, 2), shown, "{physical:#x}");
        let there = shown & 0x10 != 0;
        assert_eq!((f.read(0x34, 1) != 0, f.msix_layout().is_some()), (there, there));
    }
}

/// A second one of a kind isn't offered, nor does it change what the first one offers.
#[test]
fn of_each_capability_the_first_one_counts() {
    let list = |caps: &[(u8, &[u8])]| {
        let mut c = nvme_config();
        c[0x34] = caps[0].0;
        for (index, (at, bytes)) in caps.iter().enumerate() {
            let at = usize::from(*at);
            c[at..at + bytes.len()].copy_from_slice(bytes);
            c[at + 1] = caps.get(index + 1).map_or(0, |(next, _)| *next);
        }
        let f = Function::assigned(&c, &nvme_bars(NVME_BAR)).unwrap();
        let mut found = Vec::new();
        let mut next = f.read(0x34, 1);
        while next != 0 {
            found.push((f.read(next as u8, 1), next));
            next = f.read(next as u8 + 1, 1);
        }
        found
    };
    // A capability of PCI Express with and without function-level reset; power management.
    let express: &[u8] = &[0x10, 0, 0x02, 0, 0x00, 0x80, 0x00, 0x10];
    let msix: &[u8] = &[0x11, 0, 0x40, 0xC0, 0x00, 0x20, 0, 0, 0x00, 0x30, 0, 0];
    let power: &[u8] = &[0x01, 0, 0xFB, 0xFF, 0x03, 0x81];
    assert_eq!(
        list(&[(0x40, express), (0x80, express), (0xC0, msix), (0xD0, power), (0xE0, power)]),
        [(0x10, 0x40), (0x11, 0xC0), (0x01, 0xD0)]
    );
    assert_eq!(list(&[(0x40, msix), (0x50, msix), (0x80, express)]), [(0x11, 0x40), (0x10, 0x80)]);
    let msi: &[u8] = &[0x05, 0, 0x8A, 0x01];
    assert_eq!(list(&[(0x40, msi), (0x60, msi), (0x80, express)]), [(0x05, 0x40), (0x10, 0x80)]);
}

#[test]
fn msix_control_is_the_guests() {
    let mut f = nvme();
    assert_eq!(f.read(0x42, 2), 0x0040, "what the host had set doesn't show");
    assert_eq!(f.write(0x42, 2, 0xFFFF), Actions::MSIX_CONTROL);
    assert_eq!(f.read(0x42, 2), 0xC040);
    assert_eq!(f.msix_control(), crate::msix::Control { enabled: true, masked: true });
    assert_eq!(f.write(0x44, 4, 0xFFFF_FFFF), Actions::empty());
    assert_eq!(f.read(0x44, 4), 0x2000);
}

#[test]
fn msi_carries_one_message() {
    let mut f = card();
    assert_eq!(f.read(0xD2, 2), 0x0180, "one vector, disabled");
    f.write(0xD4, 4, 0xFEE0_1000);
    assert_eq!(f.write(0xDC, 2, 0x0055), Actions::MSI);
    assert_eq!(f.msi().unwrap().written().map(|w| w.message()).transpose(), Ok(None));
    f.write(0xD2, 2, 1);
    let m = f.msi().unwrap().written().map(|w| w.message()).transpose().unwrap().unwrap();
    assert_eq!((m.vector, m.destination), (0x55, 1));
    assert_eq!(f.write(0xE0, 4, 0xFFFF_FFFF), Actions::MSI);
    assert_eq!(
        (f.read(0xE0, 4), f.msi().unwrap().written().map(|w| w.message()).transpose()),
        (1, Ok(None))
    );
    f.write(0xE0, 4, 0);
    f.write(0xD8, 4, 1);
    assert!(f.msi().unwrap().written().map(|w| w.message()).transpose().is_err());
}

#[test]
fn a_function_level_reset_takes_everything_back() {
    let mut f = nvme();
    f.write(4, 2, 6);
    f.write(0x42, 2, 0x8000);
    assert_eq!(f.write(0x88, 2, 0x281F), Actions::empty(), "without bit 15 nothing happens");
    let all = Actions::RESET | Actions::DECODE | Actions::BUS_MASTER;
    let all = all | Actions::BARS_MOVED | Actions::MSIX_CONTROL;
    assert_eq!(f.write(0x88, 2, 0xA81F), all);
    assert_eq!((f.read(4, 2), f.read(0x10, 4), f.read(0x14, 4)), (0x0400, 4, 0));
    assert_eq!(f.read(0x88, 2), 0x281F);
    let mut without = nvme_config();
    without[0x87] = 0;
    let mut f = Function::assigned(&without, &nvme_bars(NVME_BAR)).unwrap();
    assert_eq!(f.write(0x88, 2, 0x8000), Actions::empty());
}

/// Device Control's upper bit (PCIe 5.0, 7.5.3.4), with whatever access it is written.
#[test]
fn a_function_level_reset_is_one_bit_of_one_register() {
    for (offset, size, value, resets) in [
        (0x89, 1, 0x80, true),
        (0x88, 2, 0x8000, true),
        (0x88, 4, 0x8000, true),
        (0x86, 4, 0x8000_0000, true),
        (0x89, 1, 0x7F, false),
        (0x88, 1, 0x80, false),
        (0x88, 2, 0x0080, false),
        (0x89, 2, 0x8000, false),
        (0x8A, 2, 0x8080, false),
    ] {
        let told = nvme().write(offset, size, value).contains(Actions::RESET);
        assert_eq!(told, resets, "{size} bytes at {offset:#x}: {value:#x}");
    }
}

/// PCI 3.0, 6.2.2: decoding of what there is, bus mastering, parity and SERR#.
#[test]
fn the_command_register_has_the_bits_of_what_is_there() {
    let bare = Function::assigned(&[0; 256], &[None; 6]).unwrap();
    for (mut f, bits) in [(nvme(), 0x546), (card(), 0x547), (bare, 0x544)] {
        f.write(4, 2, 0xFFFF);
        assert_eq!(f.read(4, 2), bits);
        f.write(4, 2, 0);
        assert_eq!(f.read(4, 2), 0x400, "no INTx, whatever is written");
        f.write(0xC, 4, !0);
        assert_eq!(f.read(0xC, 4), 0xFF, "the cache line size is the guest's");
    }
    let mut f = card();
    for (value, told) in [
        (1, Actions::DECODE),
        (3, Actions::DECODE),
        (7, Actions::BUS_MASTER),
        (0x147, Actions::empty()),
        (0x143, Actions::BUS_MASTER),
        (0x140, Actions::DECODE),
    ] {
        assert_eq!(f.write(4, 2, value), told, "{value:#x}");
    }
}

#[test]
fn what_cannot_be_assigned_is_refused_with_a_sentence() {
    let refuse = |edit: &dyn Fn(&mut [u8; 256]), bars: [Option<BarInfo>; 6]| {
        let mut config = nvme_config();
        edit(&mut config);
        Function::assigned(&config, &bars).unwrap_err().to_string()
    };
    let good = nvme_bars(NVME_BAR);
    assert!(refuse(&|c| c[0x0E] = 0x81, good).contains("header type 1"));
    assert!(refuse(&|c| c[0x61] = 0x40, good).contains("loop"));
    assert!(refuse(&|c| c[0x61] = 0x10, good).contains("0x10"));
    assert!(refuse(&|c| (c[0x61], c[0xFC]) = (0xFC, 0x05), good).contains("0xfc"));
    assert!(refuse(&|_| (), [None; 6]).contains("MSI-X table"));
    assert!(refuse(&|_| (), nvme_bars(NVME_BAR + 0x1000)).contains("multiple"));
    let mut two = good;
    two[1] = good[0];
    assert!(refuse(&|_| (), two).contains("64-bit BAR 0"));
    let mut bus = Bus::new();
    for device in 1..=MAX_FUNCTIONS {
        assert_eq!(bus.assign(nvme()), Ok(device as u8));
    }
    assert_eq!(bus.assign(nvme()), Err(BusFull));
}

proptest! {
    #[test]
    fn a_hostile_guest_changes_only_its_bits_and_maps_only_in_windows(
        steps in prop::collection::vec((
            prop_oneof![any::<u32>(), (0u32..4, 0u32..0x40).prop_map(|(d, r)| address(d, r * 4))],
            0u8..5,
            prop::sample::select(vec![0u8, 1, 2, 3, 4, 8, 255]),
            prop_oneof![any::<u32>(), Just(u32::MAX), Just(0xC000_0000), Just(0x40), Just(7)],
        ), 0..200),
    ) {
        let mut bus = bus();
        let fixed = |f: &Function| [0x00, 0x08, 0x2C, 0x30, 0x34, 0x3C, 0x44, 0x48, 0x60].map(|r| f.read(r, 4));
        let before: Vec<_> = bus.functions().iter().map(fixed).collect();
        for (at, offset, size, value) in steps {
            bus.write_address(at);
            let read = bus.read_data(offset, size);
            prop_assert!(size != 1 || read <= 0xFF);
            bus.write_data(offset, size, value);
            if let Some(access) = bus.by_memory(at.into(), size) {
                prop_assert!(size != 1 || bus.read(access) <= 0xFF);
                bus.write(access, value);
            }
            let mut mapped: Vec<(u64, u64)> = Vec::new();
            for (i, f) in bus.functions().iter().enumerate() {
                for b in 0..7 {
                    let Ok(Some(start)) = bus.placement(i, b) else { continue };
                    let bar = f.bar(b).unwrap();
                    let end = start + bar.size;
                    prop_assert!(start.is_multiple_of(bar.size));
                    if bar.kind.is_io() {
                        prop_assert!(start >= 0x1000 && end <= 0x1_0000);
                        continue;
                    }
                    prop_assert!(
                        (start >= 0xC000_0000 && end <= 0xE000_0000)
                            || (start >= 0x40_0000_0000 && end <= 0x50_0000_0000)
                    );
                    prop_assert!(mapped.iter().all(|(s, e)| end <= *s || start >= *e));
                    mapped.push((start, end));
                }
            }
        }
        let after: Vec<_> = bus.functions().iter().map(fixed).collect();
        prop_assert_eq!(before, after);
    }

    #[test]
    fn any_physical_config_space_is_taken_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 256),
        chain in prop::collection::vec((0x0Fu8..0x40, prop::sample::select(vec![1u8, 5, 9, 0x10, 0x11])), 0..6),
        offsets in prop::collection::vec((any::<u8>(), any::<u32>()), 0..50),
        size_log in 0u32..64,
    ) {
        let mut config: [u8; 256] = bytes.try_into().unwrap();
        config[0x0E] = 0;
        config[6] |= 0x10;
        let mut link = 0x34;
        for (dword, id) in chain {
            config[link] = dword * 4;
            link = usize::from(dword) * 4 + 1;
            config[link - 1] = id;
        }
        config[link] = 0;
        let bars = [mem64(1 << size_log, 0), None, None, None, None, None];
        if let Ok(mut f) = Function::assigned(&config, &bars) {
            for (offset, value) in offsets {
                f.write(offset, 4, value);
                f.read(offset, 4);
                let _ = f.msi().and_then(|m| m.written()).map(|w| w.message());
                let _ = f.placement(0);
            }
            prop_assert_eq!(f.read(0, 4), u32::from_le_bytes(config[..4].try_into().unwrap()));
        }
    }
}
