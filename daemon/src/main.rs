//! `exitless-io`: virtio disks and networks for stock QEMU, over vhost-user. See `docs/daemon.md`.
//!
//! | file | is |
//! |---|---|
//! | `main`, `cmdline` | the command line |
//! | `check` | what a file would lead to |
//! | `config` | `io.toml` |
//! | `home`, `changes`, `instead` | the loop; devices that come, change and go |
//! | `pending`, `opener` | changes that take a while, and the process that opens what they need |
//! | `again` | the file, read again |
//! | `unserved` | what the file says and can't be had |
//! | `text` | a text that one process hands to another |
//! | `build`, `device`, `disk` | what is served, and what a disk's data is kept by |
//! | `door`, `listen` | how front ends come |
//! | `connection`, `socket`, `memory`, `event` | one front end: messages, memory, kicks and calls |
//! | `inflight`, `log` | records of what is in flight; which pages were changed |
//! | `rings`, `turns`, `ring` | rings that are served, and by which turns |
//! | `uplink` | a switch's way out |
//! | `clients`, `control`, `ask` | who looks and changes, from both sides |
//! | `show`, `output` | a report for people; what they read, and the log |
//! | `handover`, `letter`, `passing`, `settle` | another program goes on with all of it |
//! | `counts`, `arrivals`, `report`, `metrics` | what is counted, and how it is told |
//! | `waits`, `signals`, `clock` | what the thread sleeps on |
//! | `supervisor`, `sandbox` | systemd; what is given up before serving |
#![forbid(unsafe_code)]

/// In place of std's, which ends the program when nobody reads the log.
macro_rules! eprintln {
    ($($said:tt)*) => { $crate::output::log(format_args!($($said)*)) };
}

mod again;
mod arrivals;
mod ask;
mod build;
mod changes;
mod check;
mod clients;
mod clock;
mod cmdline;
mod config;
mod connection;
mod control;
mod counts;
mod device;
mod disk;
mod door;
mod event;
mod foreign;
mod handover;
mod home;
mod inflight;
mod instead;
mod later;
mod letter;
mod listen;
mod log;
mod memory;
mod metrics;
mod opener;
mod output;
mod pace;
mod passing;
mod pending;
mod report;
mod ring;
mod rings;
#[cfg(test)]
mod rings_counted;
#[cfg(test)]
mod rings_edge_tests;
#[cfg(test)]
mod rings_limits_tests;
#[cfg(test)]
mod rings_tests;
mod sandbox;
mod settle;
mod show;
mod signals;
mod socket;
mod storage;
mod supervisor;
mod text;
mod turns;
mod unserved;
mod uplink;
mod waits;

use anyhow::{Context as _, Result, bail};
use ask::Daemon;
use build::Entry;
use cmdline::{Arguments, Command, RunArguments};
use config::{Backing, Out, Plan, Way, Wrong};
use control::Request;
use home::Home;
use opener::Opener;
use rustix::thread::set_current_timer_slack;
use sandbox::{Folders, Needs, folder};
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use storage::Store;
use unserved::{Unserved, Wished};

/// Files that may be added, beside those that are removed, until an upgrade.
const SPARE_RINGS: usize = 32;

/// What takes longer to fail is a server that doesn't answer.
const SILENT: Duration = Duration::from_secs(1);

/// Where TAPs are opened.
const TAPS: &str = "/dev/net";

fn main() {
    daemon_os::forget_backtraces();
    if let Err(error) = run(Arguments::get().command) {
        eprintln!("exitless-io: {error:#}");
        std::process::exit(1);
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Disk(asked) => {
            let entry = asked.entry()?;
            let mut home = home()?;
            let mut folders =
                Folders { sockets: [folder(entry.way().path())].into(), ..Folders::default() };
            folders.sockets.extend(asked.control.iter().map(|path| folder(path)));
            let sandbox = (!asked.no_sandbox).then_some(folders);
            let name = entry.name().to_owned();
            serve(&mut home, sandbox, |home| {
                home.clients.listen(asked.control.as_deref(), None, &home.waits)?;
                home.add(entry).context(name)
            })
        }
        Command::Run(asked) => run_file(asked),
        Command::Check { file } => check::run(&file),
        Command::List { at, json } => {
            let report = Daemon::at(&at.control)?.report()?;
            output::print(&match json {
                true => serde_json::to_string(&report)? + "\n",
                false => show::list(&report),
            })
        }
        Command::Add { at, file } => {
            let shown = file.display();
            let text = std::fs::read_to_string(&file);
            let text = text.with_context(|| format!("{shown} can't be read"))?;
            let file = std::path::absolute(&file)?.display().to_string();
            Daemon::at(&at.control)?.tell(&Request::Add { file, text })
        }
        Command::Remove { at, name } => Daemon::at(&at.control)?.tell(&Request::Remove(name)),
        Command::Reload { at } => Daemon::at(&at.control)?.tell(&Request::Reload),
        Command::Upgrade { at, no_sandbox } => handover::take(&at.control, no_sandbox),
        Command::Open => opener::run(),
        Command::Manual { folder } => {
            let shown = folder.display();
            clap_mangen::generate_to(cmdline::command(), &folder)
                .with_context(|| format!("the manual can't be written to {shown}"))
        }
        Command::Top { at, seconds, count } => Daemon::at(&at.control)?.top(seconds, count),
    }
}

