//! The virtual local APIC of a vCPU: its registers, the interrupts it sends, its timer.

use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic::{self, TimerMode};
use crate::cpu::{self, rdtsc};
use crate::interrupts;
use crate::interrupts::vectors::host_vectors;
use crate::vm::Vcpu;
use crate::vm::interrupts::mailbox::Link;
use crate::vm::interrupts::this_core::{ThisCore, in_service};
use delivery::{Destination, LocalApic, Mode, Startup, TimerSetup, WriteEffect};
use ledger::Reason;
use proto::Policy;

/// The most ticks a second that a periodic timer of a guest's gets.
const SHORTEST_PERIOD_HZ: u64 = 100_000;
/// The same where several vCPUs share the core, and each tick has to go through the host's
/// deadlines: between two of them the guest must come to execute something.
pub const SHORTEST_SHARED_PERIOD_HZ: u64 = 5_000;

impl<C: VirtualCpu> Vcpu<C> {
    pub(in crate::vm) fn read_apic(&mut self, register: u8) -> Option<u64> {
        self.with_core(|apic, core| apic.read(register, core).ok())
    }

    pub(in crate::vm) fn write_apic(&mut self, register: u8, value: u64) -> Option<Reason> {
        let effect = self.with_core(|apic, core| apic.write(register, value, core).ok())?;
        Some(match effect {
            WriteEffect::None => Reason::MsrWrite,
            WriteEffect::Completed(vector) => self.completed(vector),
            WriteEffect::Timer(setup) => {
                self.program_timer(setup);
                Reason::TimerProgram
            }
            WriteEffect::Interrupt { destination, vector } => {
                self.send(destination, vector);
                Reason::Ipi
            }
            WriteEffect::Nmi(destination) => {
                self.receivers(destination, true).for_each(|link| link.nmi());
                Reason::Ipi
            }
            // To oneself too, if named: the reset is done before the next entry. Not with "all",
            // which these aren't valid with (SDM vol. 3, table 11-3).
            WriteEffect::Init(destination) => {
                let named =
                    matches!(destination, Destination::Physical(_) | Destination::Logical(_));
                self.receivers(destination, named).for_each(|link| link.signal(|s| s.init()));
                Reason::Ipi
            }
            WriteEffect::StartUp { destination, page } => {
                let start = |s: Startup| s.start_up(page);
                self.receivers(destination, false).for_each(|link| link.signal(start));
                Reason::Ipi
            }
        })
    }

    /// The vCPUs among the receivers, this one if `itself`.
    fn receivers(&self, to: Destination, itself: bool) -> impl Iterator<Item = &'static Link> {
        let me = self.id as u32;
        let of = move |id| to.includes(id, me) && (itself || id != me);
        (0..).zip(&self.vm.links).filter(move |(id, _)| of(*id)).map(|(_, link)| link)
    }

    /// Sends a fixed interrupt. The frequent case is one receiver by its id.
    fn send(&mut self, to: Destination, vector: u8) {
        let me = self.id as u32;
        if let Destination::Physical(id) = to
            && id != me
        {
            return self.vm.interrupt(id as usize, vector);
        }
        for id in (0..self.vm.links.len()).filter(|id| to.includes(*id as u32, me)) {
            if id == self.id {
                self.interrupt_self(vector);
            } else {
                self.vm.interrupt(id, vector);
            }
        }
    }

    /// An interrupt of the guest's for itself. In direct mode the physical local APIC can
    /// deliver it as it delivers a device's, unless its vector is one the host needs.
    fn interrupt_self(&mut self, vector: u8) {
        if self.can_post(vector) {
            x2apic::self_ipi(vector);
        } else {
            self.apic.request(vector);
        }
    }

    /// EOI in direct mode, where it exits (policy `eli-delivery`): done for the guest.
    fn complete_physical(&self) -> Option<u8> {
        if self.mode != Mode::Direct {
            return None;
        }
        let vector = in_service().highest()?;
        x2apic::eoi();
        self.link().guest_vector(vector)
    }

    fn completed(&mut self, vector: Option<u8>) -> Reason {
        let Some(vector) = vector.or_else(|| self.complete_physical()) else {
            return Reason::OtherEoi;
        };
        let vm = self.vm;
        self.with_pc(|pc, _| pc.ioapic.eoi(vector).iter().for_each(|m| vm.deliver(m)));
        if self.apic.timer_vector() == Some(vector) {
            Reason::TimerEoi
        } else if self.link().vectors.lock().devices.contains(vector) {
            Reason::DeviceEoi
        } else {
            Reason::OtherEoi
        }
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// The core as the virtual APIC sees it now.
    fn with_core<R>(&mut self, f: impl FnOnce(&mut LocalApic, &mut ThisCore<'_, C>) -> R) -> R {
        let shared = self.link().seat.is_some();
        let mut core = ThisCore {
            direct: self.mode != Mode::Injection,
            host: if shared {
                crate::vm::time_slice::reserved()
            } else {
                host_vectors(self.vm.policy)
            },
            timer: self.apic.timer_vector().filter(|_| !shared),
            count: shared.then(|| self.timer.count(rdtsc())),
            cpu: &mut self.cpu,
        };
        f(&mut self.apic, &mut core)
    }

    /// Applies what the guest wrote to its timer: with its own vector where the timer is its own,
    /// else with the host's.
    fn program_timer(&mut self, setup: TimerSetup) {
        if self.link().seat.is_some() {
            return self.timer.set(setup, rdtsc());
        }
        let (vector, divide) = match self.vm.policy {
            Policy::Trap | Policy::EliDelivery | Policy::Eli => (interrupts::TIMER, setup.divide),
            // A vector below 16 is none: the entry stays masked. The divider is the guest's to write.
            Policy::Direct => {
                let vector = self.apic.timer_vector().filter(|v| *v >= 16).unwrap_or(0);
                (vector, x2apic::timer_divide())
            }
        };
        let masked = setup.masked || vector == 0;
        program_timer(TimerSetup { masked, divide, ..setup }, vector);
    }
}

/// Runs the core's own timer with the guest's values. Starting it is the frequent case, and its
/// mode was set when the guest set it.
fn program_timer(setup: TimerSetup, vector: u8) {
    // Divide configuration (SDM vol. 3, figure 11-10): bits 3, 1, 0 count 2, 4 … 128, 1.
    let code = setup.divide & 0b11 | setup.divide >> 1 & 0b100;
    let shift = (code + 1) as u8 & 7;
    // A period shorter than the host's handler would never let the core out of it.
    let shortest =
        if setup.periodic { (cpu::timer_hz() / SHORTEST_PERIOD_HZ) as u32 >> shift } else { 0 };
    if let Some(count) = setup.initial {
        return x2apic::timer_start(if count == 0 { 0 } else { count.max(shortest) });
    }
    x2apic::timer_divide_shift(shift);
    if (1..shortest).contains(&x2apic::timer_initial()) {
        x2apic::timer_start(shortest);
    }
    let mode = if setup.periodic { TimerMode::Periodic } else { TimerMode::OneShot };
    x2apic::timer_lvt(vector, mode, setup.masked);
}
