//! Long commands that run beside the rest, at the lowest priority: those of a lane one after
//! another.
//!
//! Guarantees: when [`beside`] returns, no process of a command's group runs any more; a command's
//! output is kept whole. It doesn't guarantee any progress while others use all cores.

use anyhow::{Context as _, Result, bail};
use exitless::context::Context;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    fs::File,
    io::{Read, Seek},
    os::unix::process::CommandExt,
    panic::resume_unwind,
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How often a command is looked at while it runs.
const TICK: Duration = Duration::from_millis(50);

/// A command, and what it is called in the table of steps.
pub struct Job {
    /// The step's name, if it is one.
    pub name: Option<&'static str>,
    /// What is run.
    pub command: Command,
}

impl Job {
    /// A step.
    pub fn step(name: &'static str, command: Command) -> Job {
        Job { name: Some(name), command }
    }

    /// None: it makes what a later step would make, which judges it.
    pub fn ahead(command: Command) -> Job {
        Job { name: None, command }
    }
}

/// How a command ended.
pub struct Ended {
    /// The step's name, if it is one.
    pub name: Option<&'static str>,
    /// Its status.
    pub status: ExitStatus,
    /// What it wrote to both its outputs.
    pub output: String,
    /// How long it ran.
    pub took: Duration,
}

/// Runs the jobs of each of `lanes` one after another while `foreground` runs, and waits for all.
/// When `foreground` fails, what is left of the jobs is stopped.
pub fn beside<T>(
    cx: &Context,
    lanes: &[Vec<Job>],
    foreground: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Ended>)> {
    let given_up = AtomicBool::new(false);
    let stop = || cx.interrupted() || given_up.load(Ordering::Relaxed);
    let one = |lane: &[Job]| lane.iter().map(|job| run(job, stop)).collect::<Result<Vec<_>>>();
    thread::scope(|scope| {
        let others: Vec<_> = lanes.iter().map(|lane| scope.spawn(|| one(lane))).collect();
        let done = foreground().inspect_err(|_| given_up.store(true, Ordering::Relaxed))?;
        let mut ended = Vec::new();
        for lane in others {
            ended.extend(lane.join().unwrap_or_else(|panic| resume_unwind(panic))?);
        }
        Ok((done, ended))
    })
}

fn run(job: &Job, stop: impl Fn() -> bool) -> Result<Ended> {
    let start = Instant::now();
    let mut output = tempfile::tempfile().context("no temporary file for a command's output")?;
    let status = Running(spawn(&job.command, &output)?).end(stop)?;
    let mut bytes = Vec::new();
    output.rewind()?;
    output.read_to_end(&mut bytes)?;
    let output = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Ended { name: job.name, status, output, took: start.elapsed() })
}

fn spawn(command: &Command, output: &File) -> Result<Child> {
    let mut nice = Command::new("nice");
    nice.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nice.env(name, value),
            None => nice.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice.process_group(0).stdin(Stdio::null());
    nice.stdout(output.try_clone()?).stderr(output.try_clone()?);
    nice.spawn().context("nice can't be started")
}

/// A process with its group; dropped, all of it is ended.
pub struct Running(pub Child);

impl Running {
    /// Waits for its end; fails, and ends all of it, when it is to stop before.
    pub fn end(mut self, stop: impl Fn() -> bool) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if stop() {
                bail!("stopped");
            }
            thread::sleep(TICK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing is left to be done about either.
        if let Ok(None) = self.0.try_wait()
            && let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("WORD", "said");
        Job::step("job", command)
    }

    #[test]
    fn each_is_run_and_heard_in_turn() {
        let cx = Context::for_tests();
        let lanes = [vec![job("echo $WORD; echo more >&2"), job("exit 3")], vec![job("exit 4")]];
        let (done, ended) = beside(&cx, &lanes, || Ok(7)).unwrap();
        assert_eq!(done, 7);
        assert_eq!(ended[0].output, "said\nmore\n");
        let codes: Vec<_> = ended.iter().map(|e| e.status.code()).collect();
        assert_eq!(codes, [Some(0), Some(3), Some(4)]);
    }

    #[test]
    fn a_failure_in_front_ends_them() {
        let (cx, start) = (Context::for_tests(), Instant::now());
        let ended = beside(&cx, &[vec![job("sleep 60 & wait")]], || -> Result<()> { bail!("no") });
        assert_eq!(ended.err().map(|e| e.to_string()), Some("no".into()));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