fn home() -> Result<Home> {
    daemon_os::survive().context("the system refuses a handler for SIGBUS")?;
    daemon_os::watch_writes().context("the system refuses a handler for SIGALRM")?;
    sandbox::raise_files();
    storage::may_lock();
    Home::new()
}

/// A file, as it is called from here on, its text, what of it can be read, and what is wrong.
fn read_all(asked: &Path) -> Result<(PathBuf, String, Plan, Vec<Wrong>)> {
    let shown = asked.display();
    let text = match std::fs::read_to_string(asked) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("{shown} isn't there; `exitless io run --help` shows what such a file says")
        }
        read => read.with_context(|| format!("{shown} can't be read"))?,
    };
    // What it names is the same when it is read again.
    let file = std::path::absolute(asked)?;
    let (plan, wrong) = config::read(&file, &text);
    let as_asked = |wrong| Wrong { file: shown.to_string(), ..wrong };
    let wrong: Vec<_> = wrong.into_iter().map(as_asked).collect();
    if wrong.is_empty() && plan.names().next().is_none() && plan.host.control.is_none() {
        bail!(
            "{shown} has no device, such as [disk.web], and no control socket to add any by, such as `control = \"io.control\"` in [host]"
        );
    }
    Ok((file, text, plan, wrong))
}

/// All that is wrong, in a line each.
fn together(wrong: &[Wrong]) -> anyhow::Error {
    let lines: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    anyhow::Error::msg(lines.join("\nexitless-io: "))
}

fn run_file(asked: RunArguments) -> Result<()> {
    let (file, _, plan, wrong) = read_all(&asked.file)?;
    if !wrong.is_empty() {
        return Err(together(&wrong));
    }
    let entries = Entry::of(&plan);
    let mut home = home()?;
    home.file = Some(file.clone());
    let sandbox = (!asked.no_sandbox).then(|| folders(&file, &plan, &entries));
    serve(&mut home, sandbox, |home| {
        let host = &plan.host;
        let Home { clients, waits, .. } = home;
        let listens = clients.listen(host.control.as_deref(), host.metrics.as_deref(), waits);
        listens.context("[host]")?;
        let uplinks = plan.uplinks.iter().cloned().map(Wished::Uplink);
        let entries = entries.into_iter().map(|entry| Wished::Device(Box::new(entry)));
        let (mut failed, mut silent) = (Vec::new(), false);
        for wished in uplinks.chain(entries) {
            let began = Instant::now();
            let added = match &wished {
                // The start waits for one such server, and not for each.
                Wished::Device(entry) if silent && entry.server().is_some() => {
                    home.missing.note(wished, "it waits for its turn".into());
                    continue;
                }
                Wished::Device(entry) => home.add(Entry::clone(entry)),
                Wished::Uplink(asked) => home.add_uplink(asked, None),
            };
            silent |= added.is_err() && began.elapsed() > SILENT;
            failed.extend(added.err().map(|error| (wished, format!("{error:#}"))));
        }
        // Whoever starts it by hand sees it fail, and systemd starts it again.
        if home.known.is_empty() && home.missing.all().is_empty() && !failed.is_empty() {
            let line = |(wished, why): &(Wished, String)| format!("{}: {why}", wished.name());
            let lines: Vec<_> = failed.iter().map(line).collect();
            bail!("{}", lines.join("\nexitless-io: "));
        }
        failed.into_iter().for_each(|(wished, why)| home.missing.note(wished, why));
        Ok(())
    })
}

