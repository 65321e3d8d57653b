//! The daemon below a stock QEMU: a Debian guest that verifies what it wrote, is given a second
//! disk with packed rings while it runs, and reboots; the same while the daemon is killed and
//! started again, with rings of either kind; the same while others take over from it; the same
//! while the guest goes to another QEMU; the same where firmware boots it from a disk of the
//! daemon's; and a guest with two networks of the daemon's (`network`).
//!
//! Guarantees: each kill is of a daemon that has served requests since it was started, and that
//! requests wait for: it is stopped first, until the guest says how many wait. Each that takes over
//! does so from one that has served requests, while the guest says that some wait. A guest that
//! goes does so while it says that some wait, and verifies at its new place.

mod firmware;
mod network;

use super::{
    names::named,
    source::Source,
    suite::Suite,
    tally::Tally,
    workers::{AT_ONCE, Gate, side_by_side},
};
use crate::{
    cmdline::LINUX,
    console::{Console, pairs, said, tail},
    server::{self, Server},
    stock,
    summary::Summary,
};
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    session::{self, Ended, Framing, Setup},
};
use std::{
    fs, io::Write as _, ops::ControlFlow, os::unix::net::UnixStream, path::Path, process::Command,
    time::Duration,
};

/// A disk: what is verified, and a block for the guest.
const BYTES: u64 = (16 << 20) + 4096;
/// How often the daemon is killed, or upgraded; and how often in a long test.
const CHANGES: usize = 6;
const OFTEN: usize = 1000;
/// Two boots, and rounds of fio, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// For each change: the guest says ten times a second what waits.
const PATIENCE_EACH: Duration = Duration::from_secs(2);
/// What the guest asks of a disk at least: each block of one round is written and read.
const ROUND: u64 = 2 * ((16 << 20) / 4096);

/// A test.
#[derive(Clone, Copy)]
pub struct Kind {
    name: &'static str,
    change: Change,
    changes: usize,
    /// The disk has packed rings.
    packed: bool,
    /// For a long test alone.
    long: bool,
}

impl Kind {
    const fn new(name: &'static str, change: Change, changes: usize) -> Kind {
        Kind { name, change, changes, packed: false, long: changes > CHANGES }
    }

    const fn packed(self) -> Kind {
        Kind { packed: true, ..self }
    }

    /// Others play its parts.
    const fn rare(self) -> Kind {
        Kind { long: true, ..self }
    }
}

impl Kind {
    /// What it is called.
    pub fn name(self) -> &'static str {
        self.name
    }
}

/// What becomes of the daemon meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Killed,
    Upgraded,
    /// It stays, and the guest goes to another QEMU.
    Migrated,
    /// It stays, and the guest is on a disk of it: booted by UEFI firmware, or QEMU's BIOS.
    Booted(Option<Suite>),
    /// It is killed once while TCP goes from one of its networks to another one.
    Networks,
}

impl Change {
    fn word(self) -> &'static str {
        match self {
            Change::Killed => "killed",
            Change::Upgraded => "upgraded",
            Change::Migrated => "migrated",
            Change::Booted(_) => "booted",
            Change::Networks => "killed",
        }
    }
}

const KINDS: [Kind; 10] = [
    // `daemon/killed` has all of it, too.
    Kind::new("daemon/linux", Change::Killed, 0).rare(),
    Kind::new("daemon/killed", Change::Killed, CHANGES),
    Kind::new("daemon/killed-packed", Change::Killed, CHANGES).packed(),
    Kind::new("daemon/often-killed", Change::Killed, OFTEN),
    Kind::new("daemon/often-killed-packed", Change::Killed, OFTEN).packed(),
    Kind::new("daemon/upgraded", Change::Upgraded, CHANGES),
    Kind::new("daemon/migrated", Change::Migrated, 1),
    Kind::new("daemon/networks", Change::Networks, 1),
    // Of the daemon it has what `daemon/boots-uefi` has: queues that nobody interrupts.
    Kind::new("daemon/boots-bios", Change::Booted(None), 0).rare(),
    Kind::new("daemon/boots-uefi", Change::Booted(Some(Suite::Trixie)), 0),
];

/// Those whose name has `only` in it, or all, with those for a `long` test or without; a quick test
/// has none.
pub fn chosen(quick: bool, long: bool, only: Option<&str>) -> Vec<Kind> {
    let chosen =
        |kind: &Kind| only.map_or(!quick && (long || !kind.long), |text| named(kind.name, text));
    KINDS.into_iter().filter(chosen).collect()
}

/// Runs them.
pub fn run(cx: &Context, gate: &Gate, chosen: &[Kind], tally: &Tally) -> Result<Summary> {
    if chosen.is_empty() {
        return Ok(Summary::default());
    }
    let guest = stock::guest(cx)?;
    let program = server::packed(cx)?;
    side_by_side(cx, gate, chosen, AT_ONCE, |kind| {
        tally.play(cx, kind.name, || one(cx, *kind, &guest, &program))
    })
}

/// A disk of its own daemon.
struct Served<'a> {
    program: &'a Path,
    arguments: Vec<String>,
    control: String,
    server: Option<Server>,
}

