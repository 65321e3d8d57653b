//! The counters of running vCPUs and of sidecores, for whoever watches the machine.
//!
//! Guarantees: nothing is sent unless the command line asks, and then once for each
//! vCPU, however often it asked since core 0 last woke (at most 100 times per second).
//! The counters are read by core 0 from the vCPUs' ledger pages; the vCPUs' own cores
//! aren't involved, so that watching costs a guest no exit and no instruction. It doesn't
//! guarantee that the counters of a vCPU, or those of two, are of one instant.

use crate::sidecore::counts::CoreCounts;
use crate::vm::Vm;
use crate::vm::counters::CounterPage;
use crate::{console, cpu::rdtsc, memory};
use alloc::vec::Vec;
use proto::Record;

/// Core 0's part.
pub struct LiveRecords {
    /// The pages of all vCPUs.
    pub pages: Vec<CounterPage>,
    /// Where the sidecores count.
    pub sidecores: Vec<&'static CoreCounts>,
}

impl LiveRecords {
    /// Core 0: sends the counters of every sidecore.
    pub fn report_sidecores(&self) {
        for counts in &self.sidecores {
            console::record(&counts.record(rdtsc()));
        }
    }

    /// Core 0: sends the counters of every sidecore, of the queues that they serve, and at last of
    /// every vCPU, if the command line asked for them.
    pub fn answer(&self, vms: &[&Vm]) {
        if !console::take_question() {
            return;
        }
        memory::while_reporting(|| {
            self.report_sidecores();
            vms.iter().for_each(|vm| vm.report_served());
            for (i, page) in self.pages.iter().enumerate() {
                let (vm, vcpu, core) = (page.vm as u32, page.vcpu as u32, page.core as u32);
                let (counters, now) = (page.read(), rdtsc());
                let left = (self.pages.len() - 1 - i) as u32;
                console::record(&Record::Live { vm, vcpu, core, counters, now, left });
            }
        });
    }
}
