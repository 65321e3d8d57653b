//! One image per format, field by field, and the refusals with their numbers.

mod common;

use common::*;
use loader::{
    EntryMode, Error, Format, GuestMachine, Load, MemoryRegion, RegionKind, Subject, load,
};

const CMDLINE: &str = "console=ttyS0";
const INITRD: u64 = 5000;

#[test]
fn linux_gets_its_zero_page() {
    let (image, regions) = (bzimage(), regions(64 * MIB));
    let machine = machine(&regions);
    let load = load(&image, Some(INITRD), CMDLINE, &machine).unwrap();
    check_plan(&load, Some(INITRD), &machine);
    assert_eq!(load.format, Format::Linux);
    assert_eq!((load.segments[0].at, load.segments[0].bytes), (16 * MIB, &image[1024..]));
    assert_eq!(load.entry.rip, 16 * MIB + 0x200);
    assert_eq!(load.initrd_at, Some(64 * MIB - 0x2000));

    let page = blob(&load, load.entry.rsi);
    assert_eq!(page.len(), 4096);
    assert_eq!(page[0x1F1..0x210], image[0x1F1..0x210]);
    assert_eq!(page[0x210], 0xFF);
    assert_eq!(get64(page, 0x258), 16 * MIB);
    assert_eq!(get64(page, 0x070), RSDP);
    assert_eq!(u64::from(get32(page, 0x218)), 64 * MIB - 0x2000);
    assert_eq!(u64::from(get32(page, 0x21C)), INITRD);
    assert_eq!(text(&load, get32(page, 0x228).into()), CMDLINE);
    assert_eq!(page[0x1E8], 4);
    assert_eq!(
        (get64(page, 0x2E4), get64(page, 0x2EC), get32(page, 0x2F4)),
        (0xA_0000, 0x6_0000, 2)
    );
}

/// It ends where the byte at 0x201, an offset from 0x202, says, and at most where the zero page's
/// next field is (Linux boot protocol, "Details of Header Fields", `jump`).
#[test]
fn as_much_of_linuxs_setup_header_is_copied_as_there_is() {
    let regions = regions(64 * MIB);
    for (jump, end) in [(0x62, 0x264), (0x6A, 0x26C), (0x8D, 0x28F), (0x8E, 0x290), (0xFF, 0x290)] {
        let mut image = bzimage();
        image[0x264..0x302].fill(0x5A);
        image[0x201] = jump;
        let load = load(&image, None, "", &machine(&regions)).unwrap();
        let page = blob(&load, load.entry.rsi);
        assert_eq!(
            page[0x264..0x290],
            [&vec![0x5A; end - 0x264][..], &vec![0; 0x290 - end]].concat()
        );
        assert!(page[0x290..0x2D0].iter().all(|byte| *byte == 0));
    }
}

/// Debian's memtest86+ has 8 bytes in its last paragraph.
#[test]
fn linux_may_end_inside_its_last_paragraph() {
    let (image, regions) = (bzimage(), regions(64 * MIB));
    let load = |missing| load(&image[..image.len() - missing], None, "", &machine(&regions));
    for missing in [1, 8, 15] {
        let load = load(missing).unwrap();
        assert_eq!(load.segments[0].bytes, &image[1024..image.len() - missing]);
        check_plan(&load, None, &machine(&regions));
    }
    let cut = Error::Truncated { what: "the protected-mode code", needed: 5120, found: 5104 };
    assert_eq!(load(16).unwrap_err(), cut);
    // Bytes behind the last paragraph (a signature) aren't part of the kernel.
    let mut signed = image.clone();
    signed.extend([0xCC; 3]);
    let load = loader::load(&signed, None, "", &machine(&regions)).unwrap();
    assert_eq!(load.segments[0].bytes, &image[1024..]);
}

#[test]
fn an_initrd_of_no_bytes_is_none() {
    let regions = regions(64 * MIB);
    for kernel in [bzimage(), pvh64(), multiboot32()] {
        let load = |initrd| load(&kernel, initrd, CMDLINE, &machine(&regions)).unwrap();
        assert_eq!(load(Some(0)), load(None));
        assert_eq!(load(Some(0)).initrd_at, None);
        assert!(load(Some(1)).initrd_at.is_some());
    }
}

