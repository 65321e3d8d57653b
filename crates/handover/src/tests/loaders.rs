//! The structures of the three loaders: what is read of them, and what damage does (`damage`).

mod damage;

use super::{Pieces, words};
use crate::ending::{INVALID_PARAMETER, Unended};
use crate::{
    BootInfo, BootPath, ENTERED_BY_MULTIBOOT2, ENTERED_BY_PVH, ENTERED_BY_UEFI, Error, Framebuffer,
    MAX_COMMAND_LINE, MAX_RANGES, MemoryKind, MemoryRange, NOT_THERE, PAGE, PixelFormat, Transfer,
    read,
};
use acpi::RootPointer;
use zerocopy::IntoBytes;

use MemoryKind::{Acpi, Loaded, Reserved, Usable};

const AT: u64 = 0x9000;
const MAP: u64 = 0xA000;
const TEXT: u64 = 0xB000;
const MODULES: u64 = 0xC000;

fn ranges(info: &BootInfo) -> Vec<(u64, u64, MemoryKind)> {
    info.memory.ranges().iter().map(|r| (r.start, r.end, r.kind)).collect()
}

/// A PVH start info with three ranges of memory, a module and a command line.
fn pvh() -> Pieces {
    let start = [1 << 32 | u64::from(ENTERED_BY_PVH), 1 << 32, MODULES, TEXT, 0xE_1230, MAP, 4];
    let map = [
        [0, 0xA_0000, 1],
        [0x10_0000, 0x70_0000, 1],
        [0x70_0000, 0x10_0000, 3],
        [0xF000_0000, 0x1000, 2],
    ];
    Pieces::default()
        .with(AT, words(start))
        .with(MAP, map.concat().iter().flat_map(|w: &u64| w.to_le_bytes()).collect::<Vec<_>>())
        .with(TEXT, *b"quiet console=0x2F8\0")
        .with(MODULES, words([0x20_0000, 0x1234, 0, 0]))
}

#[test]
fn pvh_s_start_info_is_read() {
    let info = read(&pvh(), ENTERED_BY_PVH, AT).unwrap();
    assert_eq!(info.path, BootPath::Pvh);
    let expected = [
        (0, 0xA_0000, Usable),
        (0x10_0000, 0x70_0000, Usable),
        (0x70_0000, 0x80_0000, Acpi),
        (0xF000_0000, 0xF000_1000, Reserved),
    ];
    assert_eq!(ranges(&info), expected);
    assert_eq!(info.image, Some((0x20_0000, 0x20_1234)));
    assert_eq!(info.rsdp, Some(RootPointer::At(0xE_1230)));
    assert_eq!(&info.command_line[..], b"quiet console=0x2F8");
    assert_eq!((info.framebuffer, info.system_table, info.tsc_hz), (None, None, None));
}

#[test]
fn pvh_without_its_magic_number_a_version_or_a_map_is_refused() {
    let with = |at: usize, value: u32| {
        let mut memory = pvh();
        memory.0[0].1[at..at + 4].copy_from_slice(&value.to_le_bytes());
        read(&memory, ENTERED_BY_PVH, AT).map(|info| info.path)
    };
    assert!(matches!(with(0, 1), Err(Error::Field { what: "PVH magic number", found: 1, .. })));
    assert!(matches!(with(4, 0), Err(Error::Field { what: "PVH version", .. })));
    assert_eq!(with(48, 0), Err(Error::NoMemoryMap));
    assert!(matches!(with(48, 4097), Err(Error::Field { found: 4097, .. })));
    assert!(matches!(with(48, 5), Err(Error::Unreadable { what: "PVH memory map", .. })));
    assert_eq!(with(12, 0), Ok(BootPath::Pvh));
}

#[test]
fn a_command_line_that_is_too_long_is_refused() {
    let with = |length: usize| {
        let mut memory = pvh();
        memory.0[2].1 = vec![b'x'; length];
        memory.0[2].1.push(0);
        read(&memory, ENTERED_BY_PVH, AT).map(|info| info.command_line.len())
    };
    assert_eq!(with(MAX_COMMAND_LINE), Ok(MAX_COMMAND_LINE));
    assert_eq!(with(MAX_COMMAND_LINE + 1), Err(Error::CommandLine));
}

