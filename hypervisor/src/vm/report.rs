//! How a VM ended, told to the command line: its counters, what it did wrong, where it was.

use crate::console;
use crate::cpu::rdtsc;
use crate::cpu::vendor::VirtualCpu;
use crate::vm::ending::Cause;
use crate::vm::stop::{Fault, Incident, Stop};
use crate::vm::{Vcpu, Vm};
use alloc::format;
use alloc::string::String;
use proto::{End, Record};

impl<C: VirtualCpu> Vcpu<C> {
    /// Sends the counters of this vCPU.
    pub(super) fn report_counters(&self) {
        crate::memory::while_reporting(|| {
            console::record(&Record::Counters {
                vm: self.vm.guest.index as u32,
                vcpu: self.id as u32,
                counters: self.ledger.counters(),
                cycles: rdtsc().wrapping_sub(self.started),
            });
        });
    }

    /// Sends what the guest did wrong, and the end of the VM.
    pub(super) fn report_end(&mut self) {
        let vm = self.vm;
        let incident = self.with_pc(|pc, _| pc.board().incident());
        crate::memory::while_reporting(|| {
            let index = vm.guest.index as u32;
            vm.report_served();
            if let Some(incident) = incident {
                let what = vm.incident_sentence(incident);
                console::record(&Record::Incident { vm: index, what });
            }
            if let Some(cause) = vm.ending.cause() {
                console::record(&Record::Ended { vm: index, end: vm.end_of(cause) });
            }
        });
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Tells in the log of a reset that the guest may not have meant, once a second at most.
    pub(super) fn report_restart(&self) {
        let Some(cause) = self.vm.ending.cause() else { return };
        if let Stop::Fault(fault) = cause.stop
            && self.vm.told_restart.claim(rdtsc())
        {
            let (name, vcpu, rip) = (&self.vm.guest.name, cause.vcpu, cause.rip);
            crate::memory::while_reporting(|| {
                let what = sentence(fault);
                log::info!("VM {name:?}, vCPU {vcpu}, at RIP {rip:#x}: {what}; it starts again");
            });
        }
    }
}

impl Vm {
    /// Sends what was done for each queue of its disks and networks.
    pub fn report_served(&self) {
        for (device, port) in &self.served {
            for (queue, served) in (0..).zip(port.served()) {
                let (vm, device, core) = (self.guest.index as u32, *device, port.core() as u32);
                let features = port.features();
                console::record(&Record::Paravirtual { vm, device, queue, core, features, served });
            }
        }
    }

    fn end_of(&self, cause: Cause) -> End {
        match cause.stop {
            Stop::PowerOff => End::PowerOff,
            Stop::Reset => End::Reset,
            Stop::DebugExit(code) => End::DebugExit(code),
            Stop::Audit(finding) => {
                End::Fault(format!("VM {:?} isn't confined any more: {finding}", self.guest.name))
            }
            Stop::Fault(fault) => End::Fault(format!(
                "VM {:?}, vCPU {}, at RIP {:#x}: {}",
                self.guest.name,
                cause.vcpu,
                cause.rip,
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
        format!("VM {:?}: {what}; refused, and the guest went on", self.guest.name)
    }
}

fn sentence(fault: Fault) -> String {
    match fault {
        Fault::Shutdown => "triple fault".into(),
        Fault::MachineCheck => "the machine reported an error (machine check)".into(),
        Fault::Service => "it called a BIOS, and a VM has none".into(),
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
