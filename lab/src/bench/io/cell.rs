//! A load, and what each server made of it.

use super::{
    peer::{Peer, daemon},
    start::{Back, Start},
    started::{LOAD_CORE, SERVER_CORE, Started, pinned as pinned_words},
};
use crate::{bench::figures::median, server};
use anyhow::{Context as _, Result, bail};
use exitless::context::Context;
use serde::{Deserialize, Serialize};
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Milliseconds before a run counts, usually.
pub const WARM_UP: u32 = 100;
/// Requests of the shorter run below callgrind, for all clients; the longer has twice as many more.
const COUNTED: u64 = 20_000;
/// More than any run below callgrind takes, in milliseconds.
const FOR_EVER: u32 = 600_000;
/// Callgrind counts each byte of `rep stosb` and `rep movsb` as an instruction: the C library is to
/// clear and copy without them.
const NO_REP: &str = "GLIBC_TUNABLES=glibc.cpu.x86_rep_stosb_threshold=1073741824:glibc.cpu.x86_rep_movsb_threshold=1073741824";

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    pub back: Back,
    /// The clients sleep until they are called; else they poll.
    pub calls: bool,
    pub clients: u32,
    pub depth: u32,
    /// One of the clients asks for one thing at a time, and latencies are its.
    pub lone: bool,
    /// Of a network: bytes of a frame.
    pub frame: u32,
    /// Milliseconds before it counts.
    pub warm_up: u32,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.clients == 1 { "" } else { "s" };
        let way = if self.calls { "called" } else { "polling" };
        let Load { back, clients, depth, frame, .. } = self;
        if *back == Back::Net {
            return write!(f, "frames of {frame} bytes to a {way} station, QD {depth}");
        }
        let lone = if self.lone { ", one of them QD 1" } else { "" };
        write!(f, "{}, {clients} {way} client{plural}, QD {depth}{lone}", back.name())
    }
}

/// What the generator counted in one run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Figures {
    pub requests: u64,
    pub failed: u64,
    pub nanoseconds: u64,
    pub server_cpu: Option<u64>,
    pub server_switches: Option<u64>,
    pub own_cpu: u64,
    pub calls: u64,
    pub kicks: u64,
    pub p50: u64,
    pub p99: u64,
    /// Requests in flight that one left when it was completed, as the server counted them.
    #[serde(default)]
    pub in_flight: Option<f64>,
}

/// All runs of a load on a server.
#[derive(Debug)]
pub struct Cell {
    pub load: Load,
    pub peer: Peer,
    pub runs: Vec<Figures>,
    /// Instructions of the server for each request, if they were counted.
    pub instructions: Option<f64>,
}

impl Cell {
    /// The median over the runs.
    pub fn median(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        median(&self.runs.iter().map(of).collect::<Vec<_>>())
    }

    pub fn requests(&self) -> u64 {
        self.runs.iter().map(|run| run.requests).sum()
    }

    pub fn calls(&self) -> u64 {
        self.runs.iter().map(|run| run.calls).sum()
    }
}

/// What runs.
pub struct Programs {
    daemon: PathBuf,
    load: PathBuf,
    /// Before a program: how it is to run.
    wrap: Vec<String>,
}

impl Programs {
    /// Builds them.
    pub fn build(cx: &Context, real_time: bool) -> Result<Programs> {
        let daemon = named().map_or_else(|| server::build(cx, "exitless-io"), Ok)?;
        let load = server::build(cx, "exitless-load")?;
        let words: &[&str] = if real_time { &["chrt", "-f", "10"] } else { &[] };
        Ok(Programs { daemon, load, wrap: words.iter().map(|word| (*word).into()).collect() })
    }

    /// The same as they are packed, which a whole test builds anyway.
    pub fn packed(cx: &Context) -> Result<Programs> {
        let daemon = named().map_or_else(|| server::packed(cx), Ok)?;
        Ok(Programs { daemon, load: server::packed_load(cx)?, wrap: Vec::new() })
    }

    /// What the figures are of, a sentence each.
    pub fn versions(&self, peers: &[Peer]) -> Vec<String> {
        peers.iter().filter_map(|peer| peer.version(&self.daemon)).collect()
    }

    /// Starts a server for this load below these words.
    pub fn start(&self, peer: Peer, wrap: &[String], load: Load, folder: &Path) -> Result<Started> {
        let (back, clients) = (load.back, load.clients);
        let start = Start { wrap, daemon: &self.daemon, back, clients, folder };
        peer.start(&start).with_context(|| peer.name())
    }

