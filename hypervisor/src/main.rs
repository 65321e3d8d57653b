//! Exitless, the bare-metal image: brings the machine up and hands it to the VMs.
//!
//! Order of things: a boot CPU that can speak, then memory, then the other CPUs, then the plan.
//! Only this package, the UEFI loader and the test kernels have unsafe code.
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
mod power;
mod refusal;
mod sched;
mod sidecore;
mod vm;
mod watchdog;

use acpi::RootPointer;
use core::ops::Range;
use cpu::Clock;
use handover::{BootInfo, PixelFormat};
use proto::Record;
use refusal::refuse;
use screen::{Channel, Frame, Framebuffer};

/// First Rust code on the boot CPU, on the boot page tables, with interrupts off. What the loader
/// says is at `address`; `who` is the kind of loader.
#[cold]
extern "C" fn boot(address: u64, who: u32) -> ! {
    refusal::by(panic::refused);
    cpu::init();
    console::init();
    log::info!("Exitless {}", env!("CARGO_PKG_VERSION"));
    cpu::control::check();

    memory::extend_boot_map();
    // SAFETY: only the image's own memory was written until here, and the boot tables map the first
    // 512 GiB one to one, now that they are extended.
    let mut info = unsafe { boot::read(who, address) };
    let frame = open_screen(&info);
    info.check().unwrap_or_else(|error| refuse(error));
    log::info!("booted by {}, at {:#x}", info.path, memory::image().0);
    if !info.command_line.is_empty() {
        log::info!("command line: {}", info.command_line.escape_ascii());
    }
    let rsdp = root_pointer(&info);
    memory::init(&mut info, rsdp);
    cpu::setup_boot_cpu();
    interrupts::legacy::mask_pics();

    let machine = probe(&info, rsdp);
    power::note(&machine, &info);
    memory::protect(&info, frame);
    host::outputs::choose_port(&machine, &info.memory);
    // Before all that takes time: it may run.
    watchdog::quiet(&machine, &info.memory);
    for ioapic in &machine.ioapics {
        interrupts::legacy::mask_ioapic(ioapic.address);
    }
    cpu::measure(clock(&machine, &info));
    let Some(page) = info.memory.startup_page() else {
        refuse("no page of memory below 1 MiB is usable; the other CPUs are to start in one");
    };
    cpu::start_others(&machine, page);

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
    let image = memory::image_bytes(&info);
    pci::room::keep_clear_of(&info.memory);
    if image.is_empty() {
        host::inventory::tell(&machine);
    }
    host::start(&machine, image)
}

/// Draws on the framebuffer, if there is one; where it is.
fn open_screen(info: &BootInfo) -> Option<Range<u64>> {
    let handover::Framebuffer { address, width, height, pitch, format } = info.framebuffer?;
    let [red, green, blue] = match format {
        PixelFormat::Rgb => [0, 8, 16],
        PixelFormat::Bgr => [16, 8, 0],
    }
    .map(Channel::byte);
    let bits = 32;
    let description = Framebuffer { address, width, height, pitch, bits, red, green, blue };
    let frame = Frame::new(description)
        .inspect_err(|error| log::warn!("the framebuffer isn't used, for it {error}"))
        .ok()?;
    let range = address..address + frame.bytes();
    if info.memory.has_memory(&range) || range.end > boot::MAPPED {
        log::warn!(
            "the framebuffer at {address:#x} isn't used, for it lies in memory, or beyond 512 GiB"
        );
        return None;
    }
    // SAFETY: the boot tables map it, and so do the final ones; by the firmware's word it is no
    // memory.
    unsafe { console::screen::open(frame) };
    Some(range)
}

/// What the TSC is measured by.
fn clock(machine: &acpi::Machine, info: &BootInfo) -> Clock {
    match (machine.pm_timer, info.tsc_hz) {
        (Some(timer), _) => Clock::Pm(timer),
        (None, Some(hz)) => {
            log::warn!(
                "the firmware names no PM timer; the TSC's rate is what the loader measured"
            );
            Clock::Tsc(hz)
        }
        (None, None) => refuse(
            "the firmware's ACPI tables name no PM timer, and the boot loader didn't measure the \
             TSC either; one of them is needed",
        ),
    }
}

/// ACPI's root pointer: the loader's word, or what is found where a BIOS puts it.
fn root_pointer(info: &BootInfo) -> RootPointer {
    let found = || acpi::find_rsdp(&memory::Firmware(&info.memory)).map(RootPointer::At);
    info.rsdp.map_or_else(found, Ok).unwrap_or_else(|error| refuse(error))
}

/// What the firmware says of the machine.
fn probe(info: &BootInfo, rsdp: RootPointer) -> acpi::Machine {
    let machine = acpi::probe(&memory::Firmware(&info.memory), rsdp);
    let machine = machine.unwrap_or_else(|error| refuse(error));
    if let Some(Err(error)) = &machine.affinity {
        log::warn!(
            "memory isn't given by its node, for the firmware's table of nodes is wrong: {error}"
        );
    }
    machine
}
