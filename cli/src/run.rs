//! `exitless run`: VMs on the emulated machine, their consoles on this terminal.

use crate::{
    advice,
    arguments::{between, positive},
    consoles::Consoles,
    context::Context,
    disk::{self, Scratch},
    load::{self, File},
    machine::{self, Disk, Machine},
    network::{Forward, NicModel},
    output::{self, Output},
    qemu::Iommu,
    report::Report,
    room::Room,
    say::{plain, say},
    session::{self, Commands, Ended, Framing, Seen, Setup, Typed},
    source::{Source, Start, Trust, Way},
    stream::Piece,
    terminal::Terminal,
    top::{self, Offer},
    unserved, unused,
};
use anyhow::{Context as _, Result, anyhow, bail};
use plan::{Choice, DeviceName, OnReset, Plan, Shown, Size, Vm};
use std::{
    ffi::OsString,
    io::{stderr, stdout},
    num::NonZeroU64,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

const EXAMPLES: &str = "\
Examples:
  exitless run vm.toml
  exitless run --kernel vmlinuz --initrd initrd.img --append console=ttyS0
  exitless run --kernel vmlinuz --initrd initrd.img --append console=ttyS0 \\
      --memory 512M --device nvme0 --disk disk.img --interrupts direct
  exitless run --kernel vmlinuz --initrd initrd.img --append console=ttyS0 \\
      --device nic0 --nic e1000e --forward tcp:8080:80

The machine is emulated (QEMU): a core for the host, one for each VM, an IOMMU,
and the devices the plan names. nvme0 is at 00:04.0, nic0 at 00:08.0, edu0 at 00:10.0.
Behind each network controller is a network of its own, which gives addresses by DHCP
and leads to where this machine can go; --forward leads in, from this machine alone.
Disks and networks that a sidecore serves, guests of a guest and an IOMMU of a VM's
own are for plans: `exitless check --help`.
The console is yours; leave it with Ctrl-] or Ctrl-A x. Of several VMs all consoles are
shown, line by line; --console shows one alone, as a terminal.

Exit status: 0 all VMs powered off or reset themselves for good; 1 wrong input;
2 refused by the hypervisor; 3 a VM was stopped for what it did; 4 the hypervisor failed;
5 QEMU failed; 20 to 99 a VM wrote 0 to 79 to the debug-exit port (100: another value);
124 time over; 130 stopped by you. Whatever ended it, the exits of each VM are shown.";

/// The IOMMU of a machine that may have none.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Unit {
    /// AMD's; where the installed QEMU can't emulate it, a newer one is fetched
    #[default]
    AmdVi,
    /// Intel's, which QEMU gives to CPUs of AMD, too
    VtD,
    /// The machine has none: no VM can have a device
    None,
}

impl From<Unit> for Option<Iommu> {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::AmdVi => Some(Iommu::AmdVi),
            Unit::VtD => Some(Iommu::VtD),
            Unit::None => None,
        }
    }
}