#[test]
fn linux_pages_map_the_low_4_gib_to_themselves() {
    let (image, regions) = (bzimage(), regions(64 * MIB));
    let load = load(&image, None, CMDLINE, &machine(&regions)).unwrap();
    let EntryMode::Bits64 { cr3, gdt, gdt_limit } = load.entry.mode else { panic!("32-bit") };
    let tables = blob(&load, cr3);
    let entry = |table: u64, index: u64| {
        let entry = get64(tables, (table - cr3 + 8 * index) as usize);
        assert_eq!(entry & 3, 3);
        (entry & !0xFFF, entry & 0x80 != 0)
    };
    for address in (0..1_u64 << 32).step_by(0x20_0000) {
        let (pdpt, _) = entry(cr3, address >> 39);
        let (directory, _) = entry(pdpt, address >> 30 & 511);
        assert_eq!(entry(directory, address >> 21 & 511), (address, true));
    }
    let gdt = blob(&load, gdt);
    assert_eq!(gdt.len(), usize::from(gdt_limit) + 1);
    // Present, type, L for code; present, type, B for data (APM volume 2, 4.8).
    assert_eq!(get64(gdt, loader::CODE_SELECTOR.into()) >> 40 & 0xF0FF, 0xA09B);
    assert_eq!(get64(gdt, loader::DATA_SELECTOR.into()) >> 40 & 0xF0FF, 0xC093);
}

#[test]
fn linux_moves_up_when_its_place_is_taken() {
    let image = bzimage();
    let mut regions = regions(64 * MIB);
    regions.push(MemoryRegion { start: 16 * MIB, len: 0x1000, kind: RegionKind::AcpiNvs });
    let load = load(&image, None, "", &machine(&regions)).unwrap();
    assert_eq!(load.segments[0].at, 18 * MIB);
    let mut fixed = image.clone();
    fixed[0x234] = 0;
    let error = loader::load(&fixed, None, "", &machine(&regions)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the kernel at 0x1000000..0x1100000 overlaps the memory the map reserves at \
         0x1000000..0x1001000"
    );
}

#[test]
fn the_initrd_stays_off_the_memory_linux_starts_in() {
    let (image, regions) = (bzimage(), regions(18 * MIB));
    let free_above = MIB; // the kernel needs 16..17 MiB
    let initrd = load(&image, Some(free_above), "", &machine(&regions)).unwrap().initrd_at;
    assert_eq!(initrd, Some(17 * MIB));
    let initrd = load(&image, Some(free_above + 1), "", &machine(&regions)).unwrap().initrd_at;
    assert!(initrd.unwrap() + free_above < 16 * MIB);
}

/// Loads a PVH kernel: at 2 MiB, begun in 32-bit code.
fn pvh<'a>(image: &'a [u8], machine: &GuestMachine<'_>) -> Load<'a> {
    let load = load(image, Some(INITRD), CMDLINE, machine).unwrap();
    check_plan(&load, Some(INITRD), machine);
    assert_eq!((load.format, load.entry.mode), (Format::Pvh, EntryMode::Bits32));
    assert_eq!(load.entry.rip, 0x20_0010);
    let segment = &load.segments[0];
    assert_eq!((segment.at, segment.bytes, segment.zeros), (2 * MIB, &image[256..], 256));
    load
}

