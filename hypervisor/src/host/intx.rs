//! Devices that a guest uses without MSI and MSI-X, as Linux does with `pci=nomsi`, and firmware of
//! a guest of a guest's, which polls: it gets no interrupts from them, since INTx isn't passed on.
//! The log says so, once for each device.
//!
//! Doesn't know whether the guest waits for interrupts: a driver that polls looks the same.

use crate::cpu::{rdtsc, tsc_hz};
use crate::vm::Vm;
use crate::vm::devices::pci_bus::interface::PciFunction;
use ::iommu::Bdf;
use alloc::vec::Vec;

/// For how many seconds a device must be used in this way, at every look. A driver that only hasn't
/// switched MSI on yet is through sooner.
const SECONDS: u64 = 3;

/// The devices as core 0 knows them.
pub struct IntxReports {
    devices: Vec<Used>,
    looked: u64,
}

/// A device of a VM.
struct Used {
    vm: &'static Vm,
    index: usize,
    device: Bdf,
    /// Since when it has been seen in use without messages; 0: it isn't.
    since: u64,
    reported: bool,
}

impl IntxReports {
    /// While booting: no device is in use.
    pub fn new(vms: &[&'static Vm]) -> Self {
        let mut devices = Vec::new();
        for vm in vms {
            let pc = vm.pc.lock();
            devices.extend(pc.pci().assigned().map(|(index, device)| Used {
                vm,
                index,
                device: device.bdf(),
                since: 0,
                reported: false,
            }));
        }
        IntxReports { devices, looked: 0 }
    }

    /// Core 0, by the clock: looks once a second, at those of VMs whose lock is free.
    pub fn look(&mut self) {
        let now = rdtsc();
        if now.wrapping_sub(self.looked) < tsc_hz() {
            return;
        }
        self.looked = now;
        for used in self.devices.iter_mut().filter(|used| !used.reported) {
            let Some(pc) = used.vm.pc.try_lock() else { continue };
            let without = !used.vm.ending.begun() && pc.pci().sends_no_message(used.index);
            drop(pc);
            if !without {
                used.since = 0;
            } else if used.since == 0 {
                used.since = now;
            } else if now.wrapping_sub(used.since) >= SECONDS * tsc_hz() {
                used.reported = true;
                let (name, device) = (&used.vm.guest.name, used.device);
                crate::memory::while_reporting(|| {
                    log::info!(
                        "VM {name:?} uses its device {device} without MSI and MSI-X: it polls, or waits for interrupts that don't come"
                    );
                });
            }
        }
    }
}
