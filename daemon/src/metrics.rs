//! A report as Prometheus' text format, version 0.0.4. Counters of a device include its rings that
//! are gone, so that none goes back when a front end connects again.
//!
//! Guarantees: who asks without end costs the thread that serves a copy of what was told before:
//! [`AT_ONCE`] are made one after the other, and then one each [`EACH`].

use crate::clock::HERTZ;
use crate::counts::{CLASSES, Counts, FIRST_CLASS, Histogram};
use crate::report::{Device, Report};
use std::collections::BTreeMap;
use std::fmt::Write as _;

const SECOND: f64 = 1e9;
/// What stands for the queue of rings that are gone.
const GONE: &str = "gone";
/// How many are made at once, and how often after that, in nanoseconds. One takes a third of a
/// millisecond for eleven devices.
const AT_ONCE: u64 = 16;
const EACH: u64 = HERTZ / 20;

/// The answers to requests of HTTP.
#[derive(Default)]
pub struct Told {
    /// The last one.
    text: String,
    /// When all those that were made are made up for.
    even_at: u64,
}

impl Told {
    /// The answer now: as the report says, or the last one again.
    pub fn answer(&mut self, now: u64, report: impl FnOnce() -> Report) -> String {
        if self.even_at <= now.saturating_add((AT_ONCE - 1) * EACH) {
            self.even_at = self.even_at.max(now).saturating_add(EACH);
            self.text = answer(&report());
        }
        self.text.clone()
    }
}

/// The whole answer to a request of HTTP.
fn answer(report: &Report) -> String {
    let text = text(report);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let head = format!("HTTP/1.0 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}", text.len());
    format!("{head}\r\nConnection: close\r\n\r\n{text}")
}

/// The metrics.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: String| {
        let _ = writeln!(text, "# HELP exitless_io_{name} {help}");
        let _ = writeln!(text, "# TYPE exitless_io_{name} {kind}");
        text += &value;
    };
    let share = [("busy", report.busy), ("polling", report.polling), ("asleep", report.asleep)];
    let lines = share.map(|(state, nanoseconds)| {
        let seconds = nanoseconds as f64 / SECOND;
        format!("exitless_io_thread_seconds_total{{state=\"{state}\"}} {seconds}\n")
    });
    one("thread_seconds_total", "counter", "What the thread did with its time.", lines.concat());
    for (name, help, value) in [
        ("passes_total", "Looks for work.", report.passes),
        ("passes_found_total", "Looks that found work.", report.found),
        ("sleeps_total", "Times that the thread slept.", report.sleeps),
    ] {
        one(name, "counter", help, format!("exitless_io_{name} {value}\n"));
    }
    let all: Vec<_> = report.devices.iter().map(|device| (device, device.all())).collect();
    let connected = all.iter().map(|(device, _)| {
        let (name, count) = (&device.name, device.connected);
        format!("exitless_io_front_ends{{device=\"{name}\"}} {count}\n")
    });
    let connected: String = connected.collect();
    one("front_ends", "gauge", "Front ends that are connected.", connected);
    let served = report.devices.iter().map(|own| (&own.name, "1"));
    let unserved = report.unserved.iter().map(|own| (&own.name, "0"));
    let lines = served
        .chain(unserved)
        .map(|(name, is)| format!("exitless_io_served{{device=\"{name}\"}} {is}\n"));
    let help = "Whether a device that is to be served is, or a switch has its way out.";
    one("served", "gauge", help, lines.collect());
    let lines = report.unserved.iter().map(|own| {
        let why = own.why.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("exitless_io_unserved_info{{device=\"{}\",why=\"{why}\"}} 1\n", own.name)
    });
    one("unserved_info", "gauge", "Why a device isn't served.", lines.collect());
    let mut each = |name: &str, help: &str, value: fn(&Counts) -> u64| {
        let lines = all.iter().map(|(device, counts)| {
            format!("exitless_io_{name}{{device=\"{}\"}} {}\n", device.name, value(counts))
        });
        one(name, "counter", help, lines.collect());
    };
    each("completed_total", "Requests or frames that were completed.", |counts| counts.completed);
    let help = "Requests or frames in flight that each one left when it was completed, all told.";
    each("left_in_flight_total", help, |counts| counts.left);
    each("bytes_total", "Bytes of requests or frames.", |counts| counts.bytes);
    each("errors_total", "Requests answered with an I/O error.", |counts| counts.errors);
    each("limited_total", "Times that a device's limit held it back.", |counts| counts.limited);
    each("dropped_total", "Frames that nobody got.", |counts| counts.dropped);
    each("calls_total", "Calls of drivers.", |counts| counts.calls);
    each("withheld_total", "Completions that were told later.", |counts| counts.withheld);
    each("kicks_total", "Kicks that woke a ring up.", |counts| counts.kicks);
    each("throttled_total", "Times that kicks weren't listened to.", |counts| counts.throttled);
    let mut one_each = |name: &str, kind: &str, help: &str, value: fn(&Device) -> Option<u64>| {
        let known = report.devices.iter().filter_map(|own| Some((&own.name, value(own)?)));
        let lines = known
            .map(|(device, value)| format!("exitless_io_{name}{{device=\"{device}\"}} {value}\n"));
        one(name, kind, help, lines.collect());
    };
    let help = "Connections that ended with a reason.";
    one_each("connections_ended_total", "counter", help, |own| Some(own.ended.count));
    let help = "Whether a disk's data can't be had now: 1 or 0.";
    one_each("trouble", "gauge", help, |own| own.size.map(|_| u64::from(own.trouble.is_some())));
    let help = "Requests a second that a device may have.";
    one_each("limit_requests_per_second", "gauge", help, |own| own.iops);
    let help = "Bytes a second that a device may have, or a network send.";
    one_each("limit_bytes_per_second", "gauge", help, |own| own.rate);
    let lines = all.iter().map(|(device, counts)| {
        let seconds = counts.held as f64 / SECOND;
        format!("exitless_io_limited_seconds_total{{device=\"{}\"}} {seconds}\n", device.name)
    });
    let help = "Time for which a device's limit held it back.";
    one("limited_seconds_total", "counter", help, lines.collect());
    let mut spread = |name: &str, help: &str, value: fn(&Counts) -> &Histogram| {
        let rings = report.devices.iter().flat_map(|device| {
            let mut all = BTreeMap::new();
            all.insert(GONE.to_owned(), device.gone.counts());
            for ring in &device.rings {
                let queue = all.entry(ring.index.to_string()).or_default();
                queue.add(&ring.numbers.counts());
            }
            all.into_iter().map(|(queue, counts)| {
                let labels = format!("device=\"{}\",queue=\"{queue}\"", device.name);
                histogram(name, &labels, value(&counts))
            })
        });
        one(name, "histogram", help, rings.collect());
    };
    let help = "Turns, by how long the ring waited for them.";
    spread("wait_seconds", help, |counts| &counts.waits);
    let help = "Requests or frames, by how long they took from when the ring was seen waiting.";
    spread("latency_seconds", help, |counts| &counts.latencies);
    text
}

