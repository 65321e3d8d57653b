//! L2 takes and completes the interrupts itself that devices post to it: ELI, beneath an L1 that
//! has AVIC.
//!
//! It does while all that devices post on this core is for its backing page, nothing that L1 has
//! put into that waits or is in service, its own virtual GIF is set, and L1 lets it complete its
//! interrupts. Then no physical interrupt leaves it, the limit of its IDT keeps the vectors of the
//! host's class from it, by which all others come, L1's own among them, and its EOI is the core's.
//!
//! Guarantees: a vector of another's never comes to a gate of L2's, wherever its IDT lies: it
//! raises #GP, which exits; one that is posted to another L2 comes while none takes its own itself.
//! What L2 has in service when L1 goes on, or when it is to have an interrupt of L1's making, is in
//! service in its backing page from then on, and nowhere else.
//!
//! An L2 that holds interrupts back by its IF has its exits for them again after some milliseconds,
//! whatever exits it has meanwhile. Doesn't guarantee that one without exits is left for them: core
//! 0 looks after that ([`PerCpu::watch_taking`](crate::cpu::PerCpu::watch_taking)).

use super::Nesting;
use super::apic::EOI_MSR;
use super::inner_apic::Kept;
use super::instructions::CR8;
use crate::cpu::{rdtsc, taken_at_most, this, tsc_hz, x2apic};
use delivery::{DeliveryFault, Event, FIRST_RESERVED, GATE_BYTES, Raised, VectorSet, classify};
use svm::vmcb::{exit, int_ctl, misc1, misc2};
use vendor::{Inner, PostedTo};

/// The limit of an IDT that has no gate of the host's class.
const CUT: u32 = FIRST_RESERVED as u32 * GATE_BYTES as u32 - 1;
/// What would show that, or end it unseen.
const WATCHED: u32 = misc1::LIDT | misc1::SIDT;
const GENERAL_PROTECTION: u32 = 13;
const EFER_LMA: u64 = 1 << 10;
/// The word of a map of MSRs that has EOI, and the bit of a write.
const EOI: (usize, u64) = (EOI_MSR as usize * 2 / 64, 1 << (EOI_MSR * 2 % 64 + 1));
/// Interrupts that can be in service at once, one of each class.
const MOST_IN_SERVICE: usize = 16;

impl Nesting {
    /// Before an entry: L2 is to take its interrupts itself, if nothing is against it. False: it
    /// isn't, and what is in service is in its page.
    pub(super) fn take_itself(&mut self) -> bool {
        let now = rdtsc();
        let since = *self.taking.since.get_or_insert(now);
        // Exits in between are no reason to wait longer: what is for others may have come before.
        let long = now.wrapping_sub(since) > taken_at_most();
        let Some(priority) = self.priority_to_take().filter(|_| !long) else {
            self.taking.since = None;
            self.adopt_in_service();
            return false;
        };
        // What L2 reads of CR8 is the core's meanwhile; the host's vectors are of a higher class.
        if priority != 0 {
            x2apic::set_tpr(priority << 4);
        }
        let v = &mut *self.inner;
        self.taking.kept = Some(Kept {
            misc1: v.intercept_misc1,
            misc2: v.intercept_misc2,
            exceptions: v.intercept_exceptions,
            cr_writes: v.intercept_cr_write,
            int_ctl: v.int_ctl,
            limit: v.idtr.limit,
            has_priority: priority != 0,
        });
        self.taking.owns = true;
        this().set_taking_since(since);
        v.intercept_misc1 = v.intercept_misc1 & !misc1::INTR | WATCHED;
        v.intercept_misc2 |= misc2::CLGI;
        v.intercept_exceptions |= 1 << GENERAL_PROTECTION;
        v.intercept_cr_write |= CR8;
        v.int_ctl &= !(int_ctl::V_INTR_MASKING | int_ctl::OFFER | int_ctl::V_TPR);
        v.idtr.limit = v.idtr.limit.min(CUT);
        if let Some(word) = self.msrs.get_mut(EOI.0) {
            *word &= !EOI.1;
        }
        true
    }

