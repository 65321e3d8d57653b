//! Windows, spans and copies. They run under Miri as well.
use crate::{ALIGNMENT, BadRegions, MAX_REGIONS, Memory, Outside, Region, Window};
use std::ptr::NonNull;

const PAGE: u64 = ALIGNMENT;

/// Two regions that adjoin, and one behind a hole.
fn memory() -> Memory {
    Memory::new(&[(PAGE, PAGE), (2 * PAGE, 2 * PAGE), (8 * PAGE, PAGE)], 1 << 32)
}

/// Regions that nobody accesses.
fn refused(regions: &[(u64, u64, u64, u64)]) -> Option<BadRegions> {
    let regions: Vec<Region> = regions
        .iter()
        .map(|(guest, len, host, dma)| Region {
            guest: *guest,
            len: *len,
            host: NonNull::new(std::ptr::without_provenance_mut(*host as usize)).unwrap(),
            dma: *dma,
        })
        .collect();
    // SAFETY: nothing is accessed by the window, which is dropped at once.
    unsafe { Window::new(&regions) }.err()
}

#[test]
fn regions_are_whole_pages_in_order() {
    let page = |number: u64| (number * PAGE, PAGE, PAGE, 0);
    assert_eq!(refused(&[]), None);
    assert_eq!(refused(&[page(0), page(1), page(7)]), None);
    assert_eq!(refused(&[page(0), page(7), page(1)]), Some(BadRegions::Order(PAGE)));
    assert_eq!(refused(&[(0, 2 * PAGE, PAGE, 0), page(1)]), Some(BadRegions::Order(PAGE)));
    assert_eq!(refused(&[page(3), page(3)]), Some(BadRegions::Order(3 * PAGE)));
    let eight: Vec<_> = (0..MAX_REGIONS as u64).map(page).collect();
    assert_eq!(refused(&eight), None);
    assert_eq!(refused(&[&eight[..], &[page(9)]].concat()), Some(BadRegions::TooMany));
    for (guest, len, host, dma) in
        [(8, PAGE, PAGE, 0), (0, 8, PAGE, 0), (0, 0, PAGE, 0), (0, PAGE, 8, 0), (0, PAGE, PAGE, 8)]
    {
        assert_eq!(refused(&[(guest, len, host, dma)]), Some(BadRegions::Unaligned(guest)));
    }
    let last = 0u64.wrapping_sub(PAGE);
    for (guest, len, host, dma) in
        [(last, PAGE, PAGE, 0), (0, PAGE, last, 0), (0, PAGE, PAGE, last), (0, 1 << 63, PAGE, 0)]
    {
        assert_eq!(refused(&[(guest, len, host, dma)]), Some(BadRegions::TooLong(guest)));
    }
}

#[test]
fn spans_lie_in_one_region() {
    let memory = memory();
    let window = memory.window();
    let lens = |guest, len| window.span(guest, len).map(|span| (span.len(), span.dma()));
    assert_eq!(lens(PAGE, PAGE), Some((PAGE, (1 << 32) + PAGE)));
    assert_eq!(lens(3 * PAGE - 1, 2), Some((2, (1 << 32) + 3 * PAGE - 1)));
    assert_eq!(lens(4 * PAGE - 1, 1), Some((1, (1 << 32) + 4 * PAGE - 1)));
    for (guest, len) in [
        (PAGE - 1, 1),
        (PAGE - 1, 2),
        (2 * PAGE - 1, 2),
        (PAGE, PAGE + 1),
        (4 * PAGE, 1),
        (PAGE, u64::MAX),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (0u64.wrapping_sub(PAGE), 3 * PAGE),
    ] {
        assert_eq!(lens(guest, len), None, "{len} bytes at {guest:#x}");
    }
    // Of no bytes the address has to be in memory all the same.
    assert!(lens(PAGE, 0) == Some((0, (1 << 32) + PAGE)) && lens(4 * PAGE, 0).is_none());
    assert_eq!(window.start(2 * PAGE - 3, 10).map(|span| span.len()), Some(3));
    assert_eq!(window.start(4 * PAGE, 10), None);
}

