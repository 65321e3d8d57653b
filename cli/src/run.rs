//! `exitless run`: VMs on the emulated machine, their consoles on this terminal.

use crate::{
    boot_image::BootImage,
    consoles::Consoles,
    context::Context,
    load::{self, File},
    machine::{Disk, Machine},
    network::{Forward, NicModel},
    output::Output,
    report::Report,
    say::say,
    session::{self, Ended, Framing, Seen, Setup, Typed, Wishes},
    stream::Piece,
    terminal::Terminal,
    top::{self, Offer},
};
use anyhow::{Context as _, Result, bail};
use plan::{Choice, DeviceName, OnReset, Plan, Vm};
use std::{
    ffi::OsString,
    io::{stderr, stdout},
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
    time::Duration,
};

const EXAMPLES: &str = "\
Examples:
  exitless run vm.toml
  exitless run --kernel vmlinuz --initrd initrd.img --append console=ttyS0
  exitless run --kernel vmlinuz --initrd initrd.img --append console=ttyS0 \\
      --memory 512M --device nvme0 --disk disk.img --interrupts direct
  exitless run --kernel vmlinuz --initrd initrd.img --append console=ttyS0 \\
      --device nic0 --nic e1000e --forward tcp:8080:80

The machine is emulated (QEMU): a core for the host, one for each VM, VT-d, and the
devices the plan names. nvme0 is at 00:04.0, nic0 at 00:08.0, edu0 at 00:10.0.
Behind each network controller is a network of its own, which gives addresses by DHCP
and leads to where this machine can go; --forward leads in, from this machine alone.
The console is yours; leave it with Ctrl-] or Ctrl-A x.

Exit status: 0 all VMs powered off or reset themselves for good; 1 wrong input;
2 refused by the hypervisor; 3 a VM was stopped for what it did; 4 the hypervisor failed;
5 QEMU failed; 20 to 99 a VM wrote 0 to 79 to the debug-exit port (100: another value);
124 time over; 130 stopped by you. Whatever ended it, the exits of each VM are shown.";

/// Run VMs on the emulated machine.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The plan; or describe one VM with the options below
    #[arg(value_name = "VM.TOML", conflicts_with_all = VM_OPTIONS, required_unless_present = "kernel")]
    file: Option<PathBuf>,
    /// Kernel: a bzImage, an ELF with a PVH note, or multiboot
    #[arg(long, value_name = "FILE")]
    kernel: Option<String>,
    /// Initial RAM disk
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<String>,
    /// The kernel's command line
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        requires = "kernel"
    )]
    append: String,
    /// Guest memory
    #[arg(long, value_name = "SIZE", value_parser = plan::parse_size, default_value = "1G", requires = "kernel")]
    memory: u64,
    /// Device to assign, by name or PCI address; may be repeated
    #[arg(long = "device", value_name = "DEVICE", requires = "kernel")]
    devices: Vec<DeviceName>,
    /// How device interrupts reach the guest: auto, trap, eli or direct
    #[arg(long, value_name = "POLICY", value_parser = plan::file::parse_choice, default_value = "auto", requires = "kernel")]
    interrupts: Choice,
    /// Name of the VM
    #[arg(long, value_name = "NAME", default_value = "guest", requires = "kernel")]
    name: String,
    /// Raw image behind the next NVMe controller; may be repeated [default: 1G of zeroes]
    #[arg(long = "disk", value_name = "FILE")]
    disks: Vec<PathBuf>,
    /// Model of the next network controller; may be repeated [default: igb]
    #[arg(long = "nic", value_name = "MODEL")]
    nics: Vec<NicModel>,
    /// Lead a port of this machine to a guest's, as in tcp:8080:80; may be repeated
    #[arg(long = "forward", value_name = "[nicN:]tcp|udp:PORT:[ADDRESS:]GUEST-PORT")]
    forwards: Vec<Forward>,
    /// vCPUs, each with a core of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=plan::MAX_VCPUS as i64))]
    cpus: u32,
    /// End the VM when its guest resets itself, instead of starting it again
    #[arg(long)]
    no_reboot: bool,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Write the summary there as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show neither the hypervisor's log nor the summary
    #[arg(long, short)]
    quiet: bool,
    /// One more argument for QEMU; may be repeated
    #[arg(long = "qemu-arg", value_name = "ARG", allow_hyphen_values = true)]
    qemu_args: Vec<OsString>,
}

