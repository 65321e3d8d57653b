//! A Debian guest below a stock QEMU with two networks of one daemon, on one switch: its kernel's
//! own driver, with all that QEMU and the daemon agree on, and one of them with two pairs of
//! queues.
//!
//! Guarantees: what the guest compares went by the daemon, in both directions at once; segments
//! longer than a frame went whole; and the daemon was killed while files were on their way, and
//! started again, without a wrong byte and without an end of the guest's connections.

use crate::{
    cmdline::LINUX,
    console::{Console, pairs, said, tail},
    server::Server,
    stock,
};
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    session::{self, Ended, Framing, Setup},
};
use std::{fs, ops::ControlFlow, path::Path, process::Command, time::Duration};

/// The round in which the daemon is killed, of three.
const KILLED_IN: &str = "round=2";
/// Files that come as they went: one each way in each round.
const SAME: u64 = 6;
const PINGS: u64 = 20;
/// Bytes of the longest frame that isn't a segment to be cut.
const FRAME: u64 = 1514;

/// Runs it: what is to be told of it.
pub fn run(
    cx: &Context,
    guest: &Path,
    program: &Path,
    folder: &Path,
    patience: Duration,
) -> Result<String> {
    let path = |file: &str| folder.join(file).display().to_string();
    let plan = path("io.toml");
    let network = |name: &str, pairs: u32, more: &str| {
        let socket = path(&format!("{name}.sock"));
        format!("[network.{name}]\nsocket = {socket:?}\nswitch = \"lan\"\nqueues = {pairs}\n{more}")
    };
    let one = network("one", 1, "mac = \"02:00:00:00:00:01\"\n");
    fs::write(&plan, one + &network("two", 2, ""))?;
    let start = || {
        let mut command = Command::new(program);
        command.args(["run", &plan]);
        Server::run(command, |line| line.contains("serves"))
    };
    let mut server = Some(start()?);
    let command = machine(cx, guest, folder)?;
    let (mut console, mut kills) = (Console::default(), 0);
    let setup = Setup { command, framing: Framing::Raw, timeout: Some(patience), typed: None };
    let ended = session::run(setup, cx, |seen| {
        console.see(&seen);
        while let Some(line) = console.line() {
            if said(&line, "at") == Some(KILLED_IN) {
                server.take().context("it runs")?.kill()?;
                server = Some(start()?);
                kills += 1;
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let console = console.text();
    if !matches!(ended, Ended::Exited { status: 0, .. }) {
        bail!("QEMU ended so: {ended:?}; the console's end: {}", tail(&console));
    }
    if kills != 1 {
        bail!("the daemon was killed {kills} times, not once");
    }
    judge(&console)
}

/// A machine of QEMU as users have it, with two CPUs.
fn machine(cx: &Context, guest: &Path, folder: &Path) -> Result<Command> {
    let mut command = Command::new(cx.qemu(None)?.program());
    stock::machine(&mut command, "tcg", "256M").args(["-smp", "2"]);
    for (name, mac, queues, more) in
        [("one", 1, "", ""), ("two", 2, ",queues=2", ",mq=on,vectors=6")]
    {
        let chardev = stock::chardev(name, &folder.join(format!("{name}.sock")));
        let device =
            format!("virtio-net-pci,netdev={name}-net,mac=02:00:00:00:00:0{mac},romfile={more}");
        command.args(["-chardev", &chardev, "-device", &device]);
        command.args(["-netdev", &format!("vhost-user,id={name}-net,chardev={name}{queues}")]);
    }
    let words = format!("{LINUX} quiet no_timer_check exitless.workload=network");
    stock::starts(&mut command, guest, &words);
    Ok(command)
}

fn judge(console: &str) -> Result<String> {
    let mut lines = console.lines().filter_map(|line| line.split("@exitless network ").nth(1));
    let said = lines.next();
    let said = said.with_context(|| format!("the console's end: {}", tail(console)))?;
    let pairs = pairs(said);
    let number = |key| pairs.get(key).and_then(|number| number.parse::<u64>().ok());
    let is_right = number("pings") == Some(PINGS)
        && number("same") == Some(SAME)
        && number("complaints") == Some(0)
        && number("average").is_some_and(|bytes| bytes > FRAME);
    if !is_right {
        bail!(
            "of {PINGS} echoes, {SAME} files that are the same, more than {FRAME} bytes a packet, \
             and no complaint the guest says: {said}; the console's end: {}",
            tail(console)
        );
    }
    let average = number("average").unwrap_or(0);
    Ok(format!(
        "{PINGS} echoes, {SAME} files of 16 MiB, {average} bytes a packet; the daemon was killed once \
         meanwhile"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "@exitless network pings=20 same=6 average=9000 complaints=0\n";

    #[test]
    fn only_what_is_all_right_passes() {
        judge(GOOD).unwrap();
        for (from, to) in [
            ("pings=20", "pings=19"),
            ("same=6", "same=5"),
            ("average=9000", "average=1500"),
            ("complaints=0", "complaints=1"),
            ("network", "nothing"),
        ] {
            assert!(judge(&GOOD.replace(from, to)).is_err(), "{from} → {to}");
        }
    }
}
