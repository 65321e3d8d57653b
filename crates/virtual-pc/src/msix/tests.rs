//! The MSI-X table against what was written to it.

use super::*;
use crate::pci::MsixLayout;
use proptest::prelude::*;

const ON: Control = Control { enabled: true, masked: false };

#[test]
fn linux_programs_an_entry_and_unmasks_it() {
    let mut t = Table::new([Entry::RESET; 4]);
    assert_eq!(t.read(16 + 12, 4), 1, "masked at reset");
    assert_eq!(t.write(16, 4, 0xFEE0_2000), Some(1));
    assert_eq!(t.write(20, 4, 0), None, "nothing changed");
    assert_eq!(t.write(24, 4, 0x44), Some(1));
    assert_eq!(t.written(1, ON).map(|w| w.message()).transpose(), Ok(None));
    assert_eq!(t.write(28, 4, 0xFFFF_FFFE), Some(1));
    let m = t.written(1, ON).map(|w| w.message()).transpose().unwrap().unwrap();
    assert_eq!((m.vector, m.destination), (0x44, 2));
    for off in [Control { masked: true, ..ON }, Control::default()] {
        assert_eq!(t.written(1, off).map(|w| w.message()).transpose(), Ok(None));
    }
    t.reset();
    assert_eq!(t.entries(), [Entry::RESET; 4]);
}

#[test]
fn nonsense_in_an_entry_is_refused_with_a_sentence() {
    let mut t = Table::new(vec![Entry::RESET; 1]);
    t.write(0, 8, 0x1234_5678);
    t.write(8, 8, 0x31);
    assert!(
        t.written(0, ON)
            .map(|w| w.message())
            .transpose()
            .unwrap_err()
            .to_string()
            .contains("0x12345678")
    );
    assert_eq!(t.written(1, ON).map(|w| w.message()).transpose(), Ok(None));
    assert_eq!(t.written(usize::MAX, ON).map(|w| w.message()).transpose(), Ok(None));
}

#[test]
fn intercepted_pages_round_outward() {
    assert_eq!(intercepted_pages(0x2000, 0x410), 0x2000..0x3000);
    assert_eq!(intercepted_pages(0x2FF0, 0x20), 0x2000..0x4000);
    assert_eq!(intercepted_pages(0x2000, 0x1000), 0x2000..0x3000);
    assert_eq!(intercepted_pages(0x2008, 0), 0x2000..0x2000);
    assert_eq!((table_bytes(2048), pending_bytes(65), pending_bytes(64)), (32768, 16, 8));
}

/// What touches the structure by a byte is the structure's, in its own BAR alone.
#[test]
fn regions_begin_and_end_at_a_byte() {
    let (table_bar, pba_bar) = (2, 4);
    let layout =
        MsixLayout { entries: 65, table_bar, table_offset: 0x800, pba_bar, pba_offset: 0x100 };
    for (offset, size, region) in [
        (0x7FF, 1, Region::Device),
        (0x7FC, 4, Region::Device),
        (0x7FD, 4, Region::Table(u64::MAX)),
        (0x800, 1, Region::Table(0)),
        (0xC0F, 1, Region::Table(0x40F)),
        (0xC10, 4, Region::Device),
    ] {
        assert_eq!(layout.region(2, offset, size), region, "{offset:#x}");
    }
    for (offset, size, region) in [
        (0xFF, 1, Region::Device),
        (0xFC, 4, Region::Device),
        (0xFD, 4, Region::PendingBits),
        (0x10F, 1, Region::PendingBits),
        (0x110, 8, Region::Device),
    ] {
        assert_eq!(layout.region(4, offset, size), region, "{offset:#x}");
    }
    for (bar, offset) in [(2, 0x100), (4, 0x800), (3, 0x800), (3, 0x100)] {
        assert_eq!(layout.region(bar, offset, 4), Region::Device, "BAR {bar}");
    }
}

#[test]
fn regions_of_a_page_that_holds_table_pending_bits_and_registers() {
    let layout = MsixLayout {
        entries: 3,
        table_bar: 0,
        table_offset: 0x2000,
        pba_bar: 0,
        pba_offset: 0x2800,
    };
    assert_eq!(layout.region(0, 0x2000, 4), Region::Table(0));
    assert_eq!(layout.region(0, 0x202C, 4), Region::Table(0x2C));
    assert_eq!(layout.region(0, 0x2030, 4), Region::Device);
    assert_eq!(layout.region(0, 0x2800, 8), Region::PendingBits);
    assert_eq!(layout.region(0, 0x2808, 8), Region::Device);
    assert_eq!(layout.region(1, 0x2000, 4), Region::Device);
    assert_eq!(layout.region(0, u64::MAX, 8), Region::Device);
    let Region::Table(into) = layout.region(0, 0x1FFC, 8) else { panic!("runs into the table") };
    let mut t = Table::new([Entry::RESET; 3]);
    assert_eq!((t.write(into, 8, u64::MAX), t.read(into, 8)), (None, 0));
}

proptest! {
    #[test]
    fn the_table_reads_back_what_was_written(
        writes in prop::collection::vec((0u64..0x90, prop::sample::select(vec![1u8, 2, 3, 4, 8, 16]), any::<u64>()), 0..100),
    ) {
        const ENTRIES: usize = 8;
        let mut t = Table::new([Entry::RESET; ENTRIES]);
        let mut words = [0u32; ENTRIES * 4];
        words.iter_mut().skip(3).step_by(4).for_each(|control| *control = 1);
        for (offset, size, value) in writes {
            let before = words;
            let first = offset as usize / 4;
            if matches!(size, 4 | 8) && offset % u64::from(size) == 0 && first < words.len() {
                for i in 0..usize::from(size) / 4 {
                    let writable = [!3, !0, !0, 1][(first + i) % 4];
                    words[first + i] = (value >> (32 * i)) as u32 & writable;
                }
            }
            let changed = (words != before).then_some(first / 4);
            prop_assert_eq!(t.write(offset, size, value), changed);
            for (i, word) in words.iter().enumerate() {
                prop_assert_eq!(t.read(4 * i as u64, 4), u64::from(*word));
            }
            for (i, pair) in words.chunks(2).enumerate() {
                let pair = u64::from(pair[1]) << 32 | u64::from(pair[0]);
                prop_assert_eq!(t.read(8 * i as u64, 8), pair);
            }
        }
    }

    #[test]
    fn any_offset_and_size_is_answered(offset: u64, size: u8, value: u64) {
        let mut t = Table::new([Entry::RESET; 2]);
        t.read(offset, size);
        t.write(offset, size, value);
        let pages = intercepted_pages(offset, value);
        prop_assert!(pages.start <= offset && pages.start <= pages.end);
    }
}
