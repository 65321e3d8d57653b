//! A read-only walk of a guest's own page tables, to find what its addresses mean.
//!
//! Guarantees a defined result after at most five reads of guest memory for one translation,
//! whatever is in that memory and in the registers. It checks what decides over the result:
//! presence, the reserved bits, read/write with CR0.WP, user/supervisor, no-execute and SMEP.
//! It doesn't check SMAP, protection keys and shadow stacks (the processor has done so before it
//! exits for an access), nor address bits between the guest's physical width and bit 51 (such an
//! address is simply not in [`GuestMemory`]), and it sets no accessed or dirty bit.
//!
//! The guest may change its tables during the walk; it fools only itself.

use thiserror::Error;

/// The guest's physical memory. Both may be asked for any aligned address and must not panic.
pub trait GuestMemory {
    /// The 8 bytes at the 8-byte aligned `gpa`, unless they are no memory.
    fn read_u64(&self, gpa: u64) -> Option<u64>;
    /// The 4 bytes at the 4-byte aligned `gpa`, unless they are no memory.
    fn read_u32(&self, gpa: u64) -> Option<u32>;
}

/// The registers that decide how addresses are translated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paging {
    /// CR0: PG and WP matter.
    pub cr0: u64,
    /// CR3: where the tables are.
    pub cr3: u64,
    /// CR4: PSE, PAE, LA57 and SMEP matter.
    pub cr4: u64,
    /// EFER: LMA and NXE matter.
    pub efer: u64,
    /// The page-directory pointers of PAE paging, where the CPU has kept them since CR3 was loaded,
    /// as VMX does (SDM vol. 3, 4.4.1). `None`: they are read from memory at each walk, as under
    /// SVM (AMD64 APM volume 2, 15.25.10).
    pub pointers: Option<[u64; 4]>,
}

/// The access to check for. All `false`: a supervisor's read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// At CPL 3.
    pub user: bool,
    /// A store.
    pub write: bool,
    /// An instruction fetch.
    pub fetch: bool,
}

/// Why an address has no translation for an access. Levels count from 1, the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WalkError {
    /// Would be #GP or #SS.
    #[error("address {va:#x} is not canonical in {bits} bits")]
    NotCanonical {
        /// The address.
        va: u64,
        /// Width of linear addresses.
        bits: u32,
    },
    /// #PF.
    #[error("the level {level} page-table entry for {va:#x} is not present")]
    NotPresent {
        /// The address.
        va: u64,
        /// Where.
        level: u32,
    },
    /// #PF with RSV.
    #[error(
        "the level {level} page-table entry for {va:#x} is {entry:#x}, with reserved bits set that must be zero"
    )]
    Reserved {
        /// The address.
        va: u64,
        /// Where.
        level: u32,
        /// What was found.
        entry: u64,
    },
    /// #PF with P.
    #[error("the page tables don't allow this access to {va:#x}")]
    Protection {
        /// The address.
        va: u64,
    },
    /// No memory there.
    #[error("the translation of {va:#x} needs guest-physical address {gpa:#x}, which is no memory")]
    NoMemory {
        /// The address.
        va: u64,
        /// Of a table entry, or of the bytes to read.
        gpa: u64,
    },
}

// AMD64 APM volume 2: 3.1.1 (CR0), 3.1.3 (CR4), 3.1.7 (EFER).
const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR4_PSE: u64 = 1 << 4;
const CR4_PAE: u64 = 1 << 5;
const CR4_LA57: u64 = 1 << 12;
const CR4_SMEP: u64 = 1 << 20;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;

// Entries, 5.2 (legacy) and 5.3 (long mode).
const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const PAGE_SIZE: u64 = 1 << 7;
/// PAT in a large page's entry, below its address.
const LARGE_PAT: u64 = 1 << 12;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
/// Bits 62:52, available in long mode but reserved in PAE entries.
const PAE_RESERVED: u64 = 0x7FF0_0000_0000_0000;
/// Bits 63:52, 8:5 and 2:1 of a PAE page-directory pointer.
const PAE_POINTER_RESERVED: u64 = 0xFFF0_0000_0000_01E6;

/// The guest-physical address that `va` means for `access`. Outside long mode linear addresses are
/// 32 bits wide, and higher bits of `va` are ignored.
pub fn translate<M: GuestMemory>(
    mem: &M,
    regs: &Paging,
    va: u64,
    access: Access,
) -> Result<u64, WalkError> {
    if regs.cr0 & CR0_PG == 0 {
        return Ok(u64::from(va as u32));
    }
    let (gpa, rights) = if regs.efer & EFER_LMA != 0 {
        let levels = if regs.cr4 & CR4_LA57 != 0 { 5 } else { 4 };
        let bits = 12 + 9 * levels;
        let unused = 64 - bits;
        if ((va << unused) as i64 >> unused) as u64 != va {
            return Err(WalkError::NotCanonical { va, bits });
        }
        descend(mem, regs, va, regs.cr3 & ADDRESS, levels)?
    } else if regs.cr4 & CR4_PAE != 0 {
        pae(mem, regs, u64::from(va as u32))?
    } else {
        legacy(mem, regs, u64::from(va as u32))?
    };
    if rights.allow(regs, access) { Ok(gpa) } else { Err(WalkError::Protection { va }) }
}

