//! The loads that are measured, with their parameters, and how long their windows are.

use super::model::Model;
use std::fmt::Write;

/// What the guest runs. Equal workloads under one policy are one measurement, whichever
/// experiments use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// fio: 4 KiB random reads from an NVMe controller.
    Fio {
        /// Reads under way at a time.
        depth: u32,
    },
    /// netperf TCP_STREAM: one connection, 256-byte writes.
    Stream {
        /// Instructions of computation for each byte written.
        compute: u32,
        /// Least time between two interrupts of the network card in µs; none: as its driver
        /// sets it.
        throttle: Option<u32>,
    },
    /// netperf UDP_RR beside a busy loop: a packet there, a packet back.
    Exchange,
    /// Apache, asked for a 4 KiB page by ApacheBench, four requests at a time.
    Apache,
    /// memcached, 90 % get, 64 requests under way.
    Memcached,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// As the documents quote it.
    Full,
    /// As `demo` does.
    Demo,
    /// Coarse, in minutes.
    Quick,
    /// The least that shows that a path works.
    Smoke,
}

/// How long the windows are, in operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Before the first window.
    pub warmup: u32,
    /// A short window.
    pub short: u32,
    /// A long window.
    pub long: u32,
    /// Pairs of windows in one boot.
    pub pairs: u32,
}

impl Workload {
    /// netperf's stream as the paper ran it.
    pub const STREAM: Workload = Workload::Stream { compute: 0, throttle: None };

    /// The whole name, for headings.
    pub fn title(self) -> String {
        match self {
            Workload::Fio { depth } => format!("fio, 4 KiB random reads, depth {depth}"),
            Workload::Stream { compute, throttle } => {
                let mut title = String::from("netperf TCP stream, 256-byte writes");
                if compute > 0 {
                    let _ = write!(title, ", {compute} instructions a byte");
                }
                if let Some(us) = throttle {
                    let _ = write!(title, ", an interrupt in {us} µs");
                }
                title
            }
            Workload::Exchange => "netperf UDP request-response beside a busy loop".into(),
            Workload::Apache => "Apache, 4 KiB page, 4 requests at a time".into(),
            Workload::Memcached => "memcached, 90 % get, 64 requests at a time".into(),
        }
    }

    /// The name in plots, notes and progress.
    pub fn short(self) -> String {
        match self {
            Workload::Fio { depth } => format!("fio depth {depth}"),
            Workload::Stream { compute: 0, throttle: None } => "netperf".into(),
            Workload::Stream { compute, throttle: None } => format!("netperf +{compute}/byte"),
            Workload::Stream { compute: 0, throttle: Some(us) } => format!("netperf {us} µs"),
            Workload::Stream { compute, throttle: Some(us) } => {
                format!("netperf +{compute}/byte {us} µs")
            }
            Workload::Exchange => "UDP_RR".into(),
            Workload::Apache => "Apache".into(),
            Workload::Memcached => "memcached".into(),
        }
    }

    /// The stable name in JSON.
    pub fn key(self) -> String {
        match self {
            Workload::Fio { depth } => format!("randread 4k depth {depth}"),
            Workload::Stream { compute, throttle } => {
                let mut key = String::from("tcp_stream 256");
                if compute > 0 {
                    let _ = write!(key, " compute {compute}");
                }
                if let Some(us) = throttle {
                    let _ = write!(key, " throttle {us}");
                }
                key
            }
            Workload::Exchange => "udp_rr busy".into(),
            Workload::Apache => "apache 4k concurrency 4".into(),
            Workload::Memcached => "memcached get 90 outstanding 64".into(),
        }
    }

