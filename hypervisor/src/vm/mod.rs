//! Virtual machines: built from the plan on core 0, each vCPU run by the core the plan gives it.
//!
//! Guarantees: everything a VM is made of is allocated before the first guest starts; from
//! then on a VM belongs to its cores, and cores of different VMs share nothing but the console
//! rings, the IOMMU and the list of endings. The vCPUs of a VM share its [`Pc`], behind a lock
//! of its own. A VM that ends gives its devices back silenced, when all its vCPUs are out of the
//! guest.

mod board;
pub mod build;
mod contents;
pub mod core_sharing;
pub mod counters;
pub mod devices;
pub mod ending;
pub mod exceptions;
mod exit_context;
pub mod exits;
pub mod guest;
pub mod interrupts;
pub mod life;
pub mod memory;
mod offered;
pub mod pc;
mod pc_access;
mod report;
pub mod stop;

use crate::cpu::vendor::{Start, VirtualCpu};
use crate::iommu::guest::GuestIommu;
use crate::log_limit::OnceASecond;
use crate::sidecore::port::Port;
use alloc::vec::Vec;
use contents::Contents;
use core_sharing::core_slot::CoreSlot;
use delivery::LocalApic;
use devices::bus_map::BusMap;
use ending::Ending;
use exits::code_pages::CodePages;
use exits::msr_state::MsrState;
use guest::Guest;
use interrupts::injection::delivery_mode::DeliveryMode;
use interrupts::ipi::remote::VcpuRemote;
use interrupts::shadow_idt::vcpu_shadow::Shadow;
use interrupts::timer::guest_timer::GuestTimer;
use interrupts::waits::Waits;
use ledger::Page;
use offered::Offered;
use pc::Pc;
use proto::ServedDevice;
use spin::Mutex;
use virtual_pc::unanswered::Unanswered;

/// Where a guest finds the ledger page of its first vCPU; those of the others follow
/// (CPUID 0x4000_0001 on each).
pub const LEDGER_PAGES: u64 = 0xFEB0_0000;

/// A VM: what its vCPUs share. The guest is first, so that its address is the VM's and costs
/// nothing.
#[repr(C)]
pub struct Vm {
    pub(crate) guest: Guest,
    pub(crate) pc: Mutex<Pc>,
    bus: BusMap,
    /// EAX of the physical CPUID leaves 0 and 0x8000_0000.
    cpuid_limits: (u32, u32),
    /// Bits of EFER that the guest may set.
    efer_offered: u64,
    /// What it is offered besides, if it may run guests of its own.
    nesting: Option<Offered>,
    pub(crate) ending: Ending,

    /// Its disks and networks, as sidecores serve them.
    served: Vec<(ServedDevice, &'static Port)>,
    /// The IOMMU that it has itself.
    pub(crate) iommu: Option<&'static GuestIommu>,

    // As it starts, and starts again.
    contents: Contents,
    restarts: bool,
    /// When the log last had a line about a loop on what isn't there.
    told_unanswered: OnceASecond,
    /// When it last had one about a reset by a fault.
    told_restart: OnceASecond,
}

/// A vCPU: what belongs to its core alone.
pub struct Vcpu<C: VirtualCpu> {
    vm: &'static Vm,
    /// Its APIC id and its place among the remotes.
    id: usize,
    cpu: C,
    /// The part of it that other cores reach.
    remote: &'static VcpuRemote,
    slot: CoreSlot,
    start: Start,
    code_pages: CodePages,
    /// The registers of `cpu` are its inner guest's, which does something as the guest's own.
    serves: bool,
    ledger: &'static mut Page,
    /// Its accesses to what isn't there.
    unanswered: Unanswered,

    // Interrupts.
    mode: DeliveryMode,
    waits: Waits,
    apic: LocalApic,
    shadow: Shadow,
    timer: GuestTimer,

    msrs: MsrState,
    started: u64,
}
