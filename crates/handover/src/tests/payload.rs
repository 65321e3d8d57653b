//! Sections of PE images: those that are there, and tables that lead astray.

use crate::payload::section;
use proptest::prelude::*;

/// Offsets of the signature, and of the section table behind an optional header of 16 bytes.
const SIGNATURE: usize = 0x80;
const TABLE: usize = SIGNATURE + 24 + 16;

fn image(sections: &[(&[u8], u32, u32)]) -> Vec<u8> {
    let mut image = vec![0; 0x1000];
    image[0x3C] = SIGNATURE as u8;
    image[SIGNATURE..SIGNATURE + 4].copy_from_slice(b"PE\0\0");
    image[SIGNATURE + 6] = sections.len() as u8;
    image[SIGNATURE + 20] = 16;
    for (i, (name, at, size)) in sections.iter().enumerate() {
        let header = &mut image[TABLE + 40 * i..][..40];
        header[..name.len()].copy_from_slice(name);
        header[8..12].copy_from_slice(&size.to_le_bytes());
        header[12..16].copy_from_slice(&at.to_le_bytes());
    }
    for (at, byte) in image[0x800..].iter_mut().enumerate() {
        *byte = at as u8;
    }
    image
}

#[test]
fn a_section_is_found_by_its_whole_name() {
    let image = image(&[(b".text", 0x800, 8), (b".hyper", 0x810, 5), (b".longest", 0x820, 1)]);
    assert_eq!(section(&image, ".hyper"), Some(&[0x10, 0x11, 0x12, 0x13, 0x14][..]));
    assert_eq!(section(&image, ".longest"), Some(&[0x20][..]));
    assert_eq!(section(&image, ".text").map(<[u8]>::len), Some(8));
    for other in [".hype", ".hyperx", ".plan", ""] {
        assert_eq!(section(&image, other), None, "{other}");
    }
}

#[test]
fn a_section_that_leads_out_of_the_image_isn_t_there() {
    let inside = image(&[(b".plan", 0xFF0, 0x10)]);
    assert_eq!(section(&inside, ".plan").map(<[u8]>::len), Some(0x10));
    assert_eq!(section(&image(&[(b".plan", 0xFF0, 0x11)]), ".plan"), None);
    assert_eq!(section(&image(&[(b".plan", u32::MAX, u32::MAX)]), ".plan"), None);
    let mut unsigned = inside.clone();
    unsigned[SIGNATURE] = b'p';
    assert_eq!(section(&unsigned, ".plan"), None);
    let mut far = inside;
    far[0x3C..0x40].fill(0xFF);
    assert_eq!(section(&far, ".plan"), None);
}

proptest! {
    #[test]
    fn any_damage_leaves_a_section_inside_the_image_or_none(
        damage in prop::collection::vec((0..0x200usize, any::<u8>()), 0..20), length in 0..0x1000usize,
    ) {
        let mut image = image(&[(b".text", 0x800, 8), (b".hyper", 0x810, 5)]);
        for (at, byte) in damage {
            image[at] = byte;
        }
        image.truncate(length);
        let bounds = image.as_ptr_range();
        if let Some(found) = section(&image, ".hyper") {
            prop_assert!(bounds.start <= found.as_ptr() && found.as_ptr_range().end <= bounds.end);
        }
    }
}
