//! The table of docs/kernels.md: kernels of Debian, old and new, with one to four vCPUs and
//! from little to much memory, each taking CPUs offline and back, reading its disk, and one of
//! them rebooting in the middle of I/O.
//!
//! Guarantees: a whole test has each kernel and each shape, and with `--long` each kernel in each
//! shape; the table in the docs is what the last one of those saw, and nobody types it.

use super::{
    alone,
    names::named,
    tally::Tally,
    workers::{AT_ONCE, Gate, side_by_side},
};
use crate::{cmdline::LINUX, console::tail, document, summary::Summary};
use anyhow::{Context as _, Result, bail};
use exitless::{context::Context, machine::Disk, recipe, say::plain};
use plan::{OnReset, Plan, Size, Vm};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// For a boot, or two, of four vCPUs on a slow machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// What the guest reads of its disk, and the disk.
const READ: usize = 512 << 12;
const DISK: u64 = 64 << 20;
const MIB: u64 = 1 << 20;

/// Folders below `build/guest-table`.
const KERNELS: [&str; 4] = ["6.1", "6.12", "6.12-rt", "newest"];

/// What a kernel is given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    cpus: u32,
    memory: u64,
    reboots: bool,
    /// A word on its command line, or none.
    option: &'static str,
}

const SHAPES: [Shape; 6] = [
    Shape { cpus: 1, memory: 256 * MIB, reboots: false, option: "" },
    Shape { cpus: 2, memory: 1024 * MIB, reboots: true, option: "" },
    Shape { cpus: 4, memory: 1024 * MIB, reboots: false, option: "" },
    Shape { cpus: 4, memory: 8192 * MIB, reboots: false, option: "" },
    // Without the IOAPIC the console has no interrupt, and is polled.
    Shape { cpus: 1, memory: 256 * MIB, reboots: false, option: "noapic" },
    Shape { cpus: 2, memory: 256 * MIB, reboots: false, option: "nosmp" },
];

impl Shape {
    fn column(self) -> String {
        let plural = if self.cpus == 1 { "" } else { "s" };
        let reboots = if self.reboots { ", a reboot" } else { "" };
        let comma = if self.option.is_empty() { "" } else { ", " };
        format!("{} vCPU{plural}, {}{reboots}{comma}{}", self.cpus, Size(self.memory), self.option)
    }
}

/// What a whole test has: a kernel, and the place of its shape.
const USUAL: [(&str, usize); 6] =
    [("6.12-rt", 0), ("newest", 1), ("6.1", 2), ("6.12", 3), ("6.12", 4), ("6.12", 5)];

/// Those whose name has `only` in it, or all with `long`; a quick test has none.
pub fn chosen(quick: bool, long: bool, only: Option<&str>) -> Vec<(&'static str, Shape)> {
    let usual = |kernel: &str, shape: &Shape| {
        USUAL.iter().any(|(of, at)| *of == kernel && SHAPES[*at] == *shape)
    };
    let all = KERNELS.iter().flat_map(|k| SHAPES.map(|shape| (*k, shape)));
    // Much memory takes long to clear; once is enough, as for what is a matter of one driver.
    let everywhere = |shape: &Shape| shape.memory < 8192 * MIB && shape.option.is_empty();
    let all = all.filter(|(kernel, shape)| everywhere(shape) || *kernel == "6.12");
    all.filter(|(kernel, shape)| match only {
        Some(text) => named(&name(kernel, *shape), text),
        None => long || (!quick && usual(kernel, shape)),
    })
    .collect()
}

/// Boots the chosen ones. If those are `all`, it then brings the document up to date.
pub fn run(
    cx: &Context,
    gate: &Gate,
    chosen: &[(&'static str, Shape)],
    all: bool,
    tally: &Tally,
) -> Result<Summary> {
    let mut summary = Summary::default();
    if chosen.is_empty() {
        return Ok(summary);
    }
    let root = cx.root.join("build/guest-table");
    recipe::make(&cx.root.join("guests/linux/table/build"), &root, "guest")?;
    let cells = Mutex::new(HashMap::new());
    summary += side_by_side(cx, gate, chosen, AT_ONCE, |&(kernel, shape)| {
        let start = Instant::now();
        let failed = boot(cx, &root.join(kernel), shape).err();
        if cx.interrupted() {
            bail!("stopped");
        }
        let name = name(kernel, shape);
        let why =
            failed.as_ref().map(|error| format!("\n      {}", plain(error))).unwrap_or_default();
        println!("{}{why}", tally.line(failed.is_none(), &name, start.elapsed()));
        let mut cells = cells.lock().unwrap_or_else(PoisonError::into_inner);
        cells.insert((kernel, shape.column()), failed.is_none());
        Ok(Summary::one(&name, failed.is_none()))
    })?;
    let cells = cells.into_inner().unwrap_or_else(PoisonError::into_inner);
    if all {
        document::write(&cx.root, "docs/kernels.md", "table", &table(&root, &cells)?)?;
    }
    Ok(summary)
}

/// What a kernel of this shape is called.
pub fn name(kernel: &str, shape: Shape) -> String {
    let dash = if shape.option.is_empty() { "" } else { "-" };
    format!("linux/{kernel}-{}cpu-{}{dash}{}", shape.cpus, Size(shape.memory), shape.option)
}

/// Boots a kernel and judges what it says; an error is why it isn't fit.
fn boot(cx: &Context, files: &Path, shape: Shape) -> Result<()> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let (disk, sum) = disk(scratch.path())?;
    let path = |file: &str| files.join(file).display().to_string();
    let reboots = u8::from(shape.reboots);
    let vm = Vm {
        name: "linux".into(),
        cpus: (1..=shape.cpus).collect(),
        weight: plan::DEFAULT_WEIGHT,
        limit: plan::Limit::default(),
        memory: shape.memory,
        kernel: path("vmlinuz"),
        initrd: Some(path("initrd.img")),
        cmdline: format!("{LINUX} quiet exitless.reboot={reboots} {}", shape.option),
        devices: vec!["nvme0".parse()?],
        disks: vec![],
        interfaces: vec![],
        interrupts: None,
        reset: OnReset::Restart,
        nested: false,
        iommu: plan::GuestIommu::None,
    };
    let (_, console) = alone::hear(cx, Plan::new(vec![vm]), vec![Disk::File(disk)], PATIENCE)?;
    judge(&console, shape, &sum)
}

/// A disk whose beginning is no pattern, and the checksum of that.
fn disk(directory: &Path) -> Result<(PathBuf, String)> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let bytes: Vec<u8> = words.take(READ / 8).flatten().collect();
    let (start, disk) = (directory.join("start"), directory.join("disk"));
    fs::write(&start, &bytes)?;
    fs::write(&disk, &bytes)?;
    fs::OpenOptions::new().write(true).open(&disk)?.set_len(DISK)?;
    let md5 = Command::new("md5sum").arg(&start).output().context("md5sum can't be started")?;
    let text = String::from_utf8_lossy(&md5.stdout);
    let sum = text.split_whitespace().next().context("md5sum says nothing")?;
    Ok((disk, sum.to_owned()))
}

