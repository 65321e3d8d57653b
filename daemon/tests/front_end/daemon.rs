//! The program.
#![allow(dead_code, reason = "each test uses a part")]

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

/// Disks `a` and `b`, which has so many front ends at a time, and a control socket.
pub fn two(front_ends: usize) -> String {
    format!(
        "[disk.a]\nram = \"1M\"\nsocket = \"a\"\n[disk.b]\nram = \"1M\"\nsocket = \"b\"\n\
         front_ends = {front_ends}\n[host]\ncontrol = \"control\"\n"
    )
}

/// The program, in a folder of its own.
pub struct Daemon {
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    child: Child,
    log: Log,
}

/// What it said since it served.
type Log = Arc<Mutex<Vec<String>>>;

impl Daemon {
    pub fn ram() -> Daemon {
        let kept = ["--ram", "1M"].map(String::from).to_vec();
        Self::disk(tempfile::tempdir().expect("a folder"), kept)
    }

    /// In front of the NBD server in this folder, with a control socket.
    pub fn nbd(folder: tempfile::TempDir) -> Daemon {
        let path = |name| folder.path().join(name).display().to_string();
        let uri = format!("nbd+unix:///disk?socket={}", path("server"));
        let control = path("control");
        Self::disk(folder, vec!["--nbd".into(), uri, "--control".into(), control])
    }

    pub fn file() -> Daemon {
        Self::file_with(&[])
    }

    /// With this behind it on the command line.
    pub fn file_with(more: &[&str]) -> Daemon {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("disk");
        std::fs::write(&disk, vec![0; 1 << 20]).expect("it is written");
        let words = ["--file", &disk.display().to_string()].map(String::from);
        let more = more.iter().map(|word| (*word).to_owned());
        Self::disk(folder, words.into_iter().chain(more).collect())
    }

    /// One disk, with a control socket.
    pub fn controlled(kept: &[&str]) -> Daemon {
        let folder = tempfile::tempdir().expect("a folder");
        let control = folder.path().join("control").display().to_string();
        let kept = kept.iter().map(|word| (*word).to_owned());
        Self::disk(folder, kept.chain(["--control".into(), control]).collect())
    }

    fn disk(folder: tempfile::TempDir, kept: Vec<String>) -> Daemon {
        let socket = folder.path().join("socket").display().to_string();
        let arguments = [vec!["disk".into()], kept, vec!["--socket".into(), socket]].concat();
        Self::start(folder, arguments)
    }

    /// Connects to this socket instead of listening.
    pub fn connecting(folder: tempfile::TempDir) -> Daemon {
        let socket = folder.path().join("theirs").display().to_string();
        let arguments = ["disk", "--ram", "1M", "--connect", &socket].map(String::from).to_vec();
        Self::start(folder, arguments)
    }

    /// Serves what this text of a file says. There is an empty `disk` of 1 MiB in its folder.
    pub fn run(text: &str) -> Daemon {
        Self::run_in(tempfile::tempdir().expect("a folder"), text)
    }

    /// Serves [`two`] disks.
    pub fn two(front_ends: usize) -> Daemon {
        Self::run(&two(front_ends))
    }

    /// As [`Daemon::run`], in this folder, which the text calls FOLDER.
    pub fn run_in(folder: tempfile::TempDir, text: &str) -> Daemon {
        let text = text.replace("FOLDER", &folder.path().display().to_string());
        std::fs::write(folder.path().join("disk"), vec![0; 1 << 20]).expect("it is written");
        let file = folder.path().join("io.toml");
        std::fs::write(&file, &text).expect("it is written");
        Self::start(folder, vec!["run".into(), file.display().to_string()])
    }

    /// Serves what this text says, and keeps all rights.
    pub fn unconfined(text: &str) -> Daemon {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("io.toml");
        std::fs::write(&file, text).expect("it is written");
        let words = ["run", "--no-sandbox"].map(String::from).to_vec();
        Self::start(folder, [words, vec![file.display().to_string()]].concat())
    }

    /// Serves what this text says, with so many files at most.
    pub fn limited(text: &str, files: u32) -> Daemon {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("io.toml");
        std::fs::write(&file, text).expect("it is written");
        let limit = format!("ulimit -n {files}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &limit, PROGRAM, "run"]).arg(&file);
        let (child, log) = begin(command);
        Daemon { folder, arguments: Vec::new(), child, log }
    }

    /// A disk that is a file, in a program that may lock so many KiB, whoever starts it.
    pub fn locking(kib: u32, more: &[&str]) -> Daemon {
        let folder = tempfile::tempdir().expect("a folder");
        let [disk, socket] = ["disk", "socket"].map(|name| folder.path().join(name));
        std::fs::write(&disk, vec![0; 1 << 20]).expect("it is written");
        // Nobody but root has the right to go beyond the limit, or to give that right up.
        let limit = format!(
            "ulimit -l {kib}; test $(id -u) != 0 || set -- setpriv --bounding-set=-ipc_lock \"$@\"; \
             exec \"$@\""
        );
        let mut command = Command::new("sh");
        command.args(["-c", &limit, "sh", PROGRAM, "disk", "--file"]).arg(disk);
        command.args(more).arg("--socket").arg(socket);
        let (child, log) = begin(command);
        Daemon { folder, arguments: Vec::new(), child, log }
    }

    /// Serves what this text says, with its folder as the working directory, and nothing named from
    /// elsewhere.
    pub fn beside(text: &str) -> Daemon {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("io.toml"), text).expect("it is written");
        let mut command = Command::new(PROGRAM);
        command.args(["run", "io.toml"]).current_dir(folder.path());
        let (child, log) = begin(command);
        Daemon { folder, arguments: Vec::new(), child, log }
    }

