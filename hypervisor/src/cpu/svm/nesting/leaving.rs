//! The exits of L2: told to L1, or the host's to put right.
//!
//! What L1 lets L2 do and the host doesn't let anybody without an exit is done as L1's own
//! (`serving`), or #UD to L2, as it would be to L1.

use super::Nesting;
use super::memory::{InPage, Words, composed};
use crate::cpu::machine_check;
use crate::cpu::svm::SvmCpu;
use delivery::{DeliveryFault, Event, Raised, VectorSet, classify};
use nested::tables::{Access, walk};
use nested::{Owner, Told, host_state};
use paging::{Access as Rights, Mapping};
use svm::Vmcb;
use svm::vmcb::{exit, misc1};
use vendor::{Exit, GuestPages, Inner, Notice, Quirk};

const UNDEFINED: u8 = 6;
const DOUBLE_FAULT: u8 = 8;
const INVALID_TSS: u8 = 10;
const PAGE_FAULT: u8 = 14;
const GENERAL_PROTECTION: u8 = 13;
const ALIGNMENT_CHECK: u8 = 17;
const MACHINE_CHECK: u8 = 18;

/// Bits of EXITINFO1 of a nested page fault.
const FETCH: u64 = 1 << 4;
const TABLE: u64 = 1 << 33;

impl Nesting {
    /// L2 has an exception next.
    fn raise(&mut self, vector: u8, error_code: Option<u32>) {
        self.inner.event_inj = svm::injected(Event::exception(vector, error_code));
    }

    /// L2 used what L1 has at `address`: registers of which L1's own accesses exit, or nothing.
    fn used(&mut self, v01: &mut Vmcb, address: u64, event: Option<Event>) -> Inner {
        let info = self.inner.exit_info1;
        if event.is_some() || info & (FETCH | TABLE) != 0 {
            // Neither gates nor tables nor code are there.
            self.raise(UNDEFINED, None);
            return Inner::Done;
        }
        self.serve(v01, Exit::NestedFault { address, fetch: false, table: false, event: None })
    }

    /// Is it to be seen what an interrupt is before L1 is told? If it is L1's and L1 holds it back,
    /// nothing would tell when no more.
    fn looks_first(&self, v01: &Vmcb) -> bool {
        self.posts.is_some() && !self.nest.control().holds_interrupts(v01, self.inner)
    }

    /// A physical interrupt came that may be nothing to L1.
    #[cold]
    fn interrupted(&mut self, event: Option<Event>) -> Inner {
        self.redeliver(event);
        Inner::Interrupt
    }

    /// Delivers again what was being delivered when L2 was left.
    fn redeliver(&mut self, event: Option<Event>) {
        if let Some(event) = event {
            self.nest.redeliver(self.inner, event);
        }
    }

    /// Writes 12, and puts L1's state in order.
    fn tell(&mut self, v01: &mut Vmcb, code: u32, event: Option<Event>) {
        let Some(page) = self.block.take() else { return };
        // L1 has what is its own before L2 goes on.
        self.taking.since = None;
        let interrupted = event.map_or(0, svm::injected);
        let told = Told::of(self.inner, code, interrupted);
        self.nest.leave(self.inner, &told, &mut InPage(page));
        host_state(v01);
    }

    /// A nested page fault where L1 has nested tables. The code: L1's fault.
    fn fill(
        &mut self,
        v01: &mut Vmcb,
        memory: &dyn GuestPages,
        event: Option<Event>,
    ) -> Result<Inner, u32> {
        let (info, gpa) = (self.inner.exit_info1, self.inner.exit_info2);
        let (cr3, rules) = (self.nest.control().nested_cr3() & !0xFFF, self.rules(v01));
        let walked = match walk(&mut Words(memory), cr3, gpa, Access::of_fault(info), rules) {
            Ok(walked) => walked,
            Err(miss) => match miss.told(info) {
                Some(info) => {
                    self.missed = Some((cr3, gpa));
                    self.inner.exit_info1 = info;
                    return Err(exit::NPF);
                }
                None => {
                    self.redeliver(event);
                    return Ok(Inner::Filled);
                }
            },
        };
        if let Some(at) = self.apic_served_at(gpa) {
            return Ok(self.used(v01, at, event));
        }
        let Some(page) = composed(memory, &self.registers, &walked) else {
            return Ok(Inner::Elsewhere(walked.gpa));
        };
        let Access { write, fetch, .. } = Access::of_fault(info);
        if write && !page.access.contains(Rights::WRITE)
            || fetch && !page.access.contains(Rights::EXECUTE)
        {
            // The host doesn't let L1 itself do that to these registers without an exit.
            return Ok(self.used(v01, walked.gpa, event));
        }
        let page = match self.apic.is_some() {
            true => self.beside_inner_apic(gpa, page),
            false => page,
        };
        match self.shadow.fill(&mut self.frames, cr3, gpa, page) {
            Ok(false) => {}
            Ok(true) => self.inner.tlb_control = 1,
            Err(_) => return Ok(Inner::Unknown(exit::NPF.into(), info, gpa)),
        }
        self.redeliver(event);
        Ok(Inner::Filled)
    }

