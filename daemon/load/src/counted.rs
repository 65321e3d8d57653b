//! What counts of a run, and the figures.

use crate::Arguments;
use crate::count::Histogram;
use anyhow::Result;
use daemon_usage::Had;
use serde::Serialize;
use std::time::{Duration, Instant};

/// What was counted.
#[derive(Debug, Serialize)]
pub struct Figures {
    requests: u64,
    failed: u64,
    nanoseconds: u64,
    /// Of the process that serves: its time on cores, and context switches.
    server_cpu: Option<u64>,
    server_switches: Option<u64>,
    /// Of this program.
    own_cpu: u64,
    calls: u64,
    kicks: u64,
    /// Latencies in nanoseconds.
    p50: u64,
    p99: u64,
}

/// Counts from when the warm-up is over until the time is.
pub struct Window<'a> {
    arguments: &'a Arguments,
    began: Instant,
    start: Option<(Instant, Had, Option<Had>, u64, u64)>,
    pub latencies: Histogram,
    pub requests: u64,
    pub failed: u64,
}

impl<'a> Window<'a> {
    pub fn new(arguments: &'a Arguments) -> Self {
        let latencies = Histogram::new();
        Window { arguments, began: Instant::now(), start: None, latencies, requests: 0, failed: 0 }
    }

    fn server(&self) -> Result<Option<Had>> {
        Ok(self.arguments.server.map(Had::process).transpose()?)
    }

    /// The figures, if it is over. `calls` and `kicks` so far.
    pub fn look(&mut self, calls: u64, kicks: u64) -> Result<Option<Figures>> {
        let Some((start, own, server, calls_before, kicks_before)) = self.start else {
            if self.began.elapsed() >= Duration::from_millis(self.arguments.warmup) {
                self.start = Some((Instant::now(), Had::own()?, self.server()?, calls, kicks));
                (self.latencies, self.requests, self.failed) = (Histogram::new(), 0, 0);
            }
            return Ok(None);
        };
        let took = start.elapsed();
        let limit = Duration::from_millis(self.arguments.time);
        if took < limit && self.requests < self.arguments.requests {
            return Ok(None);
        }
        let had = server.zip(self.server()?).map(|(before, after)| after.since(before));
        Ok(Some(Figures {
            requests: self.requests,
            failed: self.failed,
            nanoseconds: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            server_cpu: had.map(|had| had.cpu),
            server_switches: had.map(|had| had.switches),
            own_cpu: Had::own()?.since(own).cpu,
            calls: calls - calls_before,
            kicks: kicks - kicks_before,
            p50: self.latencies.at(500),
            p99: self.latencies.at(990),
        }))
    }
}
