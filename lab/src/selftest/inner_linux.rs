//! Linux with KVM as a guest, and QEMU in it with a guest of its own, which may have an NVMe or a
//! network controller by vfio-pci: Debian's, all of them untouched.
//!
//! Guarantees: what is given is of a run at whose end the hypervisor's guest and the hypervisor
//! ended by themselves, while core 0 looked over the host's tables and found nothing wrong.

use super::alone::{self, See};
use crate::{cmdline::LINUX, console::tail};
use anyhow::{Context as _, Result, anyhow, bail};
use exitless::{context::Context, machine::Disk, recipe, report::Report};
use ledger::Counters;
use plan::{GuestIommu, OnReset, Plan, Policy, Vm};
use std::{collections::HashMap, fs, path::PathBuf, time::Duration};

/// For a boot, and one in it, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(400);
/// The same with loads, at both levels.
pub const PATIENCE_WITH_LOADS: Duration = Duration::from_secs(1800);
/// KVM, QEMU, and the memory of its guest.
const MEMORY: u64 = 1280 << 20;
const DISK_BYTES: u64 = 64 << 20;
/// Marks what the hypervisor counted while its guest read.
const WINDOW: &str = "@exitless window ";

/// What was heard.
pub struct Heard {
    /// The hypervisor's console; its guest's is in it.
    pub console: String,
    /// The hypervisor's exits, over its whole life.
    pub counters: Counters,
    /// Its interrupts of every kind, as it says.
    pub interrupts: u64,
}

/// What happened while the innermost guest read its disk, or had its network answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// Reads of 4 KiB, or echoes.
    pub uses: f64,
    /// The device's interrupts, as the innermost guest counts them.
    pub interrupts: f64,
    /// Its timer's.
    pub ticks: f64,
    /// How long it took by its clock, in seconds.
    pub seconds: f64,
    /// What KVM counted, by its own names.
    pub kvm: HashMap<String, f64>,
    /// The exits of the host's ledger, by reason.
    pub exits: Vec<f64>,
}

/// Makes the guest if need be.
pub fn prepare(cx: &Context) -> Result<()> {
    recipe::make(
        &cx.root.join("guests/linux/nested/build"),
        &cx.root.join("build/guest-nested"),
        "guest",
    )
}

/// Who has the innermost guest's CPU while that halts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Its hypervisor, by an exit, as QEMU has it.
    Kvm,
    /// Nobody: HLT has no exit.
    Guest,
}

impl Idle {
    /// As the guest's command line has it.
    pub const fn label(self) -> &'static str {
        match self {
            Idle::Kvm => "kvm",
            Idle::Guest => "guest",
        }
    }
}

/// What the innermost guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// An NVMe controller, which it reads.
    Nvme,
    /// A virtual function of an 82576, by which it has QEMU's gateway answer.
    Function,
}

/// It has this device, uses it so often in its long window, and halts so.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// The device.
    pub device: Device,
    /// The IOMMU by which its hypervisor gives it that.
    pub iommu: GuestIommu,
    /// KVM has AVIC, and the IOMMU posts the device's interrupts.
    pub posted: bool,
    /// Reads, or echoes.
    pub times: u64,
    /// Who has its CPU while it halts.
    pub idle: Idle,
}

/// Boots it.
pub fn boot(cx: &Context, given: Option<Given>) -> Result<Heard> {
    watch(cx, given, &mut |_| {})
}

/// The same; `see` is shown what its console has said so far, again and again.
pub fn watch(cx: &Context, given: Option<Given>, see: See) -> Result<Heard> {
    let scratch = tempfile::tempdir().context("no directory for temporary files")?;
    let mut vm = vm(cx);
    let mut disks = Vec::new();
    if let Some(Given { device, iommu, posted, times, idle }) = given {
        vm.devices = vec![match device {
            Device::Nvme => {
                let disk = scratch.path().join("disk");
                fs::File::create(&disk)?.set_len(DISK_BYTES)?;
                disks.push(Disk::File(disk));
                "nvme0".parse()?
            }
            Device::Function => "nic0.vf0".parse()?,
        }];
        vm.iommu = iommu;
        if posted {
            vm.interrupts = Some(Policy::Trap);
            vm.cmdline += " exitless.avic=1";
        }
        if iommu == GuestIommu::VtD {
            vm.cmdline += " intel_iommu=on";
        }
        vm.cmdline += &format!(" exitless.uses={times} exitless.idle={}", idle.label());
    }
    heard(alone::watch(cx, Plan::new(vec![vm]), disks, PATIENCE, see)?)
}

