//! What QEMU's emulation of SVM gets wrong, and what is done about it.
//!
//! Done only where the CPU says that it is QEMU's, here and in `vcpu`. On a real CPU it costs no
//! exit and no instruction of the guest's. What needs an exit is [`vendor::Quirk`], which
//! `vm/exits/emulator.rs` of the hypervisor carries out:
//!
//! - It reports interrupts and NMIs in EXITINTINFO as exceptions: [`true_event`].
//! - It has a virtual interrupt on offer for ever if its delivery fails: what delivery can fail
//!   with exits while one is on offer ([`DELIVERY_FAULTS`]), and #NP always. In a guest of a guest,
//!   where any page may be missing, it is withdrawn ([`withdraw_taken`]).
//! - It lets a virtual interrupt in whose class is the task priority's, and aborts if MOV to CR8
//!   comes with one on offer: one that is held back isn't offered, and MOV to CR8 exits while there
//!   is one ([`vendor::Quirk::TaskPriority`]).
//! - It takes values in DR6 and DR7 that VMRUN refuses: MOV to DR4 to DR7 exits
//!   ([`vendor::Quirk::DebugControl`]); what came in otherwise is taken out ([`mend`]).
//! - It leaves the guest as if it couldn't be entered, where MOV to CR3 or CR4 sets reserved bits:
//!   [`vendor::Quirk::ControlRefused`].
//!
//! - Its timer of a local APIC is late to notice that it has counted down, and forgets that if it
//!   is set first: [`Vcpu::timer_forgets`](crate::Vcpu::timer_forgets) has the host wait until core
//!   0's timer, set later, has expired: QEMU's timers notice in their order.
//!
//! Done on every CPU, by the hypervisor's files (under `hypervisor/src`), since a real one doesn't
//! notice it, or hardly:
//!
//! - It leaves the guest for INVD and WBINVD before it looks at the ring: `vm/exits/run.rs`
//!   (`FlushCaches`) looks at it. A real CPU raises #GP before the exit (APM vol. 2, 15.9): there
//!   is no exit whose ring isn't 0.
//! - It accepts interrupts of vectors below 16, and delivers all but 0: `interrupts/host.rs`
//!   (`drain`) and `vm/interrupts/local_apic/apic_mode.rs` (`take_all_pending`) take them, and
//!   leave
//!   0. On a real CPU no such vector is ever pending: a bit is masked out that is clear.
//! - It delivers a guest's interrupt of vector 2 by the NMI's gate: `interrupts/host.rs`
//!   (`load_tolerant`) has a gate for both, with no stack of its own. On a real CPU vector 2 is an
//!   NMI, and passes for one: one read of the ISR.
//! - Before 10.2 it may lose an NMI that comes at VMRUN: `vm/interrupts/ipi/remote.rs`
//!   (`resend_kick`) has core 0 send it again after half a second. On a real CPU nothing that was
//!   asked is half a second old.
//! - It obeys a delivery mode in the LVT entry of the timer: `maps` opens that entry in no mode. On
//!   a real CPU a guest that writes it has an exit that it wouldn't need.

use crate::events;
use crate::vmcb::{Vmcb, int_ctl, misc1};
use delivery::{Event, EventKind};

/// EBX, ECX, EDX of CPUID 4000_0000 on QEMU's own emulation.
const SIGNATURE: &[u8; 12] = b"TCGTCGTCGTCG";

/// What the delivery of an interrupt can fail with, but #NP, which exits always: #TS, #SS, #GP and
/// #PF, a bit each.
pub const DELIVERY_FAULTS: u32 = 1 << 10 | 1 << 12 | 1 << 13 | 1 << 14;
/// MOV to DR4 to DR7.
pub const DEBUG_CONTROLS: u16 = 0xF0;

/// From here on no vector is an exception's.
const NO_EXCEPTION: u8 = 31;
/// The lowest vector that a local APIC takes for an interrupt.
const FIRST_INTERRUPT: u8 = 16;
const NON_MASKABLE: u8 = 2;

/// Is this QEMU's own emulation?
pub fn is_qemu(signature: [u32; 3]) -> bool {
    let bytes = signature.map(u32::to_le_bytes);
    bytes.as_flattened() == SIGNATURE
}

/// The event that QEMU reports as `reported`. `in_service`: is this vector in service in the local
/// APIC that the guest owns? An exception at the vector of an interrupt that is in service is taken
/// for that interrupt.
pub fn true_event(reported: Event, in_service: impl Fn(u8) -> bool) -> Event {
    match (reported.kind, reported.vector) {
        (EventKind::Exception, NON_MASKABLE) => Event::nmi(),
        (EventKind::Exception, v @ NO_EXCEPTION..) => Event::interrupt(v),
        (EventKind::Exception, v @ FIRST_INTERRUPT..) if in_service(v) => Event::interrupt(v),
        _ => reported,
    }
}

