//! A virtio device's configuration space, as a driver reads it.

use super::*;
use crate::pci::tests::DataPort;
use crate::pci::{Actions, BarKind, Bus};
use proptest::prelude::*;

const BLOCK: Identity = Identity {
    vendor: 0x1AF4,
    device: 0x1042,
    revision: 1,
    class: 0x01_80_00,
    subsystem_vendor: 0x1AF4,
    subsystem: 0x1042,
};
const ADDRESS: u64 = 0x40_0000_0000;
const LAYOUT: MsixLayout =
    MsixLayout { entries: 9, table_bar: 4, table_offset: 0x4000, pba_bar: 4, pba_offset: 0x5000 };

fn bars() -> [Option<BarInfo>; 6] {
    let kind = BarKind::Mem64;
    let bar = BarInfo { kind, size: 0x8000, prefetchable: true, address: ADDRESS };
    [None, None, None, None, Some(bar), None]
}

fn place(structure: Structure, offset: u32, length: u32) -> Place {
    Place { structure, bar: 4, offset, length }
}

fn places() -> [Place; 4] {
    [
        place(Structure::Common, 0, 56),
        place(Structure::Isr, 0x1000, 1),
        place(Structure::Device, 0x2000, 60),
        place(Structure::Notify { multiplier: 4 }, 0x3000, 0x1000),
    ]
}

fn block() -> Function {
    Function::paravirtual(&BLOCK, &bars(), Some(LAYOUT), &places()).unwrap()
}

/// The place of each capability, as a driver finds them.
fn list(f: &Function) -> Vec<(u32, u8)> {
    let mut found = Vec::new();
    let mut next = f.read(0x34, 1) as u8;
    while next != 0 {
        found.push((f.read(next, 1), next));
        next = f.read(next + 1, 1) as u8;
    }
    found
}

/// The window's capability.
fn window(f: &Function) -> u8 {
    list(f).last().unwrap().1
}

#[test]
fn the_header_says_what_it_is() {
    let f = block();
    assert_eq!(
        (f.read(0, 4), f.read(8, 4), f.read(0x2C, 4)),
        (0x1042_1AF4, 0x0180_0001, 0x1042_1AF4)
    );
    assert_eq!((f.read(0x0E, 1), f.read(0x3C, 4)), (0, 0), "one function, no interrupt pin");
    assert_eq!((f.read(4, 2), f.read(6, 2)), (0x0400, 0x0010));
    assert_eq!((f.read(0x20, 4), f.read(0x24, 4)), (0xC, 0x40));
    assert_eq!(f.msi(), None);
}

/// Virtio 1.2, 4.1.4: kind, BAR, offset, length; the multiplier at 16.
#[test]
fn each_structure_has_its_capability() {
    let f = block();
    let list = list(&f);
    let ids: Vec<_> = list.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [0x11, 9, 9, 9, 9, 9]);
    let wanted = [
        (0x01_10, 0, 56, None),
        (0x03_10, 0x1000, 1, None),
        (0x04_10, 0x2000, 60, None),
        (0x02_14, 0x3000, 0x1000, Some(4)),
    ];
    for ((_, at), (head, offset, length, word)) in list[1..].iter().zip(wanted) {
        assert_eq!((f.read(at + 2, 2), f.read(at + 4, 4)), (head, 4));
        assert_eq!((f.read(at + 8, 4), f.read(at + 12, 4)), (offset, length));
        assert!(word.is_none_or(|word| f.read(at + 16, 4) == word));
    }
    let at = window(&f);
    assert_eq!((f.read(at + 2, 2), f.read(at + 4, 4)), (0x05_14, 0));
    assert_eq!((f.read(at + 8, 4), f.read(at + 12, 4), f.read(at + 16, 4)), (0, 0, 0));
}

#[test]
fn msix_is_where_the_host_has_it() {
    let mut f = block();
    let at = list(&f)[0].1;
    assert_eq!((f.read(at + 2, 2), f.read(at + 4, 4), f.read(at + 8, 4)), (8, 0x4004, 0x5004));
    assert_eq!(f.msix_layout(), Some(LAYOUT));
    assert_eq!(f.write(at + 2, 2, 0xFFFF), Actions::MSIX_CONTROL);
    assert!(f.msix_control().enabled && f.msix_control().masked);
    let without = Function::paravirtual(&BLOCK, &bars(), None, &places()).unwrap();
    assert_eq!((list(&without).len(), without.msix_layout()), (5, None));
}

#[test]
fn its_bar_moves_and_its_dma_is_the_guests() {
    let mut f = block();
    assert_eq!(f.placement(4), Ok(None));
    assert_eq!(f.write(4, 2, 0xFFFF), Actions::DECODE | Actions::BUS_MASTER);
    assert!(f.bus_master());
    assert_eq!((f.read(4, 2), f.placement(4)), (0x0546, Ok(Some(ADDRESS))), "no ports");
    assert_eq!(f.write(0x20, 4, !0), Actions::BARS_MOVED);
    assert_eq!(f.read(0x20, 4), 0xFFFF_800C);
}