/// The folders that reading the file again may lead to: those that it names now.
fn folders(file: &Path, plan: &Plan, entries: &[Entry]) -> Folders {
    let mut folders = Folders { read: [folder(file)].into(), ..Folders::default() };
    for entry in entries {
        folders.sockets.insert(folder(entry.way().path()));
        match entry {
            Entry::Disk(config::Disk { backing: Backing::File { path, .. }, .. }) => {
                folders.write.insert(folder(path));
            }
            Entry::Disk(config::Disk { backing: Backing::Nbd(server), .. }) => {
                folders.read.extend(server.files().map(|file| folder(file)));
            }
            _ => {}
        }
    }
    if plan.uplinks.iter().any(|uplink| matches!(uplink.out, Out::Tap(_))) {
        folders.write.insert(TAPS.into());
    }
    let host = &plan.host;
    let desks = [&host.control, &host.metrics].into_iter().flatten();
    folders.sockets.extend(desks.map(|path| folder(path)));
    folders.sockets.extend(host.paths.iter().cloned());
    folders.write.extend(host.paths.iter().cloned());
    folders
}

/// Starts what is asked for, and serves it until ended. If that fails nothing is left behind.
fn serve(
    home: &mut Home,
    sandbox: Option<Folders>,
    start: impl FnOnce(&mut Home) -> Result<()>,
) -> Result<()> {
    start(home).inspect_err(|_| home.close())?;
    for (path, _) in home.handed.all().filter(|(path, _)| !home.is_awaited(path)) {
        eprintln!("exitless-io: {} was handed over, and no device has it", path.display());
    }
    home.sandbox = sandbox;
    confine(home)?;
    run_home(home)
}

/// Serves what there is until ended.
fn run_home(home: &mut Home) -> Result<()> {
    let now = home.rings.look_at_clock();
    home.missing.changed(now, false);
    let status = home.status();
    eprintln!("exitless-io: {status}");
    supervisor::ready(&status);
    let ended = home.run();
    if !home.is_given {
        supervisor::stopping();
    }
    ended
}

/// Gives up what isn't needed any more, unless that isn't wanted. What may be opened later is
/// opened by another process.
fn confine(home: &mut Home) -> Result<()> {
    supervisor::prepare()?;
    // Linux wakes who sleeps up to 50 µs late otherwise: two requests of a limit of 40,000 a
    // second.
    set_current_timer_slack(NonZeroU64::new(1)).context("the system's timers are late")?;
    event::prepare().context("the system has no eventfds")?;
    home.rings.controllers.is_closed = true;
    let [control, metrics] = home.clients.desks().map(|desk| desk.is_some());
    let changes = home.file.is_some() || control;
    if changes {
        home.open_by(Opener::start(home.sandbox.as_ref())?)?;
    }
    let confine = |wanted| if wanted { sandbox::enter_closer() } else { Ok(()) };
    foreign::close_apart(confine, home.sandbox.is_some())?;
    let Some(folders) = &home.sandbox else { return Ok(()) };
    // A system without io_uring is said to have none when a file is opened.
    let stocked = changes && daemon_os::stock_rings(SPARE_RINGS).is_ok();
    let by_ring = |is_asked: bool| {
        home.rings.keeps(|store| matches!(store, Store::File(file) if file.waits() != is_asked))
    };
    let mut connects = home.known.iter().map(|known| known.entry.way());
    let is_interface =
        |own: &Unserved| matches!(&own.wished, Wished::Uplink(asked) if asked.is_interface());
    let needs = Needs {
        changes,
        desks: control || metrics,
        files: by_ring(true),
        stock: stocked,
        pins: home.rings.keeps(|store| matches!(store, Store::File(file) if file.pins())),
        waits: by_ring(false) || changes && !stocked,
        servers: home.rings.keeps(|store| matches!(store, Store::Nbd(_))),
        tls: changes || home.rings.keeps(|store| matches!(store, Store::Nbd(nbd) if nbd.has_tls())),
        connects: connects.any(|way| matches!(way, Way::Connect(_))),
        controllers: !home.rings.controllers.is_empty(),
        interfaces: home.rings.served.uplinks.iter().any(|(_, uplink)| uplink.is_interface())
            || home.missing.all().iter().any(is_interface),
    };
    home.pending.allow_interfaces(needs.interfaces);
    sandbox::enter(folders, needs)
}