fn tag(kind: u32, content: &[u8]) -> Vec<u8> {
    let mut tag = [kind.to_le_bytes(), (8 + content.len() as u32).to_le_bytes()].concat();
    tag.extend(content);
    tag.resize(tag.len().next_multiple_of(8), 0xEE);
    tag
}

fn multiboot2(tags: &[Vec<u8>]) -> Pieces {
    let mut bytes = vec![0; 8];
    bytes.extend(tags.concat());
    bytes.extend(tag(0, &[]));
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Pieces::default().with(AT, bytes)
}

/// Tag 6, with entries of 32 bytes: 8 more than are known.
fn e820(entries: &[(u64, u64, u32)]) -> Vec<u8> {
    let mut content = [32u32.to_le_bytes(), [0; 4]].concat();
    for (start, length, kind) in entries {
        content.extend(words([*start, *length, u64::from(*kind), u64::MAX]));
    }
    tag(6, &content)
}

fn screen(bits: u8, class: u8, fields: [u8; 6]) -> Vec<u8> {
    let mut content = words([0xC000_0000]);
    content.extend([5120u32, 1280, 800].iter().flat_map(|n| n.to_le_bytes()));
    content.extend([bits, class, 0, 0]);
    content.extend(fields);
    tag(8, &content)
}

fn by_grub(tags: &[Vec<u8>]) -> Result<BootInfo, Error> {
    read(&multiboot2(tags), ENTERED_BY_MULTIBOOT2, AT)
}

fn small_map() -> Vec<u8> {
    e820(&[(0x10_0000, 0x10_0000, 1)])
}

#[test]
fn multiboot2_s_information_is_read() {
    let module = |start: u32, end: u32| {
        tag(3, &[&start.to_le_bytes()[..], &end.to_le_bytes(), b"plan.img\0"].concat())
    };
    let info = by_grub(&[
        tag(1, b"console=0x3f8\0"),
        tag(2, b"GRUB 2.06\0"),
        module(0x40_0000, 0x40_0321),
        module(0x50_0000, 0x50_0001),
        e820(&[
            (0, 0x9_FC00, 1),
            (0x10_0000, 0x100_0000, 1),
            (0x80_0000, 0x1000, 20),
            (0x110_0000, 0x1000, 4),
        ]),
        screen(32, 1, [16, 8, 8, 8, 0, 8]),
        tag(14, &[7; 20]),
        tag(12, &0x7654_3210u64.to_le_bytes()),
    ]);
    let info = info.unwrap();
    assert_eq!(info.path, BootPath::Multiboot2);
    let expected = [
        (0, 0x9_FC00, Usable),
        (0x10_0000, 0x80_0000, Usable),
        (0x80_0000, 0x80_1000, Reserved),
        (0x80_1000, 0x110_0000, Usable),
        (0x110_0000, 0x110_1000, Acpi),
    ];
    assert_eq!(ranges(&info), expected);
    assert_eq!(info.image, Some((0x40_0000, 0x40_0321)), "the first module");
    assert_eq!(&info.command_line[..], b"console=0x3f8");
    assert_eq!(info.system_table, Some(0x7654_3210));
    let (width, height, format) = (1280, 800, PixelFormat::Bgr);
    let screen = Framebuffer { address: 0xC000_0000, pitch: 5120, width, height, format };
    assert_eq!(info.framebuffer, Some(screen));
}