#[test]
fn pvh_gets_its_start_info() {
    let (image, regions) = (pvh64(), regions(64 * MIB));
    let machine = machine(&regions);
    let load = pvh(&image, &machine);

    let info = blob(&load, load.entry.rbx);
    assert_eq!(info.len(), 56 + 32 + 4 * 24, "the module and the map stand behind it");
    let inside = |address: u64| (address - load.entry.rbx) as usize;
    assert_eq!((get32(info, 0), get32(info, 4), get32(info, 12)), (0x336E_C578, 1, 1));
    let module = inside(get64(info, 16));
    assert_eq!((get64(info, module), get64(info, module + 8)), (64 * MIB - 0x2000, INITRD));
    assert_eq!(text(&load, get64(info, 24)), CMDLINE);
    assert_eq!((get64(info, 32), get32(info, 48)), (RSDP, 4));
    let last = inside(get64(info, 40)) + 3 * 24;
    assert_eq!((get64(info, last), get64(info, last + 8)), (1 << 32, 1 << 30));
    assert_eq!((get32(info, last + 16), info.len()), (1, last + 24));
}

#[test]
fn pvh_of_32_bits_is_started_as_one_of_64() {
    let (image, regions) = (pvh32(), regions(64 * MIB));
    pvh(&image, &machine(&regions));
}

#[test]
fn multiboot_gets_its_information_in_both_forms() {
    for (image, loaded, zeros, rip) in [
        (multiboot32(), 256..512, 256, 0x10_0040),
        (multiboot_addressed(), 64..512, 512, 0x10_0020),
    ] {
        let regions = regions(64 * MIB);
        let machine = machine(&regions);
        let load = load(&image, Some(INITRD), CMDLINE, &machine).unwrap();
        check_plan(&load, Some(INITRD), &machine);
        assert_eq!((load.format, load.entry.mode), (Format::Multiboot, EntryMode::Bits32));
        assert_eq!((load.entry.rip, load.entry.rax), (rip, 0x2BAD_B002));
        let segment = &load.segments[0];
        assert_eq!((segment.at, segment.bytes, segment.zeros), (MIB, &image[loaded], zeros));

        let info = blob(&load, load.entry.rbx);
        assert_eq!(info.len(), 120 + 16 + 4 * 24, "the module and the map stand behind it");
        let inside = |address: u32| (u64::from(address) - load.entry.rbx) as usize;
        assert_eq!((get32(info, 0), get32(info, 4), get32(info, 8)), (0x4D, 640, 63 * 1024));
        assert_eq!(text(&load, get32(info, 16).into()), CMDLINE);
        let module = inside(get32(info, 24));
        assert_eq!(get32(info, 20), 1);
        assert_eq!((get32(info, module), get32(info, module + 4)), (0x10_1000, 0x10_1000 + 5000));
        let map = inside(get32(info, 48));
        assert_eq!((get32(info, 44), get32(info, map)), (96, 20));
        assert_eq!((get64(info, map + 28), get64(info, map + 36)), (0xA_0000, 0x6_0000));
        assert_eq!(get32(info, map + 44), 2);
    }
}

/// Bounds of its own: the load's end is the file's, and modules go above what is zeroed, though
/// there is room below the kernel.
#[test]
fn multiboot_modules_are_above_the_kernel_whatever_its_file_has() {
    let regions = regions(64 * MIB);
    for (bytes, zeros) in [(448_u32, 3 * MIB as u32), (3 * MIB as u32, 0x1000), (3 << 20, 0)] {
        let mut image = vec![0xAA; 64 + bytes as usize];
        let at = 8 * MIB as u32;
        let bss_end = if zeros == 0 { 0 } else { at + bytes + zeros };
        put_multiboot(&mut image, 64 + 16, 0x1_0003, [at + 16, at, 0, bss_end, at + 32]);
        let load = load(&image, Some(INITRD), "", &machine(&regions)).unwrap();
        let segment = &load.segments[0];
        assert_eq!((segment.at, segment.bytes), (8 * MIB, &image[64..]));
        assert_eq!(segment.zeros, u64::from(zeros));
        let end = u64::from(at + bytes + zeros);
        assert_eq!(load.initrd_at, Some(end.next_multiple_of(0x1000)));
    }
}

#[test]
fn command_lines_fill_a_page_at_most() {
    let regions = regions(64 * MIB);
    for kernel in [pvh64(), multiboot32()] {
        let load = |bytes| load(&kernel, None, &"x".repeat(bytes), &machine(&regions));
        let longest = load(4095).unwrap();
        assert_eq!(longest.blobs[0].bytes.len(), 4096);
        let long = Error::CommandLineTooLong { found: 4096, max: 4095 };
        assert_eq!(load(4096).unwrap_err(), long);
    }
}