    /// What an operation is, in the singular.
    pub const fn operation(self) -> &'static str {
        match self {
            Workload::Fio { .. } => "I/O",
            Workload::Stream { .. } => "write",
            Workload::Exchange => "transaction",
            Workload::Apache | Workload::Memcached => "request",
        }
    }

    /// Whether it needs the network card and a peer.
    pub const fn is_network(self) -> bool {
        !matches!(self, Workload::Fio { .. })
    }

    /// Rates at which the model asks: the paper's for this program.
    pub const fn model(self) -> Model {
        match self {
            Workload::Fio { .. } => Model::PAPER,
            Workload::Memcached => Model::PAPER,
            Workload::Apache => Model { interrupts: 69_000.0, ..Model::PAPER },
            Workload::Stream { .. } => Model { interrupts: 48_000.0, ..Model::PAPER },
            Workload::Exchange => Model { interrupts: 36_000.0, ..Model::PAPER },
        }
    }

    /// The windows.
    pub const fn size(self, effort: Effort) -> Size {
        // One operation's worth of each load in the time of the emulator, roughly.
        let unit = match self {
            Workload::Fio { .. } => 1_000,
            Workload::Stream { compute: 0..=15, .. } => 15_000,
            Workload::Stream { compute: 16..=63, .. } => 4_000,
            Workload::Stream { .. } => 1_500,
            Workload::Exchange => 500,
            Workload::Apache => 50,
            Workload::Memcached => 500,
        };
        let (short, long, pairs) = match effort {
            Effort::Full => (2 * unit, 12 * unit, 4),
            Effort::Demo => (unit + unit / 2, 8 * unit, 3),
            Effort::Quick => (unit, 5 * unit, 2),
            Effort::Smoke => (unit / 2, 2 * unit, 2),
        };
        Size { warmup: short, short, long, pairs }
    }

    /// Whether the bare machine is also measured slowed: the loads of which a fraction of it is
    /// shown. The variants of the stream are compared by other figures; beside the busy loop of
    /// [`Workload::Exchange`] cost says nothing.
    pub const fn has_control(self) -> bool {
        !matches!(
            self,
            Workload::Exchange
                | Workload::Stream { compute: 1.., .. }
                | Workload::Stream { throttle: Some(_), .. }
        )
    }

    /// What the guest is told on its kernel command line: so many pairs of windows among it.
    pub fn parameters(self, effort: Effort, pairs: u32) -> String {
        let Size { warmup, short, long, .. } = self.size(effort);
        let mut text = match self {
            Workload::Fio { depth } => format!("exitless.workload=fio exitless.depth={depth}"),
            Workload::Stream { compute, throttle } => {
                let mut text = match compute {
                    0 => String::from("exitless.workload=netperf-stream"),
                    n => format!("exitless.workload=compute-stream exitless.compute={n}"),
                };
                if let Some(us) = throttle {
                    let _ = write!(text, " exitless.throttle={us}");
                }
                text
            }
            Workload::Exchange => "exitless.workload=udp-rr".into(),
            Workload::Apache => "exitless.workload=apache".into(),
            Workload::Memcached => "exitless.workload=memcached".into(),
        };
        let _ = write!(
            text,
            " exitless.warmup={warmup} exitless.short={short} exitless.long={long} exitless.pairs={pairs}"
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: [Workload; 8] = [
        Workload::Fio { depth: 1 },
        Workload::STREAM,
        Workload::Stream { compute: 64, throttle: None },
        Workload::Stream { compute: 0, throttle: Some(96) },
        Workload::Stream { compute: 64, throttle: Some(96) },
        Workload::Exchange,
        Workload::Apache,
        Workload::Memcached,
    ];

    #[test]
    fn names_tell_workloads_apart() {
        for name in [Workload::title, Workload::short, Workload::key] {
            let mut names: Vec<_> = SOME.into_iter().map(name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), SOME.len());
        }
    }

    #[test]
    fn long_windows_are_longer_whatever_the_effort() {
        for effort in [Effort::Full, Effort::Demo, Effort::Quick, Effort::Smoke] {
            for size in SOME.map(|w| w.size(effort)) {
                assert!(size.long > size.short && size.short > 0 && size.pairs > 0, "{size:?}");
            }
        }
    }

    #[test]
    fn the_guest_is_told_its_parameters() {
        let text =
            Workload::Stream { compute: 64, throttle: Some(16) }.parameters(Effort::Quick, 7);
        for word in [
            "workload=compute-stream",
            "compute=64",
            "throttle=16",
            "short=1500",
            "long=7500",
            "pairs=7",
        ] {
            assert!(text.contains(&format!("exitless.{word}")), "{text}");
        }
    }
}
