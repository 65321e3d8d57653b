//! From `vm.toml` or the command line to a plan whose kernels are in memory and
//! look as if they could start.

use crate::{
    least::{self, LOW},
    mistaken::{self, HEAD, Place},
};
use anyhow::{Context, Result, anyhow, bail};
use loader::{Format, GuestMachine, Subject};
use plan::{Disk, Plan, Size, Vm};
use std::{
    fmt::Display,
    fs::{self, Metadata},
    io::ErrorKind,
    path::{Path, PathBuf},
    string::FromUtf8Error,
};

/// A kernel, an initrd or a disk's content, read.
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

/// Between one thing that is wrong and the next, as the first one is said.
const NEXT_LINE: &str = "\nexitless: ";
/// More than any plan has.
const MAX_PLAN: u64 = 1 << 20;

/// Reads `vm.toml` and the files it names, which are looked for beside it.
pub fn plan(file: &Path) -> Result<Plan<File>> {
    let name = file.display().to_string();
    let head = mistaken::head(file);
    if let Some(said) = mistaken::told(&name, &head, Place::Plan) {
        bail!("{name} {said}");
    }
    if look(&head) != Err(loader::Error::UnknownFormat) {
        bail!("{name} is a kernel and no plan; `--kernel {name}` runs it");
    }
    let text = String::from_utf8(read(file, MAX_PLAN, "any plan has")?)
        .map_err(|error| no_text(&name, &error))?;
    let beside = file.parent().unwrap_or(Path::new(""));
    let plan = plan::file::parse_all(&name, &text).map_err(together)?;
    images_fit(&plan, beside, &name, &text)?;
    files_at(plan, beside, &|place, key| match plan::file::line_of(&text, place, key) {
        Some(line) => format!("{name}:{line}: {place} {key}"),
        None => format!("{name}: {place} {key}"),
    })
}

/// What of it isn't text: the line, and the first byte of it.
fn no_text(name: &str, error: &FromUtf8Error) -> anyhow::Error {
    let at = error.utf8_error().valid_up_to();
    let (text, rest) = error.as_bytes().split_at(at);
    let line = text.iter().filter(|byte| **byte == b'\n').count() + 1;
    let byte = rest.first().copied().unwrap_or(0);
    anyhow!("{name}:{line}: it can't be a plan: the byte {byte:#04x} is no text (UTF-8)")
}

/// All that is wrong, in a line each.
fn together(wrong: impl IntoIterator<Item: Display>) -> anyhow::Error {
    let lines: Vec<_> = wrong.into_iter().map(|one| format!("{one:#}")).collect();
    anyhow::Error::msg(lines.join(NEXT_LINE))
}

/// Says which key of which table of what file something is wrong with.
type At<'a> = &'a dyn Fn(&plan::Place, &str) -> String;

/// Whether each disk has room for its image, as far as there is one: with the line that names it.
fn images_fit(plan: &Plan<String>, beside: &Path, name: &str, text: &str) -> Result<()> {
    for (vm, index, disk) in disks(plan) {
        let path = disk.image.as_ref().map(|image| beside.join(image));
        let Some((path, found)) = path.and_then(|path| file(&path).ok().map(|f| (path, f))) else {
            // What isn't there is told by who reads it.
            continue;
        };
        if found.len() > disk.size {
            let place = plan::Place::Disk { vm: vm.name.clone(), index };
            let line = plan::file::line_of(text, &place, "image").unwrap_or(1);
            let long = too_long(&path, found.len(), disk.size);
            bail!("{name}:{line}: {place} image: {long}");
        }
    }
    Ok(())
}

/// Both sizes in the largest unit that divides both, to be compared at sight.
fn too_long(image: &Path, bytes: u64, disk: u64) -> String {
    let enough = Size(bytes.next_multiple_of(1 << 10));
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K"), (0, " bytes")];
    let divides = |shift: u32| (bytes | disk).trailing_zeros() >= shift;
    let (shift, unit) = units.into_iter().find(|(shift, _)| divides(*shift)).unwrap_or((0, ""));
    let [bytes, disk] = [bytes, disk].map(|size| format!("{}{unit}", size >> shift));
    format!("`{}` has {bytes}, the disk only {disk}; give it size = \"{enough}\"", image.display())
}

