//! A report, for people: the devices of `exitless io list`, the rings of `top`.
//!
//! Guarantees: each device has a line in both, whoever is connected. Names and paths are shown
//! without what commands a terminal.

use crate::clients::summary;
use crate::clock::HERTZ;
use crate::counts::{Counts, Histogram};
use crate::report::{Device, NETWORK, Report, Ring, UPLINK};
use plan::{Escaped, Size};
use std::fmt::Write as _;

/// What stands where there is nothing to say.
const NONE: &str = "-";
/// What helps against a socket's file that was removed.
pub const RENEWED: &str = "`exitless-io reload` makes it anew";

/// The devices, one a line; then what their drivers accepted.
pub fn list(report: &Report) -> String {
    let heads = ["device", "kind", "size", "backing", "front ends", "socket"];
    let row = |device: &Device| {
        [
            device.name.clone(),
            device.kind.clone(),
            device.size.map_or(NONE.into(), |bytes| Size(bytes).to_string()),
            Escaped(&device.backing).to_string(),
            device.connected.to_string(),
            Escaped(&device.socket).to_string(),
        ]
    };
    let mut rows: Vec<_> = report.devices.iter().map(row).collect();
    for own in report.unserved.iter().filter(|own| own.kind != UPLINK) {
        rows.push([
            own.name.clone(),
            own.kind.clone(),
            NONE.into(),
            Escaped(&own.backing).to_string(),
            NONE.into(),
            Escaped(&own.socket).to_string(),
        ]);
    }
    let mut text = aligned(&heads, &rows, &["size", "front ends"]);
    for device in &report.devices {
        let mut told: Vec<usize> = Vec::new();
        for ring in device.rings.iter().filter(|ring| ring.running) {
            if !told.contains(&ring.connection) {
                told.push(ring.connection);
                let features = ring.features.join(", ");
                let _ = writeln!(text, "{}: its driver accepted {features}", device.name);
            }
        }
    }
    for device in &report.devices {
        tell_more(device, &mut text);
    }
    for own in &report.unserved {
        let _ = writeln!(text, "{} isn't served: {}", own.name, Escaped(&own.why));
    }
    text
}

/// What is to be known of a device, if there is something: its limits, errors, and connections that
/// ended with a reason.
fn tell_more(device: &Device, text: &mut String) {
    let (name, all) = (&device.name, device.all());
    let iops = device.iops.map(|iops| format!("{iops} requests/s"));
    let rate = device.rate.map(|rate| format!("{}/s", Size(rate)));
    let limits: Vec<_> = iops.into_iter().chain(rate).collect();
    if !limits.is_empty() {
        let reached = match all.limited {
            // What holds a network back isn't counted.
            _ if device.kind == NETWORK => String::new(),
            0 => ", which it hasn't reached".to_owned(),
            times => format!("; times that it waited: {times}, in all for {}", duration(all.held)),
        };
        let _ = writeln!(text, "{name}: its limit is {}{reached}", limits.join(" and "));
    }
    if device.is_closed {
        let socket = Escaped(&device.socket);
        let _ = writeln!(text, "{name}: {socket} is gone: nobody can connect; {RENEWED}");
    }
    if let Some(trouble) = &device.trouble {
        let _ = writeln!(text, "{name}: {}", Escaped(trouble));
    }
    if all.errors > 0 {
        let _ = writeln!(text, "{name}: requests answered with an I/O error: {}", all.errors);
    }
    if device.ended.count > 0 {
        let (count, why) = (device.ended.count, Escaped(&device.ended.why));
        let _ = writeln!(
            text,
            "{name}: connections that ended with a reason: {count}; the last: {why}"
        );
    }
}

/// What is new in a report, by rings. A device without any has a line, too.
pub fn top(now: &Report, before: &Report) -> String {
    let seconds = now.at.saturating_sub(before.at).max(1) as f64 / HERTZ as f64;
    let heads = [
        "device", "ring", "state", "done/s", "MB/s", "calls/s", "kicks/s", "p50", "p99", "p99.9",
        "turn p99", "at limit",
    ];
    let mut rows: Vec<Vec<String>> = Vec::new();
    let without = |name: &str, state: &str| {
        let words = [name, NONE, state].into_iter().chain(std::iter::repeat(NONE));
        words.take(heads.len()).map(str::to_owned).collect()
    };
    for device in &now.devices {
        if device.rings.is_empty() {
            let state = if device.connected > 0 { "no ring" } else { "no front end" };
            rows.push(without(&device.name, state));
        }
        let earlier = before.devices.iter().find(|other| other.name == device.name);
        for ring in &device.rings {
            let same =
                |other: &&Ring| (other.connection, other.index) == (ring.connection, ring.index);
            let earlier = earlier.and_then(|device| device.rings.iter().find(same));
            rows.push(of_ring(&device.name, ring, earlier, seconds));
        }
    }
    rows.extend(now.unserved.iter().map(|own| without(&own.name, "not served")));
    let right: Vec<_> =
        heads.into_iter().filter(|head| !["device", "state"].contains(head)).collect();
    summary(now, before)
        + "\n"
        + &aligned(&heads, &rows, &right)
        + "p50 to p99.9: how long what was done took, at most; turn: how long the ring waited\n\
           at limit: the part of the time in which its limit held the device back\n"
}

