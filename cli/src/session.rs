//! One run of an emulated machine: starts QEMU, hands on what its serial port says,
//! sends it what is typed, and sees that it ends.
//!
//! Guarantees: when [`run`] returns, whatever happened, QEMU has ended. Nothing is
//! written to disk. A side that is slow holds the other up and doesn't fill memory.
//! A run that is broken off before its VMs have ended hands on their counters first, if the
//! hypervisor answers in [`FAREWELL`]; whoever asks a second time to leave doesn't wait for them.

use crate::{
    context::Context,
    stream::{self, Demux, Piece},
};
use anyhow::{Context as _, Result, anyhow};
use proto::Record;
use std::{
    io::{self, Read, Write},
    ops::ControlFlow,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

/// How often a run looks at its clock and for ^C.
const TICK: Duration = Duration::from_millis(20);
/// How long a run that is broken off waits for the last counters. The hypervisor looks for
/// questions 100 times a second, of a clock that is slow on a busy machine.
const FAREWELL: Duration = Duration::from_secs(3);
/// How many pieces of output wait for whoever sees them.
const MAX_PIECES: usize = 16;
/// How many bytes of input wait for QEMU before no more are taken.
const MAX_QUEUED: usize = 64 << 10;
/// How much of QEMU's own messages is kept.
const MAX_MESSAGES: usize = 64 << 10;

/// How the machine's serial port is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// As the hypervisor's console stream.
    Frames,
    /// As the console of the one system that runs on the bare machine.
    Raw,
}

/// What happens during a run.
#[derive(Debug)]
pub enum Seen<'a> {
    /// The serial port said something.
    Said(Piece<'a>),
    /// It has said nothing for a moment; again and again while it doesn't.
    Idle,
}

/// What comes from outside while the machine runs.
pub struct Typed {
    /// What was typed.
    pub bytes: Receiver<Vec<u8>>,
    /// Which VM it is for, by its index in the plan.
    pub to: usize,
    /// What else is asked of the run.
    pub commands: Arc<Commands>,
}

/// What is wanted of a run while it goes on.
#[derive(Debug, Default)]
pub struct Commands {
    counters: AtomicBool,
    /// How often the person said that they want to leave.
    quits: AtomicUsize,
    words: Mutex<Vec<(usize, &'static str)>>,
}

impl Commands {
    /// Somebody wants to see the vCPUs' counters as they are now.
    pub fn ask(&self) {
        self.counters.store(true, Ordering::Relaxed);
    }

    /// Whether [`Commands::ask`] was called since this was.
    pub fn take_question(&self) -> bool {
        self.counters.swap(false, Ordering::Relaxed)
    }

    /// Something is to be typed on the console of a VM, given by its index in the plan.
    pub fn type_to(&self, vm: usize, text: &'static str) {
        self.words().push((vm, text));
    }

    /// What is to be typed, and forgets it.
    pub fn typed(&self) -> Vec<(usize, &'static str)> {
        self.words().drain(..).collect()
    }

    fn words(&self) -> MutexGuard<'_, Vec<(usize, &'static str)>> {
        // Nobody panics while it is held.
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The person wants to leave.
    pub fn quit(&self) {
        self.quits.fetch_add(1, Ordering::Relaxed);
    }

    fn quits(&self) -> usize {
        self.quits.load(Ordering::Relaxed)
    }
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// QEMU ended by itself with this status; see [`Ended::code`].
    Exited {
        /// Its exit status.
        status: i32,
        /// The last thing it said on its standard error, if anything.
        message: String,
    },
    /// A signal that wasn't ours ended QEMU.
    Killed {
        /// Its number.
        signal: i32,
        /// The last thing that QEMU said, if anything: an assertion that failed.
        message: String,
    },
    /// The time was up.
    TimedOut,
    /// ^C, or a signal to end.
    Interrupted,
    /// [`Commands::quit`], or the caller had seen enough.
    Stopped,
}

impl Ended {
    /// The value that was written to the debug-exit device, if that ended the run.
    pub fn code(&self) -> Option<u32> {
        match self {
            Ended::Exited { status, .. } => proto::exit::code(*status),
            _ => None,
        }
    }
}

/// What to run and how.
pub struct Setup {
    /// From [`crate::machine::Machine::command`].
    pub command: Command,
    /// How to read its serial port.
    pub framing: Framing,
    /// When to give up.
    pub timeout: Option<Duration>,
    /// What comes from outside; none for runs that nobody attends.
    pub typed: Option<Typed>,
}

/// Runs the machine until it ends, the time is up, or `see` breaks off.
pub fn run(
    setup: Setup,
    cx: &Context,
    mut see: impl FnMut(Seen) -> Result<ControlFlow<()>>,
) -> Result<Ended> {
    let Setup { mut command, framing, timeout, typed } = setup;
    // In a group of its own, so that ^C on the terminal reaches only this process.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command
        .spawn()
        .with_context(|| format!("{} can't be started", command.get_program().to_string_lossy()))?;
    let mut qemu = Qemu(child);
    let (said, hear) = mpsc::sync_channel(MAX_PIECES);
    let stdout = qemu.0.stdout.take().ok_or_else(|| anyhow!("QEMU has no standard output"))?;
    let stderr = qemu.0.stderr.take().ok_or_else(|| anyhow!("QEMU has no standard error"))?;
    let stdin = qemu.0.stdin.take().ok_or_else(|| anyhow!("QEMU has no standard input"))?;
    thread::spawn(move || forward(stdout, &said));
    let messages = thread::spawn(move || collect(stderr));
    let attended = typed.map(|typed| (typed, Input::new(stdin)));

    let mut listener = Listener { hear, demux: Demux::default(), framing, running: false };
    let start = Instant::now();
    loop {
        let over = match &attended {
            _ if cx.interruptions() > 0 => Some(Ended::Interrupted),
            _ if timeout.is_some_and(|t| start.elapsed() >= t) => Some(Ended::TimedOut),
            Some((typed, _)) if typed.commands.quits() > 0 => Some(Ended::Stopped),
            _ => None,
        };
        if let Some(ended) = over {
            if let Some((typed, input)) = attended.as_ref().filter(|_| listener.running) {
                let patient = || {
                    let asked = cx.interruptions() + typed.commands.quits();
                    asked <= usize::from(ended != Ended::TimedOut)
                };
                input.send(stream::ask_live());
                listener.farewell(patient, &mut see)?;
            }
            return Ok(ended);
        }
        // What firmware and boot loaders get before the hypervisor listens are keys to them.
        let listens = framing == Framing::Raw || listener.demux.is_framed();
        if let Some((typed, input)) = attended.as_ref().filter(|_| listens) {
            input.feed(typed, framing);
        }
        match listener.next(&mut see)? {
            Some(ControlFlow::Continue(())) => {}
            Some(ControlFlow::Break(())) => return Ok(Ended::Stopped),
            None => break,
        }
    }
    let mut demux = listener.demux;
    let mut rest = Ok(());
    demux.finish(|piece| {
        if rest.is_ok() {
            rest = see(Seen::Said(piece)).map(|_| ());
        }
    });
    rest?;
    let status = qemu.0.wait().context("waiting for QEMU")?;
    let messages = messages.join().unwrap_or_default();
    Ok(ended(status, &messages))
}

/// The serial port's output on its way to whoever sees it.
struct Listener {
    hear: Receiver<Vec<u8>>,
    demux: Demux,
    framing: Framing,
    /// Whether VMs have started, and the hypervisor so can be asked.
    running: bool,
}

impl Listener {
    /// Hands on what comes in the next moment; none when the port is closed.
    fn next(
        &mut self,
        see: &mut impl FnMut(Seen) -> Result<ControlFlow<()>>,
    ) -> Result<Option<ControlFlow<()>>> {
        let bytes = match self.hear.recv_timeout(TICK) {
            Ok(bytes) => bytes,
            Err(RecvTimeoutError::Timeout) => return see(Seen::Idle).map(Some),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        };
        if self.framing == Framing::Raw {
            return see(Seen::Said(Piece::Console { vm: 0, bytes: &bytes })).map(Some);
        }
        let mut flow = Ok(ControlFlow::Continue(()));
        self.demux.push(&bytes, |piece| {
            self.running |= matches!(piece, Piece::Record(Record::Started { .. }));
            if matches!(flow, Ok(ControlFlow::Continue(()))) {
                flow = see(Seen::Said(piece));
            }
        });
        flow.map(Some)
    }