/// Boots it without a device for its guest, to have loads run so often in their long windows: in
/// the hypervisor, and then in its guest.
pub fn boot_loads(cx: &Context, times: u64) -> Result<Heard> {
    let loads = made(cx, "loads.img");
    let vm = Vm { devices: vec!["nvme0".parse()?], ..vm(cx) };
    let vm = Vm { cmdline: format!("{} exitless.loads={times}", vm.cmdline), ..vm };
    hear(cx, Plan::new(vec![vm]), vec![Disk::File(loads)], PATIENCE_WITH_LOADS)
}

/// Boots it with these CPUs, with a disk of KVM's own tests ([`super::kvm_selftests`]), which runs
/// them as these words say.
pub fn boot_selftests(
    cx: &Context,
    disk: PathBuf,
    words: &str,
    cpus: Vec<u32>,
    patience: Duration,
) -> Result<Heard> {
    let vm = Vm { devices: vec!["nvme0".parse()?], cpus, ..vm(cx) };
    let vm = Vm { cmdline: format!("{} {words}", vm.cmdline), ..vm };
    hear(cx, Plan::new(vec![vm]), vec![Disk::File(disk)], patience)
}

/// A file of the guest's.
pub fn made(cx: &Context, file: &str) -> PathBuf {
    cx.root.join("build/guest-nested").join(file)
}

/// The hypervisor, without a device.
pub fn vm(cx: &Context) -> Vm<String> {
    let path = |file: &str| made(cx, file).display().to_string();
    Vm {
        name: "hypervisor".into(),
        cpus: vec![1],
        weight: plan::DEFAULT_WEIGHT,
        limit: plan::Limit::default(),
        memory: MEMORY,
        kernel: path("vmlinuz"),
        initrd: Some(path("initrd.img")),
        cmdline: format!("{LINUX} loglevel=4"),
        devices: vec![],
        disks: vec![],
        interfaces: vec![],
        interrupts: Some(Policy::Direct),
        reset: OnReset::Stop,
        nested: true,
        iommu: GuestIommu::None,
    }
}

/// Runs it as the only VM of a plan.
pub fn hear(
    cx: &Context,
    plan: Plan<String>,
    disks: Vec<Disk>,
    patience: Duration,
) -> Result<Heard> {
    heard(alone::hear(cx, plan, disks, patience)?)
}

fn heard((report, console): (Report, String)) -> Result<Heard> {
    let vm = report.vms.first().context("there is a VM")?;
    let (passes, findings) = (report.audit.passes, report.audit.findings);
    if passes == 0 || findings > 0 {
        bail!("the host looked over its tables {passes} times, and found {findings} wrong");
    }
    let interrupts = interrupts(&console)?;
    Ok(Heard { counters: vm.counters(), console, interrupts })
}

/// What the hypervisor says at its end.
fn interrupts(console: &str) -> Result<u64> {
    let Some((_, said)) = console.rsplit_once("@exitless nested qemu=0 interrupts=") else {
        bail!("its QEMU didn't end well; the console's end: {}", tail(console));
    };
    let digits: String = said.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().context("it doesn't say how many interrupts it had")
}

impl Heard {
    /// What a level says that it did of a load, if all of it was right and its kernel didn't
    /// complain.
    pub fn said(&self, level: &str, load: &str) -> Result<&str> {
        let begins = format!("{level}: {load} right=");
        let said = self.console.lines().find(|line| line.contains(&begins));
        let Some(said) = said else { bail!("{level} doesn't say whether each {load} was right") };
        if !is_right(said) {
            bail!("not all was right: {}", said.trim());
        }
        Ok(said.trim())
    }

    /// What its uses of the device took: its long window without what its short one had, so
    /// that what comes with a window is in neither.
    pub fn window(&self) -> Result<Window> {
        self.window_of("")
    }