#[test]
fn parts_of_spans() {
    let memory = memory();
    let window = memory.window();
    let span = window.span(PAGE + 16, 16).unwrap();
    let part = span.sub(4, 12).unwrap();
    assert_eq!((part.len(), part.dma()), (12, (1 << 32) + PAGE + 20));
    assert!(span.sub(16, 0).is_some_and(|span| span.is_empty()));
    for (at, len) in [(4, 13), (17, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
        assert_eq!(span.sub(at, len), None);
    }
    assert_eq!(span.read(15, &mut [0; 2]), Err(Outside));
    assert_eq!(span.write(u64::MAX, &[0; 2]), Err(Outside));
}

#[test]
fn all_bytes_or_none() {
    let memory = memory();
    let window = memory.window();
    // Over the border of regions that adjoin.
    let bytes: Vec<u8> = (0..200).collect();
    window.write(2 * PAGE - 100, &bytes).unwrap();
    let mut read = vec![0; 200];
    window.read(2 * PAGE - 100, &mut read).unwrap();
    assert_eq!(read, bytes);
    // Into the hole: what is before it stays.
    assert_eq!(window.write(4 * PAGE - 2, &[1, 2, 3]), Err(Outside));
    let mut read = [9; 3];
    assert_eq!(window.read(4 * PAGE - 2, &mut read), Err(Outside));
    assert_eq!(read, [9; 3]);
    window.read(4 * PAGE - 2, &mut read[..2]).unwrap();
    assert_eq!(read, [0, 0, 9]);
    assert_eq!(window.read(u64::MAX, &mut read), Err(Outside));
    assert_eq!(window.read(5 * PAGE, &mut []), Ok(()));
}

#[test]
fn words_are_aligned_little_endian_and_inside() {
    let memory = memory();
    let window = memory.window();
    let span = window.span(PAGE, 16).unwrap();
    span.store_u64(8, 0x8877_6655_4433_2211).unwrap();
    let mut bytes = [0; 8];
    span.read(8, &mut bytes).unwrap();
    assert_eq!(bytes, [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    assert_eq!(span.load_u16(10), Ok(0x4433));
    assert_eq!(span.load_u32_acquire(12), Ok(0x8877_6655));
    span.store_u16_release(14, 0xABCD).unwrap();
    span.store_u32(8, 1).unwrap();
    assert_eq!(span.load_u64_acquire(8), Ok(0xABCD_6655_0000_0001));
    assert_eq!(span.load_u64_pair(0), Ok([0, 0xABCD_6655_0000_0001]));
    assert_eq!(span.load_u64_pair(8), Err(Outside));
    assert_eq!(window.span(PAGE, 64).unwrap().load_u64_pair(8), Err(Outside), "not aligned");
    assert_eq!(span.load_u16(15), Err(Outside));
    assert_eq!(span.load_u16(1), Err(Outside));
    assert_eq!(span.load_u32(14), Err(Outside));
    assert_eq!(span.load_u32(2), Err(Outside));
    assert_eq!(span.load_u64(4), Err(Outside));
    assert_eq!(span.load_u64(u64::MAX), Err(Outside));
    assert_eq!(span.store_u64_release(16, 0), Err(Outside));
    assert_eq!(window.span(PAGE, 1).unwrap().load_u16(0), Err(Outside));
}

#[test]
fn copies_of_any_length_and_alignment() {
    let memory = memory();
    let window = memory.window();
    let whole = window.span(2 * PAGE, 2048).unwrap();
    for len in [0usize, 1, 7, 8, 9, 15, 127, 128, 129, 136, 143, 511, 600] {
        for (from, to) in [(0u64, 1024u64), (1, 1024), (3, 1029), (8, 1025)] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8 ^ len as u8).collect();
            whole.fill(0xEE);
            whole.write(from, &bytes).unwrap();
            let part = |at| whole.sub(at, len as u64).unwrap();
            part(from).copy_to(&whole.sub(to, 1000).unwrap()).unwrap();
            let mut read = vec![0; len + 2];
            whole.read(to - 1, &mut read).unwrap();
            assert_eq!(read[1..=len], bytes);
            assert_eq!((read[0], read[len + 1]), (0xEE, 0xEE));
            part(to).fill(5);
            whole.read(to - 1, &mut read).unwrap();
            assert!(read[1..=len].iter().all(|byte| *byte == 5));
            assert_eq!((read[0], read[len + 1]), (0xEE, 0xEE));
        }
    }
    let short = whole.sub(0, 3).unwrap();
    assert_eq!(whole.copy_to(&short), Err(Outside));
    assert_eq!(short.copy_from(&whole), Ok(()));
    assert_eq!(whole.copy_from(&short), Err(Outside));
}

/// Two threads on one memory: what is published by a release is seen by an acquire.
#[test]
fn words_order_bytes() {
    let memory = memory();
    let window = memory.window();
    let span = window.span(PAGE, 64).unwrap();
    let writer = std::thread::spawn(move || {
        span.write(8, b"published").unwrap();
        span.store_u16_release(0, 1).unwrap();
    });
    while span.load_u16_acquire(0) == Ok(0) {
        std::thread::yield_now();
    }
    let mut bytes = [0; 9];
    span.read(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"published");
    writer.join().unwrap();
}
