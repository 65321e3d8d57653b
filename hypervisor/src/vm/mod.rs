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
pub mod cores;
pub mod counters;
pub mod devices;
pub mod exceptions;
pub mod exits;
mod here;
pub mod interrupts;
pub mod life;
pub mod memory;
pub mod pc;
mod report;
mod residency;
pub mod shared_core;
pub mod stop;

use crate::cpu::vendor::{Start, VirtualCpu};
use alloc::boxed::Box;
use alloc::string::String;
use contents::Contents;
use core::sync::atomic::AtomicBool;
use delivery::LocalApic;
use devices::bus::BusMap;
use exits::fetch::CodePages;
use exits::msr::MsrState;
use interrupts::mode::DeliveryMode;
use interrupts::remote::VcpuRemote;
use interrupts::shadow::Shadow;
use interrupts::timer::GuestTimer;
use ledger::Page;
use life::Ending;
use memory::Memory;
use pc::Pc;
use proto::Policy;
use report::OnceASecond;
use residency::CoreSlot;
use spin::Mutex;
use virtual_pc::unanswered::Unanswered;

/// Where a guest finds the ledger page of its first vCPU; those of the others follow
/// (CPUID 0x4000_0001 on each).
pub const LEDGER_PAGES: u64 = 0xFEB0_0000;

/// A VM: what its vCPUs share.
pub struct Vm {
    pub(crate) index: usize,
    pub(crate) name: String,
    policy: Policy,
    pub(crate) memory: Memory,
    /// One for each vCPU, by its APIC id.
    pub(crate) remotes: Box<[VcpuRemote]>,
    pub(crate) pc: Mutex<Pc>,
    bus: BusMap,
    /// Taking interrupts itself would gain the guest something: the policy lets it, and some source of an
    /// assigned device is routed.
    direct_gains: AtomicBool,
    /// EAX of the physical CPUID leaves 0 and 0x8000_0000.
    cpuid_limits: (u32, u32),
    /// Bits of EFER that the guest may set.
    efer_offered: u64,
    pub(crate) ending: Ending,

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
    /// What other cores reach of it.
    remote: &'static VcpuRemote,
    slot: CoreSlot,
    start: Start,
    code_pages: CodePages,
    ledger: &'static mut Page,
    /// Its accesses to what isn't there.
    unanswered: Unanswered,

    // Interrupts.
    mode: DeliveryMode,
    /// An NMI was asked for, and waits until the guest can take one.
    nmi_waits: bool,
    apic: LocalApic,
    shadow: Shadow,
    timer: GuestTimer,

    msrs: MsrState,
    started: u64,
}
