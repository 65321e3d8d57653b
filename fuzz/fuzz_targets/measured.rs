//! What a measuring guest and the counting plugin leave behind: any text, and lines of the words
//! that belong in them. It is read or refused in a sentence; what was joined is as many windows as
//! were told.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

// Of a program, so there is no crate to name.
#[allow(dead_code, unused_imports, reason = "the target uses its part")]
#[path = "../../lab/src/bench/figures.rs"]
mod figures;
#[allow(dead_code, reason = "the target uses its part")]
#[path = "../../lab/src/bench/lines.rs"]
mod lines;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    console: Vec<Part<'a>>,
    plugin: Vec<Part<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Part<'a> {
    Text(&'a str),
    /// A line: its first word, then keys and values.
    Line(u8, Vec<(u8, u64)>),
    /// A whole window, or its two edges.
    Window(u8, [u32; 4]),
}

const FIRST: [&str; 8] = [
    "@exitless window",
    "@exitless guest",
    "@exitless done",
    "@exitless failed",
    "edge",
    "entry",
    "total",
    "@exitless",
];
const KEYS: [&str; 18] = [
    "kind",
    "spun",
    "operations",
    "interrupts",
    "ticks",
    "nanoseconds",
    "bytes",
    "exits",
    "entries",
    "injected",
    "vcpu",
    "guest",
    "host",
    "vmruns",
    "host_entries",
    "all",
    "clocksource",
    "interrupt",
];

fn text(parts: &[Part], console: bool) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Text(any) => text.push_str(any),
            Part::Line(first, pairs) => {
                text.push_str(FIRST[usize::from(*first) % FIRST.len()]);
                for (key, value) in pairs {
                    let key = KEYS[usize::from(*key) % KEYS.len()];
                    text.push_str(&format!(" {key}={value}"));
                }
                text.push('\n');
            }
            Part::Window(kind, [a, b, c, d]) if console => {
                let kind = ["short", "long", "spin"][usize::from(*kind) % 3];
                text.push_str(&format!(
                    "@exitless window kind={kind} spun={a} operations={b} interrupts={c} ticks={d} nanoseconds={a} exits={b},{c} entries={d} injected={a}\n"
                ));
            }
            Part::Window(_, [a, b, c, d]) => {
                for (kind, n) in [("open", 0), ("close", 1)] {
                    let (guest, host) = (u64::from(*a) + n * u64::from(*b), n * u64::from(*c));
                    let entries = n * u64::from(*d);
                    text.push_str(&format!(
                        "edge kind={kind} vcpu=1 guest={guest} host={host} vmruns={entries} host_entries={entries}\n"
                    ));
                }
            }
        }
    }
    text
}

fuzz_target!(|input: Input| {
    let (console, plugin) = (text(&input.console, true), text(&input.plugin, false));
    for line in console.lines().chain(plugin.lines()) {
        let _ = lines::ours(line);
    }
    let refused = |error: &anyhow::Error| assert!(!format!("{error:#}").is_empty());
    match (lines::guest(&console), lines::plugin(&plugin)) {
        (Ok(guest), Ok(counted)) => {
            let windows = guest.windows.len();
            match lines::join(guest, &counted) {
                Ok(joined) => assert_eq!(joined.len(), windows),
                Err(error) => refused(&error),
            }
        }
        (Err(error), _) | (_, Err(error)) => refused(&error),
    }
});
