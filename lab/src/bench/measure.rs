//! Measures cells, a workload under a policy each, one emulated machine after the
//! other.
//!
//! Guarantees: a cell that fails is named with its reason, and the rest goes on; equal
//! cells are measured once.

use super::{
    boot::{self, Boot, Hung},
    column::Column,
    figures::{Figures, Kind, Window},
    generator::Idle,
    guest::Kit,
    lines,
    matched::{By, Control, Matched, unslowed},
    progress::{Course, Step},
    workload::{Effort, Workload},
};
use crate::elf;
use anyhow::{Context as _, Result, anyhow, bail};
use exitless::{context::Context, qemu::Iommu, report::Audit, say::plain};
use std::{
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Request {
    /// In this order.
    pub cells: Vec<(Workload, Column)>,
    /// The windows.
    pub effort: Effort,
    /// Boots per cell.
    pub repeat: u32,
    /// Cells measured at a time. Counts stand more than one, their spreads widen.
    pub jobs: u32,
}

impl Request {
    /// Each workload under each policy; what is named twice counts once.
    pub fn new(workloads: &[Workload], policies: &[Column], effort: Effort) -> Request {
        let mut cells = Vec::new();
        for workload in workloads {
            for policy in policies {
                if !cells.contains(&(*workload, *policy)) {
                    cells.push((*workload, *policy));
                }
            }
        }
        Request { cells, effort, repeat: 1, jobs: 1 }
    }
}

/// What one workload under one policy gave.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The load.
    pub workload: Workload,
    /// What the guest ran on.
    pub policy: Column,
    /// The figures.
    pub figures: Figures,
    /// The bare machine at several paces, where it was slowed.
    pub control: Option<Control>,
    /// The guest's clock source.
    pub clocksource: String,
    /// The kind of interrupt its device had.
    pub interrupt: String,
    /// What the bare machine said last in a boot that hung and was made again.
    pub hung: Option<String>,
    /// How idle the load generator was, at its busiest boot.
    pub idle: Option<Idle>,
    /// Instructions from power-on to the first guest entry.
    pub boot_instructions: Option<u64>,
    /// Bytes of host memory spent on the VM.
    pub vm_overhead: Option<u64>,
    /// Bytes of memory the hypervisor keeps for itself.
    pub host_memory: Option<u64>,
    /// The machine's IOMMU.
    pub iommu: Iommu,
    /// What the host's audit came to, at the last boot.
    pub audit: Audit,
}

/// A cell that gave nothing.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The load.
    pub workload: Workload,
    /// What the guest ran on.
    pub policy: Column,
    /// Why, in a sentence.
    pub why: String,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The cells that worked.
    pub cells: Vec<Cell>,
    /// Those that didn't.
    pub failures: Vec<Failure>,
    /// Bytes that the hypervisor's image loads.
    pub hypervisor_bytes: Option<u64>,
}

impl Results {
    /// A cell, if it worked.
    pub fn cell(&self, policy: Column, workload: Workload) -> Option<&Cell> {
        self.cells.iter().find(|c| c.policy == policy && c.workload == workload)
    }

    /// The figures of a cell, if it worked.
    pub fn figures(&self, policy: Column, workload: Workload) -> Option<&Figures> {
        self.cell(policy, workload).map(|c| &c.figures)
    }

    /// A cell beside the bare machine slowed as it was; none where that wasn't measured.
    pub fn matched(&self, policy: Column, workload: Workload, by: By) -> Option<Matched> {
        let control = self.cell(Column::Bare, workload)?.control.as_ref();
        self.figures(policy, workload)?.matched(control, by)
    }

    /// The cells of a workload that worked.
    pub fn of(&self, workload: Workload) -> Vec<&Cell> {
        self.cells.iter().filter(|c| c.workload == workload).collect()
    }

    /// The policies that were asked for, worked or not, in the tables' order.
    pub fn policies(&self) -> Vec<Column> {
        let asked = |p: &Column| {
            self.cells.iter().any(|c| c.policy == *p)
                || self.failures.iter().any(|f| f.policy == *p)
        };
        Column::ALL.into_iter().filter(asked).collect()
    }

    /// The same with these workloads only, in this order.
    pub fn only(&self, workloads: &[Workload]) -> Results {
        let cells = workloads.iter().flat_map(|w| self.of(*w)).cloned().collect();
        let failures = self.failures.iter().filter(|f| workloads.contains(&f.workload));
        let failures = failures.cloned().collect();
        Results { cells, failures, hypervisor_bytes: self.hypervisor_bytes }
    }
}

