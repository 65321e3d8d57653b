//! The host's page tables: first what the boot code made (everything allowed),
//! then the final ones.
//!
//! Guarantees of the final ones, on every core: code is executable and not
//! writable, constants are neither, data and memory are not executable; nothing
//! below 1 MiB is mapped but the trampoline while cores start; the page below
//! each stack is unmapped; device registers are uncached. Memory is mapped one
//! to one. They change only while booting, on core 0.

use super::pool;
use crate::refusal::refuse;
use alloc::vec::Vec;
use core::arch::asm;
use core::ops::Range;
use handover::{BootInfo, PAGE};
use paging::{Access, Error, Flush, Host, Memory, PageSize, Table};
use spin::Mutex;

/// Entries of the boot code's PDPT: present, writable, a page and not a table.
const BOOT_PAGE: u64 = 1 << 0 | 1 << 1 | 1 << 7;

const DATA: Access = Access::READ.union(Access::WRITE);

unsafe extern "C" {
    static boot_pml4: u8;
    static mut boot_pdpt: [u64; 512];
    static text_start: u8;
    static text_end: u8;
    static rodata_start: u8;
    static rodata_end: u8;
    static data_start: u8;
    static data_end: u8;
    static boot_stack_guard: u8;
}

/// The final tables, once they are in use.
static TABLE: Mutex<Option<HostTable>> = Mutex::new(None);

struct HostTable {
    table: Table<Host>,
    frames: Frames,
}

/// Table frames, from the boot allocator.
struct Frames {
    /// Returned by the table; used again before new ones are asked for.
    spare: Vec<u64>,
}

impl Memory for Frames {
    fn read(&self, pa: u64) -> u64 {
        // SAFETY: a word of a frame from `allocate`; memory is mapped one to one.
        unsafe { (pa as *const u64).read_volatile() }
    }

    fn write(&mut self, pa: u64, value: u64) {
        // SAFETY: as read, and nobody else writes to it.
        unsafe { (pa as *mut u64).write_volatile(value) };
    }

    fn allocate(&mut self) -> Option<u64> {
        let Some(frame) = self.spare.pop() else { return pool::allocate(PAGE, PAGE) };
        // SAFETY: a frame of ours that nothing uses.
        unsafe { core::ptr::write_bytes(frame as *mut u8, 0, PAGE as usize) };
        Some(frame)
    }

    fn free(&mut self, frame: u64) {
        self.spare.push(frame);
    }
}

impl HostTable {
    fn map(&mut self, (start, end): (u64, u64), access: Access) -> Result<(), Error> {
        self.table.map(&mut self.frames, start, start, end - start, access)
    }

    fn flushed(&mut self, change: Result<Flush, Error>) -> Result<(), Error> {
        // Pages aren't global, so loading CR3 forgets all of them. Other cores don't use what is
        // unmapped: stacks are guarded before they start, and the trampoline is left behind.
        load(self.table.root());
        change?.done(&mut self.frames);
        Ok(())
    }

    fn unmap(&mut self, start: u64, length: u64) -> Result<(), Error> {
        let change = self.table.unmap(&mut self.frames, start, length);
        self.flushed(change)
    }
}

