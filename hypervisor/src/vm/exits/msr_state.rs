//! The MSRs of a vCPU that nothing of the machine is behind.

use virtual_pc::msr::{MsrResult, Msrs};

/// The MSRs of a vCPU that are neither its CPU's nor its APIC's.
pub struct MsrState {
    now: Msrs,
    /// As they are when the VM starts.
    first: Msrs,
}

impl MsrState {
    /// As a vCPU starts on a machine that is like this.
    pub fn new(first: Msrs) -> Self {
        MsrState { now: first.clone(), first }
    }

    /// As when the VM started.
    pub fn reset(&mut self) {
        self.now = self.first.clone();
    }
    /// RDMSR of one of them.
    pub fn read(&self, msr: u32) -> MsrResult {
        self.now.read(msr)
    }

    /// WRMSR to one of them.
    pub fn write(&mut self, msr: u32, value: u64) -> MsrResult {
        self.now.write(msr, value)
    }
}
