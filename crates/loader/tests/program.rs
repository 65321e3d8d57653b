//! Programs that go anywhere: what is read of them, and what is refused.

mod common;

use common::*;
use loader::{Error, Program};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

const NOTE: (&str, u32) = ("Xen", 18);

/// The ELF file of the PVH tests as a static PIE.
fn image() -> Vec<u8> {
    let mut image = pvh64();
    put(&mut image, 16, &3_u16.to_le_bytes());
    image
}

#[test]
fn a_program_is_read_as_it_was_linked() {
    let image = image();
    let program = Program::read(&image, NOTE).unwrap();
    assert_eq!((program.start, program.end), (2 * MIB, 2 * MIB + 512));
    assert_eq!(program.entry, 2 * MIB + 16);
    let [segment] = &program.segments[..] else { panic!("{program:?}") };
    assert_eq!((segment.at, segment.bytes, segment.zeros), (2 * MIB, &image[256..], 256));
}

#[test]
fn a_program_that_isn_t_one_is_refused() {
    let with = |at: usize, bytes: &[u8]| {
        let mut image = image();
        put(&mut image, at, bytes);
        Program::read(&image, NOTE).unwrap_err()
    };
    assert_eq!(with(16, &[2, 0]), Error::NotRelocatable);
    assert_eq!(
        with(4, &[3]),
        Error::Header { what: "ELF class", found: 3, needed: "it must be 1 or 2" }
    );
    assert_eq!(with(0, &[0]), Error::UnknownFormat);
    assert_eq!(with(64, &[2]), Error::Empty);
    assert_eq!(with(212, &[0, 2]), Error::EntryOutside(0x20_0200));
    assert!(matches!(with(88, &[0xFF; 8]), Error::Header { what: "ELF segment's address", .. }));
    for other in [("Xe", 18), ("Xen\0", 18), ("Xenx", 18), ("Xen", 17), ("", 18)] {
        assert_eq!(Program::read(&image(), other), Err(Error::NoEntryNote), "{other:?}");
    }
    assert_eq!(Program::read(&pvh32(), NOTE), Err(Error::NotRelocatable));
}

proptest! {
    #[test]
    fn damage_is_refused_or_leaves_everything_inside(
        damage in vec((any::<Index>(), any::<u8>()), 1..8), cut in any::<Index>(), cuts: bool,
    ) {
        let mut image = image();
        for (at, value) in damage {
            image[at.index(256)] = value;
        }
        if cuts {
            image.truncate(cut.index(image.len()));
        }
        if let Ok(program) = Program::read(&image, NOTE) {
            prop_assert!((program.start..program.end).contains(&program.entry));
            for segment in &program.segments {
                let end = segment.at.checked_add(segment.size());
                prop_assert!(program.start <= segment.at && end.is_some_and(|e| e <= program.end));
            }
        }
    }
}
