//! Starting the other cores, once, by INIT and SIPI.
//!
//! Guarantees: each core starts alone on a stack of its own; a core that doesn't start is put back
//! by INIT into the state in which it waits for a SIPI, as it might start later on another core's
//! stack, and is never sent one again. INIT is never sent to a core that started: it isn't held
//! back by GIF and resets a core that runs a VM.

use super::{PerCpu, control, delay_us, descriptors::Tables, park, percpu, rdtsc, tsc_hz, x2apic};
use crate::interrupts;
use core::{
    arch::global_asm,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

/// Where the trampoline goes: conventional memory that nothing uses after boot.
pub const TRAMPOLINE: u64 = 0x8000;

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

/// Copies the trampoline to its page, for cores that start on the page tables at `cr3`.
///
/// # Safety
/// The page is mapped writable and nobody else uses it.
pub unsafe fn install(cr3: u32) {
    let (start, end) = (&raw const trampoline_start, &raw const trampoline_end);
    let slot = &raw const trampoline_cr3 as usize - start as usize;
    // SAFETY: the trampoline's code is less than a page; the caller vouches for the page.
    unsafe {
        let page = TRAMPOLINE as *mut u8;
        page.copy_from_nonoverlapping(start, end as usize - start as usize);
        page.add(slot).cast::<u32>().write(cr3);
    }
}

/// Starts `cpu`, which isn't running, and waits until it is parked; for so long only, as firmware may
/// list a core that is broken or isn't there.
pub fn start(cpu: &'static PerCpu, tables: &'static Tables) {
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
    setup(cpu, tables);
    park()
}

/// What each core does first: its state, tables, control registers and APIC.
pub fn setup(cpu: &'static PerCpu, tables: &'static Tables) {
    tables.load();
    // After the tables: loading a selector into GS would have cleared its base.
    percpu::install(cpu);
    interrupts::load();
    control::setup();
    x2apic::enable();
}