fn histogram(name: &str, labels: &str, histogram: &Histogram) -> String {
    let mut text = String::new();
    let mut sum = 0;
    for (class, count) in histogram.classes.iter().enumerate() {
        sum += count;
        let end = match class {
            class if class + 1 == CLASSES => "+Inf".to_owned(),
            class => ((1_u64 << (class as u32 + FIRST_CLASS)) as f64 / SECOND).to_string(),
        };
        let _ = writeln!(text, "exitless_io_{name}_bucket{{{labels},le=\"{end}\"}} {sum}");
    }
    let seconds = histogram.sum as f64 / SECOND;
    let _ = writeln!(text, "exitless_io_{name}_sum{{{labels}}} {seconds}");
    let _ = writeln!(text, "exitless_io_{name}_count{{{labels}}} {sum}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Ended;
    use crate::report::{Numbers, Ring, Unserved};

    /// Whoever asks: many who each ask once are as one who asks again and again.
    #[test]
    fn who_asks_without_end_is_told_the_last_ones_again() {
        let (mut told, mut made) = (Told::default(), 0);
        let mut ask = |now: u64, times: u64| {
            let before = made;
            for _ in 0..times {
                let text = told.answer(now, || {
                    made += 1;
                    Report { sleeps: made, ..Report::default() }
                });
                assert!(text.contains(&format!("exitless_io_sleeps_total {made}\n")), "{text}");
            }
            made - before
        };
        assert_eq!(ask(0, 1), 1);
        assert_eq!(ask(0, 1000), AT_ONCE - 1);
        assert_eq!(ask(EACH - 1, 1000), 0);
        assert_eq!(ask(EACH, 1000), 1);
        assert_eq!(ask(4 * EACH, 1000), 3);
        assert_eq!(ask(HERTZ * 3600, 1000), AT_ONCE);
    }

    #[test]
    fn counters_include_rings_that_are_gone() {
        let numbers = |completed| Numbers {
            completed,
            left: 30,
            held: 250_000_000,
            errors: 1,
            limited: 4,
            waits: vec![1; CLASSES],
            latencies: vec![3; CLASSES],
            latencies_sum: 500_000_000,
            ..Numbers::default()
        };
        let rings = vec![Ring { numbers: numbers(5), ..Ring::default() }];
        let ended = Ended { count: 9, why: "it left".into() };
        let (name, iops, gone) = ("a".into(), Some(200), numbers(2));
        let trouble = Some("all accesses fail".into());
        let device =
            Device { name, size: Some(1), trouble, iops, rings, ended, gone, ..Device::default() };
        let (name, why) = ("b".into(), "\"b\\c\" isn't\nthere".into());
        let unserved = vec![Unserved { name, why, ..Unserved::default() }];
        let devices = vec![device];
        let report = Report { busy: 1_500_000_000, devices, unserved, ..Report::default() };
        let text = text(&report);
        for line in [
            "exitless_io_thread_seconds_total{state=\"busy\"} 1.5",
            "exitless_io_completed_total{device=\"a\"} 7",
            "exitless_io_left_in_flight_total{device=\"a\"} 60",
            "exitless_io_errors_total{device=\"a\"} 2",
            "exitless_io_limited_total{device=\"a\"} 8",
            "exitless_io_connections_ended_total{device=\"a\"} 9",
            "exitless_io_trouble{device=\"a\"} 1",
            "exitless_io_limit_requests_per_second{device=\"a\"} 200",
            "exitless_io_served{device=\"a\"} 1",
            "exitless_io_served{device=\"b\"} 0",
            "exitless_io_unserved_info{device=\"b\",why=\"\\\"b\\\\c\\\" isn't\\nthere\"} 1",
            "exitless_io_limited_seconds_total{device=\"a\"} 0.5",
            "exitless_io_wait_seconds_bucket{device=\"a\",queue=\"0\",le=\"0.000000256\"} 1",
            "exitless_io_wait_seconds_bucket{device=\"a\",queue=\"gone\",le=\"+Inf\"} 24",
            "exitless_io_latency_seconds_bucket{device=\"a\",queue=\"0\",le=\"0.000000512\"} 6",
            "exitless_io_latency_seconds_sum{device=\"a\",queue=\"0\"} 0.5",
            "exitless_io_latency_seconds_count{device=\"a\",queue=\"0\"} 72",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} isn't in {text}");
        }
    }
}
