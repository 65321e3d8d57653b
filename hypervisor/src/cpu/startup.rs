//! Starting the other cores, once, by INIT and SIPI.
//!
//! Guarantees: each core starts alone on a stack of its own; a core that doesn't start is put back
//! by INIT into the state in which it waits for a SIPI, as it might start later on another core's
//! stack, and is never sent one again. INIT is never sent to a core that started: it isn't held
//! back by GIF and resets a core that runs a VM.

use super::{
    PerCpu, delay_us, descriptors::Tables, park, percpu, rdtsc, setup, tsc_hz, vendor_cpu, x2apic,
};
use crate::{memory, refusal::refuse};
use alloc::vec::Vec;
use core::{
    arch::global_asm,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};
use paging::Access;

global_asm!(
    include_str!("trampoline.s"),
    stack = sym STACK,
    main = sym main,
    options(att_syntax)
);

unsafe extern "C" {
    static trampoline_start: u8;
    static trampoline_end: u8;
    static trampoline_slots: u8;
    fn ap_entry();
}

/// The trampoline's end: what it reads of where things are.
#[repr(C, packed)]
struct Slots {
    /// Its way out, in 64-bit mode.
    entry: u64,
    /// The tables it starts on.
    cr3: u32,
    /// Where its 64-bit code is, and the selector of it.
    far: u32,
    selector: u16,
    /// The limit of its descriptor table, and where that is.
    limit: u16,
    gdt: u32,
}

/// Heap for a core's state and its ring of messages, rounded up.
const HEAP_OF_A_CORE: u64 = 16 << 10;

/// Stack, state and tables of the one core that is being started.
static STACK: AtomicU64 = AtomicU64::new(0);
static CPU: AtomicUsize = AtomicUsize::new(0);
static TABLES: AtomicUsize = AtomicUsize::new(0);

/// Starts every other core that the firmware lists, each at first in the usable page below 1 MiB
/// that `page` is. Core 0 is the boot CPU; the others keep the firmware's order.
pub fn start_others(machine: &acpi::Machine, page: u64) {
    memory::grow_heap(machine.cpus.len() as u64 * HEAP_OF_A_CORE);
    let boot = percpu::this();
    let listed = machine.cpus.iter().filter(|cpu| cpu.apic_id != boot.apic_id);
    let new = |(i, cpu): (usize, &acpi::Cpu)| PerCpu::new(i + 1, cpu.apic_id, setup::work_stack());
    let all: Vec<_> = core::iter::once(boot).chain(listed.enumerate().map(new)).collect();
    percpu::publish(all.into_boxed_slice());
    // All stacks first: unmapping the pages below them is this core's matter while it is alone.
    let tables: Vec<_> = percpu::all().skip(1).map(|cpu| (cpu, setup::tables())).collect();
    memory::with_low_page(page, Access::READ | Access::WRITE, |root| {
        let Ok(root) = u32::try_from(root) else {
            refuse("no memory below 4 GiB was free for page tables, and cores start there")
        };
        // SAFETY: the page was just mapped writable, and the loader's data in it are copied.
        unsafe { install(page as u32, root) };
    });
    memory::with_low_page(page, Access::READ | Access::EXECUTE, |_| {
        tables.iter().for_each(|(cpu, tables)| start(cpu, tables, page));
    });
}

/// Copies the trampoline to `page`, for cores that start on the page tables at `cr3`.
///
/// # Safety
/// The page is mapped writable and nobody else uses it.
unsafe fn install(page: u32, cr3: u32) {
    let (start, end) = (&raw const trampoline_start, &raw const trampoline_end);
    let slots = &raw const trampoline_slots as usize - start as usize;
    // SAFETY: the trampoline with its slots is less than a page; the caller vouches for the page.
    unsafe {
        let copy = page as *mut u8;
        copy.copy_from_nonoverlapping(start, end as usize - start as usize);
        let slots = copy.add(slots).cast::<Slots>();
        let mut filled = slots.read();
        filled.entry = ap_entry as *const () as u64;
        filled.cr3 = cr3;
        filled.far += page;
        filled.gdt += page;
        slots.write(filled);
    }
}

/// Starts `cpu`, which isn't running, and waits until it is parked; for so long only, as firmware
/// may list a core that is broken or isn't there.
fn start(cpu: &'static PerCpu, tables: &'static Tables, page: u64) {
    STACK.store(cpu.stack_top, Ordering::Relaxed);
    CPU.store(core::ptr::from_ref(cpu) as usize, Ordering::Relaxed);
    TABLES.store(core::ptr::from_ref(tables) as usize, Ordering::Release);
    x2apic::send_init(cpu.apic_id);
    delay_us(10_000);
    // SDM 3A 10.4.4.1: a second SIPI where the first went unheard.
    let before = rdtsc();
    for patience_us in [20_000, 2_000_000] {
        if !is_planted(SILENT, cpu) {
            x2apic::send_startup(cpu.apic_id, (page >> 12) as u8);
        }
        let start = rdtsc();
        let ticks = tsc_hz() / 1_000_000 * patience_us;
        while rdtsc().wrapping_sub(start) < ticks {
            if cpu.parked.load(Ordering::Acquire) {
                compare(cpu, before, rdtsc());
                if !cpu.may_run_guests() {
                    log::warn!(
                        "core {}: the firmware has locked virtualisation off there, so that it runs no guests: look into its setup",
                        cpu.index
                    );
                }
                return;
            }
            core::hint::spin_loop();
        }
    }
    x2apic::send_init(cpu.apic_id);
    delay_us(10_000);
    // Should it have come so far just before that.
    cpu.parked.store(false, Ordering::Release);
    log::warn!(
        "core {} (APIC id {}) doesn't start, though the firmware lists it; nothing runs there",
        cpu.index,
        cpu.apic_id
    );
}

/// APIC ids in the image of tests: of a core that firmware lists and that never answers, as nothing
/// is sent to it, and of one whose virtualisation is locked off, which reads as if it were.
const SILENT: u32 = 5;
const LOCKED: u32 = 7;

fn is_planted(which: u32, cpu: &PerCpu) -> bool {
    cfg!(feature = "plant") && cpu.apic_id == which
}

/// A core that was started between these two readings of this one's TSC has read its own. The
/// difference that isn't seen is as long as the start, some hundred microseconds: time slices are
/// watched from core 0, and nothing of the host's is as short. Guests' kernels compare their TSCs
/// themselves.
fn compare(cpu: &'static PerCpu, before: u64, after: u64) {
    let there = cpu.started_at.load(Ordering::Relaxed);
    if !(before..=after).contains(&there) {
        cpu.apart.store(true, Ordering::Relaxed);
        log::warn!(
            "core {}'s TSC isn't core 0's: it read {there} between {before} and {after}; no vCPUs can share the core",
            cpu.index
        );
    }
}

/// First Rust code on a core that was started.
extern "C" fn main() -> ! {
    // SAFETY: `start` put references with static lifetime there, for this core.
    let (tables, cpu) = unsafe {
        let tables = TABLES.load(Ordering::Acquire) as *const Tables;
        (&*tables, &*(CPU.load(Ordering::Relaxed) as *const PerCpu))
    };
    setup::setup(cpu, tables);
    if is_planted(LOCKED, cpu) || vendor_cpu::locked_off() {
        cpu.locked_off.store(true, Ordering::Relaxed);
    }
    cpu.started_at.store(rdtsc(), Ordering::Relaxed);
    park()
}