const VM_OPTIONS: [&str; 9] =
    ["kernel", "initrd", "append", "memory", "devices", "interrupts", "name", "cpus", "no_reboot"];

/// Runs the VMs and gives the status to exit with.
pub fn run(args: &Args, cx: &Context) -> Result<ExitCode> {
    let plan = args.plan()?;
    let output = args.json.as_deref().map(Output::claim).transpose()?;
    let (report, ended) = boot(args, &plan, cx)?;
    if !args.quiet {
        say(report.summary());
    }
    if let Some(output) = output {
        output.write(&(serde_json::to_string_pretty(&report.json(&ended))? + "\n"))?;
    }
    if let Some(failure) = report.failure(&ended) {
        say(format_args!("exitless: {failure}"));
    }
    Ok(ExitCode::from(report.status(&ended)))
}

impl Args {
    fn plan(&self) -> Result<Plan<File>> {
        match (&self.file, &self.kernel) {
            (Some(file), _) => load::plan(file),
            (None, Some(kernel)) => {
                let vm = Vm {
                    name: self.name.clone(),
                    cpus: (1..=self.cpus).collect(),
                    weight: plan::DEFAULT_WEIGHT,
                    memory: self.memory,
                    kernel: kernel.clone(),
                    initrd: self.initrd.clone(),
                    cmdline: self.append.clone(),
                    devices: self.devices.clone(),
                    interrupts: self.interrupts,
                    reset: if self.no_reboot { OnReset::Stop } else { OnReset::Restart },
                };
                load::files(Plan::new(vec![vm]), Path::new(""))
            }
            (None, None) => bail!("give a vm.toml or --kernel"),
        }
    }
}

fn boot(args: &Args, plan: &Plan<File>, cx: &Context) -> Result<(Report, Ended)> {
    for disk in &args.disks {
        if !disk.is_file() {
            bail!("--disk: {} is no file", disk.display());
        }
    }
    args.forwards.iter().try_for_each(Forward::check_free)?;
    let disks = args.disks.iter().cloned().map(Disk::File).collect();
    let image = BootImage::new(plan)?;
    let mut machine = Machine::exitless(cx.hypervisor()?, &image.path(), plan, disks)?;
    machine.connect(&args.nics, &args.forwards)?;
    machine.extra = args.qemu_args.clone();
    let command = machine.command(cx)?;

    let mut report = Report::new(plan.vms.iter().map(|vm| vm.name.as_str()));
    let mut consoles = Consoles::new(plan.vms.iter().map(|vm| vm.name.clone()).collect());
    let wishes = Arc::new(Wishes::default());
    let names = plan.vms.iter().map(|vm| vm.name.clone());
    let offer = Offer::open(&top::directory(), process::id(), names, wishes.clone());
    let (terminal, bytes) = Terminal::open(wishes.clone())?;
    if terminal.interactive && !args.quiet {
        say("exitless: the console is yours; leave it with Ctrl-] or Ctrl-A x");
    }
    if let (Err(error), false) = (&offer, args.quiet) {
        say(format_args!("exitless: `exitless top` can't watch this run: {error:#}"));
    }
    let timeout = args.timeout.map(Duration::from_secs);
    let typed = Some(Typed { bytes, wishes });
    let setup = Setup { command, framing: Framing::Frames, timeout, typed };
    let shown = "standard output can't be written";
    let ended = session::run(setup, cx, |seen| {
        match seen {
            Seen::Said(Piece::Console { vm, bytes }) => {
                consoles.write(vm, bytes, &mut stdout()).context(shown)?;
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
            Seen::Idle => consoles.idle(&mut stdout()).context(shown)?,
        }
        Ok(ControlFlow::Continue(()))
    })?;
    consoles.idle(&mut stdout()).context(shown)?;
    // Fails when nobody sees it.
    let _ = consoles.close_line(&mut stderr());
    drop(terminal);
    if let Ok(offer) = offer {
        offer.end(report.failure(&ended).unwrap_or_else(|| "all VMs have ended".to_owned()));
    }
    Ok((report, ended))
}
