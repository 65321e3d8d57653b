//! Checks the counting plugin with a machine whose every instruction is known
//! (`bench/plugin/check.S`): port and memory-mapped I/O in host mode, then a guest
//! of a hundred exits.
//!
//! Guarantees: the plugin counts these to the instruction, or this fails with what
//! it counted.

use super::{
    guest::Kit,
    lines::{self, Edge},
};
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    machine::Machine,
    session::{self, Framing, Setup},
};
use std::{ops::ControlFlow, process::Command, time::Duration};

const PATIENCE: Duration = Duration::from_secs(60);
const MEMORY: u64 = 64 << 20;
/// What the program writes to the debug-exit port at its end.
const ENDED: u32 = 0x10;

/// Rounds of the loop with which the plugin slows the program down.
const SLOWED: u64 = 20;

/// What lies between two edges.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    guest: u64,
    host: u64,
    vmruns: u64,
    host_entries: u64,
    /// Of whoever is below, of its guest, and of that one's.
    levels: [u64; 3],
}

/// Before the first VMRUN all instructions count as the guest's: see the comments in check.S.
const EXPECTED: [Counted; 2] = [
    Counted { guest: 6_003, host: 0, vmruns: 0, host_entries: 0, levels: [6_003, 0, 0] },
    Counted {
        guest: 200_402,
        host: 600,
        vmruns: 100,
        host_entries: 100,
        levels: [600, 200_402, 0],
    },
];

/// Builds the program, runs it under the plugin and compares.
pub fn run(cx: &Context, kit: &Kit) -> Result<()> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let (program, counts) = (scratch.path().join("check"), scratch.path().join("counts"));
    let source = cx.root.join("bench/plugin/check.S");
    let gcc = Command::new("gcc")
        .args([
            "-m32",
            "-nostdlib",
            "-static",
            "-no-pie",
            "-Wl,-Ttext=0x100000,--build-id=none",
            "-o",
        ])
        .args([&program, &source])
        .output()
        .context("gcc can't be started; it assembles the check of the counting plugin")?;
    if !gcc.status.success() {
        let said = String::from_utf8_lossy(&gcc.stderr).into_owned();
        bail!("{} can't be assembled: {}", source.display(), said.lines().last().unwrap_or(""));
    }
    let mut machine = Machine::bare(&program, None, "", MEMORY, Vec::new());
    machine.iommu = Some(kit.iommu);
    // Slowed, which must not change what is counted.
    machine.plugin = Some(kit.plugin_slowing(&counts, &[SLOWED]));
    let command = machine.command(cx)?;
    let setup = Setup { command, framing: Framing::Raw, timeout: Some(PATIENCE), typed: None };
    let ended = session::run(setup, cx, |_| Ok(ControlFlow::Continue(())))?;
    if ended.code() != Some(ENDED) {
        bail!("the check of the counting plugin didn't come to its end: {ended:?}");
    }
    let text = std::fs::read_to_string(&counts).context("the counting plugin left no file")?;
    let edges = lines::plugin(&text)?.edges;
    let counted: Vec<_> = edges.chunks_exact(2).map(|pair| between(&pair[0], &pair[1])).collect();
    if counted != EXPECTED {
        bail!("the plugin counted {counted:?} where the program executes {EXPECTED:?}");
    }
    Ok(())
}

fn between(open: &Edge, close: &Edge) -> Counted {
    Counted {
        guest: close.guest.wrapping_sub(open.guest),
        host: close.host.wrapping_sub(open.host),
        vmruns: close.vmruns.wrapping_sub(open.vmruns),
        host_entries: close.host_entries.wrapping_sub(open.host_entries),
        levels: [0, 1, 2].map(|n| close.levels[n].wrapping_sub(open.levels[n])),
    }
}
