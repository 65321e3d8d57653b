//! What a guest says while fio reads, and fio after it.
//!
//! Guarantees: any text is taken; what isn't as it is to be is refused by a sentence. A guest can
//! falsify its own figures alone.

use crate::console::{pairs, said};
use anyhow::{Context as _, Result, bail};
use daemon_usage::Had;
use serde::Serialize;
use std::time::Instant;

/// What fio says of its reads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fio {
    pub iops: f64,
    /// Latencies of completions, in nanoseconds.
    pub p50: u64,
    pub p99: u64,
    pub p999: u64,
}

impl Fio {
    /// From its JSON, which may come behind messages.
    pub fn read(text: &str) -> Result<Fio> {
        let at = text.find('{').context("fio said nothing")?;
        let all: serde_json::Value =
            serde_json::from_str(&text[at..]).context("what fio said can't be read")?;
        let job = &all["jobs"][0];
        match job["error"].as_u64() {
            Some(0) => {}
            error => bail!("fio failed: {error:?}"),
        }
        let read = &job["read"];
        let at = |percentile: &str| {
            let found = read["clat_ns"]["percentile"][percentile].as_u64();
            found.with_context(|| format!("fio says no {percentile}th percentile"))
        };
        let iops = read["iops"].as_f64().filter(|iops| *iops > 0.0);
        Ok(Fio {
            iops: iops.context("fio read nothing")?,
            p50: at("50.000000")?,
            p99: at("99.000000")?,
            p999: at("99.900000")?,
        })
    }
}

/// What the guest counted so far.
#[derive(Clone, Copy, Debug)]
struct Counted {
    depth: u32,
    requests: u64,
    interrupts: u64,
}

impl Counted {
    fn read(words: &str) -> Result<Counted> {
        let pairs = pairs(words);
        let number = |key: &str| pairs.get(key).and_then(|n| n.parse::<u64>().ok());
        let all = (number("depth"), number("requests"), number("interrupts"));
        let (Some(depth), Some(requests), Some(interrupts)) = all else {
            bail!("the guest said: {words}");
        };
        Ok(Counted { depth: depth as u32, requests, interrupts })
    }
}

/// fio at a depth.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    pub depth: u32,
    pub fio: Fio,
    #[serde(flatten)]
    pub cost: Cost,
}

/// What it took, from fio's start to its end.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// The disk's requests, and its interrupts in the guest.
    pub requests: u64,
    pub interrupts: u64,
    pub nanoseconds: u64,
    pub server_cpu: u64,
    pub server_switches: u64,
    pub qemu_cpu: u64,
}

/// What was heard so far.
#[derive(Default)]
pub struct Hearing {
    begun: Option<(Counted, Instant, [Had; 2])>,
    /// What came between, and what fio says after it.
    ended: Option<(u32, Cost)>,
    text: String,
    rates: Vec<Rate>,
    verdict: Option<String>,
}

impl Hearing {
    /// A line of the console. `look`: what the server has had, and QEMU.
    pub fn hear(&mut self, line: &str, look: impl FnOnce() -> Result<[Had; 2]>) -> Result<()> {
        if let Some(words) = said(line, "begins") {
            self.begun = Some((Counted::read(words)?, Instant::now(), look()?));
        } else if let Some(words) = said(line, "ended") {
            let after = Counted::read(words)?;
            let (before, start, had) = self.begun.take().context("it ended before it began")?;
            let [server, qemu] = look()?;
            let new = |after: u64, before: u64| {
                after.checked_sub(before).with_context(|| format!("the guest said: {words}"))
            };
            self.text.clear();
            let cost = Cost {
                requests: new(after.requests, before.requests)?,
                interrupts: new(after.interrupts, before.interrupts)?,
                nanoseconds: u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
                server_cpu: server.since(had[0]).cpu,
                server_switches: server.since(had[0]).switches,
                qemu_cpu: qemu.since(had[1]).cpu,
            };
            self.ended = Some((after.depth, cost));
        } else if said(line, "told").is_some() {
            let (depth, cost) = self.ended.take().context("it told of fio before that ended")?;
            self.rates.push(Rate { depth, fio: Fio::read(&self.text)?, cost });
        } else if let Some(words) = said(line, "rates") {
            self.verdict = Some(words.to_owned());
        } else if self.ended.is_some() {
            self.text += line;
            self.text.push('\n');
        }
        Ok(())
    }