/// The virtual interrupt on offer isn't any more, if the guest was left in its delivery: it was
/// taken, and whoever has the event delivered again would have it delivered twice. Neither `INT n`
/// nor an exception of that vector has taken it, nor can it have been where it exits when it would
/// be.
pub(crate) fn withdraw_taken(vmcb: &mut Vmcb, event: Event) {
    let is_one = event.kind != EventKind::Software && event.vector >= FIRST_INTERRUPT;
    let exits = vmcb.intercept_misc1 & misc1::VINTR != 0;
    if is_one && !exits && events::offered(vmcb) == Some(event.vector) {
        vmcb.int_ctl &= !int_ctl::V_IRQ;
    }
}

/// Takes out of the debug controls what no CPU would have let in. Was there anything? The entry was
/// refused for it, before it flushed anything.
pub fn mend(vmcb: &mut Vmcb) -> bool {
    let (dr6, dr7) = (vmcb.dr6, vmcb.dr7);
    vmcb.dr6 = dr6 & 0xFFFF_FFFF;
    vmcb.dr7 = dr7 & 0xFFFF_FFFF;
    let mended = (dr6 | dr7) >> 32 != 0;
    if mended {
        vmcb.tlb_control = 1;
    }
    mended
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    #[test]
    fn only_qemus_own_emulation_is_meant() {
        let words = |text: &[u8; 12]| {
            core::array::from_fn(|i| u32::from_le_bytes([0, 1, 2, 3].map(|b| text[4 * i + b])))
        };
        assert!(is_qemu(words(b"TCGTCGTCGTCG")));
        assert!(!is_qemu(words(b"KVMKVMKVM\0\0\0")));
        assert!(!is_qemu([0; 3]));
    }

    #[test]
    fn deliveries_fail_with_four_faults_and_four_registers_control_debugging() {
        let faults = (0..32).filter(|vector| DELIVERY_FAULTS >> vector & 1 != 0);
        assert_eq!(faults.collect::<Vec<_>>(), [10, 12, 13, 14]);
        let registers = (0..16).filter(|number| DEBUG_CONTROLS >> number & 1 != 0);
        assert_eq!(registers.collect::<Vec<_>>(), [4, 5, 6, 7]);
    }

    #[test]
    fn an_offer_that_was_taken_is_none() {
        let mut vmcb = Vmcb::new_zeroed();
        events::offer(&mut vmcb, Some(0x50));
        let offered = vmcb.int_ctl;
        // As QEMU reports an interrupt.
        let taken = |vector| Event::exception(vector, None);
        withdraw_taken(&mut vmcb, taken(0x51));
        withdraw_taken(&mut vmcb, Event { kind: EventKind::Software, ..taken(0x50) });
        vmcb.intercept_misc1 = misc1::VINTR;
        withdraw_taken(&mut vmcb, taken(0x50));
        assert_eq!(vmcb.int_ctl, offered);
        vmcb.intercept_misc1 = 0;
        withdraw_taken(&mut vmcb, taken(0x50));
        assert_eq!(vmcb.int_ctl, offered & !(1 << 8));
        // A window, which has no vector, isn't what a #DE has taken.
        events::offer(&mut vmcb, Some(0));
        let offered = vmcb.int_ctl;
        withdraw_taken(&mut vmcb, taken(0));
        assert_eq!(vmcb.int_ctl, offered);
    }

    #[test]
    fn debug_controls_are_mended_once() {
        let mut vmcb = Vmcb::new_zeroed();
        (vmcb.dr6, vmcb.dr7) = (0xFFFF_0FF0, 0x400);
        assert!(!mend(&mut vmcb));
        assert_eq!(vmcb.tlb_control, 0);
        vmcb.dr7 |= 1 << 40;
        assert!(mend(&mut vmcb));
        assert_eq!((vmcb.dr6, vmcb.dr7), (0xFFFF_0FF0, 0x400));
        assert_eq!(vmcb.tlb_control, 1, "what was to be flushed may not have been");
        vmcb.dr6 |= 1 << 32;
        assert!(mend(&mut vmcb) && !mend(&mut vmcb));
        // The same in both.
        (vmcb.dr6, vmcb.dr7) = (1 << 63, 1 << 63);
        assert!(mend(&mut vmcb));
        assert_eq!((vmcb.dr6, vmcb.dr7), (0, 0));
    }

    proptest! {
        /// Whatever happened, QEMU reports an exception.
        #[test]
        fn the_true_event_is_found(vector in FIRST_INTERRUPT.., code: Option<u32>, exception in 0..32u8) {
            let qemu = |event: Event| Event::exception(event.vector, event.error_code);
            let interrupt = Event::interrupt(vector);
            prop_assert_eq!(true_event(qemu(interrupt), |v| v == vector), interrupt);
            prop_assert_eq!(true_event(qemu(Event::nmi()), |_| true), Event::nmi());
            if exception != NON_MASKABLE && exception < NO_EXCEPTION {
                let exception = Event::exception(exception, code);
                prop_assert_eq!(true_event(exception, |_| false), exception);
            }
            let software = Event { kind: EventKind::Software, ..interrupt };
            prop_assert_eq!(true_event(software, |_| true), software);
        }
    }
}
