//! One run: VMs with a paravirtual disk and fio each, and the sidecore that serves all of them; or
//! one such system on the bare machine, whose disk is QEMU's.
//!
//! Guarantees: of several VMs each opens its first window when all are under load, and takes its
//! load off when all have closed their last.

use super::{loads::Load, way::Way};
use crate::{
    bench::{emulated, guest::Kit, lines, progress::Step, watch::Watch},
    cmdline::LINUX,
};
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    machine::Machine,
    options::file_option,
    session::{Ended, Framing},
};
use plan::{Backing, Class, Control, DeviceName, Disk, Host, OnReset, Plan, Vm};
use proto::Served;
use std::{ffi::OsString, fs::File, path::Path, time::Duration};

/// How long a run may take on a slow machine, and each further VM.
const PATIENCE: Duration = Duration::from_secs(600);
const MORE: Duration = Duration::from_secs(120);
/// Memory of each of several VMs.
const SMALL: u64 = 192 << 20;
/// A null disk, as large as that of the NVMe controller in the other experiments.
const NULL_SIZE: u64 = 1 << 30;
const RAM_SIZE: u64 = 16 << 20;
const PART_SIZE: u64 = 512 << 20;

/// What is run.
pub struct Run {
    /// On what.
    pub way: Way,
    /// In each VM; one alone on the bare machine.
    pub loads: Vec<Load>,
    /// What is behind each disk.
    pub backing: Backing,
    /// How it is served besides; kicks are the way's matter.
    pub control: Control,
    /// Without ELVIS' scheduling.
    pub whole_turns: bool,
    /// Rounds of the plugin's loop before each block that the sidecore executes.
    pub sidecore_slowed: u32,
    /// Rounds of the plugin's loop in each pair of windows: the pairs of a load alone.
    pub rounds: Vec<u64>,
}

/// What a run gave of a guest.
pub struct Ran {
    /// What it said.
    pub guest: lines::Guest,
    /// What the plugin counted at its edges.
    pub edges: Vec<lines::Edge>,
    /// What its sidecore says that it did, from its start to its end; nothing on the bare machine.
    pub served: Served,
}

impl Run {
    fn size(&self) -> u64 {
        match self.backing {
            Backing::Null => NULL_SIZE,
            Backing::Ram => RAM_SIZE,
            Backing::Part(_) => PART_SIZE,
        }
    }

    /// Whether the machine's NVMe controller has a part in it.
    fn has_nvme(&self) -> bool {
        self.way == Way::Assigned || matches!(self.backing, Backing::Part(_))
    }

    fn disk(&self, queues: u16) -> Disk<String> {
        Disk {
            size: self.size(),
            backing: self.backing,
            read_only: false,
            serial: String::new(),
            queues,
            image: None,
            control: Control { kicks: self.way == Way::Classical, ..self.control },
        }
    }

    /// The VM's own, of the VM on this core.
    fn controller(&self, core: u32) -> Vec<DeviceName> {
        let index = core.saturating_sub(1).try_into().unwrap_or(u8::MAX);
        let own = DeviceName::Named { class: Class::Nvme, index };
        (self.way == Way::Assigned).then_some(own).into_iter().collect()
    }

    fn cmdline(&self, load: &Load) -> String {
        let pairs = if self.rounds.is_empty() { load.size.pairs } else { self.rounds.len() as u32 };
        // The second of two that share a core has no spin window: none of several has one.
        let several = if self.loads.len() > 1 { " exitless.guest=1" } else { "" };
        // The last one counts.
        let disk = if self.way == Way::Assigned { " exitless.disk=nvme0n1" } else { "" };
        format!("{LINUX} {}{several}{disk}", load.parameters(pairs))
    }

