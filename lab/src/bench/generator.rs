//! The other side of a network load: the program that asks the guest, or that the guest
//! sends to. It runs on this machine, outside everything that is counted.
//!
//! Guarantees: it is watched (one that ends before the measurement is a failure with a
//! sentence), it dies with the run whichever way that ends, and the processes it started
//! die with it; how busy it was while the windows were open is known.

use super::workload::Workload;
use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    net::TcpListener,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::Instant,
};

/// How much of what a program says at its end is looked at.
const LAST_WORDS: u64 = 4096;

/// Who begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The guest connects to it: it runs before the guest does.
    Server,
    /// It connects to the guest: it is started when the guest is ready.
    Client {
        /// The guest's port, which one of this machine's leads to.
        guest_port: u16,
    },
}

impl Role {
    /// Of the peer of a workload; none where there is no peer.
    pub const fn of(workload: Workload) -> Option<Role> {
        match workload {
            Workload::Fio { .. } => None,
            Workload::Stream { .. } | Workload::Exchange => Some(Role::Server),
            Workload::Apache => Some(Role::Client { guest_port: 80 }),
            Workload::Memcached => Some(Role::Client { guest_port: 11211 }),
        }
    }
}

/// A TCP port of this machine's loopback that nobody has at the moment.
pub fn free_port() -> Result<u16> {
    let socket = TcpListener::bind(("127.0.0.1", 0)).context("no free TCP port can be had")?;
    Ok(socket.local_addr()?.port())
}

/// The command of a workload's peer: programs are in `host`, it listens on or asks `port`.
pub fn command(workload: Workload, host: &Path, port: u16) -> Result<Command> {
    let at = format!("127.0.0.1:{port}");
    let bin = host.join("bin");
    let (program, arguments): (_, Vec<String>) = match workload {
        Workload::Fio { .. } => bail!("{} has no peer", workload.short()),
        Workload::Stream { .. } | Workload::Exchange => return Ok(netserver(host, port)),
        Workload::Apache => {
            // Longer than any run, whatever becomes of a connection: this process ends it.
            // ab has memory for each request from the beginning.
            let words = ["-q", "-r", "-c", "4", "-t", "3600", "-n", "1000000"];
            ("ab", words.map(String::from).into())
        }
        Workload::Memcached => {
            let words = ["-T", "1", "-c", "64", "-t", "1h", "-F"].map(String::from);
            let settings = host.join("memcaslap.cnf").display().to_string();
            ("memcaslap", words.into_iter().chain([settings]).collect())
        }
    };
    let mut command = dying(&bin.join(program));
    command.args(arguments);
    match workload {
        Workload::Apache => command.arg(format!("http://{at}/")),
        _ => command.args(["-s", &at]),
    };
    Ok(command)
}

/// What netperf asks.
pub fn netserver(host: &Path, port: u16) -> Command {
    let mut command = dying(&host.join("bin/netserver"));
    command.args(["-D", "-4", "-L", "127.0.0.1", "-p", &port.to_string()]);
    command
}

/// A program that ends with this process.
fn dying(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A running load generator, with the group of processes it is the first of.
pub struct Generator {
    name: String,
    child: Child,
    said: fs::File,
    from: Option<(Instant, f64)>,
    busy: Option<f64>,
}

impl Generator {
    /// Starts it.
    pub fn start(mut command: Command) -> Result<Generator> {
        let name = program(&command);
        let said = tempfile::tempfile().context("no temporary file can be made")?;
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said.try_clone()?)
            .spawn()
            .with_context(|| format!("the load generator {name} can't be started"))?;
        Ok(Generator { name, child, said, from: None, busy: None })
    }

    /// Fails when it has ended.
    pub fn check(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let mut text = String::new();
        let length = self.said.metadata().map_or(0, |m| m.len());
        // What it said is for the sentence only.
        let _ = self.said.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS)));
        let _ = (&self.said).take(LAST_WORDS).read_to_string(&mut text);
        let last = text.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("nothing");
        bail!(
            "the load generator {} ended before the measurement ({status}); it said: {}",
            self.name,
            exitless::stream::printable(last.trim())
        )
    }

    /// The windows begin.
    pub fn begin(&mut self) {
        self.from = Some((Instant::now(), self.seconds()));
    }

    /// The windows are over.
    pub fn end(&mut self) {
        if let Some((start, before)) = self.from.take() {
            let wall = start.elapsed().as_secs_f64();
            self.busy = (wall > 0.0).then(|| (self.seconds() - before) / wall);
        }
    }

    /// What it was and which part of one CPU it left idle while the windows were open.
    pub fn idle(&self) -> Option<Idle> {
        self.busy.map(|busy| Idle { program: self.name.clone(), share: (1.0 - busy).max(0.0) })
    }

    /// Seconds of CPU time of its group so far.
    fn seconds(&self) -> f64 {
        let hertz = rustix::param::clock_ticks_per_second() as f64;
        let group = self.child.id();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let stats = processes.filter_map(|p| fs::read_to_string(p.path().join("stat")).ok());
        stats.filter_map(|s| ticks(&s, group)).sum::<u64>() as f64 / hertz
    }
}

