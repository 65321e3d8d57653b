//! The emulated machine as a QEMU command line: q35, an AMD CPU model with SVM and
//! x2APIC, an IOMMU with interrupt remapping, and the devices to assign.
//!
//! The same machine boots either the hypervisor with a boot image, by QEMU or by firmware, or a
//! guest's kernel directly: *bare*, what a VM is compared with.
//!
//! Guarantees: devices have fixed addresses (NVMe `i` at 00:(4+i).0, network controller `i`
//! at 00:(8+2i).0, edu `i` at 00:(10h+i).0), so that a plan can name them; AMD's IOMMU is at
//! 00:01.0, as a device, and the I/O APIC at 00:14.0, as far as it tells; the machine's serial port
//! is the process's standard input and output; the process dies with its parent.

use crate::{
    context::Context,
    firmware::Firmware,
    network::{Forward, Nic, NicModel},
    options::file_option,
    qemu::Iommu,
};
use anyhow::{Context as _, Result, bail};
use plan::{Class, DeviceName, Plan};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

/// What the hypervisor itself may need, image and guests apart.
const HOST_MEMORY: u64 = 256 << 20;
/// The last core that the hypervisor can find: its tables of the machine hold 1024.
const LAST_CORE: u32 = 1023;
/// q35 puts what is above this at 4 GiB, so that a large VM needs it in one piece there.
const LOW_MEMORY: u64 = 2 << 30;
const MIB: u64 = 1 << 20;
/// The CPU of a machine whose guests run guests of their own: with VMLOAD and VMSAVE by the guest,
/// which QEMU emulates and counts to no model.
pub const NESTING_CPU: &str = "max,x-force-features=on,+v-vmsave-vmload";
/// A disk that takes no time, for what measures the way to it, and forgets what is written.
pub const NULL_DISK: Disk = Disk::Null { bytes: 1 << 30 };

/// Places on the PCI bus for a kind of device.
struct Places {
    /// The first one's slot.
    first: u32,
    /// From one's slot to the next one's.
    step: u32,
    /// How many there is room for.
    count: usize,
}

const NVME: Places = Places { first: 0x04, step: 1, count: 4 };
/// The virtual functions of the controller in slot `s` are in slots `s + 10h` and `s + 11h`,
/// which must be free: up to 1Dh.
const NIC: Places = Places { first: 0x08, step: 2, count: 3 };
/// Slot 14h is the I/O APIC's where the IOMMU is AMD's.
const EDU: Places = Places { first: 0x10, step: 1, count: 4 };

/// The emulated machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What it boots.
    pub boot: Boot,
    /// CPUs, the host's core 0 among them.
    pub cpus: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// QEMU's CPU model with its flags.
    pub cpu: String,
    /// Its IOMMU.
    pub iommu: Option<Iommu>,
    /// Whether that remaps interrupts.
    pub remaps: bool,
    /// One NVMe controller for each.
    pub disks: Vec<Disk>,
    /// QEMU's educational devices.
    pub edus: usize,
    /// Network controllers.
    pub nics: Vec<Nic>,
    /// A TCG plugin with its arguments, as `-plugin` takes it.
    pub plugin: Option<OsString>,
    /// More arguments for QEMU.
    pub extra: Vec<OsString>,
}

/// What a machine boots.
#[derive(Clone, Debug)]
pub enum Boot {
    /// The hypervisor with a boot image.
    Exitless {
        /// Its ELF.
        hypervisor: PathBuf,
        /// The boot image.
        image: PathBuf,
    },
    /// What its firmware finds.
    Firmware(Firmware),
    /// A guest's kernel, directly.
    Bare {
        /// bzImage or ELF with a PVH note.
        kernel: PathBuf,
        /// Its initial RAM disk.
        initrd: Option<PathBuf>,
        /// Its command line.
        cmdline: String,
    },
}

/// What is behind an NVMe controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Reads give zeroes, writes are forgotten, neither takes time.
    Null {
        /// Its size.
        bytes: u64,
    },
    /// A raw image; the guest's writes go there.
    File(PathBuf),
}

impl Machine {
    /// A machine that runs `plan` from the boot image at `image`: with the cores, memory
    /// and devices it names. `disks` come first; further NVMe controllers get [`NULL_DISK`].
    pub fn exitless<F>(
        hypervisor: &Path,
        image: &Path,
        plan: &Plan<F>,
        disks: Vec<Disk>,
    ) -> Result<Machine> {
        let boot = Boot::Exitless { hypervisor: hypervisor.to_owned(), image: image.to_owned() };
        Machine::booting(boot, image.metadata().map_or(0, |m| m.len()), plan, disks)
    }

