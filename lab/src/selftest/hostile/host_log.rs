//! What the host may and must say in its log of attackers and their devices.

use super::disks;
use crate::selftest::case::Guest;
use attacks::Blocked;
use plan::{Class, DeviceName};

/// The host has nothing to warn of but a guest that writes faster than anybody reads, and what the
/// IOMMU blocked of attackers' devices.
pub fn host(log: &[String], attackers: &[Guest]) -> Vec<String> {
    let expected = |l: &str| {
        l.contains("wrote to its console faster than it is sent")
            || attackers.iter().any(|g| blocked(l, g))
            || disks::gives_up(l, attackers)
    };
    let alarming = |l: &&String| {
        l.starts_with("error: ")
            || l.starts_with("warning: ") && !expected(l)
            || l.contains("panic")
    };
    log.iter().filter(alarming).map(|l| format!("the host says: {l}")).collect()
}

/// Whether a line tells of DMA that was blocked, by a device of this VM.
fn blocked(line: &str, guest: &Guest) -> bool {
    guest.devices.iter().any(|device| blocked_of(line, device))
}

/// Whether it does, by this device.
fn blocked_of(line: &str, device: &DeviceName) -> bool {
    let of = place(device).is_some_and(|place| line.contains(&place));
    of && line.contains("IOMMU: ") && line.contains(" blocked: ")
}

/// What QEMU's AMD-Vi calls all DMA that it blocks, reads and writes alike (11.1.3, seen): it marks
/// them as interrupts in its log and gives no address.
const BLOCKED_BY_AMD_VI: &str = "an interrupt by a message to 0x0 ";

/// Whether a line tells of this, by a device of this VM.
pub fn named(line: &str, guest: &Guest, blocked: Blocked) -> bool {
    let class = match blocked.device {
        attacks::Device::Edu => Class::Edu,
        attacks::Device::Nvme => Class::Nvme,
    };
    let is =
        |device: &&DeviceName| matches!(device, DeviceName::Named { class: c, .. } if *c == class);
    let told = [blocked.what, BLOCKED_BY_AMD_VI].into_iter().any(|what| line.contains(what));
    told && guest.devices.iter().filter(is).any(|d| blocked_of(line, d))
}

/// Where the emulated machine has a device, as the host writes it.
pub fn place(device: &DeviceName) -> Option<String> {
    let slot = match device {
        DeviceName::Named { class: Class::Nvme, index } => 0x04 + index,
        DeviceName::Named { class: Class::Edu, index } => 0x10 + index,
        _ => return None,
    };
    Some(format!(" 00:{slot:02x}.0 "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::case::Cores;
    use attacks::Attack;
    use plan::Policy;

    #[test]
    fn each_attack_by_dma_must_be_told_of() {
        let guest = super::super::attacker("dma", Policy::Eli, Cores::Next, 0);
        let told = |lines: &[&str]| {
            let log: Vec<_> = lines
                .iter()
                .map(|l| format!("warning: IOMMU: {l} was blocked: its domain; 0 more"))
                .collect();
            let dma = attacks::chosen("dma").flat_map(|s| s.attacks);
            let named =
                |a: &&Attack| a.blocked.is_some_and(|b| log.iter().any(|l| named(l, &guest, b)));
            let told = dma.filter(named);
            told.map(|a| a.name).collect::<Vec<_>>()
        };
        assert_eq!(told(&["a write of page 0x1000 by device 00:10.0"]), ["edu"]);
        assert_eq!(told(&["a read of page 0x1000 by device 00:05.0"]), ["queues"]);
        assert_eq!(
            told(&[
                "a read of page 0x7000 by device 00:10.0",
                "a write of page 0x1000 by device 00:05.0"
            ]),
            ["nvme"]
        );
        assert_eq!(told(&["a write of page 0x1000 by device 00:11.0"]), [""; 0], "another VM's");
        let both = ["edu", "nvme", "queues"];
        let amd =
            ["00:10.0", "00:05.0"].map(|device| format!("{BLOCKED_BY_AMD_VI}by device {device}"));
        assert_eq!(told(&amd.each_ref().map(String::as_str)), both);
    }

    #[test]
    fn the_host_must_not_complain_but_of_attackers() {
        let guest =
            super::super::attacker("dma", Policy::Eli, crate::selftest::case::Cores::Next, 0);
        let attackers = [guest];
        let log = |line: &str| host(&[line.to_owned()], &attackers).len();
        assert_eq!(log("Exitless 0.1.0"), 0);
        assert_eq!(log("warning: x"), 1);
        assert_eq!(log("error: y"), 1);
        assert_eq!(
            log("warning: IOMMU: a read of page 0x1000 by device 00:10.0 was blocked: its domain"),
            0
        );
        assert_eq!(
            log("warning: IOMMU: a read of page 0x1000 by device 00:05.0 was blocked: its domain"),
            0
        );
        assert_eq!(
            log("warning: IOMMU: a read of page 0x1000 by device 00:04.0 was blocked: its domain"),
            1,
            "Linux's"
        );
    }
}
