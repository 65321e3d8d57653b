//! Starting the other cores, once, by INIT and SIPI.
//!
//! Guarantees: each core starts alone on a stack of its own; a core that doesn't start is put back
//! by INIT into the state in which it waits for a SIPI, as it might start later on another core's
//! stack, and is never sent one again. INIT is never sent to a core that started: it isn't held
//! back by GIF and resets a core that runs a VM.

use super::{PerCpu, delay_us, descriptors::Tables, park, percpu, rdtsc, setup, tsc_hz, x2apic};
use crate::{memory, memory::TRAMPOLINE, refusal::refuse};
use alloc::vec::Vec;
use core::{
    arch::global_asm,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};
use paging::Access;

global_asm!(
    include_str!("trampoline.s"),
    page = const TRAMPOLINE,
    stack = sym STACK,
    main = sym main,
    options(att_syntax)
);

unsafe extern "C" {
    static trampoline_start: u8;
    static trampoline_end: u8;
    static trampoline_cr3: u8;
}

/// Stack, state and tables of the one core that is being started.
static STACK: AtomicU64 = AtomicU64::new(0);
static CPU: AtomicUsize = AtomicUsize::new(0);
static TABLES: AtomicUsize = AtomicUsize::new(0);

/// Starts every other core that the firmware lists. Core 0 is the boot CPU; the others keep the
/// firmware's order.
pub fn start_others(machine: &acpi::Machine) {
    let boot = percpu::this();
    let listed = machine.cpus.iter().filter(|cpu| cpu.apic_id != boot.apic_id);
    let new = |(i, cpu): (usize, &acpi::Cpu)| PerCpu::new(i + 1, cpu.apic_id, setup::work_stack());
    let all: Vec<_> = core::iter::once(boot).chain(listed.enumerate().map(new)).collect();
    percpu::publish(all.into_boxed_slice());
    // All stacks first: unmapping the pages below them is this core's matter while it is alone.
    let tables: Vec<_> = percpu::all().skip(1).map(|cpu| (cpu, setup::tables())).collect();
    memory::with_low_page(TRAMPOLINE, Access::READ | Access::WRITE, |root| {
        let Ok(root) = u32::try_from(root) else {
            refuse("no memory below 4 GiB was free for page tables, and cores start there")
        };
        // SAFETY: the page was just mapped writable, and the loader's data in it are copied.
        unsafe { install(root) };
    });
    memory::with_low_page(TRAMPOLINE, Access::READ | Access::EXECUTE, |_| {
        tables.iter().for_each(|(cpu, tables)| start(cpu, tables));
    });
}

/// Copies the trampoline to its page, for cores that start on the page tables at `cr3`.
///
/// # Safety
/// The page is mapped writable and nobody else uses it.
unsafe fn install(cr3: u32) {
    let (start, end) = (&raw const trampoline_start, &raw const trampoline_end);
    let slot = &raw const trampoline_cr3 as usize - start as usize;
    // SAFETY: the trampoline's code is less than a page; the caller vouches for the page.
    unsafe {
        let page = TRAMPOLINE as *mut u8;
        page.copy_from_nonoverlapping(start, end as usize - start as usize);
        page.add(slot).cast::<u32>().write(cr3);
    }
}

/// Starts `cpu`, which isn't running, and waits until it is parked; for so long only, as firmware
/// may list a core that is broken or isn't there.
fn start(cpu: &'static PerCpu, tables: &'static Tables) {
    STACK.store(cpu.stack_top, Ordering::Relaxed);
    CPU.store(core::ptr::from_ref(cpu) as usize, Ordering::Relaxed);
    TABLES.store(core::ptr::from_ref(tables) as usize, Ordering::Release);
    x2apic::send_init(cpu.apic_id);
    delay_us(10_000);
    // SDM 3A 10.4.4.1: a second SIPI where the first went unheard.
    for patience_us in [20_000, 2_000_000] {
        x2apic::send_startup(cpu.apic_id, (TRAMPOLINE >> 12) as u8);
        let start = rdtsc();
        let ticks = tsc_hz() / 1_000_000 * patience_us;
        while rdtsc().wrapping_sub(start) < ticks {
            if cpu.parked.load(Ordering::Acquire) {
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

/// First Rust code on a core that was started.
extern "C" fn main() -> ! {
    // SAFETY: `start` put references with static lifetime there, for this core.
    let (tables, cpu) = unsafe {
        let tables = TABLES.load(Ordering::Acquire) as *const Tables;
        (&*tables, &*(CPU.load(Ordering::Relaxed) as *const PerCpu))
    };
    setup::setup(cpu, tables);
    park()
}
