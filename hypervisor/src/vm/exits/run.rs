//! The loop of a vCPU: enter, find out why it left, put it right, decide the mode, enter.
//!
//! This is ELI at work (paper 4): the decisions are `delivery`'s, here they are carried
//! out. Between an exit and the next entry nothing allocates, nothing waits for another
//! VM, and the work is bounded.

use crate::cpu::vendor::{Entry, Exit, VirtualCpu};
use crate::cpu::{rdtsc, x2apic};
use crate::interrupts;
use crate::vm::Vcpu;
use crate::vm::exceptions::{DOUBLE_FAULT, GENERAL_PROTECTION, NOT_PRESENT, PAGE_FAULT, UNDEFINED};
use crate::vm::interrupts::this_core::in_service;
use crate::vm::stop::{Fault, Stop};
use core::sync::atomic::Ordering;
use delivery::{DeliveryFault, Event, Mode, Raised, VectorSet, classify, mode_for};
use ledger::Reason;

/// INVD; WBINVD is as long, and is found by decoding.
const INVD: [u8; 2] = [0x0F, 0x08];

impl<C: VirtualCpu> Vcpu<C> {
    /// Runs the guest on this core until it ends its VM; `None`: another vCPU did.
    pub(in crate::vm) fn run(&mut self) -> Option<Stop> {
        let (link, mut left) = (self.link(), rdtsc());
        loop {
            if let Some((core, place)) = self.seat()
                && self.mind_turn(core, place)
            {
                // Time without the core isn't the host's.
                left = rdtsc();
            }
            if link.requests() != 0 {
                if !self.attend() {
                    return None;
                }
                // It was away meanwhile, and the timer is set for another; or what it did woke another of
                // its core.
                continue;
            }
            if self.mode != Mode::Dedicated {
                self.prepare();
            }
            if self.nmi_waits {
                self.raise_waiting_nmi();
            }
            let ledger = &mut *self.ledger;
            ledger.entries = ledger.entries.wrapping_add(1);
            ledger.host_cycles = ledger.host_cycles.wrapping_add(rdtsc().wrapping_sub(left));
            if self.cpu.enter(link.last_look()) == Entry::Aborted {
                // No entry, but something is asked for.
                self.ledger.entries = self.ledger.entries.wrapping_sub(1);
                left = rdtsc();
                continue;
            }
            left = rdtsc();
            if self.quick_ipi() {
                self.ledger.count(Reason::Ipi);
                continue;
            }
            let exit = self.cpu.exit();
            self.note_taken();
            match self.handle(exit) {
                Ok(reason) => self.ledger.count(reason),
                Err((reason, stop)) => {
                    self.ledger.count(reason);
                    return Some(stop);
                }
            }
        }
    }

    /// Did the guest take the interrupt it was offered?
    fn note_taken(&mut self) {
        let Some(vector) = self.offered else { return };
        if self.cpu.take_offer() {
            let device = self.link().vectors.lock().devices.contains(vector);
            self.offered = None;
            self.apic.taken(vector);
            self.ledger.injected = self.ledger.injected.wrapping_add(1);
            if self.timer_requested == Some(vector) {
                self.timer_requested = None;
                self.ledger.timer_injected = self.ledger.timer_injected.wrapping_add(1);
            } else if device {
                self.ledger.device_injected = self.ledger.device_injected.wrapping_add(1);
            }
        }
    }

    /// Chooses the mode and offers the next virtual interrupt. A vCPU that owns its APIC has its
    /// mode for good.
    fn prepare(&mut self) {
        if self.owns_apic() {
            return self.change_mode(Mode::Dedicated);
        }
        let sources = self.vm.direct_gains.load(Ordering::Acquire);
        let quiet = self.apic.quiet();
        let hold = core::mem::take(&mut self.shadow.hold);
        let shadowed = match self.seat() {
            Some(_) => self.cpu.long_mode() && !hold,
            None => {
                if quiet && sources && self.shadow.page.is_none() && !hold {
                    self.place_shadow();
                }
                self.shadow.page.is_some()
            }
        };
        let mode = mode_for(quiet, sources, shadowed);
        if mode != self.mode {
            self.change_mode(mode);
        }
        if mode == Mode::Injection {
            self.offer();
        }
    }

    /// Offers the highest virtual interrupt. The CPU compares it with the task priority.
    fn offer(&mut self) {
        let next = self.apic.deliverable();
        if next != self.offered {
            self.offered = next;
            self.cpu.offer_interrupt(next);
        }
    }

