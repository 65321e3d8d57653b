//! Where a guest puts BARs.

use super::*;

#[test]
fn bars_size_and_move_and_follow_memory_decode() {
    let mut bus = bus();
    assert_eq!((read(&mut bus, 1, 0x10), read(&mut bus, 1, 0x14)), (4, 0x40));
    assert_eq!(bus.placement(0, 0), Ok(None), "decode is off at first");
    assert_eq!(write(&mut bus, 1, 4, 6), Actions::DECODE | Actions::BUS_MASTER);
    assert_eq!(bus.placement(0, 0), Ok(Some(NVME_BAR)));
    write(&mut bus, 1, 4, 0);
    write(&mut bus, 1, 0x10, 0xFFFF_FFFF);
    write(&mut bus, 1, 0x14, 0xFFFF_FFFF);
    assert_eq!((read(&mut bus, 1, 0x10), read(&mut bus, 1, 0x14)), (0xFFFF_C004, 0xFFFF_FFFF));
    assert_eq!(write(&mut bus, 1, 0x10, 0xD000_0000), Actions::BARS_MOVED);
    write(&mut bus, 1, 0x14, 0);
    write(&mut bus, 1, 4, 2);
    assert_eq!(bus.placement(0, 0), Ok(Some(0xD000_0000)));
    assert_eq!(bus.placement(0, 1), Ok(None), "an upper half is no BAR");
    for unimplemented in [0x18, 0x1C, 0x20, 0x24, 0x30] {
        write(&mut bus, 1, unimplemented, 0xFFFF_FFFF);
        assert_eq!(read(&mut bus, 1, unimplemented), 0);
    }
    write(&mut bus, 2, 0x14, 0xFFFF_FFFF);
    assert_eq!(read(&mut bus, 2, 0x14), 0xFFFF_FFE1);
    write(&mut bus, 2, 0x10, 0xFFFF_FFFF);
    assert_eq!(read(&mut bus, 2, 0x10), 0xFFFE_0008);
}

#[test]
fn a_bar_over_ram_the_ioapic_or_another_bar_is_not_mapped() {
    let mut bus = bus();
    write(&mut bus, 1, 4, 2);
    write(&mut bus, 2, 4, 3);
    for (high, low) in [(0, 0), (0, 0xFEC0_0000), (1, 0), (0x50, 0), (0, 0xDFFF_F000 + 0x1000)] {
        write(&mut bus, 1, 0x14, high);
        write(&mut bus, 1, 0x10, low);
        let refused = bus.placement(0, 0).unwrap_err();
        assert!(refused.to_string().contains("outside the PCI windows"), "{refused}");
    }
    write(&mut bus, 1, 0x14, 0);
    write(&mut bus, 1, 0x10, 0xC001_C000);
    let overlap = bus.placement(0, 0).unwrap_err().to_string();
    assert!(overlap.contains("00:02.0"), "{overlap}");
    assert!(matches!(bus.placement(1, 0), Err(Misplaced::Overlap { device: 1, bar: 0, .. })));
    assert_eq!(bus.placement(1, 1), Ok(Some(0x1000)), "ports are another space");
    write(&mut bus, 2, 4, 1);
    assert_eq!(bus.placement(0, 0), Ok(Some(0xC001_C000)), "the other no longer decodes");
}

#[test]
fn each_bar_that_moves_is_told_of() {
    let bars = [(); 6].map(|()| {
        let kind = BarKind::Mem32;
        Some(BarInfo { kind, size: 0x1000, prefetchable: false, address: 0xC000_0000 })
    });
    let mut f = Function::assigned(&[0; 256], &bars).unwrap();
    for (bar, physical) in bars.iter().enumerate() {
        let register = 0x10 + 4 * bar as u8;
        assert_eq!(f.write(register, 4, 0xC000_0000), Actions::empty(), "it is there already");
        assert_eq!(f.write(register, 4, 0xD000_0000), Actions::BARS_MOVED, "BAR {bar}");
        assert_eq!(f.bar(bar), *physical);
    }
    assert_eq!((f.bar(6), f.write(0x28, 4, !0)), (None, Actions::empty()));
}

#[test]
fn bars_side_by_side_are_both_mapped() {
    let mut bus = bus();
    write(&mut bus, 1, 4, 2);
    write(&mut bus, 2, 4, 2);
    write(&mut bus, 1, 0x14, 0);
    // The card's BAR has 128 KiB, the other one 16 KiB.
    write(&mut bus, 2, 0x10, 0xC004_0000);
    for (at, apart) in
        [(0xC003_C000, true), (0xC004_0000, false), (0xC005_C000, false), (0xC006_0000, true)]
    {
        write(&mut bus, 1, 0x10, at);
        let (one, other) = (bus.placement(0, 0), bus.placement(1, 0));
        assert_eq!((one.is_ok(), other.is_ok()), (apart, apart), "{at:#x}");
        assert!(!apart || one == Ok(Some(at.into())));
    }
}

#[test]
fn first_addresses_are_in_their_windows_and_apart() {
    let mut free = Addresses::new();
    assert_eq!(free.choose(BarKind::Mem32, 0x1000), Some(0xC000_0000));
    assert_eq!(free.choose(BarKind::Mem32, 0x10_0000), Some(0xC010_0000));
    assert_eq!(free.choose(BarKind::Mem32, 1 << 30), None);
    assert_eq!(free.choose(BarKind::Mem32, 0x1000), Some(0xC020_0000));
    assert_eq!(free.choose(BarKind::Mem64, 0x4000), Some(NVME_BAR));
    assert_eq!(free.choose(BarKind::Mem64, u64::MAX), None);
    assert_eq!(free.choose(BarKind::Io, 32), Some(0x1000));
}
