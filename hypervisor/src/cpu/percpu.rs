//! The state of one physical CPU, found through its GS base.
//!
//! Guarantees: from [`install`] on, [`this`] is the running core's own state, in
//! interrupt handlers too. It doesn't hold between #VMEXIT and the VMLOAD of the
//! host's state, where GS is the guest's; [`find`] does.

use super::{control, msr, x2apic};
use crate::console::Ring;
use alloc::boxed::Box;
use core::{
    arch::asm,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
use delivery::Kicks;
use spin::Once;

/// In [`PerCpu::vm`]: this core runs no VM.
pub const NO_VM: usize = usize::MAX;

/// Room for the log lines and records of a core until core 0 sends them.
const MESSAGES: usize = 8192;

/// One physical CPU.
#[repr(C)]
pub struct PerCpu {
    /// Its own address, for `gs:[0]`.
    address: AtomicUsize,
    /// 0 is the boot CPU; dense.
    pub index: usize,
    /// Interrupts are sent to this id.
    pub apic_id: u32,
    /// Index of the VM that this core runs, or [`NO_VM`]; panics name it.
    pub vm: AtomicUsize,
    /// Highest address of the stack that work starts on.
    pub stack_top: u64,
    /// NMIs that other cores sent it.
    pub(crate) kicks: Kicks,
    /// An NMI arrived, and the core hasn't looked since for what it is to do.
    pub(crate) nmi_pending: AtomicBool,
    /// Interrupts that arrived in the host, one bit per vector.
    pub(crate) noted: [AtomicU64; 4],
    /// What `interrupts::acknowledge` waits for, and what it got.
    pub(crate) acknowledged: AtomicU32,
    /// Inside `memory::while_reporting`.
    pub(crate) reporting: AtomicBool,
    /// A `fn(usize) -> !` that this core is to run, or 0, and its argument.
    pub(super) work: AtomicUsize,
    pub(super) argument: AtomicUsize,
    /// Ready for work.
    pub(super) parked: AtomicBool,
    /// Its TSC when it started; 0 on core 0.
    pub(super) started_at: AtomicU64,
    /// Its TSC isn't core 0's.
    pub(super) apart: AtomicBool,
    /// Firmware has locked its virtualisation off.
    pub(super) locked_off: AtomicBool,
    /// Since when a guest of its guest's takes interrupts itself, by the TSC; 0: none does.
    taking_since: AtomicU64,
    /// Log lines and records for core 0 to send.
    pub(crate) messages: Ring,
}

impl PerCpu {
    /// State of a core that hasn't started yet.
    pub fn new(index: usize, apic_id: u32, stack_top: u64) -> &'static PerCpu {
        let cpu: &'static PerCpu = Box::leak(Box::new(PerCpu {
            address: AtomicUsize::new(0),
            index,
            apic_id,
            vm: AtomicUsize::new(NO_VM),
            stack_top,
            kicks: Kicks::new(),
            nmi_pending: AtomicBool::new(false),
            noted: [const { AtomicU64::new(0) }; 4],
            acknowledged: AtomicU32::new(0),
            reporting: AtomicBool::new(false),
            work: AtomicUsize::new(0),
            argument: AtomicUsize::new(0),
            parked: AtomicBool::new(false),
            started_at: AtomicU64::new(0),
            apart: AtomicBool::new(false),
            locked_off: AtomicBool::new(false),
            taking_since: AtomicU64::new(0),
            messages: Ring::new(MESSAGES),
        }));
        cpu.address.store(core::ptr::from_ref(cpu) as usize, Ordering::Relaxed);
        cpu
    }

    /// Whether it is ready for work: while booting, whether it started.
    pub fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Acquire)
    }

    /// Whether it can run guests, by what its firmware left: each core has a register of its own
    /// that says so.
    pub fn may_run_guests(&self) -> bool {
        !self.locked_off.load(Ordering::Relaxed)
    }

    /// Whether its TSC is core 0's, as far as was seen when it started.
    pub fn has_common_tsc(&self) -> bool {
        !self.apart.load(Ordering::Relaxed)
    }

    /// Sends it an NMI, for it to leave its guest, or a sleep, and look at what it is asked for.
    pub fn kick(&self) {
        self.kicks.count();
        x2apic::send_nmi(self.apic_id);
    }

    /// A guest of its guest's takes interrupts itself from this time on, or doesn't (0).
    #[inline]
    pub fn set_taking_since(&self, time: u64) {
        self.taking_since.store(time, Ordering::Relaxed);
    }

    /// Core 0, now and then: such a guest that wasn't left for long is, once: it may hold back what
    /// is for others.
    pub fn watch_taking(&self, now: u64) {
        let (since, long) = (self.taking_since.load(Ordering::Relaxed), taken_at_most());
        let how = (Ordering::Relaxed, Ordering::Relaxed);
        if since != 0
            && now.saturating_sub(since) > long
            && self.taking_since.compare_exchange(since, 0, how.0, how.1).is_ok()
        {
            self.kick();
        }
    }

    /// It is about to look at what it is asked for.
    pub fn forget_nmi(&self) {
        self.nmi_pending.store(false, Ordering::Release);
    }
}

static ALL: Once<Box<[&'static PerCpu]>> = Once::new();

/// Makes every core known, the boot CPU first.
pub(super) fn publish(cpus: Box<[&'static PerCpu]>) {
    ALL.call_once(|| cpus);
}

/// How long a guest of a guest's takes its interrupts itself at a stretch, in ticks of the TSC: two
/// milliseconds.
pub fn taken_at_most() -> u64 {
    super::tsc_hz() / 500
}

/// How many cores there are; 1 until all are known.
pub fn count() -> usize {
    ALL.get().map_or(1, |all| all.len())
}

/// The core of that index, if there is one and all are known.
pub fn get(index: usize) -> Option<&'static PerCpu> {
    ALL.get()?.get(index).copied()
}

/// Every core, once all are known.
pub fn all() -> impl Iterator<Item = &'static PerCpu> {
    ALL.get().into_iter().flatten().copied()
}

/// The core this runs on, found without GS: for panics.
pub fn find() -> Option<&'static PerCpu> {
    let id = control::apic_id();
    all().find(|cpu| cpu.apic_id == id)
}

/// Makes `cpu` the state of the core this runs on.
pub fn install(cpu: &'static PerCpu) {
    let address = cpu.address.load(Ordering::Relaxed) as u64;
    // SAFETY: long mode has this register; nothing but `this` uses GS.
    unsafe { msr::write(msr::GS_BASE, address) };
}

/// The core this runs on.
#[inline]
pub fn this() -> &'static PerCpu {
    let cpu: *const PerCpu;
    // SAFETY: GS points to this core's state from its first Rust code on, and
    // the state's first field is its own address.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) cpu, options(nostack, readonly, preserves_flags, pure));
        &*cpu
    }
}
