//! `exitless-io`: virtio disks and networks for stock QEMU, over vhost-user. See `docs/daemon.md`.
//!
//! | file | is |
//! |---|---|
//! | `main`, `cmdline` | the command line |
//! | `config` | `io.toml` |
//! | `home`, `changes` | the loop; devices that come and go |
//! | `build`, `device`, `disk` | what is served, and what a disk's data is kept by |
//! | `door`, `listen` | how front ends come |
//! | `connection`, `socket`, `memory`, `event` | one front end: messages, memory, kicks and calls |
//! | `rings`, `turns`, `ring` | rings that are served, and by which turns |
//! | `clients`, `control`, `ask` | who looks and changes, from both sides |
//! | `counts`, `report`, `metrics` | what is counted, and how it is told |
//! | `waits`, `signals`, `clock` | what the thread sleeps on |
#![forbid(unsafe_code)]

mod ask;
mod build;
mod changes;
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
mod home;
mod listen;
mod memory;
mod metrics;
mod report;
mod ring;
mod rings;
mod signals;
mod socket;
mod turns;
mod waits;

use anyhow::{Context as _, Result, bail};
use ask::Daemon;
use build::Entry;
use clap::Parser as _;
use cmdline::{Arguments, Command, RunArguments};
use control::Request;
use home::Home;

fn main() {
    if let Err(error) = run(Arguments::parse().command) {
        eprintln!("exitless-io: {error:#}");
        std::process::exit(1);
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Disk(asked) => {
            let entry = asked.entry()?;
            let mut home = home()?;
            serve(&mut home, entry.name().to_owned(), |home| home.add(entry).into_iter().collect())
        }
        Command::Run(asked) => run_file(asked),
        Command::List { at, json } => {
            let report = Daemon::at(&at.control)?.report()?;
            match json {
                true => println!("{}", serde_json::to_string(&report)?),
                false => print!("{}", ask::list(&report)),
            }
            Ok(())
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
        Command::Top { at, seconds, count } => Daemon::at(&at.control)?.top(seconds, count),
    }
}

fn home() -> Result<Home> {
    daemon_os::survive().context("the system refuses a handler for SIGBUS")?;
    Home::new()
}

fn run_file(asked: RunArguments) -> Result<()> {
    let shown = asked.file.display();
    let text = std::fs::read_to_string(&asked.file);
    let text = text.with_context(|| format!("{shown} can't be read"))?;
    let plan = config::parse(&asked.file, &text).map_err(|wrong| {
        let lines: Vec<_> = wrong.iter().map(ToString::to_string).collect();
        anyhow::Error::msg(lines.join("\nexitless-io: "))
    })?;
    let entries = Entry::of(&plan);
    if entries.is_empty() && plan.host.control.is_none() {
        bail!("{shown} has no device, and no control socket to add any by");
    }
    let mut home = home()?;
    home.file = Some(std::path::absolute(&asked.file)?);
    let names: Vec<_> = entries.iter().map(Entry::name).collect();
    serve(&mut home, names.join(", "), |home| {
        let host = &plan.host;
        let Home { clients, waits, .. } = home;
        match clients.listen(host.control.as_deref(), host.metrics.as_deref(), waits) {
            Err(error) => vec![format!("[host]: {error:#}")],
            Ok(()) => home.apply(&plan),
        }
    })
}

/// Starts what is asked for, all or nothing, and serves it until ended.
fn serve(
    home: &mut Home,
    names: String,
    start: impl FnOnce(&mut Home) -> Vec<String>,
) -> Result<()> {
    let failed = start(home);
    if !failed.is_empty() {
        home.close();
        bail!("{}", failed.join("\nexitless-io: "));
    }
    eprintln!("exitless-io: serves {names}");
    home.run()
}
