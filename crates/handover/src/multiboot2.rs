//! Multiboot2's information (Multiboot2 specification 2.0, 3.4 to 3.6), as GRUB gives it on a BIOS
//! and on UEFI.
//!
//! On UEFI the firmware's own map is believed, and not the one that GRUB makes of it: only that one
//! tells what belongs to the runtime services.

use crate::bytes::{command_line, field, u32, u64};
use crate::pvh::kind_of_e820;
use crate::{BootInfo, BootPath, Error, Framebuffer, PixelFormat, efi};
use acpi::{Physical, RootPointer};

const INFORMATION: &str = "multiboot2 information";

/// Total size and a reserved word, before the first tag.
const HEADER: u64 = 8;
/// Type and size of a tag.
const TAG: u64 = 8;
/// The most bytes of information that are read; a page or two are usual.
const MAX_SIZE: u32 = 1 << 20;

const END: u32 = 0;
const COMMAND_LINE: u32 = 1;
const MODULE: u32 = 3;
const MEMORY_MAP: u32 = 6;
const FRAMEBUFFER: u32 = 8;
const SYSTEM_TABLE_64: u32 = 12;
const RSDP_OLD: u32 = 14;
const RSDP_NEW: u32 = 15;
const EFI_MEMORY_MAP: u32 = 17;
const BOOT_SERVICES_RUN: u32 = 18;

/// A tag: where its content begins, and how many bytes that has.
#[derive(Clone, Copy)]
struct Tag {
    at: u64,
    size: u64,
}

/// Reads the information at `at`.
pub fn read(mem: &impl Physical, at: u64) -> Result<BootInfo, Error> {
    let total = u32(mem, INFORMATION, at, 0)?;
    if !(HEADER as u32 + TAG as u32..=MAX_SIZE).contains(&total) {
        let (what, needed) = ("size of the multiboot2 information", "0x10 to 0x100000");
        return Err(Error::Field { what, found: total.into(), needed });
    }
    let mut info = BootInfo::of(BootPath::Multiboot2);
    let (mut e820, mut efi_map) = (None, None);
    let mut offset = HEADER;
    while offset + TAG <= u64::from(total) {
        let kind = u32(mem, INFORMATION, at, offset)?;
        let size = u64::from(u32(mem, INFORMATION, at, offset + 4)?);
        if size < TAG || offset + size > total.into() {
            let (what, needed) = ("multiboot2 tag's size", "one from 8 to what is left");
            return Err(Error::Field { what, found: size, needed });
        }
        let tag = Tag { at: at + offset + TAG, size: size - TAG };
        match kind {
            END => break,
            COMMAND_LINE => command_line(mem, tag.at, tag.size, &mut info)?,
            // The first one is the boot image.
            MODULE if info.image.is_none() => info.image = Some(tag.module(mem)?),
            MEMORY_MAP => e820 = Some(tag),
            EFI_MEMORY_MAP => efi_map = Some(tag),
            FRAMEBUFFER => info.framebuffer = tag.framebuffer(mem)?,
            SYSTEM_TABLE_64 => info.system_table = Some(tag.u64(mem, 0)?),
            RSDP_NEW => info.rsdp = Some(tag.root_pointer(mem, RootPointer::NEW)?),
            RSDP_OLD if info.rsdp.is_none() => {
                info.rsdp = Some(tag.root_pointer(mem, RootPointer::OLD)?);
            }
            BOOT_SERVICES_RUN => return Err(Error::BootServices),
            _ => {}
        }
        offset += size.next_multiple_of(8);
    }
    match (efi_map, e820) {
        (Some(tag), _) => {
            // Size and version of a descriptor come first.
            let (stride, bytes) = (tag.u32(mem, 0)?, tag.size.saturating_sub(8));
            efi::add_descriptors(mem, tag.at + 8, bytes, stride, &mut info.memory)?;
        }
        (None, Some(tag)) => tag.memory_map(mem, &mut info)?,
        (None, None) => return Err(Error::NoMemoryMap),
    }
    Ok(info)
}

impl Tag {
    fn u32(&self, mem: &impl Physical, offset: u64) -> Result<u32, Error> {
        self.has(offset + 4)?;
        u32(mem, INFORMATION, self.at, offset)
    }

    fn u64(&self, mem: &impl Physical, offset: u64) -> Result<u64, Error> {
        self.has(offset + 8)?;
        u64(mem, INFORMATION, self.at, offset)
    }

    fn has(&self, bytes: u64) -> Result<(), Error> {
        if bytes <= self.size {
            return Ok(());
        }
        let (what, needed) = ("multiboot2 tag's size", "more, for what such a tag holds,");
        Err(Error::Field { what, found: self.size + TAG, needed })
    }

    fn module(&self, mem: &impl Physical) -> Result<(u64, u64), Error> {
        let (start, end) = (self.u32(mem, 0)?, self.u32(mem, 4)?);
        Ok((start.into(), end.max(start).into()))
    }

    fn memory_map(&self, mem: &impl Physical, info: &mut BootInfo) -> Result<(), Error> {
        let stride = u64::from(self.u32(mem, 0)?);
        if stride < 24 {
            let (what, needed) = ("size of a multiboot2 memory range", "0x18 or more");
            return Err(Error::Field { what, found: stride, needed });
        }
        let mut offset = 8;
        while offset + stride <= self.size {
            let (start, length) = (self.u64(mem, offset)?, self.u64(mem, offset + 8)?);
            let kind = kind_of_e820(self.u32(mem, offset + 16)?);
            info.memory.add_bytes(start, length, kind)?;
            offset += stride;
        }
        Ok(())
    }

    /// A copy: the one that GRUB gives doesn't outlive it.
    fn root_pointer(&self, mem: &impl Physical, length: usize) -> Result<RootPointer, Error> {
        self.has(length as u64)?;
        let mut bytes = [0; RootPointer::NEW];
        let read = bytes.get_mut(..length).is_some_and(|bytes| mem.read(self.at, bytes));
        if !read {
            return Err(Error::Unreadable { what: INFORMATION, address: self.at });
        }
        Ok(RootPointer::Copy { at: self.at, bytes, length })
    }

    /// The framebuffer, if it has 32 bits of direct colour in an order that is known.
    fn framebuffer(&self, mem: &impl Physical) -> Result<Option<Framebuffer>, Error> {
        const DIRECT_COLOUR: u8 = 1;
        self.has(24)?;
        let [bits, class] = field(mem, INFORMATION, self.at, 20)?;
        if (bits, class) != (32, DIRECT_COLOUR) {
            return Ok(None);
        }
        self.has(30)?;
        // Position and size of red, green and blue, in bits.
        let format = match field::<6>(mem, INFORMATION, self.at, 24)? {
            [0, 8, 8, 8, 16, 8] => PixelFormat::Rgb,
            [16, 8, 8, 8, 0, 8] => PixelFormat::Bgr,
            _ => return Ok(None),
        };
        let framebuffer = Framebuffer {
            address: self.u64(mem, 0)?,
            pitch: self.u32(mem, 8)?,
            width: self.u32(mem, 12)?,
            height: self.u32(mem, 16)?,
            format,
        };
        Ok(framebuffer.checked())
    }
}
