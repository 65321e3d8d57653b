//! Hand-made kernel images, machines, and what must hold of every plan.
#![allow(dead_code, reason = "each test binary uses its part")]

use loader::{GuestMachine, Load, MemoryRegion, RegionKind};

pub const MIB: u64 = 1 << 20;
pub const RSDP: u64 = 0xE_0000;

/// Low RAM, the hole below 1 MiB, and RAM up to `size`.
pub fn regions(size: u64) -> Vec<MemoryRegion> {
    let region = |start, end, kind| MemoryRegion { start, len: end - start, kind };
    vec![
        region(0, 0xA_0000, RegionKind::Ram),
        region(0xA_0000, MIB, RegionKind::Reserved),
        region(MIB, size, RegionKind::Ram),
        region(1 << 32, 5 << 30, RegionKind::Ram),
    ]
}

pub fn machine(regions: &[MemoryRegion]) -> GuestMachine<'_> {
    GuestMachine { regions, rsdp: RSDP }
}

pub fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

pub fn get<const N: usize>(image: &[u8], at: usize) -> [u8; N] {
    image[at..at + N].try_into().unwrap()
}

pub fn get32(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(image, at))
}

pub fn get64(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(image, at))
}

/// A relocatable bzImage: 1 KiB of setup, 4 KiB of kernel, 1 MiB needed at 16 MiB.
pub fn bzimage() -> Vec<u8> {
    let mut image = vec![0; 1024 + 4096];
    put(&mut image, 0x1F1, &[1]);
    put(&mut image, 0x1F4, &256_u32.to_le_bytes());
    put(&mut image, 0x1FE, &[0x55, 0xAA, 0xEB, 0x6A]);
    put(&mut image, 0x202, b"HdrS");
    put(&mut image, 0x206, &0x020F_u16.to_le_bytes());
    put(&mut image, 0x211, &[1]);
    put(&mut image, 0x22C, &0x7FFF_FFFF_u32.to_le_bytes());
    put(&mut image, 0x230, &0x20_0000_u32.to_le_bytes());
    put(&mut image, 0x234, &[1]);
    put(&mut image, 0x236, &[0x7F, 0]);
    put(&mut image, 0x238, &2047_u32.to_le_bytes());
    put(&mut image, 0x258, &(16 * MIB).to_le_bytes());
    put(&mut image, 0x260, &(MIB as u32).to_le_bytes());
    image[1024..].fill(0x90);
    image
}

/// An ELF64 file with one segment of 256 + 256 bytes at 2 MiB and a PVH note.
pub fn pvh64() -> Vec<u8> {
    let mut image = vec![0; 512];
    put(&mut image, 0, b"\x7FELF\x02\x01\x01");
    put(&mut image, 18, &62_u16.to_le_bytes());
    put(&mut image, 24, &0xFFFF_FFFF_8020_0000_u64.to_le_bytes());
    put(&mut image, 32, &64_u64.to_le_bytes());
    put(&mut image, 54, &56_u16.to_le_bytes());
    put(&mut image, 56, &2_u16.to_le_bytes());
    for (at, kind, offset, address, file, memory) in
        [(64, 1_u32, 256_u64, 2 * MIB, 256_u64, 512_u64), (120, 4, 176, 0, 44, 44)]
    {
        put(&mut image, at, &kind.to_le_bytes());
        put(&mut image, at + 8, &offset.to_le_bytes());
        put(&mut image, at + 24, &address.to_le_bytes());
        put(&mut image, at + 32, &file.to_le_bytes());
        put(&mut image, at + 40, &memory.to_le_bytes());
        put(&mut image, at + 48, &4_u64.to_le_bytes());
    }
    // Another note first, with a name and a descriptor that need padding.
    for (at, word) in [(176, 3), (180, 2), (184, 18), (188, 0x0055_4E47), (192, 7)] {
        put(&mut image, at, &(word as u32).to_le_bytes());
    }
    for (at, word) in [(196, 4), (200, 8), (204, 18), (208, 0x006E_6558), (212, 0x20_0010)] {
        put(&mut image, at, &(word as u32).to_le_bytes());
    }
    image[256..].fill(0xF4);
    image
}

