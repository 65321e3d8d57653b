//! `exitless bench io`: the daemon beside other servers of vhost-user disks and networks, natively.
//!
//! Guarantees: servers take turns within each run of a cell, so that slow phases of the machine hit
//! all of them; a figure is the median of all runs; server and generator have a core each; a
//! request that failed ends the bench. CPU time is measured the same way for all servers, by the
//! kernel, and includes polling.

mod cell;
mod output;
mod peer;
mod start;
mod started;

use super::{
    ready::Files,
    show::{html, text},
};
use anyhow::{Result, bail};
use cell::{Cell, Load, Programs, measure};
use exitless::{arguments::between, context::Context, needs, say::say};
use peer::Peer;
use start::Back;

/// What the daemon and other servers of vhost-user disks and networks cost, natively.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Fewer cells, short runs
    #[arg(long)]
    quick: bool,
    /// What keeps the disks' data; or a network
    #[arg(long, value_enum, value_delimiter = ',', default_value = "null,ram,file,direct,nbd,net")]
    back: Vec<Back>,
    /// Bytes of a network's frames; those beyond 1514 are TCP segments that may be cut
    #[arg(long, value_delimiter = ',', default_value = "64,1514,16384,65536", value_parser = between(60, 65536))]
    frame: Vec<u32>,
    /// Requests of each client at a time, or frames under way
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128", value_parser = between(1, 128))]
    depth: Vec<u32>,
    /// Clients of the disk, each with a ring of its own
    #[arg(long, value_delimiter = ',', default_value = "1,4,14", value_parser = between(1, 64))]
    clients: Vec<u32>,
    /// Runs of each cell
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = between(1, 100))]
    runs: u32,
    /// Milliseconds of each run
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = between(10, 600_000))]
    time: u32,
    /// Also count the servers' instructions, by valgrind's callgrind
    #[arg(long)]
    instructions: bool,
    /// As real-time processes, for a machine that others use too (needs root)
    #[arg(long)]
    real_time: bool,
    #[command(flatten)]
    files: Files,
}

/// Runs it.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let files = args.files.claim(output::NAME)?;
    let mut peers = vec![Peer::Daemon];
    for peer in Peer::ALL.into_iter().filter(|peer| *peer != Peer::Daemon) {
        if args.back.iter().any(|back| peer.serves(*back, 1)) {
            match peer.missing(cx) {
                None => peers.push(peer),
                Some(sentence) => {
                    say(format_args!("exitless: {sentence}; it is measured without"));
                }
            }
        }
    }
    if args.back.contains(&Back::Nbd) {
        needs::nbd_servers(cx)?;
    }
    let programs = Programs::build(cx, args.real_time)?;
    let quick = |all: &[u32], few: &[u32]| -> Vec<u32> {
        let chosen = |one: &&u32| !args.quick || few.contains(one);
        all.iter().filter(chosen).copied().collect()
    };
    let mut loads = Vec::new();
    for (back, calls) in args.back.iter().flat_map(|back| [(*back, false), (*back, true)]) {
        let sizes = match back {
            Back::Net => quick(&args.frame, &[64, 65536]).iter().map(|n| (1, *n)).collect(),
            _ => quick(&args.clients, &[1, 14]).iter().map(|n| (*n, 0)).collect::<Vec<_>>(),
        };
        for (clients, frame) in sizes {
            for depth in quick(&args.depth, &[1, 32]) {
                let load = Load { back, calls, clients, depth, lone: false, frame };
                loads.push(load);
                // Bulk and latency mixed.
                let has_others = clients > 1 && depth > 1 && back != Back::Net;
                loads.extend(has_others.then_some(Load { lone: true, ..load }));
            }
        }
    }
    let time = if args.quick { args.time.min(200) } else { args.time };
    let echoes = programs.echoes(&quick(&args.depth, &[1, 32]), time)?;
    let mut cells: Vec<Cell> = Vec::new();
    for (at, load) in loads.iter().enumerate() {
        if cx.interrupted() {
            bail!("stopped");
        }
        say(format_args!("  {} of {}: {load}", at + 1, loads.len()));
        cells.extend(measure(cx, &programs, &peers, *load, args.runs, time, args.instructions)?);
    }
    let blocks = output::blocks(&cells, &echoes, args.instructions);
    println!("\n{}", text::blocks(&blocks));
    let page = html::page(&output::page(blocks, programs.versions(&peers)));
    files.write(&output::rows(&cells, &echoes), &page)
}

/// So long that a server whose core others have is served, too, in milliseconds.
const SMOKE: u32 = 3000;

/// The daemon alone, for a moment: polled and called, and before an NBD server where there is one;
/// nothing fails, and the page comes out.
pub fn smoke(cx: &Context) -> Result<()> {
    let programs = Programs::build(cx, false)?;
    let mut cells = Vec::new();
    let mut loads =
        vec![(Back::Null, false), (Back::Null, true), (Back::Net, false), (Back::Net, true)];
    if needs::nbd_servers(cx).is_ok() {
        loads.push((Back::Nbd, true));
    }
    for (back, calls) in loads {
        let load = Load { back, calls, clients: 1, depth: 32, lone: false, frame: 1514 };
        cells.extend(measure(cx, &programs, &[Peer::Daemon], load, 1, SMOKE, false)?);
    }
    // Below valgrind, where that is: of a file with several devices, too.
    if needs::program("valgrind").is_ok() {
        for back in [Back::Null, Back::Net] {
            let load = Load { back, calls: false, clients: 1, depth: 32, lone: false, frame: 64 };
            let counted = measure(cx, &programs, &[Peer::Daemon], load, 0, SMOKE, true)?;
            if !counted.iter().all(|cell| cell.instructions.is_some_and(|each| each > 0.0)) {
                bail!("the daemon's instructions below {load}: {counted:?}");
            }
        }
    }
    let served = cells.iter().all(|cell| cell.requests() > 0);
    let called = cells.iter().any(|cell| cell.calls() > 0);
    if !served || !called {
        bail!("the daemon below a load: {cells:?}");
    }
    html::page(&output::page(
        output::blocks(&cells, &[], false),
        programs.versions(&[Peer::Daemon]),
    ));
    Ok(())
}
