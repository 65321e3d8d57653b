//! The command line.

use crate::build::Entry;
use crate::config::{self, Backing, Limits, Server, Tls, Way};
use crate::disk;
use anyhow::{Result, bail};
use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// As the checkout's script has it.
const BELOW: &str = "exitless io";

const EXAMPLES: &str = "\
Examples:
  exitless io disk --file d.img --socket d.sock
  exitless io disk --nvme 0000:01:00.0 --socket d.sock
  exitless io disk --ram 1G --socket d.sock --queues 4
  exitless io check io.toml
  exitless io run io.toml
  exitless io top --control io.control

QEMU then has, with its memory shared:
  -object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem
  -chardev socket,id=d,path=d.sock,reconnect-ms=1000
  -device vhost-user-blk-pci,chardev=d,num-queues=1";

const FILE: &str = "\
The file says, one table for each device:
  [disk.web]
  file = \"web.img\"          # or nbd = \"nbd://HOST:PORT/EXPORT\", ram = \"1G\", null = \"1T\"
  socket = \"web.sock\"       # or connect = \"…\", a front end's socket
  queues = 2                # all below may be left out
  # read_only = true
  serial = \"web\"
  front_ends = 1
  # timeout = \"300s\"        # nbd: a server that is silent for so long while it is asked is lost
  # tls = { ca = \"ca.pem\", certificate = \"own.pem\", key = \"own.key\" }   # nbds://, in PEM
  # nvme = \"0000:01:00.0\"   # instead of file: a controller that vfio-pci has, by its PCI address
  # offset = \"8G\"           # nvme: the disk's part of it begins there,
  # size = \"8G\"             # and has so many bytes
  # page_cache = true       # a file: whole pages don't go around the page cache
  # pinned = true           # a file: guests' memory is locked; none has a balloon or virtio-mem
  # raw = true              # a file that looks like a qcow2 or other image is served as it is
  packed = false            # true: packed rings are offered, too
  # coalesce = false        # the guest is told of every completion at once
  weight = 100              # its part of the thread under load
  # limit = { iops = 20000, rate = \"100M/s\", burst = \"100ms\" }

  [network.web-lan]         # no two devices have the same name
  socket = \"net.sock\"
  switch = \"lan\"            # networks of the same switch reach each other
  mac = \"02:00:00:00:00:01\" # the one address that it may send from
  vlan = 10
  queues = 1
  mtu = 1500
  rate = \"100M/s\"
  # flood = \"10M/s\"       # all copies of its frames for several others; what is more is dropped

  [uplink.lan]
  tap = \"tap0\"              # the switch's way out, a TAP of the host's; or packet = \"eth0\"

  [host]
  control = \"io.control\"    # for exitless io list, add, remove, reload, top
  metrics = \"io.metrics\"    # for Prometheus
  paths = [\"/srv/disks\"]    # folders of what is added later, beside those named here

Paths are from the file's folder. SIGHUP has it read again: what stays the same goes on.";

/// Serves virtio disks and networks to stock QEMU over vhost-user.
#[derive(Parser)]
#[command(name = "exitless-io", version, after_help = EXAMPLES)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Serve one disk, until ended.
    Disk(Box<DiskArguments>),
    /// Serve what a file says, until ended.
    #[command(after_help = FILE)]
    Run(RunArguments),
    /// Check a file: say what would be served, and what is wrong with each device; serve nothing.
    /// Fails if there is a mistake.
    Check {
        /// The file.
        #[arg(default_value = "io.toml")]
        file: PathBuf,
    },
    /// Show what a daemon serves.
    List {
        #[command(flatten)]
        at: At,
        /// All that is counted, too, as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Have a daemon serve the devices of this file, too.
    Add {
        #[command(flatten)]
        at: At,
        /// A file with tables as those of `exitless io run`.
        file: PathBuf,
    },
    /// Have a daemon serve a device no more.
    Remove {
        #[command(flatten)]
        at: At,
        /// As its table is called.
        name: String,
    },
    /// Have a daemon read its file again.
    Reload {
        #[command(flatten)]
        at: At,
    },
    /// Take over all that a daemon serves, with its front ends, and serve it until ended. The
    /// daemon ends; if anything fails before, it goes on.
    Upgrade {
        #[command(flatten)]
        at: At,
        /// Keep all rights that the user has, instead of those that the daemon kept.
        #[arg(long)]
        no_sandbox: bool,
    },
    /// Open what another process of this program asks for.
    #[command(hide = true)]
    Open,
    /// Write the manual's pages into a folder.
    #[command(hide = true)]
    Manual { folder: PathBuf },
    /// Show live what a daemon does.
    Top {
        #[command(flatten)]
        at: At,
        /// Seconds between two looks.
        #[arg(long, default_value_t = 1.0, value_parser = seconds)]
        seconds: f64,
        /// Looks; without, until ended.
        #[arg(long)]
        count: Option<u32>,
    },
}

/// A daemon.
#[derive(Args)]
pub struct At {
    /// Its control socket, as in its file.
    #[arg(long, value_name = "PATH", default_value = "io.control")]
    pub control: PathBuf,
}

#[derive(Args)]
pub struct RunArguments {
    /// The file.
    #[arg(default_value = "io.toml")]
    pub file: PathBuf,
    /// Keep all rights that the user has, instead of giving up those that aren't needed.
    #[arg(long)]
    pub no_sandbox: bool,
}

#[derive(Args)]
pub struct DiskArguments {
    #[command(flatten)]
    kept: Kept,
    #[command(flatten)]
    server: Nbd,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    door: Doors,
    /// Front ends at a time. Several guests that write to one disk need to agree on that.
    #[arg(long, default_value_t = 1, value_name = "COUNT",
        value_parser = clap::value_parser!(u16).range(1..=64))]
    front_ends: u16,
    /// Queues that a front end may use.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// The guest may not write.
    #[arg(long)]
    read_only: bool,
    /// A file is read and written through the page cache. Without, whole pages go around it.
    #[arg(long)]
    page_cache: bool,
    /// A file that looks like an image of another program's, such as qcow2, is served as it is.
    #[arg(long)]
    raw: bool,
    /// A file's data go to and from guests' memory that is locked for that. Not for guests that
    /// give memory back (a balloon, virtio-mem, free page reporting): they would read wrong data.
    #[arg(long)]
    pinned: bool,
    /// Offer packed rings, too.
    #[arg(long)]
    packed: bool,
    /// Tell the guest of every completion at once, however many requests are under way.
    #[arg(long)]
    no_coalesce: bool,
    /// A socket for `exitless io list`, `top` and `upgrade`.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Keep all rights that the user has, instead of giving up those that aren't needed.
    #[arg(long)]
    pub no_sandbox: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Doors {
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
    /// The disk keeps nothing: reads leave the guest's memory as it is. For measurements.
    #[arg(long, value_name = "SIZE", value_parser = disk::size)]
    null: Option<u64>,
    /// It is kept in memory, and gone with this program. Sizes are bytes, or with K, M, G or T
    /// (powers of 1024; also KiB to TiB).
    #[arg(long, value_name = "SIZE", value_parser = disk::size)]
    ram: Option<u64>,
    /// It is this file or block device.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// It is kept by an NBD server: nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH; over
    /// TLS nbds:// and nbds+unix://.
    #[arg(long, value_name = "URI")]
    nbd: Option<String>,
    /// It is the first namespace of the NVMe controller at this PCI address, which vfio-pci has.
    /// Guests' memory is locked, and the controller reads and writes it.
    #[arg(long, value_name = "ADDRESS", value_parser = config::pci_address)]
    nvme: Option<String>,
}

