//! Reads what a run left: the measuring guest's lines on its console and the
//! plugin's file, and joins them into windows.
//!
//! Guarantees: any text is taken; what doesn't fit is refused with a sentence that
//! names the line. A guest can at most falsify its own figures.

use super::figures::{Exits, Kind, Window};
use anyhow::{Context as _, Result, anyhow, bail};
use std::collections::HashMap;

/// Marks a line of the measuring guest.
const MARK: &str = "@exitless ";

/// What the measuring guest said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Guest {
    /// The kernel's clock source.
    pub clocksource: String,
    /// The kind of interrupt the device has, as the kernel calls it.
    pub interrupt: String,
    /// Its windows; the plugin's counts are still 0.
    pub windows: Vec<Window>,
    /// Whether it came to its end.
    pub done: bool,
}

/// What the plugin counted on the measured CPU and at boot.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plugin {
    /// Window edges in order.
    pub edges: Vec<Edge>,
    /// Instructions of all CPUs from power-on to the first guest entry.
    pub boot: Option<u64>,
    /// Of these, those before the loader or the hypervisor began.
    pub firmware: Option<u64>,
}

/// One edge of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// Whose: 0, or 1 for the second of two guests that share a CPU.
    pub of: u64,
    /// Or it closes one.
    pub opens: bool,
    /// The CPU it was on.
    pub vcpu: u64,
    /// Instructions so far in guest mode.
    pub guest: u64,
    /// Instructions so far in host mode.
    pub host: u64,
    /// Guest entries so far.
    pub vmruns: u64,
    /// How often the host said that it had been entered.
    pub host_entries: u64,
    /// Instructions so far of all other CPUs.
    pub others: u64,
    /// Passes so far of all sidecores that found work.
    pub passes: u64,
    /// Of those that found none.
    pub empty: u64,
    /// Instructions so far of the passes that found work.
    pub served: u64,
    /// Instructions so far of all sidecores' other passes.
    pub polled: u64,
    /// Instructions so far of whoever is below all others, of its guests, and of theirs.
    pub levels: [u64; 3],
    /// Guest entries so far by guests.
    pub inner_vmruns: u64,
}

fn pairs(text: &str) -> HashMap<&str, &str> {
    text.split_whitespace().filter_map(|word| word.split_once('=')).collect()
}

fn number(pairs: &HashMap<&str, &str>, key: &str) -> Result<u64> {
    let text = pairs.get(key).ok_or_else(|| anyhow!("no {key}= in it"))?;
    count(text).ok_or_else(|| anyhow!("{key}={text} is no count"))
}

/// A count, small enough that sums of many can't overflow.
fn count(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n| *n < 1 << 52)
}

/// Counts with commas between them.
fn counts(key: &str, list: &str) -> Result<Vec<u64>> {
    let each = list.split(',').map(count).collect::<Option<_>>();
    each.ok_or_else(|| anyhow!("{key}={list} is no list of counts"))
}

/// Whether a console line is one of ours, and what it says after the mark.
pub fn ours(line: &str) -> Option<&str> {
    // A console may have put something before it on the line.
    line.find(MARK).map(|at| line[at + MARK.len()..].trim())
}

/// Reads the guest's console. `Err` is the guest's own sentence when it gave up.
pub fn guest(console: &str) -> Result<Guest> {
    let mut guest = Guest::default();
    for said in console.lines().filter_map(ours) {
        let (what, rest) = said.split_once(' ').unwrap_or((said, ""));
        match what {
            "failed" => bail!("the guest gave up: {rest}"),
            "done" => guest.done = true,
            "guest" => {
                let pairs = pairs(rest);
                let text = |key| pairs.get(key).copied().unwrap_or("unknown").to_string();
                guest.clocksource = text("clocksource");
                guest.interrupt = text("interrupt");
            }
            "window" => guest
                .windows
                .push(window(rest).with_context(|| format!("the guest's line \"{said}\""))?),
            _ => {}
        }
    }
    Ok(guest)
}

fn window(text: &str) -> Result<Window> {
    let pairs = pairs(text);
    let kind = match pairs.get("kind").copied() {
        Some("short") => Kind::Short,
        Some("long") => Kind::Long,
        Some("spin") => Kind::Spin,
        _ => bail!("no kind= in it that is short, long or spin"),
    };
    let optional = |key| pairs.get(key).map_or(Ok(0), |_| number(&pairs, key));
    let exits = match pairs.get("exits") {
        None => None,
        Some(list) => Some(Exits {
            entries: number(&pairs, "entries")?,
            injected: number(&pairs, "injected")?,
            by_reason: counts("exits", list)?,
            device_injected: optional("device_injected")?,
            device_merged: optional("device_merged")?,
            slices: optional("slices")?,
            waits: pairs.get("waits").map_or(Ok(Vec::new()), |list| counts("waits", list))?,
        }),
    };
    Ok(Window {
        kind,
        spun: number(&pairs, "spun")?,
        operations: number(&pairs, "operations")?,
        interrupts: number(&pairs, "interrupts")?,
        ticks: number(&pairs, "ticks")?,
        nanoseconds: number(&pairs, "nanoseconds")?,
        bytes: optional("bytes")?,
        packets: optional("packets")?,
        exits,
        guest: 0,
        host: 0,
        others: 0,
        vmruns: 0,
        outer_vmruns: 0,
    })
}