/// The same as an ELF32 file, with notes padded to 8 bytes.
pub fn pvh32() -> Vec<u8> {
    let mut image = vec![0; 512];
    put(&mut image, 0, b"\x7FELF\x01\x01\x01");
    put(&mut image, 18, &3_u16.to_le_bytes());
    put(&mut image, 24, &0xC020_0000_u32.to_le_bytes());
    put(&mut image, 28, &52_u32.to_le_bytes());
    put(&mut image, 42, &[32, 0, 2, 0]);
    let segments =
        [[1_u32, 256, 0xC020_0000, 2 << 20, 256, 512, 7, 4096], [4, 176, 0, 0, 56, 56, 4, 8]];
    for (index, word) in segments.iter().flatten().enumerate() {
        put(&mut image, 52 + 4 * index, &word.to_le_bytes());
    }
    // Another note first, whose name ends inside a unit of 8 bytes and whose descriptor does, too.
    for (at, word) in [(176, 3), (180, 2), (184, 18), (188, 0x0055_4E47), (192, 7)] {
        put(&mut image, at, &(word as u32).to_le_bytes());
    }
    for (at, word) in [(200, 4), (204, 4), (208, 18), (212, 0x006E_6558), (216, 0x20_0010)] {
        put(&mut image, at, &(word as u32).to_le_bytes());
    }
    image[256..].fill(0xF4);
    image
}

/// The multiboot header at `at` with its checksum; `address` are the address fields.
pub fn put_multiboot(image: &mut [u8], at: usize, flags: u32, address: [u32; 5]) {
    let sum = 0_u32.wrapping_sub(0x1BAD_B002).wrapping_sub(flags);
    for (index, word) in [0x1BAD_B002, flags, sum].into_iter().chain(address).enumerate() {
        put(image, at + 4 * index, &word.to_le_bytes());
    }
}

/// An ELF32 file with one segment of 256 + 256 bytes at 1 MiB and a multiboot header.
pub fn multiboot32() -> Vec<u8> {
    let mut image = vec![0; 512];
    put(&mut image, 0, b"\x7FELF\x01\x01\x01");
    put(&mut image, 18, &3_u16.to_le_bytes());
    for (at, word) in [(24, 0x10_0040), (28, 52)] {
        put(&mut image, at, &(word as u32).to_le_bytes());
    }
    put(&mut image, 42, &[32, 0, 1, 0]);
    for (index, word) in [1_u32, 256, 0xC010_0000, 0x10_0000, 256, 512, 7, 4096].iter().enumerate()
    {
        put(&mut image, 52 + 4 * index, &word.to_le_bytes());
    }
    put_multiboot(&mut image, 256, 3, [0; 5]);
    image
}

/// Address fields over something that isn't ELF32: 64 bytes of other things, then
/// what is loaded at 1 MiB with its header at 16, then 512 bytes of bss.
pub fn multiboot_addressed() -> Vec<u8> {
    let mut image = vec![0xAA; 64 + 448];
    let address = [0x10_0010, 0x10_0000, 0x10_01C0, 0x10_03C0, 0x10_0020];
    put_multiboot(&mut image, 64 + 16, 0x1_0003, address);
    image
}

/// Every piece lies in RAM of `machine` below 4 GiB, and no two overlap.
pub fn check_plan(load: &Load, initrd: Option<u64>, machine: &GuestMachine) {
    let mut pieces = Vec::new();
    for segment in &load.segments {
        let size = segment.bytes.len() as u64 + segment.zeros;
        pieces.push((segment.at, size));
    }
    pieces.extend(load.blobs.iter().map(|blob| (blob.at, blob.bytes.len() as u64)));
    assert_eq!(load.initrd_at.is_some(), initrd.is_some_and(|size| size > 0));
    pieces.extend(load.initrd_at.zip(initrd));
    pieces.sort();
    for pair in pieces.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:x?} overlap", pair);
    }
    for (at, size) in pieces {
        let end = at.checked_add(size).unwrap();
        assert!(end <= 1 << 32);
        let ram = machine.regions.iter().any(|region| {
            let whole = region.start <= at && end <= region.start.saturating_add(region.len);
            region.kind == RegionKind::Ram && whole
        });
        assert!(ram, "{at:#x}..{end:#x} isn't RAM");
    }
    let rip = load.entry.rip;
    assert!(load.segments.iter().any(|segment| {
        let size = segment.bytes.len() as u64 + segment.zeros;
        segment.at <= rip && rip < segment.at + size
    }));
}

/// The generated table at `at`.
pub fn blob<'a>(load: &'a Load, at: u64) -> &'a [u8] {
    &load.blobs.iter().find(|blob| blob.at == at).unwrap().bytes
}

/// The NUL-terminated text at `at`.
pub fn text(load: &Load, at: u64) -> String {
    let bytes = blob(load, at).strip_suffix(&[0]).unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}
