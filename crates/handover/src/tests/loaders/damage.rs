//! Bytes of the loaders' structures changed at random.

use super::*;
use proptest::prelude::*;

/// A few well-formed ones of each kind, to damage.
fn whole() -> Vec<(u32, Pieces)> {
    let map =
        [7u64, 0x10_0000, 0, 0xF00, 8].iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
    let uefi =
        Pieces::default().with(AT, transfer().as_bytes()).with(MAP, map).with(TEXT, *b"hello");
    let tags = [
        tag(1, b"text\0"),
        tag(3, &[1; 9]),
        small_map(),
        tag(15, &[9; 36]),
        screen(32, 1, [0, 8, 8, 8, 16, 8]),
    ];
    vec![
        (ENTERED_BY_PVH, pvh()),
        (ENTERED_BY_MULTIBOOT2, multiboot2(&tags)),
        (ENTERED_BY_UEFI, uefi),
    ]
}

proptest! {
    #[test]
    fn damage_is_refused_in_one_line_or_leaves_a_map_in_order(
        which in 0..3usize, damage in prop::collection::vec((0..4usize, 0..200usize, any::<u8>()), 1..12),
    ) {
        let (who, mut memory) = whole().swap_remove(which);
        for (piece, at, value) in damage {
            let count = memory.0.len();
            let bytes = &mut memory.0[piece % count].1;
            let at = at % bytes.len();
            bytes[at] = value;
        }
        match read(&memory, who, AT) {
            Ok(info) => {
                let in_order = |pair: &[MemoryRange]| pair[0].end <= pair[1].start;
                prop_assert!(info.memory.ranges().windows(2).all(in_order));
                prop_assert!(info.image.is_none_or(|(start, end)| start <= end));
            }
            Err(refusal) => prop_assert!(!refusal.to_string().contains('\n')),
        }
    }
}
