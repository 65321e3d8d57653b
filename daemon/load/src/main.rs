//! `exitless-load`: clients of vhost-user disks that ask for as much as is served, or two stations
//! of vhost-user networks that send as much as arrives, in one thread.
//!
//! It is lighter than what it measures: descriptors are written once, a pass over a ring reads one
//! index if there is nothing, and the clock is read once for each pass that finds something. Its
//! own cost is told with every figure, and `--echo` shows it against a ring that somebody answers
//! who does nothing else.
//!
//! | file | is |
//! |---|---|
//! | `main` | the command line, the loop, the figures |
//! | `connection` | what is said to a device |
//! | `line` | the driver's side of a ring |
//! | `front`, `ring` | one client of a disk; what its ring asks for, and the echo |
//! | `verify` | blocks that are written and read again |
//! | `frames` | a station that sends, and one that receives |
//! | `counted` | what counts of a run |
//! | `count` | latencies |
#![forbid(unsafe_code)]

mod connection;
mod count;
mod counted;
mod frames;
mod front;
mod line;
mod ring;
mod verify;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use counted::{Figures, Window};
use daemon_os::Mapping;
use frames::Stations;
use front::{Asked, Front};
use ring::{BYTES, Echo, Ring};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Passes between two looks at the clock that ends a run.
const PASSES: u32 = 256;
/// How long a run waits for an answer before it is given up, in milliseconds.
const PATIENCE: i32 = 10_000;

/// A frame that doesn't arrive within this time was sent too early.
const EARLY: Duration = Duration::from_millis(20);

/// Asks disks for as many requests of 4 KiB as they serve, or sends as many frames from one network
/// device to another as arrive, and prints what was counted, as JSON.
#[derive(Parser)]
struct Arguments {
    /// A client for each of these sockets
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,
    /// A ring in this program, answered by a thread on this core that does nothing else
    #[arg(long, value_name = "CORE", conflicts_with = "sockets")]
    echo: Option<usize>,
    /// Frames of so many bytes, from the first socket to the second
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["echo", "write"])]
    frames: Option<u32>,
    /// Requests of each client at a time, or frames under way
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// Microseconds between an answer and the next request, so that the server sleeps
    #[arg(long, value_name = "MICROSECONDS", conflicts_with_all = ["echo", "frames", "calls"])]
    pause: Option<u64>,
    /// The first client asks for one thing at a time; latencies are its alone
    #[arg(long, conflicts_with_all = ["echo", "frames"])]
    lone: bool,
    /// Writes, not reads
    #[arg(long)]
    write: bool,
    /// Sleep until called, not poll
    #[arg(long)]
    calls: bool,
    /// Don't use event indexes
    #[arg(long)]
    no_event_index: bool,
    /// Write so many blocks of the one disk, each with something else, and compare what is read
    #[arg(long, value_name = "BLOCKS", conflicts_with_all = ["echo", "frames", "write"])]
    verify: Option<u64>,
    /// The process that serves
    #[arg(long, value_name = "PID")]
    server: Option<u32>,
    /// The core of this program
    #[arg(long)]
    core: Option<usize>,
    /// Milliseconds that aren't counted at first
    #[arg(long, default_value_t = 200)]
    warmup: u64,
    /// Milliseconds that are counted
    #[arg(long, default_value_t = 1000)]
    time: u64,
    /// End after so many requests, whatever the time
    #[arg(long, default_value_t = u64::MAX)]
    requests: u64,
}

fn main() {
    match run(&Arguments::parse()) {
        Ok(line) => println!("{line}"),
        Err(error) => {
            eprintln!("exitless-load: {error:#}");
            std::process::exit(1);
        }
    }
}

fn run(arguments: &Arguments) -> Result<String> {
    if let Some(blocks) = arguments.verify {
        let [socket] = &arguments.sockets[..] else { bail!("say which disk: --socket, once") };
        let verified = verify::verify(socket, arguments.depth, blocks, PATIENCE)?;
        return Ok(serde_json::to_string(&verified)?);
    }
    let figures = match (arguments.echo, arguments.frames) {
        (Some(core), _) => echo(arguments, core),
        (None, Some(bytes)) => stations(arguments, bytes),
        (None, None) => clients(arguments),
    };
    Ok(serde_json::to_string(&figures?)?)
}

fn stay_on(core: Option<usize>) -> Result<()> {
    let Some(core) = core else { return Ok(()) };
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).with_context(|| format!("there is no core {core}"))
}

