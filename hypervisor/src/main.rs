//! Exitless, the bare-metal image: brings the machine up and hands it to the VMs.
//!
//! Order of things: a boot CPU that can speak, then memory, then the other CPUs, then the plan.
//! Only this package and the test kernels have unsafe code.
#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

#[cfg(not(target_os = "none"))]
compile_error!("the image is bare metal; build it with --target x86_64-unknown-none");

extern crate alloc;

mod boot;
mod console;
mod cpu;
mod host;
mod interrupts;
mod iommu;
mod log_limit;
mod memory;
mod panic;
mod pci;
mod refusal;
mod sched;
mod vm;

use proto::Record;
use refusal::refuse;

/// First Rust code on the boot CPU, on the boot page tables, with interrupts off.
extern "C" fn boot(start_info: u64) -> ! {
    refusal::by(panic::refused);
    cpu::init();
    console::init();
    log::info!("Exitless {}", env!("CARGO_PKG_VERSION"));
    cpu::control::check();

    // SAFETY: the address is what the loader left in EBX; only the image's own memory was written
    // until here, and the boot tables map the first 4 GiB one to one.
    let handover = unsafe { boot::pvh::read(start_info) };
    memory::extend_boot_map();
    memory::init(&handover);
    cpu::setup_boot_cpu();
    interrupts::legacy::mask_pics();

    let machine = probe(&handover);
    memory::protect(&handover);
    for ioapic in &machine.ioapics {
        interrupts::legacy::mask_ioapic(ioapic.address);
    }
    let Some(timer) = machine.pm_timer else {
        refuse("the firmware's ACPI tables name no PM timer; it is needed to measure the TSC");
    };
    cpu::measure(timer);
    cpu::start_others(&machine);

    let total = memory::available() + memory::host_bytes();
    console::record(&Record::Machine {
        cpus: cpu::count() as u32,
        memory: total,
        tsc_hz: cpu::tsc_hz(),
        host_memory: memory::host_bytes(),
    });
    log::info!(
        "{} CPUs at {} MHz, {} MiB of memory, {} KiB of them the hypervisor's",
        cpu::count(),
        cpu::tsc_hz() / 1_000_000,
        total >> 20,
        memory::host_bytes() >> 10
    );
    let image = memory::image_bytes(&handover);
    if image.is_empty() {
        refuse("no boot image was loaded; the boot loader has to load one as the first module");
    }
    pci::sriov::keep_clear_of(&handover.memory);
    host::start(&machine, image)
}

/// The machine by the firmware's tables.
fn probe(handover: &boot::Handover) -> acpi::Machine {
    let firmware = memory::Firmware(&handover.memory);
    let rsdp = handover.rsdp.map_or_else(|| acpi::find_rsdp(&firmware), Ok);
    rsdp.and_then(|rsdp| acpi::probe(&firmware, rsdp)).unwrap_or_else(|error| refuse(error))
}
