//! Cases on Bochs, the emulator that has Intel's VMX: the image as GRUB starts it there, and the
//! test kernel as a monitor on `crates/vmx`.
//!
//! Guarantees: Bochs is of the version that `cli/bochs/build` says, or the case fails with one
//! sentence; a kernel's case passes only if it came to its end, said what it must, and nothing of
//! it failed. Bochs ends with the same status whatever happened, so its serial port is what counts.

use super::{
    alone::says,
    case::{Case, Special},
    names::named,
    tally::Tally,
    workers::{Gate, side_by_side},
};
use crate::{console::tail, summary::Summary};
use anyhow::{Context as _, Result, bail};
use exitless::{
    bootable,
    context::Context,
    helper, needs, recipe,
    report::Report,
    session::{self, Ended, Framing, Seen, Setup},
    stream::Piece,
};
use proto::exit;
use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// For a boot, and some ten thousand entries, on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// For Linux.
pub const LINUX_PATIENCE: Duration = Duration::from_secs(900);

/// For what a long test alone has.
pub const LONG_PATIENCE: Duration = Duration::from_secs(4 * 3600);

/// MiB, and those of a machine with a VM of Linux.
const MEMORY: u32 = 256;
const LINUX_MEMORY: u32 = 1024;
/// What it boots from.
const CD: &str = "cd.iso";

/// A case.
#[derive(Clone, Copy)]
pub struct Kind {
    name: &'static str,
    started: Started,
    /// What must be said, in this order; the last of it is the end.
    says: &'static [&'static str],
    cpus: u32,
}

/// What GRUB starts.
#[derive(Clone, Copy)]
enum Started {
    /// The hypervisor, without a plan.
    Image,
    /// The test kernel, with this test.
    Kernel(&'static str),
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "bochs/image",
        started: Started::Image,
        says: &[
            "booted by multiboot2",
            "2 CPUs at",
            "no VM can run guests of its own here",
            "no VM can have a device here",
            "no plan was loaded",
        ],
        cpus: 2,
    },
    Kind {
        name: "vmx/exits",
        started: Started::Kernel("vmx-exits"),
        says: &["ok vmx-exits: VMXON", "ok vmx-exits: timer 0: TimeUp"],
        cpus: 1,
    },
    Kind {
        name: "vmx/model",
        started: Started::Kernel("vmx-model"),
        says: &[
            "ok vmx-model: long mode: what is built is entered",
            "ok vmx-model: long mode: of ",
            "ok vmx-model: protected mode: of ",
            "ok vmx-model: real mode: of ",
        ],
        cpus: 1,
    },
];

impl Kind {
    /// What it is called.
    pub fn name(self) -> &'static str {
        self.name
    }
}

/// Those whose name has `only` in it, or all; a quick test has none.
pub fn chosen(quick: bool, only: Option<&str>) -> Vec<Kind> {
    let is_chosen = |kind: &Kind| only.map_or(!quick, |text| named(kind.name, text));
    KINDS.into_iter().filter(is_chosen).collect()
}

/// Runs them, one after the other.
pub fn run(cx: &Context, gate: &Gate, chosen: &[Kind], tally: &Tally) -> Result<Summary> {
    if !chosen.is_empty() {
        prepare(cx, &[])?;
    }
    side_by_side(cx, gate, chosen, 1, |kind| tally.play(cx, kind.name, || one(cx, *kind)))
}

/// A Bochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// Debian's.
    Packaged,
    /// The same, with what keeps Linux from having interrupts that exit mended.
    Mended,
}

impl Made {
    fn folder(self, cx: &Context) -> PathBuf {
        cx.root.join(match self {
            Made::Packaged => "build/bochs",
            Made::Mended => "build/bochs-mended",
        })
    }
}

/// Makes Bochs, at the first call; and the mended one, if a case has it.
pub fn prepare(cx: &Context, cases: &[Case]) -> Result<()> {
    needs::grub(cx)?;
    recipe::make(&cx.root.join("cli/bochs/build"), &Made::Packaged.folder(cx), "Bochs")?;
    if cases.iter().any(|case| made(case) == Made::Mended) {
        let mended = Made::Mended.folder(cx);
        recipe::make(&cx.root.join("cli/bochs/mended"), &mended, "mended Bochs")?;
    }
    Ok(())
}

fn made(case: &Case) -> Made {
    match case.machine {
        Special::BochsMended(_) => Made::Mended,
        _ => Made::Packaged,
    }
}

/// Bochs' machine of this case, with this hypervisor and this boot image on its CD.
pub fn booting(
    hypervisor: &Path,
    image: &[u8],
    case: &Case,
    directory: &Path,
    cx: &Context,
) -> Result<Command> {
    fs::write(directory.join(CD), bootable::iso_of(hypervisor, cx, Some(image))?)?;
    let cpus = case.machine.bochs().context("the case isn't for Bochs")?;
    let memory = if case.has_linux() { LINUX_MEMORY } else { MEMORY };
    command(made(case), cpus, memory, directory, cx)
}

/// Bochs with the CD of this folder.
fn command(made: Made, cpus: u32, memory: u32, directory: &Path, cx: &Context) -> Result<Command> {
    let file = directory.join("bochsrc");
    fs::write(&file, machine(made, directory, cpus, memory))?;
    let mut command = Command::new(made.folder(cx).join("bochs"));
    command.arg("-q").arg("-f").arg(file);
    Ok(command)
}

/// Has a case's host told all, as far as its silence shows?
pub fn is_over(case: &Case, report: &Report) -> bool {
    let mut vms = report.vms.iter().zip(&case.guests);
    let ended =
        !report.vms.is_empty() && vms.all(|(vm, guest)| vm.end.is_some() || guest.is_endless());
    case.machine.bochs().is_some() && (ended || report.refused.is_some())
}

