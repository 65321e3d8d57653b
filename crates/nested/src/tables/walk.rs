//! A walk of L1's nested tables, as the CPU makes one (APM vol. 2, 15.25.5): all accesses are
//! user's; accessed and dirty bits are set.

/// L1's physical memory.
pub trait L1Memory {
    /// The 8 bytes at the 8-byte aligned `gpa`, unless they are no memory.
    fn read(&self, gpa: u64) -> Option<u64>;
    /// Makes the word at `gpa` `new` if it is `old` still. False: it isn't.
    fn exchange(&mut self, gpa: u64, old: u64, new: u64) -> bool;
}

/// What L2 did, by the bits of EXITINFO1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// A store, or a walk that sets a bit.
    pub write: bool,
    /// An instruction fetch.
    pub fetch: bool,
    /// Nobody's: a look at what was accessed before. Nothing is marked.
    pub look: bool,
}

impl Access {
    /// Of a nested page fault with this EXITINFO1.
    pub const fn of_fault(info: u64) -> Self {
        Access { write: info & 1 << 1 != 0, fetch: info & 1 << 4 != 0, look: false }
    }
}

/// What decides over L1's tables beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// EFER.NXE of L1.
    pub no_execute: bool,
    /// Width of L1's physical addresses.
    pub physical_bits: u32,
}

/// Where L1 has a page of L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// L1's physical address of the very byte.
    pub gpa: u64,
    /// log2 of the page's bytes.
    pub shift: u32,
    /// Stores are allowed, and needn't set the dirty bit any more.
    pub write: bool,
    /// Fetches are allowed.
    pub execute: bool,
    /// L1 wants it uncached (PCD).
    pub uncached: bool,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// L1's fault: bits 0 (present) and 3 (reserved bits) of EXITINFO1. The others are the
    /// access's.
    Fault(u64),
    /// L1 changed an entry meanwhile, or an entry isn't marked as accessed, where nobody does
    /// access it: L2 is to try again.
    Again,
}

impl Miss {
    /// EXITINFO1 as L1 is told, where the CPU told `info`. None: L2 is to try again.
    pub const fn told(self, info: u64) -> Option<u64> {
        match self {
            Miss::Fault(bits) => Some(info & !(FAULT_PRESENT | FAULT_RESERVED) | bits),
            Miss::Again => None,
        }
    }
}

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const CACHE_DISABLE: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const LARGE_PAT: u64 = 1 << 12;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;

/// Bits of EXITINFO1.
const FAULT_PRESENT: u64 = 1 << 0;
const FAULT_RESERVED: u64 = 1 << 3;

const LEVELS: u32 = 4;
/// The widest address that four levels translate.
const BITS: u32 = 48;

/// log2 of the bytes that an entry of this level covers; levels count from 1, the last.
const fn shift(level: u32) -> u32 {
    12 + 9 * (level - 1)
}

/// L1's physical address for L2's. At most four reads and four exchanges. What isn't memory reads
/// as all ones.
///
/// # Errors
///
/// As [`Miss`] says.
pub fn walk(
    mem: &mut dyn L1Memory,
    root: u64,
    gpa: u64,
    access: Access,
    rules: Rules,
) -> Result<Walked, Miss> {
    if gpa >> BITS != 0 {
        return Err(Miss::Fault(0));
    }
    let mut seen = [(0, 0); LEVELS as usize];
    let mut table = root & ADDRESS;
    let (mut write, mut execute, mut user) = (true, true, true);
    for level in (1..=LEVELS).rev() {
        let at = table | (gpa >> shift(level) & 0x1FF) << 3;
        let entry = mem.read(at).unwrap_or(u64::MAX);
        seen[(LEVELS - level) as usize] = (at, entry);
        if entry & PRESENT == 0 {
            return Err(Miss::Fault(0));
        }
        let is_leaf = level == 1 || entry & LARGE != 0;
        if entry & reserved(level, is_leaf, rules) != 0 {
            return Err(Miss::Fault(FAULT_PRESENT | FAULT_RESERVED));
        }
        write &= entry & WRITABLE != 0;
        execute &= entry & NO_EXECUTE == 0;
        user &= entry & USER != 0;
        if !is_leaf {
            table = entry & ADDRESS;
            continue;
        }
        if !user || access.write && !write || access.fetch && !execute {
            return Err(Miss::Fault(FAULT_PRESENT));
        }
        let seen = &seen[..=(LEVELS - level) as usize];
        if access.look && seen.iter().any(|(_, entry)| entry & ACCESSED == 0) {
            return Err(Miss::Again);
        }
        mark(mem, seen, access.write)?;
        let offset = (1 << shift(level)) - 1;
        return Ok(Walked {
            gpa: entry & ADDRESS & !offset | gpa & offset,
            shift: shift(level),
            // The next store has to set the bit.
            write: write && (access.write || entry & DIRTY != 0),
            execute,
            uncached: entry & CACHE_DISABLE != 0,
        });
    }
    // Level 1 is a leaf.
    Err(Miss::Again)
}

/// The bits that must be clear.
fn reserved(level: u32, is_leaf: bool, rules: Rules) -> u64 {
    let mut reserved = ADDRESS & !((1 << rules.physical_bits) - 1);
    if !rules.no_execute {
        reserved |= NO_EXECUTE;
    }
    if level == LEVELS {
        reserved |= LARGE;
    } else if is_leaf {
        reserved |= ((1 << shift(level)) - 1) & ADDRESS & !LARGE_PAT;
    }
    reserved
}

/// Sets the accessed bits on the way, and the dirty bit of the last entry for a store.
fn mark(mem: &mut dyn L1Memory, seen: &[(u64, u64)], write: bool) -> Result<(), Miss> {
    let last = seen.len() - 1;
    for (n, &(at, entry)) in seen.iter().enumerate() {
        let dirty = if write && n == last { DIRTY } else { 0 };
        let new = entry | ACCESSED | dirty;
        if new != entry && !mem.exchange(at, entry, new) {
            return Err(Miss::Again);
        }
    }
    Ok(())
}
