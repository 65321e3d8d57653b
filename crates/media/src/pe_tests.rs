//! Sections that are appended to a small program, as another reader of PE files sees them.

use super::*;
use object::{Object, ObjectSection, read::pe::PeFile64};
use proptest::prelude::*;

const TABLE: usize = 0x40 + 24 + 240;
const TEXT: &[u8] = b"\xC3 and what else a program has";

/// A program as a linker makes it, with `.text` and `.data`, the latter larger in memory.
fn program() -> Vec<u8> {
    let mut pe = vec![0; 0x400];
    let mut put = |at: usize, bytes: &[u8]| field::put(&mut pe, at, bytes).unwrap();
    put(0, b"MZ");
    put(NEW_HEADER, &[0x40]);
    put(0x40, b"PE\0\0");
    put(0x44, &X86_64.to_le_bytes());
    put(0x46, &[2]);
    put(0x54, &240u16.to_le_bytes());
    put(0x58, &PE32_PLUS.to_le_bytes());
    for (at, word) in
        [(8, 0x200u32), (32, 0x1000), (36, 0x200), (56, 0x5000), (60, 0x400), (108, 16)]
    {
        put(0x58 + at, &word.to_le_bytes());
    }
    // EFI_APPLICATION.
    put(0x58 + 68, &[10]);
    let sections = [
        (".text", [TEXT.len() as u32, 0x1000, 0x200, 0x400]),
        (".data", [0x2100, 0x2000, 0x200, 0x600]),
    ];
    for (i, (name, words)) in sections.into_iter().enumerate() {
        put(TABLE + i * SECTION_HEADER, name.as_bytes());
        let bytes = words.map(u32::to_le_bytes).concat();
        put(TABLE + i * SECTION_HEADER + 8, &bytes);
    }
    pe.extend_from_slice(TEXT);
    pe.resize(0x600, 0);
    pe.resize(0x800, 0xDA);
    pe
}

fn section<'a>(name: &'a str, bytes: &'a [u8]) -> Section<'a> {
    Section { name, bytes }
}

/// The program with this word of its optional header, or one with that of a section header.
fn with_word(at: usize, word: u32) -> Vec<u8> {
    let mut program = program();
    field::put(&mut program, at, &word.to_le_bytes()).unwrap();
    program
}

fn refusal(program: &[u8]) -> String {
    with_sections(program, &[section(".plan", b"x")]).unwrap_err().to_string()
}

#[test]
fn the_image_is_whole_again() {
    let program = program();
    let long = vec![0x5A; 0x1001];
    let out = with_sections(&program, &[section(".hyper", &long), section(".plan", b"x")]).unwrap();
    assert_eq!(out[0x600..0x800], program[0x600..]);
    assert_eq!(out.len(), 0x800 + 0x1200 + 0x200);
    let word = |at: usize| field::u32(&out, 0x58 + at).unwrap();
    // Both sections' pages after 0x5000, where the program ended.
    assert_eq!((word(56), word(8), word(64)), (0x8000, 0x200 + 0x1200 + 0x200, 0));
    let pe = PeFile64::parse(&*out).unwrap();
    let places: Vec<_> = pe.sections().map(|s| (s.address(), s.size())).collect();
    assert_eq!(places[2..], [(0x5000, 0x1001), (0x7000, 1)]);
    let plan = pe.section_by_name(".plan").unwrap();
    assert_eq!(plan.data().unwrap(), b"x");
}

#[test]
fn a_program_that_does_not_fit_together_is_refused_in_words() {
    assert!(refusal(b"\x7fELF").starts_with("it is no PE32+ program for x86-64: it doesn't start"));
    assert!(refusal(&with_word(NEW_HEADER, 0x41)).contains("leads to no PE signature"));
    assert!(refusal(&with_word(NEW_HEADER, u32::MAX)).contains("its PE signature ends beyond"));
    assert!(refusal(&with_word(0x44, 0x2_AA64)).contains("names another machine"));
    assert!(refusal(&with_word(0x58, 0x10B)).contains("isn't that of PE32+"));
    assert!(refusal(&with_word(0x46, 97)).contains("its number of sections is 0x61; a UEFI"));
    assert!(refusal(&with_word(0x54, 111)).contains("its size of the optional header is 0x6f"));
    assert!(refusal(&with_word(0x58 + 36, 0x300)).contains("its file alignment is 0x300; a power"));
    assert!(refusal(&with_word(0x58 + 32, 0x100)).contains("its section alignment is 0x100"));
    assert!(
        refusal(&with_word(0x58 + 56, 0x4000)).contains("its size of image is 0x4000; the last")
    );
    assert!(refusal(&with_word(0x58 + 60, 0x801)).contains("its headers ends beyond"));
    assert!(refusal(&with_word(0x58 + 60, 0x170)).contains("the section headers lie beyond"));
    assert!(refusal(&with_word(TABLE + 12, 0x1800)).contains("its section's address is 0x1800"));
    assert!(refusal(&with_word(TABLE + 40 + 12, 0x1000)).contains("follow each other in memory"));
    assert!(refusal(&with_word(TABLE + 20, 0x200)).contains("the headers are there"));
    assert!(refusal(&program()[..0x7FF]).contains("its last section ends beyond"));
    assert_eq!(refusal(&with_word(0x58 + 112 + 36, 8)), Error::Signed.to_string());
}