impl<'a> Served<'a> {
    fn new(program: &'a Path, folder: &Path, name: &str, more: &[&str]) -> Result<Self> {
        let path = |end: &str| folder.join(format!("{name}{end}")).display().to_string();
        let (file, socket, control) = (path(".img"), path(".sock"), path(".control"));
        // One that is booted from is there.
        if !Path::new(&file).exists() {
            fs::File::create(&file)?.set_len(BYTES)?;
        }
        let arguments = ["disk", "--file", &file, "--socket", &socket, "--control", &control];
        let arguments = arguments.iter().chain(more).map(|word| (*word).to_owned()).collect();
        let mut served = Served { program, arguments, control, server: None };
        served.start()?;
        Ok(served)
    }

    fn start(&mut self) -> Result<()> {
        let arguments = self.arguments.clone();
        self.server = Some(self.run(&arguments)?);
        Ok(())
    }

    fn run(&self, arguments: &[String]) -> Result<Server> {
        let mut command = Command::new(self.program);
        command.args(arguments);
        Server::run(command, |line| line.contains("serves"))
    }

    /// Another one takes over.
    fn upgrade(&mut self) -> Result<()> {
        let next = self.run(&["upgrade", "--control", &self.control].map(str::to_owned))?;
        let last = self.server.replace(next).context("it runs")?;
        last.ended().context("the daemon that was upgraded")
    }

    fn freeze(&self) -> Result<()> {
        self.server.as_ref().context("it runs")?.freeze()
    }

    fn kill(&mut self) -> Result<()> {
        self.server.take().context("it runs")?.kill()
    }
}

/// What is done to the daemon, by what the guest says.
struct Changer {
    change: Change,
    left: usize,
    /// Requests that the disk had served when the daemon was started.
    since: u64,
    frozen: bool,
    /// Requests that waited at each change.
    waited: Vec<u64>,
}

impl Changer {
    /// The guest said how many requests were served and wait. Whether the last change was made.
    fn hear(&mut self, line: &str, disk: &mut Served<'_>) -> Result<bool> {
        let pairs = pairs(line);
        let number = |key| pairs.get(key).and_then(|n| n.parse::<u64>().ok());
        let (Some(served), Some(waiting)) = (number("served"), number("waiting")) else {
            bail!("the guest said: {line}");
        };
        if self.left == 0 {
            return Ok(true);
        }
        if self.change == Change::Upgraded {
            if served > self.since && waiting > 0 {
                disk.upgrade()?;
                self.waited.push(waiting);
                self.left -= 1;
            }
        } else if !self.frozen && served > self.since && waiting > 0 {
            disk.freeze()?;
            self.frozen = true;
        } else if self.frozen && waiting > 0 && served == self.since {
            disk.kill()?;
            disk.start()?;
            self.waited.push(waiting);
            self.left -= 1;
            self.frozen = false;
        }
        // Of a daemon that is stopped, twice the same: none is on its way any more.
        self.since = served;
        Ok(self.left == 0)
    }
}

