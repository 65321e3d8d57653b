//! What a plan's kernels and command lines lack for its devices, as far as their files tell.
//!
//! Guarantees: each sentence is true of the files that were read. It doesn't guarantee that
//! nothing else is missing: a kernel whose configuration isn't found is taken as it is.

use crate::kernel_config::{Config, State, release};
use crate::load::File;
use plan::{Class, DeviceName, GuestIommu, IommuUnit, Plan, Shown, Vm};
use std::path::Path;

/// Where systems keep the configurations of their kernels.
const BOOT: &str = "/boot";

/// A driver: the kernel's option for it, and how else the sentence names it.
struct Driver {
    option: &'static str,
    device: &'static str,
}

const fn driver(option: &'static str, device: &'static str) -> Driver {
    Driver { option, device }
}

const NVME: &[Driver] = &[driver("CONFIG_BLK_DEV_NVME", "NVMe")];
const NICS: &[Driver] =
    &[driver("CONFIG_IGB", "igb"), driver("CONFIG_E1000E", "e1000e, with --nic e1000e")];
const FUNCTION: &[Driver] = &[driver("CONFIG_IGBVF", "igbvf")];
const SATA: &[Driver] = &[driver("CONFIG_SATA_AHCI", "AHCI")];
/// A disk that a sidecore serves needs both.
const DISK: [&[Driver]; 2] =
    [&[driver("CONFIG_VIRTIO_PCI", "virtio_pci")], &[driver("CONFIG_VIRTIO_BLK", "virtio_blk")]];
/// So does a network.
const NETWORK: [&[Driver]; 2] =
    [&[driver("CONFIG_VIRTIO_PCI", "virtio_pci")], &[driver("CONFIG_VIRTIO_NET", "virtio_net")]];
const USB: &[Driver] = &[driver("CONFIG_USB_XHCI_PCI", "xHCI")];

/// And a virtio-iommu.
const VIRTIO_IOMMU: &[&[Driver]] = &[
    &[driver("CONFIG_VIRTIO_PCI", "virtio_pci")],
    &[driver("CONFIG_VIRTIO_IOMMU", "virtio_iommu")],
];
const VT_D: &[&[Driver]] = &[&[driver("CONFIG_INTEL_IOMMU", "intel_iommu")]];
const AMD_VI: &[&[Driver]] = &[&[driver("CONFIG_AMD_IOMMU", "amd_iommu")]];
/// Either has Linux use a VT-d unit without being told.
const VT_D_BY_DEFAULT: [&str; 2] =
    ["CONFIG_INTEL_IOMMU_DEFAULT_ON", "CONFIG_INTEL_IOMMU_DEFAULT_ON_INTGPU_OFF"];

/// The drivers of a guest's own IOMMU, of each of which one is needed.
fn iommu_drivers(iommu: GuestIommu) -> &'static [&'static [Driver]] {
    match iommu.unit() {
        Some(IommuUnit::VtD) => VT_D,
        Some(IommuUnit::AmdVi) => AMD_VI,
        None if iommu.is_virtio() => VIRTIO_IOMMU,
        None => &[],
    }
}

/// The drivers of which a device needs one; none where nothing is known.
fn drivers(device: DeviceName) -> &'static [Driver] {
    match device {
        DeviceName::Named { class: Class::Nvme, .. } => NVME,
        DeviceName::Named { class: Class::Nic, .. } => NICS,
        DeviceName::Named { class: Class::Sata, .. } => SATA,
        DeviceName::Named { class: Class::Usb, .. } => USB,
        DeviceName::Virtual { .. } => FUNCTION,
        DeviceName::Named { class: Class::Edu, .. } | DeviceName::Address { .. } => &[],
    }
}

/// Whether devices with this name may lack MSI and MSI-X.
fn may_lack_messages(device: DeviceName) -> bool {
    match device {
        DeviceName::Address { .. } => true,
        DeviceName::Named { class, .. } => matches!(class, Class::Sata | Class::Usb),
        DeviceName::Virtual { .. } => false,
    }
}

/// A line for each thing that a guest will miss.
pub fn lines(plan: &Plan<File>) -> Vec<String> {
    plan.vms.iter().flat_map(|vm| of_vm(vm, Path::new(BOOT))).collect()
}

