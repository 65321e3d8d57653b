//! Linux bzImages, entered at their 64-bit entry point with the zero page in RSI
//! (Linux Documentation/arch/x86/boot.rst and zero-page.rst).

use alloc::vec;
use alloc::vec::Vec;

use crate::bytes::{put, slice, u8, u16, u32, u64};
use crate::error::INITRD;
use crate::memory::{LIMIT, LOWEST, Memory};
use crate::{Entry, EntryMode, Error, Format, GuestMachine, Load, Request, Segment};

const HEADER_AT: u64 = 0x1F1;
const MAGIC_AT: usize = 0x202;
/// Boot protocol 2.12 brought the 64-bit entry point.
const OLDEST: u16 = 0x020C;
const LOADED_HIGH: u8 = 1 << 0;
const XLF_KERNEL_64: u16 = 1 << 0;
/// "A loader without an assigned number".
const TYPE_OF_LOADER: u8 = 0xFF;
const ENTRY_OFFSET: u64 = 0x200;
/// The unit of `syssize`, in bytes.
const PARAGRAPH: u64 = 16;
/// The zero page's next field after the setup header.
const HEADER_LIMIT: u64 = 0x290;

pub fn detect(kernel: &[u8]) -> bool {
    kernel.get(MAGIC_AT..MAGIC_AT + 4) == Some(b"HdrS")
}

pub fn load<'a>(request: &Request<'a, '_>, mut memory: Memory) -> Result<Load<'a>, Error> {
    let header = Header::parse(request.kernel)?;
    let found = request.cmdline.len() as u64;
    if found > header.cmdline_size {
        return Err(Error::CommandLineTooLong { found, max: header.cmdline_size });
    }
    let at = header.place(&mut memory)?;

    let mut tables = memory.blob(vec![0; 6 * 0x1000], "page tables")?;
    identity_map(&mut tables.bytes, tables.at);
    let gdt = memory.blob(gdt(), "GDT")?;
    let command_line = memory.blob([request.cmdline.as_bytes(), &[0]].concat(), "command line")?;
    let mut zero_page = memory.blob(vec![0; 0x1000], "boot parameters")?;
    let initrd = request
        .initrd
        .map(|size| memory.highest(size, LOWEST..header.initrd_end, INITRD).map(|at| (at, size)))
        .transpose()?;
    fill_zero_page(&mut zero_page.bytes, &header, command_line.at, initrd, request.machine);

    let mode =
        EntryMode::Bits64 { cr3: tables.at, gdt: gdt.at, gdt_limit: gdt.bytes.len() as u16 - 1 };
    let entry = Entry { rip: at + ENTRY_OFFSET, mode, rax: 0, rbx: 0, rsi: zero_page.at };
    Ok(Load {
        format: Format::Linux,
        // The kernel clears what it uses beyond its file.
        segments: vec![Segment { at, bytes: header.payload, zeros: 0 }],
        blobs: vec![tables, gdt, command_line, zero_page],
        initrd_at: initrd.map(|(at, _)| at),
        entry,
    })
}

struct Header<'a> {
    /// The setup header, as it is copied into the zero page.
    setup: &'a [u8],
    /// The part that runs.
    payload: &'a [u8],
    /// Memory it needs before it has read the memory map.
    init_size: u64,
    pref_address: u64,
    /// What another address must be a multiple of; none can be had if absent.
    alignment: Option<u64>,
    cmdline_size: u64,
    /// First byte the initrd can't use.
    initrd_end: u64,
}