/// Reads the bytes at `va` into `buf`, page by page, and says how many were read: fewer than asked
/// for if a later page has no translation or no memory, an error if the first byte has none.
pub fn read_virtual<M: GuestMemory>(
    mem: &M,
    regs: &Paging,
    va: u64,
    access: Access,
    buf: &mut [u8],
) -> Result<usize, WalkError> {
    let mut read = 0;
    let mut page = None;
    for byte in buf.iter_mut() {
        let va = va.wrapping_add(read as u64);
        let base = match page {
            Some(base) if va & 0xFFF != 0 => base,
            _ => match translate(mem, regs, va, access) {
                Ok(gpa) => gpa & !0xFFF,
                Err(error) if read == 0 => return Err(error),
                Err(_) => break,
            },
        };
        page = Some(base);
        let gpa = base | va & 0xFFF;
        match mem.read_u64(gpa & !7) {
            Some(word) => *byte = (word >> (8 * (gpa & 7))) as u8,
            None if read == 0 => return Err(WalkError::NoMemory { va, gpa }),
            None => break,
        }
        read += 1;
    }
    Ok(read)
}

/// What all entries on the way allow together (5.6).
#[derive(Clone, Copy)]
struct Rights {
    write: bool,
    user: bool,
    execute: bool,
}

impl Rights {
    const ALL: Self = Self { write: true, user: true, execute: true };

    fn and(self, entry: u64) -> Self {
        Self {
            write: self.write && entry & WRITABLE != 0,
            user: self.user && entry & USER != 0,
            execute: self.execute && entry & NO_EXECUTE == 0,
        }
    }

    fn allow(self, regs: &Paging, access: Access) -> bool {
        let write = self.write || (!access.user && regs.cr0 & CR0_WP == 0);
        let smep = regs.cr4 & CR4_SMEP != 0 && self.user && !access.user;
        (self.user || !access.user)
            && (write || !access.write)
            && ((self.execute && !smep) || !access.fetch)
    }
}

/// Walks 64-bit entries from the table at `table`, whose level is `top`.
fn descend<M: GuestMemory>(
    mem: &M,
    regs: &Paging,
    va: u64,
    mut table: u64,
    top: u32,
) -> Result<(u64, Rights), WalkError> {
    let long = top > 2;
    let mut rights = Rights::ALL;
    let mut level = top;
    loop {
        let shift = 12 + 9 * (level - 1);
        let gpa = table | (va >> shift & 0x1FF) << 3;
        let entry = mem.read_u64(gpa).ok_or(WalkError::NoMemory { va, gpa })?;
        if entry & PRESENT == 0 {
            return Err(WalkError::NotPresent { va, level });
        }
        let large = level > 1 && entry & PAGE_SIZE != 0;
        let offset = (1u64 << shift) - 1;
        let mut reserved = if long { 0 } else { PAE_RESERVED };
        if regs.efer & EFER_NXE == 0 {
            reserved |= NO_EXECUTE;
        }
        if level > 3 {
            reserved |= PAGE_SIZE;
        } else if large {
            reserved |= ADDRESS & offset & !LARGE_PAT;
        }
        if entry & reserved != 0 {
            return Err(WalkError::Reserved { va, level, entry });
        }
        rights = rights.and(entry);
        if large || level == 1 {
            return Ok((entry & ADDRESS & !offset | va & offset, rights));
        }
        table = entry & ADDRESS;
        level -= 1;
    }
}

/// PAE paging (5.2.3): four pointers, then two levels.
fn pae<M: GuestMemory>(mem: &M, regs: &Paging, va: u64) -> Result<(u64, Rights), WalkError> {
    let index = va >> 30 & 3;
    let gpa = (regs.cr3 & 0xFFFF_FFE0) | index << 3;
    let entry = match regs.pointers {
        Some(kept) => kept[index as usize],
        None => mem.read_u64(gpa).ok_or(WalkError::NoMemory { va, gpa })?,
    };
    if entry & PRESENT == 0 {
        return Err(WalkError::NotPresent { va, level: 3 });
    }
    if entry & PAE_POINTER_RESERVED != 0 {
        return Err(WalkError::Reserved { va, level: 3, entry });
    }
    descend(mem, regs, va, entry & ADDRESS, 2)
}

/// 32-bit paging (5.2.2): two levels of 32-bit entries, 4 MiB pages under CR4.PSE.
fn legacy<M: GuestMemory>(mem: &M, regs: &Paging, va: u64) -> Result<(u64, Rights), WalkError> {
    let read = |gpa: u64, level: u32| {
        let entry = u64::from(mem.read_u32(gpa).ok_or(WalkError::NoMemory { va, gpa })?);
        if entry & PRESENT == 0 { Err(WalkError::NotPresent { va, level }) } else { Ok(entry) }
    };
    let directory = read((regs.cr3 & 0xFFFF_F000) | (va >> 22) << 2, 2)?;
    let rights = Rights::ALL.and(directory);
    if regs.cr4 & CR4_PSE != 0 && directory & PAGE_SIZE != 0 {
        if directory & 1 << 21 != 0 {
            return Err(WalkError::Reserved { va, level: 2, entry: directory });
        }
        // PSE-36: bits 20:13 are address bits 39:32.
        let high = (directory >> 13 & 0xFF) << 32;
        return Ok((high | directory & 0xFFC0_0000 | va & 0x3F_FFFF, rights));
    }
    let entry = read((directory & 0xFFFF_F000) | (va >> 12 & 0x3FF) << 2, 1)?;
    Ok((entry & 0xFFFF_F000 | va & 0xFFF, rights.and(entry)))
}