fn clients(arguments: &Arguments) -> Result<Figures> {
    if arguments.sockets.is_empty() {
        bail!("say which disks: --socket, or --echo");
    }
    stay_on(arguments.core)?;
    let event_index = !arguments.no_event_index;
    let asked = Asked { depth: arguments.depth, write: arguments.write, event_index };
    let mut fronts = Vec::new();
    for (seed, socket) in (1..).zip(&arguments.sockets) {
        let depth = if arguments.lone && seed == 1 { 1 } else { arguments.depth };
        let asked = Asked { depth, ..asked };
        fronts.push(Front::new(socket, asked, seed * 0x9e37_79b9_7f4a_7c15)?);
    }
    let waits = Epoll::new().context("there is no epoll")?;
    for (at, front) in (0..).zip(&fronts) {
        let event = EpollEvent::new(EventSet::IN, at);
        waits.ctl(ControlOperation::Add, front.told.call.as_raw_fd(), event)?;
        front.ring.want_calls(false)?;
    }
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    let mut window = Window::new(arguments);
    for front in &mut fronts {
        let pass = front.ring.begin(now())?;
        front.told.kick(pass.kick)?;
    }
    let pause = arguments.pause.map(Duration::from_micros);
    let mut calls = 0;
    let mut events = vec![EpollEvent::default(); fronts.len()];
    loop {
        for _ in 0..PASSES {
            let mut answered = 0;
            for (at, front) in fronts.iter_mut().enumerate() {
                let counts = !arguments.lone || at == 0;
                let pass = front.ring.pass(now, pause, |latency| {
                    if counts {
                        window.latencies.add(latency);
                    }
                })?;
                answered += pass.answered;
                window.failed += u64::from(pass.failed);
                front.told.kick(pass.kick)?;
            }
            window.requests += u64::from(answered);
            if answered > 0 || !arguments.calls {
                continue;
            }
            let mut more = false;
            for front in &fronts {
                more |= front.ring.want_calls(true)?;
            }
            if !more && waits.wait(PATIENCE, &mut events)? == 0 {
                bail!("no call came for {} s", PATIENCE / 1000);
            }
            for front in &fronts {
                calls += front.told.call.read().unwrap_or(0);
                front.ring.want_calls(false)?;
            }
        }
        let kicks = fronts.iter().map(|front| front.told.kicks).sum();
        if let Some(figures) = window.look(calls, kicks)? {
            return Ok(figures);
        }
    }
}

/// From one network device to another.
fn stations(arguments: &Arguments, bytes: u32) -> Result<Figures> {
    let ([from, to], 1..=frames::MOST) = (&arguments.sockets[..], arguments.depth) else {
        bail!("say two sockets for frames, and 1 to {} under way", frames::MOST);
    };
    stay_on(arguments.core)?;
    let mut stations = Stations::new(from, to, bytes)?;
    let waits = Epoll::new().context("there is no epoll")?;
    let event = EpollEvent::new(EventSet::IN, 0);
    waits.ctl(ControlOperation::Add, stations.call().call.as_raw_fd(), event)?;
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    let patience = Duration::from_millis(PATIENCE as u64);
    // A switch that isn't ready yet may drop frames: one at a time, until one has arrived.
    let mut last = Instant::now();
    stations.send(1, now())?;
    while stations.receive(now, |_| ())? == 0 {
        if began.elapsed() > patience {
            bail!("no frame arrives");
        }
        if last.elapsed() > EARLY {
            stations.forget();
            stations.send(1, now())?;
            last = Instant::now();
        }
    }
    let mut window = Window::new(arguments);
    let (mut calls, mut events) = (0, [EpollEvent::default()]);
    let mut last = now();
    stations.send(arguments.depth, last)?;
    loop {
        for _ in 0..PASSES {
            let clock = || {
                last = now();
                last
            };
            let arrived = stations.receive(clock, |latency| window.latencies.add(latency))?;
            window.requests += u64::from(arrived);
            if arrived > 0 || !arguments.calls {
                stations.send(arguments.depth, last)?;
                continue;
            }
            if !stations.want_calls(true)? && waits.wait(PATIENCE, &mut events)? == 0 {
                bail!("no call came for {} s", PATIENCE / 1000);
            }
            calls += stations.call().call.read().unwrap_or(0);
            stations.want_calls(false)?;
        }
        if now() - last > PATIENCE as u64 * 1_000_000 {
            bail!("no frame arrives any more");
        }
        if let Some(figures) = window.look(calls, stations.kicks())? {
            return Ok(figures);
        }
    }
}

/// Against a thread that answers and does nothing else.
fn echo(arguments: &Arguments, core: usize) -> Result<Figures> {
    let memory = Mapping::anonymous(BYTES).context("there is no memory")?;
    let span = memory.span().context("the memory can't be seen")?;
    let mut ring = Ring::new(span, arguments.depth, arguments.write, false, 1 << 18, 1)?;
    let over = AtomicBool::new(false);
    // Each goes to its core before the other keeps one busy.
    let apart = Barrier::new(2);
    std::thread::scope(|scope| {
        let (over, apart) = (&over, &apart);
        scope.spawn(move || {
            let mut echo = Echo::new(span);
            let there = stay_on(Some(core));
            apart.wait();
            there?;
            while !over.load(Ordering::Relaxed) {
                echo.pass()?;
            }
            anyhow::Ok(())
        });
        let mut all = || {
            let there = stay_on(arguments.core);
            apart.wait();
            there?;
            let began = Instant::now();
            let now = || began.elapsed().as_nanos() as u64;
            let mut window = Window::new(arguments);
            ring.begin(0)?;
            loop {
                for _ in 0..PASSES {
                    let pass = ring.pass(now, None, |latency| window.latencies.add(latency))?;
                    window.requests += u64::from(pass.answered);
                }
                if let Some(figures) = window.look(0, 0)? {
                    return Ok(figures);
                }
            }
        };
        let figures = all();
        over.store(true, Ordering::Relaxed);
        figures
    })
}
