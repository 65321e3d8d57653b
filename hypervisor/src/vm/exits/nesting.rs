//! A guest that runs guests of its own: the instructions of the extension's that it executes, and
//! the loop in which such an inner guest runs, until the guest itself goes on.
//!
//! Guarantees: what others ask of the vCPU is done as if the guest itself ran; nothing is longer
//! for a guest that runs none.

use crate::cpu::vendor::{Attempt, Entry, GuestPages, Inner, Notice, VirtualCpu};
use crate::cpu::{machine_check, rdtsc, x2apic};
use crate::vm::Vcpu;
use crate::vm::exits::code_pages::Site;
use crate::vm::interrupts::waits::Waits;
use crate::vm::memory::Memory;
use crate::vm::stop::{Fault, Stop};
use core::sync::atomic::AtomicU32;
use delivery::Mode;
use ledger::Reason;
use mailbox::{Attended, Entrant};

const PAGE: u64 = 4096;
/// For so many entries in a row an event that is injected goes first: more are made by an inner
/// guest alone whose exceptions raise others without end.
const LONG: u32 = 100;

impl GuestPages for Memory {
    fn page(&self, gpa: u64) -> Option<u64> {
        self.resolve(gpa & !(PAGE - 1), PAGE)
    }
}

/// A vCPU in its inner guest. It has its core to itself.
struct InnerLoop<'a, C: VirtualCpu> {
    vcpu: &'a mut Vcpu<C>,
    /// TSC ticks of the inner guest's.
    ran: u64,
    /// The inner guest is over.
    over: bool,
    /// How often in a row what waits for the guest was put off.
    put_off: u32,
}

impl<C: VirtualCpu> Entrant for InnerLoop<'_, C> {
    fn maybe_preempt(&mut self) {}

    fn attend(&mut self) -> Attended {
        self.vcpu.remote.mailbox.attend(self.vcpu)
    }

    fn prepare(&mut self) {}

    fn enter(&mut self, requests: &AtomicU32) -> bool {
        // What was asked for may have been a reset.
        if !self.vcpu.cpu.runs_inner() || self.vcpu.notify_inner(&mut self.put_off) {
            self.over = true;
            return true;
        }
        let start = rdtsc();
        let entered = self.vcpu.cpu.enter_inner(requests) == Entry::Exited;
        if entered {
            self.ran = self.ran.wrapping_add(rdtsc().wrapping_sub(start));
            self.vcpu.ledger.entries = self.vcpu.ledger.entries.wrapping_add(1);
        }
        entered
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// An instruction of the extension's.
    #[cold]
    pub(super) fn nesting(&mut self) -> Result<Reason, (Reason, Stop)> {
        let memory = &self.vm.guest.memory;
        match self.cpu.attempt(memory) {
            Attempt::Refused => Ok(Reason::RefusedInstruction),
            Attempt::Done(opcode) => {
                self.skip(opcode);
                Ok(Reason::Nesting)
            }
            Attempt::Enter(opcode) => {
                self.skip_often(Site::InnerEntry, opcode);
                self.run_inner()
            }
        }
    }

    /// Runs the inner guest until the guest itself goes on. The reason: of the last exit.
    fn run_inner(&mut self) -> Result<Reason, (Reason, Stop)> {
        let (mailbox, memory) = (&self.remote.mailbox, &self.vm.guest.memory);
        let mut run = InnerLoop { vcpu: self, ran: 0, over: false, put_off: 0 };
        let mut reason = Reason::Nesting;
        let end = loop {
            if !mailbox.run_guest(&mut run) {
                // The VM ends already, and its cause stands.
                break Some(Stop::Fault(Fault::Shutdown));
            }
            if run.over {
                break None;
            }
            let vcpu = &mut *run.vcpu;
            vcpu.ledger.count(reason);
            let inner = vcpu.cpu.inner_exit(memory);
            reason = match inner {
                Inner::Told => Reason::NestedReflected,
                Inner::Filled => Reason::NestedFill,
                Inner::Own(_) | Inner::Elsewhere(_) => match vcpu.serve_inner(&inner) {
                    Ok((of, false)) => of,
                    Ok((of, true)) => {
                        reason = of;
                        break None;
                    }
                    Err((of, stop)) => {
                        reason = of;
                        break Some(stop);
                    }
                },
                Inner::Nmi => Reason::Kick,
                Inner::Arrived(vector) => vcpu.receive(vector),
                Inner::Interrupt => {
                    vcpu.cpu.take_interrupts();
                    vcpu.receive_noted()
                }
                Inner::Done => Reason::Exception,
                Inner::Shutdown => Reason::Shutdown,
                Inner::MachineCheck => Reason::Exception,
                Inner::Unknown(..) => Reason::Other,
            };
            match inner {
                Inner::Told => break None,
                Inner::Done if vcpu.interrupt_inner() => break None,
                Inner::Shutdown if !machine_check::in_progress() => {
                    break Some(Stop::Fault(Fault::Shutdown));
                }
                Inner::MachineCheck | Inner::Shutdown => {
                    vcpu.report_machine_check();
                    break Some(Stop::Fault(Fault::MachineCheck));
                }
                Inner::Unknown(code, info1, info2) => {
                    break Some(Stop::Fault(Fault::Unknown(code, info1, info2)));
                }
                _ => {}
            }
        };
        // The time since VMRUN is the host's but for this.
        let ran = run.ran;
        self.ledger.host_cycles = self.ledger.host_cycles.wrapping_sub(ran);
        end.map_or(Ok(reason), |stop| Err((reason, stop)))
    }

    /// Leaves the inner guest for an interrupt that the local APIC lets in: it may be in the
    /// delivery of an exception that raises another without end, where none is taken.
    #[cold]
    pub(super) fn interrupt_inner(&mut self) -> bool {
        x2apic::is_any_let_in() && self.cpu.notify(Notice::Interrupt)
    }

    /// Leaves the inner guest, if something waits that the guest wants to leave it for. Where the
    /// guest owns its local APIC, an interrupt makes it exit by itself.
    fn notify_inner(&mut self, put_off: &mut u32) -> bool {
        let interrupt =
            self.mode.current() != Mode::Passthrough && self.apic.deliverable().is_some();
        (interrupt || self.waits.any()) && self.notify_waiting(interrupt, put_off)
    }

    #[cold]
    #[inline(never)]
    fn notify_waiting(&mut self, interrupt: bool, put_off: &mut u32) -> bool {
        // Held back so far, and VMRUN has set the flag: it comes, unless it is told.
        if self.waits.has(Waits::INIT) && self.init_comes() {
            return false;
        }
        if *put_off < LONG && self.cpu.inner_injects() {
            // That comes first, and isn't interrupted by what only waits (APM vol. 2, 15.20): it is
            // left right behind it, and this asked again.
            *put_off += 1;
            self.cpu.leave_at_once();
            return false;
        }
        *put_off = 0;
        self.waits.has(Waits::INIT) && self.cpu.notify(Notice::Init)
            || interrupt && self.cpu.notify(Notice::Interrupt)
            || self.waits.has(Waits::NMI) && self.cpu.notify(Notice::Nmi)
    }
}
