//! VMs with a part of one NVMe controller and an interface at one switch each, and the one sidecore
//! that serves all of it: fio in all of them at once, then netperf from each to the next.
//!
//! Guarantees: each VM opens its first window of a load when all are under that load, and takes it
//! off when all have closed their last: whatever is counted has the same load of all others beside
//! it. The ways differ in the kicks and in how interrupts come, and in nothing else.

use super::{
    boot::Ran,
    figures::{Member, Together},
    way::Way,
};
use crate::{
    bench::{emulated, guest::Kit, lines, progress::Step, watch::Watch, workload::Size},
    cmdline::LINUX,
};
use anyhow::{Context as _, Result, bail};
use exitless::{context::Context, session::Framing};
use plan::{Backing, Class, Control, DeviceName, Disk, Interface, Mac, OnReset, Part, Plan, Vm};
use proto::{Served, ServedDevice};
use std::time::Duration;

/// How long a run may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// Memory of each VM.
const MEMORY: u64 = 256 << 20;
/// Bytes of each one's part: fifteen of them are in the controller's namespace.
const PART: u64 = 64 << 20;
/// Reads under way at a time in each VM.
pub const DEPTH: u32 = 32;
/// The windows of fio, in reads, and of netperf, in datagrams that a VM receives.
const READS: Size = Size { warmup: 500, short: 500, long: 2_000, pairs: 2 };
const DATAGRAMS: Size = Size { warmup: 200, short: 200, long: 800, pairs: 2 };

/// What was counted of them.
pub struct Both {
    /// Under fio.
    pub disks: Together,
    /// Under netperf.
    pub networks: Together,
}

/// What a way is called beside the other one.
pub fn label(way: Way) -> &'static str {
    if way == Way::Classical { "classical" } else { "exitless" }
}

/// Runs so many of them.
pub fn run(cx: &Context, kit: &Kit, n: u8, way: Way) -> Result<Both> {
    let step = Step::begin(format!("{n} VMs, {}", label(way)));
    let both = boot(cx, kit, n, way, &step);
    match &both {
        Ok(both) => {
            let [ios, datagrams] =
                [&both.disks, &both.networks].map(|together| together.sum(|m| m.operations));
            step.end(&format!("{ios} I/Os, {datagrams} datagrams"));
        }
        Err(_) => step.end("failed"),
    }
    both
}

fn plan(kit: &Kit, n: u8, way: Way) -> Result<Plan<String>> {
    let guest = kit.network.as_ref().context("the guest with fio and netperf wasn't made")?;
    let kicks = way == Way::Classical;
    let device = DeviceName::Named { class: Class::Nvme, index: 0 };
    let vm = |number: u8| Vm {
        name: format!("vm{number}"),
        cpus: vec![number.into()],
        weight: plan::DEFAULT_WEIGHT,
        limit: plan::Limit::default(),
        memory: MEMORY,
        kernel: guest.kernel.display().to_string(),
        initrd: Some(guest.initrd.display().to_string()),
        cmdline: cmdline(number, n),
        devices: Vec::new(),
        disks: vec![Disk {
            size: PART,
            backing: Backing::Part(Part { device, offset: u64::from(number - 1) * PART }),
            read_only: false,
            serial: String::new(),
            queues: 1,
            image: None,
            control: Control { kicks, ..Control::default() },
        }],
        interfaces: vec![Interface {
            switch: "lan".to_owned(),
            mac: Mac([2, 0, 0, 0, 0, number]),
            vlan: None,
            queues: 1,
            mtu: plan::DEFAULT_MTU,
            rate: None,
            flood: None,
            kicks,
        }],
        interrupts: way.policy(),
        reset: OnReset::Stop,
        nested: false,
        iommu: plan::GuestIommu::None,
    };
    Ok(Plan { sidecores: vec![u32::from(n) + 1], ..Plan::new((1..=n).map(vm).collect()) })
}

