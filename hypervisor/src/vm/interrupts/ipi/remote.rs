//! The part of a vCPU that other cores reach: its mailbox, its core, the routes of its interrupts.
//!
//! Guarantees: what is asked for is seen before the vCPU is next entered, since the request is
//! stored before its core is kicked, and the entry looks at the requests behind the point from
//! which on an NMI ends it ([the last look](crate::cpu::vendor#the-last-look)). Nothing here waits
//! but [`Guest::ask_and_wait`](crate::vm::guest::Guest::ask_and_wait), which only the holder of the
//! VM's lock calls, and whose counterparts answer wherever they are: in the guest (by the NMI),
//! before an entry, and while they wait for that lock.

use crate::cpu::{self, Posting};
use crate::sched::host_core::HostCore;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use delivery::{Addressing, LocalApic, Signal, Startup};
use mailbox::{Mailbox, request};
use proto::Policy;
use routing::VcpuRoutes;

/// The part of a vCPU that other cores reach.
pub struct VcpuRemote {
    /// APIC id of its core.
    pub apic_id: u32,
    pub core: HostCore,
    pub mailbox: Mailbox,
    pub routes: VcpuRoutes,
    /// To its guests, if interrupts are posted to them.
    inner: Option<VcpuRoutes>,
    /// By what interrupts are posted to it, if the CPU delivers them.
    pub posting: Option<Posting>,
    /// A local interrupt source of its core that is wrong, until core 0 has taken it: the register
    /// above its value; 0: none.
    wrong_source: AtomicU64,
    /// [`Addressing`] of its local APIC.
    addressing: AtomicU32,
}

impl VcpuRemote {
    /// Of a vCPU that runs on this core.
    pub fn new(
        core: HostCore,
        policy: Policy,
        boot_processor: bool,
        posting: Option<Posting>,
        posts: bool,
    ) -> Self {
        let addressing = AtomicU32::new(LocalApic::new(0).addressing().bits());
        let apic_id = core.apic_id();
        let (routes, inner) = match posts {
            true => core.routes_with_inner(policy),
            false => (core.routes(policy), None),
        };
        let mailbox = Mailbox::new(boot_processor);
        let wrong_source = AtomicU64::new(0);
        VcpuRemote { apic_id, core, mailbox, routes, inner, posting, wrong_source, addressing }
    }

    /// The routes that lead to it, or to its guests.
    pub fn routes_to(&self, inner: bool) -> &VcpuRoutes {
        self.inner.as_ref().filter(|_| inner).unwrap_or(&self.routes)
    }

    /// Are interrupts posted to its guests?
    #[inline]
    pub fn posts(&self) -> bool {
        self.inner.is_some()
    }

    /// How others address its local APIC.
    pub fn addressing(&self) -> Addressing {
        Addressing::from_bits(self.addressing.load(Ordering::Acquire))
    }

    /// That has changed; only the vCPU's own core says so.
    pub fn set_addressing(&self, addressing: Addressing) {
        self.addressing.store(addressing.bits(), Ordering::Release);
    }

    /// Asks, and gets the core out of its guest.
    pub fn ask(&self, requests: u32) {
        self.mailbox.ask(&self.core, requests);
    }

    /// Core 0, by the clock: kicks again for what was asked for half a second ago and isn't done. A
    /// CPU doesn't lose an NMI; QEMU before 10.2 does, rarely, when it comes to a core that enters
    /// or leaves its guest (VMRUN and #VMEXIT change `interrupt_request` without the lock under
    /// which others set it).
    pub fn resend_kick(&self, now: u64) {
        // Not asked again: it may be done by now, and a guest's NMI would come twice.
        if let Some(overdue) = self.mailbox.overdue(now, cpu::tsc_hz() / 2) {
            self.core.resend_kick(overdue & request::WAKEUPS != 0);
        }
    }

    /// Input for the console has arrived.
    pub fn console(&self) {
        self.attend();
    }

    /// A device of the guest's has something for it. The first vCPU looks.
    pub fn attend(&self) {
        self.ask(request::CONSOLE);
    }

    /// Core 0: register and value of a local interrupt source that the vCPU's core found wrong
    /// since the last call. It is to look again, when it has an exit anyway.
    pub fn audit_sources(&self) -> Option<(u32, u32)> {
        let wrong = self.wrong_source.swap(0, Ordering::Relaxed);
        self.mailbox.ask_at_leisure(request::SOURCES);
        (wrong != 0).then_some(((wrong >> 32) as u32, wrong as u32))
    }

    /// The vCPU's core: this local interrupt source is wrong.
    pub fn note_wrong_source(&self, register: u32, value: u32) {
        let word = u64::from(register) << 32 | u64::from(value);
        self.wrong_source.store(word, Ordering::Relaxed);
    }

    /// Raises an NMI in the guest.
    pub fn nmi(&self) {
        self.mailbox.ask_nmi(&self.core);
    }

    /// INIT, start-up or stop, as `f` has it.
    pub fn signal(&self, f: impl Fn(Startup) -> (Startup, Signal)) {
        self.mailbox.signal(&self.core, f);
    }
}