#[test]
fn limits_are_what_is_still_taken() {
    let regions = regions(64 * MIB);
    let machine = machine(&regions);
    assert!(load(&bzimage(), None, &"x".repeat(2047), &machine).is_ok());
    // The same two program headers, then as many of no type as there may be.
    let headers = |count: usize| {
        let mut image = pvh64();
        let table = image[64..176].to_vec();
        let at = image.len();
        image.extend(table);
        image.resize(at + 56 * count, 0);
        put(&mut image, 32, &(at as u64).to_le_bytes());
        put(&mut image, 56, &(count as u16).to_le_bytes());
        load(&image, None, "", &machine).map(|load| load.format).map_err(|e| e.to_string())
    };
    assert_eq!(headers(128), Ok(Format::Pvh));
    let refusal = "the kernel's number of ELF program headers is 0x81, but at most 128 are read";
    assert_eq!(headers(129), Err(refusal.into()));
}

#[test]
fn the_order_of_formats_is_qemus() {
    let regions = regions(64 * MIB);
    let format = |image: &[u8]| load(image, None, "", &machine(&regions)).map(|load| load.format);
    let mut image = pvh64();
    put_multiboot(&mut image, 256, 0x1_0000, [MIB as u32, MIB as u32, 0, 0, MIB as u32]);
    assert_eq!(format(&image), Ok(Format::Multiboot));
    put_multiboot(&mut image, 256, 3, [0; 5]);
    assert_eq!(format(&image), Err(Error::Multiboot64(3)));
    put(&mut image, 256, &[0]);
    assert_eq!(format(&image), Ok(Format::Pvh));
    let mut image = bzimage();
    put_multiboot(&mut image, 1024, 3, [0; 5]);
    assert_eq!(format(&image), Ok(Format::Linux));
}

