//! What our own UEFI loader hands over, and how it finds where to: the ELF note of the image.
//!
//! Loader and image are built together, so one version is understood, and another one refused.

use crate::bytes::{command_line, field};
use crate::ending::{SUCCESS, Unended};
use crate::{BootInfo, BootPath, Error, Framebuffer, PixelFormat, efi};
use acpi::{Physical, RootPointer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Name of the image's ELF note, without the NUL that ends it.
pub const NOTE_NAME: &str = "Exitless";
/// Type of the note whose descriptor is the 64-bit entry point's address, in 4 bytes, as linked. It
/// is entered in 64-bit mode with interrupts off, the image mapped one to one, and the address of a
/// [`Transfer`] below 4 GiB in RDI.
pub const NOTE_ENTRY: u32 = 1;
/// In a [`Transfer`]: there is no such thing.
pub const NOT_THERE: u64 = 0;

const MAGIC: u64 = u64::from_le_bytes(*b"EXITLESS");
const VERSION: u32 = 2;

const RGB: u32 = 0;
const BGR: u32 = 1;

/// What the loader hands over. Addresses are physical; whatever isn't there is [`NOT_THERE`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Transfer {
    /// As in [`Transfer::EMPTY`].
    pub magic: u64,
    /// As in [`Transfer::EMPTY`].
    pub version: u32,
    /// Bytes of a memory descriptor.
    pub descriptor_size: u32,
    /// The EFI memory descriptors, as the firmware gave them last.
    pub memory_map: u64,
    /// Their bytes, all together.
    pub memory_map_bytes: u64,
    /// The boot image, at a page's start.
    pub image: u64,
    /// Its bytes.
    pub image_bytes: u64,
    /// The command line, in ASCII.
    pub command_line: u64,
    /// Its bytes.
    pub command_line_bytes: u64,
    /// ACPI's root pointer.
    pub rsdp: u64,
    /// The EFI system table.
    pub system_table: u64,
    /// TSC ticks a second.
    pub tsc_hz: u64,
    /// The firmware's last answer if its boot services go on; else 0. Then there is no memory map:
    /// all that the hypervisor can do is to say so.
    pub exit_status: u64,
    /// First pixel of the framebuffer.
    pub framebuffer: u64,
    /// As in [`Framebuffer`].
    pub pitch: u32,
    /// As in [`Framebuffer`].
    pub width: u32,
    /// As in [`Framebuffer`].
    pub height: u32,
    /// 0: [`PixelFormat::Rgb`]; 1: [`PixelFormat::Bgr`].
    pub format: u32,
    /// How often ExitBootServices was called, if boot services go on.
    pub exit_calls: u32,
    /// Zero.
    pub reserved: u32,
}

impl Transfer {
    /// With nothing there.
    pub const EMPTY: Transfer = Transfer {
        magic: MAGIC,
        version: VERSION,
        descriptor_size: 0,
        memory_map: NOT_THERE,
        memory_map_bytes: 0,
        image: NOT_THERE,
        image_bytes: 0,
        command_line: NOT_THERE,
        command_line_bytes: 0,
        rsdp: NOT_THERE,
        system_table: NOT_THERE,
        tsc_hz: NOT_THERE,
        exit_status: SUCCESS,
        framebuffer: NOT_THERE,
        pitch: 0,
        width: 0,
        height: 0,
        format: RGB,
        exit_calls: 0,
        reserved: 0,
    };

    /// As it lies in memory.
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    /// Puts in that boot services go on.
    pub fn set_unended(&mut self, Unended { calls, status }: Unended) {
        (self.exit_calls, self.exit_status) = (calls, status);
    }

    /// Puts the screen in.
    pub fn set_framebuffer(&mut self, screen: Framebuffer) {
        let Framebuffer { address, pitch, width, height, format } = screen;
        self.framebuffer = address;
        (self.pitch, self.width, self.height) = (pitch, width, height);
        self.format = match format {
            PixelFormat::Rgb => RGB,
            PixelFormat::Bgr => BGR,
        };
    }

    fn screen(&self) -> Option<Framebuffer> {
        let format = match self.format {
            RGB => PixelFormat::Rgb,
            BGR => PixelFormat::Bgr,
            _ => return None,
        };
        let (address, pitch) = (self.framebuffer, self.pitch);
        Framebuffer { address, pitch, width: self.width, height: self.height, format }.checked()
    }
}

/// Reads the [`Transfer`] at `at`.
pub fn read(mem: &impl Physical, at: u64) -> Result<BootInfo, Error> {
    let bytes = field::<{ size_of::<Transfer>() }>(mem, "hand-over", at, 0)?;
    let transfer: Transfer = zerocopy::transmute!(bytes);
    if transfer.magic != MAGIC || transfer.version != VERSION {
        let (found, needed) = (transfer.version.into(), "2, under the right magic number,");
        return Err(Error::Field { what: "hand-over's version", found, needed });
    }
    let mut info = BootInfo::of(BootPath::Uefi);
    let (map, bytes) = (transfer.memory_map, transfer.memory_map_bytes);
    match (transfer.exit_calls, transfer.exit_status) {
        (_, SUCCESS) if map == NOT_THERE => return Err(Error::NoMemoryMap),
        (_, SUCCESS) => {
            efi::add_descriptors(mem, map, bytes, transfer.descriptor_size, &mut info.memory)?;
        }
        // Whatever was read of the map, it isn't true any more.
        (calls, status) => info.unended = Some(Unended { calls, status }),
    }
    let there = |value: u64| (value != NOT_THERE).then_some(value);
    if let Some(text) = there(transfer.command_line) {
        command_line(mem, text, transfer.command_line_bytes, &mut info)?;
    }
    info.image = there(transfer.image).map(|at| (at, at.saturating_add(transfer.image_bytes)));
    info.rsdp = there(transfer.rsdp).map(RootPointer::At);
    info.system_table = there(transfer.system_table);
    info.tsc_hz = there(transfer.tsc_hz);
    info.framebuffer = transfer.screen();
    Ok(info)
}
