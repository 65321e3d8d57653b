//! Makes what a measurement needs besides the hypervisor: the measuring guests, by
//! their recipes in `guests/linux/`, and the counting plugin, by the C compiler.

use super::workload::Workload;
use anyhow::{Context as _, Result, anyhow, bail};
use exitless::{context::Context, qemu::Iommu, recipe};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The parts of a measurement.
pub struct Kit {
    /// With fio, for the disk.
    pub disk: Option<Guest>,
    /// With the network's programs and their peers.
    pub network: Option<Guest>,
    /// The machine's IOMMU, by which the emulator is chosen.
    pub iommu: Iommu,
    /// The plugin for that emulator.
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
    /// An archive with netperf for other guests, where it has that.
    pub netperf: PathBuf,
    /// What it is made of.
    pub versions: String,
}

impl Guest {
    /// By the recipe of this name; downloads are kept in `build/`.
    pub fn make(cx: &Context, name: &str) -> Result<Guest> {
        let out = cx.root.join(format!("build/guest-{name}"));
        recipe::make(&cx.root.join(format!("guests/linux/{name}/build")), &out, "guest")?;
        let versions = fs::read_to_string(out.join("versions")).unwrap_or_default();
        let versions = versions.lines().collect::<Vec<_>>().join(", ");
        let (kernel, initrd) = (out.join("vmlinuz"), out.join("initrd.img"));
        let (host, netperf) = (out.join("host"), out.join("netperf.img"));
        Ok(Guest { kernel, initrd, host, netperf, versions })
    }
}

impl Kit {
    /// Makes what these workloads need and isn't there yet.
    pub fn make(
        cx: &Context,
        iommu: Iommu,
        workloads: impl Iterator<Item = Workload> + Clone,
    ) -> Result<Kit> {
        let disk = workloads.clone().any(|w| !w.is_network());
        let network = workloads.clone().any(Workload::is_network);
        let disk = disk.then(|| Guest::make(cx, "disk")).transpose()?;
        let network = network.then(|| Guest::make(cx, "workloads")).transpose()?;
        let plugin = plugin_for(cx, iommu)?;
        Ok(Kit { disk, network, iommu, plugin })
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
pub fn counting_plugin(cx: &Context, iommu: Iommu, counts: &Path) -> Result<OsString> {
    Ok(writing(&plugin_for(cx, iommu)?, counts))
}

fn plugin_for(cx: &Context, iommu: Iommu) -> Result<PathBuf> {
    let source = cx.root.join("bench/plugin/exitless_plugin.c");
    plugin(&source, &cx.target.join("exitless"), cx.qemu(Some(iommu))?.plugin_interface())
}

fn writing(plugin: &Path, counts: &Path) -> OsString {
    let mut argument = plugin.to_owned().into_os_string();
    argument.push(",out=");
    argument.push(counts);
    argument
}

/// Compiles it for this interface of the emulator.
fn plugin(source: &Path, directory: &Path, interface: u32) -> Result<PathBuf> {
    fs::create_dir_all(directory)
        .with_context(|| format!("{} can't be made", directory.display()))?;
    let out = directory.join(format!("exitless_plugin-{interface}.so"));
    // An emulator may have the old one mapped: never write into it, put the new one in its place.
    let new = tempfile::Builder::new().prefix("plugin").suffix(".so").tempfile_in(directory)?;
    let gcc = Command::new("gcc")
        .args(["-O2", "-shared", "-fPIC", "-fvisibility=hidden"])
        .arg(format!("-DPLUGIN_INTERFACE={interface}"))
        .arg("-o")
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
