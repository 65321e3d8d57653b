//! Two VMs at one switch of one sidecore, stock Linux in both: netperf from the first to the
//! second, or a server in the first that the second asks.
//!
//! Guarantees: each way has the same guests and the same windows, which are the first VM's. What
//! the second VM's core does is counted in instructions alone: its exits aren't those of a window.

use super::{
    boot::Ran,
    figures::Alone,
    output::{Row, Shown, name},
    way::Way,
};
use crate::{
    bench::{
        emulated,
        guest::Kit,
        progress::Step,
        show::{Block, Source, Table, three, whole},
        watch::Watch,
        workload::{Effort, Size},
    },
    cmdline::LINUX,
};
use anyhow::{Context as _, Result};
use exitless::{context::Context, report::Report, session::Framing};
use ledger::Reason;
use plan::{Interface, Mac, OnReset, Plan, Vm};
use std::time::Duration;

/// How long a run may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(600);
const MEMORY: u64 = 384 << 20;
/// Exits rarer than this per operation have no line.
const RARE: f64 = 0.0005;

/// What goes from one to the other.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// TCP_STREAM, 64-byte writes
    SmallStream,
    /// TCP_STREAM, 16 KiB writes
    Stream,
    /// UDP_RR: a packet there, a packet back
    Packet,
    /// Apache, asked for a page of 4 KiB by ApacheBench, four requests at a time
    Apache,
    /// memcached, 90 % get, 64 requests under way, by memcaslap
    Memcached,
}

impl Exchange {
    const fn title(self) -> &'static str {
        match self {
            Exchange::SmallStream => "netperf TCP_STREAM, 64-byte writes",
            Exchange::Stream => "netperf TCP_STREAM, 16 KiB writes",
            Exchange::Packet => "netperf UDP_RR",
            Exchange::Apache => "Apache, 4 KiB page, 4 at a time",
            Exchange::Memcached => "memcached, 90 % get, 64 at a time",
        }
    }

    const fn operation(self) -> &'static str {
        match self {
            Exchange::SmallStream | Exchange::Stream => "write",
            Exchange::Packet => "transaction",
            Exchange::Apache | Exchange::Memcached => "request",
        }
    }

    /// Bytes of a write.
    const fn bytes(self) -> Option<u32> {
        match self {
            Exchange::SmallStream => Some(64),
            Exchange::Stream => Some(16_384),
            Exchange::Packet | Exchange::Apache | Exchange::Memcached => None,
        }
    }

    fn size(self, effort: Effort) -> Size {
        let unit = match self {
            Exchange::SmallStream => 20_000,
            Exchange::Stream => 1_000,
            Exchange::Packet => 500,
            Exchange::Apache => 50,
            Exchange::Memcached => 500,
        };
        let times = if effort == Effort::Full { 3 } else { 1 };
        let short = unit * times;
        Size { warmup: short, short, long: 5 * short, pairs: 2 }
    }

    fn parameters(self, effort: Effort) -> String {
        let Size { warmup, short, long, pairs } = self.size(effort);
        let load = match self {
            Exchange::SmallStream => "netperf-stream exitless.message=64",
            Exchange::Stream => "netperf-stream exitless.message=16384",
            Exchange::Packet => "udp-rr exitless.busy=0",
            Exchange::Apache => "apache",
            Exchange::Memcached => "memcached",
        };
        format!(
            "exitless.workload={load} exitless.peer=1 exitless.host=10.9.0.2 exitless.network=10.9.0.1/24 exitless.warmup={warmup} exitless.short={short} exitless.long={long} exitless.pairs={pairs}"
        )
    }

    /// What the second VM is told.
    fn peer(self) -> String {
        let load = match self {
            Exchange::SmallStream | Exchange::Stream | Exchange::Packet => {
                "between exitless.role=server"
            }
            Exchange::Apache => "ask exitless.program=apache exitless.host=10.9.0.1",
            Exchange::Memcached => "ask exitless.program=memcached exitless.host=10.9.0.1",
        };
        format!("exitless.workload={load} exitless.network=10.9.0.2/24")
    }
}

/// Each of these, each way that isn't one of disks alone: the bare machine has no switch.
pub fn measure(
    cx: &Context,
    kit: &Kit,
    exchanges: &[Exchange],
    ways: &[Way],
    effort: Effort,
) -> Result<Shown> {
    let mut shown = Shown::default();
    for &exchange in exchanges {
        let mut cells = Vec::new();
        for &way in ways {
            if matches!(way, Way::Classical | Way::Polled(_)) {
                cells.push(one(cx, kit, exchange, way, effort)?);
            }
        }
        shown.add(table(exchange, &cells));
    }
    Ok(shown)
}