/// Reads the plugin's file.
pub fn plugin(text: &str) -> Result<Plugin> {
    let mut plugin = Plugin::default();
    for line in text.lines() {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let pairs = pairs(rest);
        let number =
            |key| number(&pairs, key).with_context(|| format!("the plugin's line \"{line}\""));
        match what {
            "edge" => plugin.edges.push(Edge {
                of: number("of")?,
                opens: pairs.get("kind") == Some(&"open"),
                vcpu: number("vcpu")?,
                guest: number("guest")?,
                host: number("host")?,
                vmruns: number("vmruns")?,
                host_entries: number("host_entries")?,
                others: number("others")?,
                passes: number("passes")?,
                empty: number("empty")?,
                served: number("served")?,
                polled: number("polled")?,
                levels: [number("l0")?, number("l1")?, number("l2")?],
                inner_vmruns: number("inner_vmruns")?,
            }),
            "entry" if plugin.boot.is_none() => plugin.boot = Some(number("all")?),
            "start" => plugin.firmware = Some(number("all")?),
            _ => {}
        }
    }
    Ok(plugin)
}

/// The guest's windows with the plugin's counts.
pub fn join(guest: Guest, plugin: &Plugin) -> Result<Vec<Window>> {
    joined(guest, plugin, false)
}

/// The same of a guest's guest, whose hypervisors are both ours.
pub fn join_nested(guest: Guest, plugin: &Plugin) -> Result<Vec<Window>> {
    joined(guest, plugin, true)
}

