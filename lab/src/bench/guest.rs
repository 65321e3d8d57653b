//! Makes what a measurement needs besides the hypervisor: the measuring guests, by
//! their recipes in `guests/linux/`, and the counting plugin, by the C compiler.

use super::workload::Workload;
use anyhow::{Context as _, Result, anyhow, bail};
use exitless::context::Context;
use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The parts of a measurement.
pub struct Kit {
    /// With fio, for the disk.
    pub disk: Option<Guest>,
    /// With the network's programs and their peers.
    pub network: Option<Guest>,
    /// The plugin for the emulator.
    pub plugin: PathBuf,
}

/// A measuring guest.
pub struct Guest {
    /// Debian's kernel.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initrd: PathBuf,
    /// Where the programs for this side are: the load generators.
    pub host: PathBuf,
    /// What it is made of.
    pub versions: String,
}

impl Guest {
    /// By the recipe of this name; downloads are kept in `build/`.
    pub fn make(cx: &Context, name: &str) -> Result<Guest> {
        let out = cx.root.join(format!("build/guest-{name}"));
        recipe(&cx.root.join(format!("guests/linux/{name}/build")), &out)?;
        let versions = fs::read_to_string(out.join("versions")).unwrap_or_default();
        let versions = versions.lines().collect::<Vec<_>>().join(", ");
        let (kernel, initrd) = (out.join("vmlinuz"), out.join("initrd.img"));
        Ok(Guest { kernel, initrd, host: out.join("host"), versions })
    }
}

impl Kit {
    /// Makes what these workloads need and isn't there yet.
    pub fn make(cx: &Context, workloads: impl Iterator<Item = Workload> + Clone) -> Result<Kit> {
        let disk = workloads.clone().any(|w| !w.is_network());
        let network = workloads.clone().any(Workload::is_network);
        let disk = disk.then(|| Guest::make(cx, "disk")).transpose()?;
        let network = network.then(|| Guest::make(cx, "workloads")).transpose()?;
        let plugin = plugin_of(cx)?;
        Ok(Kit { disk, network, plugin })
    }

    /// The guest that runs a workload.
    pub fn guest(&self, workload: Workload) -> Result<&Guest> {
        let guest = if workload.is_network() { &self.network } else { &self.disk };
        guest.as_ref().ok_or_else(|| anyhow!("the guest for {} wasn't made", workload.short()))
    }

    /// What the guests are made of.
    pub fn versions(&self) -> Vec<&str> {
        [&self.disk, &self.network].into_iter().flatten().map(|g| g.versions.as_str()).collect()
    }

    /// The emulator's argument that loads the plugin and has it write to `counts`.
    pub fn plugin_writing(&self, counts: &Path) -> OsString {
        writing(&self.plugin, counts)
    }

    /// The same, and the CPU that opens windows is slowed by so many rounds in each pair of them.
    pub fn plugin_slowing(&self, counts: &Path, rounds: &[u64]) -> OsString {
        let mut argument = self.plugin_writing(counts);
        let rounds: Vec<_> = rounds.iter().map(u64::to_string).collect();
        argument.push(",slow=");
        argument.push(rounds.join(":"));
        argument
    }
}

/// Makes the counting plugin alone, for a machine that writes its counts to `counts`.
pub fn counting_plugin(cx: &Context, counts: &Path) -> Result<OsString> {
    Ok(writing(&plugin_of(cx)?, counts))
}

fn plugin_of(cx: &Context) -> Result<PathBuf> {
    plugin(&cx.root.join("bench/plugin/exitless_plugin.c"), &cx.target.join("exitless"))
}

fn writing(plugin: &Path, counts: &Path) -> OsString {
    let mut argument = plugin.to_owned().into_os_string();
    argument.push(",out=");
    argument.push(counts);
    argument
}

/// Runs a recipe and shows what it says.
pub fn recipe(script: &Path, out: &Path) -> Result<()> {
    let mut child = Command::new(script)
        .arg(out)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} can't be started", script.display()))?;
    if let Some(progress) = child.stdout.take() {
        for line in BufReader::new(progress).lines().map_while(Result::ok) {
            eprintln!("  guest: {}", line.trim_start_matches("==> "));
        }
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said)?;
    }
    if !child.wait()?.success() {
        let sentence = said.lines().last().unwrap_or("no reason was given");
        bail!("the measuring guest can't be made: {}", sentence.trim_start_matches("guest: "));
    }
    Ok(())
}

fn plugin(source: &Path, directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory)
        .with_context(|| format!("{} can't be made", directory.display()))?;
    let out = directory.join("exitless_plugin.so");
    // An emulator may have the old one mapped: never write into it, put the new one in its place.
    let new = tempfile::Builder::new().prefix("plugin").suffix(".so").tempfile_in(directory)?;
    let gcc = Command::new("gcc")
        .args(["-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o"])
        .args([new.path(), source])
        .output()
        .context("gcc can't be started; it compiles the counting plugin (package gcc)")?;
    if !gcc.status.success() {
        let said = String::from_utf8_lossy(&gcc.stderr).into_owned();
        let line = said.lines().find(|l| l.contains("error")).unwrap_or("gcc says nothing of use");
        bail!("the counting plugin can't be compiled: {line}");
    }
    new.persist(&out).with_context(|| format!("{} can't be written", out.display()))?;
    Ok(out)
}
