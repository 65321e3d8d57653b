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

mod connection;
mod disk;
mod listen;
mod queues;
mod socket;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use connection::Connection;
use disk::Disk;
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
    /// The socket that front ends connect to; one at a time is served.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Queues that a front end may use.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// The guest may not write.
    #[arg(long)]
    read_only: bool,
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
    let mut disk = match (null, ram, file) {
        (Some(bytes), _, _) => Disk::null(bytes, asked.queues, asked.read_only)?,
        (_, Some(bytes), _) => Disk::ram(bytes, asked.queues, asked.read_only)?,
        (_, _, Some(path)) => Disk::file(&path, asked.queues, asked.read_only)?,
        _ => anyhow::bail!("say what keeps the disk: --null, --ram or --file"),
    };
    let listener = listen::at(&asked.socket)?;
    eprintln!("exitless-io: serves {disk} at {}", asked.socket.display());
    loop {
        let (socket, _) = listener.accept().context("the socket takes no connection")?;
        let ended = Connection::new(socket, &mut disk).and_then(|mut one| one.serve());
        match ended {
            Ok(()) => eprintln!("exitless-io: the front end left"),
            Err(error) => eprintln!("exitless-io: the connection ends: {error:#}"),
        }
    }
}
