//! Each capability, field by field, as the guest reads and writes it.

use super::*;
use crate::pci::{Actions, BarInfo, BarKind, Function, Msi};

const BAR_SIZE: u64 = 0x1000;

fn bar(kind: BarKind) -> Option<BarInfo> {
    Some(BarInfo { kind, size: BAR_SIZE, prefetchable: false, address: 0 })
}

/// A function with these capabilities (offset, bytes from the id on) in this order; what of them
/// lies beyond 256 bytes isn't there.
fn with(capabilities: &[(usize, &[u8])]) -> Result<Function, Unsuitable> {
    let mut config = [0; 256];
    config[STATUS] = STATUS_CAPABILITIES;
    let mut link = POINTER;
    for (at, bytes) in capabilities {
        config[link] = *at as u8;
        config.iter_mut().skip(*at).zip(*bytes).for_each(|(to, from)| *to = *from);
        link = at + 1;
    }
    config[link] = 0;
    let (memory, ports) = (bar(BarKind::Mem32), bar(BarKind::Io));
    Function::assigned(&config, &[memory, None, memory, ports, memory, None])
}

fn msi(wide: bool, maskable: bool) -> [u8; 4] {
    [MSI, 0, if wide { 0x8F } else { 0x0F }, maskable.into()]
}

/// So many entries, the table and the pending bits: each an offset with the BAR's number in it.
fn msix(entries: u16, table: u32, pending: u32) -> Vec<u8> {
    let [low, high] = (entries - 1).to_le_bytes();
    [&[MSIX, 0, low, high][..], &table.to_le_bytes(), &pending.to_le_bytes()].concat()
}

#[test]
fn a_capability_may_end_where_the_space_ends_and_not_beyond() {
    for (bytes, length) in [
        (&[POWER_MANAGEMENT][..], 8),
        (&msi(false, false), 10),
        (&msi(true, false), 14),
        (&msi(false, true), 20),
        (&msi(true, true), 24),
        (&[EXPRESS, 0, 1], 0x14),
        (&[EXPRESS, 0, 2], 0x3C),
        (&msix(1, 0, 0), 12),
    ] {
        // Capabilities are at multiples of 4.
        let last = (256 - length) & !3;
        assert!(with(&[(last, bytes)]).is_ok(), "{bytes:x?}");
        let refused = with(&[(last + 4, bytes)]).err();
        assert_eq!(refused, Some(Unsuitable::Capability { offset: last as u8 + 4 }), "{bytes:x?}");
    }
}

/// PCI 3.0, 6.8.1, figure 6-9: what a guest can write, by which of the four forms it is.
#[test]
fn each_form_of_msi_has_its_own_layout() {
    const AT: u8 = 0x50;
    for (wide, maskable, writable) in [
        (false, false, [!3, 0xFFFF, 0, 0, 0]),
        (true, false, [!3, !0, 0xFFFF, 0, 0]),
        (false, true, [!3, 0xFFFF, 1, 0, 0]),
        (true, true, [!3, !0, 0xFFFF, 1, 0]),
    ] {
        let mut f = with(&[(AT.into(), &msi(wide, maskable))]).unwrap();
        let control = u32::from(wide) << 7 | u32::from(maskable) << 8;
        assert_eq!(f.read(AT + 2, 2), control, "one vector, off");
        f.write(AT + 2, 2, 0xFFFF);
        assert_eq!(f.read(AT + 2, 2), control | 1);
        let registers = [4, 8, 12, 16, 20].map(|offset| AT + offset);
        registers.iter().for_each(|register| _ = f.write(*register, 4, !0));
        assert_eq!(registers.map(|register| f.read(register, 4)), writable);
        let high = if wide { 0xFFFF_FFFF_0000_0000 } else { 0 };
        let address = high | 0xFFFF_FFFC;
        let ones = Msi { enabled: true, masked: maskable, address, data: 0xFFFF };
        assert_eq!(f.msi(), Some(ones), "64 bits: {wide}, maskable: {maskable}");
        registers.iter().for_each(|register| _ = f.write(*register, 4, 0));
        f.write(AT + 2, 2, 0);
        assert_eq!(f.msi(), Some(Msi { enabled: false, masked: false, address: 0, data: 0 }));
    }
}