/// Run VMs on the emulated machine.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = crate::help::flow(EXAMPLES))]
pub struct Args {
    /// The plan; or describe one VM with the options below
    #[arg(value_name = "VM.TOML", conflicts_with_all = VM_OPTIONS)]
    file: Option<PathBuf>,
    /// Kernel: a bzImage, an ELF with a PVH note, or multiboot
    #[arg(long, value_name = "FILE")]
    kernel: Option<String>,
    /// Initial RAM disk
    #[arg(long, value_name = "FILE")]
    initrd: Option<String>,
    /// The kernel's command line
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    append: String,
    /// Guest memory
    #[arg(long, value_name = "SIZE", value_parser = plan::parse_size, default_value = "1G")]
    memory: u64,
    /// Device to assign, by name or PCI address; may be repeated
    #[arg(long = "device", value_name = "DEVICE")]
    devices: Vec<DeviceName>,
    /// How device interrupts reach the guest: auto, trap, eli-delivery, eli, direct or posted
    #[arg(long, value_name = "POLICY", value_parser = plan::file::parse_choice, default_value = "auto")]
    interrupts: Choice,
    /// Name of the VM
    #[arg(long, value_name = "NAME", default_value = "guest")]
    name: String,
    /// Raw image behind the next NVMe controller; may be repeated [default: an empty disk of 1G
    /// that goes with the run]
    #[arg(long = "disk", value_name = "FILE")]
    disks: Vec<PathBuf>,
    /// Model of the next network controller; may be repeated [default: igb]
    #[arg(long = "nic", value_name = "MODEL")]
    nics: Vec<NicModel>,
    /// Lead a port of this machine to a guest's, as in tcp:8080:80; may be repeated
    #[arg(long = "forward", value_name = "[nicN:]tcp|udp:PORT:[ADDRESS:]GUEST-PORT")]
    forwards: Vec<Forward>,
    /// vCPUs, each with a core of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = between(1, plan::MAX_VCPUS as u32))]
    cpus: u32,
    /// End the VM when its guest resets itself, instead of starting it again
    #[arg(long)]
    no_reboot: bool,
    /// Show the console of this VM of the plan alone, as it writes, and type there; else the
    /// consoles are shown line by line, and what is typed goes to the first
    #[arg(long, value_name = "VM")]
    console: Option<String>,
    /// How the machine comes to the hypervisor: as QEMU loads it (pvh), or as a real machine does
    /// from a disk (uefi), a CD (grub-bios, grub-efi) or a network (pxe), or by a program that
    /// firmware is handed (uefi-kernel)
    #[arg(long, value_name = "WAY", value_enum, default_value_t, hide_possible_values = true)]
    boot: Way,
    /// With firmware that starts nothing but what is signed; by a key for tests here
    #[arg(long)]
    secure_boot: bool,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    timeout: Option<NonZeroU64>,
    /// Write the summary there as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show neither the hypervisor's log nor the summary
    #[arg(long, short)]
    quiet: bool,
    /// The machine's IOMMU
    #[arg(long, value_enum, default_value_t)]
    iommu: Unit,
    /// One more argument for QEMU; may be repeated
    #[arg(long = "qemu-arg", value_name = "ARG", allow_hyphen_values = true)]
    qemu_args: Vec<OsString>,
}

/// As much guest memory as takes an emulated machine seconds to clear.
const SLOW_TO_CLEAR: u64 = 3 << 30;

const VM_OPTIONS: [&str; 9] =
    ["kernel", "initrd", "append", "memory", "devices", "interrupts", "name", "cpus", "no_reboot"];

/// What a plan says in a VM's table instead of these options.
const IN_PLAN: [(&str, &str); VM_OPTIONS.len()] = [
    ("--kernel", "`kernel`"),
    ("--initrd", "`initrd`"),
    ("--append", "`cmdline`"),
    ("--memory", "`memory`"),
    ("--device", "`devices`"),
    ("--interrupts", "`interrupts`"),
    ("--name", "the NAME"),
    ("--cpus", "`cpus`"),
    ("--no-reboot", "`reset = \"stop\"`"),
];

/// What to do instead, if these arguments, as clap shows them, are a plan and options that
/// describe a VM.
pub fn instead(arguments: &[String]) -> Option<String> {
    let has_plan = arguments.iter().any(|argument| argument.contains("VM.TOML"));
    let key = |argument: &String| {
        let option = argument.split(' ').next()?;
        IN_PLAN.iter().find(|(name, _)| *name == option).map(|(_, key)| *key)
    };
    let keys: Vec<_> = arguments.iter().filter_map(key).collect();
    (has_plan && !keys.is_empty())
        .then(|| format!("write it in the plan: {} in [vm.NAME]", keys.join(", ")))
}

/// Runs the VMs and gives the status to exit with.
pub fn run(args: &Args, cx: &Context) -> Result<ExitCode> {
    let plan = args.plan()?;
    if let Some(json) = &args.json {
        output::apart_from("--json", json, args.inputs(&plan))?;
    }
    let output = args.json.as_deref().map(Output::claim).transpose()?;
    let (report, ended) = boot(args, &plan, cx)?;
    if !args.quiet {
        say(report.summary());
    }
    if let Some(output) = output {
        output.write_json(&report.json(&ended))?;
    }
    if let Some(failure) = report.failure(&ended) {
        say(format_args!("exitless: {failure}"));
    }
    Ok(ExitCode::from(report.status(&ended)))
}

impl Args {
    /// The VM whose console was asked for, by its index.
    fn chosen<F>(&self, plan: &Plan<F>) -> Result<Option<usize>> {
        let Some(name) = &self.console else { return Ok(None) };
        let found = plan.vms.iter().position(|vm| vm.name == *name);
        found.map(Some).ok_or_else(|| {
            let names: Vec<_> = plan.vms.iter().map(|vm| vm.name.as_str()).collect();
            anyhow!("--console: no VM is called `{}`; there is {}", Shown(name), names.join(", "))
        })
    }

