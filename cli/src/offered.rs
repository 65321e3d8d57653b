//! What a machine offers, as its serial line was recorded when it started without a plan; and what
//! a plan asks for beyond that.
//!
//! Guarantees: a plan without a complaint here isn't refused by that machine for its cores, memory
//! or devices, as far as the hypervisor told of them. Virtual functions are made when a plan is
//! booted, and so aren't known here.

use crate::{
    load,
    report::Report,
    stream::{Demux, Piece},
    table::Table,
};
use anyhow::{Result, bail};
use plan::{DeviceName, Escaped, Plan, Size};
use proto::offer::{Address, Function, Offer};
use std::path::Path;

/// More than any machine says of itself.
const LONGEST: u64 = 64 << 20;

/// A machine's inventory.
#[derive(Debug)]
pub struct Offered {
    report: Report,
}

impl Offered {
    /// Reads a recording.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = load::read(path, LONGEST, "any recording of a start has")?;
        let mut report = Report::default();
        let mut demux = Demux::default();
        demux.push(&bytes, |piece| {
            if let Piece::Record(record) = piece {
                report.see(&record);
            }
        });
        let name = Escaped(&path.display().to_string()).to_string();
        if let Some(reason) = &report.refused {
            bail!("{name} is of a machine on which the hypervisor refused to start: {reason}");
        }
        match report.offers.last() {
            Some(Offer::Complete) if report.machine.is_some() => Ok(Offered { report }),
            Some(_) => bail!("{name} isn't whole: the recording ends within the inventory"),
            None => bail!(
                "{name} has no inventory: it must be what came from the serial line, byte for byte, while `exitless image --without-plan` started the machine"
            ),
        }
    }

    fn functions(&self) -> impl Iterator<Item = &Function> {
        self.report.offers.iter().filter_map(|offer| match offer {
            Offer::Function(function) => Some(function),
            _ => None,
        })
    }

    /// Bytes that VMs may have.
    fn memory(&self) -> u64 {
        let machine = self.report.machine.as_ref();
        machine.map_or(0, |machine| machine.memory.saturating_sub(machine.host_memory))
    }

    /// The inventory, for people.
    pub fn shown(&self) -> String {
        let mut text = String::new();
        let machine = self
            .report
            .offers
            .iter()
            .filter(|offer| !matches!(offer, Offer::Function(_) | Offer::Complete));
        for offer in machine {
            text += &format!("{}\n", Escaped(&offer.to_string()));
        }
        text += &format!("memory for VMs: {}\n\n", Size(self.memory() >> 21 << 21));
        let mut table = Table::new(["function", "device", "class", "as", "interrupts", "reset"]);
        for f in self.functions() {
            let name = f.name.as_deref().unwrap_or("its address");
            let interrupts = match (f.msix, f.msi) {
                (0, 0) => "none".into(),
                (0, msi) => format!("{msi} by MSI"),
                (msix, _) => format!("{msix} by MSI-X"),
            };
            table.row([
                Address(f.address).to_string(),
                format!("{:04x}:{:04x}", f.ids.0, f.ids.1),
                format!("{:06x}", f.class),
                if f.refused.is_some() { "-".into() } else { Escaped(name).to_string() },
                interrupts,
                Escaped(f.reset.as_deref().unwrap_or("none")).to_string(),
            ]);
        }
        text += &table.to_string();
        for f in self.functions() {
            if let Some(why) = &f.refused {
                text += &format!("{}: {}\n", Address(f.address), Escaped(why));
            } else if !f.together.is_empty() {
                let others: Vec<_> = f.together.iter().map(|o| Address(*o).to_string()).collect();
                text +=
                    &format!("{}: one VM has it and {}\n", Address(f.address), others.join(", "));
            }
        }
        text
    }

    /// What the plan asks for and the machine doesn't offer, a sentence each.
    pub fn lacks<F>(&self, plan: &Plan<F>) -> Vec<String> {
        let mut wrong = Vec::new();
        for offer in &self.report.offers {
            match offer {
                Offer::Missing(_) => wrong.push(format!("{}", Escaped(&offer.to_string()))),
                Offer::Cores { ready, .. } => cores(plan, ready, &mut wrong),
                _ => {}
            }
        }
        let wanted: u64 = plan.vms.iter().map(|vm| vm.memory).sum();
        if wanted > self.memory() {
            let has = Size(self.memory() >> 21 << 21);
            wrong.push(format!("the VMs have {} together, the machine has {has}", Size(wanted)));
        }
        self.devices(plan, &mut wrong);
        wrong
    }

    fn devices<F>(&self, plan: &Plan<F>, wrong: &mut Vec<String>) {
        let mut taken: Vec<(&Function, &str)> = Vec::new();
        for vm in &plan.vms {
            for name in &vm.devices {
                let said = format!("VM {:?}: device {name}", vm.name);
                let Some(f) = self.find(name) else {
                    wrong.push(format!("{said} isn't in the machine"));
                    continue;
                };
                if matches!(name, DeviceName::Virtual { .. }) {
                    continue;
                }
                if let Some(why) = &f.refused {
                    wrong.push(format!("{said} {}", Escaped(why)));
                }
                for (other, owner) in &taken {
                    if other.address == f.address {
                        wrong.push(format!("{said} is VM {owner:?}'s, too"));
                    } else if *owner != vm.name && f.together.contains(&other.address) {
                        let other = Address(other.address);
                        wrong.push(format!(
                            "{said} can't be kept apart from {other} of VM {owner:?}"
                        ));
                    }
                }
                taken.push((f, &vm.name));
            }
        }
    }

    /// The function of this name; of a virtual one the controller.
    fn find(&self, name: &DeviceName) -> Option<&Function> {
        let wanted = match name {
            DeviceName::Virtual { nic, .. } => format!("nic{nic}"),
            other => other.to_string(),
        };
        self.functions().find(|f| {
            f.name.as_deref() == Some(&*wanted) || Address(f.address).to_string() == wanted
        })
    }
}

