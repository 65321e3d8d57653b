//! From `vm.toml` or the command line to a plan whose kernels are in memory and
//! look as if they could start.

use anyhow::{Context, Result, bail};
use loader::{Format, GuestMachine, MemoryRegion, RegionKind, Subject};
use plan::{Plan, Size, Vm};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// A kernel or initrd, read.
#[derive(Debug)]
pub struct File {
    /// Where it came from.
    pub path: PathBuf,
    /// What is in it.
    pub bytes: Vec<u8>,
}

impl AsRef<[u8]> for File {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads `vm.toml` and the files it names, which are looked for beside it.
pub fn plan(file: &Path) -> Result<Plan<File>> {
    let name = file.display().to_string();
    let text = String::from_utf8(read(file)?)
        .map_err(|e| anyhow::anyhow!("{name}: it is no text: {}", e.utf8_error()))?;
    let beside = file.parent().unwrap_or(Path::new(""));
    let plan = plan::file::parse(&name, &text)?;
    files(plan, beside).with_context(|| name)
}

/// Reads the files of a plan; relative paths start at `base`. Checks that each kernel
/// is one that can be started in its VM's memory.
pub fn files(plan: Plan<String>, base: &Path) -> Result<Plan<File>> {
    plan.check()?;
    let plan = plan.try_map(|vm, key, path| {
        let path = base.join(path);
        let bytes = read(&path).with_context(|| format!("[vm.{vm}] {key}"))?;
        if bytes.is_empty() {
            bail!("[vm.{vm}] {key}: {} is empty", path.display());
        }
        Ok(File { path, bytes })
    })?;
    for vm in &plan.vms {
        format(vm).map_err(|error| {
            let (name, kernel) = (&vm.name, vm.kernel.path.display());
            let context = match (error.subject(), &vm.initrd) {
                (Subject::Initrd, Some(initrd)) => {
                    format!("[vm.{name}] initrd: {} can't be loaded", initrd.path.display())
                }
                (Subject::CommandLine, _) => format!("[vm.{name}] cmdline"),
                _ => format!("[vm.{name}] kernel: {kernel} can't be started"),
            };
            anyhow::Error::from(error).context(context)
        })?;
    }
    Ok(plan)
}

/// The format of a VM's kernel, if it can be started in the VM's memory.
pub fn format(vm: &Vm<File>) -> Result<Format, loader::Error> {
    // The part of the guest's memory map that kernels are loaded into (docs/design.md);
    // the hypervisor asks again with the map the guest gets.
    let regions =
        [(0, vm.memory.min(2 << 30), RegionKind::Ram), (0x9_FC00, 0x6_0400, RegionKind::Reserved)]
            .map(|(start, len, kind)| MemoryRegion { start, len, kind });
    let machine = GuestMachine { regions: &regions, rsdp: 0xE_0000 };
    let initrd = vm.initrd.as_ref().map(|i| i.bytes.len() as u64);
    Ok(loader::load(&vm.kernel.bytes, initrd, &vm.cmdline, &machine)?.format)
}

/// The name people know a kernel's format by.
pub fn format_name(format: Format) -> &'static str {
    match format {
        Format::Linux => "bzImage",
        Format::Multiboot => "multiboot",
        Format::Pvh => "ELF with PVH note",
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let name = path.display();
    let metadata = fs::metadata(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => anyhow::anyhow!("{name} doesn't exist"),
        _ => anyhow::anyhow!("{name} can't be read: {e}"),
    })?;
    if !metadata.is_file() {
        bail!("{name} is no file");
    }
    if metadata.len() > plan::MAX_MEMORY {
        bail!("{name} has {}, more than a VM can have memory", Size(metadata.len()));
    }
    fs::read(path).map_err(|e| anyhow::anyhow!("{name} can't be read: {e}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tempfile::{TempDir, tempdir};

    /// 32 bytes that a loader takes for a kernel: a multiboot 1 header with address
    /// fields, loaded at 1 MiB.
    pub fn tiny_kernel() -> Vec<u8> {
        let (magic, flags) = (0x1BAD_B002u32, 0x1_0000u32);
        let sum = 0u32.wrapping_sub(magic).wrapping_sub(flags);
        let fields = [magic, flags, sum, 0x10_0000, 0x10_0000, 0, 0, 0x10_0010];
        fields.map(u32::to_le_bytes).concat()
    }

    /// A directory with a `vm.toml` and a multiboot kernel `k`.
    fn directory(text: &str) -> TempDir {
        let dir = tempdir().unwrap();
        fs::write(dir.path().join("vm.toml"), text).unwrap();
        fs::write(dir.path().join("k"), tiny_kernel()).unwrap();
        fs::write(dir.path().join("empty"), "").unwrap();
        fs::write(dir.path().join("junk"), [0; 40_000]).unwrap();
        dir
    }

    fn refusal(text: &str) -> String {
        let dir = directory(text);
        let error = plan(&dir.path().join("vm.toml")).expect_err(text);
        format!("{error:#}").replace(&format!("{}/", dir.path().display()), "")
    }

    #[test]
    fn files_are_found_beside_the_plan() {
        let dir = directory("[vm.a]\nkernel='k'\ninitrd='junk'\n");
        let plan = plan(&dir.path().join("vm.toml")).unwrap();
        assert_eq!(format(&plan.vms[0]).unwrap(), Format::Multiboot);
        assert_eq!(plan.vms[0].initrd.as_ref().unwrap().bytes.len(), 40_000);
    }

    #[test]
    fn files_that_serve_no_one_are_refused_by_name() {
        assert_eq!(refusal("[vm.a]\nkernel='x'\n"), "vm.toml: [vm.a] kernel: x doesn't exist");
        assert_eq!(refusal("[vm.a]\nkernel='.'\n"), "vm.toml: [vm.a] kernel: . is no file");
        assert_eq!(refusal("[vm.a]\nkernel='empty'\n"), "vm.toml: [vm.a] kernel: empty is empty");
        assert_eq!(
            refusal("[vm.a]\nkernel='k'\ninitrd='empty'\n"),
            "vm.toml: [vm.a] initrd: empty is empty"
        );
        assert!(
            refusal("[vm.a]\nkernel='junk'\n")
                .starts_with("vm.toml: [vm.a] kernel: junk can't be started: ")
        );
        // A kernel that fits without them isn't to blame.
        let dir = directory("[vm.a]\nkernel='k'\ninitrd='large'\nmemory='64M'\n");
        fs::File::create(dir.path().join("large")).unwrap().set_len(80 << 20).unwrap();
        let error = plan(&dir.path().join("vm.toml")).unwrap_err();
        let error = format!("{error:#}").replace(&format!("{}/", dir.path().display()), "");
        assert!(
            error.starts_with(
                "vm.toml: [vm.a] initrd: large can't be loaded: the initrd of 83886080 bytes fits \
                 nowhere in RAM"
            ),
            "{error}"
        );
        assert!(
            refusal("[vm.a]\nkernel=3\n").starts_with("vm.toml:2: [vm.a] kernel: this is a number")
        );
    }

    #[test]
    fn a_plan_that_is_no_file_is_refused_by_name() {
        let error = plan(Path::new("nowhere/vm.toml")).unwrap_err();
        assert_eq!(error.to_string(), "nowhere/vm.toml doesn't exist");
    }
}
