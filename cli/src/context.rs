//! Where things are (the checkout, the build directory, QEMU, the hypervisor), and
//! whether the person wants to stop.

use crate::{
    qemu::{Iommu, Qemu},
    say::say,
};
use anyhow::{Context as _, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    env,
    io::{self, IsTerminal, Seek, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// The target that the UEFI loader is built for.
pub const UEFI_TARGET: &str = "x86_64-unknown-uefi";
/// The variable of the environment that names a loader, which then isn't built.
pub const LOADER: &str = "EXITLESS_LOADER";
/// How long a build may take without a word.
const SILENT_BUILD: Duration = Duration::from_millis(700);

/// What every command needs to know.
pub struct Context {
    /// The checkout.
    pub root: PathBuf,
    /// Cargo's build directory; what is worth keeping between runs goes below it.
    pub target: PathBuf,
    interruptions: Arc<AtomicUsize>,
    qemu: OnceLock<Qemu>,
    /// The one for AMD-Vi.
    amd_qemu: OnceLock<Qemu>,
    hypervisor: OnceLock<PathBuf>,
    loader: OnceLock<PathBuf>,
}

/// What a program of the checkout runs on, if not on this system.
#[derive(Clone, Copy)]
enum Platform {
    BareMachine,
    Uefi,
}

impl Platform {
    fn triple(self) -> &'static str {
        match self {
            Platform::BareMachine => "x86_64-unknown-none",
            Platform::Uefi => UEFI_TARGET,
        }
    }

    /// How its programs' names end.
    fn ending(self) -> &'static str {
        match self {
            Platform::BareMachine => "",
            Platform::Uefi => ".efi",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Platform::BareMachine => "the bare machine",
            Platform::Uefi => "UEFI firmware",
        }
    }
}

impl Context {
    /// From the environment: `EXITLESS_ROOT`, `CARGO_TARGET_DIR`. From here on ^C,
    /// SIGTERM and SIGHUP only count in [`Context::interruptions`].
    pub fn new() -> Result<Self> {
        let root = match env::var_os("EXITLESS_ROOT") {
            Some(root) => PathBuf::from(root),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).join(".."),
        };
        let target = match env::var_os("CARGO_TARGET_DIR") {
            Some(target) => std::path::absolute(target)?,
            None => root.join("target"),
        };
        let interruptions = Arc::new(AtomicUsize::new(0));
        let count = interruptions.clone();
        ctrlc::set_handler(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .context("the handler for ^C can't be installed")?;
        Ok(Context::of(root, target, interruptions))
    }

