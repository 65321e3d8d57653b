//! A core's first steps, and the stacks that it gets.

use super::{
    PerCpu, control, descriptors::STACKS, descriptors::Tables, machine_check, percpu, x2apic,
};
use crate::{interrupts, memory, refusal::refuse};

/// Bytes of a core's stack for work, and of its stacks for exceptions.
const STACK: u64 = 64 << 10;
const EXCEPTION_STACK: u64 = 16 << 10;

unsafe extern "C" {
    static boot_stack_top: u8;
}

/// Gives the boot CPU its state: the first thing that runs.
pub fn init() {
    let stack_top = &raw const boot_stack_top as u64;
    percpu::install(PerCpu::new(0, control::apic_id(), stack_top));
}

/// The boot CPU's tables, control registers and APIC, once there is memory.
pub fn setup_boot_cpu() {
    setup(percpu::this(), tables());
}

/// A core's first steps: its state, tables, control registers and APIC.
pub fn setup(cpu: &'static PerCpu, tables: &'static Tables) {
    tables.load();
    // After the tables: loading a selector into GS would have cleared its base.
    percpu::install(cpu);
    interrupts::load();
    control::setup();
    x2apic::enable();
    // What firmware left would be told with the next error, and a machine check that it left
    // unfinished makes the next one a shutdown.
    if let Some(left) = machine_check::take().filter(|report| report.tells_something()) {
        log::warn!("core {} starts with what firmware left: {left}", cpu.index);
    }
}

/// New tables of a core, with their stacks.
pub fn tables() -> &'static Tables {
    Tables::new([(); STACKS].map(|()| stack(EXCEPTION_STACK)))
}

/// A stack for work, as every core has one.
pub fn fiber_stack() -> Option<u64> {
    memory::stack(STACK)
}

/// The stack for work of a core that is about to be started.
pub fn work_stack() -> u64 {
    stack(STACK)
}

fn stack(bytes: u64) -> u64 {
    memory::stack(bytes).unwrap_or_else(|| {
        refuse(format_args!(
            "memory is too small for the cores' stacks: {bytes} more bytes are needed"
        ))
    })
}
