//! What `bench io` takes.

use super::start::Back;
use crate::bench::ready::Files;
use exitless::arguments::between;

/// The longest run of a quick bench, in milliseconds.
const QUICK: u32 = 200;

/// What the daemon and other servers of vhost-user disks and networks cost, natively and below a
/// guest.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Fewer cells, short runs
    #[arg(long)]
    pub quick: bool,
    /// Which of its parts
    #[arg(long, value_enum, value_delimiter = ',', default_value = "clients,cif,guest")]
    pub part: Vec<Part>,
    /// What keeps the disks' data; or a network
    #[arg(long, value_enum, value_delimiter = ',', default_value = "null,ram,file,direct,nbd,net")]
    pub back: Vec<Back>,
    /// Bytes of a network's frames; those beyond 1514 are TCP segments that may be cut
    #[arg(long, value_delimiter = ',', default_value = "64,1514,16384,65536", value_parser = between(60, 65536))]
    pub frame: Vec<u32>,
    /// Requests of each client at a time, or frames under way
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128", value_parser = between(1, 128))]
    pub depth: Vec<u32>,
    /// Clients of the disk, each with a ring of its own
    #[arg(long, value_delimiter = ',', default_value = "1,4,14", value_parser = between(1, 64))]
    pub clients: Vec<u32>,
    /// Requests at a time of the part cif
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128", value_parser = between(1, 128))]
    pub in_flight: Vec<u32>,
    /// Runs of each cell
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = between(1, 100))]
    pub runs: u32,
    /// Milliseconds of each run
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = between(10, 600_000))]
    pub time: u32,
    /// Also count the servers' instructions, by valgrind's callgrind
    #[arg(long)]
    pub instructions: bool,
    /// As real-time processes, for a machine that others use too (needs root)
    #[arg(long)]
    pub real_time: bool,
    #[command(flatten)]
    pub files: Files,
}

/// A part of it.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Clients of our own at each server, natively
    Clients,
    /// How often a client is called for each completion, by the commands in flight (CIF)
    Cif,
    /// fio in a guest of stock QEMU: by KVM where that can, else emulated
    Guest,
}

impl Args {
    /// All that was asked for; with `--quick` what is also among few.
    pub fn some(&self, all: &[u32], few: &[u32]) -> Vec<u32> {
        let chosen = |one: &&u32| !self.quick || few.contains(one);
        all.iter().filter(chosen).copied().collect()
    }

    /// Milliseconds of a run.
    pub fn milliseconds(&self) -> u32 {
        if self.quick { self.time.min(QUICK) } else { self.time }
    }
}