fn judge(console: &str, shape: Shape, sum: &str) -> Result<()> {
    let said: Vec<&str> = console.lines().filter_map(|l| l.split("@exitless ").nth(1)).collect();
    let Some(line) = said.iter().find_map(|s| s.strip_prefix("table ")) else {
        bail!("it didn't report; the console's end: {}", tail(console));
    };
    let pairs: HashMap<_, _> =
        line.split_whitespace().filter_map(|word| word.split_once('=')).collect();
    let number = |key: &str| pairs.get(key).and_then(|n| n.parse::<u64>().ok()).unwrap_or(u64::MAX);
    let expect = |key: &str, good: bool| match good {
        true => Ok(()),
        false => bail!("{key}={} isn't what it should be: {line}", pairs.get(key).unwrap_or(&"")),
    };
    let kib = shape.memory >> 10;
    let cpus = if shape.option == "nosmp" { 1 } else { u64::from(shape.cpus) };
    expect("cpus", number("cpus") == cpus)?;
    expect("cycled", number("cycled").wrapping_add(1) == cpus)?;
    // A kernel keeps some of its memory for itself, of a small one a larger part.
    expect("memory", (kib * 7 / 10..=kib).contains(&number("memory")))?;
    expect("sum", pairs.get("sum") == Some(&sum))?;
    expect("interrupts", (512..u64::MAX).contains(&number("interrupts")))?;
    expect("complaints", number("complaints") == 0)?;
    let reboots = said.iter().filter(|s| s.starts_with("reboots")).count();
    if reboots != usize::from(shape.reboots) {
        bail!("it rebooted {reboots} times");
    }
    Ok(())
}

/// The table, as Markdown.
fn table(root: &Path, cells: &HashMap<(&str, String), bool>) -> Result<String> {
    let mut text = String::from("| kernel | package |");
    SHAPES.iter().for_each(|s| text.push_str(&format!(" {} |", s.column())));
    text.push_str("\n|---|---|");
    SHAPES.iter().for_each(|_| text.push_str("---|"));
    text.push('\n');
    for kernel in KERNELS {
        let package = fs::read_to_string(root.join(kernel).join("version"))?;
        text.push_str(&format!("| {kernel} | {} |", package.trim()));
        for shape in SHAPES {
            let word = match cells.get(&(kernel, shape.column())) {
                Some(true) => "ok",
                Some(false) => "fails",
                None => "–",
            };
            text.push_str(&format!(" {word} |"));
        }
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { cpus: 2, memory: 1024 * MIB, reboots: true, option: "" };
    const GOOD: &str = "@exitless reboots\n[ 1.0] x @exitless table kernel=6.1 cpus=2 cycled=1 memory=980000 sum=abc interrupts=600 complaints=0\n";

    #[test]
    fn a_whole_test_has_each_kernel_and_each_shape() {
        let usual = chosen(false, false, None);
        for (kernel, shape) in chosen(false, true, None) {
            assert!(usual.iter().any(|(other, _)| *other == kernel), "{kernel}");
            assert!(usual.iter().any(|(_, other)| *other == shape), "{}", shape.column());
        }
        assert_eq!(usual.len(), USUAL.len());
        assert!(chosen(true, false, None).is_empty());
    }

    #[test]
    fn only_what_is_all_right_passes() {
        judge(GOOD, SHAPE, "abc").unwrap();
        for (from, to) in [
            ("cpus=2", "cpus=1"),
            ("cycled=1", "cycled=0"),
            ("memory=980000", "memory=500000"),
            ("sum=abc", "sum=abd"),
            ("interrupts=600", "interrupts=0"),
            ("complaints=0", "complaints=1"),
            ("complaints=0", ""),
            ("@exitless reboots", ""),
            ("@exitless table", ""),
        ] {
            assert!(judge(&GOOD.replace(from, to), SHAPE, "abc").is_err(), "{from} → {to}");
        }
    }
}
