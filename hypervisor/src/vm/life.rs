//! The end of a VM: the first vCPU that stops it says why, the others follow, and when all
//! are out of the guest its devices are silenced and the counters told.
//!
//! Guarantees that no vCPU's core goes on to other work while another vCPU could still send
//! it an interrupt, or a device reach the guest's memory.

use crate::console;
use crate::cpu::vendor::VirtualCpu;
use crate::vm::stop::Stop;
use crate::vm::{Vcpu, Vm};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use mailbox::request;
use spin::Mutex;

/// VMs that ended and were reported.
static ENDED: AtomicUsize = AtomicUsize::new(0);

/// How many VMs ended and were reported.
pub fn ended() -> usize {
    ENDED.load(Ordering::Acquire)
}

/// Where all vCPUs of a VM wait for each other.
#[derive(Default)]
struct Barrier {
    arrived: AtomicUsize,
    round: AtomicUsize,
}

impl Barrier {
    fn wait(&self, count: usize, mut relax: impl FnMut()) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == count {
            self.arrived.store(0, Ordering::Release);
            self.round.fetch_add(1, Ordering::AcqRel);
        } else {
            while self.round.load(Ordering::Acquire) == round {
                relax();
            }
        }
    }
}

/// Why a VM ends, once it does.
#[derive(Clone, Copy, Debug)]
pub struct Cause {
    pub stop: Stop,
    /// The vCPU that stopped it, and where that was.
    pub vcpu: usize,
    pub rip: u64,
}

/// How far the end of a VM is.
#[derive(Default)]
pub struct Ending {
    begun: AtomicBool,
    /// The first vCPU's decision, when all others wait for it: the VM starts again.
    again: AtomicBool,
    cause: Mutex<Option<Cause>>,
    barrier: Barrier,
    /// Its devices were silenced for good.
    silenced: AtomicBool,
}

impl Ending {
    /// Are its devices silent for good? Then nothing may lead to them, or from them, any more.
    pub fn silenced(&self) -> bool {
        self.silenced.load(Ordering::Acquire)
    }

    /// Does the VM end?
    pub fn begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// The VM starts again, unless that failed.
    fn restart(&self, failed: Option<Cause>) {
        let mut cause = self.cause.lock();
        self.again.store(failed.is_none(), Ordering::Release);
        self.begun.store(failed.is_some(), Ordering::Release);
        *cause = failed;
    }

    /// Why, once it does.
    pub fn cause(&self) -> Option<Cause> {
        *self.cause.lock()
    }
}

impl Vm {
    /// Ends the VM, unless it ends already: the first cause counts.
    pub fn end(&self, cause: Cause) {
        // Held until all are told: were the VM to start again in between, some of its vCPUs would hear of
        // an end that isn't one.
        let mut first = self.ending.cause.lock();
        if first.is_some() {
            return;
        }
        *first = Some(cause);
        self.ending.begun.store(true, Ordering::Release);
        for vcpu in &self.remotes {
            vcpu.signal(|s| s.stop());
        }
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Waits until every vCPU is here.
    fn meet(&mut self) {
        let vm = self.vm;
        vm.ending.barrier.wait(vm.remotes.len(), || self.yield_while_waiting());
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
        let runs = !ends && (self.remote.mailbox.running() || self.wait());
        if runs && let Some(stop) = self.run() {
            let cause = Cause { stop, vcpu: self.id, rip: self.cpu.rip() };
            self.vm.end(cause);
        }
        // Nobody waits for this vCPU's answer any more.
        self.remote.mailbox.change(|s| (s.left(), ()));
        self.remote.mailbox.done(request::WAKEUPS);
        self.meet();
        let cause = self.vm.ending.cause();
        let again = self.vm.restarts && cause.is_some_and(|c| c.stop.resets());
        if self.id == 0 {
            let vm = self.vm;
            self.with_pc(
                |pc, _| if again { pc.pci.quiet_devices() } else { pc.pci.stop_devices(vm) },
            );
            vm.ending.silenced.store(!again, Ordering::Release);
        }
        self.meet();
        self.quiet_core();
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
            let devices = self.with_pc(|pc, _| pc.pci.devices().len());
            (0..devices).for_each(|index| self.reset_device(index));
            let done = self.with_pc(|pc, here| pc.restart(here));
            vm.memory.pieces().for_each(|piece| {
                vm.memory.clear(piece);
                self.yield_if_due();
            });
            // It fitted at boot.
            vm.contents.put(&vm.memory, || self.yield_if_due());
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
        let again = self.vm.ending.again.load(Ordering::Acquire);
        // Nobody decides anew before all have looked.
        self.meet();
        again
    }
}
