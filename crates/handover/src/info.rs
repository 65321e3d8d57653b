//! What is known of the machine before its own tables are read, and the loader's gifts.

use crate::ending::Unended;
use crate::{Error, MemoryKind, MemoryMap, PAGE};
use acpi::RootPointer;
use arrayvec::ArrayVec;
use core::fmt;
use core::ops::Range;

/// The longest command line that is kept.
pub const MAX_COMMAND_LINE: usize = 4096;

/// The way in which the image was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootPath {
    /// The PVH entry point: QEMU's `-kernel`.
    Pvh,
    /// A multiboot2 loader: GRUB.
    Multiboot2,
    /// Our own UEFI loader.
    Uefi,
}

impl fmt::Display for BootPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BootPath::Pvh => "PVH",
            BootPath::Multiboot2 => "multiboot2",
            BootPath::Uefi => "UEFI",
        })
    }
}

/// The order of the colours in a pixel's four bytes, the first byte first; the fourth is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelFormat {
    /// Red, green, blue.
    Rgb,
    /// Blue, green, red.
    Bgr,
}

/// A linear framebuffer of 32-bit pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framebuffer {
    /// Physical address of the first pixel.
    pub address: u64,
    /// Bytes from one line to the next.
    pub pitch: u32,
    /// Pixels of a line.
    pub width: u32,
    /// Lines.
    pub height: u32,
    /// What a pixel is.
    pub format: PixelFormat,
}

impl Framebuffer {
    /// One of that geometry, unless its lines overlap, it is empty, or it ends beyond 2^64.
    pub fn checked(self) -> Option<Framebuffer> {
        let line = self.width.checked_mul(4)?;
        let bytes = u64::from(self.pitch) * u64::from(self.height);
        let fits = self.address != 0 && self.address.checked_add(bytes).is_some();
        (fits && line != 0 && bytes != 0 && line <= self.pitch).then_some(self)
    }

    /// Bytes from its first pixel to the end of its last line.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pitch) * u64::from(self.height)
    }
}

/// What a boot loader handed over, copied out of its memory.
#[derive(Clone, Debug)]
pub struct BootInfo {
    /// Who handed over.
    pub path: BootPath,
    /// The firmware's memory map.
    pub memory: MemoryMap,
    /// The command line's bytes.
    pub command_line: ArrayVec<u8, MAX_COMMAND_LINE>,
    /// First byte of the boot image, which stays where it is, and the byte after its last.
    pub image: Option<(u64, u64)>,
    /// ACPI's root pointer, if the loader knew it.
    pub rsdp: Option<RootPointer>,
    /// The screen, if firmware left one that can be drawn on.
    pub framebuffer: Option<Framebuffer>,
    /// TSC ticks a second, as the loader measured them; rough.
    pub tsc_hz: Option<u64>,
    /// Address of the EFI system table, where the firmware is EFI's.
    pub system_table: Option<u64>,
    /// The firmware's boot services go on, although the loader asked for their end: see
    /// [`check`](Self::check).
    pub unended: Option<Unended>,
}

impl BootInfo {
    /// Nothing but who handed over.
    pub(crate) fn of(path: BootPath) -> Self {
        BootInfo {
            path,
            memory: MemoryMap::new(),
            command_line: ArrayVec::new(),
            image: None,
            rsdp: None,
            framebuffer: None,
            tsc_hz: None,
            system_table: None,
            unended: None,
        }
    }

    /// An error if nothing can be begun with this but saying why not: there is no memory map then.
    pub fn check(&self) -> Result<(), Error> {
        match self.unended {
            Some(Unended { calls, status }) => Err(Error::Unended { calls, status }),
            None => Ok(()),
        }
    }

    /// The boot image has `length` bytes; what a loader put behind it is nobody's.
    pub fn trim_image(&mut self, length: u64) {
        if let Some((start, end)) = &mut self.image {
            *end = start.saturating_add(length).min(*end);
        }
    }

    /// Takes the pages of `start..end` out of what may be used for anything: the hypervisor, or its
    /// boot image, lies there. An error if the map says that they aren't usable memory.
    pub fn claim(&mut self, what: &'static str, start: u64, end: u64) -> Result<(), Error> {
        let usable = |kind| matches!(kind, MemoryKind::Usable | MemoryKind::Loaded);
        if !self.memory.covers(start, end, usable) {
            return Err(Error::NotInMemory { what, start, end });
        }
        let end = end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        self.memory.add(start & !(PAGE - 1), end, MemoryKind::Loaded)
    }

    /// Takes what is usable of the pages of `range` out of what may be used for anything, and
    /// leaves the rest as it is: the firmware's tables lie there, whatever its map says. How many
    /// bytes that was.
    pub fn keep(&mut self, range: Range<u64>) -> Result<u64, Error> {
        let end = range.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let pages = range.start & !(PAGE - 1)..end;
        self.memory.turn(pages, MemoryKind::Usable, MemoryKind::Acpi)
    }
}