/// Which bytes of a controller the disk has.
#[derive(Args)]
struct Part {
    /// NVMe: the first byte of the disk. Sizes are bytes, or with K, M, G or T.
    #[arg(long, value_name = "SIZE", value_parser = disk::size)]
    offset: Option<u64>,
    /// NVMe: its bytes; without, all from there on.
    #[arg(long, value_name = "SIZE", value_parser = disk::size)]
    size: Option<u64>,
}

#[derive(Args)]
struct Nbd {
    /// TLS: the file of whose certificates are trusted, in PEM as all of them.
    #[arg(long, value_name = "PATH")]
    tls_ca: Option<PathBuf>,
    /// TLS: this side's certificate.
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// TLS: the certificate's private key.
    #[arg(long, value_name = "PATH", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// TLS: whom the server's certificate is to be for, if not for the address's host.
    #[arg(long, value_name = "NAME", value_parser = config::server_name)]
    tls_name: Option<String>,
    /// An NBD server that says nothing for so long while it is asked counts as lost. [default:
    /// 300s]
    #[arg(long, value_name = "TIME", value_parser = config::parse_timeout)]
    timeout: Option<Duration>,
}

impl Nbd {
    fn server(&self, uri: &str) -> Result<Server> {
        let own = self.tls_certificate.clone().zip(self.tls_key.clone());
        if self.tls_ca.is_none() && (own.is_some() || self.tls_name.is_some()) {
            bail!("--tls-ca is missing; name the file of whose certificates are trusted");
        }
        let tls = self.tls_ca.clone().map(|ca| Tls { ca, own, name: self.tls_name.clone() });
        Server::new(uri, tls, self.timeout).map_err(anyhow::Error::msg)
    }
}

