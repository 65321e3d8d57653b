//! `exitless check`: is a plan one that can be run, and what does it say? And is it one for a
//! machine whose inventory there is?

use crate::{
    advice,
    load::{self, File},
    machine::{self, Machine},
    offered::Offered,
    room::Room,
    say::print,
    served,
    table::{Table, rounded},
};
use anyhow::{Result, bail};
use plan::{GuestIommu, IommuUnit, Micros, Plan, Policy, Size, Vm};
use std::{collections::BTreeSet, path::PathBuf};

const EXAMPLE: &str = "\
A plan:
  slice = \"5ms\"               # how long one runs where others wait for the core
  [vm.web]
  cpus = [1]                  # physical cores; core 0 is the host's
  weight = 100                # of its vCPUs on a shared core, 1 to 10000
  limit = { iops = 20000, rate = \"100M/s\" }  # of what sidecores serve it
  memory = \"1G\"
  kernel = \"vmlinuz\"          # bzImage, ELF with a PVH note, or multiboot
  initrd = \"initrd.img\"
  cmdline = \"console=ttyS0\"
  devices = [\"nvme0\"]         # or \"00:04.0\", with a segment \"0001:02:00.0\"
  disk = { size = \"64M\" }     # by a sidecore: docs/running.md; part of an NVMe
                              # controller: { device = \"nvme0\", size = \"1G\" }
  network = { switch = \"lan\" }  # to VMs that name the same switch
  interrupts = \"auto\"         # auto, trap, eli-delivery, eli, direct, posted
  reset = \"restart\"           # or stop: what a reset of its own leads to
  nested = false              # true: it may run guests (SVM), on own cores
  iommu = \"none\"              # or virtio, vt-d, amd-vi: for its devices
  [host]
  iommu_faults = \"elsewhere\"  # or nmi, limit: docs/running.md says more
  without_interrupt_remapping = \"refuse\"  # or trust-every-guest
  screen = \"all\"              # whose consoles a display shows; or a VM's name
  at_end = \"stay\"             # or power-off, reset: when every VM has ended
  sidecores = [2]             # cores that serve disks and networks; or how many
  sidecore_latency = \"100us\"  # the others help when disks wait so long
  [network.nic0]              # its virtual functions are nic0.vf0, nic0.vf1 …
  vfs = 2                     # how many; else as many as are named
  macs = [\"02:00:00:00:00:01\"]  # of the first ones
  [network.nic1]
  uplink = \"lan\"              # that switch's way to a network outside
Only kernel has to be given. Paths start at the plan's directory.

What the plan names but the machine may not have (cores, memory, devices) is checked
by the hypervisor when it boots. Whether a Linux kernel has drivers for the VM's devices
is told if its configuration (config-RELEASE) is beside it or in /boot.

For a machine elsewhere:
  exitless image --without-plan -o look.img  start it, record its serial line
  exitless check --machine look.log          what that machine has
  exitless check vm.toml --machine look.log  does the plan fit it?";

/// Said where there is no recording of the machine.
const UNKNOWN: &str =
    "Whether the machine has these cores, memory and devices is checked when it boots.\n";

/// Said where there is nothing to check.
const NOTHING: &str = "nothing to check is given; `exitless check vm.toml` checks a plan, \
                       `exitless check --machine look.log` shows what a machine has that was \
                       recorded, and both together whether the plan fits it";

/// Check a plan and show it.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = crate::help::flow(EXAMPLE))]
pub struct Args {
    /// The plan; without, --machine shows the machine alone
    #[arg(value_name = "VM.TOML")]
    file: Option<PathBuf>,
    /// Check it for this machine, too: FILE has what came from its serial line when it started
    /// what `exitless image --without-plan` makes
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
}

/// Shows the plan, or fails with what is wrong with it.
pub fn check(args: &Args) -> Result<()> {
    let machine = args.machine.as_deref().map(Offered::read).transpose()?;
    let Some(file) = &args.file else {
        let Some(machine) = machine else { bail!("{NOTHING}") };
        return print(machine.shown());
    };
    let plan = load::plan(file)?;
    print(show(&plan)?)?;
    let Some(machine) = machine else {
        let room = Room::now().and_then(|room| no_room(&plan, room));
        return print(room.unwrap_or_default() + UNKNOWN);
    };
    let lacks = machine.lacks(&plan, plan::image::build(&plan)?.len() as u64);
    for line in machine.warnings(&plan).iter().chain(&lacks) {
        print(format!("{line}\n"))?;
    }
    match lacks.len() {
        0 => {
            let unknown = machine.unknown(&plan).join("\n");
            print(format!("The machine has what the plan asks for.\n{unknown}\n"))
        }
        1 => bail!("the machine lacks what the plan asks for: the line above says what"),
        n => bail!("the machine lacks what the plan asks for: the {n} lines above say what"),
    }
}

/// Whether the emulated machine has no place here: a line. The plan may be for another machine.
fn no_room(plan: &Plan<File>, room: Room) -> Option<String> {
    let (guests, disks) = (machine::used_memory(plan), plan.disk_memory());
    let image = plan::image::build(plan).ok()?.len() as u64;
    let needed = Machine::memory_for(plan, image);
    let error = room.check(guests.saturating_sub(disks), disks, needed).err()?;
    Some(format!("`exitless run` can't run it here: {error}.\n"))
}

fn show(plan: &Plan<File>) -> Result<String> {
    let mut table = Table::new([
        "VM",
        "core",
        "memory",
        "interrupts",
        "devices",
        "kernel",
        "initrd",
        "command line",
    ]);
    for vm in &plan.vms {
        let list = |items: Vec<String>| if items.is_empty() { "-".into() } else { items.join(" ") };
        let file = |file: &File| {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            format!("{name}, {}", rounded(file.bytes.len() as u64))
        };
        table.row([
            vm.name.clone(),
            list(vm.cpus.iter().map(u32::to_string).collect()),
            Size(vm.memory).to_string(),
            plan::choice_label(vm.interrupts).into(),
            list(vm.devices.iter().map(ToString::to_string).collect()),
            format!("{} ({})", file(&vm.kernel), load::format_name(load::format(vm)?)),
            vm.initrd.as_ref().map_or("-".into(), file),
            if vm.cmdline.is_empty() { "-".into() } else { vm.cmdline.clone() },
        ]);
    }
    let mut notes = shared_cores(plan) + &own_units(plan);
    for shared in plan.shared_nics() {
        let macs = |i| match shared.macs.get(usize::from(i)) {
            Some(mac) => format!("vf{i} {mac}"),
            None => format!("vf{i}"),
        };
        let functions: Vec<_> = (0..shared.vfs).map(macs).collect();
        notes += &format!("nic{} has {}.\n", shared.nic, functions.join(", "));
        notes += &served::held_back(shared);
    }
    notes += &served::by_drivers(plan);
    notes += &served::lines(plan);
    for line in advice::lines(plan) {
        notes += &format!("{line}\n");
    }
    let memory = Size(plan.vms.iter().map(|vm| vm.memory).sum());
    let disks = match plan.disk_memory() {
        0 => String::new(),
        bytes => {
            let sizes = plan.disks().filter(|(_, disk)| disk.memory() > disk.size);
            let rounded = if sizes.count() > 0 { " (each rounded up to 2M)" } else { "" };
            format!(", {} of RAM disks{rounded}", Size(bytes))
        }
    };
    let vms = match plan.vms.len() {
        1 => "1 VM".into(),
        n => format!("{n} VMs"),
    };
    Ok(format!(
        "{table}{notes}The plan is good: {vms}, {memory} of guest memory{disks}; core 0 is the host's.\n"
    ))
}

/// A line for each VM that may run guests of its own, or has an IOMMU of its own.
fn own_units(plan: &Plan<File>) -> String {
    let line = |vm: &Vm<File>| {
        let unit = match vm.iommu {
            GuestIommu::None => None,
            GuestIommu::Virtio | GuestIommu::VirtioOptimistic => Some("a virtio-iommu"),
            GuestIommu::VtD | GuestIommu::VtDOptimistic => Some("a VT-d unit"),
            GuestIommu::AmdVi | GuestIommu::AmdViOptimistic => Some("an AMD-Vi unit"),
        };
        let behind = unit.map(|unit| format!("has its devices behind {unit} of its own"));
        let says: Vec<_> = vm
            .nested
            .then(|| "may run guests of its own".into())
            .into_iter()
            .chain(behind)
            .collect();
        let posts = match (vm.nested, vm.iommu.unit(), vm.interrupts) {
            (true, Some(IommuUnit::AmdVi), Some(Policy::Trap)) => {
                ", which posts interrupts to its guests"
            }
            (true, Some(IommuUnit::AmdVi), _) => {
                ", which posts nothing to its guests (interrupts = \"trap\" has it do so)"
            }
            _ => "",
        };
        match says.len() {
            0 => String::new(),
            _ => format!("{}: it {}{posts}.\n", vm.name, says.join(" and ")),
        }
    };
    plan.vms.iter().map(line).collect()
}

/// A line for each core that isn't one vCPU's own: who is on it, how they share it.
fn shared_cores(plan: &Plan<File>) -> String {
    let cores: BTreeSet<u32> = plan.vms.iter().flat_map(|vm| &vm.cpus).copied().collect();
    let line = |core: u32| {
        let on_it = plan.vms.iter().filter(|vm| vm.cpus.contains(&core));
        let who: Vec<_> = on_it
            .map(|vm| match vm.cpus.iter().filter(|c| **c == core).count() {
                1 => format!("{} (weight {})", vm.name, vm.weight),
                n => format!("{} ({n} vCPUs, weight {} each)", vm.name, vm.weight),
            })
            .collect();
        format!(
            "Core {core} is shared by {}, {} at a time.\n",
            who.join(", "),
            Micros(plan.slice_us)
        )
    };
    cores.into_iter().filter(|core| plan.shares(*core) > 1).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_good_plan_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        fs::write(&file, "[vm.a]\nkernel='k'\ndevices=['nvme0','00:05.0']\n[network.nic1]\nvfs=2\nmacs=['02:00:00:00:00:01']\n").unwrap();
        let shown = show(&load::plan(&file).unwrap()).unwrap();
        let expected = "  \
  VM  core  memory  interrupts  devices        kernel                   initrd  command line
  a      1  1G      auto        nvme0 00:05.0  k, 32 bytes (multiboot)  -       -
nic1 has vf0 02:00:00:00:00:01, vf1.
a: nvme0, 00:05.0 hold interrupts back as their own drivers say.
a: 00:05.0 gives no interrupts if it has neither MSI nor MSI-X; the hypervisor's log then says so.
The plan is good: 1 VM, 1G of guest memory; core 0 is the host's.
";
        assert_eq!(shown, expected);
    }

    /// A plan may come from somebody else.
    #[test]
    fn what_a_plan_says_steers_no_terminal() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k\u{1b}[2J"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        let text = "[vm.a]\nkernel=\"k\\u001b[2J\"\ncmdline=\"a\\u001b[2J\\nb pci=nomsi\"\ndevices=['nvme0']\n";
        fs::write(&file, text).unwrap();
        let shown = show(&load::plan(&file).unwrap()).unwrap();
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
        assert!(shown.contains("a\\u{1b}[2J\\nb") && shown.contains("k\\u{1b}[2J, 32"), "{shown}");
        assert_eq!(shown.lines().count(), 5, "{shown}");
        assert!(shown.contains("\na: with pci=nomsi in its command line"), "{shown}");
    }

    #[test]
    fn guests_of_a_guest_and_its_own_iommu_are_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        let said = |more: &str| {
            let text = format!("[host]\nsidecores=1\n[vm.a]\nkernel='k'\n{more}");
            fs::write(&file, text).unwrap();
            let shown = show(&load::plan(&file).unwrap()).unwrap();
            shown.lines().find(|line| line.starts_with("a: it")).map(str::to_owned)
        };
        assert_eq!(said(""), None);
        let nested = said("nested=true\n").unwrap();
        assert_eq!(nested, "a: it may run guests of its own.");
        let behind = said("devices=['nvme0']\niommu='vt-d-optimistic'\n").unwrap();
        assert_eq!(behind, "a: it has its devices behind a VT-d unit of its own.");
        let both = "nested=true\ndevices=['nvme0']\niommu='amd-vi'\n";
        assert!(said(both).unwrap().contains("posts nothing to its guests"));
        let posts = said(&format!("{both}interrupts='trap'\n")).unwrap();
        assert!(posts.ends_with("which posts interrupts to its guests."), "{posts}");
    }

    #[test]
    fn ram_disks_that_take_more_than_they_hold_are_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        let end = |size: &str| {
            let text = format!("[host]\nsidecores=1\n[vm.a]\nkernel='k'\ndisk={{size='{size}'}}\n");
            fs::write(&file, text).unwrap();
            let shown = show(&load::plan(&file).unwrap()).unwrap();
            shown.lines().last().unwrap().to_owned()
        };
        assert!(end("1M").contains(", 2M of RAM disks (each rounded up to 2M); core 0"));
        assert!(end("4M").contains(", 4M of RAM disks; core 0"));
    }

    /// Who leaves out the file is told of both that can be given.
    #[test]
    fn nothing_to_check_is_told() {
        let error = check(&Args { file: None, machine: None }).unwrap_err().to_string();
        assert!(error.contains("check vm.toml") && error.contains("--machine look.log"), "{error}");
    }

    #[test]
    fn a_plan_that_has_no_room_here_is_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        let text = "[host]\nsidecores=1\n[vm.a]\nkernel='k'\ndisk={size='15T'}\n";
        fs::write(&file, text).unwrap();
        let plan = load::plan(&file).unwrap();
        let said = no_room(&plan, Room::now().unwrap()).unwrap();
        assert!(said.starts_with("`exitless run` can't run it here: 1G for VMs and 15T"), "{said}");
        fs::write(&file, "[vm.a]\nkernel='k'\nmemory='64M'\n").unwrap();
        assert_eq!(no_room(&load::plan(&file).unwrap(), Room::now().unwrap()), None);
    }

    #[test]
    fn shared_cores_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("k"), load::tests::tiny_kernel()).unwrap();
        let file = dir.path().join("vm.toml");
        let text = "slice='500us'\n[vm.a]\nkernel='k'\ncpus=[1, 1, 2]\n[vm.b]\ncpus=[1]\nkernel='k'\nweight=300\n";
        fs::write(&file, text).unwrap();
        let plan = load::plan(&file).unwrap();
        assert_eq!(
            shared_cores(&plan),
            "Core 1 is shared by a (2 vCPUs, weight 100 each), b (weight 300), 500us at a time.\n"
        );
        assert!(show(&plan).unwrap().contains(&shared_cores(&plan)));
    }
}
