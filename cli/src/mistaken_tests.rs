//! A file of each kind in each place, and files that fit.

use super::*;
use proto::frame;

const ALL: [Place; 4] = [Place::Plan, Place::Kernel, Place::Initrd, Place::Recording];

/// A file with these bytes there, and zeroes else.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = vec![0; HEAD];
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

/// A UEFI program with these sections.
fn program(sections: &[&str]) -> Vec<u8> {
    let mut file = with(0, b"MZ");
    file[0x3C] = 0x80;
    file[0x80..0x84].copy_from_slice(b"PE\0\0");
    file[0x86] = sections.len() as u8;
    file[0x94] = 16;
    for (i, name) in sections.iter().enumerate() {
        file[0xA8 + 40 * i..][..name.len()].copy_from_slice(name.as_bytes());
    }
    // As a boot sector has it.
    file[510..512].copy_from_slice(b"\x55\xAA");
    file
}

/// An ELF file of a type, of 64 bits or 32, with program headers of these types.
fn elf_file(wide: bool, kind: u8, headers: &[u8]) -> Vec<u8> {
    let mut file = with(0, b"\x7FELF");
    let (class, table, size, (size_at, count_at)) =
        if wide { (2, 32, 56, (54, 56)) } else { (1, 28, 32, (42, 44)) };
    (file[4], file[16], file[table], file[size_at]) = (class, kind, 64, size);
    file[count_at] = headers.len() as u8;
    for (i, kind) in headers.iter().enumerate() {
        file[64 + i * usize::from(size)] = *kind;
    }
    file
}

fn recording() -> Vec<u8> {
    let line = b"Exitless 0.1.0";
    let framed = [&frame::header(frame::LOG, line.len() as u8)[..], line].concat();
    [b"SeaBIOS (version)\r\n\x1B[2J".as_slice(), &framed].concat()
}

#[test]
fn each_signature_is_told_apart_from_all_others() {
    for (kind, at, bytes) in SIGNATURES {
        assert_eq!(Kind::of(&with(at, bytes)), Some(kind), "{kind:?}");
        for wrong in 0..bytes.len() {
            let mut file = with(at, bytes);
            file[at + wrong] ^= 0x80;
            assert_ne!(Kind::of(&file), Some(kind), "{kind:?}, byte {wrong}");
        }
        assert_ne!(Kind::of(&with(at + 1, bytes)), Some(kind), "{kind:?}, elsewhere");
    }
}

#[test]
fn what_is_two_things_is_the_one_that_matters() {
    let mut hybrid = with(0x8001, b"CD001");
    hybrid[510..512].copy_from_slice(b"\x55\xAA");
    hybrid[512..520].copy_from_slice(b"EFI PART");
    assert_eq!(Kind::of(&hybrid), Some(Kind::Iso));
    let mut kernel = program(&[".setup", ".text"]);
    kernel[0x202..0x206].copy_from_slice(b"HdrS");
    assert_eq!(Kind::of(&kernel), Some(Kind::Bzimage));
    let package = with(0, b"!<arch>\ndebian-binary   ");
    assert_eq!(Kind::of(&package), Some(Kind::DebianPackage));
}

#[test]
fn programs_are_known_by_their_sections() {
    assert_eq!(Kind::of(&program(&[".text", ".hyper", ".plan"])), Some(Kind::OwnProgram));
    assert_eq!(Kind::of(&program(&[".osrel", ".linux", ".initrd"])), Some(Kind::UnifiedKernel));
    assert_eq!(Kind::of(&program(&[".text", ".hyperx"])), Some(Kind::UefiProgram));
    assert_eq!(Kind::of(&program(&[])), Some(Kind::UefiProgram));
    let mut astray = program(&[".hyper"]);
    astray[0x3C..0x40].fill(0xFF);
    assert_eq!(Kind::of(&astray), None);
}

#[test]
fn elf_files_are_told_of_unless_they_could_be_kernels() {
    for wide in [false, true] {
        let of = |kind, headers: &[u8]| Kind::of(&elf_file(wide, kind, headers));
        assert_eq!(of(1, &[]), Some(Kind::Module));
        assert_eq!(of(4, &[4, 1]), Some(Kind::Core));
        assert_eq!(of(3, &[6, 3, 1]), Some(Kind::Program));
        assert_eq!(of(2, &[1, 1, 3]), Some(Kind::Program));
        for kind in [2, 3] {
            assert_eq!(of(kind, &[1, 1, 4]), None, "a kernel, as far as this knows");
        }
    }
    assert_eq!(Kind::of(b"\x7FELF\x02"), None);
}

