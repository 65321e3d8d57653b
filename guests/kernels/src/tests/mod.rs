//! The tests by name.

mod amdvi;
mod amdvi_hostile;
mod apic_modes;
mod apic_modes_smp;
mod apic_noise;
mod config_memory;
mod costs;
mod deaf;
mod debugged;
mod delivery;
mod device;
mod exceptions;
mod executed;
mod heartbeat;
mod hello;
mod hostile;
mod idt;
mod interrupt_shadow;
mod ipi;
mod legacy;
mod low;
mod machine_check;
mod measured;
mod mmio_forms;
mod nested;
mod nested_stack;
mod net;
mod net_apart;
mod net_halts;
mod net_reset;
mod net_victim;
mod odd_code;
mod planted;
mod quiet;
mod registers;
mod restart;
mod shared_cost;
mod smp_cost;
mod smp_device;
mod smp_hostile;
mod smp_idt;
mod smp_ipi;
mod smp_kicks;
mod smp_memory;
mod smp_nmi;
mod smp_reset;
mod smp_start;
mod smp_timer;
mod state;
mod svm;
mod ticks;
mod timer;
mod unassigned;
mod unit;
mod unit_faults;
mod unit_hostile;
mod unit_interrupts;
mod viommu;
mod viommu_cost;
mod viommu_hostile;
mod viommu_restart;
mod virtio;
mod virtio_anew;
mod virtio_limit;
mod virtio_load;
mod virtio_pages;
mod virtio_reset;
mod virtio_smp;
mod virtio_stalled;
mod virtio_victim;
mod vmx;
mod vtd;
mod vtd_hostile;
mod weights;