/// The files that a plan was read from, each with words for what it is.
pub fn inputs(plan: &Plan<File>) -> Vec<(PathBuf, String)> {
    let mut inputs = Vec::new();
    for vm in &plan.vms {
        inputs.push((vm.kernel.path.clone(), format!("the kernel of [vm.{}]", vm.name)));
        if let Some(initrd) = &vm.initrd {
            inputs.push((initrd.path.clone(), format!("the initrd of [vm.{}]", vm.name)));
        }
    }
    for (vm, i, disk) in disks(plan) {
        if let Some(image) = &disk.image {
            inputs.push((image.path.clone(), format!("the image of [vm.{}] disk{i}", vm.name)));
        }
    }
    inputs
}

/// Every disk that a sidecore serves, with its VM and its number there.
fn disks<F>(plan: &Plan<F>) -> impl Iterator<Item = (&Vm<F>, usize, &Disk<F>)> {
    plan.vms.iter().flat_map(|vm| vm.disks.iter().enumerate().map(move |(i, d)| (vm, i, d)))
}

/// Reads the files of a plan; relative paths start at `base`. Checks that each kernel
/// is one that can be started in its VM's memory.
pub fn files(plan: Plan<String>, base: &Path) -> Result<Plan<File>> {
    files_at(plan, base, &|place, key| format!("{place} {key}"))
}

fn files_at(plan: Plan<String>, base: &Path, at: At) -> Result<Plan<File>> {
    let of_vm = |vm: &str, key: &str| at(&plan::Place::Vm(vm.to_owned()), key);
    plan.check()?;
    for vm in &plan.vms {
        long_initrd(vm, base, at)?;
    }
    let size = |vm: &Vm<String>| {
        let disk = vm.disks.iter().map(|disk| disk.size).max().unwrap_or(0);
        (vm.name.clone(), vm.memory, disk)
    };
    let sizes: Vec<_> = plan.vms.iter().map(size).collect();
    let mut wrong = Vec::new();
    let plan = plan.try_map(|vm, key, path| {
        let path = base.join(path);
        let (memory, disk) = sizes.iter().find(|s| s.0 == vm).map_or((0, 0), |s| (s.1, s.2));
        let (most, limit) = match key {
            "disk" => (disk, "any disk of its VM"),
            _ => (memory, "its VM's memory"),
        };
        let bytes = content(&path, key, most, limit).with_context(|| of_vm(vm, key));
        let bytes = bytes.unwrap_or_else(|error| {
            wrong.push(error);
            Vec::new()
        });
        anyhow::Ok(File { path, bytes })
    })?;
    if !wrong.is_empty() {
        return Err(together(wrong));
    }
    for (vm, i, disk) in disks(&plan) {
        if let Some(image) = &disk.image {
            let bytes = image.bytes.len() as u64;
            if bytes > disk.size {
                let long = too_long(&image.path, bytes, disk.size);
                let place = plan::Place::Disk { vm: vm.name.clone(), index: i };
                bail!("{}: {long}", at(&place, "image"));
            }
        }
    }
    for vm in &plan.vms {
        let format = format(vm).map_err(|error| {
            let initrd = vm.initrd.as_ref().map(|i| i.bytes.len() as u64);
            if let Some(error) = too_little(vm, &vm.kernel.bytes, initrd, at) {
                return error;
            }
            let kernel = vm.kernel.path.display();
            let context = match (error.subject(), &vm.initrd) {
                (Subject::Initrd, Some(initrd)) => {
                    let at = of_vm(&vm.name, "initrd");
                    format!("{at}: {} can't be loaded", initrd.path.display())
                }
                (Subject::CommandLine, _) => of_vm(&vm.name, "cmdline"),
                _ => format!("{}: {kernel} can't be started", of_vm(&vm.name, "kernel")),
            };
            anyhow::Error::from(error).context(context)
        })?;
        if let (Format::Linux, Some(initrd)) = (format, &vm.initrd) {
            let path = initrd.path.display().to_string();
            let head = &initrd.bytes[..initrd.bytes.len().min(HEAD)];
            if let Some(said) = mistaken::told(&path, head, Place::Initrd) {
                bail!("{}: {path} can't be used: it {said}", of_vm(&vm.name, "initrd"));
            }
        }
    }
    Ok(plan)
}

