//! The part `clients`: front ends of our own at each server's disks and networks, for all that is
//! behind them, in all numbers and depths.

use super::{
    args::Args,
    cell::{Cell, Load, Programs, WARM_UP, measure},
    output::{self, Shown},
    peer::Peer,
    start::Back,
};
use anyhow::{Result, bail};
use exitless::{context::Context, say::say};

/// What it has.
fn loads(args: &Args) -> Vec<Load> {
    let mut loads = Vec::new();
    for (back, calls) in args.back.iter().flat_map(|back| [(*back, false), (*back, true)]) {
        let sizes = match back {
            Back::Net => args.some(&args.frame, &[64, 65536]).iter().map(|n| (1, *n)).collect(),
            _ => args.some(&args.clients, &[1, 14]).iter().map(|n| (*n, 0)).collect::<Vec<_>>(),
        };
        for (clients, frame) in sizes {
            for depth in args.some(&args.depth, &[1, 32]) {
                let warm_up = WARM_UP;
                let load = Load { back, calls, clients, depth, lone: false, frame, warm_up };
                loads.push(load);
                // Bulk and latency mixed.
                let has_others = clients > 1 && depth > 1 && back != Back::Net;
                loads.extend(has_others.then_some(Load { lone: true, ..load }));
            }
        }
    }
    loads
}

/// Measures it.
pub fn shown(args: &Args, cx: &Context, programs: &Programs, peers: &[Peer]) -> Result<Shown> {
    let loads = loads(args);
    let echoes = programs.echoes(&args.some(&args.depth, &[1, 32]), args.milliseconds())?;
    let mut cells: Vec<Cell> = Vec::new();
    for (at, load) in loads.iter().enumerate() {
        if cx.interrupted() {
            bail!("stopped");
        }
        say(format_args!("  {} of {}: {load}", at + 1, loads.len()));
        let (runs, time) = (args.runs, args.milliseconds());
        cells.extend(measure(cx, programs, peers, *load, runs, time, args.instructions)?);
    }
    output::clients(&cells, &echoes, args.instructions)
}