    pub(in crate::vm) fn change_mode(&mut self, mode: Mode) {
        if mode == Mode::Injection {
            // Interrupts the guest took itself and hasn't completed: completed here, owed by the
            // guest to the virtual APIC from now on (paper 4.5). All that is in service now is the
            // guest's: the host completes its own at once.
            let mine = in_service();
            for _ in mine.iter() {
                x2apic::eoi();
            }
            self.apic.adopt_in_service(self.to_guest(mine));
        }
        self.cpu.set_mode(mode);
        self.mode = mode;
        if mode != Mode::Injection {
            self.offered = None;
        }
    }

    /// Physical vectors as the guest knows them.
    fn to_guest(&self, physical: VectorSet) -> VectorSet {
        let mut guest = VectorSet::EMPTY;
        for v in physical.iter() {
            if let Some(g) = self.link().guest_vector(v) {
                guest.insert(g);
            }
        }
        guest
    }

    fn handle(&mut self, exit: Exit) -> Result<Reason, (Reason, Stop)> {
        let fault = |reason, fault| Err((reason, Stop::Fault(fault)));
        match exit {
            Exit::Interrupt => {
                self.cpu.take_interrupts();
                Ok(self.receive_taken())
            }
            // What it is for is asked before the next entry.
            Exit::Nmi => Ok(Reason::Kick),
            // So is whether another waits. A frozen CPU goes on freezing until an interrupt comes.
            Exit::NmiDone | Exit::Frozen | Exit::Nothing => Ok(Reason::Other),
            Exit::Fault { raised, event } => self.delivery_fault(raised, event),
            Exit::MachineCheck => fault(Reason::Exception, Fault::MachineCheck),
            Exit::TaskSwitch => fault(Reason::Other, Fault::TaskSwitch),
            Exit::Exception { vector, error_code } => {
                self.cpu.raise(vector, error_code);
                Ok(Reason::Exception)
            }
            Exit::Io { port, size, input, string, next } => {
                self.port_io(port, size, input, string, next)
            }
            Exit::MsrRead => Ok(self.read_msr()),
            Exit::MsrWrite => Ok(self.write_msr()),
            Exit::Cpuid => {
                self.cpuid();
                Ok(Reason::Cpuid)
            }
            Exit::Xsetbv => {
                self.xsetbv();
                Ok(Reason::Xsetbv)
            }
            Exit::IdtLoad => match self.with_pc(|pc, here| pc.leave(here)) {
                Ok(()) => Ok(Reason::IdtLoad),
                Err(f) => fault(Reason::IdtLoad, f),
            },
            Exit::DirectEnds => {
                self.leave_shadow();
                Ok(Reason::Other)
            }
            Exit::Halt => {
                self.halt();
                Ok(Reason::Halt)
            }
            Exit::TaskPriority => match self.load_task_priority() {
                Ok(()) => Ok(Reason::Other),
                Err(f) => fault(Reason::Other, f),
            },
            Exit::ControlLoad => match self.load_control() {
                Ok(()) => Ok(Reason::Other),
                Err(f) => fault(Reason::Other, f),
            },
            Exit::FlushCaches => {
                self.skip(&INVD);
                Ok(Reason::Other)
            }
            Exit::Hypercall => {
                self.cpu.raise(UNDEFINED, None);
                Ok(Reason::Hypercall)
            }
            Exit::Undefined => {
                self.cpu.raise(UNDEFINED, None);
                Ok(Reason::RefusedInstruction)
            }
            Exit::Forbidden => {
                self.cpu.raise(GENERAL_PROTECTION, Some(0));
                Ok(Reason::RefusedInstruction)
            }
            Exit::NestedFault { address, fetch, table, event } => {
                self.nested_fault(address, fetch, table, event)
            }
            Exit::Shutdown => fault(Reason::Shutdown, Fault::Shutdown),
            Exit::ControlRefused if self.refused_load() => Ok(Reason::Other),
            Exit::ControlRefused | Exit::InvalidState => fault(Reason::Other, Fault::InvalidState),
            Exit::Unknown(code, info1, info2) => {
                fault(Reason::Other, Fault::Unknown(code, info1, info2))
            }
        }
    }

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
    fn delivery_fault(
        &mut self,
        raised: Raised,
        event: Option<Event>,
    ) -> Result<Reason, (Reason, Stop)> {
        let in_service = |v| x2apic::in_service(v);
        // On a shared core it is the mode that hides them: in injection mode the gate is the guest's.
        let own_gates = self.seat().is_some() && self.mode == Mode::Injection;
        let hidden = if own_gates { &VectorSet::EMPTY } else { &self.shadow.hidden };
        let mut what = classify(event, raised, hidden, in_service);
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
            DeliveryFault::HiddenGate(_) => match self.with_pc(|pc, here| pc.drop_all(here)) {
                Ok(()) => {
                    self.redeliver(event);
                    Ok(Reason::Exception)
                }
                Err(f) => Err((Reason::Exception, Stop::Fault(f))),
            },
            DeliveryFault::DoubleFault => {
                self.cpu.raise(DOUBLE_FAULT, Some(0));
                Ok(Reason::Exception)
            }
            DeliveryFault::TripleFault => Err((Reason::Shutdown, Stop::Fault(Fault::Shutdown))),
            DeliveryFault::Genuine { error_code, interrupt } => {
                // An exception may have its vector; but it wasn't taken with interrupts off.
                let open = self.cpu.interrupts_enabled();
                if let Some(v) = interrupt.filter(|v| open && self.cpu.delivers(*v)) {
                    self.offered = None;
                    self.cpu.offer_interrupt(None);
                    self.apic.taken(v);
                }
                if raised.vector == PAGE_FAULT {
                    self.cpu.raise_page_fault(raised.address, error_code);
                } else {
                    self.cpu.raise(raised.vector, Some(error_code));
                }
                Ok(Reason::Exception)
            }
        }
    }

    /// Hands on what the host's interrupt handler recorded. When a tick and a device's interrupt
    /// came together the exit is the device's: without the tick it would have been all the same.
    pub(in crate::vm) fn receive_taken(&mut self) -> Reason {
        let mut taken = VectorSet::EMPTY;
        for v in interrupts::take() {
            taken.insert(v);
        }
        let mut reason = Reason::HostInterrupt;
        for v in taken.iter() {
            let r = self.receive(v);
            if reason != Reason::DeviceInterrupt {
                reason = r;
            }
        }
        reason
    }

    /// The guest's timer fired. In direct mode the physical local APIC gives it to the guest
    /// with the guest's own vector (SELF_IPI): it takes and completes it like a device's, without
    /// the exit for the EOI and without the time in injection mode, in which devices' interrupts
    /// exit too. The paper's hardware had no x2APIC to do that with.
    pub(in crate::vm) fn give_timer(&mut self, vector: u8) {
        if self.can_post(vector) {
            x2apic::self_ipi(vector);
            self.ledger.injected = self.ledger.injected.wrapping_add(1);
            self.ledger.timer_injected = self.ledger.timer_injected.wrapping_add(1);
        } else {
            self.timer_requested = Some(vector);
            self.apic.request(vector);
        }
    }

    /// Can the physical local APIC deliver this vector to the guest right now? Vectors 16 to 31 are
    /// legal for interrupts, but where direct mode can end the host would take one that comes back
    /// to it for an exception.
    pub(in crate::vm) fn can_post(&self, vector: u8) -> bool {
        match self.mode {
            Mode::Dedicated => true,
            Mode::Direct => vector >= 32 && !self.shadow.hidden.contains(vector),
            Mode::Injection => false,
        }
    }

    /// A physical interrupt, completed in the local APIC, goes to whom it is for.
    fn receive(&mut self, vector: u8) -> Reason {
        if let Some((core, place)) = self.seat() {
            return self.receive_shared(core, place, vector);
        }
        if vector == interrupts::TIMER {
            if let Some(v) = self.apic.timer_vector() {
                self.give_timer(v);
            }
            return Reason::TimerInterrupt;
        }
        let guest = self.link().guest_vector(vector);
        match guest {
            Some(v) => {
                self.apic.request(v);
                self.reason_of(v)
            }
            None => Reason::HostInterrupt,
        }
    }

    /// What an interrupt that the host took for the guest was: a device's, or one that the host
    /// had posted for the guest and that came back because direct mode ended meanwhile.
    pub(in crate::vm) fn reason_of(&self, vector: u8) -> Reason {
        if self.link().vectors.lock().devices.contains(vector) {
            Reason::DeviceInterrupt
        } else if self.apic.timer_vector() == Some(vector) {
            Reason::TimerInterrupt
        } else {
            Reason::HostInterrupt
        }
    }
}
