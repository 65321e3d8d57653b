//! The functions of device 0.

use super::*;

/// As Linux' amd_iommu looks for it: the device has several functions, and one of them is a unit's.
#[test]
fn an_iommu_is_beside_the_host_bridge_and_is_only_read() {
    let mut bus = bus();
    let of = |bus: &Bus, function: u64, register: u64| {
        bus.read(bus.by_memory(function * 4096 + register, 4).unwrap())
    };
    let bridge: Vec<_> = (0..64).map(|at| of(&bus, 0, 4 * at)).collect();
    assert_eq!((of(&bus, 2, 0), bridge[0], bridge[2]), (!0, 0x0008_1B36, 0x0600_0000));
    assert!(bridge[3..].iter().all(|word| *word == 0), "{bridge:x?}");
    bus.set_iommu([1, 2, 3, 4, 5, 6]);
    for at in 0..64 {
        let several = if at == 3 { 0x80_0000 } else { 0 };
        assert_eq!(of(&bus, 0, 4 * at), bridge[at as usize] | several, "the bridge's {at}");
        let wanted = match at {
            0 => 0x1419_1022,
            1 => 0x10_0000,
            2 => 0x0806_0000,
            3 => 0x80_0000,
            13 => 0x40,
            16..22 => at as u32 - 15,
            _ => 0,
        };
        assert_eq!(of(&bus, 2, 4 * at), wanted, "the IOMMU's {at}");
        let access = bus.by_memory(0x2000 + 4 * at, 4).unwrap();
        assert_eq!((bus.write(access, !0), of(&bus, 2, 4 * at)), (None, wanted));
    }
    assert_eq!((of(&bus, 1, 0), of(&bus, 3, 0), of(&bus, 2 | 1 << 3, 0)), (!0, !0, !0));
    // Device 1 and the rest are where they were.
    assert_eq!(of(&bus, 8, 0), nvme().read(0, 4));
}