    /// L2's task priority, if nothing is against it that L2 takes its interrupts itself.
    fn priority_to_take(&mut self) -> Option<u8> {
        const HAS_FLAG: u64 = int_ctl::V_GIF_ENABLE;
        let not_now = core::mem::take(&mut self.taking.not_now);
        let (posts, apic) = (self.posts?, self.apic.as_ref()?);
        let word = posts.look();
        if self.taking.posted != word {
            (self.taking.posted, self.taking.unsettled) = (word, Some(rdtsc()));
        }
        if self.taking.unsettled.is_some_and(is_settled) {
            self.taking.unsettled = None;
        }
        let v = &*self.inner;
        let possible = !not_now
            && PostedTo::is_for(word, apic.avic.page)
            && self.taking.unsettled.is_none()
            && svm::pending(v).is_none_or(|event| event.vector < 32)
            && v.int_ctl & (HAS_FLAG | int_ctl::V_GIF) != HAS_FLAG
            && v.efer & EFER_LMA != 0;
        possible.then(|| apic.quiet_priority()).flatten()
    }

    /// After an exit, or instead of an entry: 02 is as it was. Did L2 take its interrupts itself?
    pub(in crate::cpu::svm) fn end_taking(&mut self) -> bool {
        let Some(kept) = self.taking.kept.take() else { return false };
        this().set_taking_since(0);
        let v = &mut *self.inner;
        (v.intercept_misc1, v.intercept_misc2) = (kept.misc1, kept.misc2);
        v.intercept_exceptions = kept.exceptions;
        (v.intercept_cr_write, v.int_ctl) = (kept.cr_writes, kept.int_ctl);
        v.idtr.limit = kept.limit;
        if kept.has_priority {
            x2apic::set_tpr(0);
        }
        if let Some(word) = self.msrs.get_mut(EOI.0) {
            *word |= EOI.1;
        }
        true
    }

    /// An exit that is for how L2 took its interrupts, and not for what it did.
    pub(super) fn taken(&mut self, event: Option<Event>) -> Option<Inner> {
        let code = self.inner.exit_code as u32;
        match code {
            exit::NMI => {
                // Whatever that is for, it may be for what L2 holds back.
                self.taking.not_now = true;
                None
            }
            exit::IDTR_READ | exit::IDTR_WRITE | exit::CR8_WRITE
                if !self.nest.control().has(code) =>
            {
                Some(self.again())
            }
            // Nobody else has L2 left for it.
            exit::CLGI if self.inner.intercept_misc2 & misc2::CLGI == 0 => Some(self.again()),
            _ if code == exit::EXCEPTION_BASE + GENERAL_PROTECTION => {
                let (error_code, address) = (self.inner.exit_info1 as u32, 0);
                let raised = Raised { vector: GENERAL_PROTECTION as u8, error_code, address };
                match classify(event, raised, &reserved(), x2apic::in_service) {
                    DeliveryFault::Reflected(vector) => {
                        // As if it had come by the host's own IDT.
                        x2apic::eoi();
                        Some(Inner::Arrived(vector))
                    }
                    DeliveryFault::Spurious => Some(Inner::Filled),
                    DeliveryFault::HiddenGate(_) => Some(self.again()),
                    // L2's own.
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// L2 executes it again, and doesn't take its interrupts itself meanwhile.
    fn again(&mut self) -> Inner {
        self.taking.not_now = true;
        Inner::Filled
    }

    /// What L2 has in service in the core's local APIC is in its page from here on.
    #[inline(always)]
    pub(super) fn adopt_in_service(&mut self) {
        if self.taking.owns {
            self.adopt_all();
        }
    }

    #[cold]
    #[inline(never)]
    fn adopt_all(&mut self) {
        self.taking.owns = false;
        for _ in 0..MOST_IN_SERVICE {
            let words = x2apic::in_service_bitmap();
            let own =
                VectorSet::from_registers(|n| words.get(usize::from(n)).copied().unwrap_or(0));
            let Some(vector) = own.highest().filter(|v| *v < FIRST_RESERVED) else { break };
            if let Some(apic) = &self.apic {
                apic.adopt(vector);
            }
            x2apic::eoi();
        }
    }
}

/// Is nothing of another page's on its way any more that was sent before this time?
#[cold]
fn is_settled(since: u64) -> bool {
    let words = x2apic::request_bitmap();
    let own = VectorSet::from_registers(|n| words.get(usize::from(n)).copied().unwrap_or(0));
    let arrives = tsc_hz() / 1_000_000 * x2apic::MESSAGE_US;
    rdtsc().wrapping_sub(since) >= arrives && own.iter().all(|vector| vector >= FIRST_RESERVED)
}

/// The vectors of the host's class.
fn reserved() -> VectorSet {
    let mut all = VectorSet::EMPTY;
    (FIRST_RESERVED..=u8::MAX).for_each(|vector| all.insert(vector));
    all
}
