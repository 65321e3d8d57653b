use super::*;
use crate::MAX_QUEUES;

#[test]
fn the_header_is_a_modern_functions() {
    let kinds =
        [(Kind::Net, 0x1041, 0x0200), (Kind::Block, 0x1042, 0x0100), (Kind::Iommu, 0x1057, 0x0806)];
    for (kind, id, class) in kinds {
        let function = on_bus(kind, 2, 60, 0xC000_0000).unwrap();
        assert_eq!(function.read(0, 4), id << 16 | 0x1AF4);
        assert_eq!(function.read(8, 4), class << 16 | 1);
        assert_eq!(function.read(0x2C, 4), 0x40_1AF4);
        assert_eq!((function.read(0x0E, 1), function.read(0x3D, 1)), (0, 0), "no interrupt pin");
        assert_eq!(function.read(0x10, 4), 0xC000_0000, "32 bits, not prefetchable");
    }
}

#[test]
fn msi_x_is_where_the_bar_has_it() {
    for queues in 1..=MAX_QUEUES as u16 {
        let function = on_bus(Kind::Block, queues, 60, 0).unwrap();
        assert_eq!(function.msix_layout(), Some(bar::msix(queues)));
        assert!(function.msi().is_none());
    }
}

#[test]
fn the_bar_is_at_a_multiple_of_its_size() {
    assert!(on_bus(Kind::Net, 1, 12, bar::SIZE / 2).is_err());
    assert!(on_bus(Kind::Net, 1, 12, 1 << 32).is_err());
}