fn joined(guest: Guest, plugin: &Plugin, nested: bool) -> Result<Vec<Window>> {
    let (windows, edges) = (guest.windows, &plugin.edges);
    if edges.len() != 2 * windows.len() {
        bail!(
            "the plugin saw {} window edges; the guest reported {} windows, which have two each",
            edges.len(),
            windows.len()
        );
    }
    let counted = edges.chunks_exact(2).zip(windows).enumerate();
    counted
        .map(|(i, (edges, window))| {
            let [open, close] = edges else { bail!("window {i} has no two edges") };
            if !open.opens || close.opens || open.vcpu != close.vcpu {
                bail!("window {i}: its edges aren't an opening and a closing one on the same CPU");
            }
            let vmruns = close.vmruns.saturating_sub(open.vmruns);
            let entries = close.host_entries.saturating_sub(open.host_entries);
            // Without the hypervisor's marker after each exit, host time would count as guest time.
            // Two hypervisors have one each.
            if vmruns.abs_diff(entries) > 1 + u64::from(nested) {
                bail!(
                    "window {i}: {vmruns} guest entries but {entries} host-entered markers; each exit needs one to tell guest from host"
                );
            }
            let others = close.others.saturating_sub(open.others);
            if nested {
                let level = |n: usize| close.levels[n].saturating_sub(open.levels[n]);
                let inner = close.inner_vmruns.saturating_sub(open.inner_vmruns);
                let (guest, host) = (level(2), level(0) + level(1));
                let outer_vmruns = vmruns.saturating_sub(inner);
                return Ok(Window { guest, host, others, vmruns: inner, outer_vmruns, ..window });
            }
            Ok(Window {
                guest: close.guest.saturating_sub(open.guest),
                host: close.host.saturating_sub(open.host),
                others,
                vmruns,
                ..window
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONSOLE: &str = "[    1.0] boot\r\n@exitless measuring\r\n\
        @exitless guest clocksource=tsc interrupt=PCI-MSIX-0000:00:01.0 ledger=yes\r\n\
        @exitless window number=0 kind=short spun=0 operations=10 interrupts=9 ticks=1 nanoseconds=5 bytes=4096 packets=11 entries=30 host_cycles=7 injected=1 device_injected=0 timer_injected=1 device_merged=4 exits=1,0,2\r\n\
        # @exitless window number=1 kind=spin spun=8 operations=0 interrupts=0 ticks=3 nanoseconds=6\r\n\
        @exitless done\r\n";
    const COUNTED: &str = "start vcpu=0 all=70\nentry vcpu=1 own=5 all=77\n\
        edge of=0 kind=open vcpu=1 instructions=10 guest=6 host=4 vmruns=3 host_entries=2 others=100 passes=1 empty=2 served=3 polled=4 l0=5 l1=6 l2=7 inner_vmruns=8\n\
        edge of=0 kind=close vcpu=1 instructions=40 guest=26 host=14 vmruns=13 host_entries=12 others=700 passes=1 empty=2 served=3 polled=4 l0=7 l1=15 l2=10 inner_vmruns=12\n\
        edge of=0 kind=open vcpu=1 instructions=50 guest=30 host=20 vmruns=20 host_entries=19 others=800 passes=1 empty=2 served=3 polled=4 l0=5 l1=6 l2=7 inner_vmruns=8\n\
        edge of=0 kind=close vcpu=1 instructions=60 guest=39 host=21 vmruns=21 host_entries=20 others=800 passes=1 empty=2 served=3 polled=4 l0=5 l1=6 l2=7 inner_vmruns=8\n\
        total vcpu=0 instructions=9 guest=9 host=0 vmruns=0 host_entries=0\n";

    #[test]
    fn a_run_reads_as_it_was_written() {
        let said = guest(CONSOLE).unwrap();
        assert!(said.done);
        assert_eq!(
            (said.clocksource.as_str(), said.interrupt.as_str()),
            ("tsc", "PCI-MSIX-0000:00:01.0")
        );
        let counted = plugin(COUNTED).unwrap();
        assert_eq!((counted.firmware, counted.boot), (Some(70), Some(77)));
        assert_eq!((counted.edges[0].levels, counted.edges[0].inner_vmruns), ([5, 6, 7], 8));
        let inner = join_nested(guest(CONSOLE).unwrap(), &counted).unwrap();
        assert_eq!((inner[0].guest, inner[0].host), (3, 11));
        assert_eq!((inner[0].vmruns, inner[0].outer_vmruns, inner[0].others), (4, 6, 600));
        let windows = join(said, &counted).unwrap();
        assert_eq!((windows.len(), windows[0].outer_vmruns), (2, 0));
        assert_eq!((windows[0].guest, windows[0].host, windows[0].vmruns), (20, 10, 10));
        assert_eq!((windows[0].bytes, windows[1].bytes), (4096, 0));
        assert_eq!((windows[0].packets, windows[0].others, windows[1].others), (11, 600, 0));
        let exits = windows[0].exits.as_ref().unwrap();
        assert_eq!((exits.injected, exits.device_merged), (1, 4));
        assert_eq!(exits.by_reason, [1, 0, 2]);
        assert_eq!(
            (windows[1].kind, windows[1].spun, windows[1].exits.as_ref()),
            (Kind::Spin, 8, None)
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let lost = COUNTED.lines().take(4).collect::<Vec<_>>().join("\n");
        let joined = |text: &str| join(guest(CONSOLE).unwrap(), &plugin(text).unwrap());
        assert!(joined(&lost).unwrap_err().to_string().contains("saw 2 window edges"));
        let unmarked = COUNTED.replace("host_entries=12", "host_entries=2");
        assert!(joined(&unmarked).unwrap_err().to_string().contains("10 guest entries but 0"));
        let swapped = COUNTED.replacen("open", "close", 1);
        assert!(joined(&swapped).is_err());
        let damaged = CONSOLE.replace("ticks=1 ", "ticks=x ");
        assert!(format!("{:#}", guest(&damaged).unwrap_err()).contains("ticks=x is no count"));
        let gave_up = "@exitless failed no disk /dev/nvme0n1";
        assert!(guest(gave_up).unwrap_err().to_string().ends_with("no disk /dev/nvme0n1"));
    }

    /// What lines are made of, and what doesn't belong in them.
    const WORDS: [&str; 28] = [
        "@exitless",
        "window",
        "guest",
        "done",
        "edge",
        "of=0",
        "entry",
        "\n",
        "\n",
        "kind=short",
        "kind=spin",
        "kind=open",
        "kind=close",
        "spun=0",
        "operations=7",
        "interrupts=7",
        "ticks=1",
        "nanoseconds=18446744073709551615",
        "injected=1",
        "entries=3",
        "exits=1,2",
        "exits=,",
        "vcpu=1",
        "guest=5",
        "host=x",
        "vmruns=2",
        "host_entries=2",
        "others=3",
    ];

    proptest! {
        /// Whatever a guest or a damaged file says, it is read or refused.
        #[test]
        fn any_text_is_taken(words in proptest::collection::vec(0..WORDS.len(), 0..60), any in ".*", nested: bool) {
            let words: Vec<_> = words.into_iter().map(|i| WORDS[i]).collect();
            let text = words.join(" ").replace("\n ", "\n") + &any;
            if let (Ok(said), Ok(counted)) = (guest(&text), plugin(&text)) {
                let windows = said.windows.len();
                if let Ok(joined) = joined(said, &counted, nested) {
                    prop_assert_eq!(joined.len(), windows);
                }
            }
        }
    }
}
