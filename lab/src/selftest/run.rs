//! The run of a case: its plan, its machine, and what is heard of it.

use super::{
    bochs,
    case::{
        Case, Cores, Cue, Expect, Expected, Guest, HEARTBEAT, MEMORY, NAMES, Outcome, QUIET,
        Special,
    },
    echo,
    hostile::{self, Conductor},
    kernel::{Kernel, Variant},
    parts, screen, uplink, virtio, watchdog,
};
use crate::{bench, cmdline::LINUX};
use anyhow::{Context as _, Result};
use exitless::{
    boot_image,
    context::Context,
    load::{self, File},
    machine::{Boot, Disk, Machine},
    report::Report,
    session::{self, Commands, Framing, Seen, Setup, Typed},
    source::{Source, Start, Way},
    stream::Piece,
};
use plan::{OnReset, Plan, Vm};
use proto::Record;
use std::{
    ffi::OsString,
    fs,
    io::Write,
    ops::ControlFlow,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, mpsc},
    time::Duration,
};

/// A byte of the boot image that belongs to the plan in it.
const IN_PLAN: usize = 48;
/// The socket of QEMU's monitor, of [`Special::Monitored`] and [`Special::Screen`].
const MONITOR: &str = "monitor";
/// When a case is given up, one with Linux or an attacker, one that firmware starts, and a long
/// one.
const PATIENCE: Duration = Duration::from_secs(60);
const LINUX_PATIENCE: Duration = Duration::from_secs(240);
const FIRMWARE_PATIENCE: Duration = Duration::from_secs(180);
const LONG_PATIENCE: Duration = Duration::from_secs(1_800);

/// Runs a case; an error is what the command line would have said.
pub fn run(case: &Case, kernel: &Kernel, cx: &Context) -> Result<Outcome> {
    if case.machine != Special::Watched {
        return run_once(case, false, kernel, cx);
    }
    let unwatched = run_once(case, false, kernel, cx)?.report;
    Ok(Outcome { unwatched: Some(unwatched), ..run_once(case, true, kernel, cx)? })
}

