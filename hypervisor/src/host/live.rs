//! The counters of running vCPUs, for whoever watches the machine.
//!
//! Guarantees: nothing is sent unless the command line asks, and then once for each
//! vCPU, however often it asked since core 0 last woke (at most 100 times per second).
//! The counters are read by core 0 from the vCPUs' ledger pages; the vCPUs' own cores
//! aren't involved, so that watching costs a guest no exit and no instruction. It doesn't
//! guarantee that the counters of a vCPU, or those of two, are of one instant.

use crate::{console, cpu::rdtsc, memory};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use ledger::{Counters, Page, Reason, Record};

/// A vCPU whose counters can be read.
struct Watched {
    vm: u32,
    vcpu: u32,
    core: u32,
    page: *const Page,
}

// SAFETY: the page is only read, and from any core that is as good.
unsafe impl Send for Watched {}

static WATCHED: spin::Mutex<Vec<Watched>> = spin::Mutex::new(Vec::new());

/// While booting: makes the counters of a vCPU, which core `core` is to run, known.
///
/// # Safety
/// The page stays where it is for good, and only counters are written in it from now on.
pub unsafe fn register(vm: usize, vcpu: usize, core: usize, page: *const Page) {
    let (vm, vcpu, core) = (vm as u32, vcpu as u32, core as u32);
    WATCHED.lock().push(Watched { vm, vcpu, core, page });
}

/// While booting: where the pages of a VM's vCPUs are, by vCPU.
pub fn pages(vm: usize) -> Vec<u64> {
    let watched = WATCHED.lock();
    watched.iter().filter(|w| w.vm as usize == vm).map(|w| w.page as u64).collect()
}

/// Core 0: sends the counters of every vCPU, if the command line asked for them.
pub fn answer() {
    if !console::take_question() {
        return;
    }
    memory::while_reporting(|| {
        let watched = WATCHED.lock();
        for (i, vcpu) in watched.iter().enumerate() {
            let (vm, core) = (vcpu.vm, vcpu.core);
            let (counters, now) = (vcpu.read(), rdtsc());
            let left = (watched.len() - 1 - i) as u32;
            console::record(&Record::Live { vm, vcpu: vcpu.vcpu, core, counters, now, left });
        }
    });
}

impl Watched {
    fn read(&self) -> Counters {
        let page = self.page;
        // SAFETY: `register` was promised that the page stays. Its core writes counters with
        // plain stores of eight aligned bytes, which this CPU makes whole: a reader sees one
        // value or the next.
        let load = |counter: *const u64| unsafe {
            AtomicU64::from_ptr(counter.cast_mut()).load(Ordering::Relaxed)
        };
        // SAFETY: these only name fields of the page.
        unsafe {
            Counters {
                entries: load(&raw const (*page).entries),
                host_cycles: load(&raw const (*page).host_cycles),
                injected: load(&raw const (*page).injected),
                device_injected: load(&raw const (*page).device_injected),
                timer_injected: load(&raw const (*page).timer_injected),
                turns: load(&raw const (*page).turns),
                exits: (0..Reason::COUNT).map(|i| load(&raw const (*page).exits[i])).collect(),
            }
        }
    }
}