/// PCIe 5.0, 7.5.3: no link, slot or root; version 2 has a second set of device registers.
#[test]
fn of_pci_express_the_device_registers_are_shown() {
    const AT: u8 = 0x80;
    let of = |flags: u8| {
        let mut bytes = [0xFF; 0x3C];
        (bytes[0], bytes[2]) = (EXPRESS, flags);
        with(&[(AT.into(), &bytes)]).unwrap()
    };
    for (kind, shown) in [(0, 9), (1, 9), (4, 4), (9, 9)] {
        assert_eq!(of(kind << 4 | 2).read(AT + 2, 2), shown << 4 | 2, "type {kind}");
    }
    for (version, second) in [(1, false), (2, true), (3, true)] {
        let f = of(version);
        let only = |yes: bool, bits: u32| if yes { bits } else { 0 };
        let registers = [4, 8, 0xC, 0x10, 0x14, 0x20, 0x24, 0x28, 0x2C, 0x38];
        assert_eq!(
            registers.map(|register| f.read(AT + register, 4)),
            [!0, 0x7FFF, 0, 0, 0, 0, only(second, !0), only(second, 0xFFFF), 0, 0],
            "version {version}"
        );
    }
}

#[test]
fn msix_structures_lie_within_memory_bars() {
    let layout = |entries, table, pending| {
        with(&[(0x40, &msix(entries, table, pending))]).map(|f| f.msix_layout().unwrap())
    };
    let outside = |bar, end| Err(Unsuitable::MsixOutside { bar, end });
    let (table_bar, pba_bar) = (2, 4);
    let fits =
        MsixLayout { entries: 8, table_bar, table_offset: 0xF80, pba_bar, pba_offset: 0xFF8 };
    assert_eq!(layout(8, 0xF82, 0xFFC), Ok(fits), "up to the BARs' ends");
    assert_eq!(layout(9, 0xF82, 0xFFC), outside(2, 0x1010));
    assert_eq!(layout(8, 0xF8A, 0xFFC), outside(2, 0x1008));
    assert_eq!(layout(65, 2, 0xFFC), outside(4, 0x1008), "65 pending bits are 16 bytes");
    assert_eq!(layout(8, 3, 0), outside(3, 0x80), "ports");
    assert_eq!(layout(8, 0, 1), outside(1, 8), "no BAR");
    assert_eq!(layout(8, 7, 0), outside(7, 0x80), "no such BAR");
    assert_eq!(layout(2048, 2, 0), outside(2, 0x8000), "the most there can be");
}

#[test]
fn a_write_tells_of_the_capability_that_it_changed_and_of_no_other() {
    let (msi, msix) = (msi(true, true), msix(4, 0, 0x800));
    // Back to back, in either order: MSI has 24 bytes, MSI-X has 12.
    for (msi_at, msix_at) in [(0x50, 0x68), (0x5C, 0x50)] {
        for register in (0x40..0x100).step_by(4) {
            let mut f = with(&[(msi_at, &msi), (msix_at, &msix)]).unwrap();
            let told = match register {
                at if at == msix_at => Actions::MSIX_CONTROL,
                // All but the pending bits.
                at if (msi_at..msi_at + 20).contains(&at) => Actions::MSI,
                _ => Actions::empty(),
            };
            assert_eq!(f.write(register as u8, 4, !0), told, "{register:#x}, MSI at {msi_at:#x}");
        }
    }
}

#[test]
fn msix_is_enabled_by_one_bit_and_masked_by_another() {
    let mut f = with(&[(0x40, &msix(4, 0, 0x800))]).unwrap();
    for (value, enabled, masked) in
        [(0x3FFF, false, false), (0x4000, false, true), (0x8000, true, false), (0, false, false)]
    {
        f.write(0x42, 2, value);
        let control = f.msix_control();
        assert_eq!((control.enabled, control.masked), (enabled, masked), "{value:#x}");
    }
    let none = with(&[(0x40, &[POWER_MANAGEMENT])]).unwrap();
    assert_eq!(none.msix_control(), crate::msix::Control::default(), "no MSI-X");
    assert_eq!((none.msix_layout(), none.msi()), (None, None));
}