fn of_ring(device: &str, ring: &Ring, earlier: Option<&Ring>, seconds: f64) -> Vec<String> {
    let earlier = earlier.map_or(Counts::default(), |ring| ring.numbers.counts());
    let new = since(&ring.numbers.counts(), &earlier);
    let state = match (ring.running, ring.polled) {
        (false, _) => "stopped",
        (_, true) => "polled",
        _ => "waiting",
    };
    let rate = |count: u64| count as f64 / seconds;
    let at = |histogram: &Histogram, part| match histogram.count() {
        0 => NONE.to_owned(),
        _ => duration(histogram.quantile(part)),
    };
    // What holds it back may end after this look.
    let held = (100.0 * rate(new.held) / HERTZ as f64).min(100.0);
    vec![
        device.to_owned(),
        ring.index.to_string(),
        state.to_owned(),
        format!("{:.0}", rate(new.completed)),
        format!("{:.1}", rate(new.bytes) / 1e6),
        format!("{:.0}", rate(new.calls)),
        format!("{:.0}", rate(new.kicks)),
        at(&new.latencies, 500),
        at(&new.latencies, 990),
        at(&new.latencies, 999),
        at(&new.waits, 990),
        format!("{held:.0} %"),
    ]
}

/// Lines whose columns are below each other; these ones to the right.
fn aligned<R: AsRef<[String]>>(heads: &[&str], rows: &[R], right: &[&str]) -> String {
    let long = |text: &str| text.chars().count();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.as_ref().get(column));
        cells.map(|cell| long(cell)).chain([long(heads[column])]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..heads.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(heads).zip(&widths).map(|((cell, head), width)| {
            if right.contains(head) { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let rows = rows.iter().map(|row| line(&mut row.as_ref().iter().map(String::as_str)));
    line(&mut heads.iter().copied()) + &rows.collect::<String>()
}

fn since(now: &Counts, before: &Counts) -> Counts {
    // A front end that connected anew begins at 0.
    let less = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
    let mut new = *now;
    new.completed = less(now.completed, before.completed);
    new.bytes = less(now.bytes, before.bytes);
    new.calls = less(now.calls, before.calls);
    new.kicks = less(now.kicks, before.kicks);
    new.held = less(now.held, before.held);
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
    use crate::device::Ended;
    use crate::report::{Numbers, Unserved};

    fn report(at: u64, completed: u64) -> Report {
        let features = ["flush", "event_idx"].map(str::to_owned).into();
        let mut ring = Ring { running: true, features, ..Ring::default() };
        ring.numbers.completed = completed;
        ring.numbers.waits = vec![completed];
        ring.numbers.latencies = vec![0, completed];
        ring.numbers.held = at / 2;
        let web = Device {
            name: "web".into(),
            kind: "disk".into(),
            size: Some(64 << 20),
            backing: "d\u{1b}.img".into(),
            socket: "web.sock".into(),
            trouble: Some("all accesses fail".into()),
            connected: 1,
            iops: Some(20_000),
            rate: Some(100 << 20),
            ended: Ended { count: 2, why: "it said\u{1b} 7".into() },
            gone: Numbers { errors: 3, limited: 5, ..Numbers::default() },
            rings: vec![ring],
            ..Device::default()
        };
        let (name, kind) = ("net".into(), NETWORK.into());
        let net = Device { name, kind, rate: Some(1 << 20), ..Device::default() };
        let db = Unserved {
            name: "db".into(),
            kind: "disk".into(),
            backing: "db.img".into(),
            socket: "db.sock".into(),
            why: "db.img isn't\nthere".into(),
        };
        let devices = vec![web, net];
        Report { at, busy: at / 4, devices, unserved: vec![db], ..Report::default() }
    }

    #[test]
    fn the_table_shows_what_is_new() {
        let text = top(&report(3 * HERTZ, 700), &report(HERTZ, 100));
        assert!(text.starts_with("busy  25.0 %"), "{text}");
        let line = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name)).expect("a line");
            line.split_whitespace().map(str::to_owned).collect()
        };
        let words = line("web");
        assert_eq!(words[..4], ["web", "0", "waiting", "300"]);
        assert_eq!((words[7].as_str(), words[10].as_str()), ("512ns", "256ns"));
        assert_eq!(words[11..], ["50", "%"]);
        assert_eq!(line("net")[..6], ["net", "-", "no", "front", "end", "-"]);
        assert_eq!(line("db")[..5], ["db", "-", "not", "served", "-"]);
    }

    #[test]
    fn the_list_says_what_a_device_is_and_what_its_driver_accepted() {
        let expected = "\
device  kind     size  backing      front ends  socket
web     disk      64M  d\\u{1b}.img           1  web.sock
net     network     -                        0
db      disk        -  db.img                -  db.sock
web: its driver accepted flush, event_idx
web: its limit is 20000 requests/s and 100M/s; times that it waited: 5, in all for 0ns
web: all accesses fail
web: requests answered with an I/O error: 3
web: connections that ended with a reason: 2; the last: it said\\u{1b} 7
net: its limit is 1M/s
db isn't served: db.img isn't\\nthere
";
        assert_eq!(list(&report(1, 1)), expected);
    }
}
