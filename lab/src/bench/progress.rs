//! Says what a long measurement is doing: one line for each step, kept up to date
//! on a terminal; else a plain line when the step begins and one when it ends; and how long the
//! rest will take.

use std::{
    cell::Cell,
    io::{IsTerminal, Write, stderr},
    time::{Duration, Instant},
};

const EVERY: Duration = Duration::from_millis(200);

/// A number of steps that take about as long each.
pub struct Course {
    steps: usize,
    begun: usize,
    ended: usize,
    start: Instant,
    /// Whether steps run beside each other, so that none has a line to keep up to date.
    beside: bool,
}

impl Course {
    /// With so many steps.
    pub fn new(steps: usize, beside: bool) -> Course {
        Course { steps, begun: 0, ended: 0, start: Instant::now(), beside }
    }

    /// Begins the next step, if there is one, and says which it is.
    pub fn next(&mut self, name: impl Fn(usize) -> String) -> Option<(usize, Step)> {
        let index = self.begun;
        if index == self.steps {
            return None;
        }
        self.begun += 1;
        let width = self.steps.to_string().len();
        let mut step =
            Step::named(format!("{:>width$}/{} {}", self.begun, self.steps, name(index)));
        step.terminal &= !self.beside;
        step.left = left(self.start.elapsed(), self.ended, self.steps);
        step.begun();
        Some((index, step))
    }

    /// A step is over.
    pub fn done(&mut self) {
        self.ended += 1;
    }
}

/// How long the steps that haven't ended will take, if they take what the others took.
fn left(passed: Duration, ended: usize, steps: usize) -> Option<Duration> {
    let each = passed.checked_div(u32::try_from(ended).ok()?)?;
    each.checked_mul(u32::try_from(steps.checked_sub(ended)?).ok()?)
}

/// "40 s", "3 min", "1 h 05 min".
fn rough(time: Duration) -> String {
    match time.as_secs() {
        s @ 0..=89 => format!("{s} s"),
        s @ 90..=5_399 => format!("{} min", (s + 30) / 60),
        s => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
    }
}

/// One step of a measurement.
pub struct Step {
    name: String,
    start: Instant,
    /// For this step and those after it, at its beginning.
    left: Option<Duration>,
    doing: Cell<&'static str>,
    shown: Cell<Option<Instant>>,
    terminal: bool,
}

impl Step {
    /// Begins a step and says so.
    pub fn begin(name: String) -> Step {
        let step = Step::named(name);
        step.begun();
        step
    }

    fn named(name: String) -> Step {
        let (doing, shown) = (Cell::new(""), Cell::new(None));
        let terminal = stderr().is_terminal();
        Step { name, start: Instant::now(), left: None, doing, shown, terminal }
    }

    fn begun(&self) {
        if self.terminal {
            self.tick();
        } else {
            self.show("begins\n");
        }
    }

    /// What the step does now.
    pub fn say(&self, doing: &'static str) {
        self.doing.set(doing);
        self.shown.set(None);
        self.tick();
    }

    /// The step comes to a part of it that takes long: a line for each, where there is no line to
    /// keep up to date.
    pub fn phase(&self, doing: &'static str) {
        if self.terminal {
            self.say(doing);
        } else {
            self.show(&format!("{doing}; {:.0} s\n", self.start.elapsed().as_secs_f64()));
        }
    }

    /// Time passed.
    pub fn tick(&self) {
        let now = Instant::now();
        if self.terminal && self.shown.get().is_none_or(|at| now - at >= EVERY) {
            self.shown.set(Some(now));
            let passed = self.start.elapsed();
            let left = self.left.map_or(String::new(), |l| {
                format!(", about {} left", rough(l.saturating_sub(passed)))
            });
            self.show(&format!("{} {:.0} s{left}", self.doing.get(), passed.as_secs_f64()));
        }
    }

    /// The step is over.
    pub fn end(self, with: &str) {
        let passed = self.start.elapsed();
        let left = self
            .left
            .filter(|_| !self.terminal)
            .map_or(String::new(), |l| format!(", about {} left", rough(l.saturating_sub(passed))));
        self.show(&format!("{with}; {:.0} s{left}\n", passed.as_secs_f64()));
    }

    fn show(&self, text: &str) {
        // A closed standard error is no reason to stop measuring.
        let _ = write!(stderr(), "{}", self.line(text));
        let _ = stderr().flush();
    }

    /// On a terminal it takes the place of the one before.
    fn line(&self, text: &str) -> String {
        let line = format!("  {}  {text}", self.name);
        match self.terminal {
            true => format!("\r\x1b[K{}", cut(&line, columns())),
            false => line,
        }
    }
}

/// The terminal's columns, where it tells them.
fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(stderr()).ok();
    size.map(|s| usize::from(s.ws_col)).filter(|n| *n > 0).unwrap_or(usize::MAX)
}

/// What of a line can be taken back: one that reaches the terminal's last column goes on in the
/// next row, and only that row is cleared. A line that has ended stays, and stays whole.
fn cut(line: &str, columns: usize) -> &str {
    let end = line.char_indices().nth(columns.saturating_sub(1)).map(|(at, _)| at);
    match end {
        Some(end) if !line.ends_with('\n') => line.get(..end).unwrap_or(line),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_comes_once() {
        let mut course = Course::new(2, true);
        let next =
            |course: &mut Course| course.next(|i| format!("step {i}")).map(|(i, s)| (i, s.name));
        assert_eq!(next(&mut course), Some((0, "1/2 step 0".into())));
        assert_eq!(next(&mut course), Some((1, "2/2 step 1".into())));
        assert_eq!(next(&mut course), None);
    }

    #[test]
    fn what_is_no_terminal_has_plain_lines() {
        let step = |terminal| Step { terminal, ..Step::named("1/2 x".into()) };
        assert_eq!(step(false).line("begins\n"), "  1/2 x  begins\n");
        assert_eq!(step(false).line("done; 3 s\n"), "  1/2 x  done; 3 s\n");
        assert_eq!(step(true).line("done; 3 s\n"), "\r\x1b[K  1/2 x  done; 3 s\n");
    }

    #[test]
    fn the_rest_takes_what_the_others_took() {
        let seconds = Duration::from_secs;
        assert_eq!(left(seconds(0), 0, 4), None);
        assert_eq!(left(seconds(30), 1, 4), Some(seconds(90)));
        assert_eq!(left(seconds(40), 4, 4), Some(seconds(0)));
        assert_eq!(left(seconds(40), 5, 4), None);
    }

    #[test]
    fn a_line_that_is_kept_up_to_date_stays_in_its_row() {
        assert_eq!(cut("  µs µs", 5), "  µs");
        assert_eq!(cut("12345", 6), "12345");
        assert_eq!(cut("12345", 5), "1234");
        assert_eq!(cut("12345\n", 3), "12345\n");
        assert_eq!(cut("12345", usize::MAX), "12345");
    }

    #[test]
    fn times_are_rough() {
        let said = [0, 89, 90, 5_399, 5_400, 7_500].map(|s| rough(Duration::from_secs(s)));
        assert_eq!(said, ["0 s", "89 s", "2 min", "90 min", "1 h 30 min", "2 h 05 min"]);
    }
}