    /// The same of windows whose names begin so.
    pub fn window_of(&self, prefix: &str) -> Result<Window> {
        let of = |name: &str| {
            let mark = format!("{WINDOW}name={prefix}{name} ");
            let line = self.console.lines().find_map(|line| Some(line.split_once(&mark)?.1));
            let line = line.ok_or_else(|| anyhow!("it has no window {name}"))?;
            Window::of(line).with_context(|| format!("the window \"{line}\""))
        };
        Ok(of("long")?.less(&of("short")?))
    }
}

/// Was each of them right, and didn't the kernel complain?
fn is_right(said: &str) -> bool {
    let value = |name: &str| said.split_once(name)?.1.split_whitespace().next();
    value("right=").is_some()
        && value("right=") == value(" of ")
        && value("complaints=") == Some("0")
}

impl Window {
    fn of(line: &str) -> Result<Self> {
        let number = |text: &str| text.parse().with_context(|| format!("\"{text}\" is no number"));
        let mut window = Window::default();
        for (key, value) in line.split_whitespace().filter_map(|word| word.split_once('=')) {
            match key {
                "uses" => window.uses = number(value)?,
                "interrupts" => window.interrupts = number(value)?,
                "ticks" => window.ticks = number(value)?,
                "hundredths" => window.seconds = number(value)? / 100.0,
                "exits" => window.exits = value.split(',').map(number).collect::<Result<_>>()?,
                _ => {
                    if let Some(name) = key.strip_prefix("kvm_") {
                        window.kvm.insert(name.to_owned(), number(value)?);
                    }
                }
            }
        }
        Ok(window)
    }

    fn less(mut self, short: &Window) -> Self {
        self.uses -= short.uses;
        self.interrupts -= short.interrupts;
        self.ticks -= short.ticks;
        self.seconds -= short.seconds;
        self.exits.iter_mut().zip(&short.exits).for_each(|(n, less)| *n -= less);
        for (name, n) in &mut self.kvm {
            *n -= short.kvm.get(name).copied().unwrap_or(0.0);
        }
        self
    }

    /// For each read: the host's exits for this reason.
    pub fn of_reason(&self, reason: ledger::Reason) -> f64 {
        self.exits.get(reason as usize).copied().unwrap_or(0.0) / self.uses
    }

    /// The same, all of them.
    pub fn all(&self) -> f64 {
        self.exits.iter().sum::<f64>() / self.uses
    }

    /// The same of what KVM counts by this name.
    pub fn by_kvm(&self, name: &str) -> f64 {
        self.kvm.get(name).copied().unwrap_or(f64::NAN) / self.uses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::Reason;

    fn heard(console: &str) -> Heard {
        Heard { console: console.into(), counters: Counters::default(), interrupts: 0 }
    }

    #[test]
    fn what_comes_with_a_window_is_in_neither() {
        let console = "@exitless window name=warm uses=1 interrupts=9 kvm_exits=9 exits=9,9\n\
             @exitless window name=short uses=100 hundredths=50 interrupts=100 ticks=10 kvm_exits=430 kvm_mmio_exits=0 exits=7,30\n\
             [1.0] @exitless window name=long uses=500 hundredths=250 interrupts=501 ticks=30 kvm_exits=1630 kvm_mmio_exits=4 exits=7,1030 exits0=7,1030\r\n";
        let window = heard(console).window().unwrap();
        assert_eq!((window.uses, window.interrupts, window.ticks), (400.0, 401.0, 20.0));
        assert_eq!(window.seconds, 2.0);
        assert_eq!(window.of_reason(Reason::DeviceEoi), 2.5);
        assert_eq!((window.all(), window.of_reason(Reason::Other)), (2.5, 0.0));
        assert_eq!((window.by_kvm("exits"), window.by_kvm("mmio_exits")), (3.0, 0.01));
        assert!(window.by_kvm("nothing").is_nan());
    }

    #[test]
    fn what_is_no_window_is_an_error() {
        for console in ["", "@exitless window name=long uses=x\n@exitless window name=short uses=1"]
        {
            assert!(heard(console).window().is_err(), "{console}");
        }
    }

    #[test]
    fn it_ends_with_its_interrupts() {
        assert_eq!(interrupts("@exitless nested qemu=0 interrupts=12\r\n").unwrap(), 12);
        for console in
            ["", "@exitless nested qemu=1 interrupts=12", "@exitless nested qemu=0 interrupts=\n"]
        {
            assert!(interrupts(console).is_err(), "{console}");
        }
    }
}