/// 4.1.4.9: an access to `pci_cfg_data` is one to the BAR.
#[test]
fn the_window_is_where_the_guest_points_it() {
    let mut bus = Bus::new();
    assert_eq!(bus.assign(block()), Ok(1));
    let address = 0x8000_0800 + u32::from(window(&block()));
    let mut write = |register: u32, value: u32| {
        bus.write_address(address + register);
        assert_eq!(bus.write_data(0, 4, value), Some((0, Actions::empty())));
        bus.write_address(address + 16);
        [1, 2, 4].map(|size| {
            bus.by_port(0, size).and_then(|access| bus.window(access)).map(|(index, window)| {
                assert_eq!(index, 0);
                window
            })
        })
    };
    assert_eq!(write(4, 4), [None; 3], "no length yet");
    let of = |offset, size| Some(Window { bar: 4, offset, size });
    assert_eq!(write(12, 4), [None, None, of(0, 4)]);
    assert_eq!(write(8, 0x7FFC), [None, None, of(0x7FFC, 4)]);
    assert_eq!(write(8, 0x8000), [None; 3], "beyond the BAR");
    assert_eq!(write(8, 0xFFFF_FFFC), [None; 3]);
    assert_eq!(write(8, 2), [None; 3], "not aligned");
    assert_eq!(write(12, 2), [None, of(2, 2), of(2, 2)]);
    assert_eq!(write(12, 3), [None; 3]);
    assert_eq!(write(12, 1), [of(2, 1); 3]);
    for bar in [0, 5, 6, 0xFF] {
        assert_eq!(write(4, bar), [None; 3], "no such BAR");
    }
    write(4, 4);
    assert_eq!(write(16, !0), [of(2, 1); 3]);
    assert_eq!(bus.read_data(0, 4), 0, "the data isn't kept");
    assert_eq!(bus.by_port(1, 1).and_then(|access| bus.window(access)), None);
    assert_eq!(bus.by_port(4, 1).and_then(|access| bus.window(access)), None);
    bus.write_address(address);
    assert_eq!(bus.by_port(0, 4).and_then(|access| bus.window(access)), None);
    bus.write_address(address + 16 - 0x800);
    assert_eq!(
        bus.by_port(0, 4).and_then(|access| bus.window(access)),
        None,
        "the host bridge has none"
    );
}

#[test]
fn what_cannot_be_is_refused() {
    let make = |places: &[Place]| Function::paravirtual(&BLOCK, &bars(), Some(LAYOUT), places);
    let outside = |place: Place, end| {
        let refused = make(&[place]).unwrap_err();
        assert_eq!(refused, Unsuitable::StructureOutside { bar: place.bar, end });
    };
    assert!(make(&[place(Structure::Common, 0x7F00, 0x100)]).is_ok());
    outside(place(Structure::Common, 0x7F00, 0x101), 0x8001);
    outside(place(Structure::Isr, u32::MAX, u32::MAX), 2 * u64::from(u32::MAX));
    outside(Place { bar: 5, ..places()[0] }, 56);
    outside(Place { bar: 6, ..places()[0] }, 56);
    let none = Function::paravirtual(&BLOCK, &[None; 6], Some(LAYOUT), &[]).unwrap_err();
    assert!(none.to_string().contains("MSI-X table"), "{none}");
    // 12 bytes and 20 at the end: there is room for ten of 16.
    assert!(make(&[places()[0]; 10]).is_ok());
    assert_eq!(make(&[places()[0]; 11]).unwrap_err(), Unsuitable::Capability { offset: 0xFC });
    assert!(make(&[places()[0]; 12]).is_err());
}

proptest! {
    /// A window never leads out of a BAR, and nothing but the guest's bits changes.
    #[test]
    fn a_hostile_guest_reaches_its_bar_and_no_further(
        writes in prop::collection::vec((any::<u8>(), prop::sample::select(vec![1u8, 2, 4]),
            prop_oneof![any::<u32>(), 0u32..8, Just(0x7FFC)]), 0..100),
    ) {
        let mut f = block();
        let at = window(&f);
        let fixed = |f: &Function| [0x00, 0x08, 0x2C, 0x34, 0x44, 0x48, 0x4C, 0x50, 0x54, 0x58].map(|r| f.read(r, 4));
        let before = fixed(&f);
        for (register, size, value) in writes {
            let register = if register < 0x80 { at + register % 20 } else { register };
            f.write(register, size, value);
            if let Some(w) = f.window(at + 16, 4) {
                let size = f.bar(w.bar.into()).unwrap().size;
                prop_assert!(u64::from(w.offset) + u64::from(w.size) <= size);
            }
            prop_assert_eq!(f.read(at + 16, 4), 0);
        }
        prop_assert_eq!(before, fixed(&f));
    }
}