/// Fails where an initrd has more bytes than its VM has memory, and the VM may have more. It isn't
/// read, and what else is wrong with it or its kernel is told by who reads them.
fn long_initrd(vm: &Vm<String>, base: &Path, at: At) -> Result<()> {
    let size = vm.initrd.as_ref().and_then(|initrd| file(&base.join(initrd)).ok());
    let Some(size) = size.map(|f| f.len()).filter(|size| (vm.memory..LOW).contains(size)) else {
        return Ok(());
    };
    let kernel = content(&base.join(&vm.kernel), "kernel", vm.memory, "").unwrap_or_default();
    too_little(vm, &kernel, Some(size), at).map_or(Ok(()), Err)
}

/// What is wrong if a VM has too little memory for its kernel and an initrd of so many bytes.
fn too_little<F>(vm: &Vm<F>, kernel: &[u8], initrd: Option<u64>, at: At) -> Option<anyhow::Error> {
    let enough = least::least(kernel, initrd, &vm.cmdline, vm.memory)?;
    let at = at(&plan::Place::Vm(vm.name.clone()), "memory");
    let (what, need) = match initrd {
        Some(_) => ("kernel and initrd", "need"),
        None => ("kernel", "needs"),
    };
    let guests = if vm.nested { ", with guests of its own" } else { "" };
    Some(anyhow!(
        "{at}: {} is too little for its {what}, which {need} {} to be loaded; raise it to that, and by what the guest needs to run{guests}",
        Size(vm.memory),
        Size(enough)
    ))
}

/// The format of a VM's kernel, if it can be started in the VM's memory.
pub fn format(vm: &Vm<File>) -> Result<Format, loader::Error> {
    let initrd = vm.initrd.as_ref().map(|i| i.bytes.len() as u64);
    least::format(&vm.kernel.bytes, initrd, &vm.cmdline, vm.memory)
}

/// The name people know a kernel's format by.
pub fn format_name(format: Format) -> &'static str {
    match format {
        Format::Linux => "bzImage",
        Format::Multiboot => "multiboot",
        Format::Pvh => "ELF with PVH note",
    }
}

/// What the loader says of a kernel that begins like this; of a good one that it is too large.
fn look(head: &[u8]) -> Result<Format, loader::Error> {
    let machine = GuestMachine { regions: &[], rsdp: 0 };
    loader::load(head, None, "", &machine).map(|load| load.format)
}

/// Reads a kernel, initrd or disk's content of at most so many bytes.
fn content(path: &Path, key: &str, most: u64, limit: &str) -> Result<Vec<u8>> {
    file(path)?;
    if key == "kernel" {
        use loader::Error::{Header, NoPvhNote, UnknownFormat};
        // What isn't a kernel may be long.
        let (head, name) = (mistaken::head(path), path.display().to_string());
        let found = look(&head);
        if let Err(UnknownFormat | NoPvhNote | Header { .. }) = found
            && let Some(said) = mistaken::told(&name, &head, Place::Kernel)
        {
            bail!("{name} can't be started: it {said}");
        }
        if head.len() == HEAD && found == Err(UnknownFormat) {
            return Err(UnknownFormat).with_context(|| format!("{name} can't be started"));
        }
    }
    let bytes = read(path, most, limit)?;
    if bytes.is_empty() {
        bail!("`{}` is empty", path.display());
    }
    Ok(bytes)
}

/// Reads a file of at most so many bytes; `limit` says what they are.
pub fn read(path: &Path, most: u64, limit: &str) -> Result<Vec<u8>> {
    let (name, size) = (path.display(), file(path)?.len());
    if size > most {
        bail!("`{name}` has {size} bytes, more than {limit} ({})", Size(most));
    }
    fs::read(path).map_err(|e| anyhow!("`{name}` can't be read: {e}"))
}

/// Fails unless a file is there. Opening a pipe would wait for who writes to it.
fn file(path: &Path) -> Result<Metadata> {
    let name = path.display();
    let metadata = fs::metadata(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound if path.iter().any(|part| part == "~") => {
            anyhow!("`{name}` doesn't exist; `~` means nothing here: write your home's path out")
        }
        ErrorKind::NotFound => anyhow!("`{name}` doesn't exist"),
        _ => anyhow!("`{name}` can't be read: {e}"),
    })?;
    if metadata.is_dir() {
        bail!("`{name}` is a folder");
    }
    if !metadata.is_file() {
        bail!("`{name}` is a device or a pipe, and a file is needed");
    }
    Ok(metadata)
}

#[cfg(test)]
#[path = "load_tests.rs"]
pub(crate) mod tests;
