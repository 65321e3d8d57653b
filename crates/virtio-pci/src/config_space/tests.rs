use super::*;
use virtual_pc::pci::{AssignedFunction, BarInfo, BarKind};

#[test]
fn the_header_is_a_modern_functions() {
    for (kind, id, class) in [(Kind::Net, 0x41, 2), (Kind::Block, 0x42, 1)] {
        let space = space(kind, 2, 64);
        assert_eq!(space[..4], [0xF4, 0x1A, id, 0x10]);
        assert_eq!(space[8..12], [1, 0, 0, class]);
        assert_eq!(space[0x2C..0x30], [0xF4, 0x1A, 0x40, 0]);
        assert_eq!((space[6], space[0xE], space[0x3D]), (1 << 4, 0, 0), "no interrupt pin");
    }
}

/// The bus takes it, and finds its MSI-X where the BAR has it.
#[test]
fn the_bus_finds_msi_x() {
    for queues in 1..=crate::MAX_QUEUES as u16 {
        let mut bars = [None; 6];
        let (kind, size) = (BarKind::Mem32, bar::SIZE);
        bars[0] = Some(BarInfo { kind, size, prefetchable: false, address: 0xC000_0000 });
        let function = AssignedFunction::new(&space(Kind::Block, queues, 64), &bars).unwrap();
        assert_eq!(function.msix_layout(), Some(bar::msix(queues)));
        assert!(function.msi().is_none());
    }
}

#[test]
fn the_guests_bits_are_in_the_window_alone() {
    let space = space(Kind::Net, 1, 12);
    for (at, _) in GUEST_BITS {
        let at = usize::from(at);
        assert!((WINDOW_AT..WINDOW_AT + usize::from(space[WINDOW_AT + 2])).contains(&at));
        assert_eq!(space[at..at + 4], [0; 4]);
    }
}

#[test]
fn the_window_leads_to_aligned_accesses_of_the_bar() {
    assert_eq!(window(0, 0x14, 1), Some((0x14, 1)));
    assert_eq!(window(0, 0x3002, 2), Some((0x3002, 2)));
    assert_eq!(window(0, u32::MAX - 3, 4), Some((0xFFFF_FFFC, 4)));
    for (bar, offset, length) in [(1, 0, 4), (0, 2, 4), (0, 0, 8), (0, 0, 0), (0, 0, 3)] {
        assert_eq!(window(bar, offset, length), None);
    }
}