    /// An exit that L1 didn't ask for.
    fn put_right(
        &mut self,
        (v01, memory, msr): (&mut Vmcb, &dyn GuestPages, u32),
        event: Option<Event>,
        in_service: &dyn Fn(u8) -> bool,
    ) -> Result<Inner, u32> {
        let code = self.inner.exit_code as u32;
        match code {
            exit::INTR => return Ok(Inner::Interrupt),
            exit::NMI => return Ok(Inner::Nmi),
            exit::SHUTDOWN => return Ok(Inner::Shutdown),
            exit::EXCEPTION_BASE..=exit::EXCEPTION_LAST => {
                let vector = (code - exit::EXCEPTION_BASE) as u8;
                return self.exception(vector, event, in_service);
            }
            exit::FERR_FREEZE => {}
            // The host's, for an NMI of L1's.
            exit::IRET => self.inner.intercept_misc1 &= !misc1::IRET,
            // On an emulated CPU alone: see `svm::emulator`.
            exit::DR4_WRITE..=exit::DR7_WRITE => {
                self.debug = Some(self.inner.intercept_dr_write);
                self.inner.intercept_dr_write = self.nest.control().dr_writes();
            }
            exit::RDPMC => self.raise(GENERAL_PROTECTION, Some(0)),
            exit::IOIO
                if svm::port_access(self.inner)
                    .is_some_and(|access| self.open_ports(v01, memory, &access)) =>
            {
                return Ok(Inner::Filled);
            }
            exit::MSR if self.is_inner_register(msr) => {
                let is_write = self.inner.exit_info1 & 1 != 0;
                let exit = if is_write { Exit::MsrWrite } else { Exit::MsrRead };
                return Ok(self.serve(v01, exit));
            }
            exit::CR8_WRITE => {
                return Ok(self.serve(v01, Exit::Emulator(Quirk::TaskPriority)));
            }
            exit::MSR if self.open_msr(v01, memory, msr, self.inner.exit_info1 & 1 != 0) => {
                return Ok(Inner::Filled);
            }
            // L1 has no nested tables.
            exit::NPF => return Ok(self.used(v01, self.inner.exit_info2, event)),
            _ => match svm::instruction(self.inner) {
                Some(exit) => return Ok(self.serve(v01, exit)),
                None => self.raise(UNDEFINED, None),
            },
        }
        Ok(Inner::Done)
    }

    /// An exception that the host intercepts and L1 doesn't: L2's own.
    fn exception(
        &mut self,
        vector: u8,
        event: Option<Event>,
        in_service: &dyn Fn(u8) -> bool,
    ) -> Result<Inner, u32> {
        let (error_code, address) = (self.inner.exit_info1 as u32, self.inner.exit_info2);
        match vector {
            MACHINE_CHECK => return Ok(Inner::MachineCheck),
            INVALID_TSS..=PAGE_FAULT => {
                let raised = Raised { vector, error_code, address };
                match classify(event, raised, &VectorSet::EMPTY, in_service) {
                    DeliveryFault::DoubleFault => self.raise(DOUBLE_FAULT, Some(0)),
                    DeliveryFault::TripleFault if self.nest.control().has(exit::SHUTDOWN) => {
                        return Err(exit::SHUTDOWN);
                    }
                    DeliveryFault::TripleFault => return Ok(Inner::Shutdown),
                    _ => {
                        if vector == PAGE_FAULT {
                            self.inner.cr2 = address;
                        }
                        self.raise(vector, Some(error_code));
                    }
                }
            }
            ALIGNMENT_CHECK => self.raise(vector, Some(error_code)),
            _ => self.raise(vector, None),
        }
        Ok(Inner::Done)
    }
}