#[test]
fn the_newer_copy_of_the_root_pointer_is_preferred_wherever_it_stands() {
    let (old, new) = (tag(14, &[7; 20]), tag(15, &[9; 36]));
    let length = |tags: &[Vec<u8>]| match by_grub(tags).unwrap().rsdp {
        Some(RootPointer::Copy { at, bytes, length }) => {
            assert!(
                at > AT && bytes[length - 1] == bytes[0] && bytes[length..].iter().all(|b| *b == 0)
            );
            length
        }
        other => panic!("{other:?}"),
    };
    let map = small_map();
    assert_eq!(length(&[map.clone(), old.clone(), new.clone()]), 36);
    assert_eq!(length(&[map.clone(), new, old.clone()]), 36);
    assert_eq!(length(&[map.clone(), old]), 20);
    assert_eq!(by_grub(&[map]).unwrap().rsdp, None);
}

#[test]
fn on_uefi_the_firmware_s_map_is_believed_and_not_grub_s() {
    let mut content = words([0xEE << 32 | 48]);
    content.extend(words([7, 0x20_0000, 0, 1, 1 << 3, 0]));
    let info = by_grub(&[tag(17, &content), small_map()]).unwrap();
    assert_eq!(ranges(&info), [(0x20_0000, 0x20_1000, Usable)]);
}

#[test]
fn a_framebuffer_of_a_kind_that_isn_t_known_is_none() {
    let with = |bits, class, fields| by_grub(&[small_map(), screen(bits, class, fields)]).unwrap();
    let rgb = with(32, 1, [0, 8, 8, 8, 16, 8]).framebuffer;
    assert_eq!(rgb.map(|screen| screen.format), Some(PixelFormat::Rgb));
    assert_eq!(with(24, 1, [16, 8, 8, 8, 0, 8]).framebuffer, None);
    assert_eq!(with(16, 2, [0; 6]).framebuffer, None, "text");
    assert_eq!(with(32, 1, [16, 8, 8, 8, 0, 5]).framebuffer, None);
}

#[test]
fn what_multiboot2_can_t_mean_is_refused() {
    let error = |tags: &[Vec<u8>]| by_grub(tags).map(|info| info.path).unwrap_err();
    assert_eq!(error(&[]), Error::NoMemoryMap);
    assert_eq!(error(&[small_map(), tag(18, &[])]), Error::BootServices);
    for (kind, short) in [(3, 7), (6, 3), (8, 23), (12, 7), (14, 19), (15, 35), (17, 3)] {
        let found = error(&[small_map(), tag(kind, &vec![0; short])]);
        let named = matches!(found, Error::Field { what: "multiboot2 tag's size", .. });
        assert!(named, "{kind}: {found}");
    }
    let mut zero = small_map();
    zero[4] = 0;
    assert!(matches!(error(&[zero]), Error::Field { found: 0, .. }));
    let mut narrow = small_map();
    narrow[8] = 23;
    assert!(matches!(error(&[narrow]), Error::Field { found: 23, .. }));
    for size in [0u32, 15, 0x10_0001] {
        let memory = Pieces::default().with(AT, size.to_le_bytes());
        let found = read(&memory, ENTERED_BY_MULTIBOOT2, AT).map(|info| info.path);
        assert!(matches!(found, Err(Error::Field { .. })), "{size}");
    }
}

fn transfer() -> Transfer {
    let mut transfer = Transfer {
        descriptor_size: 40,
        memory_map: MAP,
        memory_map_bytes: 80,
        image: 0x30_0000,
        image_bytes: 0x5000,
        command_line: TEXT,
        command_line_bytes: 5,
        rsdp: 0x7F00_0014,
        system_table: 0x7E00_0000,
        tsc_hz: 2_500_000_000,
        ..Transfer::EMPTY
    };
    let (width, height, format) = (800, 600, PixelFormat::Rgb);
    transfer.set_framebuffer(Framebuffer {
        address: 0x8000_0000,
        pitch: 3328,
        width,
        height,
        format,
    });
    transfer
}

fn by_uefi(transfer: &Transfer) -> Result<BootInfo, Error> {
    let map = [[7, 0x10_0000, 0, 0xF00, 8], [0, 0x7000_0000, 0, 1, 8]].concat();
    let memory = Pieces::default()
        .with(AT, transfer.as_bytes())
        .with(MAP, map.iter().flat_map(|w: &u64| w.to_le_bytes()).collect::<Vec<_>>())
        .with(TEXT, *b"hello and more");
    read(&memory, ENTERED_BY_UEFI, AT)
}

