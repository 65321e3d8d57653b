//! The loader's result.

use alloc::vec::Vec;

/// The format an image was recognised as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Linux bzImage, 64-bit entry point.
    Linux,
    /// Multiboot 1.
    Multiboot,
    /// ELF with a PVH note.
    Pvh,
}

/// How to start a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load<'a> {
    /// The format of the image.
    pub format: Format,
    /// Pieces of the image to copy.
    pub segments: Vec<Segment<'a>>,
    /// Generated tables to copy.
    pub blobs: Vec<Blob>,
    /// Where the initrd goes, if there is one.
    pub initrd_at: Option<u64>,
    /// The state of the virtual CPU.
    pub entry: Entry,
}

/// A piece of the kernel image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Guest-physical address.
    pub at: u64,
    /// What to copy there.
    pub bytes: &'a [u8],
    /// How many zero bytes must follow.
    pub zeros: u64,
}

impl Segment<'_> {
    /// Bytes that it has in memory.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64 + self.zeros
    }
}

/// A generated table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Guest-physical address.
    pub at: u64,
    /// What to copy there.
    pub bytes: Vec<u8>,
}

/// The state in which the kernel is entered. Registers that aren't named are 0,
/// interrupts are off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Guest-physical address of the first instruction.
    pub rip: u64,
    /// Execution mode.
    pub mode: EntryMode,
    /// RAX.
    pub rax: u64,
    /// RBX.
    pub rbx: u64,
    /// RSI.
    pub rsi: u64,
}

/// The execution mode of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryMode {
    /// 32-bit protected mode without paging; CS, DS, ES and SS are flat segments
    /// of 4 GiB, TR is a busy 32-bit TSS. The kernel loads its own GDT.
    Bits32,
    /// 64-bit mode with CS = [`CODE_SELECTOR`] and DS, ES, SS = [`DATA_SELECTOR`].
    Bits64 {
        /// Page tables among the blobs that map the low 4 GiB to themselves.
        cr3: u64,
        /// The GDT among the blobs.
        gdt: u64,
        /// Its limit.
        gdt_limit: u16,
    },
}

/// The flat 64-bit code segment of a generated GDT.
pub const CODE_SELECTOR: u16 = 0x10;
/// The flat data segment of a generated GDT.
pub const DATA_SELECTOR: u16 = 0x18;