impl SvmCpu {
    /// After an exit of L2.
    pub(in crate::cpu::svm) fn left_inner(&mut self, memory: &dyn GuestPages) -> Inner {
        let in_service = self.owns_in_service();
        let msr = self.vcpu.registers.0[1] as u32;
        let v01 = &mut *self.vcpu.vmcb;
        let Some(nesting) = self.nesting.as_deref_mut() else { return Inner::Told };
        if let Some(debug) = nesting.debug.take() {
            nesting.inner.intercept_dr_write = debug;
        }
        let event = svm::inner_event(nesting.inner, &nesting.features, &in_service);
        let took = nesting.apic.is_some() && nesting.note_inner_apic();
        nesting.nest.left(nesting.inner, v01);
        if took && let Some(inner) = nesting.taken(event) {
            return inner;
        }
        let refused = nesting.inner.exit_code as u32 == exit::INVALID;
        if refused && nesting.features.emulated && svm::emulator::mend(nesting.inner) {
            return Inner::Done;
        }
        let maps = nesting.maps(memory);
        let outcome = match nesting.nest.control().owner(
            nesting.inner,
            msr,
            &maps,
            machine_check::in_progress,
        ) {
            // It may be L2's own, which is posted.
            Owner::L1(exit::INTR) if nesting.looks_first(v01) => Ok(nesting.interrupted(event)),
            Owner::L1(code) => Err(code),
            Owner::Tables => nesting.fill(v01, memory, event),
            Owner::Host => nesting.put_right((v01, memory, msr), event, &in_service),
        };
        match outcome {
            Ok(Inner::Done) => self.raised(event),
            Ok(inner) => inner,
            Err(code) => {
                if took {
                    nesting.adopt_in_service();
                }
                nesting.tell(v01, code, event);
                self.told(code);
                Inner::Told
            }
        }
    }

    /// L2 used `at` of L1's, where L1 itself has these registers without an exit, or none. If it
    /// has, L2 tries again, and that puts the translation in; what L1 has in its tables by then
    /// counts.
    #[cold]
    #[inline(never)]
    pub(in crate::cpu::svm) fn registers_of_l1(
        &mut self,
        at: u64,
        found: Option<Mapping>,
    ) -> Inner {
        let in_service = self.owns_in_service();
        let v01 = &mut *self.vcpu.vmcb;
        let Some(nesting) = self.nesting.as_deref_mut() else { return Inner::Done };
        let event = svm::event(nesting.inner, &nesting.features, &in_service);
        match found {
            // The host answers for a device here, or nothing does.
            None => nesting.used(v01, at, event),
            Some(found) => {
                nesting.registers.learn(at, found);
                nesting.redeliver(event);
                Inner::Filled
            }
        }
    }

    /// Leaves L2 for an event of L1's, if L1 intercepts it.
    pub(in crate::cpu::svm) fn notify_inner(&mut self, notice: Notice) -> bool {
        let v01 = &mut *self.vcpu.vmcb;
        let Some(nesting) = self.nesting.as_deref_mut().filter(|n| n.runs_inner()) else {
            return false;
        };
        let control = nesting.nest.control();
        let code = match notice {
            Notice::Interrupt if control.holds_interrupts(v01, nesting.inner) => return false,
            Notice::Interrupt => exit::INTR,
            Notice::Nmi => exit::NMI,
            Notice::Init => exit::INIT,
        };
        if !control.has(code) {
            return false;
        }
        nesting.withdraw_from_inner();
        // What was to be injected and wasn't yet is told as interrupted, for L1 to do it again.
        let event = svm::pending(nesting.inner);
        nesting.inner.event_inj = 0;
        if let Some(debug) = nesting.debug.take() {
            // It was for an entry that isn't made.
            nesting.inner.intercept_dr_write = debug;
        }
        (nesting.inner.exit_info1, nesting.inner.exit_info2) = (0, 0);
        self.tell_late(code, event);
        true
    }

    /// INIT has come: L1's flag is clear, or L1 is told first (APM vol. 2, 15.13.4, 15.17 and
    /// 15.21.8).
    #[cold]
    #[inline(never)]
    pub(in crate::cpu::svm) fn holds_back_init(&mut self) -> bool {
        match self.nesting.as_deref() {
            Some(nesting) if nesting.runs_inner() => nesting.nest.control().has(exit::INIT),
            Some(_) => self.flag_is_clear(),
            None => false,
        }
    }

    /// L2 may have an exception next, which L1 is told if it intercepts it.
    #[cold]
    #[inline(never)]
    fn raised(&mut self, event: Option<Event>) -> Inner {
        match self.nesting.as_deref_mut().and_then(Nesting::intercepted) {
            None => Inner::Done,
            Some(code) => {
                self.tell_late(code, event);
                Inner::Told
            }
        }
    }

    /// Leaves L2 for what it wasn't left for.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_late(&mut self, code: u32, event: Option<Event>) {
        if let Some(nesting) = self.nesting.as_deref_mut() {
            nesting.adopt_in_service();
            nesting.tell(self.vcpu.vmcb, code, event);
        }
        self.told(code);
    }

    /// L1 goes on with its flag clear.
    #[inline(always)]
    fn told(&mut self, code: u32) {
        if code == exit::INTR {
            // Pending still, it would exit at once.
            if !self.guard_told() {
                self.hold();
            }
        } else if self.vcpu.flag() != Some(false) {
            self.clear_flag();
            self.guard_left();
        }
    }
}
