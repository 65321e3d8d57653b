//! One run of VMs with the test kernel, where Linux would be too slow or too much: each reads from
//! a disk of its own, or writes bytes to its emulated serial port.
//!
//! Guarantees: of several VMs each opens its first window when all are under load, and takes its
//! load off when all have closed their last. No guest has a timer that runs, so there are no ticks.

use super::{boot::Ran, figures::Member, way::Way};
use crate::bench::{emulated, guest::Kit, lines::Edge, progress::Step, watch::Watch};
use anyhow::{Context as _, Result};
use exitless::{context::Context, session::Framing};
use plan::{Backing, Class, Control, DeviceName, Disk, Host, OnReset, Part, Plan, Vm};
use std::{path::Path, time::Duration};

/// How long a run may take, and each further VM.
const PATIENCE: Duration = Duration::from_secs(120);
const MORE: Duration = Duration::from_secs(30);
const NULL: u64 = 1 << 30;
/// Bytes of each one's part of a controller.
const PART: u64 = 64 << 20;

/// The load of one VM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// What is done.
    pub what: What,
    /// Operations of a window, of which there are two.
    pub length: u32,
    /// How its disk is served besides; kicks are the way's matter.
    pub control: Control,
}

/// What a VM does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Reads of 4 KiB, so many under way at a time.
    Reads(u32),
    /// Bytes to the serial port.
    Bytes,
}

/// VMs that run together.
#[derive(Clone, Debug)]
pub struct Run {
    /// How requests and replies pass.
    pub way: Way,
    /// Each VM's load.
    pub loads: Vec<Load>,
    /// What is behind the disks.
    pub behind: Behind,
    /// Each two of them share a core.
    pub in_pairs: bool,
    /// Without ELVIS' scheduling.
    pub whole_turns: bool,
}

/// What is behind each disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nothing.
    Null,
    /// A part of the first NVMe controller.
    Nvme,
}

impl Run {
    /// Each VM with a null disk, on a core of its own.
    pub fn new(way: Way, loads: Vec<Load>) -> Run {
        Run { way, loads, behind: Behind::Null, in_pairs: false, whole_turns: false }
    }

    /// The core of the VM with this index, and whether it is the second one there.
    fn place(&self, index: usize) -> (u32, bool) {
        if self.in_pairs {
            (index as u32 / 2 + 1, index % 2 == 1)
        } else {
            (index as u32 + 1, false)
        }
    }

    fn cores(&self) -> u32 {
        self.loads.len().checked_sub(1).map_or(0, |last| self.place(last).0)
    }

    fn cmdline(&self, index: usize, load: &Load) -> String {
        let policy = self.way.policy().map_or("bare", plan::Policy::label);
        let what = match load.what {
            What::Reads(depth) => format!("measured-reads depth={depth}"),
            What::Bytes => "measured-bytes".to_owned(),
        };
        let mut line =
            format!("test={what} policy={policy} warmup={0} length={0} windows=2", load.length);
        let options = [
            (self.in_pairs, " shared=yes"),
            (self.place(index).1, " second=yes"),
            (self.loads.len() > 1, " together=yes"),
        ];
        options.iter().filter(|(on, _)| *on).for_each(|(_, option)| line.push_str(option));
        line
    }

    fn disk(&self, index: usize, load: &Load) -> Option<Disk<String>> {
        let kicks = self.way == Way::Classical;
        let (size, backing) = match self.behind {
            Behind::Null => (NULL, Backing::Null),
            Behind::Nvme => {
                let device = DeviceName::Named { class: Class::Nvme, index: 0 };
                (PART, Backing::Part(Part { device, offset: PART * index as u64 }))
            }
        };
        (load.what != What::Bytes).then(|| Disk {
            size,
            backing,
            read_only: false,
            serial: String::new(),
            queues: 1,
            image: None,
            control: Control { kicks, ..load.control },
        })
    }