    /// A context for unit tests: of this checkout, and without a handler for signals.
    pub fn for_tests() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let target = root.join("target");
        Context::of(root, target, Arc::default())
    }

    fn of(root: PathBuf, target: PathBuf, interruptions: Arc<AtomicUsize>) -> Self {
        let (qemu, amd_qemu) = (OnceLock::new(), OnceLock::new());
        let (hypervisor, loader) = (OnceLock::new(), OnceLock::new());
        Context { root, target, interruptions, qemu, amd_qemu, hypervisor, loader }
    }

    /// Whether ^C, SIGTERM or SIGHUP came.
    pub fn interrupted(&self) -> bool {
        self.interruptions() > 0
    }

    /// How often they came.
    pub fn interruptions(&self) -> usize {
        self.interruptions.load(Ordering::Relaxed)
    }

    /// The QEMU to run a machine with this IOMMU, or with none.
    pub fn qemu(&self, iommu: Option<Iommu>) -> Result<&Qemu> {
        let cell = match iommu {
            None | Some(Iommu::VtD) => &self.qemu,
            Some(Iommu::AmdVi) => &self.amd_qemu,
        };
        once(cell, || Qemu::find(&self.root, iommu))
    }

    /// The hypervisor's ELF: `EXITLESS_HYPERVISOR`, or built from the checkout.
    pub fn hypervisor(&self) -> Result<&Path> {
        Ok(once(&self.hypervisor, || {
            named("EXITLESS_HYPERVISOR")
                .unwrap_or_else(|| self.build_profile("hypervisor", "image", &[]))
        })?)
    }

    /// The UEFI program that starts it: `EXITLESS_LOADER`, or built from the checkout.
    pub fn loader(&self) -> Result<&Path> {
        Ok(once(&self.loader, || {
            named(LOADER)
                .unwrap_or_else(|| self.build(Platform::Uefi, "exitless-loader", "release", &[]))
        })?)
    }

    /// Builds a test kernel for the bare machine and gives its ELF.
    pub fn build_bare_metal(&self, package: &str) -> Result<PathBuf> {
        self.build_profile(package, "release", &[])
    }

    /// The same with features, by a profile of their own, so that neither build spoils the other.
    pub fn build_profile(
        &self,
        package: &str,
        profile: &str,
        features: &[&str],
    ) -> Result<PathBuf> {
        self.build(Platform::BareMachine, package, profile, features)
    }

    /// What does that.
    pub fn profile_command(&self, package: &str, profile: &str, features: &[&str]) -> Command {
        self.build_command(Platform::BareMachine, package, profile, features)
    }

    /// What builds the UEFI program.
    pub fn loader_command(&self) -> Command {
        self.build_command(Platform::Uefi, "exitless-loader", "release", &[])
    }

    fn build_command(
        &self,
        platform: Platform,
        package: &str,
        profile: &str,
        features: &[&str],
    ) -> Command {
        let triple = platform.triple();
        let mut cargo = self.cargo();
        cargo.args(["build", "--quiet", "--profile", profile, "--target", triple, "-p", package]);
        cargo.args(features.iter().flat_map(|f| ["--features", f]));
        cargo
    }

    fn build(
        &self,
        platform: Platform,
        package: &str,
        profile: &str,
        features: &[&str],
    ) -> Result<PathBuf> {
        let triple = platform.triple();
        let program = format!("{package}{}", platform.ending());
        let program = self.target.join(triple).join(profile).join(program);
        let mut messages = tempfile::tempfile().context("no temporary file can be made")?;
        let mut cargo = self.build_command(platform, package, profile, features);
        // In a group of its own: what ^C ends is ended here, and said.
        cargo.process_group(0).stdin(Stdio::null()).stderr(messages.try_clone()?);
        let mut child = cargo.spawn().context("cargo can't be started")?;
        let (start, mut elapsed) = (Instant::now(), Elapsed::default());
        // A build that has nothing to do says nothing.
        let mut said = false;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if self.interrupted() {
                // With the compilers that it started; fails only when all have ended.
                if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                child.wait()?;
                bail!("stopped while {package} was being built");
            }
            if !said && start.elapsed() > SILENT_BUILD {
                let first =
                    if program.exists() { "" } else { ", which takes a minute or two at first" };
                let label = platform.label();
                say(format_args!("exitless: building {package} for {label}{first} …"));
                said = true;
            }
            if said {
                elapsed.show(start.elapsed());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        elapsed.clear();
        if !status.success() {
            messages.rewind()?;
            io::copy(&mut messages, &mut io::stderr())?;
            bail!("{package} could not be built; cargo's messages above say why");
        }
        if said {
            say(format_args!("exitless: built in {:.0} s", start.elapsed().as_secs_f64()));
        }
        Ok(program)
    }

    /// `cargo`, in the checkout, for this build directory.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        cargo
    }
}

/// The seconds that something takes, on a line of the terminal; nothing elsewhere.
#[derive(Default)]
struct Elapsed {
    shown: u64,
}

impl Elapsed {
    fn show(&mut self, elapsed: Duration) {
        let seconds = elapsed.as_secs();
        if seconds > self.shown && io::stderr().is_terminal() {
            // Fails when nobody looks.
            let _ = write!(io::stderr(), "\r\x1b[K{seconds} s");
            self.shown = seconds;
        }
    }

    fn clear(&mut self) {
        if self.shown > 0 {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// The file that this variable of the environment names, if it is set.
fn named(variable: &str) -> Option<Result<PathBuf>> {
    let path = PathBuf::from(env::var_os(variable)?);
    Some(match path.is_file() {
        true => Ok(path),
        false => Err(anyhow!("{variable} is {}, where no file is", path.display())),
    })
}

fn once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(made) => Ok(made),
        None => {
            let made = make()?;
            Ok(cell.get_or_init(|| made))
        }
    }
}