fn of_vm(vm: &Vm<File>, boot: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    if vm.devices.is_empty() && vm.disks.is_empty() && vm.interfaces.is_empty() {
        return lines;
    }
    let name = &vm.name;
    if refuses_messages(&vm.cmdline) {
        lines.push(format!(
            "{name}: with pci=nomsi in its command line its devices give no interrupts: the hypervisor passes on MSI and MSI-X, and no INTx."
        ));
    }
    let unsure: Vec<_> = vm.devices.iter().filter(|d| may_lack_messages(**d)).collect();
    for device in unsure {
        lines.push(format!(
            "{name}: {device} gives no interrupts if it has neither MSI nor MSI-X; the hypervisor's log then says so."
        ));
    }
    let Some(release) = release(&vm.kernel.bytes) else { return lines };
    let config = Config::find(&vm.kernel.path, &release, boot);
    if config.state("CONFIG_PCI_MSI") == State::Missing {
        lines.push(format!(
            "{name}: its kernel ({}) is built without CONFIG_PCI_MSI, so that its devices give no interrupts.",
            Shown(&release)
        ));
    }
    for device in &vm.devices {
        let drivers = drivers(*device);
        lines.extend(lacks(
            &config,
            name,
            &device.to_string(),
            drivers,
            &release,
            vm.initrd.is_some(),
        ));
    }
    let paravirtual = [
        (!vm.disks.is_empty(), "its disk", &DISK[..]),
        (!vm.interfaces.is_empty(), "its network", &NETWORK[..]),
        (true, "its IOMMU", iommu_drivers(vm.iommu)),
    ];
    for (_, what, drivers) in paravirtual.into_iter().filter(|(there, ..)| *there) {
        let lack = |drivers: &&[Driver]| {
            lacks(&config, name, what, drivers, &release, vm.initrd.is_some())
        };
        lines.extend(drivers.iter().filter_map(lack));
    }
    let is_told = vm.cmdline.split_whitespace().any(|word| word.starts_with("intel_iommu="));
    let is_unused = VT_D_BY_DEFAULT.iter().all(|on| config.state(on) == State::Missing);
    let is_vtd = vm.iommu.unit() == Some(IommuUnit::VtD);
    if is_vtd && is_unused && !is_told {
        lines.push(format!(
            "{name}: its kernel ({}) uses its IOMMU with intel_iommu=on in the command line alone.",
            Shown(&release)
        ));
    }
    lines
}

/// Whether a Linux command line turns MSI off.
fn refuses_messages(cmdline: &str) -> bool {
    let options = cmdline.split_whitespace().filter_map(|word| word.strip_prefix("pci="));
    options.flat_map(|list| list.split(',')).any(|option| option == "nomsi")
}

