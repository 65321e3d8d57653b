//! Watching a run of one guest or several: what each says, and when all go on.
//!
//! Guarantees: several guests are told to measure when all are under load, and to end when all have
//! closed their last window; the same again for each further load of theirs. Where a guest waits
//! for the one before it to end, it is told at that.

use super::{
    emulated::{self, MAX_CONSOLE, last_line},
    lines,
    progress::Step,
};
use anyhow::{Context as _, Result, bail};
use exitless::{
    context::Context,
    machine::Machine,
    report::Report,
    session::{self, Commands, Ended, Framing, Seen, Setup, Typed},
    stream::Piece,
};
use std::{
    ops::ControlFlow,
    sync::{Arc, mpsc},
    time::Duration,
};

/// What all must have said before they are told to go on, and what they do then.
const STAGES: [(&str, &str); 2] =
    [("@exitless loaded", "measures"), ("@exitless load-over", "ends")];

/// What is seen of a run.
pub struct Watch {
    names: Vec<String>,
    consoles: Vec<Vec<u8>>,
    report: Report,
    /// The first guest waits for the end of the second one.
    first_waits: bool,
    /// Loads of each guest, one after the other.
    loads: usize,
    /// How often all were told to go on.
    told: usize,
}

impl Watch {
    /// Of guests with these names, in their order on the consoles.
    pub fn new(names: Vec<String>) -> Self {
        let report = Report::new(names.iter().map(String::as_str));
        let consoles = vec![Vec::new(); names.len()];
        Watch { names, consoles, report, first_waits: false, loads: 1, told: 0 }
    }

    /// The same, and the first guest is told once more when the second has ended.
    pub fn first_waits(self) -> Self {
        Watch { first_waits: true, ..self }
    }

    /// The same, and each guest measures so many loads.
    pub fn loads(self, loads: usize) -> Self {
        Watch { loads, ..self }
    }

    /// Runs the machine until it ends, or until what was seen of it is `enough`.
    pub fn run(
        &mut self,
        cx: &Context,
        machine: &Machine,
        framing: Framing,
        patience: Duration,
        step: &Step,
        enough: impl Fn(&Report) -> bool,
    ) -> Result<Ended> {
        let (_nobody, bytes) = mpsc::channel();
        let commands = Arc::new(Commands::default());
        let setup = Setup {
            command: machine.command(cx)?,
            framing,
            timeout: Some(patience),
            typed: Some(Typed { bytes, to: 0, commands: commands.clone() }),
        };
        step.say("boots");
        let ended = session::run(setup, cx, |seen| {
            self.see(seen, &commands, step);
            let over = enough(&self.report);
            Ok(if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if cx.interrupted() {
            bail!("stopped");
        }
        Ok(ended)
    }

    /// What was seen, and what the guests are told at that.
    fn see(&mut self, seen: Seen, commands: &Commands, step: &Step) {
        match seen {
            Seen::Said(Piece::Console { vm, bytes }) => {
                if let Some(console) = self.consoles.get_mut(vm)
                    && console.len() < MAX_CONSOLE
                {
                    console.extend_from_slice(bytes);
                }
            }
            Seen::Said(Piece::Record(record)) => self.report.see(&record),
            _ => {}
        }
        step.tick();
        if self.consoles.len() > 1
            && self.told < STAGES.len() * self.loads
            && let Some((mark, then)) = STAGES.get(self.told % STAGES.len())
            && self.consoles.iter().all(|c| {
                let said = String::from_utf8_lossy(c);
                said.matches(mark).count() > self.told / STAGES.len()
            })
        {
            self.told += 1;
            step.say(then);
            (0..self.consoles.len()).for_each(|vm| commands.type_to(vm, "\n"));
        }
        if self.first_waits
            && self.told == STAGES.len()
            && self.report.vms.get(1).is_some_and(|vm| vm.end.is_some())
        {
            self.told += 1;
            commands.type_to(0, "\n");
        }
    }

    /// What the hypervisor reported.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What each guest reported of its windows. An error says which one didn't, and its last line.
    pub fn guests(&self, ended: &Ended) -> Result<Vec<lines::Guest>> {
        (0..self.consoles.len()).map(|i| self.guest(i, ended)).collect()
    }

    /// What this one did.
    pub fn guest(&self, index: usize, ended: &Ended) -> Result<lines::Guest> {
        let console = self.consoles.get(index).map_or(&[][..], Vec::as_slice);
        let console = String::from_utf8_lossy(console);
        let why = || {
            let how = self.report.failure(ended).unwrap_or_else(|| format!("{ended:?}"));
            format!("{how}, before it had reported; its last line: {}", last_line(&console))
        };
        let guest = lines::guest(&console).and_then(|guest| emulated::reported(guest, why));
        guest.with_context(|| format!("guest {}", self.names.get(index).map_or("", String::as_str)))
    }
}