    fn load(&self, arguments: &[String]) -> Result<Figures> {
        let mut words = self.wrap.iter().map(AsRef::as_ref).chain([self.load.as_os_str()]);
        let mut command = Command::new(words.next().context("there is a program")?);
        command.args(words).args(arguments).args(["--core", LOAD_CORE]);
        let ran =
            command.stdin(Stdio::null()).output().context("the generator can't be started")?;
        if !ran.status.success() {
            bail!("the generator: {}", String::from_utf8_lossy(&ran.stderr).trim());
        }
        let figures: Figures = serde_json::from_slice(&ran.stdout)?;
        if figures.failed > 0 {
            bail!("{} of {} requests failed", figures.failed, figures.requests);
        }
        Ok(figures)
    }

    /// What the generator costs against a ring that is answered at once, for each depth.
    pub fn echoes(&self, depths: &[u32], time: u32) -> Result<Vec<(u32, Figures)>> {
        let one = |depth: &u32| {
            let (at, warm_up) = (depth.to_string(), WARM_UP.to_string());
            let words = ["--echo", SERVER_CORE, "--depth", &at, "--warmup", &warm_up];
            let words = words.iter().map(|word| (*word).to_owned());
            let time = ["--time".to_owned(), time.to_string()];
            Ok((*depth, self.load(&words.chain(time).collect::<Vec<_>>())?))
        };
        depths.iter().map(one).collect()
    }
}

fn words(load: Load, started: &Started, time: u32, requests: u64) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for socket in &started.sockets {
        words.extend(["--socket".into(), socket.display().to_string()]);
    }
    words.extend(["--depth".into(), load.depth.to_string(), "--time".into(), time.to_string()]);
    words.extend(["--server".into(), started.server.id().to_string()]);
    words.extend(["--requests".into(), requests.to_string(), "--warmup".into()]);
    let warm_up = if requests == u64::MAX { load.warm_up } else { 0 };
    words.push(warm_up.to_string());
    words.extend(load.calls.then(|| "--calls".into()));
    words.extend(load.lone.then(|| "--lone".into()));
    if load.back == Back::Net {
        words.extend(["--frames".into(), load.frame.to_string()]);
    }
    words
}

/// Runs the load on each server in turns.
pub fn measure(
    cx: &Context,
    programs: &Programs,
    peers: &[Peer],
    load: Load,
    runs: u32,
    time: u32,
    instructions: bool,
) -> Result<Vec<Cell>> {
    let folder = tempfile::tempdir().context("no directory for temporary files")?;
    let mut pinned = programs.wrap.clone();
    pinned.extend(pinned_words());
    let mut cells: Vec<Cell> = Vec::new();
    for peer in peers.iter().filter(|peer| peer.serves(load.back, load.clients)) {
        cells.push(Cell { load, peer: *peer, runs: Vec::new(), instructions: None });
    }
    for _ in 0..runs {
        for cell in &mut cells {
            if cx.interrupted() {
                bail!("stopped");
            }
            // Anew for each run: one that is idle would poll beside the other.
            let started = programs.start(cell.peer, &pinned, load, folder.path())?;
            let figures = programs.load(&words(load, &started, time, u64::MAX));
            let mut figures = figures.with_context(|| format!("{}, {load}", cell.peer.name()))?;
            if let Some(control) = &started.control {
                let all = daemon::counted(&programs.daemon, control)?;
                figures.in_flight = Some(all.left as f64 / all.completed as f64);
            }
            cell.runs.push(figures);
            started.server.kill()?;
        }
    }
    if instructions {
        for cell in cells.iter_mut().filter(|cell| cell.peer.is_counted()) {
            let count = |requests| counted(programs, cell.peer, load, requests, folder.path());
            let ((first, few), (second, many)) = (count(COUNTED)?, count(3 * COUNTED)?);
            let each = (second as f64 - first as f64) / (many as f64 - few as f64);
            cell.instructions = Some(each);
        }
    }
    Ok(cells)
}

/// The daemon that EXITLESS_IO names, if it does.
fn named() -> Option<PathBuf> {
    std::env::var_os("EXITLESS_IO").map(PathBuf::from)
}

/// The server's instructions from start to end, and the requests that it served.
fn counted(
    programs: &Programs,
    peer: Peer,
    load: Load,
    requests: u64,
    folder: &Path,
) -> Result<(u64, u64)> {
    let out = folder.join("callgrind");
    let option = format!("--callgrind-out-file={}", out.display());
    let pinned = ["taskset", "-c", SERVER_CORE, "env", NO_REP];
    let below = ["valgrind", "--quiet", "--tool=callgrind", &option];
    let below = pinned.into_iter().chain(below).map(str::to_owned).collect();
    let wrap = [programs.wrap.clone(), below].concat();
    let started = programs.start(peer, &wrap, load, folder)?;
    let figures = programs.load(&words(load, &started, FOR_EVER, requests))?;
    started.server.end()?;
    let text = fs::read_to_string(&out).context("callgrind wrote nothing")?;
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let total = totals.and_then(|n| n.trim().parse().ok()).context("callgrind counted nothing")?;
    Ok((total, figures.requests))
}