#[test]
fn what_the_uefi_loader_hands_over_is_read() {
    let info = by_uefi(&transfer()).unwrap();
    assert_eq!(info.path, BootPath::Uefi);
    let expected = [(0x10_0000, 0x100_0000, Usable), (0x7000_0000, 0x7000_1000, Reserved)];
    assert_eq!(ranges(&info), expected);
    assert_eq!(&info.command_line[..], b"hello");
    assert_eq!(info.image, Some((0x30_0000, 0x30_5000)));
    assert_eq!(info.rsdp, Some(RootPointer::At(0x7F00_0014)));
    assert_eq!(info.system_table, Some(0x7E00_0000));
    assert_eq!(info.tsc_hz, Some(2_500_000_000));
    let screen = info.framebuffer.unwrap();
    assert_eq!((screen.address, screen.pitch, screen.bytes()), (0x8000_0000, 3328, 3328 * 600));
    assert_eq!((screen.width, screen.height, screen.format), (800, 600, PixelFormat::Rgb));
}

#[test]
fn what_isn_t_there_isn_t_made_up() {
    let few =
        Transfer { descriptor_size: 40, memory_map: MAP, memory_map_bytes: 80, ..Transfer::EMPTY };
    let info = by_uefi(&few).unwrap();
    assert_eq!((info.image, info.rsdp, info.system_table), (None, None, None));
    assert_eq!((info.tsc_hz, info.framebuffer, info.command_line.len()), (None, None, 0));
    assert!(matches!(by_uefi(&Transfer::EMPTY), Err(Error::NoMemoryMap)));
}

/// The loader can't say it: the firmware's console may be gone.
#[test]
fn boot_services_that_go_on_are_told_of_on_the_screen_and_refused() {
    assert_eq!(by_uefi(&transfer()).unwrap().check(), Ok(()));
    let mut unended = transfer();
    unended.set_unended(Unended { calls: 8, status: INVALID_PARAMETER });
    let info = by_uefi(&unended).unwrap();
    let refusal = info.check().unwrap_err();
    assert_eq!(refusal, Error::Unended { calls: 8, status: INVALID_PARAMETER });
    assert!(refusal.to_string().contains("was called 8 times"));
    assert!(refusal.to_string().contains("answer was 0x8000000000000002"), "{refusal}");
    // There is a screen to say it on, and no memory that could be taken to be free.
    assert!(info.framebuffer.is_some() && info.memory.ranges().is_empty());
    // Without a map it is the same sentence; another status, another number.
    let without = Transfer { memory_map: NOT_THERE, exit_status: 1, exit_calls: 0, ..transfer() };
    let refusal = by_uefi(&without).unwrap().check();
    assert_eq!(refusal, Err(Error::Unended { calls: 0, status: 1 }));
}

#[test]
fn another_version_and_another_loader_are_refused() {
    let mut bytes = transfer().as_bytes().to_vec();
    for at in [0, 8] {
        bytes[at] ^= 1;
        let memory = Pieces::default().with(AT, bytes.clone());
        let found = read(&memory, ENTERED_BY_UEFI, AT).map(|info| info.path);
        assert!(
            matches!(found, Err(Error::Field { what: "hand-over's version", .. })),
            "{found:?}"
        );
        bytes[at] ^= 1;
    }
    let unknown = read(&Pieces::default(), 0x2BAD_B002, AT).map(|info| info.path);
    assert_eq!(unknown, Err(Error::UnknownLoader { eax: 0x2BAD_B002 }));
}

#[test]
fn a_framebuffer_whose_lines_overlap_or_whose_end_wraps_is_none() {
    let (width, height, format) = (4, 2, PixelFormat::Rgb);
    let good = Framebuffer { address: 0x1000, pitch: 16, width, height, format };
    assert_eq!(good.checked(), Some(good));
    for bad in [
        Framebuffer { pitch: 15, ..good },
        Framebuffer { width: 0, ..good },
        Framebuffer { height: 0, ..good },
        Framebuffer { address: 0, ..good },
        Framebuffer { address: u64::MAX - 30, ..good },
        Framebuffer { width: u32::MAX, pitch: u32::MAX, ..good },
    ] {
        assert_eq!(bad.checked(), None, "{bad:?}");
    }
}

