//! One target: where its files are, its process, and what came of it.

use super::archive;
use anyhow::{Context as _, Result};
use exitless::context::Context;
use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// Options of libFuzzer that are the same for all.
const LIMITS: [&str; 4] =
    ["-max_len=8192", "-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"];
/// How much of the end of a log is read.
const TAIL: u64 = 64 << 10;

/// What came of a target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The target.
    pub name: String,
    /// How often it ran.
    pub executions: u64,
    /// Edges of its code that were reached.
    pub edges: u64,
    /// Inputs that it has learnt.
    pub inputs: u64,
    /// How long it ran.
    pub seconds: f64,
    /// What it found, if it did.
    pub found: Option<Found>,
}

/// Something found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// What libFuzzer or the target said.
    pub what: String,
    /// The command that runs it again.
    pub again: String,
}

/// Where all of it is: programs, what was learnt, what was found.
pub fn folder(cx: &Context) -> PathBuf {
    cx.target.join("fuzz")
}

/// A target's program, once it is built.
pub fn program(cx: &Context, name: &str) -> PathBuf {
    folder(cx).join("x86_64-unknown-linux-gnu/release").join(name)
}

/// A folder for `name` in what was learnt (`corpus`), found (`artifacts`) or kept (`kept`), made if
/// need be.
pub fn place(cx: &Context, what: &str, name: &str) -> Result<PathBuf> {
    let path = folder(cx).join(what).join(name);
    fs::create_dir_all(&path).with_context(|| format!("{} can't be made", path.display()))?;
    Ok(path)
}

/// The folders with the inputs for `name` that the checkout has, as far as there are any; the
/// corpus is unpacked below the build directory.
pub fn kept(cx: &Context, name: &str) -> Result<Vec<PathBuf>> {
    let corpus = place(cx, "kept", name)?;
    fs::remove_dir_all(&corpus)?;
    fs::create_dir(&corpus)?;
    let archive = archive::path(cx, name);
    if archive.is_file() {
        for (input, bytes) in archive::unpack(&archive)? {
            fs::write(corpus.join(input), bytes)?;
        }
    }
    let seeds = cx.root.join("fuzz/seeds").join(name);
    Ok([corpus, seeds].into_iter().filter(|path| path.is_dir()).collect())
}

/// A target's command with the limits; it dies with the thread that starts it.
pub fn command(cx: &Context, name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program(cx, name)).args(LIMITS);
    command.stdin(Stdio::null());
    command
}

/// A target that runs. Dropped, it is ended.
pub struct Running {
    name: String,
    process: Child,
    start: Instant,
    artifacts: PathBuf,
    log: PathBuf,
    program: PathBuf,
}

impl Running {
    /// Starts a target for so many seconds.
    pub fn start(cx: &Context, name: &str, seconds: u64) -> Result<Running> {
        let (learnt, artifacts) = (place(cx, "corpus", name)?, place(cx, "artifacts", name)?);
        let log = folder(cx).join(format!("{name}.log"));
        let text =
            File::create(&log).with_context(|| format!("{} can't be written", log.display()))?;
        let mut command = command(cx, name);
        command.arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-artifact_prefix={}/", artifacts.display()));
        let dictionary = cx.root.join("fuzz/seeds").join(format!("{name}.dict"));
        if dictionary.is_file() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        command.arg(learnt).args(kept(cx, name)?).stdout(Stdio::null()).stderr(text);
        let process = command.spawn().with_context(|| format!("{name} can't be started"))?;
        let (name, start, program) = (name.to_owned(), Instant::now(), program(cx, name));
        Ok(Running { name, process, start, artifacts, log, program })
    }

