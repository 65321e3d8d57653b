//! `exitless-io`: virtio disks for stock QEMU, over vhost-user. See `docs/daemon.md`.
//!
//! | file | is |
//! |---|---|
//! | `main` | the command line |
//! | `disk` | what a disk's data is kept by |
//! | `listen` | the socket's file |
//! | `socket` | messages with their descriptors |
//! | `connection` | one front end: what it asks for, and the loop that serves it |
//! | `queues` | rings that are served |
#![forbid(unsafe_code)]

mod clock;
mod connection;
mod counts;
mod device;
mod disk;
mod door;
mod event;
mod home;
mod listen;
mod memory;
mod ring;
mod rings;
mod signals;
mod socket;
mod turns;
mod waits;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use device::{Device, Kind};
use disk::Disk;
use door::Door;
use home::Home;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  exitless io disk --file d.img --socket d.sock
  exitless io disk --ram 1G --socket d.sock --queues 4

QEMU then has, with its memory shared:
  -object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem
  -chardev socket,id=d,path=d.sock,reconnect=1
  -device vhost-user-blk-pci,chardev=d,num-queues=1";

/// Serves virtio disks to stock QEMU over vhost-user.
#[derive(Parser)]
#[command(version, bin_name = "exitless io", after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve one disk at one socket, until ended.
    Disk(DiskArguments),
}

#[derive(Args)]
struct DiskArguments {
    #[command(flatten)]
    kept: Kept,
    #[command(flatten)]
    door: Way,
    /// Front ends at a time. Several guests that write to one disk need to agree on that.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    front_ends: usize,
    /// Queues that a front end may use.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// The guest may not write.
    #[arg(long)]
    read_only: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Way {
    /// The socket that front ends connect to.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The socket of a front end, which is connected to as soon as it listens.
    #[arg(long, value_name = "PATH")]
    connect: Option<PathBuf>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Kept {
    /// Keeps nothing: reads leave the guest's memory as it is. For measurements.
    #[arg(long, value_name = "SIZE", value_parser = disk::size)]
    null: Option<u64>,
    /// Is kept in memory, and gone with this program. Sizes are bytes, or with K, M, G or T.
    #[arg(long, value_name = "SIZE", value_parser = disk::size)]
    ram: Option<u64>,
    /// Is this file or block device.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
}

fn main() {
    if let Err(error) = run(Arguments::parse()) {
        eprintln!("exitless-io: {error:#}");
        std::process::exit(1);
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let Command::Disk(asked) = arguments.command;
    daemon_os::survive().context("the system refuses a handler for SIGBUS")?;
    let Kept { null, ram, file } = asked.kept;
    let disk = match (null, ram, file) {
        (Some(bytes), _, _) => Disk::null(bytes, asked.queues, asked.read_only)?,
        (_, Some(bytes), _) => Disk::ram(bytes, asked.queues, asked.read_only)?,
        (_, _, Some(path)) => Disk::file(&path, asked.queues, asked.read_only)?,
        _ => anyhow::bail!("say what keeps the disk: --null, --ram or --file"),
    };
    let door = match (&asked.door.socket, &asked.door.connect) {
        (Some(path), _) => Door::listen(path)?,
        (_, Some(path)) => Door::connecting(path),
        _ => anyhow::bail!("say where front ends come: --socket or --connect"),
    };
    let path = asked.door.socket.or(asked.door.connect).unwrap_or_default();
    let mut home = Home::new()?;
    let said = format!("serves {disk} at {}", path.display());
    home.add(
        Device {
            name: "disk".into(),
            kind: Kind::Disk(disk),
            share: sidecore::Share::default(),
            front_ends: asked.front_ends,
            connected: 0,
            connections: 0,
            gone: counts::Counts::default(),
        },
        door,
    )?;
    eprintln!("exitless-io: {said}");
    home.run()
}
