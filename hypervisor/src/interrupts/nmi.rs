//! NMIs: kicks of other cores, an IOMMU's fault interrupt where the plan has it come as NMI, and
//! the platform's own.
//!
//! Guarantees: an NMI of the platform is reported in the log, at most one line a second, with the
//! reason that the platform gives at port 0x61. The platform's NMIs go to core 0, which nobody
//! kicks. Elsewhere one without a reason may pass for a kick ([`Kicks`](delivery::Kicks)). The
//! handler does all of it, wherever it comes, and neither locks nor logs: core 0 does.

use super::WAKE;
use crate::cpu::{self, PerCpu, port, rdtsc, x2apic};
use crate::log_limit::OnceASecond;
use core::sync::atomic::{AtomicU32, Ordering};
use delivery::NmiSource;
use spin::Once;

/// NMI status and control of a PC: why the platform sent one, and whether it may.
const STATUS: u16 = 0x61;
const SERR: u8 = 1 << 7;
const IOCHK: u8 = 1 << 6;
/// Set, they clear the reasons, and keep new ones from coming.
const NO_SERR: u8 = 1 << 2;
const NO_IOCHK: u8 = 1 << 3;
/// Bits that are to be written as they are read.
const KEPT: u8 = 0b11;

/// NMIs of the platform that core 0 hasn't reported, and their reasons.
static PLATFORM: AtomicU32 = AtomicU32::new(0);
static REASONS: AtomicU32 = AtomicU32::new(0);

/// Asked for each NMI: is it one that an IOMMU sent by the plan, and that was seen to?
static EXPECTED: Once<fn() -> bool> = Once::new();

/// While booting: names whom to ask whether an NMI is an expected one.
pub fn on_nmi(expected: fn() -> bool) {
    EXPECTED.call_once(|| expected);
}

/// This core is to look at what it is asked for.
pub(super) fn look(cpu: &PerCpu) {
    cpu.nmi_pending.store(true, Ordering::Release);
}

/// The reasons that a status gives. A masked one is none: where nothing answers at the port, as in
/// a VM, all bits are set.
fn reasons(status: u8) -> u8 {
    let of = |reason, mask| if status & mask == 0 { status & reason } else { 0 };
    of(SERR, NO_SERR) | of(IOCHK, NO_IOCHK)
}

/// One arrived on this core. Called by its handler.
pub(super) fn arrived(cpu: &PerCpu) {
    look(cpu);
    let source = cpu.kicks.arrived();
    let expected = EXPECTED.get().is_some_and(|expected| expected());
    if source == NmiSource::Kick || expected {
        return;
    }
    let status = port::read8(STATUS);
    let reasons = reasons(status);
    if reasons != 0 {
        port::write8(STATUS, status & KEPT | NO_SERR | NO_IOCHK);
    } else if source == NmiSource::MaybeKick {
        return;
    }
    REASONS.fetch_or(u32::from(reasons), Ordering::Relaxed);
    PLATFORM.fetch_add(1, Ordering::Release);
    if let Some(host) = cpu::get(0) {
        x2apic::send_ipi(host.apic_id, WAKE);
    }
}

/// Core 0, from its loop: reports the platform's. Those that come within a second of a line are
/// counted in the next.
pub fn report() {
    static LIMIT: OnceASecond = OnceASecond::new();
    if PLATFORM.load(Ordering::Relaxed) == 0 || !LIMIT.claim(rdtsc()) {
        return;
    }
    let count = PLATFORM.swap(0, Ordering::Acquire);
    let reason = match REASONS.swap(0, Ordering::Relaxed) as u8 {
        0 => "port 0x61 gives no reason",
        SERR => "an error on PCI (SERR#), masked from now on",
        IOCHK => "an error of an I/O channel (IOCHK#), masked from now on",
        _ => "errors on PCI (SERR#) and of an I/O channel (IOCHK#), masked from now on",
    };
    log::error!("NMIs that no core sent: {count}; {reason}");
}