    /// The counters of all vCPUs were asked for: hands on what comes until they are there.
    fn farewell(
        &mut self,
        patient: impl Fn() -> bool,
        see: &mut impl FnMut(Seen) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let (start, mut complete) = (Instant::now(), false);
        while !complete && start.elapsed() < FAREWELL && patient() {
            let flow = self.next(&mut |seen: Seen| {
                complete |=
                    matches!(&seen, Seen::Said(Piece::Record(Record::Live { left: 0, .. })));
                see(seen)
            })?;
            if flow.is_none() {
                break;
            }
        }
        Ok(())
    }
}

fn ended(status: ExitStatus, messages: &str) -> Ended {
    let last = messages.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("");
    let message = stream::printable(last.trim());
    match (status.code(), status.signal()) {
        (Some(status), _) => Ended::Exited { status, message },
        (None, signal) => Ended::Killed { signal: signal.unwrap_or(0), message },
    }
}

/// Kills QEMU when the run is over, however it came to be over.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both fail only when it has ended and been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn forward(mut from: impl Read, to: &SyncSender<Vec<u8>>) {
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) if to.send(buffer[..n].to_vec()).is_err() => return,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Reads to the end, so that the writer never blocks, and keeps the end of it.
fn collect(mut from: impl Read) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..n]);
        if kept.len() > 2 * MAX_MESSAGES {
            kept.drain(..kept.len() - MAX_MESSAGES);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// The way to QEMU's standard input. A guest that reads nothing must not block us, so a
/// thread of its own writes.
struct Input {
    send: Sender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
}

impl Input {
    fn new(mut to: impl Write + Send + 'static) -> Input {
        let (send, receive) = mpsc::channel::<Vec<u8>>();
        let queued = Arc::new(AtomicUsize::new(0));
        let waiting = queued.clone();
        thread::spawn(move || {
            for bytes in receive {
                if to.write_all(&bytes).and_then(|()| to.flush()).is_err() {
                    return;
                }
                waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
            }
        });
        Input { send, queued }
    }

    /// Passes on what came from outside, as far as there is room.
    fn feed(&self, typed: &Typed, framing: Framing) {
        if self.has_room() && typed.commands.take_question() && framing == Framing::Frames {
            self.send(stream::ask_live());
        }
        for (vm, text) in typed.commands.typed() {
            self.send(stream::frame_input(vm, text.as_bytes()));
        }
        while self.has_room()
            && let Ok(bytes) = typed.bytes.try_recv()
        {
            self.send(match framing {
                Framing::Frames => stream::frame_input(typed.to, &bytes),
                Framing::Raw => bytes,
            });
        }
    }

    fn has_room(&self) -> bool {
        self.queued.load(Ordering::Relaxed) < MAX_QUEUED
    }

    fn send(&self, bytes: Vec<u8>) {
        self.queued.fetch_add(bytes.len(), Ordering::Relaxed);
        // Fails when QEMU has ended, which is noticed elsewhere.
        let _ = self.send.send(bytes);
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
