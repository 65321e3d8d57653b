//! A disk each way in one short table: what exits an I/O has, and what it costs the guest's core.
//!
//! Guarantees: the paravirtual columns have the same disk and driver. An NVMe controller of the
//! VM's own is another driver: its guest isn't put beside the bare machine's.

use super::{
    figures::Alone,
    output::{Row, Shown},
    way::Way,
};
use crate::bench::show::{Block, Source, Table, spread, three, whole};

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

/// The table of one depth.
pub fn shown(depth: u32, cells: &[Alone]) -> Shown {
    let what = format!("4 KiB random reads, depth {depth}, null disk: each way");
    let mut table = Table::new(what.clone(), cells.iter().map(|c| title(c.way).to_owned()));
    table.section(Source::Measured, "");
    let all = |f: &dyn Fn(&Alone) -> String| -> Vec<String> { cells.iter().map(f).collect() };
    let vm = |f: &dyn Fn(&Alone) -> String| {
        all(&|c| if c.way == Way::Bare { String::new() } else { f(c) })
    };
    table.line("I/Os counted", all(&|c| whole(c.figures.operations as f64)));
    let ticks_in = |c: &Alone| format!("{:.4}", c.figures.exits_per_operation());
    let ticks_out = |c: &Alone| format!("{:.4}", c.per_io(c.figures.exits_ticks_out()));
    table.line("exits per I/O, ticks in", vm(&ticks_in));
    table.part("ticks out", vm(&ticks_out));
    table.line("interrupts per I/O", all(&|c| three(c.per_io(c.figures.interrupts))));
    let core = |c: &Alone| c.figures.guest + c.figures.host;
    table.line(
        "instructions per I/O on the guest's core, host's among them",
        all(&|c| whole(c.per_io(core(c)))),
    );
    table.part("the host's", vm(&|c| whole(c.per_io(c.figures.host))));
    let bare = cells.iter().find(|c| c.way == Way::Bare);
    let of_bare = |c: &Alone| match bare {
        Some(bare) if c.way != Way::Assigned => spread(c.guest_against(bare)),
        _ => String::new(),
    };
    table.line("guest's instructions, ticks out, of bare's", vm(&of_bare));
    let beside = |c: &Alone| if c.way == Way::Assigned { &[][..] } else { cells };
    let rows = cells.iter().map(|c| Row::alone("table", &what, c, beside(c))).collect();
    Shown { blocks: vec![Block::Table(table)], rows }
}
