//! Virtual machines: built from the plan on core 0, each run by the core the plan gives it.
//!
//! Guarantees: everything a VM is made of is allocated before the first guest starts; from
//! then on a VM belongs to its core, and cores share nothing but the console rings, the IOMMU
//! and the list of endings. A VM that ends gives its devices back silenced.

mod apic;
mod build;
mod code;
mod devices;
mod io;
mod memory;
mod mmio;
mod report;
mod shadow;
mod string_io;
mod this_core;
mod vcpu;

use crate::cpu::svm::{self, SvmCpu};
use crate::cpu::vendor::VirtualCpu;
use crate::cpu::{self, rdtsc};
use crate::panic::{finish, refuse};
use crate::pci::Pci;
use crate::{console, iommu};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use code::CodePages;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicUsize, Ordering};
use delivery::{LocalApic, Mode, Routes, VectorSet};
use devices::{Device, Incident};
use ledger::{Delivery, Page};
use memory::Memory;
use platform::ioapic::Ioapic;
use platform::msr::Msrs;
use platform::pci::Bus;
use platform::rtc::Rtc;
use platform::uart::Uart;
use shadow::Shadow;

/// Where a guest finds its ledger page (CPUID 0x4000_0001).
pub const LEDGER_PAGE: u64 = 0xFED4_0000;

/// A VM and its one vCPU.
pub struct Vm<C: VirtualCpu> {
    index: usize,
    name: String,
    policy: Delivery,
    cpu: C,
    memory: Memory,
    code_pages: CodePages,
    ledger: &'static mut Page,

    // Interrupts.
    mode: Mode,
    apic: LocalApic,
    routes: Routes,
    /// Some source of an assigned device is routed.
    routes_in_use: bool,
    /// Guest vectors of assigned devices.
    device_vectors: VectorSet,
    shadow: Shadow,
    /// The virtual interrupt the guest will take at the first chance.
    offered: Option<u8>,
    /// MOV to CR8 exits, since the task priority holds an interrupt back.
    priority_watched: bool,
    /// The vector under which the timer's last interrupt waits.
    timer_requested: Option<u8>,

    // The rest of the PC.
    /// EAX of the physical CPUID leaves 0 and 0x8000_0000.
    cpuid_limits: (u32, u32),
    /// Bits of EFER that the guest may set.
    efer_offered: u64,
    msrs: Msrs,
    uart: Uart,
    /// A byte for the console that it had no room for yet.
    console_input: Option<u8>,
    ioapic: Ioapic,
    rtc: Rtc,
    bus: Bus,
    devices: Vec<Device>,
    pci: Pci,
    /// The last thing refused to the guest while it went on.
    incident: Option<Incident>,
    started: u64,
}

static ENDED: AtomicUsize = AtomicUsize::new(0);

/// Builds the VMs of the boot image, runs them, and ends when the last has ended.
pub fn start(machine: &acpi::Machine, image: &'static [u8]) -> ! {
    if let Err(missing) = svm::supported() {
        refuse(missing);
    }
    if let Err(reason) = iommu::enable(machine) {
        refuse(reason);
    }
    let vms = build::all(machine, image).unwrap_or_else(|reason| refuse(reason));
    let count = vms.len();
    crate::memory::freeze();
    for (core, vm) in vms {
        cpu::run_on(core, enter, Box::into_raw(vm) as usize);
    }
    let mut faults = report::Faults::default();
    console::serve(|| {
        faults.report();
        if ENDED.load(Ordering::Acquire) == count {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    finish()
}

/// A core's life with its VM.
fn enter(vm: usize) -> ! {
    // SAFETY: `start` passes each `Box` of a VM to one core, once.
    let vm = unsafe { &mut *(vm as *mut Vm<SvmCpu>) };
    cpu::this().vm.store(vm.index, Ordering::Relaxed);
    vm.cpu.prepare_core();
    vm.started = rdtsc();
    let stop = vm.run();
    vm.stop_devices();
    vm.cpu.release_core();
    vm.report(stop);
    cpu::this().vm.store(cpu::NO_VM, Ordering::Relaxed);
    ENDED.fetch_add(1, Ordering::Release);
    console::wake();
    cpu::park()
}