    /// The target.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Since when it runs.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// What came of it, once it has ended.
    pub fn ended(&mut self) -> Result<Option<Outcome>> {
        let Some(status) = self.process.try_wait()? else { return Ok(None) };
        let log = tail(&self.log)?;
        let mut outcome = read(&self.name, &log, status, &self.artifacts, &self.program);
        outcome.seconds = self.elapsed().as_secs_f64();
        Ok(Some(outcome))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when it has ended and been waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The end of a file, as text.
fn tail(path: &Path) -> Result<String> {
    let unread = || format!("{} can't be read", path.display());
    let mut file = File::open(path).with_context(unread)?;
    let length = file.metadata().with_context(unread)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).with_context(unread)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).with_context(unread)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn read(name: &str, log: &str, status: ExitStatus, artifacts: &Path, program: &Path) -> Outcome {
    let found = (!status.success()).then(|| {
        let input = written(log).unwrap_or_else(|| artifacts.display().to_string());
        Found { what: what(log, status), again: format!("{} {input}", program.display()) }
    });
    Outcome {
        name: name.to_owned(),
        executions: last(log, "stat::number_of_executed_units:"),
        edges: last(log, " cov:"),
        inputs: last(log, " corp:"),
        seconds: 0.0,
        found,
    }
}

/// The number that follows `key` for the last time.
fn last(log: &str, key: &str) -> u64 {
    let number = |rest: &str| {
        let digits = rest.trim_start();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    };
    log.rsplit_once(key).and_then(|(_, rest)| number(rest)).unwrap_or(0)
}

/// Where libFuzzer wrote the input to.
fn written(log: &str) -> Option<String> {
    let (_, rest) = log.rsplit_once("Test unit written to ")?;
    rest.lines().next().map(str::to_owned)
}

/// The panic with its message, else what libFuzzer says, else how the process ended.
fn what(log: &str, status: ExitStatus) -> String {
    let lines: Vec<_> = log.lines().collect();
    if let Some(at) = lines.iter().position(|l| l.contains(" panicked at ")) {
        let place = lines[at].split_once(" panicked at ").map_or("", |(_, place)| place);
        let message = lines.get(at + 1).copied().unwrap_or("");
        return format!("panicked at {place} {message}");
    }
    let error = lines.iter().find_map(|l| Some(l.split_once("ERROR: libFuzzer: ")?.1));
    error.map_or_else(|| format!("it ended with {status}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const LOG: &str = "#1 INITED cov: 5 ft: 7 corp: 1/1b\n\
        #361 DONE   cov: 539 ft: 2170 corp: 653/87Kb lim: 814 exec/s: 27768 rss: 28Mb\n\
        stat::number_of_executed_units: 360989\nstat::average_exec_per_sec: 27768\n";

    fn outcome(log: &str, code: i32) -> Outcome {
        let status = ExitStatus::from_raw(code << 8);
        read("pci", log, status, Path::new("/a"), Path::new("/p/pci"))
    }

    #[test]
    fn the_corpus_is_unpacked_and_renewed() {
        let cx = Context::for_tests();
        let inputs = || fs::read_dir(&kept(&cx, "ledger").unwrap()[0]).unwrap().count();
        let count = inputs();
        assert!(count > 10, "{count}");
        fs::write(folder(&cx).join("kept/ledger/stale"), "").unwrap();
        assert_eq!(inputs(), count);
    }

    #[test]
    fn a_quiet_run_is_read() {
        let o = outcome(LOG, 0);
        assert_eq!((o.executions, o.edges, o.inputs, o.found), (360_989, 539, 653, None));
    }

    #[test]
    fn what_was_found_is_named_with_the_command() {
        let log = format!(
            "{LOG}thread '<unnamed>' (7) panicked at fuzz_targets/pci.rs:7:1:\nleft a window\n\
             ==7== ERROR: libFuzzer: deadly signal\nartifact_prefix='/a/'; Test unit written to /a/crash-1\nBase64: x\n"
        );
        let found = outcome(&log, 77).found.unwrap();
        assert_eq!(found.what, "panicked at fuzz_targets/pci.rs:7:1: left a window");
        assert_eq!(found.again, "/p/pci /a/crash-1");
        let slow = outcome("==7== ERROR: libFuzzer: timeout after 10 seconds\n", 70).found.unwrap();
        assert_eq!(
            (slow.what.as_str(), slow.again.as_str()),
            ("timeout after 10 seconds", "/p/pci /a")
        );
        assert!(outcome("", 1).found.unwrap().what.starts_with("it ended with"));
    }
}