/// Measures every cell of the request.
pub fn measure(cx: &Context, kit: &Kit, request: &Request) -> Result<Results> {
    let mut results = Results::default();
    if request.cells.iter().any(|(_, policy)| policy.policy().is_some()) {
        let elf = fs::read(cx.hypervisor()?).context("the hypervisor can't be read")?;
        results.hypervisor_bytes = Some(elf::loaded_bytes(&elf)?);
    }
    let course = Mutex::new(Course::new(request.cells.len(), request.jobs > 1));
    let cells = Mutex::new(vec![None; request.cells.len()]);
    let next = || locked(&course).next(|i| name(request.cells[i]));
    let work = || {
        while let Some((i, step)) = next() {
            let (workload, policy) = request.cells[i];
            let result = cell(cx, kit, workload, policy, request, &step);
            if cx.interrupted() {
                return step.end("stopped");
            }
            step.end(&result.as_ref().map_or("failed".into(), said));
            let failed = |e| Failure { workload, policy, why: plain(e) };
            locked(&cells)[i] = Some(result.map_err(failed));
            locked(&course).done();
        }
    };
    thread::scope(|scope| {
        for _ in 0..request.jobs {
            scope.spawn(work);
        }
    });
    if cx.interrupted() {
        bail!("stopped");
    }
    for result in locked(&cells).drain(..).flatten() {
        match result {
            Ok(cell) => results.cells.push(cell),
            Err(failure) => results.failures.push(failure),
        }
    }
    Ok(results)
}

fn name((workload, policy): (Workload, Column)) -> String {
    format!("{:<16} {:<12}", workload.short(), policy.label())
}

/// What a thread that panicked leaves is whole: the locks are held for single steps only.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// That something happened, for the line of progress.
fn said(cell: &Cell) -> String {
    let idle = cell
        .idle
        .as_ref()
        .map_or(String::new(), |i| format!(", {} {:.0} % idle", i.program, 100.0 * i.share));
    done(cell.figures.operations, cell.workload.operation(), cell.figures.seconds) + &idle
}

/// How much was done. The time is the long windows' less the short ones', and none when a busy
/// machine made those take longer: then there is no rate.
fn done(n: u64, what: &str, seconds: f64) -> String {
    match n as f64 / seconds {
        rate if seconds > 0.0 => format!("{n} {what}s, {rate:.0} a second (emulated)"),
        _ => format!("{n} {what}s"),
    }
}

fn cell(
    cx: &Context,
    kit: &Kit,
    workload: Workload,
    policy: Column,
    request: &Request,
    step: &Step,
) -> Result<Cell> {
    let mut windows = Vec::new();
    let mut slowed = Vec::new();
    let own = workload.size(request.effort).pairs;
    let mut idle: Option<Idle> = None;
    let (mut last, mut hung) = (None, None);
    for _ in 0..request.repeat {
        let once = || boot::boot(cx, kit, workload, policy, request.effort, step);
        // Nothing of ours runs on the bare machine: this is the emulator's doing, and rare.
        let again = |error: anyhow::Error| match error.downcast::<Hung>() {
            Ok(at) if policy == Column::Bare && hung.is_none() => {
                step.say("hung, boots again");
                hung = Some(at.last);
                once()
            }
            Ok(at) => Err(at.into()),
            Err(other) => Err(other),
        };
        let Boot { guest, plugin, report, idle: this } = once().or_else(again)?;
        let names = (guest.clocksource.clone(), guest.interrupt.clone());
        let join = if policy == Column::Nested { lines::join_nested } else { lines::join };
        let all = join(guest, &plugin)?;
        check(policy, &all)?;
        windows.extend(unslowed(&all, own));
        if boot::is_slowed(workload, policy, request.effort) {
            slowed.push(all);
        }
        idle = match (idle, this) {
            (Some(a), Some(b)) => Some(if a.share < b.share { a } else { b }),
            (a, b) => a.or(b),
        };
        last = Some((report, plugin.boot, names));
    }
    let (report, boot_instructions, (clocksource, interrupt)) =
        last.ok_or_else(|| anyhow!("no run was asked for: --repeat must be 1 or more"))?;
    let figures = Figures::of(&windows)?;
    let started = report.vms.first().filter(|vm| vm.policy.is_some());
    Ok(Cell {
        workload,
        policy,
        figures,
        control: Control::of(&slowed, own),
        clocksource,
        interrupt,
        hung,
        idle,
        boot_instructions,
        vm_overhead: started.map(|vm| vm.overhead),
        host_memory: report.machine.as_ref().map(|m| m.host_memory),
        iommu: kit.iommu,
        audit: report.audit,
    })
}

/// A VM's windows have the ledger's counts, the bare machine's have neither those nor guest
/// entries.
fn check(policy: Column, windows: &[Window]) -> Result<()> {
    let load = || windows.iter().filter(|w| w.kind != Kind::Spin);
    if policy == Column::Bare {
        if load().any(|w| w.vmruns > 0) {
            bail!("guest entries were seen on the bare machine");
        }
    } else if load().any(|w| w.exits.is_none()) {
        bail!("the guest found no ledger page: CPUID leaf 0x40000000 doesn't say ExitlessHypV");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_time_there_is_no_rate() {
        assert_eq!(done(6_184, "read", 2.0), "6184 reads, 3092 a second (emulated)");
        assert_eq!(done(6_184, "read", 0.0), "6184 reads");
    }
}
