//! What the loader left: command line, memory map and, with PVH, the RSDP.
//! Everything needed later is copied out before the tests use any memory.

use core::ops::Range;

const PVH_MAGIC: u32 = 0x336E_C578;
/// Memory map entries kept.
const MAX_REGIONS: usize = 32;
const MAX_COMMAND_LINE: usize = 512;
const USABLE: u32 = 1;

/// What the loader said.
pub struct Boot {
    /// Which protocol booted this kernel.
    pub protocol: &'static str,
    /// Address of the RSDP; zero when the loader doesn't say.
    pub rsdp: u64,
    command_line: [u8; MAX_COMMAND_LINE],
    regions: [Region; MAX_REGIONS],
    region_count: usize,
}

/// An entry of the memory map.
#[derive(Clone, Copy, Default)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// E820 type.
    pub kind: u32,
}

fn read32(address: u64) -> u32 {
    // SAFETY: loader data below 4 GiB, mapped one to one.
    unsafe { (address as *const u32).read_unaligned() }
}

fn read64(address: u64) -> u64 {
    u64::from(read32(address)) | u64::from(read32(address + 4)) << 32
}

impl Boot {
    /// Copies what the block at `info` says.
    pub fn read(info: u64) -> Boot {
        let mut boot = Boot {
            protocol: "pvh",
            rsdp: 0,
            command_line: [0; MAX_COMMAND_LINE],
            regions: [Region::default(); MAX_REGIONS],
            region_count: 0,
        };
        if read32(info) == PVH_MAGIC {
            boot.read_pvh(info);
        } else {
            boot.protocol = "multiboot";
            boot.read_multiboot(info);
        }
        boot
    }

    /// hvm_start_info, Xen's public headers, version 1.
    fn read_pvh(&mut self, info: u64) {
        self.copy_command_line(read64(info + 24));
        self.rsdp = read64(info + 32);
        let (map, entries) = (read64(info + 40), u64::from(read32(info + 48)));
        for i in 0..entries {
            let at = map + i * 24;
            self.push(Region { start: read64(at), bytes: read64(at + 8), kind: read32(at + 16) });
        }
    }

    /// Multiboot information, version 0.6.96, section 3.3.
    fn read_multiboot(&mut self, info: u64) {
        let flags = read32(info);
        if flags & 1 << 2 != 0 {
            self.copy_command_line(u64::from(read32(info + 16)));
        }
        if flags & 1 << 6 != 0 {
            let (bytes, map) = (u64::from(read32(info + 44)), u64::from(read32(info + 48)));
            let mut at = map;
            while at < map + bytes {
                let kind = read32(at + 20);
                self.push(Region { start: read64(at + 4), bytes: read64(at + 12), kind });
                at += 4 + u64::from(read32(at));
            }
        }
    }

    fn copy_command_line(&mut self, mut from: u64) {
        if from == 0 {
            return;
        }
        for byte in &mut self.command_line[..MAX_COMMAND_LINE - 1] {
            // SAFETY: loader data below 4 GiB, ended by a zero.
            *byte = unsafe { (from as *const u8).read() };
            if *byte == 0 {
                break;
            }
            from += 1;
        }
    }

    fn push(&mut self, region: Region) {
        if let Some(slot) = self.regions.get_mut(self.region_count) {
            *slot = region;
            self.region_count += 1;
        }
    }

    /// The memory map.
    pub fn regions(&self) -> &[Region] {
        &self.regions[..self.region_count]
    }

    /// What follows `key=` on the command line.
    pub fn option(&self, key: &str) -> Option<&str> {
        let end = self.command_line.iter().position(|b| *b == 0)?;
        let line = core::str::from_utf8(&self.command_line[..end]).ok()?;
        line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// Usable memory above this kernel and below 4 GiB, the largest piece.
    pub fn free_memory(&self) -> Range<u64> {
        let kernel_end = (kernel_end() + 0xFFF) & !0xFFF;
        self.regions()
            .iter()
            .filter(|r| r.kind == USABLE && r.start < 1 << 32)
            .map(|r| r.start.max(kernel_end)..r.start + r.bytes)
            .filter(|r| r.start < r.end)
            .max_by_key(|r| r.end - r.start)
            .unwrap_or(0..0)
    }

    /// One past the highest usable address below 4 GiB.
    pub fn memory_end(&self) -> u64 {
        let usable = self.regions().iter().filter(|r| r.kind == USABLE && r.start < 1 << 32);
        usable.map(|r| r.start + r.bytes).max().unwrap_or(0)
    }
}

/// One past the last byte of this kernel.
pub fn kernel_end() -> u64 {
    unsafe extern "C" {
        static kernel_end: u8;
    }
    (&raw const kernel_end) as u64
}
