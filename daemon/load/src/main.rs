//! `exitless-load`: clients of vhost-user disks that ask for as much as is served, in one thread.
//!
//! It is lighter than what it measures: descriptors are written once, a pass over a ring reads one
//! index if there is nothing, and the clock is read once for each pass that finds something. Its
//! own cost is told with every figure, and `--echo` shows it against a ring that somebody answers
//! who does nothing else.
//!
//! | file | is |
//! |---|---|
//! | `main` | the command line, the loop, the figures |
//! | `front` | one client: its connection |
//! | `ring` | its ring, and the echo |
//! | `count` | latencies, and CPU time |
#![forbid(unsafe_code)]

mod count;
mod front;
mod ring;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use count::{Had, Histogram};
use daemon_os::Mapping;
use front::{Asked, Front};
use ring::{BYTES, Echo, Ring};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Passes between two looks at the clock that ends a run.
const PASSES: u32 = 256;
/// How long a run waits for an answer before it is given up, in milliseconds.
const PATIENCE: i32 = 10_000;

/// Asks disks for as many requests of 4 KiB as they serve, and prints what was counted, as JSON.
#[derive(Parser)]
struct Arguments {
    /// A client for each of these sockets
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,
    /// A ring in this program, answered by a thread on this core that does nothing else
    #[arg(long, value_name = "CORE", conflicts_with = "sockets")]
    echo: Option<usize>,
    /// Requests of each client at a time
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// Writes, not reads
    #[arg(long)]
    write: bool,
    /// Sleep until called, not poll
    #[arg(long)]
    calls: bool,
    /// Don't use event indexes
    #[arg(long)]
    no_event_index: bool,
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

/// What was counted.
#[derive(Debug, Serialize)]
struct Figures {
    requests: u64,
    failed: u64,
    nanoseconds: u64,
    /// Of the process that serves: its time on cores, and context switches.
    server_cpu: Option<u64>,
    server_switches: Option<u64>,
    /// Of this program.
    own_cpu: u64,
    calls: u64,
    kicks: u64,
    /// Latencies in nanoseconds.
    p50: u64,
    p99: u64,
}

fn main() {
    match run(&Arguments::parse()).and_then(|figures| Ok(serde_json::to_string(&figures)?)) {
        Ok(line) => println!("{line}"),
        Err(error) => {
            eprintln!("exitless-load: {error:#}");
            std::process::exit(1);
        }
    }
}

fn run(arguments: &Arguments) -> Result<Figures> {
    match arguments.echo {
        Some(core) => echo(arguments, core),
        None => clients(arguments),
    }
}

fn stay_on(core: Option<usize>) -> Result<()> {
    let Some(core) = core else { return Ok(()) };
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).with_context(|| format!("there is no core {core}"))
}

/// Counts from when the warm-up is over until the time is.
struct Window<'a> {
    arguments: &'a Arguments,
    began: Instant,
    start: Option<(Instant, Had, Option<Had>, u64, u64)>,
    latencies: Histogram,
    requests: u64,
    failed: u64,
}

impl<'a> Window<'a> {
    fn new(arguments: &'a Arguments) -> Self {
        let latencies = Histogram::new();
        Window { arguments, began: Instant::now(), start: None, latencies, requests: 0, failed: 0 }
    }

    fn server(&self) -> Result<Option<Had>> {
        self.arguments.server.map(Had::process).transpose()
    }

    /// The figures, if it is over. `calls` and `kicks` so far.
    fn look(&mut self, calls: u64, kicks: u64) -> Result<Option<Figures>> {
        let Some((start, own, server, calls_before, kicks_before)) = self.start else {
            if self.began.elapsed() >= Duration::from_millis(self.arguments.warmup) {
                self.start = Some((Instant::now(), Had::own()?, self.server()?, calls, kicks));
                (self.latencies, self.requests, self.failed) = (Histogram::new(), 0, 0);
            }
            return Ok(None);
        };
        let took = start.elapsed();
        let limit = Duration::from_millis(self.arguments.time);
        if took < limit && self.requests < self.arguments.requests {
            return Ok(None);
        }
        let had = server.zip(self.server()?).map(|(before, after)| after.since(before));
        Ok(Some(Figures {
            requests: self.requests,
            failed: self.failed,
            nanoseconds: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            server_cpu: had.map(|had| had.cpu),
            server_switches: had.map(|had| had.switches),
            own_cpu: Had::own()?.since(own).cpu,
            calls: calls - calls_before,
            kicks: kicks - kicks_before,
            p50: self.latencies.at(500),
            p99: self.latencies.at(990),
        }))
    }
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
        fronts.push(Front::new(socket, asked, seed * 0x9e37_79b9_7f4a_7c15)?);
    }
    let waits = Epoll::new().context("there is no epoll")?;
    for (at, front) in (0..).zip(&fronts) {
        use std::os::fd::AsRawFd as _;
        let event = EpollEvent::new(EventSet::IN, at);
        waits.ctl(ControlOperation::Add, front.call.as_raw_fd(), event)?;
        front.ring.want_calls(false)?;
    }
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    let mut window = Window::new(arguments);
    for front in &mut fronts {
        let pass = front.ring.begin(now())?;
        front.follow(pass)?;
    }
    let mut calls = 0;
    let mut events = vec![EpollEvent::default(); fronts.len()];
    loop {
        for _ in 0..PASSES {
            let mut answered = 0;
            for front in &mut fronts {
                let pass = front.ring.pass(now, |latency| window.latencies.add(latency))?;
                answered += pass.answered;
                window.failed += u64::from(pass.failed);
                front.follow(pass)?;
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
                calls += front.call.read().unwrap_or(0);
                front.ring.want_calls(false)?;
            }
        }
        let kicks = fronts.iter().map(|front| front.kicks).sum();
        if let Some(figures) = window.look(calls, kicks)? {
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
                    let pass = ring.pass(now, |latency| window.latencies.add(latency))?;
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
