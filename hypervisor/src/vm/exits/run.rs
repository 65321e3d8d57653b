//! The loop of a vCPU: enter, find out why it left, put it right, decide the mode, enter.
//!
//! This is ELI at work (paper 4): the decisions are `delivery`'s, here they are carried
//! out. Between an exit and the next entry nothing allocates, nothing waits for another
//! VM, and the work is bounded.

use crate::cpu::vendor::{Entry, Exit, VirtualCpu};
use crate::cpu::{self, machine_check, rdtsc};
use crate::vm::Vcpu;
use crate::vm::exceptions::{GENERAL_PROTECTION, UNDEFINED};
use crate::vm::stop::{Fault, Stop};
use core::sync::atomic::AtomicU32;
use delivery::Mode;
use ledger::Reason;
use mailbox::{Attended, Entrant};

/// INVD; WBINVD is as long, and is found by decoding.
const INVD: [u8; 2] = [0x0F, 0x08];

/// In the image of tests: takes up to 100 us before the last look, so that many kicks come in this
/// time.
#[cfg(feature = "plant")]
fn dawdle() {
    let start = rdtsc();
    let ticks = start.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 46;
    while rdtsc().wrapping_sub(start) < ticks {
        core::hint::spin_loop();
    }
}

/// A vCPU in its loop.
struct Loop<'a, C: VirtualCpu> {
    vcpu: &'a mut Vcpu<C>,
    /// Since when the host has the core, by the TSC.
    left: u64,
}