/// Runs one: what is to be told of it.
fn one(cx: &Context, kind: Kind, guest: &Path, program: &Path) -> Result<String> {
    let folder = tempfile::tempdir().context("no directory for temporary files")?;
    let folder = folder.path();
    let Kind { change, changes, packed, .. } = kind;
    if change == Change::Networks {
        return network::run(cx, guest, program, folder, PATIENCE);
    }
    let _boot = match change {
        Change::Booted(_) => {
            let words = words("vdb", "vdc");
            firmware::image(cx, guest, &words, &folder.join("boot.img"))?;
            Some(Served::new(program, folder, "boot", &[])?)
        }
        _ => None,
    };
    let options = ["--front-ends", "2", "--packed"];
    let options = &options[..if packed { 3 } else { 2 }];
    let mut disk = Served::new(program, folder, "first", options)?;
    let _second = Served::new(program, folder, "second", &["--packed"])?;
    let mut changer =
        Changer { change, left: changes, since: 0, frozen: false, waited: Vec::new() };
    let mut command = machine(cx, folder, packed, "monitor")?;
    match change {
        Change::Booted(suite) => command.args(firmware::arguments(cx, suite, folder)?),
        _ => stock::starts(&mut command, guest, &words("vda", "vdb")),
    };
    let mut source = None;
    if change == Change::Migrated {
        let to = folder.join("migration");
        command.arg("-incoming").arg(format!("unix:{}", to.display()));
        let mut from = machine(cx, folder, packed, "source")?;
        stock::starts(&mut from, guest, &words("vda", "vdb"));
        source = Some(Source::start(from, folder.join("source"), to)?);
        // What the second machine says is said after it.
        changer.left = 0;
    }
    let mut console = Console::default();
    // Kept open: what was said to it may not be heard yet.
    let mut monitor = None;
    // Firmware reads by itself before, and again at the reboot.
    let patience = if matches!(change, Change::Booted(_)) { 2 * PATIENCE } else { PATIENCE };
    let timeout = Some(patience + PATIENCE_EACH * changes as u32);
    let setup = Setup { command, framing: Framing::Raw, timeout, typed: None };
    let ended = session::run(setup, cx, |seen| {
        console.see(&seen);
        while let Some(line) = console.line() {
            let Some(said) = said(&line, "at") else { continue };
            if monitor.is_none() && changer.hear(said, &mut disk)? {
                let mut socket = UnixStream::connect(folder.join("monitor"))?;
                socket.write_all(plug(folder).as_bytes())?;
                monitor = Some(socket);
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let console = console.text();
    if !matches!(ended, Ended::Exited { status: 0, .. }) {
        bail!("QEMU ended so: {ended:?}; the console's end: {}", tail(&console));
    }
    if let Some(source) = source {
        changer.waited.push(source.left()?);
    }
    let how = change.word();
    if changer.waited.len() != changes {
        bail!("it was {how} {} times, not {changes}", changer.waited.len());
    }
    let told = judge(&console)?;
    let waited = changer.waited.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    Ok(match changes {
        0 => told,
        OFTEN => format!("{told}; {how} {changes} times while requests waited"),
        _ => format!("{told}; {how} {changes} times, while {waited} requests waited"),
    })
}

/// A machine of QEMU as users have it, whose disks are the daemon's: the one that is booted from,
/// if there is one, and one to verify.
fn machine(cx: &Context, folder: &Path, packed: bool, monitor: &str) -> Result<Command> {
    let path = |file: &str| folder.join(file).display().to_string();
    let is_booted = folder.join("boot.img").exists();
    // With 256 MiB GRUB has no room for the kernel beside UEFI firmware.
    let size = if is_booted { "512M" } else { "256M" };
    let mut command = Command::new(cx.qemu(None)?.program());
    stock::machine(&mut command, "tcg", size);
    command.args(["-monitor", &format!("unix:{},server=on,wait=off", path(monitor))]);
    if is_booted {
        stock::disk(&mut command, "boot", &folder.join("boot.sock"), ",bootindex=0");
    }
    let packed = if packed { ",packed=on" } else { "" };
    stock::disk(&mut command, "first", &folder.join("first.sock"), packed);
    command.args(["-device", "pcie-root-port,id=below,chassis=1"]);
    Ok(command)
}

/// What the guest hears: which disk it verifies, and which one comes later. It doesn't try its
/// timer, which gives up within a second, less than a busy machine may leave QEMU without a CPU.
fn words(disk: &str, second: &str) -> String {
    let disks = format!("exitless.disk={disk} exitless.second={second}");
    format!("{LINUX} quiet no_timer_check exitless.workload=verify {disks}")
}

/// What the monitor is told, so that the second disk comes.
fn plug(folder: &Path) -> String {
    let chardev = stock::chardev("second", &folder.join("second.sock"));
    let device =
        "device_add vhost-user-blk-pci,id=late,bus=below,chardev=second,num-queues=1,packed=on";
    format!("chardev-add {chardev}\n{device}\n")
}

fn judge(console: &str) -> Result<String> {
    let line = |word: &str| {
        let mut lines = console.lines().filter_map(|line| line.split("@exitless ").nth(1));
        let found = lines.find_map(|line| line.strip_prefix(word));
        found.with_context(|| {
            format!("it didn't say \"{word}\"; the console's end: {}", tail(console))
        })
    };
    let (verified, rebooted) = (line("verified ")?, line("rebooted ")?);
    let expect = |said: &str, key: &str, good: &dyn Fn(u64) -> bool| {
        let pairs = pairs(said);
        match pairs.get(key).and_then(|n| n.parse().ok()) {
            Some(number) if good(number) => Ok(number),
            _ => {
                bail!("{key} isn't what it should be: {said}; the console's end: {}", tail(console))
            }
        }
    };
    let none: &dyn Fn(u64) -> bool = &|number| number == 0;
    let rounds = expect(verified, "rounds", &|rounds| rounds > 0)?;
    expect(verified, "failed", none)?;
    expect(verified, "complaints", none)?;
    expect(verified, "second", &|served| served >= ROUND)?;
    expect(rebooted, "same", &|same| same == 1)?;
    expect(rebooted, "complaints", none)?;
    expect(rebooted, "served", &|served| served > 0)?;
    Ok(format!("{rounds} rounds of {ROUND} requests and one on a disk that came later, no error"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "@exitless verified rounds=3 failed=0 second=8192 complaints=0\n\
                        @exitless rebooted same=1 served=260 complaints=0\n";

    #[test]
    fn only_what_is_all_right_passes() {
        judge(GOOD).unwrap();
        for (from, to) in [
            ("rounds=3", "rounds=0"),
            ("failed=0", "failed=1"),
            ("second=8192", "second=8000"),
            ("8192 complaints=0", "8192 complaints=1"),
            ("same=1", "same=0"),
            ("served=260", "served=0"),
            ("260 complaints=0", "260 complaints=2"),
            ("@exitless rebooted", ""),
            ("@exitless verified", ""),
        ] {
            assert!(judge(&GOOD.replace(from, to)).is_err(), "{from} → {to}");
        }
    }
}