    fn plan(&self, kit: &Kit) -> Result<Plan<String>> {
        let guest = kit.disk.as_ref().context("the measuring guest wasn't made")?;
        let memory = if self.loads.len() > 1 { SMALL } else { emulated::GUEST_MEMORY };
        let vms = self.loads.iter().zip(1..).map(|(load, core)| Vm {
            name: format!("vm{core}"),
            cpus: vec![core],
            weight: plan::DEFAULT_WEIGHT,
            limit: plan::Limit::default(),
            memory,
            kernel: guest.kernel.display().to_string(),
            initrd: Some(guest.initrd.display().to_string()),
            cmdline: self.cmdline(load),
            devices: self.controller(core),
            interfaces: Vec::new(),
            disks: if self.way == Way::Assigned { vec![] } else { vec![self.disk(1)] },
            interrupts: self.way.policy(),
            reset: OnReset::Stop,
            nested: false,
            iommu: plan::GuestIommu::None,
        });
        let plan = Plan::new(vms.collect());
        let sidecore = (self.way != Way::Assigned).then_some(self.loads.len() as u32 + 1);
        let sidecores = sidecore.into_iter().collect();
        let host = Host { whole_turns: self.whole_turns, ..plan.host };
        Ok(Plan { sidecores, host, ..plan })
    }

    fn bare(&self, kit: &Kit, directory: &Path) -> Result<Machine> {
        let [load] = &self.loads[..] else { bail!("the bare machine runs one load") };
        let guest = kit.disk.as_ref().context("the measuring guest wasn't made")?;
        let mut machine = emulated::bare(guest, &self.cmdline(load), 1, Vec::new());
        machine.extra.extend(self.emulated_disk(directory)?);
        Ok(machine)
    }

    /// The same disk by QEMU.
    fn emulated_disk(&self, directory: &Path) -> Result<Vec<OsString>> {
        let blockdev = if self.backing == Backing::Null {
            format!("null-co,node-name=vda,size={NULL_SIZE},read-zeroes=off").into()
        } else {
            let path = directory.join("disk");
            File::create(&path)
                .and_then(|file| file.set_len(self.size()))
                .context("no file can be made for the disk")?;
            file_option("raw,node-name=vda,file.driver=file,file.filename=", &path)
        };
        let device = "virtio-blk-pci,drive=vda,disable-legacy=on,num-queues=1,queue-size=256";
        Ok(vec!["-blockdev".into(), blockdev, "-device".into(), device.into()])
    }
}

/// Runs it once.
pub fn boot(cx: &Context, kit: &Kit, run: &Run, step: &Step) -> Result<Vec<Ran>> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    // What the machine boots from stays until it has ended.
    let _image;
    let mut machine = match run.way.policy() {
        None => run.bare(kit, scratch.path())?,
        Some(_) => {
            let (machine, kept) = emulated::hosted(cx, run.plan(kit)?, Vec::new())?;
            _image = kept;
            machine
        }
    };
    machine.iommu = Some(kit.iommu);
    if run.has_nvme() {
        emulated::set_nvme(&mut machine);
    }
    let mut plugin = match &run.rounds[..] {
        [] => kit.plugin_writing(&counts),
        rounds => kit.plugin_slowing(&counts, rounds),
    };
    if run.sidecore_slowed > 0 {
        plugin.push(format!(",sidecore={}", run.sidecore_slowed));
    }
    machine.plugin = Some(plugin);
    let mut watch = Watch::new((1..=run.loads.len()).map(|i| format!("vm{i}")).collect());
    let several = u32::try_from(run.loads.len()).unwrap_or(u32::MAX) - 1;
    let (framing, patience) = (
        if run.way == Way::Bare { Framing::Raw } else { Framing::Frames },
        PATIENCE + MORE * several + MORE * run.rounds.len() as u32 / 2,
    );
    let ended = watch.run(cx, &machine, framing, patience, step, |_| false)?;
    ran(&watch, &ended, &counts)
}

/// What each guest said, with its own edges and what its sidecore did for it.
fn ran(watch: &Watch, ended: &Ended, counts: &Path) -> Result<Vec<Ran>> {
    let edges = emulated::counted(counts)?.edges;
    let guests = watch.guests(ended)?;
    let alone = guests.len() == 1;
    let each = guests.into_iter().enumerate().map(|(i, guest)| {
        // One of several is on the core of its number; one alone has all that there are.
        let own = |edge: &&lines::Edge| alone || edge.vcpu == i as u64 + 1;
        let edges = edges.iter().filter(own).cloned().collect();
        let served = watch.report().vms.get(i).map(|vm| vm.paravirtual.total());
        Ran { guest, edges, served: served.unwrap_or_default() }
    });
    Ok(each.collect())
}
