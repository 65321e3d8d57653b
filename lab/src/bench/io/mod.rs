//! `exitless bench io`: the daemon beside other servers of vhost-user disks and networks, natively
//! and below a guest.
//!
//! Guarantees: servers take turns within each run of a cell, so that slow phases of the machine hit
//! all of them; a figure is the median of all runs; server and generator have a core each; a
//! request that failed ends the bench. CPU time is measured the same way for all servers, by the
//! kernel, and includes polling.

mod args;
mod cell;
mod cif;
mod clients;
mod guest;
mod output;
mod peer;
mod start;
mod started;

use super::show::{html, text};
use anyhow::{Result, bail};
pub use args::Args;
use args::Part;
use cell::{Load, Programs, WARM_UP, measure};
use exitless::{context::Context, needs, say::say};
use output::Shown;
use peer::Peer;
use start::Back;

/// Runs it.
pub fn run(args: &Args, cx: &Context) -> Result<()> {
    let files = args.files.claim(output::NAME)?;
    let mut peers = vec![Peer::Daemon];
    for peer in Peer::ALL.into_iter().filter(|peer| *peer != Peer::Daemon) {
        let has = |part: &Part| match part {
            Part::Clients => args.back.iter().any(|back| peer.serves(*back, 1)),
            Part::Cif => cif::PEERS.contains(&peer),
            Part::Guest => peer.serves(guest::BACK, 1),
        };
        if args.part.iter().any(has) {
            match peer.missing(cx) {
                None => peers.push(peer),
                Some(sentence) => {
                    say(format_args!("exitless: {sentence}; it is measured without"));
                }
            }
        }
    }
    if args.part.contains(&Part::Clients) && args.back.contains(&Back::Nbd) {
        needs::nbd_servers(cx)?;
    }
    let programs = Programs::build(cx, args.real_time)?;
    let mut shown = Shown::default();
    for part in [Part::Clients, Part::Cif, Part::Guest] {
        if args.part.contains(&part) {
            shown.add(match part {
                Part::Clients => clients::shown(args, cx, &programs, &peers)?,
                Part::Cif => {
                    let depths = args.some(&args.in_flight, &[1, 4, 16, 64]);
                    cif::shown(cx, &programs, &peers, &depths, args.runs, args.milliseconds())?
                }
                Part::Guest => {
                    let (runs, seconds) = if args.quick { (1, 2) } else { (args.runs, 5) };
                    guest::shown(cx, &programs, &peers, runs, seconds)?
                }
            });
        }
    }
    println!("\n{}", text::blocks(&shown.blocks));
    let page = html::page(&output::page(shown.blocks, programs.versions(&peers)));
    files.write(&shown.rows, &page)
}

/// So long that a server whose core others have is served, too, in milliseconds.
const SMOKE: u32 = 3000;

/// The daemon alone, for a moment: polled and called, before an NBD server where there is one, with
/// vIC and without, and below a guest; nothing fails, and the page comes out.
pub fn smoke(cx: &Context) -> Result<()> {
    let programs = Programs::packed(cx)?;
    let load = |back, calls, frame| {
        let (clients, depth, lone) = (1, 32, false);
        Load { back, calls, clients, depth, lone, frame, warm_up: WARM_UP }
    };
    let mut cells = Vec::new();
    let mut loads =
        vec![(Back::Null, false), (Back::Null, true), (Back::Net, false), (Back::Net, true)];
    if needs::nbd_servers(cx).is_ok() {
        loads.push((Back::Nbd, true));
    }
    for (back, calls) in loads {
        let load = load(back, calls, 1514);
        cells.extend(measure(cx, &programs, &[Peer::Daemon], load, 1, SMOKE, false)?);
    }
    let paced = load(Back::Paced, true, 0);
    let vic = [Peer::Daemon, Peer::AllTold];
    cells.extend(measure(cx, &programs, &vic, paced, 1, SMOKE, false)?);
    if !cells.iter().any(|cell| cell.runs.iter().any(|run| run.in_flight > Some(0.0))) {
        bail!("the daemon saw nothing in flight: {cells:?}");
    }
    // Below valgrind, where that is: of a file with several devices, too.
    if needs::program("valgrind").is_ok() {
        for back in [Back::Null, Back::Net] {
            let load = load(back, false, 64);
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
    let mut shown = output::clients(&cells, &[], false)?;
    shown.add(guest::shown(cx, &programs, &[Peer::Daemon], 1, 1)?);
    let Shown { blocks, .. } = shown;
    html::page(&output::page(blocks, programs.versions(&[Peer::Daemon])));
    Ok(())
}
