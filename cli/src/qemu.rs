//! Which QEMU runs the machine, and what it can do, by its own word.
//!
//! Guarantees: what is asked for by `EXITLESS_QEMU` is taken or refused, and nothing else is run
//! in its place; without it, a machine that the installed QEMU can't emulate well enough is run by
//! a newer one, which is fetched once and kept below the checkout.

use crate::recipe;
use anyhow::{Context as _, Result, anyhow, bail};
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The oldest QEMU whose SVM, x2APIC and VT-d emulation this is tested with.
const MIN: Version = (10, 0);
/// The first one with the interface for plugins that [`Qemu::plugin_interface`] calls 7.
const NEW_PLUGINS: Version = (11, 0);
/// What QEMU's `amd-iommu` must be told, each a property of its: to remap interrupts, by x2APIC
/// ids, and to translate every device's DMA. The last is missing before 10.2, where its log of
/// events doesn't work either.
const AMD_VI: [&str; 3] = ["intremap", "xtsup", "dma-remap"];
/// The variable that names QEMU.
const NAMED: &str = "EXITLESS_QEMU";

/// Major and minor.
type Version = (u32, u32);

/// The IOMMU of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Iommu {
    /// AMD's; where the installed QEMU can't emulate it, a newer one is fetched
    #[default]
    #[value(name = "amd-vi")]
    AmdVi,
    /// Intel's, which QEMU gives to CPUs of AMD, too
    #[value(name = "vt-d")]
    VtD,
}

impl Iommu {
    /// What QEMU's `-device` takes for one that remaps interrupts, or doesn't as hosts need it.
    pub fn device(self, remaps: bool) -> String {
        match (self, remaps) {
            (Iommu::VtD, true) => "intel-iommu,intremap=on,eim=on".to_owned(),
            (Iommu::VtD, false) => "intel-iommu,intremap=off".to_owned(),
            // Not to x2APIC ids.
            (Iommu::AmdVi, false) => "amd-iommu,intremap=on,dma-remap=on".to_owned(),
            (Iommu::AmdVi, true) => {
                AMD_VI.iter().fold("amd-iommu".to_owned(), |all, p| all + "," + p + "=on")
            }
        }
    }
}

/// A QEMU that can be started.
#[derive(Debug, PartialEq, Eq)]
pub struct Qemu {
    program: PathBuf,
    version: Version,
}

impl Qemu {
    /// The one for machines with this IOMMU, or with none. `root`: the checkout.
    pub fn find(root: &Path, iommu: Option<Iommu>) -> Result<Qemu> {
        let named = env::var_os(NAMED);
        let program = named.clone().unwrap_or("qemu-system-x86_64".into());
        let own = Qemu::ask(program.into())?;
        if iommu != Some(Iommu::AmdVi) {
            return Ok(own);
        }
        let lacks = own.lacks()?;
        if lacks.is_empty() {
            return Ok(own);
        }
        if named.is_some() {
            bail!(
                "{NAMED} is QEMU {}, whose AMD-Vi isn't good enough: its amd-iommu has no {}; name one of 10.2 or newer, or none, and one is fetched",
                own.shown_version(),
                lacks.join(", ")
            );
        }
        let out = root.join("build/qemu");
        recipe::make(&root.join("cli/qemu/build"), &out, "QEMU")?;
        let fetched = Qemu::ask(out.join("qemu-system-x86_64"))?;
        let lacks = fetched.lacks()?;
        if !lacks.is_empty() {
            bail!(
                "the QEMU {} in {} can't emulate AMD-Vi: its amd-iommu has no {}; set EXITLESS_QEMU_SUITES to suites of Debian that have a newer one",
                fetched.shown_version(),
                out.display(),
                lacks.join(", ")
            );
        }
        Ok(fetched)
    }