/// How such a run ended: as it would have where the host can say so.
pub fn ended(case: &Case, report: &Report, ended: Ended) -> Ended {
    let code = if report.refused.is_some() { exit::REFUSED } else { exit::DONE };
    match (case.machine.bochs(), ended) {
        (Some(_), Ended::Stopped) if is_over(case, report) => {
            Ended::Exited { status: (code << 1 | 1) as i32, message: String::new() }
        }
        (_, ended) => ended,
    }
}

fn one(cx: &Context, kind: Kind) -> Result<String> {
    let folder = tempfile::tempdir().context("no directory for temporary files")?;
    let framing = match kind.started {
        Started::Image => {
            fs::write(folder.path().join(CD), bootable::iso(cx, None)?)?;
            Framing::Frames
        }
        Started::Kernel(test) => {
            kernel(cx, test, folder.path())?;
            Framing::Raw
        }
    };
    let command = command(Made::Packaged, kind.cpus, MEMORY, folder.path(), cx)?;
    let setup = Setup { command, framing, timeout: Some(PATIENCE), typed: None };
    let mut said = String::new();
    let end = kind.says.last().copied().unwrap_or_default();
    let ended = session::run(setup, cx, |seen| {
        match seen {
            Seen::Said(Piece::Console { bytes, .. }) => {
                said.push_str(&String::from_utf8_lossy(bytes));
            }
            Seen::Said(Piece::Log(line)) => {
                said.push_str(&line);
                said.push('\n');
            }
            _ => {}
        }
        // A kernel ends Bochs by itself; the image stands still when it has said all.
        let over = framing == Framing::Frames && said.contains(end);
        Ok(if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if ended == Ended::TimedOut {
        bail!("Bochs didn't end; the console's end: {}", tail(&said));
    }
    // Bochs 3.0 was seen to fall over itself when it ends, which is no matter of the kernel's.
    let told = judge(kind, &said).with_context(|| format!("Bochs ended so: {ended:?}"))?;
    let fell = matches!(ended, Ended::Killed { .. });
    Ok(if fell { format!("{told}; Bochs itself then ended so: {ended:?}") } else { told })
}

/// A CD from which GRUB starts the test kernel.
fn kernel(cx: &Context, test: &str, folder: &Path) -> Result<()> {
    let tree = folder.join("tree");
    let boot = tree.join("boot");
    fs::create_dir_all(boot.join("grub"))?;
    fs::copy(cx.build_bare_metal("kernels")?, boot.join("kernel")).context("the test kernel")?;
    // Bochs' port has bytes of five bits until somebody uses it, which the kernel leaves to others.
    let port = "serial --unit=0 --speed=115200\nterminal_output serial";
    let menu = format!("{port}\nmultiboot /boot/kernel test={test}\nboot\n");
    fs::write(boot.join("grub/grub.cfg"), menu)?;
    let mut grub = Command::new("grub-mkrescue");
    grub.args(["--fonts=", "--locales=", "--themes=", "-o"]).arg(folder.join(CD)).arg(&tree);
    helper::run(&mut grub, "the test kernel's CD", cx)
}

/// Its description. The serial port's bytes are what the program itself says; time is a count of
/// instructions, and starts at the same moment in each run.
fn machine(made: Made, folder: &Path, cpus: u32, memory: u32) -> String {
    let display = match made {
        Made::Packaged => "term",
        Made::Mended => "nogui",
    };
    let path = |name: &str| folder.join(name).display().to_string();
    format!(
        "cpu: model=arrow_lake, count={cpus}, ips=50000000\n\
         memory: guest={memory}, host={memory}\n\
         romimage: file=$BXSHARE/BIOS-bochs-latest\n\
         vgaromimage: file=$BXSHARE/VGABIOS-lgpl-latest\n\
         ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14\n\
         ata0-master: type=cdrom, path=\"{}\", status=inserted\n\
         boot: cdrom\n\
         com1: enabled=1, mode=file, dev=/dev/fd/3\n\
         display_library: {display}\n\
         clock: sync=none, time0=1000000000\n\
         log: \"{}\"\n\
         panic: action=fatal\n\
         error: action=ignore\n\
         info: action=ignore\n",
        path(CD),
        path("log")
    )
}

/// What is to be told of what was said.
fn judge(kind: Kind, said: &str) -> Result<String> {
    says(said, kind.says)?;
    if let Some(failed) = said.lines().find(|line| line.starts_with("FAIL")) {
        bail!("{failed}; the console's end: {}", tail(said));
    }
    Ok(match kind.started {
        Started::Image => "it tells what the machine has and lacks".to_owned(),
        Started::Kernel(_) => {
            let counts = said.lines().filter(|line| line.contains(" structures "));
            let counts: Vec<_> =
                counts.filter_map(|line| line.split_once(": ")).map(|(_, told)| told).collect();
            match counts.as_slice() {
                [] => format!("{} checks", said.lines().filter(|l| l.starts_with("ok ")).count()),
                counts => counts.join("\n      "),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_all_right_passes() {
        for kind in KINDS {
            let good = kind.says.join("\n");
            judge(kind, &good).unwrap();
            assert!(judge(kind, &format!("{good}\nFAIL it")).is_err());
            for text in kind.says {
                assert!(judge(kind, &good.replacen(text, "", 1)).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn counts_are_told() {
        let model = KINDS[2];
        let said = format!("{}9 structures 4 were entered", model.says.join("\n"));
        assert_eq!(judge(model, &said).unwrap(), "real mode: of 9 structures 4 were entered");
        assert_eq!(judge(KINDS[1], &KINDS[1].says.join("\n")).unwrap(), "2 checks");
    }
}
