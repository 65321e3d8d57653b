//! What a file is that stands where another belongs, by its first bytes: a disk's image in the
//! place of a kernel, a kernel in that of a plan.
//!
//! Guarantees: asked for a file that isn't what it should be, or can't be that; nothing is said of
//! one that may be. What is told are signatures: a file that was damaged behind them, or that
//! begins like another one by chance, is told for what it looks like. What is wrong with a kernel
//! of a format that is known, `loader` says.

use std::{fs, io::Read, path::Path};

/// Bytes that tell what a file is. An ISO has its signature behind the first 32 KiB.
pub const HEAD: usize = 64 << 10;

/// What a file should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A plan.
    Plan,
    /// A kernel.
    Kernel,
    /// The RAM disk of a Linux kernel.
    Initrd,
    /// What a machine said on its serial line.
    Recording,
}

impl Place {
    fn needs(self) -> &'static str {
        match self {
            Place::Plan => "a plan (vm.toml) is needed",
            Place::Kernel => {
                "a kernel is needed (bzImage, ELF with a PVH note, or multiboot 1, none of them packed)"
            }
            Place::Initrd => "a RAM disk is needed (cpio, packed or not)",
            Place::Recording => {
                "what came from a machine's serial line is needed, byte for byte (docs/hardware.md)"
            }
        }
    }
}

/// What a file looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bzimage,
    Module,
    Core,
    Program,
    OwnProgram,
    UnifiedKernel,
    UefiProgram,
    BootImage,
    Recording,
    Plan,
    Text,
    Iso,
    Disk,
    /// One that isn't raw.
    DiskFormat(&'static str),
    /// Packed by, and unpacked by.
    Packed(&'static str, &'static str),
    Cpio,
    DebianPackage,
    Archive,
    UBoot,
}

/// Signatures: what, where, which bytes. The first that fits counts: a bzImage is a UEFI program,
/// too, an ISO for sticks a disk, a Debian package an archive.
const SIGNATURES: [(Kind, usize, &[u8]); 25] = [
    (Kind::Bzimage, 0x202, b"HdrS"),
    (Kind::BootImage, 0, b"EXITLESS"),
    (Kind::Iso, 0x8001, b"CD001"),
    (Kind::DiskFormat("qcow2"), 0, b"QFI\xFB"),
    (Kind::DiskFormat("VMDK"), 0, b"KDMV"),
    (Kind::DiskFormat("VHDX"), 0, b"vhdxfile"),
    (Kind::DiskFormat("VHD"), 0, b"conectix"),
    (Kind::DiskFormat("VDI"), 0x40, b"\x7F\x10\xDA\xBE"),
    (Kind::Packed("gzip", "gunzip"), 0, b"\x1F\x8B\x08"),
    (Kind::Packed("xz", "unxz"), 0, b"\xFD7zXZ\0"),
    (Kind::Packed("LZMA", "unlzma"), 0, b"\x5D\0\0"),
    (Kind::Packed("Zstandard", "unzstd"), 0, b"\x28\xB5\x2F\xFD"),
    (Kind::Packed("bzip2", "bunzip2"), 0, b"BZh"),
    (Kind::Packed("LZ4", "unlz4"), 0, b"\x04\x22\x4D\x18"),
    (Kind::Packed("LZ4", "unlz4"), 0, b"\x02\x21\x4C\x18"),
    (Kind::Packed("LZO", "lzop -d"), 0, b"\x89LZO\0"),
    (Kind::Cpio, 0, b"070701"),
    (Kind::Cpio, 0, b"070702"),
    (Kind::DebianPackage, 0, b"!<arch>\ndebian-binary"),
    (Kind::Archive, 0, b"!<arch>\n"),
    (Kind::Archive, 0, b"PK\x03\x04"),
    (Kind::Archive, 257, b"ustar"),
    (Kind::UBoot, 0, b"\x27\x05\x19\x56"),
    (Kind::Disk, 512, b"EFI PART"),
    (Kind::Disk, 510, b"\x55\xAA"),
];

/// The sections of a UEFI program that tell what it is.
const SECTIONS: [(&[u8; 8], Kind); 2] =
    [(b".hyper\0\0", Kind::OwnProgram), (b".linux\0\0", Kind::UnifiedKernel)];