/// The sentence for a device that the kernel can't drive.
fn lacks(
    config: &Config,
    vm: &str,
    device: &str,
    drivers: &[Driver],
    release: &str,
    initrd: bool,
) -> Option<String> {
    let states = || drivers.iter().map(|d| config.state(d.option));
    let list = |word: &str, each: fn(&Driver) -> &'static str| {
        drivers.iter().map(each).collect::<Vec<_>>().join(word)
    };
    if drivers.is_empty() || states().any(|s| matches!(s, State::BuiltIn | State::Unknown)) {
        return None;
    }
    if states().all(|s| s == State::Missing) {
        let cloud = match release.contains("-cloud-") {
            true => "; Debian's linux-image-amd64 has it",
            false => "",
        };
        let options = list(" nor ", |d| d.option);
        let neither = if drivers.len() > 1 { "neither " } else { "no " };
        return Some(format!(
            "{vm}: its kernel ({release}) has no driver for {device}: it is built with {neither}{options}{cloud}."
        ));
    }
    (!initrd).then(|| {
        format!(
            "{vm}: in its kernel ({release}) the driver for {device} ({}) is a module, and the VM has no initrd to load it from.",
            list("; ", |d| d.device)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::tiny_kernel;
    use plan::OnReset;
    use std::fs;

    /// As much of a bzImage as tells its release.
    fn linux(release: &str) -> Vec<u8> {
        let mut kernel = vec![0; 0x400];
        kernel[0x202..0x206].copy_from_slice(b"HdrS");
        kernel[0x20E..0x210].copy_from_slice(&[0x00, 0x01]);
        kernel[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
        kernel
    }

    struct Place(tempfile::TempDir);

    impl Place {
        fn new(config: &str) -> Place {
            let folder = tempfile::tempdir().unwrap();
            if !config.is_empty() {
                fs::write(folder.path().join("config-6.1.0-9-amd64"), config).unwrap();
            }
            Place(folder)
        }

        fn lines(
            &self,
            release: &str,
            cmdline: &str,
            devices: &[&str],
            initrd: bool,
        ) -> Vec<String> {
            of_vm(&self.vm(release, cmdline, devices, initrd), Path::new("/nonexistent"))
        }

        fn vm(&self, release: &str, cmdline: &str, devices: &[&str], initrd: bool) -> Vm<File> {
            let file = |bytes| File { path: self.0.path().join("k"), bytes };
            Vm {
                name: "web".into(),
                cpus: vec![1],
                weight: plan::DEFAULT_WEIGHT,
                limit: plan::Limit::default(),
                memory: 64 << 20,
                kernel: file(linux(release)),
                initrd: initrd.then(|| file(vec![1])),
                cmdline: cmdline.into(),
                devices: devices.iter().map(|d| d.parse().unwrap()).collect(),
                disks: vec![],
                interfaces: vec![],
                interrupts: None,
                reset: OnReset::Stop,
                nested: false,
                iommu: plan::GuestIommu::None,
            }
        }
    }

    const DEBIAN: &str = "6.1.0-9-amd64 (debian-kernel@lists.debian.org) #1 SMP";
    const CONFIG: &str = "\
CONFIG_PCI_MSI=y
CONFIG_BLK_DEV_NVME=m
# CONFIG_IGB is not set
CONFIG_IGB_HWMON=y
# CONFIG_E1000E is not set
CONFIG_IGBVF=y
";

    #[test]
    fn releases_are_read_from_kernels() {
        assert_eq!(release(&linux(DEBIAN)).unwrap(), "6.1.0-9-amd64");
        for nothing in
            [linux(""), linux("../../etc x"), tiny_kernel(), linux("6.1\u{1b} x"), vec![]]
        {
            assert_eq!(release(&nothing), None);
        }
        // The field may point anywhere.
        let mut outside = linux(DEBIAN);
        outside[0x20E..0x210].copy_from_slice(&[0xFF, 0xFF]);
        assert_eq!(release(&outside), None);
        assert_eq!(release(&linux(DEBIAN)[..0x302]), None);
    }

    #[test]
    fn a_kernel_without_a_driver_is_told_by_its_configuration() {
        let place = Place::new(CONFIG);
        let lines = |devices: &[&str], initrd| place.lines(DEBIAN, "", devices, initrd);
        assert_eq!(
            lines(&["nic0", "nvme0", "nic1.vf0", "edu0"], true),
            [
                "web: its kernel (6.1.0-9-amd64) has no driver for nic0: it is built with neither CONFIG_IGB nor CONFIG_E1000E."
            ]
        );
        assert_eq!(
            lines(&["nvme0"], false),
            [
                "web: in its kernel (6.1.0-9-amd64) the driver for nvme0 (NVMe) is a module, and the VM has no initrd to load it from."
            ]
        );
        assert!(lines(&[], false).is_empty());
        let place = Place::new(&CONFIG.replace("# CONFIG_E1000E is not set", "CONFIG_E1000E=m"));
        assert!(place.lines(DEBIAN, "", &["nic0"], true).is_empty());
        assert!(Place::new("").lines(DEBIAN, "", &["nic0"], true).is_empty(), "nothing is known");
    }

    #[test]
    fn a_disk_needs_two_drivers() {
        let disk = || plan::Disk {
            size: 512,
            backing: plan::Backing::Null,
            read_only: false,
            serial: String::new(),
            queues: 1,
            image: None,
            control: plan::Control::default(),
        };
        let told = |config: &str| {
            let place = Place::new(config);
            let vm = Vm { disks: vec![disk()], ..place.vm(DEBIAN, "", &[], false) };
            of_vm(&vm, Path::new("/nonexistent"))
        };
        assert_eq!(
            told("CONFIG_PCI_MSI=y\nCONFIG_VIRTIO_BLK=m\n"),
            [
                "web: its kernel (6.1.0-9-amd64) has no driver for its disk: it is built with no CONFIG_VIRTIO_PCI.",
                "web: in its kernel (6.1.0-9-amd64) the driver for its disk (virtio_blk) is a module, and the VM has no initrd to load it from."
            ]
        );
        assert_eq!(told("CONFIG_PCI_MSI=y\nCONFIG_VIRTIO_PCI=y\nCONFIG_VIRTIO_BLK=y\n"), [""; 0]);
    }

    #[test]
    fn an_iommu_of_the_guest_s_own_needs_its_driver() {
        let told = |config: &str, cmdline: &str, iommu| {
            let place = Place::new(&format!("CONFIG_PCI_MSI=y\nCONFIG_BLK_DEV_NVME=y\n{config}"));
            let vm = Vm { iommu, ..place.vm(DEBIAN, cmdline, &["nvme0"], true) };
            of_vm(&vm, Path::new("/nonexistent"))
        };
        let virtio = told("CONFIG_VIRTIO_PCI=m\n", "", GuestIommu::Virtio);
        assert_eq!(
            virtio,
            [
                "web: its kernel (6.1.0-9-amd64) has no driver for its IOMMU: it is built with no CONFIG_VIRTIO_IOMMU."
            ]
        );
        let config = "CONFIG_VIRTIO_PCI=m\nCONFIG_VIRTIO_IOMMU=m\n";
        assert_eq!(told(config, "", GuestIommu::VirtioOptimistic), [""; 0]);
        let unit = told("", "intel_iommu=on", GuestIommu::VtD);
        assert!(unit[0].ends_with("with no CONFIG_INTEL_IOMMU."), "{unit:?}");
        let config = "CONFIG_INTEL_IOMMU=y\n";
        assert_eq!(
            told(config, "", GuestIommu::VtDOptimistic),
            [
                "web: its kernel (6.1.0-9-amd64) uses its IOMMU with intel_iommu=on in the command line alone."
            ]
        );
        assert_eq!(told(config, "intel_iommu=on,sm_off", GuestIommu::VtD), [""; 0]);
        let config = "CONFIG_INTEL_IOMMU=y\nCONFIG_INTEL_IOMMU_DEFAULT_ON_INTGPU_OFF=y\n";
        assert_eq!(told(config, "", GuestIommu::VtD), [""; 0]);
        let unit = told("", "", GuestIommu::AmdVi);
        assert!(unit[0].ends_with("with no CONFIG_AMD_IOMMU."), "{unit:?}");
        let config = "CONFIG_AMD_IOMMU=y\n";
        assert_eq!(told(config, "", GuestIommu::AmdViOptimistic), [""; 0]);
    }

    #[test]
    fn a_network_needs_two_drivers() {
        let interface = plan::Interface {
            switch: "lan".into(),
            mac: "02:00:00:00:00:01".parse().unwrap(),
            vlan: None,
            queues: 1,
            mtu: 1500,
            rate: None,
            flood: None,
            kicks: false,
        };
        let place = Place::new("CONFIG_PCI_MSI=y\nCONFIG_VIRTIO_PCI=y\n");
        let vm = Vm { interfaces: vec![interface], ..place.vm(DEBIAN, "", &[], false) };
        assert_eq!(
            of_vm(&vm, Path::new("/nonexistent")),
            [
                "web: its kernel (6.1.0-9-amd64) has no driver for its network: it is built with no CONFIG_VIRTIO_NET."
            ]
        );
    }

    #[test]
    fn debians_cloud_kernel_is_known_by_its_name() {
        let release = "6.1.0-9-cloud-amd64 (debian-kernel@lists.debian.org)";
        let lines = Place::new("").lines(release, "", &["nic0", "nic1.vf0", "nvme0"], true);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].ends_with("nor CONFIG_E1000E; Debian's linux-image-amd64 has it."));
        assert!(lines[1].contains("no driver for nic1.vf0: it is built with no CONFIG_IGBVF;"));
    }

    #[test]
    fn devices_without_messages_are_told_of() {
        let place = Place::new("");
        let told = |cmdline: &str| place.lines(DEBIAN, cmdline, &["nvme0"], true).join("\n");
        for cmdline in ["pci=nomsi", "quiet pci=noaer,nomsi x"] {
            assert!(told(cmdline).starts_with("web: with pci=nomsi in its command line"));
        }
        for cmdline in ["", "nomsi", "pci=nomsix", "xpci=nomsi"] {
            assert_eq!(told(cmdline), "", "{cmdline}");
        }
        let lines = place.lines(DEBIAN, "", &["00:1f.2", "sata0", "nic0"], true);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("web: 00:1f.2 gives no interrupts if it has "));
        let place = Place::new("CONFIG_BLK_DEV_NVME=y\n");
        let lines = place.lines(DEBIAN, "", &["nvme0"], true);
        assert!(lines[0].contains("is built without CONFIG_PCI_MSI"), "{lines:?}");
    }
}