/// Of the VM with this number, of so many: the next one's address is the one it asks.
fn cmdline(number: u8, n: u8) -> String {
    let (disk, net, next) = (READS, DATAGRAMS, number % n + 1);
    format!(
        "{LINUX} exitless.workload=fio-then-udp-rr exitless.guest=1 exitless.disk=vda exitless.depth={DEPTH} exitless.pairs={} exitless.warmup={} exitless.short={} exitless.long={} exitless.second-warmup={} exitless.second-short={} exitless.second-long={} exitless.network=10.9.0.{number}/24 exitless.peer=1 exitless.host=10.9.0.{next}",
        disk.pairs, disk.warmup, disk.short, disk.long, net.warmup, net.short, net.long,
    )
}

fn boot(cx: &Context, kit: &Kit, n: u8, way: Way, step: &Step) -> Result<Both> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let plan = plan(kit, n, way)?;
    let names = plan.vms.iter().map(|vm| vm.name.clone()).collect();
    // What the machine boots from stays until it has ended.
    let (mut machine, _image) = emulated::hosted(cx, plan, Vec::new())?;
    machine.iommu = Some(kit.iommu);
    emulated::set_nvme(&mut machine);
    machine.plugin = Some(kit.plugin_writing(&counts));
    let mut watch = Watch::new(names).loads(2);
    let (framing, patience) = (Framing::Frames, PATIENCE);
    let ended = watch.run(cx, &machine, framing, patience, step, |_| false)?;
    let edges = emulated::counted(&counts)?.edges;
    let [mut disks, mut networks] = [Vec::new(), Vec::new()];
    for (i, guest) in watch.guests(&ended)?.into_iter().enumerate() {
        let own = edges.iter().filter(|edge| edge.vcpu == i as u64 + 1).cloned().collect();
        let served = |device, queues: u32| {
            let mut sum = Served::default();
            if let Some(vm) = watch.report().vms.get(i) {
                (0..queues).for_each(|queue| sum.add(&vm.paravirtual.of(device, queue)));
            }
            sum
        };
        let served = [(ServedDevice::Disk(0), 1), (ServedDevice::Network(0), 3)]
            .map(|(device, queues)| served(device, queues));
        let [disk, network] = halves(guest, own, served)?;
        disks.push(Member::of(disk)?);
        networks.push(Member::of(network)?);
    }
    let [disks, networks] = [disks, networks].map(|bulk| Together { bulk, latency: None });
    Ok(Both { disks, networks })
}

/// The windows of the first load, and those of the second.
fn halves(
    mut guest: lines::Guest,
    mut edges: Vec<lines::Edge>,
    [disk, network]: [Served; 2],
) -> Result<[Ran; 2]> {
    let first = 2 * READS.pairs as usize;
    let all = first + 2 * DATAGRAMS.pairs as usize;
    if guest.windows.len() != all || edges.len() != 2 * all {
        let (windows, edges) = (guest.windows.len(), edges.len());
        bail!("a VM reported {windows} windows and had {edges} edges, {all} and two each wanted");
    }
    let (windows, later) = (guest.windows.split_off(first), edges.split_off(2 * first));
    let second = lines::Guest { windows, ..lines::Guest::default() };
    Ok([Ran { guest, edges, served: disk }, Ran { guest: second, edges: later, served: network }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_asks_the_next_and_the_last_asks_the_first() {
        let hosts: Vec<_> = (1..=3)
            .map(|number| cmdline(number, 3).rsplit_once("10.9.0.").unwrap().1.to_owned())
            .collect();
        assert_eq!(hosts, ["2", "3", "1"]);
    }

    #[test]
    fn windows_are_the_first_loads_and_then_the_seconds() {
        let line = |n: u64| {
            format!(
                "@exitless window kind=short spun=0 operations={n} interrupts=0 ticks=0 nanoseconds=0\n"
            )
        };
        let guest = || lines::guest(&(0..8).map(line).collect::<String>()).unwrap();
        let edge = |vmruns| lines::Edge { vmruns, ..lines::Edge::default() };
        let edges: Vec<_> = (0..16).map(edge).collect();
        let none = [Served::default(); 2];
        let [disk, network] = halves(guest(), edges.clone(), none).unwrap();
        assert_eq!((disk.guest.windows.len(), disk.edges.len()), (4, 8));
        assert_eq!((network.guest.windows[0].operations, network.edges[0].vmruns), (4, 8));
        assert!(halves(guest(), edges[1..].to_vec(), none).is_err());
    }
}
