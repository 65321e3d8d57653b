//! A disk each way in one short table: what exits an I/O has, and what it costs the guest's core;
//! and beside it an emulated device, the console's 16550, for which an operation is a byte.
//!
//! Guarantees: the paravirtual columns have the same disk and driver. An NVMe controller of the
//! VM's own is another driver: its guest isn't put beside the bare machine's. The emulated column
//! has another guest, too: a test kernel that looks for room before each byte, and has no ticks.

use super::{
    figures::{Alone, Member},
    kernels::{self, Load, Run, What},
    output::{Row, Shown, four},
    way::Way,
};
use crate::bench::{
    guest::Kit,
    show::{Block, Source, Table, spread, three, whole},
    workload::Effort,
};
use anyhow::{Context as _, Result};
use exitless::context::Context;
use plan::Control;
use std::iter;

/// From the most exits to none, then the machine itself.
pub const WAYS: [Way; 6] =
    [Way::Classical, Way::TRAP, Way::ELI, Way::DIRECT, Way::Assigned, Way::Bare];

/// What each is, as ELVIS has it.
const fn title(way: Way) -> &'static str {
    match way {
        Way::Bare => "bare, virtio-blk",
        Way::Classical => "classical",
        Way::Assigned => "assigned NVMe, eli",
        Way::Polled(plan::Policy::Trap) => "exitless requests (trap)",
        Way::Polled(plan::Policy::Direct) => "replies too (direct)",
        Way::Polled(_) => "replies too (eli)",
    }
}

/// The emulated device's bytes.
pub fn emulated(cx: &Context, kit: &Kit, effort: Effort) -> Result<Member> {
    let length = if effort == Effort::Full { 20_000 } else { 4_000 };
    let load = Load { what: What::Bytes, length, control: Control::default() };
    let mut members = kernels::run(cx, kit, &Run::new(Way::ELI, vec![load]), "bytes to the 16550")?;
    members.pop().context("nothing was run")
}

/// The table of one depth.
pub fn shown(depth: u32, emulated: &Member, cells: &[Alone]) -> Shown {
    let what = format!("4 KiB random reads, depth {depth}, null disk: each way");
    let titles = cells.iter().map(|c| title(c.way).to_owned());
    let titles = iter::once("emulated (a byte to the 16550)".to_owned()).chain(titles);
    let mut table = Table::new(what.clone(), titles);
    table.section(Source::Measured, "");
    // The emulated device's first.
    let all = |of_byte: String, f: &dyn Fn(&Alone) -> String| -> Vec<String> {
        iter::once(of_byte).chain(cells.iter().map(f)).collect()
    };
    let vm = |of_byte: String, f: &dyn Fn(&Alone) -> String| {
        all(of_byte, &|c| if c.way == Way::Bare { String::new() } else { f(c) })
    };
    let byte = |count: u64| count as f64 / emulated.operations.max(1) as f64;
    let exits = byte(emulated.exits.iter().sum());
    let counted = |operations: u64| whole(operations as f64);
    table.line(
        "I/Os counted",
        all(counted(emulated.operations), &|c| counted(c.figures.operations)),
    );
    table.line(
        "exits per I/O, ticks in",
        vm(four(exits), &|c| four(c.figures.exits_per_operation())),
    );
    table.part("ticks out", vm(four(exits), &|c| four(c.per_io(c.figures.exits_ticks_out()))));
    table.line(
        "interrupts per I/O",
        all(three(byte(emulated.interrupts)), &|c| three(c.per_io(c.figures.interrupts))),
    );
    let core = |c: &Alone| c.figures.guest + c.figures.host;
    table.line(
        "instructions per I/O on the guest's core, host's among them",
        all(whole(byte(emulated.guest + emulated.host)), &|c| whole(c.per_io(core(c)))),
    );
    table.part("the host's", vm(whole(byte(emulated.host)), &|c| whole(c.per_io(c.figures.host))));
    let served = |c: &Alone| match c.way {
        Way::Assigned => String::new(),
        _ => whole(c.per_io(c.work.served)),
    };
    table.line("sidecore's instructions per I/O", vm(String::new(), &served));
    let bare = cells.iter().find(|c| c.way == Way::Bare);
    let of_bare = |c: &Alone| match bare {
        Some(bare) if c.way != Way::Assigned => spread(c.guest_against(bare)),
        _ => String::new(),
    };
    table.line("guest's instructions, ticks out, of bare's", vm(String::new(), &of_bare));
    let beside = |c: &Alone| if c.way == Way::Assigned { &[][..] } else { cells };
    let mut rows = vec![Row::emulated("table", "bytes to the console's 16550", emulated)];
    rows.extend(cells.iter().map(|c| Row::alone("table", &what, c, beside(c))));
    Shown { blocks: vec![Block::Table(table)], rows }
}
