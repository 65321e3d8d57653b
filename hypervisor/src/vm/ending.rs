//! How far the end of a VM is: why it ends, and where its vCPUs wait for each other.

use crate::vm::stop::Stop;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use spin::Mutex;

/// Where all vCPUs of a VM wait for each other.
#[derive(Default)]
struct Barrier {
    arrived: AtomicUsize,
    round: AtomicUsize,
}

impl Barrier {
    fn wait(&self, count: usize, mut meanwhile: impl FnMut()) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == count {
            self.arrived.store(0, Ordering::Release);
            self.round.fetch_add(1, Ordering::AcqRel);
        } else {
            while self.round.load(Ordering::Acquire) == round {
                meanwhile();
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
    pub fn restart(&self, failed: Option<Cause>) {
        let mut cause = self.cause.lock();
        self.again.store(failed.is_none(), Ordering::Release);
        self.begun.store(failed.is_some(), Ordering::Release);
        *cause = failed;
    }

    /// Why, once it does.
    pub fn cause(&self) -> Option<Cause> {
        *self.cause.lock()
    }

    /// Ends the VM, unless it ends already: the first cause counts. `tell` has every vCPU hear of
    /// it.
    pub fn begin(&self, cause: Cause, tell: impl FnOnce()) {
        // Held until all are told: were the VM to start again in between, some of its vCPUs would
        // hear of an end that isn't one.
        let mut first = self.cause.lock();
        if first.is_some() {
            return;
        }
        *first = Some(cause);
        self.begun.store(true, Ordering::Release);
        tell();
    }

    /// The first vCPU's decision, when all others have waited for it: does the VM start again?
    pub fn again(&self) -> bool {
        self.again.load(Ordering::Acquire)
    }

    /// The devices are silent: for good, or until the guest sets them up again.
    pub fn set_silenced(&self, for_good: bool) {
        self.silenced.store(for_good, Ordering::Release);
    }

    /// Waits until all `count` vCPUs are here, and does `meanwhile` until then.
    pub fn meet(&self, count: usize, meanwhile: impl FnMut()) {
        self.barrier.wait(count, meanwhile);
    }
}
