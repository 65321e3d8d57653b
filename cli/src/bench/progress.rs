//! Says what a long measurement is doing: one line for each step, kept up to date
//! on a terminal, written when the step ends otherwise.

use std::{
    cell::Cell,
    io::{IsTerminal, Write, stderr},
    time::{Duration, Instant},
};

const EVERY: Duration = Duration::from_millis(200);

/// One step of a measurement.
pub struct Step {
    name: String,
    start: Instant,
    doing: Cell<&'static str>,
    shown: Cell<Option<Instant>>,
    terminal: bool,
}

impl Step {
    /// Begins a step and says so.
    pub fn begin(name: String) -> Step {
        let terminal = stderr().is_terminal();
        let step = Step {
            name,
            start: Instant::now(),
            doing: Cell::new(""),
            shown: Cell::new(None),
            terminal,
        };
        step.tick();
        step
    }

    /// What the step does now.
    pub fn say(&self, doing: &'static str) {
        self.doing.set(doing);
        self.shown.set(None);
        self.tick();
    }

    /// Time passed.
    pub fn tick(&self) {
        let now = Instant::now();
        if self.terminal && self.shown.get().is_none_or(|at| now - at >= EVERY) {
            self.shown.set(Some(now));
            self.show(&format!("{} {:.0} s", self.doing.get(), self.start.elapsed().as_secs_f64()));
        }
    }

    /// The step is over.
    pub fn end(self, with: &str) {
        self.show(&format!("{with}; {:.0} s\n", self.start.elapsed().as_secs_f64()));
    }

    fn show(&self, text: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        // A closed standard error is no reason to stop measuring.
        let _ = write!(stderr(), "{clear}  {}  {text}", self.name);
        let _ = stderr().flush();
    }
}