#[test]
fn refusals_say_what_was_found_and_what_is_needed() {
    let linux = |change: &dyn Fn(&mut Vec<u8>), initrd, cmdline: &str, size| {
        let mut image = bzimage();
        change(&mut image);
        load(&image, initrd, cmdline, &machine(&regions(size))).unwrap_err().to_string()
    };
    let same = |_: &mut Vec<u8>| {};
    assert_eq!(
        linux(&same, None, "", 16 * MIB),
        "the kernel needs RAM at 0x1000000..0x1100000, but RAM below 4 GiB ends at 0x1000000; give \
         the machine at least 18M"
    );
    assert_eq!(
        linux(&same, Some(40 * MIB), "", 32 * MIB),
        "the initrd of 41943040 bytes fits nowhere in RAM, where the largest free piece has \
         15728640 bytes; give the machine at least 58M"
    );
    let blamed = |kernel: &[u8], initrd, cmdline: &str, size| {
        load(kernel, initrd, cmdline, &machine(&regions(size))).unwrap_err().subject()
    };
    for kernel in [bzimage(), pvh64(), multiboot32()] {
        // Larger than this machine, than any below 4 GiB, than any.
        for size in [40 * MIB, 5 << 30, u64::MAX] {
            assert_eq!(blamed(&kernel, Some(size), "", 32 * MIB), Subject::Initrd);
        }
        assert_eq!(blamed(&kernel, Some(40 * MIB), "", MIB), Subject::Kernel);
        assert_eq!(blamed(&kernel, None, "a\0b", 32 * MIB), Subject::CommandLine);
    }
    assert_eq!(blamed(&bzimage(), None, &"x".repeat(2048), 64 * MIB), Subject::CommandLine);
    let many = vec![MemoryRegion { start: 0, len: MIB, kind: RegionKind::Ram }; 129];
    let error = load(&bzimage(), None, "", &machine(&many)).unwrap_err();
    assert_eq!((error.subject(), error), (Subject::Machine, Error::TooManyRegions(129)));
    let enough = regions(57 * MIB);
    assert!(load(&bzimage(), Some(40 * MIB), "", &machine(&enough)).is_ok());
    let limited = |image: &mut Vec<u8>| put(image, 0x22C, &0x1FF_FFFF_u32.to_le_bytes());
    assert_eq!(
        linux(&limited, Some(40 * MIB), "", 512 * MIB),
        "the initrd of 41943040 bytes fits nowhere at 0x1000..0x2000000; the largest free piece there \
         has 15728640 bytes"
    );
    assert_eq!(
        linux(&same, None, &"x".repeat(2048), 64 * MIB),
        "the command line has 2048 bytes, but this kernel takes at most 2047"
    );
    assert_eq!(
        linux(&same, None, "a\0b", 64 * MIB),
        "the command line contains a NUL byte, which would end it"
    );
    assert_eq!(
        linux(&|image| image.truncate(5000), None, "", 64 * MIB),
        "the kernel file is cut short: the protected-mode code ends at byte 5120, the file has 5000"
    );
    let mut oldest = bzimage();
    oldest[0x206] = 0x0C;
    assert!(load(&oldest, None, "", &machine(&regions(64 * MIB))).is_ok());
    assert_eq!(
        linux(&|image| image[0x206] = 0x0B, None, "", 64 * MIB),
        "the kernel's Linux boot protocol is 2.11, but 2.12 or later with a 64-bit entry point is \
         needed"
    );
    assert_eq!(
        linux(&|image| image[0x236] = 0x7E, None, "", 64 * MIB),
        "the Linux kernel has no 64-bit entry point (xloadflags is 0x7e, bit 0 is needed)"
    );

    let regions = regions(64 * MIB);
    let refused = |image: &[u8]| load(image, None, "", &machine(&regions)).unwrap_err();
    assert_eq!(refused(&[0; 4096]), Error::UnknownFormat);
    assert_eq!(refused(&[]), Error::UnknownFormat);
    let mut image = pvh64();
    put(&mut image, 204, &[17]);
    assert_eq!(refused(&image), Error::NoPvhNote);
    let mut image = pvh64();
    put(&mut image, 212, &[0, 0x10]);
    assert_eq!(refused(&image), Error::EntryOutside(0x20_1000));
    for (entry, inside) in
        [(0x1F_FFFF, false), (0x20_0000, true), (0x20_01FF, true), (0x20_0200, false)]
    {
        let mut image = pvh64();
        put(&mut image, 212, &u32::to_le_bytes(entry));
        let load = load(&image, None, "", &machine(&regions));
        assert_eq!(
            load.map(|load| load.entry.rip),
            match inside {
                true => Ok(entry.into()),
                false => Err(Error::EntryOutside(entry.into())),
            }
        );
    }
    let mut image = pvh64();
    put(&mut image, 88, &0xA_0000_u64.to_le_bytes());
    assert_eq!(refused(&image), Error::NotRam { what: "kernel", start: 0xA_0000, end: 0xA_0200 });
    let mut image = pvh64();
    image.copy_within(64..120, 120);
    assert!(matches!(refused(&image), Error::NoPvhNote));
    let mut image = multiboot32();
    put_multiboot(&mut image, 256, 0x0B, [0; 5]);
    assert_eq!(refused(&image), Error::MultibootFlags(0x0B));
}

#[test]
fn segments_that_overlap_are_refused() {
    let mut image = pvh64();
    image[56] = 3;
    image.copy_within(120..176, 400); // the note's program header, moved to the third place
    let mut table = image[64..120].to_vec();
    table.extend_from_within(..);
    table[56 + 24..56 + 32].copy_from_slice(&(2 * MIB + 0x1FF).to_le_bytes());
    table.extend_from_slice(&image[400..456]);
    image.extend(table);
    put(&mut image, 32, &512_u64.to_le_bytes());
    assert_eq!(
        load(&image, None, "", &machine(&regions(64 * MIB))).unwrap_err().to_string(),
        "the kernel at 0x2001ff..0x2003ff overlaps the kernel at 0x200000..0x200200"
    );
}
