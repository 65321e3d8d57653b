//! The end of boot services, and the way into the hypervisor.
//!
//! The firmware's page tables may forbid to run what was loaded as data, and whether they do is
//! the firmware's affair. So the hypervisor is entered on tables of the loader's, which map the
//! first 512 GiB one to one, in as many levels as the CPU is set to walk.

use crate::{
    pages::{BELOW_4_GIB, below},
    place::Placed,
    services::Running,
};
use alloc::string::String;
use core::{arch::asm, convert::Infallible};
use handover::{PAGE, Transfer};
use uefi::println;

/// CR4.LA57: page tables have five levels.
const LA57: u64 = 1 << 12;
/// Entries that lead to a table: present, writable.
const TABLE: u64 = 0b11;
/// Entries that map 1 GiB: present, writable, a page.
const GIB_PAGE: u64 = 1 << 7 | 0b11;
const ENTRIES: u64 = 512;

/// Words in memory, each page of them aligned as one.
struct Tables(&'static mut [u8]);

impl Tables {
    /// Address of page `index`.
    fn page(&self, index: u64) -> u64 {
        self.0.as_ptr() as u64 + index * PAGE
    }

    fn set(&mut self, page: u64, index: u64, entry: u64) {
        let at = (page * PAGE + index * 8) as usize;
        self.0[at..at + 8].copy_from_slice(&entry.to_le_bytes());
    }
}

/// Ends boot services and enters the hypervisor with `transfer`.
pub fn enter(mut transfer: Transfer, hypervisor: &Placed) -> Result<Infallible, String> {
    // Five levels, four, three, and the hand-over.
    let mut tables = Tables(below(BELOW_4_GIB, 4 * PAGE, "page tables")?);
    let (four, three, handover) = (tables.page(1), tables.page(2), tables.page(3));
    tables.set(0, 0, four | TABLE);
    tables.set(1, 0, three | TABLE);
    for gib in 0..ENTRIES {
        tables.set(2, gib, gib << 30 | GIB_PAGE);
    }
    let cr4: u64;
    // SAFETY: UEFI programs run in ring 0, where CR4 may be read.
    unsafe { asm!("mov {}, cr4", out(reg) cr4, options(nomem, nostack, preserves_flags)) };
    let root = if cr4 & LA57 == 0 { four } else { tables.page(0) };

    let services = Running::new()?;
    println!("exitless: starting the hypervisor");
    // SAFETY: nothing that boot services own is used from here on: what the hypervisor gets lies in
    // pages that are never given back, in this program, or in pools that nobody frees.
    match unsafe { services.end() } {
        Ok(map) => {
            transfer.memory_map = map.at;
            transfer.memory_map_bytes = map.bytes;
            transfer.descriptor_size = map.descriptor_size;
        }
        // The firmware's console may be gone: the hypervisor says it, and goes no further.
        Err(unended) => transfer.set_unended(unended),
    }
    let at = (3 * PAGE) as usize;
    tables.0[at..at + size_of::<Transfer>()].copy_from_slice(transfer.bytes());
    // SAFETY: the tables map this code, the hypervisor and all it is given, one to one; the entry
    // point takes the hand-over's address in RDI, with interrupts off, and needs no stack.
    unsafe {
        asm!(
            "cli",
            "mov cr3, {root}",
            "jmp {entry}",
            root = in(reg) root,
            entry = in(reg) hypervisor.entry,
            in("rdi") handover,
            options(noreturn),
        )
    }
}