fn plan(kit: &Kit, exchange: Exchange, way: Way, effort: Effort) -> Result<Plan<String>> {
    let guest = kit.network.as_ref().context("the guest with netperf wasn't made")?;
    let vm = |number: u8, parameters: &str| Vm {
        name: format!("vm{number}"),
        cpus: vec![number.into()],
        weight: plan::DEFAULT_WEIGHT,
        limit: plan::Limit::default(),
        memory: MEMORY,
        kernel: guest.kernel.display().to_string(),
        initrd: Some(guest.initrd.display().to_string()),
        cmdline: format!("{LINUX} {parameters}"),
        devices: Vec::new(),
        disks: Vec::new(),
        interfaces: vec![Interface {
            switch: "lan".to_owned(),
            mac: Mac([2, 0, 0, 0, 0, number]),
            vlan: None,
            queues: 1,
            mtu: plan::DEFAULT_MTU,
            rate: None,
            flood: None,
            kicks: way == Way::Classical,
        }],
        interrupts: way.policy(),
        reset: OnReset::Stop,
        nested: false,
        iommu: plan::GuestIommu::None,
    };
    let vms = vec![vm(1, &exchange.parameters(effort)), vm(2, &exchange.peer())];
    Ok(Plan { sidecores: vec![3], ..Plan::new(vms) })
}

fn one(cx: &Context, kit: &Kit, exchange: Exchange, way: Way, effort: Effort) -> Result<Alone> {
    let step = Step::begin(format!("{:<35} {}", exchange.title(), way.label()));
    let measured = boot(cx, kit, plan(kit, exchange, way, effort)?, &step)
        .and_then(|ran| Alone::of(way, ran, exchange.size(effort).pairs));
    match &measured {
        Ok(alone) => step.end(&format!("{} {}s", alone.figures.operations, exchange.operation())),
        Err(_) => step.end("failed"),
    }
    measured
}

fn boot(cx: &Context, kit: &Kit, plan: Plan<String>, step: &Step) -> Result<Ran> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let counts = scratch.path().join("counts");
    let mut watch = Watch::new(plan.vms.iter().map(|vm| vm.name.clone()).collect());
    // What the machine boots from stays until it has ended.
    let (mut machine, _image) = emulated::hosted(cx, plan, Vec::new())?;
    machine.iommu = Some(kit.iommu);
    machine.plugin = Some(kit.plugin_writing(&counts));
    let (framing, patience) = (Framing::Frames, PATIENCE);
    // The other one waits for ever.
    let over = |report: &Report| report.vms.first().is_some_and(|vm| vm.end.is_some());
    let ended = watch.run(cx, &machine, framing, patience, step, over)?;
    let edges = emulated::counted(&counts)?.edges;
    let served = watch.report().vms.first().map(|vm| vm.paravirtual.total());
    Ok(Ran { guest: watch.guest(0, &ended)?, edges, served: served.unwrap_or_default() })
}

fn table(exchange: Exchange, cells: &[Alone]) -> Shown {
    let what = format!("{} between two VMs at one switch", exchange.title());
    let operation = exchange.operation();
    let mut table = Table::new(what.clone(), cells.iter().map(|c| c.way.label().to_owned()));
    table.section(Source::Measured, "in the windows of the first VM");
    let all = |f: &dyn Fn(&Alone) -> String| -> Vec<String> { cells.iter().map(f).collect() };
    table.line(format!("{operation}s counted"), all(&|c| whole(c.figures.operations as f64)));
    let exits = |c: &Alone| format!("{:.4}", c.figures.exits_per_operation());
    table.line(format!("its exits per {operation}, ticks in"), all(&exits));
    for reason in Reason::ALL.iter().copied() {
        if cells.iter().any(|c| c.exits(reason) >= RARE) {
            table.part(name(reason), all(&|c| format!("{:.4}", c.exits(reason))));
        }
    }
    let per = |of: fn(&Alone) -> u64| all(&|c| whole(c.per_io(of(c))));
    table.line(
        format!("its interrupts per {operation}"),
        all(&|c| three(c.per_io(c.figures.interrupts))),
    );
    table.line(format!("its guest's instructions per {operation}"), per(|c| c.figures.guest));
    table.part("the host's on its core", per(|c| c.figures.host));
    table.line(
        format!("instructions per {operation} on the other VM's core, host's among them"),
        per(|c| c.work.elsewhere()),
    );
    table.line(format!("sidecore's instructions per {operation}"), per(|c| c.work.served));
    table.part("idle polling besides", per(|c| c.work.polled));
    if let Some(bytes) = exchange.bytes() {
        let writes = 1e6 / f64::from(bytes);
        let per = |of: fn(&Alone) -> u64| all(&|c| whole(writes * c.per_io(of(c))));
        table.section(Source::Measured, "the same for each MB (a million bytes) written");
        table.line("exits", all(&|c| three(writes * c.figures.exits_per_operation())));
        table.line("guest's instructions", per(|c| c.figures.guest));
        table.part("the host's on its core", per(|c| c.figures.host));
        table.line("sidecore's instructions", per(|c| c.work.served));
    }
    table.section(Source::Measured, "from the VM's start to its end, by the sidecore");
    table.line("frames", all(&|c| whole(c.served.completed as f64)));
    let kicks = |c: &Alone| format!("{:.4}", c.per_request(c.served.kicks));
    table.line("kicks that exited, per frame", all(&kicks));
    table.line("interrupts sent, per frame", all(&|c| three(c.per_request(c.served.calls))));
    let rows = cells.iter().map(|c| Row::alone("networks", &what, c, &[])).collect();
    Shown { blocks: vec![Block::Table(table)], rows }
}