/// How idle a load generator was.
#[derive(Clone, Debug, PartialEq)]
pub struct Idle {
    /// Its name.
    pub program: String,
    /// Of one CPU, 0 to 1, all its processes and threads taken together.
    pub share: f64,
}

impl Drop for Generator {
    fn drop(&mut self) {
        // Fails only when all have ended already.
        if let Ok(group) = group(&self.child) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn group(child: &Child) -> Result<Pid> {
    let id = i32::try_from(child.id())?;
    Pid::from_raw(id).ok_or_else(|| anyhow!("no process"))
}

/// The last part of the path of what `setpriv … --` runs.
fn program(command: &Command) -> String {
    let mut words = command.get_args().skip_while(|a| *a != "--").skip(1);
    let path = Path::new(words.next().unwrap_or(command.get_program()));
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// User and system time, that of children waited for included, of a line of
/// `/proc/PID/stat` whose process is in this group.
fn ticks(stat: &str, group: u32) -> Option<u64> {
    // The name before may have spaces and brackets in it; it ends with the last bracket.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok());
    (number(2)? == u64::from(group)).then_some(())?;
    Some([11, 12, 13, 14].into_iter().filter_map(number).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn shell(script: &str) -> Generator {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "sh", "-c", script]);
        Generator::start(command).unwrap()
    }

    fn until(mut f: impl FnMut() -> bool) {
        let start = Instant::now();
        while !f() {
            assert!(start.elapsed() < Duration::from_secs(20), "it never came");
            std::thread::yield_now();
        }
    }

    #[test]
    fn one_that_dies_says_what_it_said_last() {
        let mut generator = shell("echo first; echo no route to the guest; echo; exit 7");
        let mut error = String::new();
        until(|| match generator.check() {
            Ok(()) => false,
            Err(e) => {
                error = e.to_string();
                true
            }
        });
        assert_eq!(
            error,
            "the load generator sh ended before the measurement (exit status: 7); it said: no route to the guest"
        );
    }

    #[test]
    fn what_it_started_dies_with_it() {
        let generator = shell("sleep 1000 & sleep 1000");
        let group = generator.child.id();
        let alive = || {
            let processes = fs::read_dir("/proc").unwrap().flatten();
            let stats = processes.filter_map(|p| fs::read_to_string(p.path().join("stat")).ok());
            // A zombie has ended, whoever has to wait for it.
            let living = stats.filter(|s| !s.contains(") Z "));
            living.filter_map(|s| ticks(&s, group)).count()
        };
        until(|| alive() == 3);
        drop(generator);
        until(|| alive() == 0);
    }

    #[test]
    fn a_busy_one_is_not_idle() {
        let mut generator = shell("while :; do :; done");
        assert_eq!(generator.idle(), None);
        generator.begin();
        let before = generator.seconds();
        until(|| generator.seconds() > before + 0.3);
        generator.end();
        let idle = generator.idle().unwrap();
        assert_eq!(idle.program, "sh");
        // How much it got depends on who else wants the CPU.
        assert!((0.0..1.0).contains(&idle.share), "{idle:?}");
    }

    #[test]
    fn a_process_is_found_by_its_group() {
        let stat = "42 (a (b) c) S 1 17 17 0 -1 4194560 105 0 0 0 3 4 5 6 20 0 1 0 1 2 3";
        assert_eq!(ticks(stat, 17), Some(18));
        assert_eq!(ticks(stat, 1), None);
        assert_eq!(ticks("42 (a", 17), None);
    }

    #[test]
    fn commands_name_program_port_and_load() {
        let line = |workload| {
            let command = command(workload, Path::new("/host"), 4321).unwrap();
            assert_eq!(command.get_program(), "setpriv");
            let words = command.get_args().map(|a| a.to_string_lossy().into_owned());
            (program(&command), words.collect::<Vec<_>>().join(" "))
        };
        let (name, words) = line(Workload::Apache);
        assert!(name == "ab" && words.ends_with("http://127.0.0.1:4321/"), "{words}");
        let (name, words) = line(Workload::Memcached);
        assert!(name == "memcaslap" && words.contains("-c 64"), "{words}");
        assert!(words.ends_with("/host/memcaslap.cnf -s 127.0.0.1:4321"), "{words}");
        let (name, words) = line(Workload::Exchange);
        assert!(name == "netserver" && words.ends_with("-p 4321"), "{words}");
        assert!(command(Workload::Fio { depth: 1 }, Path::new("/host"), 1).is_err());
    }
}
