//! The end of a VM: the first vCPU that stops it says why, the others follow, and when all
//! are out of the guest its devices are silenced and the counters told.
//!
//! Guarantees that no vCPU's core goes on to other work while another vCPU could still send
//! it an interrupt, or a device reach the guest's memory.

use crate::console;
use crate::cpu::vendor::VirtualCpu;
use crate::cpu::{self, machine_check, rdtsc};
use crate::vm::ending::Cause;
use crate::vm::stop::Stop;
use crate::vm::{Vcpu, Vm};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Seconds after which it is told that a controller keeps a VM from its end: longer than one that
/// hangs needs to be reset.
const LONG: u64 = 180;

/// VMs that ended and were reported.
static ENDED: AtomicUsize = AtomicUsize::new(0);

/// How many VMs ended and were reported.
pub fn ended() -> usize {
    ENDED.load(Ordering::Acquire)
}

impl Vm {
    /// Ends the VM, unless it ends already: the first cause counts.
    pub fn end(&self, cause: Cause) {
        self.ending.begin(cause, || {
            self.guest.remotes.iter().for_each(|vcpu| vcpu.signal(|s| s.stop()));
        });
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Waits until every vCPU is here.
    fn meet(&mut self) {
        let vm = self.vm;
        vm.ending.meet(vm.guest.remotes.len(), || self.yield_while_waiting());
    }

    /// The vCPU's life, until its VM has ended and been reported.
    pub(super) fn live(&mut self) {
        // A start-up finds its core asleep, or about to be: the wake-up that brought a core here
        // has the same vector, and one of two would be lost.
        self.meet();
        while self.life() {}
        self.report_counters();
        self.meet();
        if self.id == 0 {
            self.report_end();
            ENDED.fetch_add(1, Ordering::Release);
            console::wake();
        }
    }

    /// From a start of the VM to its end. True: it starts again.
    fn life(&mut self) -> bool {
        self.cpu.prepare_core();
        // An end that came before the mailbox was as new isn't asked for any more.
        let ends = self.vm.ending.begun();
        let runs = !ends && (self.remote.mailbox.running() || self.remote.mailbox.wait(self));
        if runs && let Some(stop) = self.run() {
            let cause = Cause { stop, vcpu: self.id, rip: self.cpu.rip() };
            self.vm.end(cause);
        }
        // Nobody waits for this vCPU's answer any more.
        self.remote.mailbox.leave();
        self.meet();
        let cause = self.vm.ending.cause();
        let again = self.vm.restarts && cause.is_some_and(|c| c.stop.resets());
        if self.id == 0 {
            let vm = self.vm;
            // Here, for what a controller was asked for takes it long: others have the core.
            vm.served.iter().for_each(|(_, port)| port.let_go());
            let (start, mut told) = (rdtsc(), false);
            while vm.served.iter().any(|(_, port)| port.is_busy()) {
                if !told && rdtsc().wrapping_sub(start) > cpu::tsc_hz() * LONG {
                    told = true;
                    let name = &vm.guest.name;
                    log::error!("VM {name:?} can't end: a controller still has its memory");
                }
                self.yield_while_waiting();
            }
            self.with_pc(|pc, _| {
                if again {
                    pc.pci_mut().quiet_devices()
                } else {
                    pc.pci_mut().stop_devices(&vm.guest)
                }
            });
            vm.ending.set_silenced(!again);
        }
        self.meet();
        self.quiet_core();
        // The guest is out: what its core's banks took down meanwhile.
        machine_check::tell_of_errors();
        if again {
            self.meet();
            self.restart()
        } else {
            false
        }
    }

    /// Back to the start: memory and devices by the first vCPU, each its own state.
    fn restart(&mut self) -> bool {
        if self.id == 0 {
            let vm = self.vm;
            self.report_restart();
            let devices = self.with_pc(|pc, _| pc.pci().functions().len());
            (0..devices).for_each(|index| self.reset_device(index));
            let done = self.with_pc(|pc, cx| pc.restart(cx));
            vm.guest.memory.pieces().for_each(|piece| {
                vm.guest.memory.clear(piece);
                self.yield_if_due();
            });
            // It fitted at boot.
            vm.contents.put(&vm.guest.memory, || self.yield_if_due());
            vm.ending.restart(done.err().map(|fault| Cause {
                stop: Stop::Fault(fault),
                vcpu: 0,
                rip: 0,
            }));
        }
        self.reset(None);
        self.msrs.reset();
        self.remote.mailbox.restart(self.id == 0);
        self.meet();
        // Not whether it ends: core 0 may end it at any moment, and all are to go the same way.
        let again = self.vm.ending.again();
        // Nobody decides anew before all have looked.
        self.meet();
        again
    }
}