impl Kind {
    fn of(head: &[u8]) -> Option<Kind> {
        let has = |(_, at, bytes): &&(Kind, usize, &[u8])| {
            head.get(*at..).is_some_and(|rest| rest.starts_with(bytes))
        };
        elf(head)
            .or_else(|| SIGNATURES.iter().find(has).map(|(kind, ..)| *kind))
            .filter(|kind| *kind != Kind::Disk || !head.starts_with(b"MZ"))
            .or_else(|| uefi_program(head))
            .or_else(|| is_recording(head).then_some(Kind::Recording))
            .or_else(|| text(head))
    }

    /// After "is".
    fn what(self) -> String {
        match self {
            Kind::Bzimage => "a Linux kernel".into(),
            Kind::Module => "an object file, or a module of a kernel".into(),
            Kind::Core => "the memory of a program that crashed (core)".into(),
            Kind::Program => "a program of an operating system".into(),
            Kind::OwnProgram => "Exitless as a UEFI program".into(),
            Kind::UnifiedKernel => "a Linux kernel packed as a UEFI program".into(),
            Kind::UefiProgram => "a UEFI or Windows program".into(),
            Kind::BootImage => "a boot image of Exitless".into(),
            Kind::Recording => "the recording of a machine's serial line".into(),
            Kind::Plan => "a plan".into(),
            Kind::Text => "a text".into(),
            Kind::Iso => "the image of a CD (ISO 9660)".into(),
            Kind::Disk => "the image of a disk".into(),
            Kind::DiskFormat(name) => format!("the image of a disk ({name})"),
            Kind::Packed(by, _) => format!("packed ({by})"),
            Kind::Cpio => "an archive (cpio), as RAM disks are".into(),
            Kind::DebianPackage => "a Debian package".into(),
            Kind::Archive => "an archive".into(),
            Kind::UBoot => "an image for U-Boot".into(),
        }
    }

    /// Where it would be right, or what makes it so: a sentence's last part, about the file `name`.
    fn right(self, name: &str, place: Place) -> Option<String> {
        Some(match self {
            Kind::Bzimage => format!("`exitless run --kernel {name}` runs it"),
            Kind::OwnProgram => {
                "a machine's firmware starts it, and `exitless run vm.toml --boot uefi` what is made of a plan".into()
            }
            Kind::UnifiedKernel => {
                format!("`objcopy -O binary --only-section=.linux {name} vmlinuz` takes the kernel out")
            }
            Kind::BootImage => "`exitless run` takes the plan that it was made of".into(),
            Kind::Recording => format!("`exitless check --machine {name}` shows it"),
            Kind::Plan => format!("`exitless run {name}` runs it"),
            Kind::Iso | Kind::Disk if place == Place::Recording => return None,
            Kind::Iso | Kind::Disk => {
                "what is on it must be a file of its own; a guest's disk is given by --disk".into()
            }
            Kind::DiskFormat(_) => format!(
                "a guest's disk is given by --disk, raw, as `qemu-img convert -O raw {name} disk.img` makes it"
            ),
            Kind::Packed(_, by) => {
                format!("`{by}` unpacks it, if it is one; a RAM disk is given by --initrd, or as initrd in a plan")
            }
            Kind::Cpio => "a RAM disk is given by --initrd, or as initrd in a plan".into(),
            Kind::DebianPackage => {
                format!("`dpkg-deb -x {name} folder` unpacks it, a kernel's into folder/boot")
            }
            Kind::Module | Kind::Core | Kind::Program | Kind::UefiProgram => return None,
            Kind::Text | Kind::Archive | Kind::UBoot => return None,
        })
    }

    /// Whether it may be what belongs there, or is told of better by who reads it.
    fn fits(self, place: Place) -> bool {
        match place {
            Place::Plan => matches!(self, Kind::Plan | Kind::Text),
            Place::Kernel => self == Kind::Bzimage,
            // Linux itself knows what it can unpack; these it surely can't.
            Place::Initrd => !matches!(
                self,
                Kind::Bzimage
                    | Kind::OwnProgram
                    | Kind::UnifiedKernel
                    | Kind::UefiProgram
                    | Kind::BootImage
                    | Kind::Recording
                    | Kind::Plan
                    | Kind::DiskFormat(_)
                    | Kind::DebianPackage
            ),
            Place::Recording => matches!(self, Kind::Recording | Kind::Text),
        }
    }
}

