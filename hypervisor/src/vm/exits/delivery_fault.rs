//! Faults that the delivery of an event to the guest may have caused, and events to deliver again.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic;
use crate::vm::Vcpu;
use crate::vm::exceptions::{DOUBLE_FAULT, NOT_PRESENT, PAGE_FAULT};
use crate::vm::stop::{Fault, Stop};
use delivery::{DeliveryFault, Event, Raised, classify};
use ledger::Reason;

impl<C: VirtualCpu> Vcpu<C> {
    /// Delivers again what was being delivered, unless it is still on offer: whether the
    /// hardware takes an offer back when its delivery fails differs.
    #[cold]
    pub(in crate::vm) fn redeliver(&mut self, event: Option<Event>) {
        if let Some(event) = event.filter(|e| e.software() || !self.cpu.delivers(e.vector)) {
            self.cpu.redeliver(event);
        }
    }

    /// A fault that the delivery of an event may have caused. Rare, and large: kept out of the way.
    #[cold]
    pub(in crate::vm) fn delivery_fault(
        &mut self,
        raised: Raised,
        event: Option<Event>,
    ) -> Result<Reason, (Reason, Stop)> {
        let in_service = |v| x2apic::in_service(v);
        let mut what = classify(event, raised, &self.hidden_gates(), in_service);
        // The gate's own absence has this error code, whether EXT is set or not.
        let absent =
            |v: u8| raised.vector == NOT_PRESENT && raised.error_code & !1 == u32::from(v) * 8 + 2;
        if let DeliveryFault::Genuine { .. } = what
            && let Some(vector) = event.map(|e| e.vector).filter(|v| absent(*v))
            && self.missed_in_shadow(vector)
        {
            what = DeliveryFault::HiddenGate(vector);
        }
        match what {
            DeliveryFault::Reflected(vector) => {
                // The host takes it as if it had come by its own IDT; a host vector outranks all of
                // the guest's, so this completes it and nothing else.
                x2apic::eoi();
                Ok(self.receive(vector))
            }
            DeliveryFault::Spurious => Ok(Reason::HostInterrupt),
            DeliveryFault::HiddenGate(_) => {
                match self.with_pc(|pc, cx| pc.board_mut().drop_shadows(cx)) {
                    Ok(()) => {
                        self.redeliver(event);
                        Ok(Reason::Exception)
                    }
                    Err(f) => Err((Reason::Exception, Stop::Fault(f))),
                }
            }
            DeliveryFault::DoubleFault => {
                self.cpu.inject(DOUBLE_FAULT, Some(0));
                Ok(Reason::Exception)
            }
            DeliveryFault::TripleFault => Err((Reason::Shutdown, Stop::Fault(Fault::Shutdown))),
            DeliveryFault::Genuine { error_code, interrupt } => {
                // An exception may have its vector; but it wasn't taken with interrupts off.
                let open = self.cpu.interrupts_enabled();
                if let Some(v) = interrupt.filter(|v| open && self.cpu.delivers(*v)) {
                    self.offer_failed(v);
                }
                if raised.vector == PAGE_FAULT {
                    self.cpu.inject_page_fault(raised.address, error_code);
                } else {
                    self.cpu.inject(raised.vector, Some(error_code));
                }
                Ok(Reason::Exception)
            }
        }
    }
}