    /// Asks a program what it is.
    fn ask(program: PathBuf) -> Result<Qemu> {
        let name = program.display();
        let version = said(&program, &["--version"]).with_context(|| {
            format!("QEMU can't be started as `{name}`; install qemu-system-x86 10.0 or newer")
        })?;
        let first = version.lines().next().unwrap_or("nothing");
        let version = version_of(first).ok_or_else(|| {
            anyhow!("`{name} --version` says \"{first}\", which names no QEMU version")
        })?;
        if version < MIN {
            bail!(
                "`{name}` is QEMU {}.{}, which is too old; version {}.{} or newer is needed",
                version.0,
                version.1,
                MIN.0,
                MIN.1
            );
        }
        Ok(Qemu { program, version })
    }

    /// Of [`AMD_VI`], what it lacks.
    pub fn lacks(&self) -> Result<Vec<&'static str>> {
        let help = said(&self.program, &["-device", "amd-iommu,help"]).with_context(|| {
            format!("`{}` can't be asked for its IOMMUs", self.program.display())
        })?;
        Ok(lacking(&help))
    }

    /// What to start.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Which of the interfaces for plugins it has that `bench/plugin` can be built for.
    pub fn plugin_interface(&self) -> u32 {
        if self.version >= NEW_PLUGINS { 7 } else { 4 }
    }

    fn shown_version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }
}

/// What a program writes.
fn said(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Major and minor of "QEMU emulator version 10.0.2 (Debian …)".
fn version_of(line: &str) -> Option<Version> {
    let mut parts = line.split_once(" version ")?.1.split(['.', ' ']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Which properties of [`AMD_VI`] a list of properties doesn't have.
fn lacking(help: &str) -> Vec<&'static str> {
    let has = |property: &str| {
        let names = help.lines().filter_map(|line| line.trim().split_once('='));
        names.into_iter().any(|(name, _)| name == property)
    };
    AMD_VI.into_iter().filter(|property| !has(property)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_qemu_prints_them() {
        let debian = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)";
        assert_eq!(version_of(debian), Some((10, 0)));
        assert_eq!(version_of("QEMU emulator version 7.2.17"), Some((7, 2)));
        assert_eq!(version_of("bash: not found"), None);
        assert!((9, 2) < MIN && (10, 0) >= MIN && (11, 1) >= MIN);
    }

    #[test]
    fn what_an_iommu_lacks_is_read_from_its_properties() {
        let old = "amd-iommu options:\n  device-iotlb=<bool>    - on/off (default: off)\n  \
            intremap=<OnOffAuto>   - on/off/auto (default: auto)\n  pt=<bool>  - on/off\n  \
            xtsup=<bool>           - on/off (default: off)\n";
        assert_eq!(lacking(old), ["dma-remap"]);
        let new = old.replace("pt=", "dma-remap=");
        assert_eq!(lacking(&new), [""; 0]);
        // Such as the sentence of a QEMU that has no such device.
        assert_eq!(lacking("Device 'amd-iommu' not found"), AMD_VI);
        assert_eq!(lacking("dma-remap-x=1\nnodma-remap=1\nintremap=\nxtsup=\n"), ["dma-remap"]);
    }

    #[test]
    fn an_iommu_is_told_to_remap() {
        assert_eq!(Iommu::VtD.device(true), "intel-iommu,intremap=on,eim=on");
        assert_eq!(Iommu::default().device(true), "amd-iommu,intremap=on,xtsup=on,dma-remap=on");
        assert!(!Iommu::AmdVi.device(false).contains("xtsup"));
        assert!(Iommu::VtD.device(false).ends_with("intremap=off"));
    }

    #[test]
    fn a_plugin_is_built_for_the_interface_at_hand() {
        let of = |version| Qemu { program: "q".into(), version }.plugin_interface();
        assert_eq!([of((10, 0)), of((10, 2)), of((11, 0)), of((11, 1))], [4, 4, 7, 7]);
    }

    #[test]
    fn a_program_that_is_no_qemu_is_refused() {
        let refused = |name: &str| Qemu::ask(name.into()).unwrap_err().to_string();
        assert!(refused("/nonexistent/qemu").contains("QEMU can't be started as `/nonexistent"));
        assert!(refused("true").contains("`true --version` says"), "{}", refused("true"));
    }
}