fn run_once(case: &Case, watched: bool, kernel: &Kernel, cx: &Context) -> Result<Outcome> {
    let directory = tempfile::tempdir().context("no temporary directory can be made")?;
    let directory = directory.path();
    let plan = plan(case, kernel, directory)?;
    let counts = directory.join("counts");
    let (command, _source) = if case.machine.bochs().is_some() {
        let hypervisor = match other_image(case.machine, cx)? {
            Some(other) => other,
            None => cx.hypervisor()?,
        };
        (bochs::booting(hypervisor, &plan::image::build(&plan)?, case, directory, cx)?, None)
    } else {
        let (mut machine, source) = machine(case, plan, directory, cx)?;
        if !case.windows.is_empty() || case.counts_start() {
            machine.plugin = Some(bench::counting_plugin(cx, case.iommu, &counts)?);
        }
        (machine.command(cx)?, source)
    };
    let framing = if case.is_bare() { Framing::Raw } else { Framing::Frames };
    let patience = match case {
        _ if case.machine.bochs().is_some() && case.long => bochs::LONG_PATIENCE,
        _ if case.machine.bochs().is_some() && case.has_linux() => bochs::LINUX_PATIENCE,
        _ if case.machine.bochs().is_some() => bochs::PATIENCE,
        _ if case.long => LONG_PATIENCE,
        _ if case.has_linux() || case.has(Variant::Hostile) => LINUX_PATIENCE,
        _ if case.has_firmware() || case.machine == Special::Screen => FIRMWARE_PATIENCE,
        _ => PATIENCE,
    };
    let commands = Arc::new(Commands::default());
    let (_nobody, bytes) = mpsc::channel();
    let typed = Some(Typed { bytes, to: 0, commands: commands.clone() });
    let setup = Setup { command, framing, timeout: Some(patience), typed };
    let names = || case.guests.iter().enumerate().map(|(i, _)| NAMES[i % NAMES.len()]);
    let (mut report, mut live) = (Report::new(names()), Report::new(names()));
    let mut conductor = (case.machine == Special::Attacked).then(Conductor::default);
    let mut consoles = vec![Vec::new(); case.guests.len()];
    let (mut log, mut answers) = (Vec::new(), Vec::new());
    let last = case.guests.len().saturating_sub(1);
    // Kept open: what was said to it may not be heard yet.
    let mut monitor = None;
    let mut lacks = None;
    let mut said = false;
    let ended = session::run(setup, cx, |seen| {
        match seen {
            Seen::Said(Piece::Console { vm, bytes }) => {
                if let Some(console) = consoles.get_mut(vm) {
                    console.extend_from_slice(bytes);
                }
                if let (Special::Monitored { when, words, .. }, None) = (case.machine, &monitor)
                    && consoles.iter().any(|console| says(console, when))
                {
                    let mut socket = UnixStream::connect(directory.join(MONITOR))?;
                    writeln!(socket, "{words}")?;
                    monitor = Some(socket);
                }
                if let (Some(Cue::Said(text)), false) = (case.typed, said)
                    && consoles.iter().any(|console| says(console, text))
                {
                    commands.type_to(last, "!");
                    said = true;
                }
            }
            Seen::Said(Piece::Log(line)) => {
                if matches!(case.typed, Some(Cue::Log(text)) if line.contains(text)) {
                    commands.type_to(last, "!");
                }
                let over = matches!(case.expect, Expect::Unstarted(text) if line.contains(text));
                log.push(line);
                if over {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Seen::Said(Piece::Record(record)) => {
                report.see(&record);
                if case.finding.is_some() && matches!(record, Record::Audit { findings: 1.., .. }) {
                    commands.type_to(0, "!");
                }
                let ended = report.vms.iter().filter(|vm| vm.end.is_some()).count();
                if matches!(record, Record::Ended { .. }) && case.typed == Some(Cue::Ended(ended)) {
                    commands.type_to(last, "!");
                }
                if let Record::Live { vm, vcpu, counters, .. } = &record {
                    let (vm, vcpu, counters) = (*vm, *vcpu, counters.clone());
                    live.see(&Record::Counters { vm, vcpu, counters, cycles: 0 });
                }
                let seen = case.machine != Special::Screen;
                if matches!(record, Record::Ended { .. }) && others_ended(case, &report) && seen {
                    neighbours(case).for_each(|(vm, _)| commands.type_to(vm, "!"));
                }
                // From the start on, a question follows each answer.
                let answer = match &record {
                    Record::Live { counters, left: 0, .. } => Some(counters.total()),
                    _ => None,
                };
                let quiet = consoles.first().map(|c| QUIET.map(|mark| says(c, mark)));
                if quiet == Some([true, false]) {
                    answers.extend(answer);
                }
                if watched && (answer.is_some() || matches!(record, Record::Started { .. })) {
                    commands.ask();
                }
            }
            // What was sent last may be painted a moment later: looked at again until it is there.
            Seen::Idle if case.machine == Special::Screen && others_ended(case, &report) => {
                if lacks.as_ref().is_none_or(|lacks: &Vec<_>| !lacks.is_empty()) {
                    let rows = screen::rows(&directory.join(MONITOR), directory)?;
                    let found = lacks.insert(screen::lacks(case, &rows, &log, &consoles));
                    if found.is_empty() {
                        neighbours(case).for_each(|(vm, _)| commands.type_to(vm, "!"));
                    }
                }
            }
            // Nothing ends it: the host stands still when it has told all.
            Seen::Idle if bochs::is_over(case, &report) => return Ok(ControlFlow::Break(())),
            Seen::Idle => {}
        }
        Ok(match &mut conductor {
            Some(conductor) => conductor.lead(case, &consoles, &report, &live, &commands),
            None => ControlFlow::Continue(()),
        })
    })?;
    let ended = bochs::ended(case, &report, ended);
    let disk = match case.machine {
        Special::Attacked | Special::Parts => fs::read(directory.join(DISK))?,
        _ => Vec::new(),
    };
    let consoles = consoles.iter().map(|c| String::from_utf8_lossy(c).into_owned()).collect();
    let counted = match fs::read_to_string(counts) {
        Ok(text) => bench::counted(&text)?,
        Err(_) => bench::Plugin::default(),
    };
    let entered =
        counted.boot.zip(counted.firmware).map(|(all, before)| all.saturating_sub(before));
    let screen = lacks.unwrap_or_default();
    Ok(Outcome {
        ended,
        report,
        consoles,
        log,
        answers,
        live,
        unwatched: None,
        edges: counted.edges,
        entered,
        disk,
        screen,
    })
}

/// The VMs that run until all others have ended.
fn neighbours(case: &Case) -> impl Iterator<Item = (usize, &Guest)> {
    case.guests.iter().enumerate().filter(|(_, g)| g.tests == HEARTBEAT && g.options.is_empty())
}

fn others_ended(case: &Case, report: &Report) -> bool {
    let left = report.vms.iter().filter(|vm| vm.end.is_none()).count();
    left == neighbours(case).count()
}

fn says(console: &[u8], text: &str) -> bool {
    console.windows(text.len()).any(|part| part == text.as_bytes())
}

/// The first disk of [`Special::Attacked`] and [`Special::Parts`].
const DISK: &str = "disk";

/// A case's plan, with its kernels in this directory.
pub fn plan(case: &Case, kernel: &Kernel, directory: &Path) -> Result<Plan<File>> {
    let mut vms = Vec::new();
    let mut cores = 1..;
    let port = if case.has(Variant::Linux) { echo::send_back()? } else { 0 };
    for (i, guest) in case.guests.iter().enumerate() {
        let name = NAMES[i % NAMES.len()];
        let path = directory.join(name);
        fs::write(&path, kernel.variant(guest.variant)?)?;
        vms.push(Vm {
            name: name.to_owned(),
            cpus: match guest.cores {
                Cores::Next => cores.by_ref().take(guest.cpus as usize).collect(),
                Cores::First => (1..=guest.cpus).collect(),
                Cores::One => vec![1; guest.cpus as usize],
                Cores::At(core) => vec![core],
            },
            weight: guest.weight,
            limit: guest.limit,
            memory: guest.memory(),
            kernel: path.display().to_string(),
            initrd: kernel.initrd(guest.variant)?,
            cmdline: match guest.variant {
                Variant::Linux => guest.linux_cmdline(port, echo::count()?),
                Variant::Victim => format!("{LINUX} {}", hostile::VICTIM),
                Variant::Hostile => guest.hostile_cmdline(),
                _ => guest.cmdline(case.is_bare()),
            },
            devices: guest.devices.clone(),
            disks: guest.disks.clone(),
            interfaces: guest.interfaces.clone(),
            interrupts: guest.policy,
            reset: match guest.variant {
                _ if guest.restarts => OnReset::Restart,
                Variant::Linux => OnReset::Restart,
                Variant::Hostile if guest.end == Expected::Never => OnReset::Restart,
                _ => OnReset::Stop,
            },
            nested: guest.nested,
            iommu: guest.iommu,
        });
    }
    let (networks, slice_us) = (case.networks.clone(), case.slice_us);
    let first = 1 + vms.iter().flat_map(|vm: &Vm<_>| &vm.cpus).max().copied().unwrap_or(0);
    let sidecores = (first..).take(case.sidecores).collect();
    let plan = Plan { networks, slice_us, sidecores, host: case.host, ..Plan::new(vms) };
    match case.machine {
        Special::Unchecked => plan.try_map(|_, _, path| {
            let path = Path::new(&path).to_owned();
            let bytes = fs::read(&path)?;
            Ok(File { path, bytes })
        }),
        _ => load::files(plan, directory),
    }
}

/// The image of [`Special::is_planted`].
pub fn planted_image(cx: &Context) -> Result<&'static Path> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    once(&BUILT, cx, "planted", "plant")
}

/// The image of this machine, where it isn't the one that users have.
pub fn other_image(machine: Special, cx: &Context) -> Result<Option<&'static Path>> {
    static SWITCHED: OnceLock<PathBuf> = OnceLock::new();
    match machine {
        Special::Switched => once(&SWITCHED, cx, "switched", "switches").map(Some),
        _ if machine.is_planted() => planted_image(cx).map(Some),
        _ => Ok(None),
    }
}