impl<C: VirtualCpu> Entrant for Loop<'_, C> {
    #[inline(always)]
    fn maybe_preempt(&mut self) {
        let Some(slot) = self.vcpu.slot() else { return };
        // Who asks for a look stores a request.
        let calm = self.vcpu.slot.is_calm(self.left) && self.vcpu.remote.mailbox.requests() == 0;
        if !calm && self.vcpu.preempt_if_due(slot) {
            // Time without the core isn't the host's.
            self.left = rdtsc();
        }
    }

    #[inline(always)]
    fn attend(&mut self) -> Attended {
        self.vcpu.remote.mailbox.attend(self.vcpu)
    }

    #[inline(always)]
    fn prepare(&mut self) {
        let vcpu = &mut *self.vcpu;
        if vcpu.mode.current() != Mode::Passthrough {
            vcpu.prepare_delivery();
        }
        if vcpu.waits.any() {
            vcpu.take_waiting();
        }
        let ledger = &mut *vcpu.ledger;
        ledger.entries = ledger.entries.wrapping_add(1);
        ledger.host_cycles = ledger.host_cycles.wrapping_add(rdtsc().wrapping_sub(self.left));
        #[cfg(feature = "plant")]
        dawdle();
    }

    #[inline(always)]
    fn enter(&mut self, requests: &AtomicU32) -> bool {
        let entered = self.vcpu.cpu.enter(requests) == Entry::Exited;
        if !entered {
            let ledger = &mut *self.vcpu.ledger;
            ledger.entries = ledger.entries.wrapping_sub(1);
        }
        self.left = rdtsc();
        entered
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Runs the guest on this core until it ends its VM; `None`: another vCPU did.
    pub(in crate::vm) fn run(&mut self) -> Option<Stop> {
        let mailbox = &self.remote.mailbox;
        let mut run = Loop { vcpu: self, left: rdtsc() };
        while mailbox.run_guest(&mut run) {
            let vcpu = &mut *run.vcpu;
            if vcpu.quick_write() {
                continue;
            }
            // On a shared core it is frequent.
            if vcpu.cpu.halted() {
                vcpu.cpu.acknowledge_exit();
                vcpu.note_accepted();
                vcpu.halt();
                vcpu.ledger.count(Reason::Halt);
                continue;
            }
            let exit = vcpu.cpu.exit();
            vcpu.note_accepted();
            match vcpu.handle(exit) {
                Ok(reason) => vcpu.ledger.count(reason),
                Err((reason, stop)) => {
                    vcpu.ledger.count(reason);
                    return Some(stop);
                }
            }
        }
        None
    }

    /// In the image of the audit's tests: wrong entries at the guest's wish.
    #[cfg(feature = "plant")]
    fn plant(&mut self) {
        use crate::host::plant::{HYPERCALL, plant};
        let (magic, what) = (self.cpu.gpr(0), self.cpu.gpr(1));
        let (vm, vcpu) = (self.vm, self.cpu.outline());
        if magic == HYPERCALL && !self.with_pc(|pc, _| plant(vm, pc, &vcpu, what)) {
            log::error!("nothing could be planted");
        }
    }

    fn handle(&mut self, exit: Exit) -> Result<Reason, (Reason, Stop)> {
        let fault = |reason, fault| Err((reason, Stop::Fault(fault)));
        match exit {
            Exit::Interrupt => {
                self.cpu.take_interrupts();
                Ok(self.receive_noted())
            }
            // The mailbox is read before the next entry.
            Exit::Nmi => Ok(Reason::Kick),
            Exit::TimeUp => Ok(self.time_is_up()),
            // `prepare` injects the next NMI, if one waits. A frozen CPU stays frozen until an
            // interrupt arrives.
            // `prepare` offers again.
            Exit::Window => Ok(Reason::InterruptWindow),
            Exit::Completed(vector) => Ok(self.completed_itself(vector)),
            Exit::SentItself => Ok(self.sent_itself()),
            Exit::Slept => Ok(Reason::Halt),
            Exit::NmiDone | Exit::Frozen | Exit::Nothing => Ok(Reason::Other),
            Exit::Fault { raised, event } => self.delivery_fault(raised, event),
            Exit::MachineCheck => {
                self.report_machine_check();
                fault(Reason::Exception, Fault::MachineCheck)
            }
            Exit::TaskSwitch => fault(Reason::Other, Fault::TaskSwitch),
            Exit::Exception { vector, error_code } => {
                self.cpu.inject(vector, error_code);
                Ok(Reason::Exception)
            }
            Exit::Io { access, string, next } => self.port_io(access, string, next),
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
            Exit::IdtLoad => match self.with_pc(|pc, cx| pc.board_mut().leave_shadow(cx)) {
                Ok(()) => Ok(Reason::IdtLoad),
                Err(f) => fault(Reason::IdtLoad, f),
            },
            Exit::LeaveEli => {
                self.leave_eli();
                Ok(Reason::Other)
            }
            Exit::Halt => {
                self.halt();
                Ok(Reason::Halt)
            }
            Exit::ControlLoad => match self.load_control() {
                Ok(()) => Ok(Reason::Other),
                Err(f) => fault(Reason::Other, f),
            },
            Exit::FlushCaches => {
                self.flush_caches();
                Ok(Reason::Other)
            }
            Exit::Hypercall => {
                #[cfg(feature = "plant")]
                self.plant();
                self.cpu.inject(UNDEFINED, None);
                Ok(Reason::Hypercall)
            }
            Exit::Undefined => self.nesting(),
            Exit::Forbidden => {
                self.cpu.inject(GENERAL_PROTECTION, Some(0));
                Ok(Reason::RefusedInstruction)
            }
            Exit::NestedFault { address, fetch, table, event } => {
                self.nested_fault(address, fetch, table, event)
            }
            // A machine check where the guest has CR4.MCE clear shuts down, unless the CPU lets the
            // host's setting count (APM vol. 2, 15.12.17: HOST_MCE_OVERRIDE).
            Exit::Shutdown if machine_check::in_progress() => {
                self.report_machine_check();
                fault(Reason::Shutdown, Fault::MachineCheck)
            }
            Exit::Shutdown => fault(Reason::Shutdown, Fault::Shutdown),
            Exit::Emulator(quirk) => match self.work_around(quirk) {
                Ok(()) => Ok(Reason::Other),
                Err(f) => fault(Reason::Other, f),
            },
            Exit::InvalidState => fault(Reason::Other, Fault::InvalidState),
            Exit::Unknown(code, info1, info2) => {
                fault(Reason::Other, Fault::Unknown(code, info1, info2))
            }
        }
    }

    /// INVD or WBINVD. An emulator may leave the guest before it looks at the ring
    /// (`svm::emulator`).
    pub(super) fn flush_caches(&mut self) {
        match self.cpu.privilege() {
            0 => self.skip(&INVD),
            _ => self.cpu.inject(GENERAL_PROTECTION, Some(0)),
        }
    }

    /// Tells of an error of the machine that came while the guest ran, and takes it back.
    #[cold]
    pub(super) fn report_machine_check(&self) {
        if let Some(report) = machine_check::take() {
            crate::memory::while_reporting(|| {
                log::error!("core {}: {report}", cpu::this().index);
            });
        }
    }
}
