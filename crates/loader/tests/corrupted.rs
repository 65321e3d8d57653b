//! Damaged images and odd machines: no panic, and no plan that leaves RAM or
//! overlaps itself.

mod common;

use common::*;
use loader::{GuestMachine, MemoryRegion, RegionKind, load};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn images() -> impl Strategy<Value = Vec<u8>> {
    select(vec![bzimage(), pvh64(), multiboot32(), multiboot_addressed()])
}

/// Values that sit at the edges of fields.
fn word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        any::<u32>().prop_map(|word| word.to_le_bytes().to_vec()),
        (0_u64..8, 0_u32..34).prop_map(|(low, shift)| ((1 << shift) + low - 4_u64.min(1 << shift))
            .to_le_bytes()
            .to_vec()),
        Just(vec![0xFF; 4]),
        Just(vec![0xFF; 8]),
        Just(vec![0; 8]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 20 } else { 20_000 }))]

    #[test]
    fn damaged_headers_give_sound_plans_or_errors(
        mut image in images(),
        damage in vec((any::<Index>(), word()), 1..6),
        size in 2..3000_u64,
        initrd in proptest::option::of(0..64 * MIB),
        cut in proptest::option::weighted(0.2, any::<Index>()),
    ) {
        for (at, bytes) in damage {
            // Headers are where damage matters.
            let at = at.index(image.len().min(0x270));
            let len = bytes.len().min(image.len() - at);
            put(&mut image, at, &bytes[..len]);
        }
        if let Some(cut) = cut {
            image.truncate(cut.index(image.len()));
        }
        let regions = regions(size * MIB);
        let machine = machine(&regions);
        match load(&image, initrd, "quiet", &machine) {
            Ok(load) => check_plan(&load, initrd, &machine),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn odd_machines_give_sound_plans_or_errors(
        image in images(),
        odd in vec((any::<u64>(), any::<u64>(), 0..33_u32, select(vec![
            RegionKind::Ram, RegionKind::Reserved, RegionKind::AcpiNvs,
        ])), 0..6),
        initrd in proptest::option::of(any::<u64>()),
    ) {
        let mut regions = regions(64 * MIB);
        regions.extend(odd.iter().map(|&(start, len, shift, kind)| {
            MemoryRegion { start: start >> (63 - shift), len: len >> (63 - shift), kind }
        }));
        let machine = machine(&regions);
        if let Ok(load) = load(&image, initrd, "quiet", &machine) {
            // Regions may split a piece, so its two ends are looked up instead.
            let everywhere = [MemoryRegion { start: 0, len: 1 << 32, kind: RegionKind::Ram }];
            check_plan(&load, initrd, &GuestMachine { regions: &everywhere, rsdp: RSDP });
            let at = |address: u64, kind: &dyn Fn(RegionKind) -> bool| {
                regions.iter().any(|region| {
                    let offset = address.checked_sub(region.start);
                    kind(region.kind) && offset.is_some_and(|offset| offset < region.len)
                })
            };
            let ends = |start: u64, size: u64| [start, start + (size - 1)];
            let pieces = load.segments.iter().map(|s| (s.at, s.bytes.len() as u64 + s.zeros))
                .chain(load.blobs.iter().map(|blob| (blob.at, blob.bytes.len() as u64)))
                .chain(load.initrd_at.zip(initrd));
            for (start, size) in pieces {
                for end in ends(start, size) {
                    prop_assert!(at(end, &|kind| kind == RegionKind::Ram));
                    prop_assert!(!at(end, &|kind| kind != RegionKind::Ram));
                }
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..0x400), magic in 0..3_usize) {
        let mut image = bytes;
        let (at, magic): (usize, &[u8]) =
            [(0x202, &b"HdrS"[..]), (0, b"\x7FELF\x02\x01"), (0, b"\x7FELF\x01\x01")][magic];
        if image.len() >= at + magic.len() {
            put(&mut image, at, magic);
        }
        let regions = regions(64 * MIB);
        let machine = machine(&regions);
        if let Ok(load) = load(&image, Some(1), "", &machine) {
            check_plan(&load, Some(1), &machine);
        }
    }
}
