//! How a VM ended, told to the command line: its counters, what it did wrong, where it was.

use super::Vm;
use super::devices::Incident;
use super::vcpu::{Fault, Stop};
use crate::cpu::rdtsc;
use crate::cpu::vendor::VirtualCpu;
use crate::cpu::x2apic::{self, TimerMode};
use crate::{console, interrupts};
use alloc::format;
use alloc::string::String;
use ledger::{End, Record};

impl<C: VirtualCpu> Vm<C> {
    /// Silences everything that could still reach this core or the guest's memory.
    pub(super) fn stop_devices(&mut self) {
        for device in &mut self.devices {
            device.stop(&self.pci);
        }
        x2apic::timer_lvt(interrupts::TIMER, TimerMode::OneShot, true);
        x2apic::timer_start(0);
    }

    /// Sends the counters and the end.
    pub(super) fn report(&self, stop: Stop) {
        let vm = self.index as u32;
        crate::memory::while_reporting(|| {
            if let Some(incident) = self.incident {
                console::record(&Record::Incident { vm, what: self.incident_sentence(incident) });
            }
            console::record(&Record::Counters {
                vm,
                vcpu: 0,
                counters: self.ledger.counters(),
                cycles: rdtsc().wrapping_sub(self.started),
            });
            console::record(&Record::Ended { vm, end: self.end(stop) });
        });
    }

    fn end(&self, stop: Stop) -> End {
        match stop {
            Stop::PowerOff => End::PowerOff,
            Stop::Reset => End::Reset,
            Stop::DebugExit(code) => End::DebugExit(code),
            Stop::Fault(fault) => End::Fault(format!(
                "VM {:?}, vCPU 0, at RIP {:#x}: {}",
                self.name,
                self.cpu.rip(),
                sentence(fault)
            )),
        }
    }

    fn incident_sentence(&self, incident: Incident) -> String {
        let what = match incident {
            Incident::Message(d) => {
                format!("its device {d} was given an interrupt message that isn't one")
            }
            Incident::Route(d) => {
                format!("the IOMMU refused a route for an interrupt of its device {d}")
            }
            Incident::Bar(d) => format!("a BAR of its device {d} was moved where no BAR can be"),
            Incident::Memory(a) => {
                format!("it used guest-physical address {a:#x}, where it has nothing")
            }
        };
        format!("VM {:?}: {what}; refused, and the guest went on", self.name)
    }
}

fn sentence(fault: Fault) -> String {
    match fault {
        Fault::Shutdown => "triple fault".into(),
        Fault::MachineCheck => "the machine reported an error (machine check)".into(),
        Fault::TaskSwitch => "it switched tasks through a task gate, which isn't emulated".into(),
        Fault::InvalidState => {
            "it brought its control registers into a state that no CPU can be entered in".into()
        }
        Fault::Fetch(a) => format!(
            "it ran code or used page tables at guest-physical address {a:#x}, where it has no memory"
        ),
        Fault::Instruction { address, why } => {
            format!(
                "its instruction at or for address {address:#x} must be emulated and can't be: {why}"
            )
        }
        Fault::Unreadable { address } => {
            format!(
                "its instruction at or for address {address:#x} must be emulated and can't be read"
            )
        }
        Fault::Delivery { address, vector } => {
            format!(
                "the delivery of vector {vector:#x} went through guest-physical address {address:#x}, where it has no memory"
            )
        }
        Fault::Tables(e) => format!("its memory map can't be changed: {e}"),
        Fault::Unknown(code, a, b) => {
            format!("an exit that is not understood: code {code:#x}, information {a:#x} and {b:#x}")
        }
    }
}

/// What the IOMMU blocked, told at most once a second: a guest can make its device do
/// something forbidden as often as it likes.
#[derive(Default)]
pub struct Faults {
    last: u64,
    untold: u64,
}

impl Faults {
    /// Looks, and tells if it is time.
    pub fn report(&mut self) {
        let found = crate::iommu::faults();
        let Some(fault) = found.last() else { return };
        let now = rdtsc();
        if self.last != 0 && now.wrapping_sub(self.last) < crate::cpu::tsc_hz() {
            self.untold += found.len() as u64;
            return;
        }
        let untold = core::mem::take(&mut self.untold) + found.len() as u64 - 1;
        self.last = now;
        crate::memory::while_reporting(|| {
            log::warn!(
                "IOMMU: {:?} of {} blocked: {} ({untold} more)",
                fault.request,
                fault.source,
                fault.reason
            );
        });
    }
}