    /// The same by whatever boots such a plan, which takes `boot_memory` bytes.
    pub fn booting<F>(
        boot: Boot,
        boot_memory: u64,
        plan: &Plan<F>,
        disks: Vec<Disk>,
    ) -> Result<Machine> {
        let guests = plan.vms.iter().flat_map(|vm| &vm.cpus);
        let cores = guests.chain(&plan.sidecores).max().copied().unwrap_or(0);
        if cores > LAST_CORE {
            bail!("core {cores}: the emulated machine has at most cores 0 to {LAST_CORE}");
        }
        let memory = Machine::memory_for(plan, boot_memory);
        let mut machine =
            Machine { cpus: cores.saturating_add(1), disks, ..Machine::with(boot, memory) };
        if plan.vms.iter().any(|vm| vm.nested) {
            machine.cpu = NESTING_CPU.into();
        }
        for vm in &plan.vms {
            let added = machine.add_devices(vm.devices.iter().copied());
            added.with_context(|| format!("[vm.{}] devices", vm.name))?;
        }
        for (vm, disk) in plan.disks() {
            let added = machine.add_devices(disk.part().map(|(part, _)| part.device).into_iter());
            added.with_context(|| format!("[vm.{}] disk", vm.name))?;
        }
        machine.add_devices(plan.uplinks().map(|(device, _)| device))?;
        machine.add_devices(
            plan.shared_nics().map(|s| DeviceName::Named { class: Class::Nic, index: s.nic }),
        )?;
        Ok(machine)
    }

    /// Bytes of memory of a machine that runs `plan`, where what boots takes `boot_memory` bytes.
    pub fn memory_for<F>(plan: &Plan<F>, boot_memory: u64) -> u64 {
        memory(used_memory(plan), boot_memory)
    }

    /// How many NVMe and how many network controllers a machine for `plan` has at least.
    pub fn controllers<F>(plan: &Plan<F>) -> Result<(usize, usize)> {
        let nowhere = Path::new("");
        let machine = Machine::exitless(nowhere, nowhere, plan, Vec::new())?;
        Ok((machine.disks.len(), machine.nics.len()))
    }

    /// The same kind of machine with one CPU and `memory` bytes that boots a kernel directly.
    pub fn bare(
        kernel: &Path,
        initrd: Option<&Path>,
        cmdline: &str,
        memory: u64,
        disks: Vec<Disk>,
    ) -> Machine {
        let (kernel, initrd) = (kernel.to_owned(), initrd.map(Path::to_owned));
        let boot = Boot::Bare { kernel, initrd, cmdline: cmdline.to_owned() };
        Machine { disks, ..Machine::with(boot, memory) }
    }

    fn with(boot: Boot, memory: u64) -> Machine {
        Machine {
            boot,
            cpus: 1,
            memory,
            cpu: "max".into(),
            iommu: Some(Iommu::default()),
            remaps: true,
            disks: Vec::new(),
            edus: 0,
            nics: Vec::new(),
            plugin: None,
            extra: Vec::new(),
        }
    }