#[test]
fn texts_are_plans_if_they_name_a_vm() {
    assert_eq!(Kind::of(b"# a\n  [vm.web]\nkernel = 'k'\n"), Some(Kind::Plan));
    assert_eq!(Kind::of("text \u{fc}ber [vm.web]\n".as_bytes()), Some(Kind::Text));
    // Cut within a character.
    assert_eq!(Kind::of(b"text \xC3"), Some(Kind::Text));
    for other in [b"".as_slice(), b"\xC3\x28", b"\0\0\0\0", b"a\x1B[2Jb"] {
        assert_eq!(Kind::of(other), None, "{other:?}");
    }
    assert_eq!(Kind::of(&recording()), Some(Kind::Recording));
    // The name alone makes none.
    assert_eq!(Kind::of(b"Exitless 0.1.0\n"), Some(Kind::Text));
}

#[test]
fn what_belongs_there_is_no_mistake() {
    let fits = |file: &[u8], place| assert_eq!(told("f", file, place), None, "{place:?}");
    fits(b"[vm.a]\nkernel='k'\n", Place::Plan);
    fits(b"anything else", Place::Plan);
    fits(&with(0x202, b"HdrS"), Place::Kernel);
    fits(&recording(), Place::Recording);
    for ram_disk in [b"070701".as_slice(), b"\x1F\x8B\x08", b"\x28\xB5\x2F\xFD", b"?"] {
        fits(&with(0, ram_disk), Place::Initrd);
    }
    // What isn't known is nothing that could be told of.
    for place in ALL {
        fits(&[0; 40_000], place);
        fits(&[], place);
    }
}

#[test]
fn the_sentence_says_what_it_is_what_is_needed_and_where_it_belongs() {
    let told = |file: &[u8], place| told("f", file, place).unwrap();
    let plan = b"[vm.a]\nkernel='k'\n";
    assert_eq!(
        told(plan, Place::Kernel),
        "is a plan, and a kernel is needed (bzImage, ELF with a PVH note, or multiboot 1, none of them packed); `exitless run f` runs it"
    );
    assert_eq!(
        told(&recording(), Place::Plan),
        "is the recording of a machine's serial line, and a plan (vm.toml) is needed; `exitless check --machine f` shows it"
    );
    assert_eq!(
        told(&elf_file(true, 1, &[]), Place::Kernel),
        "is an object file, or a module of a kernel, and a kernel is needed (bzImage, ELF with a PVH note, or multiboot 1, none of them packed)"
    );
    let efi = told(&program(&[".hyper"]), Place::Kernel);
    assert!(efi.starts_with("is Exitless as a UEFI program, and a kernel is needed"), "{efi}");
    let disk = told(&with(0, b"QFI\xFB"), Place::Initrd);
    assert!(disk.starts_with("is the image of a disk (qcow2), and a RAM disk is"), "{disk}");
    let said = "is the image of a disk, and what came from a machine's serial line is needed, byte for byte (docs/hardware.md)";
    assert_eq!(told(&with(512, b"EFI PART"), Place::Recording), said);
    let packed = told(&with(0, b"\x1F\x8B\x08"), Place::Kernel);
    assert!(packed.contains("is packed (gzip)") && packed.contains("`gunzip`"), "{packed}");
}

/// Every kind is told of in one line, wherever it doesn't fit; and each place has what fits.
#[test]
fn every_kind_has_a_sentence() {
    let mut files: Vec<_> = SIGNATURES.iter().map(|(_, at, bytes)| with(*at, bytes)).collect();
    files.extend([program(&[".hyper"]), program(&[".linux"]), program(&[]), recording()]);
    files.extend([elf_file(true, 1, &[]), elf_file(true, 4, &[]), elf_file(true, 2, &[3])]);
    files.extend([b"[vm.a]\n".to_vec(), b"text".to_vec()]);
    for file in &files {
        let wrong: Vec<_> = ALL.iter().filter_map(|place| told("f", file, *place)).collect();
        assert!(wrong.iter().all(|said| said.starts_with("is ") && !said.contains('\n')));
        assert!(!wrong.is_empty(), "{:?}", Kind::of(file));
    }
}

#[test]
fn a_disk_s_format_is_none_if_it_is_raw() {
    assert_eq!(disk_format(&with(0, b"QFI\xFB")), Some("qcow2"));
    assert_eq!(disk_format(b"vhdxfile"), Some("VHDX"));
    assert_eq!(disk_format(&with(512, b"EFI PART")), None);
    assert_eq!(disk_format(&[0; 8]), None);
}