use crate::{amdvi::AmdVi, boot::Boot, console::check, edu::Edu, smp, vtd::Vtd};

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
    ("debugged", debugged::debugged),
    ("own-cr4", debugged::own_cr4),
    ("machine-check", machine_check::machine_check),
    ("delivery", delivery::delivery),
    ("delivery-masked", delivery::masked),
    ("no-eoi", delivery::no_eoi),
    ("halt", delivery::halt),
    ("interrupt-shadow", interrupt_shadow::interrupt_shadow),
    ("timer", timer::alone),
    ("timer-many", timer::many),
    ("timer-mixed", timer::mixed),
    ("ticks", ticks::ticks),
    ("timer-nested", timer::nested),
    ("timer-floor", timer::floor),
    ("idt-shown", idt::shown),
    ("idt-move", idt::moved),
    ("idt-limit", idt::limited),
    ("idt-write", idt::written),
    ("idt-remap", idt::remapped),
    ("self-ipi", ipi::fixed),
    ("apic-modes", apic_modes::transitions),
    ("apic-xapic", apic_modes::registers),
    ("apic-interrupts", apic_modes::interrupts),
    ("apic-disabled", apic_modes::disabled),
    ("apic-noise", apic_noise::noise),
    ("self-nmi", ipi::nmi),
    ("msi-program", device::msi_program),
    ("spurious-vector", device::spurious_vector),
    ("bar-move", device::bar_move),
    ("dma-confine", device::dma_confine),
    ("bad-msr", registers::bad_msr),
    ("bad-port", registers::bad_port),
    ("open-port", registers::open_port),
    ("bad-config", registers::bad_config),
    ("config-memory", config_memory::config_memory),
    ("bad-efer", hostile::bad_efer),
    ("bad-cr4", hostile::bad_cr4),
    ("bad-cr3", hostile::bad_cr3),
    ("bad-control", hostile::bad_control),
    ("bad-xcr", hostile::bad_xcr),
    ("bad-instruction", hostile::bad_instruction),
    ("triple-fault", hostile::triple_fault),
    ("triple-fault-again", hostile::triple_fault_again),
    ("poll-nothing", hostile::poll_nothing),
    ("wild-load", hostile::wild_load),
    ("wild-store", hostile::wild_store),
    ("wild-jump", hostile::wild_jump),
    ("wild-tables", hostile::wild_tables),
    ("mmio-forms", mmio_forms::forms),
    ("exchanged-code", mmio_forms::exchanged),
    ("lock-mov-cr0", mmio_forms::lock_mov_cr0),
    ("low-vectors", low::low_vectors),
    ("lowest-vectors", low::lowest_vectors),
    ("nested", nested::stacked),
    ("low-gates", nested::low_gates),
    ("stackless", nested_stack::stackless),
    ("svm-exits", svm::exits),
    ("svm-open", svm::open),
    ("svm-invalid", svm::invalid),
    ("svm-interrupts", svm::interrupts),
    ("svm-guarded", svm::guarded),
    ("svm-paging", svm::paging),
    ("svm-registers", svm::registers),
    ("svm-avic", svm::avic),
    ("svm-avic-smp", svm::doorbell),
    ("svm-hostile", svm::hostile),
    ("svm-events", svm::events),
    ("svm-cost", svm::instructions),
    ("svm-levels", svm::levels),
    ("svm-posted", svm::posted),
    ("svm-posted-others", svm::posted_others),
    ("svm-posted-smp", svm::posted_smp),
    ("svm-posted-hostile", svm::posted_hostile),
    ("svm-posted-restart", svm::posted_restart),
    ("svm-restart", svm::restart),
    ("svm-shutdown", svm::shutdown),
    ("vmx-exits", vmx::exits),
    ("vmx-model", vmx::model),
    ("heartbeat", heartbeat::heartbeat),
    ("ap-start", smp_start::start),
    ("ap-restart", smp_start::restart),
    ("ipi-fixed", smp_ipi::kinds),
    ("ipi-ring", smp_ipi::ring),
    ("xapic-ipi", apic_modes_smp::kinds),
    ("xapic-start", apic_modes_smp::start),
    ("ipi-all", smp_ipi::all_to_all),
    ("ipi-nmi", smp_nmi::nmi),
    ("ipi-void", smp_nmi::void),
    ("kicks", smp_kicks::kicks),
    ("direction", odd_code::direction),
    ("compatibility", odd_code::compatibility),
    ("legacy-modes", legacy::modes_of_32_bits),
    ("shootdown", smp_memory::shootdown),
    ("bar-move-smp", smp_memory::bar_move),
    ("start-flush", smp_memory::start_flush),
    ("affinity", smp_device::affinity),
    ("offline-interrupt", smp_device::offline),
    ("idt-smp", smp_idt::shared),
    ("idt-remote", smp_idt::written),
    ("timers", smp_timer::timers),
    ("icr-storm", smp_hostile::icr_storm),
    ("start-storm", smp_hostile::start_storm),
    ("init-self", smp_hostile::init_self),
    ("ap-triple-fault", smp_hostile::triple_fault),
    ("ap-bios", smp_hostile::bios_call),
    ("ap-power-off", smp_hostile::power_off),
    ("ap-reset", smp_hostile::reset),
    ("reset-rewrites", smp_reset::rewritten),
    ("ipi-exits", smp_cost::exits),
    ("costs", costs::costs),
    ("ipi-cost", smp_cost::instructions),
    ("shared-cost", shared_cost::instructions),
    ("deaf", deaf::deaf),
    ("deaf-wanted", deaf::deaf_wanted),
    ("quiet", quiet::quiet),
    ("planted", planted::planted),
    ("planted-inner", planted::inner),
    ("late-interrupts", planted::late),
    ("unassigned", unassigned::unassigned),
    ("state", state::state),
    ("restart", restart::memory_and_chips),
    ("reset-state", restart::registers),
    ("restart-devices", restart::devices),
    ("bus-master", device::bus_master),
    ("intx", device::intx),
    ("fault-storm", device::fault_storm),
    ("dma-slow", device::dma_slow),
    ("end-at-work", device::end_at_work),
    ("virtio", virtio::requests),
    ("virtio-negotiation", virtio::negotiation),
    ("virtio-read-only", virtio::read_only),
    ("virtio-errors", virtio::errors),
    ("virtio-load", virtio_load::load),
    ("virtio-flags", virtio_load::flags),
    ("virtio-limit", virtio_limit::limit),
    ("virtio-anew", virtio_anew::anew),
    ("viommu", viommu::translated),
    ("viommu-nvme", viommu::controller),
    ("viommu-optimistic", viommu::optimistic),
    ("viommu-exits", viommu::exits),
    ("viommu-cost", viommu_cost::virtio),
    ("viommu-hostile", viommu_hostile::hostile),
    ("viommu-restart", viommu_restart::restart),
    ("vtd", unit::translated::<Vtd>),
    ("vtd-nvme", unit::controller::<Vtd>),
    ("vtd-faults", vtd::faults),
    ("vtd-optimistic", unit::optimistic::<Vtd>),
    ("vtd-exits", unit::exits::<Vtd>),
    ("vtd-cost", viommu_cost::unit::<Vtd>),
    ("vtd-interrupts", unit_interrupts::interrupts::<Vtd>),
    ("vtd-hostile", vtd_hostile::hostile),
    ("vtd-held", unit_hostile::held::<Vtd>),
    ("vtd-restart", viommu_restart::behind::<Vtd>),
    ("amdvi", amdvi::translated),
    ("amdvi-nvme", unit::controller::<AmdVi>),
    ("amdvi-faults", amdvi::faults),
    ("amdvi-optimistic", unit::optimistic::<AmdVi>),
    ("amdvi-exits", unit::exits::<AmdVi>),
    ("amdvi-cost", viommu_cost::unit::<AmdVi>),
    ("amdvi-interrupts", amdvi::interrupts),
    ("amdvi-hostile", amdvi_hostile::hostile),
    ("amdvi-held", unit_hostile::held::<AmdVi>),
    ("amdvi-restart", viommu_restart::behind::<AmdVi>),
    ("virtio-backlog", virtio_anew::backlog),
    ("virtio-pages", virtio_pages::pages),
    ("virtio-poll", virtio_load::polled),
    ("virtio-mask", virtio_load::masked),
    ("measured-reads", measured::reads),
    ("measured-bytes", measured::bytes),
    ("virtio-reset", virtio_reset::reset),
    ("virtio-restart", virtio_reset::restart),
    ("virtio-stuck", virtio_reset::stuck),
    ("virtio-stalled", virtio_stalled::stalled),
    ("virtio-move", virtio_smp::moved),
    ("virtio-queues", virtio_smp::queues),
    ("net-negotiation", net::negotiation),
    ("net-exchange", net::exchange),
    ("net-kicked", net::exchange),
    ("net-halts", net_halts::halts),
    ("net-apart", net_apart::apart),
    ("net-spoof", net_apart::spoofed),
    ("net-rate", net_apart::rate),
    ("net-reset", net_reset::reset),
    ("net-restart", net_reset::restart),
    ("net-victim", net_victim::victim),
    ("virtio-victim", virtio_victim::victim),
    ("weights-light", weights::light),
    ("weights-heavy", weights::heavy),
];

/// The edu device, or a failed check.
fn edu(test: &str) -> Option<Edu> {
    let edu = Edu::find();
    if edu.is_none() {
        check!(test, false, "no edu device (1234:11e8) with MSI on bus 0");
    }
    edu
}

/// Starts all CPUs: how many there are, or a failed check when they aren't two at least.
fn cpus(test: &str, boot: &Boot) -> Option<usize> {
    let count = smp::start_all(boot).filter(|n| *n > 1);
    if count.is_none() {
        check!(test, false, "no second CPU, or one that doesn't start");
    }
    count
}