    /// The rate of each depth, if all went well, and what was written came back.
    pub fn rates(self, depths: &[u32]) -> Result<Vec<Rate>> {
        let verdict = self.verdict.context("the guest came to no end")?;
        let pairs = pairs(&verdict);
        for key in ["failed", "complaints"] {
            if pairs.get(key) != Some(&"0") {
                bail!("what was written didn't come back, or not well: {verdict}");
            }
        }
        let heard: Vec<u32> = self.rates.iter().map(|rate| rate.depth).collect();
        if heard != depths || self.rates.iter().any(|rate| rate.cost.requests == 0) {
            bail!("of depths {depths:?} the guest told of {heard:?}");
        }
        Ok(self.rates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As fio 3.39 says it, with most left out.
    const JSON: &str = r#"{
  "fio version" : "fio-3.39",
  "jobs" : [
    {
      "jobname" : "reads",
      "error" : 0,
      "read" : {
        "total_ios" : 10000,
        "iops" : 1999.5,
        "clat_ns" : {
          "min" : 100,
          "percentile" : {
            "50.000000" : 444416,
            "99.000000" : 1204224,
            "99.900000" : 2007040
          }
        }
      }
    }
  ]
}"#;

    fn hear(text: &str) -> Result<Vec<Rate>> {
        let (mut hearing, mut times) = (Hearing::default(), 0);
        for line in text.lines() {
            hearing.hear(line, || {
                times += 1;
                let had = |each| Had { cpu: each * times, switches: times };
                Ok([had(100), had(1000)])
            })?;
        }
        hearing.rates(&[1, 32])
    }

    fn good() -> String {
        let one = |depth: u32, from: u64| {
            format!(
                "@exitless begins depth={depth} requests={from} interrupts=7\nfio: a message\n\
                 @exitless ended depth={depth} requests={} interrupts=5007\n\
                 fio: what it says\n{JSON}\n@exitless told depth={depth}\n",
                from + 10_000
            )
        };
        let end = "@exitless rates failed=0 complaints=0\n";
        format!("SeaBIOS {{\n{}{}{end}", one(1, 40), one(32, 20_040))
    }

    #[test]
    fn a_guest_that_reads_has_a_rate_for_each_depth() {
        let rates = hear(&good()).unwrap();
        let [one, many] = &rates[..] else { panic!("two depths: {rates:?}") };
        let fio = Fio { iops: 1999.5, p50: 444_416, p99: 1_204_224, p999: 2_007_040 };
        assert_eq!((one.fio, one.cost.requests, one.cost.interrupts), (fio, 10_000, 5_000));
        assert_eq!((many.depth, many.cost.requests), (32, 10_000));
        let Cost { server_cpu, server_switches, qemu_cpu, .. } = one.cost;
        assert_eq!((server_cpu, server_switches, qemu_cpu), (100, 1, 1000));
    }

    #[test]
    fn what_isnt_well_is_refused() {
        let good = good();
        for (from, to) in [
            ("failed=0", "failed=1"),
            ("complaints=0", "complaints=2"),
            ("@exitless rates", "@exitless failed"),
            ("begins depth=32", "begins depth"),
            ("ended depth=32 requests=30040", "ended depth=32 requests=7"),
            ("@exitless told depth=32\n", ""),
            ("@exitless ended depth=1 ", "@exitless end"),
            ("\"error\" : 0", "\"error\" : 5"),
            ("\"99.900000\"", "\"99.800000\""),
            ("1999.5", "0.0"),
            ("\"jobs\"", "\"none\""),
            ("requests=10040", "requests=40"),
        ] {
            assert!(good.contains(from), "{from}");
            assert!(hear(&good.replace(from, to)).is_err(), "{from} → {to}");
        }
    }
}
