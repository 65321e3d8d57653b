//! The physical CPUs: found, started once, parked until they are given work.

pub mod control;
pub mod descriptors;
pub mod machine_check;
pub mod msr;
mod percpu;
pub mod port;
pub mod startup;
pub mod svm;
mod time;
pub mod vectors;
pub mod x2apic;

pub use ::vendor;
pub use percpu::{NO_VM, PerCpu, all, count, find, get, this};
pub use svm::{SvmCpu as VendorCpu, Traits as VendorTraits};
pub use time::{delay_us, measure, rdtsc, timer_hz, tsc_hz};

use crate::{interrupts, memory, refusal::refuse};
use alloc::vec::Vec;
use core::{arch::asm, sync::atomic::Ordering};
use descriptors::{STACKS, Tables};
use paging::Access;

/// Bytes of a core's stack for work, and of its stacks for exceptions.
const STACK: u64 = 64 << 10;
const EXCEPTION_STACK: u64 = 16 << 10;

unsafe extern "C" {
    static boot_stack_top: u8;
}

/// This core's APIC id, by CPUID: works before the APIC is in x2APIC mode, and without GS.
pub fn apic_id() -> u32 {
    let id = control::cpuid();
    let extended = id.get_extended_topology_info().and_then(|mut levels| levels.next());
    extended.map_or_else(
        || id.get_feature_info().map_or(0, |f| u32::from(f.initial_local_apic_id())),
        |level| level.x2apic_id(),
    )
}

/// Gives the boot CPU its state: the first thing that runs.
pub fn init() {
    let stack_top = &raw const boot_stack_top as u64;
    percpu::install(PerCpu::new(0, apic_id(), stack_top));
}

/// The boot CPU's tables, control registers and APIC, once there is memory.
pub fn setup_boot_cpu() {
    startup::setup(this(), tables());
}

/// Starts every other core that the firmware lists. Core 0 is the boot CPU; the others keep the
/// firmware's order.
pub fn start_others(machine: &acpi::Machine) {
    let boot = this();
    let listed = machine.cpus.iter().filter(|cpu| cpu.apic_id != boot.apic_id);
    let others = listed.enumerate().map(|(i, cpu)| PerCpu::new(i + 1, cpu.apic_id, stack(STACK)));
    let all: Vec<_> = core::iter::once(boot).chain(others).collect();
    percpu::publish(all.into_boxed_slice());
    // All stacks first: unmapping the pages below them is this core's matter while it is alone.
    let tables: Vec<_> = percpu::all().skip(1).map(|cpu| (cpu, tables())).collect();
    memory::with_low_page(startup::TRAMPOLINE, Access::READ | Access::WRITE, |root| {
        let Ok(root) = u32::try_from(root) else {
            refuse("no memory below 4 GiB was free for page tables, and cores start there")
        };
        // SAFETY: the page was just mapped writable, and the loader's data in it are copied.
        unsafe { startup::install(root) };
    });
    memory::with_low_page(startup::TRAMPOLINE, Access::READ | Access::EXECUTE, |_| {
        tables.iter().for_each(|(cpu, tables)| startup::start(cpu, tables));
    });
}

fn tables() -> &'static Tables {
    Tables::new([(); STACKS].map(|()| stack(EXCEPTION_STACK)))
}

/// A stack for work, as every core has one.
pub fn fiber_stack() -> Option<u64> {
    memory::stack(STACK)
}

fn stack(bytes: u64) -> u64 {
    memory::stack(bytes).unwrap_or_else(|| {
        refuse(format_args!(
            "memory is too small for the cores' stacks: {bytes} more bytes are needed"
        ))
    })
}

/// Has the parked core `index` (1 or more) run `f(argument)` on a fresh stack.
///
/// # Panics
/// If there is no such core, or it has work already.
pub fn run_on(index: usize, f: fn(usize) -> !, argument: usize) {
    let cpu = get(index).filter(|cpu| cpu.index != 0);
    let cpu = cpu.filter(|cpu| cpu.parked.swap(false, Ordering::AcqRel));
    let Some(cpu) = cpu else { panic!("core {index} isn't parked and can't be given work") };
    cpu.argument.store(argument, Ordering::Relaxed);
    cpu.work.store(f as usize, Ordering::Release);
    x2apic::send_ipi(cpu.apic_id, interrupts::WAKE);
}

/// Leaves whatever this core (not core 0) does for good and waits for [`run_on`].
pub fn park() -> ! {
    // SAFETY: the stack is this core's own, and nothing on it is used again.
    unsafe {
        asm!(
            "cli",
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "call {wait}",
            "ud2",
            stack = in(reg) this().stack_top,
            wait = sym wait_for_work,
            options(noreturn),
        )
    }
}

extern "C" fn wait_for_work() -> ! {
    let cpu = this();
    cpu.vm.store(NO_VM, Ordering::Relaxed);
    // What guests sent may still be on its way, by vectors that are exceptions to the host.
    interrupts::load_tolerant();
    cpu.parked.store(true, Ordering::Release);
    loop {
        interrupts::disable();
        // The wake-up is consumed with the work it announces; left pending, it would be the
        // first thing to interrupt what runs next on this core.
        let woken = interrupts::take().any(|vector| vector == interrupts::WAKE);
        let work = if woken { cpu.work.swap(0, Ordering::Acquire) } else { 0 };
        if work != 0 {
            // SAFETY: `run_on` stored a function of this type.
            let f: fn(usize) -> ! = unsafe { core::mem::transmute(work) };
            interrupts::load();
            interrupts::enable();
            f(cpu.argument.load(Ordering::Relaxed));
        }
        interrupts::sleep();
    }
}
