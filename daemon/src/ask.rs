//! `exitless io list`, `add`, `remove`, `reload` and `top`: the other side of the control socket.

use crate::clients::summary;
use crate::clock::HERTZ;
use crate::control::{Answer, Request};
use crate::counts::{Counts, Histogram};
use crate::report::Report;
use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, ErrorKind, IsTerminal as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// A daemon that answers.
pub struct Daemon(BufReader<UnixStream>);

impl Daemon {
    pub fn at(path: &Path) -> Result<Daemon> {
        let shown = path.display();
        let socket = match UnixStream::connect(path) {
            Ok(socket) => socket,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                bail!("no daemon listens at {shown} any more")
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!(
                    "no daemon listens at {shown}; --control names the socket that the `control` \
                     of its file does"
                )
            }
            Err(error) => return Err(error).with_context(|| format!("{shown} can't be reached")),
        };
        Ok(Daemon(BufReader::new(socket)))
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        let line = serde_json::to_string(request)? + "\n";
        self.0.get_mut().write_all(line.as_bytes()).context("the daemon takes no request")?;
        let mut answer = String::new();
        if self.0.read_line(&mut answer).context("the daemon doesn't answer")? == 0 {
            bail!("the daemon ended before it answered");
        }
        serde_json::from_str(&answer).context("the daemon's answer can't be understood")
    }

    /// Has it do something.
    pub fn tell(&mut self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Answer::Failed(what) => bail!("{}", what.join("\nexitless-io: ")),
            _ => Ok(()),
        }
    }

    pub fn report(&mut self) -> Result<Report> {
        match self.ask(&Request::List)? {
            Answer::Report(report) => Ok(report),
            Answer::Failed(what) => bail!("{}", what.join("\nexitless-io: ")),
            Answer::Done | Answer::Letter(_) => bail!("the daemon's answer can't be understood"),
        }
    }

    /// Shows what is new each `seconds`, so often, or until ended.
    pub fn top(&mut self, seconds: f64, count: Option<u32>) -> Result<()> {
        let mut before = self.report()?;
        let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
        let mut shown = 0;
        while count.is_none_or(|count| shown < count) {
            sleep(Duration::from_secs_f64(seconds));
            let now = self.report()?;
            let text = format!("{clear}{}", table(&now, &before));
            std::io::stdout().write_all(text.as_bytes()).context("nobody reads the output")?;
            before = now;
            shown += 1;
        }
        Ok(())
    }
}

/// The devices, one a line.
pub fn list(report: &Report) -> String {
    let mut text = format!("{:16} {:8} {:>10}  {}\n", "device", "kind", "front ends", "socket");
    for device in &report.devices {
        let (name, kind, connected) = (&device.name, &device.kind, device.connected);
        let _ = writeln!(text, "{name:16} {kind:8} {connected:>10}  {}", device.socket);
    }
    text
}

/// What is new in a report, by rings.
fn table(now: &Report, before: &Report) -> String {
    let mut text = summary(now, before) + "\n";
    let seconds = now.at.saturating_sub(before.at).max(1) as f64 / HERTZ as f64;
    let _ = writeln!(
        text,
        "{:16} {:>4} {:8} {:>11} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8}",
        "device",
        "ring",
        "state",
        "done/s",
        "MB/s",
        "calls/s",
        "kicks/s",
        "p50",
        "p99",
        "p99.9",
        "turn p99"
    );
    for device in &now.devices {
        let earlier = before.devices.iter().find(|other| other.name == device.name);
        for ring in &device.rings {
            let earlier = earlier.and_then(|device| {
                let same = |other: &&crate::report::Ring| {
                    (other.connection, other.index) == (ring.connection, ring.index)
                };
                device.rings.iter().find(same)
            });
            let earlier = earlier.map_or(Counts::default(), |ring| ring.numbers.counts());
            let new = since(&ring.numbers.counts(), &earlier);
            let state = match (ring.running, ring.polled) {
                (false, _) => "stopped",
                (_, true) => "polled",
                _ => "waiting",
            };
            let rate = |count: u64| count as f64 / seconds;
            let at = |histogram: &Histogram, part| match histogram.count() {
                0 => "-".to_owned(),
                _ => duration(histogram.quantile(part)),
            };
            let [p50, p99, p999] = [500, 990, 999].map(|part| at(&new.latencies, part));
            let wait = at(&new.waits, 990);
            let _ = writeln!(
                text,
                "{:16} {:>4} {state:8} {:>11.0} {:>9.1} {:>9.0} {:>9.0} {p50:>8} {p99:>8} {p999:>8} {wait:>8}",
                device.name,
                ring.index,
                rate(new.completed),
                rate(new.bytes) / 1e6,
                rate(new.calls),
                rate(new.kicks),
            );
        }
    }
    text + "p50 to p99.9: how long what was done took, at most; turn: how long the ring waited\n"
}

fn since(now: &Counts, before: &Counts) -> Counts {
    // A front end that connected anew begins at 0.
    let less = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
    let mut new = *now;
    new.completed = less(now.completed, before.completed);
    new.bytes = less(now.bytes, before.bytes);
    new.calls = less(now.calls, before.calls);
    new.kicks = less(now.kicks, before.kicks);
    let histograms = [(&mut new.waits, &before.waits), (&mut new.latencies, &before.latencies)];
    for (new, before) in histograms {
        for (class, count) in new.classes.iter_mut().zip(before.classes) {
            *class = less(*class, count);
        }
    }
    new
}

fn duration(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000 => format!("{nanoseconds}ns"),
        1_000..1_000_000 => format!("{:.1}µs", nanoseconds as f64 / 1e3),
        _ => format!("{:.1}ms", nanoseconds as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Device, Ring};

    #[test]
    fn the_table_shows_what_is_new() {
        let report = |at, completed| {
            let mut ring = Ring { running: true, ..Ring::default() };
            ring.numbers.completed = completed;
            ring.numbers.waits = vec![completed];
            ring.numbers.latencies = vec![0, completed];
            let device = Device { name: "web".into(), rings: vec![ring], ..Device::default() };
            Report { at, busy: at / 4, devices: vec![device], ..Report::default() }
        };
        let text = table(&report(3 * HERTZ, 700), &report(HERTZ, 100));
        assert!(text.starts_with("busy  25.0 %"), "{text}");
        let line = text.lines().find(|line| line.starts_with("web")).expect("a line");
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[..4], ["web", "0", "waiting", "300"]);
        assert_eq!((words[7], words[10]), ("512ns", "256ns"));
    }
}