/// What the file `name` is, which begins with `head` and stands in a wrong place: the end of a
/// sentence that begins with its name. None if it isn't known to be wrong there.
pub fn told(name: &str, head: &[u8], place: Place) -> Option<String> {
    let kind = Kind::of(head).filter(|kind| !kind.fits(place))?;
    let right = kind.right(name, place).map_or(String::new(), |right| format!("; {right}"));
    Some(format!("is {}, and {}{right}", kind.what(), place.needs()))
}

/// The name of a disk image's format, if it isn't raw.
pub fn disk_format(head: &[u8]) -> Option<&'static str> {
    match Kind::of(head)? {
        Kind::DiskFormat(name) => Some(name),
        _ => None,
    }
}

/// The first bytes of a file; none of a pipe, which would be empty for who reads it next.
pub fn head(path: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    if fs::metadata(path).is_ok_and(|found| found.is_file())
        && let Ok(file) = fs::File::open(path)
    {
        // What can't be read is told by who reads it whole.
        let _ = file.take(HEAD as u64).read_to_end(&mut head);
    }
    head
}

/// The little-endian number of `N` bytes at `at`.
fn number<const N: usize>(head: &[u8], at: usize) -> Option<usize> {
    let bytes = head.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// ELF files that no kernel is (System V ABI, chapters 4 and 5).
fn elf(head: &[u8]) -> Option<Kind> {
    const RELOCATABLE: usize = 1;
    const CORE: usize = 4;
    const INTERPRETER: usize = 3;
    if !head.starts_with(b"\x7FELF") {
        return None;
    }
    match number::<2>(head, 16)? {
        RELOCATABLE => return Some(Kind::Module),
        CORE => return Some(Kind::Core),
        _ => {}
    }
    // Of 64 bits, or else of 32: where the program headers are, their size, and how many.
    let (table, size, count) = match head.get(4)? {
        2 => (number::<4>(head, 32)?, number::<2>(head, 54)?, number::<2>(head, 56)?),
        _ => (number::<4>(head, 28)?, number::<2>(head, 42)?, number::<2>(head, 44)?),
    };
    let interpreted = (0..count).any(|i| number::<4>(head, table + i * size) == Some(INTERPRETER));
    interpreted.then_some(Kind::Program)
}

/// Programs for UEFI or Windows, by their sections (Microsoft's PE format).
fn uefi_program(head: &[u8]) -> Option<Kind> {
    let pe = number::<4>(head, 0x3C).filter(|_| head.starts_with(b"MZ"))?;
    if !head.get(pe..)?.starts_with(b"PE\0\0") {
        return None;
    }
    let (count, optional) = (number::<2>(head, pe + 6)?, number::<2>(head, pe + 20)?);
    let names = (0..count).filter_map(|i| head.get(pe + 24 + optional + i * 40..)?.first_chunk());
    let known = |name: &[u8; 8]| SECTIONS.into_iter().find(|(known, _)| *known == name);
    Some(names.into_iter().find_map(known).map_or(Kind::UefiProgram, |(_, kind)| kind))
}

/// Whether the log's first line is in it, as a frame.
fn is_recording(head: &[u8]) -> bool {
    let [start, channel, _] = proto::frame::header(proto::frame::LOG, 0);
    head.windows(12)
        .any(|bytes| bytes.starts_with(&[start, channel]) && bytes.ends_with(b"Exitless "))
}

fn text(head: &[u8]) -> Option<Kind> {
    // The end may be within a character.
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(head.get(..error.valid_up_to())?).ok()?
        }
        Err(_) => return None,
    };
    let control = |c: char| c.is_control() && !c.is_whitespace();
    if text.is_empty() || text.contains(control) {
        return None;
    }
    let is_vm = |line: &str| line.trim_start().starts_with("[vm.");
    Some(if text.lines().any(is_vm) { Kind::Plan } else { Kind::Text })
}

#[cfg(test)]
#[path = "mistaken_tests.rs"]
mod tests;