#[test]
fn what_is_loaded_is_claimed_by_whole_pages_and_only_of_usable_memory() {
    let mut info = by_uefi(&transfer()).unwrap();
    info.claim("boot image", 0x30_0010, 0x30_1001).unwrap();
    info.claim("hypervisor", 0x30_0000, 0x30_4000).unwrap();
    assert_eq!(
        ranges(&info)[..3],
        [
            (0x10_0000, 0x30_0000, Usable),
            (0x30_0000, 0x30_4000, Loaded),
            (0x30_4000, 0x100_0000, Usable)
        ]
    );
    let before = ranges(&info);
    let (what, start, end) = ("hypervisor", 0xFF_F000, 0x100_0001);
    assert_eq!(info.claim(what, start, end), Err(Error::NotInMemory { what, start, end }));
    assert!(info.claim("hypervisor", 0x7000_0000, 0x7000_0010).is_err());
    assert_eq!(ranges(&info), before);
}

#[test]
fn tables_in_usable_memory_are_kept_by_whole_pages_and_nothing_else_is_changed() {
    let mut info = by_uefi(&transfer()).unwrap();
    info.claim("hypervisor", 0x30_0000, 0x30_4000).unwrap();
    // Beyond usable memory on both sides, and over what was loaded; then within what is kept.
    assert_eq!(info.keep(0x2F_FFFF..0x30_5001), Ok(0x1000 + 0x2000));
    assert_eq!(info.keep(0x30_4010..0x30_4011), Ok(0));
    assert_eq!(info.keep(0xFF_FFF0..0x200_0000), Ok(0x1000));
    for nothing in [0x7000_0000..0x7000_0100, 0x5000_0000..0x6000_0000, 0x50_0000..0x50_0000] {
        assert_eq!(info.keep(nothing), Ok(0));
    }
    let expected = [
        (0x10_0000, 0x2F_F000, Usable),
        (0x2F_F000, 0x30_0000, Acpi),
        (0x30_0000, 0x30_4000, Loaded),
        (0x30_4000, 0x30_6000, Acpi),
        (0x30_6000, 0xFF_F000, Usable),
        (0xFF_F000, 0x100_0000, Acpi),
        (0x7000_0000, 0x7000_1000, Reserved),
    ];
    assert_eq!(ranges(&info), expected);
    assert!(info.memory.free_pages().eq([(0x10_0000, 0x2F_F000), (0x30_6000, 0xFF_F000)]));
    assert_eq!(info.keep(0..u64::MAX), Ok(0x1F_F000 + 0xCF_9000));
    assert_eq!(info.memory.free_pages().count(), 0);
}

#[test]
fn more_pieces_than_there_is_room_for_are_refused_and_change_nothing() {
    let mut info = by_uefi(&transfer()).unwrap();
    let mut refused = None;
    for page in 0..MAX_RANGES as u64 {
        let (at, before) = (0x10_0000 + (2 * page + 1) * PAGE, ranges(&info));
        if let Err(error) = info.keep(at..at + 1) {
            assert_eq!((error, ranges(&info)), (Error::TooManyRanges, before));
            refused = Some(page);
            break;
        }
    }
    // Two ranges more each, of 256, with one besides.
    assert_eq!(refused, Some(127));
}

#[test]
fn what_a_loader_put_behind_the_boot_image_is_nobodys() {
    let mut info = by_uefi(&transfer()).unwrap();
    info.trim_image(1);
    info.image = Some((0x30_0000, 0x30_5000));
    for (length, end) in [(u64::MAX, 0x30_5000), (0x1000, 0x30_1000), (0x2000, 0x30_1000)] {
        info.trim_image(length);
        assert_eq!(info.image, Some((0x30_0000, end)));
    }
}