/// Built at the first call; one that was named must have this feature itself.
fn once(
    built: &'static OnceLock<PathBuf>,
    cx: &Context,
    profile: &str,
    feature: &str,
) -> Result<&'static Path> {
    if let Some(path) = built.get() {
        return Ok(path);
    }
    let path = match std::env::var_os("EXITLESS_HYPERVISOR") {
        Some(_) => cx.hypervisor()?.to_owned(),
        None => cx.build_profile("hypervisor", profile, &[feature])?,
    };
    Ok(built.get_or_init(|| path))
}

/// The machine, and what it boots from, if that is more than files in the directory.
fn machine(
    case: &Case,
    plan: Plan<File>,
    directory: &Path,
    cx: &Context,
) -> Result<(Machine, Option<Source>)> {
    if let (Special::Bare | Special::BareWithoutIommu, Some(vm)) = (case.machine, plan.vms.first())
    {
        let mut machine = Machine::bare(&vm.kernel.path, None, &vm.cmdline, MEMORY, Vec::new());
        machine.iommu = (case.machine == Special::Bare).then_some(case.iommu);
        machine.cpus = vm.cpus.len() as u32;
        machine.add_devices(vm.devices.iter().copied())?;
        machine.extra = virtio::emulated(&vm.disks, directory)?;
        return Ok((machine, None));
    }
    let mut image = plan::image::build(&plan)?;
    if let Special::Boots(way, trust, suite) = case.machine {
        let start = Start { way, trust, ovmf: suite.map(|suite| suite.ovmf(cx)) };
        let source = Source::new(&start, &image, cx)?;
        let mut machine = Machine::booting(source.boot.clone(), source.memory, &plan, Vec::new())?;
        machine.iommu = Some(case.iommu);
        return Ok((machine, Some(source)));
    }
    match case.machine {
        Special::DamagedImage => {
            if let Some(byte) = image.get_mut(IN_PLAN) {
                *byte ^= 0x40;
            }
        }
        Special::HalfImage => image.truncate(image.len() / 2),
        _ => {}
    }
    if case.machine == Special::Screen {
        let source = Source::new(&Start::by(Way::UefiKernel), &image, cx)?;
        let mut machine = Machine::booting(source.boot.clone(), source.memory, &plan, Vec::new())?;
        machine.iommu = Some(case.iommu);
        machine.extra = monitor(directory).chain(["-device", "VGA"].map(Into::into)).collect();
        return Ok((machine, Some(source)));
    }
    let path = directory.join("image");
    fs::write(&path, boot_image::with_room(&image))?;
    let mut disks = Vec::new();
    let of_file = match case.machine {
        Special::Attacked => Some(hostile::DISK_BYTES),
        Special::Parts => Some(parts::BYTES),
        _ => None,
    };
    if let Some(bytes) = of_file {
        let disk = directory.join(DISK);
        fs::File::create(&disk)?.set_len(bytes)?;
        disks.push(Disk::File(disk));
    }
    let mut machine = Machine::exitless(cx.hypervisor()?, &path, &plan, disks)?;
    machine.iommu = Some(case.iommu);
    machine.remaps = case.remaps();
    if let Some(other) = other_image(case.machine, cx)? {
        machine.boot = Boot::Exitless { hypervisor: other.to_owned(), image: path };
    }
    match case.machine {
        Special::Cpu(model) => machine.cpu = model.to_owned(),
        Special::NoIommu => machine.iommu = None,
        Special::Nics(models) => machine.connect(&models, &[])?,
        Special::Wired => {
            machine.nics.clear();
            machine.extra = uplink::WIRE.iter().map(Into::into).collect();
        }
        Special::NicBehindPort => {
            machine.nics.clear();
            let port = ["-device", "pcie-root-port,id=above,addr=0x3,chassis=1"];
            let nic = ["-netdev", "user,id=net", "-device", "igb,bus=above,netdev=net,romfile="];
            machine.extra = [port.as_slice(), &nic].concat().into_iter().map(Into::into).collect();
        }
        Special::Devices(devices) | Special::Unplaced(devices) => {
            machine.extra = devices.iter().flat_map(|d| ["-device", d]).map(Into::into).collect();
        }
        Special::Arguments(arguments) => {
            machine.extra = arguments.iter().map(Into::into).collect();
        }
        Special::Monitored { arguments, .. } => {
            machine.extra = monitor(directory).chain(arguments.iter().map(Into::into)).collect();
        }
        Special::Watchdog { stops } => machine.extra = watchdog::arguments(directory, stops)?,
        Special::Strange(strange) => {
            machine.cpus = strange.cpus;
            machine.cpu = strange.cpu.to_owned();
            machine.memory = strange.memory << 30;
            machine.iommu = machine.iommu.filter(|_| strange.iommu);
            machine.extra = strange.arguments.iter().map(Into::into).collect();
            if !strange.image {
                machine.boot = without_image(cx)?;
            }
        }
        Special::OneCore => machine.cpus = 1,
        Special::Memory(mib) => machine.memory = mib << 20,
        Special::NoImage(model) => {
            machine.cpu = model.to_owned();
            machine.boot = without_image(cx)?;
        }
        _ => {}
    }
    Ok((machine, None))
}

/// The hypervisor alone.
fn without_image(cx: &Context) -> Result<Boot> {
    let (kernel, initrd, cmdline) = (cx.hypervisor()?.to_owned(), None, String::new());
    Ok(Boot::Bare { kernel, initrd, cmdline })
}

/// QEMU's arguments for its monitor.
fn monitor(directory: &Path) -> impl Iterator<Item = OsString> {
    let socket = directory.join(MONITOR);
    let monitor = format!("unix:{},server=on,wait=off", socket.display());
    ["-monitor".to_owned(), monitor].into_iter().map(Into::into)
}
