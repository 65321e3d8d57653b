//! The tests by name.

mod delivery;
mod device;
mod exceptions;
mod heartbeat;
mod hello;
mod hostile;
mod idt;
mod ipi;
mod low;
mod registers;
mod timer;

use crate::{boot::Boot, console::check, edu::Edu};

/// A test: its own name, for its lines, and what the loader said.
pub type Test = fn(&str, &Boot);

/// All tests.
pub const ALL: &[(&str, Test)] = &[
    ("hello", hello::hello),
    ("power-off", hello::power_off),
    ("reset-acpi", hello::reset_acpi),
    ("reset-chipset", hello::reset_chipset),
    ("reset-keyboard", hello::reset_keyboard),
    ("exceptions", exceptions::exceptions),
    ("true-np", exceptions::true_np),
    ("delivery", delivery::delivery),
    ("delivery-masked", delivery::masked),
    ("no-eoi", delivery::no_eoi),
    ("halt", delivery::halt),
    ("timer", timer::alone),
    ("timer-mixed", timer::mixed),
    ("timer-nested", timer::nested),
    ("timer-floor", timer::floor),
    ("idt-move", idt::moved),
    ("idt-limit", idt::limited),
    ("idt-write", idt::written),
    ("idt-remap", idt::remapped),
    ("self-ipi", ipi::fixed),
    ("self-nmi", ipi::nmi),
    ("msi-program", device::msi_program),
    ("spurious-vector", device::spurious_vector),
    ("bar-move", device::bar_move),
    ("dma-confine", device::dma_confine),
    ("bad-msr", registers::bad_msr),
    ("bad-port", registers::bad_port),
    ("bad-config", registers::bad_config),
    ("bad-efer", hostile::bad_efer),
    ("bad-cr4", hostile::bad_cr4),
    ("bad-cr3", hostile::bad_cr3),
    ("bad-xcr", hostile::bad_xcr),
    ("bad-instruction", hostile::bad_instruction),
    ("triple-fault", hostile::triple_fault),
    ("wild-load", hostile::wild_load),
    ("wild-store", hostile::wild_store),
    ("wild-jump", hostile::wild_jump),
    ("wild-tables", hostile::wild_tables),
    ("low-vectors", low::low_vectors),
    ("lowest-vectors", low::lowest_vectors),
    ("heartbeat", heartbeat::heartbeat),
];

/// The edu device, or a failed check.
fn edu(test: &str) -> Option<Edu> {
    let edu = Edu::find();
    if edu.is_none() {
        check!(test, false, "no edu device (1234:11e8) with MSI on bus 0");
    }
    edu
}