    /// The files that the run reads, or its VMs write to.
    fn inputs(&self, plan: &Plan<File>) -> impl Iterator<Item = (PathBuf, String)> {
        let plan_file = self.file.iter().map(|file| (file.clone(), "the plan".to_owned()));
        let disks = self.disks.iter().map(|disk| (disk.clone(), "the disk of --disk".to_owned()));
        plan_file.chain(load::inputs(plan)).chain(disks)
    }

    fn plan(&self) -> Result<Plan<File>> {
        match (&self.file, &self.kernel) {
            (Some(file), _) => load::plan(file),
            (None, Some(kernel)) => {
                let vm = Vm {
                    name: self.name.clone(),
                    cpus: (1..=self.cpus).collect(),
                    weight: plan::DEFAULT_WEIGHT,
                    limit: plan::Limit::default(),
                    memory: self.memory,
                    kernel: kernel.clone(),
                    initrd: self.initrd.clone(),
                    cmdline: self.append.clone(),
                    devices: self.devices.clone(),
                    disks: vec![],
                    interfaces: vec![],
                    interrupts: self.interrupts,
                    reset: if self.no_reboot { OnReset::Stop } else { OnReset::Restart },
                    nested: false,
                    iommu: plan::GuestIommu::None,
                };
                load::files(Plan::new(vec![vm]), Path::new(""))
            }
            (None, None) => bail!(
                "what is to be run? Give a plan, as in `exitless run vm.toml`, or a kernel, as in `exitless run --kernel vmlinuz`"
            ),
        }
    }
}

fn boot(args: &Args, plan: &Plan<File>, cx: &Context) -> Result<(Report, Ended)> {
    let chosen = args.chosen(plan)?;
    let ((nvmes, nics), in_plan) = (Machine::controllers(plan)?, args.file.is_some());
    unused::DISKS.check(args.disks.len(), nvmes, in_plan)?;
    unused::NICS.check(args.nics.len(), nics, in_plan)?;
    if matches!(args.iommu, Unit::None) {
        unserved::check(plan, in_plan)?;
    }
    disk::check(&args.disks)?;
    args.forwards.iter().try_for_each(Forward::check_free)?;
    let image = plan::image::build(plan)?;
    let guests = machine::used_memory(plan);
    if let Some(room) = Room::now() {
        let disks = plan.disk_memory();
        room.check(
            guests.saturating_sub(disks),
            disks,
            Machine::memory_for(plan, image.len() as u64),
        )?;
    }
    let trust = if args.secure_boot { Trust::Signed } else { Trust::Anything };
    let source = Source::new(&Start { trust, ..Start::by(args.boot) }, &image, cx)?;
    drop(image);
    let scratch: Vec<_> =
        (args.disks.len()..nvmes).map(|_| Scratch::new()).collect::<Result<_>>()?;
    let paths = args.disks.iter().cloned().chain(scratch.iter().map(Scratch::path));
    let disks = paths.map(Disk::File).collect();
    let mut machine = Machine::booting(source.boot.clone(), source.memory, plan, disks)?;
    machine.connect(&args.nics, &args.forwards)?;
    machine.iommu = args.iommu.into();
    machine.extra = args.qemu_args.clone();
    let command = machine.command(cx)?;

    let mut report = Report::new(plan.vms.iter().map(|vm| vm.name.as_str()));
    let names = plan.vms.iter().map(|vm| vm.name.clone()).collect();
    let mut consoles = Consoles::new(names, chosen);
    let commands = Arc::new(Commands::default());
    let names = plan.vms.iter().map(|vm| vm.name.clone());
    let offer = Offer::open(&top::directory(), process::id(), names, commands.clone());
    let (terminal, bytes) = Terminal::open(commands.clone())?;
    if terminal.interactive && !args.quiet {
        say("exitless: the console is yours; leave it with Ctrl-] or Ctrl-A x");
    }
    if !args.quiet {
        notes(args.disks.len(), scratch.len(), guests).iter().for_each(say);
        advice::lines(plan).iter().for_each(|line| say(format_args!("exitless: {line}")));
    }
    if let (Err(error), false) = (&offer, args.quiet) {
        say(format_args!("exitless: `exitless top` can't watch this run: {}", plain(error)));
    }
    let timeout = args.timeout.map(|seconds| Duration::from_secs(seconds.get()));
    let typed = Some(Typed { bytes, to: chosen.unwrap_or(0), commands });
    let setup = Setup { command, framing: Framing::Frames, timeout, typed };
    let shown = "standard output can't be written";
    let ended = session::run(setup, cx, |seen| {
        match seen {
            Seen::Said(Piece::Console { vm, bytes }) => {
                consoles.write(vm, bytes, Instant::now(), &mut stdout()).context(shown)?;
            }
            Seen::Said(Piece::Log(line)) if !args.quiet => {
                consoles.close_line(&mut stdout()).context(shown)?;
                say(format_args!("[host] {line}"));
            }
            Seen::Said(Piece::Log(_)) => {}
            Seen::Said(Piece::Record(record)) => {
                report.see(&record);
                if let Ok(offer) = &offer {
                    offer.see(&record);
                }
            }
            Seen::Idle => consoles.idle(Instant::now(), &mut stdout()).context(shown)?,
        }
        Ok(ControlFlow::Continue(()))
    })?;
    consoles.finish(&mut stdout()).context(shown)?;
    // Fails when nobody sees it.
    let _ = consoles.close_line(&mut stderr());
    drop(terminal);
    if let Ok(offer) = offer {
        offer.end(report.failure(&ended).unwrap_or_else(|| "all VMs have ended".to_owned()));
    }
    Ok((report, ended))
}