/// The command line as it is called here: below `exitless`, or installed by itself.
pub fn command() -> clap::Command {
    let name = if std::env::var_os("EXITLESS_ROOT").is_some() { BELOW } else { "exitless-io" };
    Arguments::command().bin_name(name).after_help(EXAMPLES.replace(BELOW, name))
}

impl Arguments {
    /// What the program was called with; or it ends, and says why.
    pub fn get() -> Arguments {
        let found = command().get_matches();
        Arguments::from_arg_matches(&found).unwrap_or_else(|error| error.exit())
    }
}

impl DiskArguments {
    /// As a file would say it.
    pub fn entry(&self) -> Result<Entry> {
        let Kept { null, ram, file, nbd, nvme } = &self.kept;
        let backing = match (*null, *ram, file.clone(), nbd.clone(), nvme.clone()) {
            (Some(bytes), ..) => Backing::Null(bytes),
            (_, Some(bytes), ..) => Backing::Ram(bytes),
            (_, _, Some(path), ..) => {
                let (page_cache, raw, pinned) = (self.page_cache, self.raw, self.pinned);
                Backing::File { path, page_cache, raw, pinned }
            }
            (_, _, _, Some(uri), _) => Backing::Nbd(self.server.server(&uri)?),
            (.., Some(address)) => {
                let Part { offset, size } = self.part;
                Backing::Nvme(config::Nvme { address, offset: offset.unwrap_or(0), size })
            }
            _ => bail!("say what keeps the disk: --null, --ram, --file, --nbd or --nvme"),
        };
        let Nbd { tls_ca, tls_certificate, tls_key, tls_name, timeout } = &self.server;
        let said = [
            ("tls_ca", tls_ca.is_some()),
            ("tls_certificate", tls_certificate.is_some()),
            ("tls_key", tls_key.is_some()),
            ("tls_name", tls_name.is_some()),
            ("timeout", timeout.is_some()),
            ("offset", self.part.offset.is_some()),
            ("size", self.part.size.is_some()),
            ("page_cache", self.page_cache),
            ("raw", self.raw),
            ("pinned", self.pinned),
        ];
        let said = said.iter().filter(|(_, is_said)| *is_said);
        let wrong: Vec<_> = said.filter_map(|(key, _)| backing.misplaced(key, true)).collect();
        if !wrong.is_empty() {
            bail!("{}", wrong.join("\nexitless-io: "));
        }
        let way = match (self.door.socket.clone(), self.door.connect.clone()) {
            (Some(path), _) => Way::Socket(path),
            (_, Some(path)) => Way::Connect(path),
            _ => bail!("say where front ends come: --socket or --connect"),
        };
        Ok(Entry::Disk(config::Disk {
            name: "disk".into(),
            backing,
            way,
            queues: self.queues,
            read_only: self.read_only,
            packed: self.packed,
            coalesce: !self.no_coalesce,
            serial: "disk".into(),
            front_ends: self.front_ends.into(),
            limits: Limits::default(),
        }))
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| format!("{text} isn't a number of seconds from 0.01 to 86400"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrong line would be taken from there.
    #[test]
    fn the_file_in_the_help_is_one() {
        let lines = FILE.lines().filter_map(|line| line.strip_prefix("  "));
        let text = lines.collect::<Vec<_>>().join("\n");
        let plan = config::parse(std::path::Path::new("/io.toml"), &text);
        let plan = plan.map_err(|wrong| wrong.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(plan.map(|plan| Entry::of(&plan).len()), Ok(2));
    }
}