    /// Adds devices until each of these names is one, where that is possible; the
    /// hypervisor says which aren't there.
    pub fn add_devices(&mut self, names: impl Iterator<Item = DeviceName>) -> Result<()> {
        for name in names {
            match name {
                DeviceName::Named { class, index } => self.add(name, class, index.into())?,
                DeviceName::Virtual { nic, .. } => self.add(name, Class::Nic, nic.into())?,
                DeviceName::Address { segment: 0, bus: 0, device, function: 0 } => {
                    for class in [Class::Nvme, Class::Nic, Class::Edu] {
                        if let Some(index) = places(class).and_then(|p| p.index(device.into())) {
                            self.add(name, class, index)?;
                        }
                    }
                }
                DeviceName::Address { segment, .. } if segment != 0 => bail!(
                    "{name}: the emulated machine has no PCI segment but 0; for a machine elsewhere there is `exitless check --machine`"
                ),
                DeviceName::Address { .. } => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, name: DeviceName, class: Class, index: usize) -> Result<()> {
        let Some(places) = places(class) else { return Ok(()) };
        if index >= places.count {
            let (count, class) = (places.count, class.label());
            bail!(
                "{name}: the emulated machine has room for {count} devices of this kind, {class}0 to {class}{}",
                count - 1
            );
        }
        match class {
            Class::Nvme => self.disks.resize(self.disks.len().max(index + 1), NULL_DISK),
            Class::Nic => self.nics.resize(self.nics.len().max(index + 1), Nic::default()),
            _ => self.edus = self.edus.max(index + 1),
        }
        Ok(())
    }

    /// Makes the first network controllers ones of these models, adding as many as are missing,
    /// and forwards ports.
    pub fn connect(&mut self, models: &[NicModel], forwards: &[Forward]) -> Result<()> {
        self.nics.resize(self.nics.len().max(models.len()), Nic::default());
        for (nic, model) in self.nics.iter_mut().zip(models) {
            nic.model = *model;
        }
        let mut seen = BTreeSet::new();
        for forward in forwards {
            let count = self.nics.len();
            let Some(nic) = self.nics.get_mut(forward.nic) else {
                let (port, nic) = (forward.port, forward.nic);
                match count {
                    0 => bail!(
                        "--forward: no VM has a network controller for port {port} to lead to; add --device nic0, or \"nic0\" to the devices in a plan"
                    ),
                    1 => bail!(
                        "--forward: there is no nic{nic} for port {port}; the machine has nic0 alone"
                    ),
                    n => bail!(
                        "--forward: there is no nic{nic} for port {port}; the machine has nic0 to nic{}",
                        n - 1
                    ),
                }
            };
            if !seen.insert((forward.tcp, forward.port)) {
                bail!("--forward: port {} is given twice; each leads to one guest", forward.port);
            }
            nic.forwards.push(forward.clone());
        }
        Ok(())
    }

    /// The command that runs this machine.
    pub fn command(&self, cx: &Context) -> Result<Command> {
        for (what, given, room) in [
            ("disks", self.disks.len(), NVME.count),
            ("network controllers", self.nics.len(), NIC.count),
        ] {
            if given > room {
                bail!("{given} {what} are given; the emulated machine has room for {room}");
            }
        }
        // Should this process be killed outright, QEMU must not run on.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(cx.qemu(self.iommu)?.program());
        command.args(self.arguments());
        Ok(command)
    }

    /// QEMU's arguments.
    fn arguments(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut add = |option: &str, value: OsString| args.extend([option.into(), value]);
        let secure = matches!(&self.boot, Boot::Firmware(firmware) if firmware.is_secure());
        add("-machine", if secure { "q35,smm=on" } else { "q35" }.into());
        add("-accel", "tcg".into());
        add("-cpu", self.cpu.clone().into());
        add("-smp", self.cpus.to_string().into());
        add("-m", format!("{}M", self.memory.div_ceil(MIB)).into());
        match &self.boot {
            Boot::Exitless { hypervisor, image } => {
                add("-kernel", hypervisor.into());
                add("-initrd", image.into());
            }
            // After all that has an address of its own.
            Boot::Firmware(_) => {}
            Boot::Bare { kernel, initrd, cmdline } => {
                add("-kernel", kernel.into());
                if let Some(initrd) = initrd {
                    add("-initrd", initrd.into());
                }
                add("-append", cmdline.into());
            }
        }
        // Before the devices that it serves.
        if let Some(iommu) = self.iommu {
            add("-device", iommu.device(self.remaps).into());
        }
        add("-device", format!("isa-debug-exit,iobase={:#x},iosize=4", proto::exit::PORT).into());
        for (i, disk) in self.disks.iter().enumerate() {
            add("-blockdev", disk.blockdev(i));
            let slot = NVME.slot(i);
            add("-device", format!("nvme,serial=exitless{i},drive=disk{i},addr={slot:#x}").into());
        }
        for (i, nic) in self.nics.iter().enumerate() {
            let (model, slot) = (nic.model.label(), NIC.slot(i));
            add("-netdev", nic.netdev(&format!("net{i}")).into());
            // Nothing boots from it: it needs no option ROM.
            add("-device", format!("{model},netdev=net{i},romfile=,addr={slot:#x}").into());
        }
        for slot in (0..self.edus).map(|i| EDU.slot(i)) {
            add("-device", format!("edu,addr={slot:#x}").into());
        }
        if let Some(plugin) = &self.plugin {
            add("-plugin", plugin.clone());
        }
        if let Boot::Firmware(firmware) = &self.boot {
            args.extend(firmware.arguments());
        }
        let mut add = |option: &str, value: OsString| args.extend([option.into(), value]);
        add("-chardev", "stdio,id=console,signal=off".into());
        add("-serial", "chardev:console".into());
        add("-display", "none".into());
        args.extend(["-nodefaults", "-no-reboot"].map(OsString::from));
        args.extend(self.extra.iter().cloned());
        args
    }
}

impl Disk {
    fn blockdev(&self, index: usize) -> OsString {
        match self {
            Disk::Null { bytes } => {
                format!("null-co,node-name=disk{index},size={bytes},read-zeroes=on").into()
            }
            Disk::File(path) => {
                let node = format!("raw,node-name=disk{index},file.driver=file,file.filename=");
                file_option(&node, path)
            }
        }
    }
}

impl Places {
    fn slot(&self, index: usize) -> u32 {
        self.first + self.step * index as u32
    }

    /// Which of the devices has this slot.
    fn index(&self, slot: u32) -> Option<usize> {
        (0..self.count).find(|i| self.slot(*i) == slot)
    }
}

/// Where devices of a kind are; none of the others can be added.
fn places(class: Class) -> Option<Places> {
    match class {
        Class::Nvme => Some(NVME),
        Class::Nic => Some(NIC),
        Class::Edu => Some(EDU),
        Class::Sata | Class::Usb => None,
    }
}

/// Bytes of memory that the guests have, and their disks.
pub fn used_memory<F>(plan: &Plan<F>) -> u64 {
    let guests: u64 = plan.vms.iter().map(|vm| vm.memory).sum();
    guests.saturating_add(plan.disk_memory())
}

/// How much memory holds the VMs with their disks, what boots and the hypervisor. QEMU takes it
/// from the system only as it is used.
fn memory(guests: u64, boot: u64) -> u64 {
    let host = HOST_MEMORY.saturating_add(boot);
    let all = guests.saturating_add(host);
    if all <= LOW_MEMORY { all } else { guests.saturating_add(host.max(LOW_MEMORY)) }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