fn load(root: u64) {
    // SAFETY: the table maps this code, its data and this stack as they were.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// Maps what a PDPT reaches, 512 GiB, once the CPU is known to have 1 GiB pages.
pub fn extend_boot_map() {
    for i in 4..512 {
        // SAFETY: only the boot CPU runs; the entries were not present, so nothing is cached of
        // them.
        unsafe { boot_pdpt[i as usize] = i << 30 | BOOT_PAGE };
    }
}

/// Runs `f` on the boot tables, on this core: everything below 512 GiB is mapped one to one, and
/// may be written and executed. The final tables are back after it, for a console whose registers
/// are beyond that.
///
/// # Safety
/// No guest runs any more, and none will.
pub unsafe fn on_boot_map(f: impl FnOnce()) {
    load(&raw const boot_pml4 as u64);
    f();
    with(|host| {
        load(host.table.root());
        Ok(())
    });
}

/// Makes the final tables and starts to use them; the framebuffer isn't in memory, `guards` are the
/// pages below the stacks there are already.
pub fn protect(info: &BootInfo, framebuffer: Option<Range<u64>>, guards: &[u64]) {
    let result = build(info).and_then(|mut host| {
        if let Some(frame) = framebuffer {
            let pages = (frame.start & !(PAGE - 1), frame.end.next_multiple_of(PAGE));
            host.map(pages, DATA | Access::UNCACHED)?;
        }
        load(host.table.root());
        guards.iter().try_for_each(|guard| host.unmap(*guard, PAGE))?;
        *TABLE.lock() = Some(host);
        Ok(())
    });
    result.unwrap_or_else(|error| cant(error));
}

fn build(info: &BootInfo) -> Result<HostTable, Error> {
    let mut frames = Frames { spare: Vec::new() };
    let table = Table::new(&mut frames, Host, PageSize::Size1G)?;
    let mut host = HostTable { table, frames };

    if let Some((start, end)) = info.image {
        let pages = (start & !(PAGE - 1), end.next_multiple_of(PAGE));
        host.map(pages, Access::READ)?;
    }
    for range in info.memory.free_pages() {
        host.map(range, DATA)?;
    }

    let guard = &raw const boot_stack_guard as u64;
    for (start, end, access) in [
        (&raw const text_start, &raw const text_end, Access::READ | Access::EXECUTE),
        (&raw const rodata_start, &raw const rodata_end, Access::READ),
        (&raw const data_start, &raw const boot_stack_guard, DATA),
    ] {
        host.map((start as u64, end as u64), access)?;
    }
    host.map((guard + PAGE, &raw const data_end as u64), DATA)?;
    Ok(host)
}

fn with<R>(f: impl FnOnce(&mut HostTable) -> Result<R, Error>) -> Option<R> {
    TABLE.lock().as_mut().map(|host| f(host).unwrap_or_else(|error| cant(error)))
}

fn cant(error: Error) -> ! {
    refuse(format_args!("the host's own page tables can't be made: {error}"))
}

/// Unmaps the page below a stack. Before the final tables are in use this does nothing.
pub fn guard(page: u64) {
    with(|host| host.unmap(page, PAGE));
}

/// Maps a page of low memory one to one while `f` runs, which is given the address of the tables.
pub fn with_low_page<R>(page: u64, access: Access, f: impl FnOnce(u64) -> R) -> R {
    let root = with(|host| host.map((page, page + PAGE), access).map(|()| host.table.root()));
    let result = f(root.unwrap_or(0));
    with(|host| host.unmap(page, PAGE));
    result
}

/// Whether these are addresses that the CPU has (APM vol. 3, CPUID 8000_0008h EAX[7:0]).
pub fn is_physical(pa: u64, bytes: u64) -> bool {
    let sizes = raw_cpuid::CpuId::new().get_processor_capacity_feature_info();
    let bits = sizes.map_or(36, |sizes| sizes.physical_address_bits());
    pa.checked_add(bytes).is_some_and(|end| end <= 1 << bits.min(52))
}

/// Maps `bytes` of device registers at `pa`, uncached, one to one. Only while booting, and only
/// once the final tables are in use. What is mapped so already may be mapped again.
pub fn map_mmio(pa: u64, bytes: u64) {
    if !is_physical(pa, bytes) {
        refuse(format_args!(
            "device registers of {bytes:#x} bytes at {pa:#x}, by what the firmware says, are where this CPU has no addresses"
        ));
    }
    let start = pa & !(PAGE - 1);
    let end = pa.saturating_add(bytes).saturating_add(PAGE - 1) & !(PAGE - 1);
    with(|host| match host.map((start, end), DATA | Access::UNCACHED) {
        Err(Error::Overlap { .. }) => {
            for page in (start..end).step_by(PAGE as usize) {
                match host.table.lookup(&host.frames, page) {
                    None => host.map((page, page + PAGE), DATA | Access::UNCACHED)?,
                    Some(old) if old.access.contains(Access::UNCACHED) => {}
                    Some(_) => refuse(format_args!(
                        "device registers at {page:#x} lie in memory, by what the firmware says"
                    )),
                }
            }
            Ok(())
        }
        other => other,
    });
}
