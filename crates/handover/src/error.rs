//! Why what a boot loader handed over is refused.

use crate::{MAX_COMMAND_LINE, MAX_RANGES};
use thiserror::Error;

/// A reason to refuse, as one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum Error {
    #[error(
        "the image was entered with {eax:#x} in EAX; a PVH loader, a multiboot2 loader (0x36d76289) \
         or Exitless' own UEFI loader is needed"
    )]
    UnknownLoader { eax: u32 },
    #[error("the boot loader's {what} at {address:#x} can't be read: no memory is there")]
    Unreadable { what: &'static str, address: u64 },
    #[error("the boot loader's {what} is {found:#x}, but {needed} is needed")]
    Field { what: &'static str, found: u64, needed: &'static str },
    #[error("the boot loader handed over no memory map")]
    NoMemoryMap,
    #[error("the memory map has more than {MAX_RANGES} ranges after merging; that is the most")]
    TooManyRanges,
    #[error("the command line is longer than {MAX_COMMAND_LINE} bytes, the most that is handled")]
    CommandLine,
    #[error(
        "the boot loader left the firmware's boot services running; it must end them before the \
         hypervisor starts"
    )]
    BootServices,
    #[error(
        "the firmware's boot services didn't end: ExitBootServices was called {calls} times, and the \
         firmware's last answer was {status:#x}; nothing can run beside them, so another firmware \
         version is needed, or a start by GRUB (exitless.iso)"
    )]
    Unended { calls: u32, status: u64 },
    #[error(
        "the {what} at {start:#x}..{end:#x} doesn't lie in usable memory, by the memory map that \
         the boot loader handed over"
    )]
    NotInMemory { what: &'static str, start: u64, end: u64 },
}
