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
        Fault::InvalidState => {
            "it brought its control registers into a state that no CPU can be entered in".into()
        }
        Fault::Fetch(a) => format!(
            "it ran code or used page tables at guest-physical address {a:#x}, where it has no memory"
        ),
        Fault::Instruction { address, why } => {
            format!(
                "it used guest-physical address {address:#x}, which is no memory, by an instruction that isn't emulated: {why}"
            )
        }
        Fault::Unreadable { address } => {
            format!(
                "it used guest-physical address {address:#x}, which is no memory, by an instruction that can't be read"
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
