//! Virtual machines: built from the plan on core 0, each vCPU run by the core the plan gives it.
//!
//! Guarantees: everything a VM is made of is allocated before the first guest starts; from
//! then on a VM belongs to its cores, and cores of different VMs share nothing but the console
//! rings, the IOMMU and the list of endings. The vCPUs of a VM share its [`Pc`], behind a lock
//! of its own. A VM that ends gives its devices back silenced, when all its vCPUs are out of the
//! guest.

pub mod build;
mod contents;
pub mod cores;
pub mod counters;
pub mod devices;
pub mod exceptions;
pub mod exits;
pub mod interrupts;
pub mod life;
pub mod memory;
pub mod pc;
mod report;
pub mod stop;
pub mod time_slice;

use crate::cpu::vendor::{Start, VirtualCpu};
use alloc::boxed::Box;
use alloc::string::String;
use contents::Contents;
use core::sync::atomic::AtomicBool;
use delivery::{LocalApic, Mode, VirtualTimer};
use exits::fetch::CodePages;
use interrupts::mailbox::Link;
use interrupts::shadow::Shadow;
use ledger::Page;
use life::Ending;
use memory::Memory;
use pc::Pc;
use platform::msr::Msrs;
use platform::pci::Bus;
use platform::unanswered::Unanswered;
use proto::Policy;
use report::OnceASecond;
use spin::Mutex;

/// Where a guest finds the ledger page of its first vCPU; those of the others follow
/// (CPUID 0x4000_0001 on each).
pub const LEDGER_PAGES: u64 = 0xFED4_0000;

/// A VM: what its vCPUs share.
pub struct Vm {
    pub(crate) index: usize,
    pub(crate) name: String,
    policy: Policy,
    pub(crate) memory: Memory,
    /// One for each vCPU, by its APIC id.
    pub(crate) links: Box<[Link]>,
    pub(crate) pc: Mutex<Pc>,
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
    bus: Bus,
    restarts: bool,
    /// When the log last told of a loop on what isn't there.
    told_unanswered: OnceASecond,
    /// When it last told of a reset by a fault.
    told_restart: OnceASecond,
}

/// A vCPU: what belongs to its core alone.
pub struct Vcpu<C: VirtualCpu> {
    vm: &'static Vm,
    /// Its APIC id and its place among the links.
    id: usize,
    cpu: C,
    start: Start,
    code_pages: CodePages,
    ledger: &'static mut Page,
    /// Its accesses to what isn't there.
    unanswered: Unanswered,

    // Interrupts.
    mode: Mode,
    apic: LocalApic,
    shadow: Shadow,
    /// The virtual interrupt the guest will take at the first chance.
    offered: Option<u8>,
    /// An NMI was asked for, and waits until the guest can take one.
    nmi_waits: bool,
    /// The vector under which the timer's last interrupt waits.
    timer_requested: Option<u8>,
    /// The guest's timer, where the core's isn't its own.
    timer: VirtualTimer,

    msrs: Msrs,
    /// As they are at the start of the VM.
    first_msrs: Msrs,
    started: u64,
}

impl<C: VirtualCpu> Vcpu<C> {
    fn link(&self) -> &'static Link {
        &self.vm.links[self.id]
    }
}
