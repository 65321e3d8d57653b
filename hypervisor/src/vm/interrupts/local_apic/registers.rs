//! The virtual local APIC of a vCPU: its registers, the interrupts it sends, its timer.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic;
use crate::vm::Vcpu;
use crate::vm::interrupts::ipi::remote::VcpuRemote;
use crate::vm::interrupts::local_apic::this_core::ThisCore;
use delivery::{Addressing, Destination, LocalApic, Mode, Startup, WriteEffect};
use ledger::Reason;

/// Software may disable the local APIC, which masks the timer.
const SVR: u8 = 0x0F;
const TIMER_INITIAL: u8 = 0x38;
/// The registers of the timer that are written: its entry, the initial count, the divider.
const TIMER: [u8; 3] = [0x32, TIMER_INITIAL, 0x3E];

impl<C: VirtualCpu> Vcpu<C> {
    pub(in crate::vm) fn read_apic(&mut self, register: u8) -> Option<u64> {
        if register == TIMER_INITIAL {
            self.note_timer_initial();
        }
        self.with_core(|apic, core| apic.read(register, core).ok())
    }

    pub(in crate::vm) fn write_apic(&mut self, register: u8, value: u64) -> Option<Reason> {
        if self.mode.current() != Mode::Injection && LocalApic::ends_exitless(register, value) {
            self.take_back();
        }
        if self.mode.current() == Mode::Passthrough && TIMER.contains(&register) {
            // The guest wrote it without an exit.
            self.apic.adopt_timer(x2apic::timer_initial(), x2apic::timer_divider());
        }
        if TIMER.contains(&register) || register == SVR {
            self.take_timer(false);
        }
        let effect = self.with_core(|apic, core| apic.write(register, value, core).ok())?;
        Some(self.follow(effect, Reason::MsrWrite))
    }

    /// Does what a write to a register asks for; gives what the exit was for, `other` if that was
    /// nothing of note.
    pub(in crate::vm) fn follow(&mut self, effect: WriteEffect, other: Reason) -> Reason {
        match effect {
            WriteEffect::None => other,
            WriteEffect::Completed(vector) => self.completed(vector),
            WriteEffect::Timer(setup) => {
                self.program_timer(setup);
                Reason::TimerProgram
            }
            WriteEffect::Interrupt { destination, vector } => {
                self.send(destination, vector);
                Reason::Ipi
            }
            WriteEffect::OneOf { destination, vector } => {
                let me = self.id as u32;
                let to = |id: &u32, vcpu: &VcpuRemote| {
                    vcpu.mailbox.running() && destination.includes(*id, me, vcpu.addressing())
                };
                let one = (0..).zip(&self.vm.guest.remotes).find(|(id, vcpu)| to(id, vcpu));
                if let Some((id, _)) = one {
                    self.send(Destination::Physical(id), vector);
                }
                Reason::Ipi
            }
            WriteEffect::Nmi(destination) => {
                self.receivers(destination, true).for_each(|vcpu| vcpu.nmi());
                Reason::Ipi
            }
            // To oneself too, if named: the reset is done before the next entry. Not with "all",
            // which these aren't valid with (SDM vol. 3, table 11-3).
            WriteEffect::Init(destination) => {
                let named = destination.names();
                self.receivers(destination, named).for_each(|vcpu| vcpu.signal(|s| s.init()));
                Reason::Ipi
            }
            WriteEffect::StartUp { destination, page } => {
                let start = |s: Startup| s.start_up(page);
                self.receivers(destination, false).for_each(|vcpu| vcpu.signal(start));
                Reason::Ipi
            }
        }
    }

    /// The vCPUs among the receivers that have a local APIC, this one if `itself`.
    fn receivers(
        &self,
        to: Destination,
        itself: bool,
    ) -> impl Iterator<Item = &'static VcpuRemote> {
        let me = self.id as u32;
        let of = move |id, apic: Addressing| {
            to.includes(id, me, apic) && apic.present() && (itself || id != me)
        };
        let remotes = (0..).zip(&self.vm.guest.remotes);
        remotes.filter(move |(id, vcpu)| of(*id, vcpu.addressing())).map(|(_, vcpu)| vcpu)
    }

    /// Sends a fixed interrupt. The frequent case is one receiver by its id.
    pub(in crate::vm) fn send(&mut self, to: Destination, vector: u8) {
        match to {
            Destination::Physical(id) if id != self.id as u32 => {
                self.vm.guest.interrupt(id as usize, vector);
            }
            Destination::Physical(_) | Destination::Itself => self.interrupt_self(vector),
            _ => self.send_to_some(to, vector),
        }
    }

    fn send_to_some(&mut self, to: Destination, vector: u8) {
        let me = self.id as u32;
        for (id, vcpu) in self.vm.guest.remotes.iter().enumerate() {
            if !to.includes(id as u32, me, vcpu.addressing()) {
                continue;
            }
            if id == self.id {
                self.interrupt_self(vector);
            } else {
                self.vm.guest.interrupt(id, vector);
            }
        }
    }

    /// An interrupt of the guest's for itself. In ELI mode the physical local APIC can
    /// deliver it as it delivers a device's, unless its vector is one the host needs.
    pub(in crate::vm) fn interrupt_self(&mut self, vector: u8) {
        if self.can_post(vector) {
            x2apic::self_ipi(vector);
        } else {
            self.apic.request(vector);
        }
    }

    /// The core as the virtual APIC sees it now.
    pub(in crate::vm) fn with_core<R>(
        &mut self,
        f: impl FnOnce(&mut LocalApic, &mut ThisCore<'_, C>) -> R,
    ) -> R {
        let mut core = ThisCore {
            exitless: matches!(self.mode.current(), Mode::Eli | Mode::Passthrough),
            routes: &self.remote.routes,
            timer: &self.timer,
            cpu: &mut self.cpu,
        };
        f(&mut self.apic, &mut core)
    }
}