    fn plan(&self, kernel: &Path) -> Plan<String> {
        let vms = self.loads.iter().enumerate().map(|(index, load)| Vm {
            name: format!("vm{}", index + 1),
            cpus: vec![self.place(index).0],
            weight: plan::DEFAULT_WEIGHT,
            limit: plan::Limit::default(),
            memory: plan::MIN_MEMORY,
            kernel: kernel.display().to_string(),
            initrd: None,
            cmdline: self.cmdline(index, load),
            devices: Vec::new(),
            disks: self.disk(index, load).into_iter().collect(),
            interfaces: Vec::new(),
            interrupts: self.way.policy(),
            reset: OnReset::Stop,
            nested: false,
            iommu: plan::GuestIommu::None,
        });
        let plan = Plan::new(vms.collect());
        let host = Host { whole_turns: self.whole_turns, ..plan.host };
        let served = plan.vms.iter().any(|vm| !vm.disks.is_empty());
        let sidecores = served.then_some(self.cores() + 1).into_iter().collect();
        Plan { sidecores, host, ..plan }
    }
}

/// Runs them once; `what` they are, for who watches.
pub fn run(cx: &Context, kit: &Kit, run: &Run, what: &str) -> Result<Vec<Member>> {
    let step = Step::begin(format!("{what:<22} {}", run.way.label()));
    let members = boot(cx, kit, run, &step)
        .and_then(|ran| ran.into_iter().map(Member::of).collect::<Result<Vec<_>>>());
    match &members {
        Ok(all) => step.end(&format!("{} counted", all.iter().map(|m| m.operations).sum::<u64>())),
        Err(_) => step.end("failed"),
    }
    members
}

fn boot(cx: &Context, kit: &Kit, run: &Run, step: &Step) -> Result<Vec<Ran>> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let plan = run.plan(&cx.build_bare_metal("kernels")?);
    let mut watch = Watch::new(plan.vms.iter().map(|vm| vm.name.clone()).collect());
    // What the machine boots from stays until it has ended.
    let (mut machine, _image) = emulated::hosted(cx, plan, Vec::new())?;
    machine.iommu = Some(kit.iommu);
    if run.behind == Behind::Nvme {
        emulated::set_nvme(&mut machine);
    }
    machine.plugin = Some(kit.plugin_writing(&counts));
    let (framing, patience) = (Framing::Frames, PATIENCE + MORE * run.loads.len() as u32);
    let ended = watch.run(cx, &machine, framing, patience, step, |_| false)?;
    let edges = emulated::counted(&counts)?.edges;
    let each = watch.guests(&ended)?.into_iter().enumerate().map(|(index, guest)| {
        let (core, second) = run.place(index);
        let own = |edge: &&Edge| edge.vcpu == u64::from(core) && edge.of == u64::from(second);
        let edges = edges.iter().filter(own).cloned().collect();
        let served = watch.report().vms.get(index).map(|vm| vm.paravirtual.total());
        Ran { guest, edges, served: served.unwrap_or_default() }
    });
    Ok(each.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(what: What) -> Load {
        Load { what, length: 10, control: Control::default() }
    }

    #[test]
    fn each_vm_has_a_core_and_the_sidecore_the_next() {
        let run =
            Run { whole_turns: true, ..Run::new(Way::DIRECT, vec![load(What::Reads(32)); 3]) };
        let plan = run.plan(Path::new("/k"));
        assert_eq!((plan.sidecores, plan.host.whole_turns), (vec![4], true));
        let cpus: Vec<_> = plan.vms.iter().flat_map(|vm| vm.cpus.clone()).collect();
        assert_eq!(cpus, [1, 2, 3]);
        assert!(plan.vms[0].cmdline.ends_with("windows=2 together=yes"));
    }

    #[test]
    fn of_a_pair_the_second_has_markers_of_its_own() {
        let loads = vec![load(What::Reads(1)); 4];
        let run = Run { in_pairs: true, behind: Behind::Nvme, ..Run::new(Way::ELI, loads) };
        let plan = run.plan(Path::new("/k"));
        let of = |i: usize| (plan.vms[i].cpus[0], plan.vms[i].cmdline.contains("second=yes"));
        assert_eq!([of(0), of(1), of(2), of(3)], [(1, false), (1, true), (2, false), (2, true)]);
        assert_eq!(plan.sidecores, [3]);
        let Backing::Part(part) = plan.vms[3].disks[0].backing else { panic!("no part") };
        assert_eq!(part.offset, 3 * PART);
    }

    #[test]
    fn bytes_need_neither_disk_nor_sidecore() {
        let plan = Run::new(Way::TRAP, vec![load(What::Bytes)]).plan(Path::new("/k"));
        assert!(plan.sidecores.is_empty() && plan.vms[0].disks.is_empty());
        let line = "test=measured-bytes policy=trap warmup=10 length=10 windows=2";
        assert_eq!(plan.vms[0].cmdline, line);
    }
}