    /// Serves what this text says, as systemd starts it: it listens at a socket already.
    pub fn listening(folder: tempfile::TempDir, text: &str, at: UnixListener) -> Daemon {
        let file = folder.path().join("io.toml");
        std::fs::write(&file, text).expect("it is written");
        // The shell gives its own number, which stays the program's, and the descriptor its place.
        let script = "export LISTEN_PID=$$ LISTEN_FDS=1; exec 3<&0; exec \"$0\" run \"$1\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, PROGRAM]).arg(&file).stdin(OwnedFd::from(at));
        let (child, log) = begin(command);
        Daemon { folder, arguments: Vec::new(), child, log }
    }

    fn start(folder: tempfile::TempDir, arguments: Vec<String>) -> Daemon {
        let (child, log) = run(&arguments);
        Daemon { folder, arguments, child, log }
    }

    /// The lines that it said with this in them.
    pub fn said(&self, part: &str) -> usize {
        let log = self.log.lock().expect("nobody panics with it");
        log.iter().filter(|line| line.contains(part)).count()
    }

    /// Waits until it has said so many lines with this in them. It hasn't said more.
    pub fn wait_until_said(&self, part: &str, count: usize) {
        while self.said(part) < count {
            std::thread::yield_now();
        }
        assert_eq!(self.said(part), count);
    }

    pub fn socket(&self) -> String {
        self.path("socket")
    }

    /// In its folder.
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Puts this text into its file.
    pub fn rewrite(&self, text: &str) {
        std::fs::write(self.path("io.toml"), text).expect("it is written");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process that opens files for it.
    pub fn opener(&self) -> rustix::process::Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.id());
        let child = std::fs::read_to_string(children).expect("it runs");
        let child = child.trim().parse().expect("it has one");
        rustix::process::Pid::from_raw(child).expect("a number")
    }

    /// As `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// Whether it ended well.
    pub fn wait(&mut self) -> bool {
        self.child.wait().expect("it ends").success()
    }

    /// Waits until the thread that serves sleeps in the kernel.
    pub fn wait_until_asleep(&self) {
        let path = format!("/proc/{}/stat", self.child.id());
        let state = || std::fs::read_to_string(&path).expect("it runs");
        while !state().contains(") S ") {
            std::thread::yield_now();
        }
    }

    /// A new program takes over what it serves, and it ends.
    pub fn upgrade(&mut self) {
        let arguments = ["upgrade", "--control", &self.path("control")].map(String::from);
        let (next, log) = run(&arguments);
        assert!(self.wait(), "the one that goes ends well");
        (self.child, self.log) = (next, log);
    }

    pub fn start_again(&mut self) {
        (self.child, self.log) = run(&self.arguments);
    }

    /// What a command says, by the control socket of this name.
    pub fn ask(&self, command: &[&str]) -> Output {
        let [name, rest @ ..] = command else { panic!("a command") };
        let mut ask = Command::new(PROGRAM);
        ask.arg(name).args(["--control", &self.path("control")]).args(rest);
        ask.output().expect("it runs")
    }

    /// What it counted: the report, as JSON.
    pub fn report(&self) -> serde_json::Value {
        let output = self.ask(&["list", "--json"]);
        serde_json::from_slice(&output.stdout).expect("it is JSON")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_exitless-io");

/// Starts it, and waits until it says that it serves.
fn run(arguments: &[String]) -> (Child, Log) {
    let mut command = Command::new(PROGRAM);
    command.args(arguments);
    begin(command)
}

/// Asked for backtraces, which it mustn't make.
fn begin(mut command: Command) -> (Child, Log) {
    command.env("RUST_BACKTRACE", "1");
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("it was asked for")).lines();
    let serves = |line: &String| line.starts_with("exitless-io: serves ");
    assert!(lines.by_ref().map_while(Result::ok).any(|line| serves(&line)), "it doesn't serve");
    // What it says later is read, so that it never waits for room.
    let log = Log::default();
    let kept = Arc::clone(&log);
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            println!("{line}");
            kept.lock().expect("nobody panics with it").push(line);
        }
    });
    (child, log)
}