/// Where fewer directories are named than the one of signatures, there is no signature.
#[test]
fn directories_that_are_not_named_are_not_read() {
    let mut program = with_word(0x58 + 112 + 36, 8);
    field::put(&mut program, 0x58 + 108, &4u32.to_le_bytes()).unwrap();
    assert!(with_sections(&program, &[section(".plan", b"x")]).is_ok());
}

#[test]
fn sections_that_cannot_be_are_refused_by_name() {
    let program = program();
    let refused = |sections: &[Section]| with_sections(&program, sections).unwrap_err();
    assert_eq!(refused(&[section(".toolong9", b"x")]), Error::Name(".toolong9".into()));
    assert_eq!(refused(&[section("", b"x")]), Error::Name(String::new()));
    assert_eq!(refused(&[section(".data", b"x")]), Error::Twice(".data".into()));
    assert_eq!(refused(&[section(".a", b"x"), section(".a", b"y")]), Error::Twice(".a".into()));
    assert_eq!(refused(&[section(".a", b"")]), Error::Empty(".a".into()));
}

/// There are headers for 15 more before the first section's data.
#[test]
fn there_are_as_many_sections_as_the_headers_have_room_for() {
    let names: Vec<_> = (0..16).map(|i| format!(".{i}")).collect();
    let sections: Vec<_> = names.iter().map(|name| section(name, b"x")).collect();
    let program = program();
    let room = (0x400 - TABLE) / SECTION_HEADER - 2;
    assert!(with_sections(&program, &sections[..room]).is_ok());
    let error = with_sections(&program, &sections[..room + 1]).unwrap_err();
    assert_eq!(error, Error::Room { room, needed: room + 1 });
    // What is there between the headers and the sections stays.
    let taken = with_word(TABLE + 3 * SECTION_HEADER, 1);
    let error = with_sections(&taken, &sections[..2]).unwrap_err();
    assert_eq!(error, Error::Room { room: 1, needed: 2 });
}

#[test]
fn what_32_bits_cannot_say_is_refused() {
    let program = with_word(0x58 + 56, 0xFFFF_F000);
    let large = with_sections(&program, &[section(".plan", &[0; 0x1001])]).unwrap_err();
    assert_eq!(large, Error::Large(0x1_0000_1000));
    assert!(large.to_string().contains("a PE file has less than 4 GiB"));
}

proptest! {
    #[test]
    fn every_section_reads_back(
        shapes in prop::collection::vec((1usize..9000, any::<u8>()), 1..6),
    ) {
        let content = |(length, seed): &(usize, u8)| {
            (0..*length).map(|i| (i >> 8 ^ i) as u8 ^ seed).collect::<Vec<_>>()
        };
        let contents: Vec<_> = shapes.iter().map(content).collect();
        let names: Vec<_> = (0..contents.len()).map(|i| format!(".s{i}")).collect();
        let sections: Vec<_> = names.iter().zip(&contents).map(|(n, c)| section(n, c)).collect();
        let out = with_sections(&program(), &sections).unwrap();
        let pe = PeFile64::parse(&*out).unwrap();
        prop_assert_eq!(pe.sections().count(), 2 + contents.len());
        let text = pe.section_by_name(".text").unwrap();
        prop_assert_eq!(text.data().unwrap(), TEXT);
        let mut end = 0;
        for found in pe.sections() {
            prop_assert_eq!(found.address() % 0x1000, 0);
            prop_assert!(found.address() >= end);
            end = found.address() + found.size();
            let (at, size) = found.file_range().unwrap();
            prop_assert!(at % 0x200 == 0 && size > 0);
        }
        for (name, content) in names.iter().zip(&contents) {
            let found = pe.section_by_name(name).unwrap();
            prop_assert_eq!(found.data().unwrap(), content);
        }
        // One more time, as if they had been linked in.
        let again = with_sections(&out, &[section(".again", b"x")]).unwrap();
        prop_assert_eq!(PeFile64::parse(&*again).unwrap().sections().count(), 3 + contents.len());
    }

    #[test]
    fn damage_is_refused_or_gives_a_file_with_the_section(
        at in 0usize..0x400, byte: u8, length in 0usize..0x900,
    ) {
        let mut program = program();
        program[at] = byte;
        program.truncate(length);
        if let Ok(out) = with_sections(&program, &[section(".plan", b"payload")]) {
            prop_assert!(out.len() > program.len());
            let found = out.windows(7).position(|bytes| bytes == b"payload");
            prop_assert!(found.is_some_and(|at| at >= program.len()));
        }
    }
}