fn cores<F>(plan: &Plan<F>, ready: &[u32], wrong: &mut Vec<String>) {
    for vm in &plan.vms {
        for core in vm.cpus.iter().filter(|core| !ready.contains(core)) {
            let sentence = format!("VM {:?}: core {core} isn't among those for guests", vm.name);
            if !wrong.contains(&sentence) {
                wrong.push(sentence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::{OnReset, Vm};
    use proto::{
        Record, encode,
        frame::{MAX_PAYLOAD, RECORDS, header},
    };

    fn function(address: u32, name: &str) -> Function {
        let name = (!name.is_empty()).then(|| name.to_owned());
        Function { address, name, msix: 4, ..Function::default() }
    }

    /// What the serial line of a machine with two cores for guests carries.
    fn recording(offers: &[Offer]) -> Vec<u8> {
        let machine = Record::Machine { cpus: 3, memory: 3 << 30, tsc_hz: 1, host_memory: 1 << 30 };
        let records = offers.iter().cloned().map(Record::Offer);
        let mut bytes = b"BIOS\r\n".to_vec();
        for record in [machine].into_iter().chain(records) {
            for part in encode(&record).chunks(MAX_PAYLOAD) {
                bytes.extend(header(RECORDS, part.len() as u8).iter().chain(part));
            }
        }
        bytes
    }

    fn whole() -> Vec<Offer> {
        let bridge = Function { refused: Some("is a bridge".into()), ..function(0, "") };
        let pair = Function { together: vec![0x21], ..function(0x20, "nvme0") };
        let other = Function { together: vec![0x20], ..function(0x21, "nvme1") };
        let mut offers = vec![Offer::Cores { ready: vec![1, 2], silent: vec![3] }];
        offers.extend([bridge, pair, other, function(0x30, "nic0")].map(Offer::Function));
        offers.push(Offer::Complete);
        offers
    }

    fn read(bytes: &[u8]) -> Result<Offered> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("machine.log");
        std::fs::write(&path, bytes).unwrap();
        Offered::read(&path)
    }

    fn vm(name: &str, core: u32, devices: &[&str]) -> Vm<()> {
        Vm {
            name: name.to_owned(),
            cpus: vec![core],
            weight: 100,
            memory: 1 << 30,
            kernel: (),
            initrd: None,
            cmdline: String::new(),
            devices: devices.iter().map(|d| d.parse().unwrap()).collect(),
            interrupts: None,
            reset: OnReset::Stop,
        }
    }

    #[test]
    fn a_recording_is_read_and_what_is_none_is_told_apart() {
        let offered = read(&recording(&whole())).unwrap();
        let shown = offered.shown();
        assert!(shown.contains("cores for guests: 1 to 2; listed, but not started: 3"), "{shown}");
        assert!(shown.contains("memory for VMs: 2G"), "{shown}");
        assert!(shown.contains("00:00.0: is a bridge"), "{shown}");
        assert!(shown.contains("00:04.0: one VM has it and 00:04.1"), "{shown}");
        let cut = &whole()[..3];
        assert!(read(&recording(cut)).unwrap_err().to_string().contains("isn't whole"));
        assert!(read(b"hello").unwrap_err().to_string().contains("has no inventory"));
        let mut bytes = recording(&whole());
        bytes.truncate(bytes.len() - 1);
        assert!(read(&bytes).is_err());
    }

    #[test]
    fn each_thing_that_a_machine_lacks_is_a_sentence() {
        let offered = read(&recording(&whole())).unwrap();
        let lacks = |vms: Vec<Vm<()>>| offered.lacks(&Plan::new(vms));
        assert_eq!(
            lacks(vec![vm("a", 1, &["nvme0", "nvme1"]), vm("b", 2, &["nic0.vf1"])]),
            [""; 0]
        );
        assert_eq!(lacks(vec![vm("a", 3, &[])]), ["VM \"a\": core 3 isn't among those for guests"]);
        assert_eq!(
            lacks(vec![vm("a", 1, &["nvme2"])]),
            ["VM \"a\": device nvme2 isn't in the machine"]
        );
        assert_eq!(lacks(vec![vm("a", 1, &["00:00.0"])]), ["VM \"a\": device 00:00.0 is a bridge"]);
        let apart = lacks(vec![vm("a", 1, &["nvme0"]), vm("b", 2, &["nvme1"])]);
        assert_eq!(apart, ["VM \"b\": device nvme1 can't be kept apart from 00:04.0 of VM \"a\""]);
        let twice = lacks(vec![vm("a", 1, &["nvme0"]), vm("b", 2, &["00:04.0"])]);
        assert_eq!(twice, ["VM \"b\": device 00:04.0 is VM \"a\"'s, too"]);
        let large = lacks(vec![Vm { memory: 4 << 30, ..vm("a", 1, &[]) }]);
        assert_eq!(large, ["the VMs have 4G together, the machine has 2G"]);
        let mut offers = whole();
        offers.insert(0, Offer::Missing("no SVM".into()));
        let none = read(&recording(&offers)).unwrap().lacks(&Plan::new(vec![vm("a", 1, &[])]));
        assert_eq!(none, ["no VM can run here: no SVM"]);
    }
}
