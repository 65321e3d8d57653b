//! Why a kernel can't be started. Each variant displays as one sentence.

use thiserror::Error;

/// The name of an initrd in sentences.
pub(crate) const INITRD: &str = "initrd";

/// Rounds up to whole MiB of which there is an even number: guests' memory comes in pages of 2 MiB.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(2 << 20) * 2
}

/// The reason an image, an initrd, a command line or a machine is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum Error {
    #[error(
        "the kernel has no format that can be started: it has neither a Linux boot header (HdrS at \
         0x202), nor a multiboot 1 header in its first 8 KiB, nor is it an x86 ELF file with a PVH \
         note"
    )]
    UnknownFormat,
    #[error("the kernel file is cut short: {what} ends at byte {needed}, the file has {found}")]
    Truncated { what: &'static str, needed: u64, found: u64 },
    #[error("the kernel's {what} is {found:#x}, but {needed}")]
    Header { what: &'static str, found: u64, needed: &'static str },
    #[error(
        "the kernel's Linux boot protocol is {}.{:02}, but 2.12 or later with a 64-bit entry point \
         is needed", .0 >> 8, .0 & 0xFF
    )]
    OldLinux(u16),
    #[error("the Linux kernel has no 64-bit entry point (xloadflags is {0:#x}, bit 0 is needed)")]
    No64BitEntry(u16),
    #[error(
        "the kernel is an ELF file without a PVH entry note (Xen note type 18) and without a \
         multiboot 1 header, so nothing says where a virtual machine enters it"
    )]
    NoPvhNote,
    #[error("the program isn't an ELF file for 64-bit mode that can be loaded anywhere")]
    NotRelocatable,
    #[error("the program has no note that says where it is entered")]
    NoEntryNote,
    #[error(
        "the multiboot 1 kernel is a 64-bit ELF file without address fields (flags {0:#x}, bit 16 \
         is needed)"
    )]
    Multiboot64(u32),
    #[error("the multiboot 1 header has flags {0:#x}, but of bits 15:0 only 2:0 are known")]
    MultibootFlags(u32),
    #[error("the kernel has no bytes to load")]
    Empty,
    #[error("the kernel's entry point {0:#x} lies outside what is loaded of it")]
    EntryOutside(u64),
    #[error("the command line has {found} bytes, but this kernel takes at most {max}")]
    CommandLineTooLong { found: u64, max: u64 },
    #[error("the command line contains a NUL byte, which would end it")]
    CommandLineNul,
    #[error("the memory map has {0} regions, but at most 128 can be passed to a kernel")]
    TooManyRegions(usize),
    #[error("the {what} needs {start:#x}..{end:#x}, but that range is no address below 4 GiB")]
    NoAddress { what: &'static str, start: u64, end: u64 },
    #[error(
        "the {what} needs RAM at {start:#x}..{end:#x}, but RAM below 4 GiB ends at {top:#x}; give \
         the machine at least {}M", mib(*.end)
    )]
    TooLittleRam { what: &'static str, start: u64, end: u64, top: u64 },
    #[error("the {what} needs RAM at {start:#x}..{end:#x}, but not all of that is RAM")]
    NotRam { what: &'static str, start: u64, end: u64 },
    #[error(
        "the {what} at {start:#x}..{end:#x} overlaps the {other} at {other_start:#x}..{other_end:#x}"
    )]
    Overlap {
        what: &'static str,
        start: u64,
        end: u64,
        other: &'static str,
        other_start: u64,
        other_end: u64,
    },
    #[error(
        "the {what} of {size} bytes fits nowhere at {start:#x}..{end:#x}; the largest free piece \
         there has {largest} bytes"
    )]
    NoRoom { what: &'static str, size: u64, start: u64, end: u64, largest: u64 },
    #[error(
        "the {what} of {size} bytes fits nowhere in RAM, where the largest free piece has \
         {largest} bytes; give the machine at least {}M", mib(*.needed)
    )]
    NoRoomYet { what: &'static str, size: u64, largest: u64, needed: u64 },
}

/// The input that an [`Error`] blames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The kernel file, or the memory that it asks for.
    Kernel,
    /// The initrd, which is too large.
    Initrd,
    /// The command line.
    CommandLine,
    /// The machine's memory map.
    Machine,
}

impl Error {
    /// Which input would have to change. A kernel that fits without its initrd isn't to blame.
    pub fn subject(&self) -> Subject {
        match self {
            Self::NoRoom { what, .. } | Self::NoRoomYet { what, .. } if *what == INITRD => {
                Subject::Initrd
            }
            Self::CommandLineTooLong { .. } | Self::CommandLineNul => Subject::CommandLine,
            Self::TooManyRegions(_) => Subject::Machine,
            _ => Subject::Kernel,
        }
    }
}
