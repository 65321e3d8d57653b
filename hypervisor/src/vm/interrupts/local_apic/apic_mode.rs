//! The modes of a vCPU's local APIC, and what they mean for who takes its interrupts.
//!
//! Guarantees: a vCPU takes its interrupts itself only while its local APIC is in x2APIC mode and
//! enabled, as the core's own is, which stays so whatever the guest does: the host's NMIs come
//! through it. Before the guest's leaves that, all that the core's holds for the guest becomes the
//! virtual one's. In xAPIC mode the registers are a page that isn't mapped, whose accesses come
//! here.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::{delay_us, x2apic};
use crate::interrupts;
use crate::vm::interrupts::local_apic::this_core::in_service;
use crate::vm::{LEDGER_PAGES, Vcpu, Vm};
use delivery::{ApicMode, LocalApic, Mode, TimerSetup, WriteEffect, is_ordinary};
use ledger::Reason;
use raw_cpuid::native_cpuid::cpuid_count;

const PAGE_BYTES: u64 = 4096;

/// Vectors that are exceptions to the host and legal for a guest's interrupts.
const LOW: core::ops::Range<u8> = 16..32;

impl<C: VirtualCpu> Vcpu<C> {
    /// WRMSR to IA32_APIC_BASE; `None`: #GP.
    pub(in crate::vm) fn write_apic_base(&mut self, value: u64) -> Option<Reason> {
        const ENABLED: u64 = 1 << 11;
        if value & ENABLED == 0 {
            self.take_back();
        }
        let (vm, bits) = (self.vm, cpuid_count(0x8000_0008, 0).eax as u8);
        let effect = self.apic.write_base(value, bits, |page| vm.is_free(page)).ok()?;
        if let WriteEffect::Timer(reset) = effect {
            self.program_timer(reset);
            self.program_timer(TimerSetup { initial: None, ..reset });
            self.cpu.set_task_priority(0);
            self.timer.forget();
        }
        self.apic_changed();
        Some(Reason::MsrWrite)
    }

    /// A load from the registers' page.
    pub(in crate::vm) fn load_apic(&mut self, offset: u16, size: u8) -> u64 {
        self.with_core(|apic, core| apic.load(offset, size, core))
    }

    /// A store to it; gives what it was for.
    pub(in crate::vm) fn store_apic(&mut self, offset: u16, size: u8, value: u64) -> Reason {
        let effect = self.with_core(|apic, core| apic.store(offset, size, value, core));
        self.remote.set_addressing(self.apic.addressing());
        self.follow(effect, Reason::ApicPage)
    }

    /// Its local APIC as after reset: by an INIT, or at the start of the VM.
    pub(in crate::vm) fn reset_apic(&mut self, init: bool) {
        match init {
            true => self.apic.init(),
            false => self.apic = LocalApic::new(self.id as u32),
        }
        self.apic_changed();
    }

    fn apic_changed(&mut self) {
        self.remote.set_addressing(self.apic.addressing());
        self.cpu.show_x2apic(self.apic.mode() == ApicMode::X2apic);
    }

    /// Can the core's local APIC be the guest's own?
    pub(in crate::vm) fn may_own_apic(&self) -> bool {
        self.apic.exitless() && self.apic.timer_is_ordinary() && self.apic.quiet()
    }

    /// Under `direct`: the vector of the core's timer; `None`: its interrupt is for nobody. It is
    /// the guest's, unless that is an exception's: then the host's, and the guest doesn't take its
    /// interrupts itself. A device of such a guest that has the same vector is taken for the timer.
    pub(in crate::vm) fn own_timer_vector(&self) -> Option<u8> {
        let physical = |v| if is_ordinary(v) { v } else { interrupts::TIMER };
        self.apic.timer_vector().filter(|v| *v >= LOW.start).map(physical)
    }

    /// Injection mode, and nothing that is the guest's is in the core's local APIC any more: the
    /// timer goes on by the host, what is pending and in service is the virtual one's.
    pub(in crate::vm) fn take_back(&mut self) {
        self.take_timer(false);
        let old = self.mode.current();
        if old == Mode::Injection {
            return;
        }
        if old == Mode::Passthrough {
            self.apic.adopt_timer(x2apic::timer_initial(), x2apic::timer_divider());
        } else {
            self.note_timer_initial();
        }
        self.change_mode(Mode::Injection);
        if old == Mode::Passthrough {
            self.program_timer(self.apic.timer());
            // Only the guest itself sends these, and it doesn't run. A message to itself may be on
            // its way still.
            delay_us(x2apic::MESSAGE_US);
            let pending = x2apic::requested(0);
            LOW.filter(|v| pending >> v & 1 != 0).for_each(|v| self.apic.request(v));
            interrupts::tolerating(|| self.take_all_pending());
        } else {
            self.take_all_pending();
        }
    }

    /// In injection mode: what is pending in the core's local APIC goes to whom it is for, until
    /// nothing is. The next one may be presented some cycles after the completion of the one
    /// before.
    pub(in crate::vm) fn take_all_pending(&mut self) {
        for _ in 0..=u8::MAX {
            self.take_pending();
            // QEMU accepts vectors below 16, and delivers all but 0.
            in_service().iter().for_each(|_| x2apic::eoi());
            let [first, rest @ ..] = x2apic::request_bitmap();
            if first & !1 == 0 && rest.iter().all(|word| *word == 0) {
                break;
            }
        }
    }
}

impl Vm {
    /// Is there nothing at this page of guest-physical memory?
    fn is_free(&self, page: u64) -> bool {
        let ledgers = LEDGER_PAGES..LEDGER_PAGES + self.guest.remotes.len() as u64 * PAGE_BYTES;
        self.guest.memory.resolve(page, PAGE_BYTES).is_none()
            && self.bus.memory(page).is_none()
            && !ledgers.contains(&page)
    }
}