/// What a person should know of a machine with `named` disks of theirs, `scratch` others and
/// `guests` bytes for the VMs.
fn notes(named: usize, scratch: usize, guests: u64) -> Vec<String> {
    let mut notes = Vec::new();
    for disk in named..named + scratch {
        notes.push(format!(
            "exitless: nvme{disk} is an empty disk of {}, which goes when the run ends; `run --disk FILE` keeps one",
            Size(disk::SCRATCH)
        ));
    }
    if guests >= SLOW_TO_CLEAR {
        notes.push(format!(
            "exitless: the hypervisor first clears the VMs' {} of memory, which takes a while",
            Size(guests)
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::of_line;

    fn line(text: &str) -> Result<Args, String> {
        of_line(text)
    }

    #[test]
    fn who_names_nothing_to_run_is_told_both_ways() {
        for text in ["", "--memory 512M", "--interrupts eli --timeout 5"] {
            let error = line(text).unwrap().plan().unwrap_err().to_string();
            assert!(error.contains("`exitless run vm.toml`, or a kernel, as in"), "{error}");
        }
    }

    #[test]
    fn a_console_is_chosen_by_name() {
        let plan = plan::file::parse("f", "[vm.a]\nkernel='k'\n[vm.db]\nkernel='k'\n").unwrap();
        let chosen = |text: &str| line(text).unwrap().chosen(&plan).map_err(|e| e.to_string());
        assert_eq!(chosen("vm.toml"), Ok(None));
        assert_eq!(chosen("vm.toml --console db"), Ok(Some(1)));
        let error = "--console: no VM is called `x`; there is a, db".to_owned();
        assert_eq!(chosen("vm.toml --console x"), Err(error));
    }

    #[test]
    fn a_time_is_one_or_more_seconds() {
        assert_eq!(line("--timeout 5").unwrap().timeout, NonZeroU64::new(5));
        for wrong in ["0", "x", "1.5"] {
            let error = line(&format!("--timeout {wrong}")).unwrap_err();
            let said = format!(
                "invalid value '{wrong}' for '--timeout <SECONDS>': give a whole number, 1 or more"
            );
            assert!(error.contains(&said), "{error}");
        }
    }

    #[test]
    fn the_help_names_every_policy() {
        use clap::Args as _;
        let help = Args::augment_args(clap::Command::new("run")).render_long_help().to_string();
        let start = help.find("How device interrupts reach the guest:").unwrap();
        let sentence = help[start..].lines().next().unwrap();
        for name in plan::CHOICES {
            assert!(sentence.contains(name), "{sentence}");
        }
    }

    #[test]
    fn what_a_person_cannot_guess_is_noted() {
        let notes = notes(1, 2, 4 << 30);
        assert_eq!(notes.len(), 3);
        assert!(notes[0].starts_with("exitless: nvme1 is an empty disk of 1G, which goes when"));
        assert!(notes[2].contains("clears the VMs' 4G of memory"));
        assert!(super::notes(1, 0, 2 << 30).is_empty());
    }
}
