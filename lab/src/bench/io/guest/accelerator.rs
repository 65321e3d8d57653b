//! What runs the guest's instructions: KVM where it can, else QEMU's emulator.

use crate::{
    cmdline::LINUX,
    console::{Console, said},
    stock,
};
use anyhow::{Result, bail};
use exitless::{
    context::Context,
    session::{self, Ended, Framing, Setup},
};
use std::{fs::File, ops::ControlFlow, path::Path, process::Command, time::Duration};

const DEVICE: &str = "/dev/kvm";
/// KVM that hasn't booted the guest by then never will.
const PATIENCE: Duration = Duration::from_secs(20);

/// An accelerator of QEMU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    Kvm,
    Tcg,
}

impl Accelerator {
    /// KVM, if a guest says something with it: its device may be there, and run none.
    pub fn find(cx: &Context, guest: &Path) -> Result<Accelerator> {
        if File::options().read(true).write(true).open(DEVICE).is_err() {
            return Ok(Accelerator::Tcg);
        }
        let mut command = Command::new(cx.qemu(None)?.program());
        stock::machine(&mut command, Accelerator::Kvm.name(), "256M");
        Accelerator::Kvm.processor(&mut command);
        let words = format!("{LINUX} quiet no_timer_check exitless.workload=none");
        stock::starts(&mut command, guest, &words);
        let (mut console, mut is_there) = (Console::default(), false);
        let setup = Setup { command, framing: Framing::Raw, timeout: Some(PATIENCE), typed: None };
        let ended = session::run(setup, cx, |seen| {
            console.see(&seen);
            while let Some(line) = console.line() {
                is_there |= said(&line, "hello").is_some();
            }
            Ok(if is_there { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if ended == Ended::Interrupted {
            bail!("stopped");
        }
        Ok(if is_there { Accelerator::Kvm } else { Accelerator::Tcg })
    }

    /// As QEMU calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }

    /// The processor that the machine has.
    pub fn processor(self, command: &mut Command) {
        if self == Accelerator::Kvm {
            command.args(["-cpu", "host"]);
        }
    }

    /// What figures are of that were measured with it, a sentence.
    pub const fn note(self) -> &'static str {
        match self {
            Accelerator::Kvm => "The guest runs by KVM.",
            Accelerator::Tcg => {
                "KVM can't run the guest here, so QEMU emulates its processor (TCG): the guest is the limit at any depth, its kernel and fio \
                 cost most of a request's time, and rates and latencies say little of servers; their own ticks do."
            }
        }
    }
}