impl<'a> Header<'a> {
    fn parse(kernel: &'a [u8]) -> Result<Self, Error> {
        let version = u16(kernel, 0x206)?;
        if version < OLDEST {
            return Err(Error::OldLinux(version));
        }
        let xloadflags = u16(kernel, 0x236)?;
        if xloadflags & XLF_KERNEL_64 == 0 {
            return Err(Error::No64BitEntry(xloadflags));
        }
        let loadflags = u8(kernel, 0x211)?;
        if loadflags & LOADED_HIGH == 0 {
            return Err(Error::Header {
                what: "Linux loadflags",
                found: loadflags.into(),
                needed: "bit 0 must be set, as in a bzImage",
            });
        }
        let end = (0x202 + u64::from(u8(kernel, 0x201)?)).min(HEADER_LIMIT);
        let setup = slice(kernel, HEADER_AT, end - HEADER_AT, "the setup header")?;

        // 0 stands for 4, for the sake of old kernels.
        let sectors = match u8(kernel, HEADER_AT)? {
            0 => 4,
            sectors => u64::from(sectors),
        };
        // `syssize` counts paragraphs and is rounded up; the file may end inside the last one.
        let start = (sectors + 1) * 512;
        let stated = u64::from(u32(kernel, 0x1F4)?) * PARAGRAPH;
        let size = match (kernel.len() as u64).checked_sub(start) {
            Some(there) if there < stated && stated - there < PARAGRAPH => there,
            _ => stated,
        };
        let payload = slice(kernel, start, size, "the protected-mode code")?;
        if size <= ENTRY_OFFSET {
            return Err(Error::Empty);
        }
        let relocatable = u8(kernel, 0x234)? != 0;
        let alignment = u32(kernel, 0x230)?;
        if relocatable && !alignment.is_power_of_two() {
            return Err(Error::Header {
                what: "Linux kernel_alignment",
                found: alignment.into(),
                needed: "it must be a power of two",
            });
        }
        Ok(Self {
            setup,
            payload,
            init_size: u64::from(u32(kernel, 0x260)?).max(size),
            pref_address: u64(kernel, 0x258)?,
            alignment: relocatable.then_some(alignment.into()),
            cmdline_size: u32(kernel, 0x238)?.into(),
            initrd_end: u64::from(u32(kernel, 0x22C)?) + 1,
        })
    }

    /// At the preferred address, else at the next one above that has room: loaded
    /// below it, a 64-bit kernel moves itself there anyway.
    fn place(&self, memory: &mut Memory) -> Result<u64, Error> {
        let preferred = memory.claim(self.pref_address, self.init_size, "kernel");
        let Err(error) = preferred else { return Ok(self.pref_address) };
        let moved = self.alignment.and_then(|alignment| {
            memory.lowest(self.init_size, alignment, self.pref_address..LIMIT, "kernel").ok()
        });
        moved.ok_or(error)
    }
}

/// PML4, PDPT and four page directories of 2 MiB pages that map 4 GiB to itself.
fn identity_map(tables: &mut [u8], at: u64) {
    const PRESENT_WRITABLE: u64 = 0x3;
    const PAGE_SIZE: u64 = 0x80;
    let mut entry = |index: usize, value: u64| put(tables, 8 * index, &value.to_le_bytes());
    entry(0, (at + 0x1000) | PRESENT_WRITABLE);
    for directory in 0..4 {
        entry(512 + directory, (at + 0x2000 + 0x1000 * directory as u64) | PRESENT_WRITABLE);
    }
    for page in 0..2048 {
        entry(1024 + page, (page as u64) << 21 | PAGE_SIZE | PRESENT_WRITABLE);
    }
}

/// [`crate::CODE_SELECTOR`] and [`crate::DATA_SELECTOR`], flat, accessed.
fn gdt() -> Vec<u8> {
    [0, 0, 0x00AF_9B00_0000_FFFF, 0x00CF_9300_0000_FFFF_u64]
        .iter()
        .flat_map(|descriptor| descriptor.to_le_bytes())
        .collect()
}

fn fill_zero_page(
    page: &mut [u8],
    header: &Header,
    command_line: u64,
    initrd: Option<(u64, u64)>,
    machine: &GuestMachine,
) {
    put(page, HEADER_AT as usize, header.setup);
    put(page, 0x070, &machine.rsdp.to_le_bytes());
    put(page, 0x210, &[TYPE_OF_LOADER]);
    // Both are below 4 GiB, so that the extensions for upper halves stay 0.
    let (ramdisk_image, ramdisk_size) = initrd.unwrap_or((0, 0));
    for (at, value) in [(0x218, ramdisk_image), (0x21C, ramdisk_size), (0x228, command_line)] {
        put(page, at, &(value as u32).to_le_bytes());
    }
    put(page, 0x1E8, &[machine.regions.len() as u8]);
    for (index, region) in machine.regions.iter().enumerate() {
        let entry = 0x2D0 + 20 * index;
        put(page, entry, &region.start.to_le_bytes());
        put(page, entry + 8, &region.len.to_le_bytes());
        put(page, entry + 16, &(region.kind as u32).to_le_bytes());
    }
}
