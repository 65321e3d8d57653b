//! `exitless top`: the ledger of a running `exitless run`, live.
//!
//! Guarantees: watching costs the guests nothing, neither an exit nor an instruction: core
//! 0 reads their counters from memory, and only when asked (`hypervisor/src/host/live.rs`).

mod numbers;
mod offer;
mod place;
mod plain;
mod rates;
mod screen;
mod served;
mod state;
mod watch;

pub use offer::Offer;
pub use place::directory;

use crate::{arguments::process, context::Context, report::status, say::say};
use anyhow::{Context as _, Result, bail};
use ratatui::{DefaultTerminal, crossterm::event};
use rates::Rates;
use screen::{Screen, Wish};
use state::Snapshot;
use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    time::{Duration, Instant},
};
use watch::Heard;

/// How often keys and signals are looked at.
const TICK: Duration = Duration::from_millis(50);
/// After so long a silence `top` says that the run doesn't answer.
const SILENCE: Duration = Duration::from_secs(3);
/// When a table is so late, `top` says that it waits.
const UNEASY: Duration = Duration::from_secs(1);
/// Scripts give up after this: an emulated machine can be very slow.
const PATIENCE: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  exitless top                       watch the run that is going on; q ends it
  exitless top --once                one table over one second
  exitless top --json --interval 5   an object per line, one every five seconds

Keys: q quits; up and down choose whose exits are shown by reason; left and right choose
what is sorted by; space holds the screen.

Rates are per second of the emulated machine's clock. Watching adds no exit to a guest.
Interrupts that a guest takes without an exit are not seen by the host and not counted.

Exit status: 0 you or the run ended; 1 there is nothing to watch, or no answer.";

/// Watch the exits of a running `exitless run`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = crate::help::flow(EXAMPLES))]
pub struct Args {
    /// The run to watch, by its process number; needed when there are several
    #[arg(long, value_name = "PID", value_parser = process)]
    session: Option<u32>,
    /// Print one interval and end
    #[arg(long)]
    once: bool,
    /// Print JSON, one object per interval and line
    #[arg(long)]
    json: bool,
    /// Seconds from one look to the next
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=3600.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "give 0.1 to 3600 seconds".to_owned())
}

/// Watches until the run or the person ends it.
pub fn top(args: &Args, cx: &Context) -> Result<ExitCode> {
    let session = watch::find(&place::directory(), args.session)?;
    let pid = session.pid;
    let hear = session.watch(args.interval);
    let plain = args.once || args.json || !io::stdout().is_terminal();
    let end = if plain { print(args, pid, &hear, cx)? } else { show(args, pid, &hear, cx)? };
    if let Some(how) = end {
        let text = format!("exitless: the run of process {pid} has ended: {how}\n");
        // For the person who watches; whoever reads standard output gets tables or JSON alone.
        // Fails when there is nobody.
        let _ = io::stderr().write_all(text.as_bytes());
    }
    Ok(ExitCode::from(status::OK))
}

/// Prints tables or JSON, one or many; how the run ended, if it did.
fn print(args: &Args, pid: u32, hear: &Receiver<Heard>, cx: &Context) -> Result<Option<String>> {
    let mut newest: Option<Snapshot> = None;
    let (mut heard, mut told) = (Instant::now(), false);
    // When the next thing ought to come: an answer at once, a table an interval after it.
    let mut due = Instant::now();
    while !cx.interrupted() {
        if !told && Instant::now() >= due + UNEASY {
            say(format_args!("exitless: no answer yet from the run of process {pid}; waiting"));
            told = true;
        }
        let snapshot = match hear.recv_timeout(TICK) {
            Ok(Heard::State(snapshot)) => snapshot,
            Ok(Heard::Ended(how)) => return Ok(Some(how)),
            Err(RecvTimeoutError::Timeout) if heard.elapsed() < PATIENCE + args.interval => {
                continue;
            }
            Err(_) => bail!("the run of process {pid} hasn't answered for {PATIENCE:?}"),
        };
        heard = Instant::now();
        if newest.is_none() {
            due = heard + args.interval;
        }
        let rates = newest.as_ref().map(|old| Rates::between(old, &snapshot));
        newest = Some(snapshot);
        // Before the hypervisor is up there is nothing to compare.
        let Some(rates) = rates.filter(|r| r.seconds > 0.0) else { continue };
        let text = match args.json {
            true => format!("{}\n", rates.json(pid)),
            false => plain::text(&rates),
        };
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // Whoever read it has seen enough.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(None),
            result => result.context("standard output can't be written")?,
        }
        if args.once {
            break;
        }
        (due, told) = (Instant::now() + args.interval, false);
    }
    Ok(None)
}

/// Shows the live screen; how the run ended, if it did.
fn show(args: &Args, pid: u32, hear: &Receiver<Heard>, cx: &Context) -> Result<Option<String>> {
    let mut terminal = ratatui::try_init().context("the terminal can't be set up for a screen")?;
    let end = follow(&mut terminal, args, pid, hear, cx);
    // Fails only when the terminal is gone.
    let _ = ratatui::try_restore();
    end
}

fn follow(
    terminal: &mut DefaultTerminal,
    args: &Args,
    pid: u32,
    hear: &Receiver<Heard>,
    cx: &Context,
) -> Result<Option<String>> {
    let mut screen = Screen::new(pid);
    let (mut heard, mut changed) = (Instant::now(), true);
    while !cx.interrupted() {
        if changed {
            terminal.draw(|frame| screen.draw(frame)).context("the terminal can't be written")?;
        }
        changed = event::poll(TICK).context("the terminal can't be read")?;
        if changed {
            let event = event::read().context("the terminal can't be read")?;
            if event.as_key_press_event().is_some_and(|key| screen.key(key) == Wish::Quit) {
                break;
            }
        }
        match hear.try_recv() {
            Ok(Heard::State(snapshot)) => {
                screen.hear(snapshot);
                (heard, changed) = (Instant::now(), true);
            }
            Ok(Heard::Ended(how)) => return Ok(Some(how)),
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                let silence = heard.elapsed().saturating_sub(args.interval);
                changed |= screen.silent((silence > SILENCE).then_some(silence.as_secs()));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
