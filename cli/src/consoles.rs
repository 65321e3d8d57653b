//! Shows the VMs' consoles on one terminal: as they come when one VM is chosen or there is only
//! one, else line by line with `name| ` before each.
//!
//! Guarantees: of several consoles no line of up to [`MAX_LINE`] bytes is cut by another's: each
//! is shown whole, in its VM's order. A line that its VM leaves unfinished for [`PROMPT`], such as
//! a prompt, is shown as far as it goes; when others wrote meanwhile it is shown again, from its
//! start, once it goes on. What a VM writes there stays in its own line: escape sequences and
//! control characters go no further, but a backspace over what the same line has. The one VM that
//! is shown alone has the terminal, as a serial line would give it.

use screen::escape::{Event, Parser};
use std::{
    io::{self, Write},
    mem,
    time::{Duration, Instant},
};

/// Where a line is cut that doesn't end.
pub const MAX_LINE: usize = 4096;
/// How long a line may stay unfinished before it is taken for a prompt.
pub const PROMPT: Duration = Duration::from_millis(700);

/// The consoles of a plan's VMs.
pub struct Consoles {
    names: Vec<String>,
    width: usize,
    /// The one VM that is shown as it writes.
    raw: Option<usize>,
    /// What each VM wrote since its last complete line.
    lines: Vec<Line>,
    /// Whose unfinished line the terminal's last line is.
    open: Option<usize>,
}

/// A line that isn't complete.
struct Line {
    text: Vec<u8>,
    /// Reads what comes, which goes on over the line's end.
    parser: Parser,
    /// How far a backspace may go: over characters of one column each.
    columns: usize,
    /// How much of it the terminal's last line shows, while that is this one.
    shown: usize,
    /// How much of it was on the terminal once. Of a line that was begun there, what comes is an
    /// answer's echo, and shown soon.
    seen: usize,
    /// When it grew last.
    grew: Option<Instant>,
}

impl Line {
    const fn new(parser: Parser) -> Line {
        Line { text: Vec::new(), parser, columns: 0, shown: 0, seen: 0, grew: None }
    }

    /// Takes a byte. True if the line is complete.
    fn take(&mut self, byte: u8) -> bool {
        let (text, columns, mut ended) = (&mut self.text, &mut self.columns, false);
        self.parser.push(byte, |event| match event {
            Event::Newline => ended = true,
            Event::Tab => {
                text.push(b'\t');
                *columns += 1;
            }
            Event::Back if *columns > 0 => {
                text.push(b'\x08');
                *columns -= 1;
            }
            Event::Char(c) if !c.is_control() => {
                text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                // Others may take no column, or two.
                *columns = if c.is_ascii() { *columns + 1 } else { 0 };
            }
            Event::Char(_) | Event::Back | Event::Return => {}
            Event::EraseRest | Event::EraseLine => {}
        });
        ended
    }
}

impl Consoles {
    /// For the VMs of these names, in the plan's order; `chosen`: the only one to show.
    pub fn new(names: Vec<String>, chosen: Option<usize>) -> Self {
        let width = names.iter().map(String::len).max().unwrap_or(0);
        let raw = chosen.or((names.len() == 1).then_some(0));
        let lines = names.iter().map(|_| Line::new(Parser::NEW)).collect();
        Consoles { width, raw, lines, names, open: None }
    }

    /// Shows what a VM wrote.
    pub fn write(
        &mut self,
        vm: usize,
        bytes: &[u8],
        now: Instant,
        out: &mut impl Write,
    ) -> io::Result<()> {
        if let Some(raw) = self.raw {
            if raw != vm {
                return Ok(());
            }
            self.open = (!bytes.ends_with(b"\n")).then_some(vm);
            out.write_all(bytes)?;
            return out.flush();
        }
        for byte in bytes {
            let Some(line) = self.lines.get_mut(vm) else { return Ok(()) };
            let had = line.text.len();
            let ended = line.take(*byte);
            if line.text.len() > had {
                line.grew = Some(now);
            }
            if ended || line.text.len() >= MAX_LINE {
                self.complete(vm, out)?;
            }
        }
        // The terminal's last line is this one already: nothing is cut by going on.
        if self.open == Some(vm) {
            self.show(vm, out)?;
        }
        self.prompts(now, out)?;
        out.flush()
    }

    /// Nothing came for a moment: shows lines that were begun long ago, such as prompts.
    pub fn idle(&mut self, now: Instant, out: &mut impl Write) -> io::Result<()> {
        for vm in 0..self.lines.len() {
            let line = &self.lines[vm];
            if line.seen > 0 && line.seen < line.text.len() && self.open.is_none() {
                self.show(vm, out)?;
            }
        }
        self.prompts(now, out)?;
        out.flush()
    }

    /// The run is over: shows what was begun.
    pub fn finish(&mut self, out: &mut impl Write) -> io::Result<()> {
        for vm in 0..self.lines.len() {
            let line = &self.lines[vm];
            if line.seen < line.text.len() {
                self.complete(vm, out)?;
            }
        }
        out.flush()
    }

    /// Makes the terminal start a new line, for output that isn't a console's.
    pub fn close_line(&mut self, out: &mut impl Write) -> io::Result<()> {
        let Some(vm) = self.open.take() else { return Ok(()) };
        self.lines[vm].shown = 0;
        out.write_all(b"\r\n")
    }

    fn prompts(&mut self, now: Instant, out: &mut impl Write) -> io::Result<()> {
        for vm in 0..self.lines.len() {
            let line = &mut self.lines[vm];
            let old = line.grew.is_some_and(|grew| now.duration_since(grew) >= PROMPT);
            if old && !line.text.is_empty() {
                line.grew = None;
                self.show(vm, out)?;
            }
        }
        Ok(())
    }

    /// Shows as much of a line as there is.
    fn show(&mut self, vm: usize, out: &mut impl Write) -> io::Result<()> {
        if self.open != Some(vm) {
            self.close_line(out)?;
            write!(out, "{:width$}| ", self.names[vm], width = self.width)?;
        }
        self.open = Some(vm);
        let line = &mut self.lines[vm];
        let from = mem::replace(&mut line.shown, line.text.len());
        line.seen = line.text.len();
        out.write_all(&line.text[from..])
    }

    /// Shows a line that goes on no further.
    fn complete(&mut self, vm: usize, out: &mut impl Write) -> io::Result<()> {
        self.show(vm, out)?;
        (self.lines[vm], self.open) = (Line::new(self.lines[vm].parser), None);
        out.write_all(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a terminal gets from these writes; "(idle)" is a moment, "(quiet)" a long one.
    fn shown(names: &[&str], chosen: Option<usize>, writes: &[(usize, &str)]) -> String {
        let mut consoles = Consoles::new(names.iter().map(|n| n.to_string()).collect(), chosen);
        let (mut out, mut now) = (Vec::new(), Instant::now());
        for (vm, text) in writes {
            match *text {
                "(idle)" => consoles.idle(now, &mut out).unwrap(),
                "(quiet)" => {
                    now += PROMPT;
                    consoles.idle(now, &mut out).unwrap();
                }
                text => consoles.write(*vm, text.as_bytes(), now, &mut out).unwrap(),
            }
        }
        consoles.finish(&mut out).unwrap();
        consoles.close_line(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn one_vm_is_shown_as_it_writes() {
        let writes = [(0, "x\r"), (0, "y\n\x1b[m$ ")];
        assert_eq!(shown(&["a"], None, &writes), "x\ry\n\x1b[m$ \r\n");
        let writes = [(1, "x\r"), (0, "no\n"), (1, "y\n"), (0, "no"), (1, "$ ")];
        assert_eq!(shown(&["a", "b"], Some(1), &writes), "x\ry\n$ \r\n");
    }

    #[test]
    fn several_are_told_apart_by_line() {
        let writes = [(0, "bo"), (1, "hi\r\nyo"), (0, "ot\r\n"), (1, "\n"), (0, "end")];
        assert_eq!(shown(&["a", "db"], None, &writes), "db| hi\na | boot\ndb| yo\na | end\n");
    }

    /// As a slow guest writes, whose line stands still for a moment.
    #[test]
    fn a_line_is_not_cut_by_a_moments_pause() {
        let writes = [(0, "bo"), (0, "(idle)"), (1, "hi\n"), (0, "(idle)"), (0, "ot\n")];
        assert_eq!(shown(&["a", "b"], None, &writes), "b| hi\na| boot\n");
    }

    #[test]
    fn a_prompt_is_shown_and_its_line_goes_on() {
        let quiet = (0, "(quiet)");
        let writes = [(0, "$ "), quiet, (0, "l"), (0, "s\n"), (0, "% "), quiet, (1, "x\n")];
        assert_eq!(shown(&["a", "b"], None, &writes), "a| $ ls\na| % \r\nb| x\n");
        // A prompt isn't shown again for each line that others write, …
        let writes = [(0, "$ "), quiet, (1, "x\n"), (0, "(idle)"), (1, "y\n"), quiet];
        assert_eq!(shown(&["a", "b"], None, &writes), "a| $ \r\nb| x\nb| y\n");
        // … but with the echo, whole.
        let writes = [(0, "$ "), quiet, (0, "l"), (1, "x\n"), (0, "s"), (0, "(idle)"), (0, "\n")];
        assert_eq!(shown(&["a", "b"], None, &writes), "a| $ l\r\nb| x\na| $ ls\n");
    }

    /// Some VM writes all the time: there is no idle moment.
    #[test]
    fn a_prompt_is_shown_beside_one_that_never_stops() {
        let names = ["a", "b"].map(String::from).to_vec();
        let (mut consoles, mut out) = (Consoles::new(names, None), Vec::new());
        let start = Instant::now();
        consoles.write(0, b"login: ", start, &mut out).unwrap();
        consoles.write(1, b"x\n", start + PROMPT, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "b| x\na| login: ");
    }

    #[test]
    fn a_vm_stays_in_its_own_line() {
        let of = |text: &str| shown(&["a", "b"], None, &[(0, text)]);
        assert_eq!(of("\x1b[1;32mok\x1b[0m\x1b[2J\x1b[3A\x1b]52;c;eA==\x07\n"), "a| ok\n");
        assert_eq!(of("\x1b]0;hidden\nb| forged\x07\n"), "a| \na| b| forged\n");
        assert_eq!(of("\u{9b}2Jx\x0b\x0c\x0e\x7f\n"), "a| 2Jx\n");
        // Corrections of what was typed, and not over the name.
        assert_eq!(of("lx\x08 \x08s\n"), "a| lx\x08 \x08s\n");
        assert_eq!(of("\x08\x08\x08b| x\n"), "a| b| x\n");
        assert_eq!(of("x\u{301}\u{301}\x08\x08\x08y\n"), "a| x\u{301}\u{301}y\n");
    }

    #[test]
    fn endless_lines_are_cut_and_unknown_vms_not_shown() {
        let long = "x".repeat(MAX_LINE + 1);
        let cut = &long[1..];
        assert_eq!(shown(&["a", "b"], None, &[(0, &long)]), format!("a| {cut}\na| x\n"));
        assert_eq!(shown(&["a", "b"], None, &[(7, "x\n")]), "");
    }

    /// What a VM wrote, line by line, and whether the line stood unfinished for [`PROMPT`].
    fn lines_of(vm: usize, events: &[(usize, String)]) -> Vec<(String, bool)> {
        let mut lines = vec![(String::new(), false)];
        for (writer, text) in events {
            let line = lines.last_mut().unwrap();
            match text.as_str() {
                "(idle)" => {}
                "(quiet)" => line.1 |= !line.0.is_empty(),
                text if *writer == vm => {
                    let mut parts = text.split('\n');
                    line.0 += parts.next().unwrap();
                    lines.extend(parts.map(|part| (part.to_owned(), false)));
                }
                _ => {}
            }
        }
        lines
    }

    proptest! {
        /// Whatever is written when: each finished line stands whole on a line of the terminal, in
        /// order. What is cut, which shows by the CR behind it, is the beginning of a line that
        /// stood unfinished for long.
        #[test]
        fn no_line_is_cut(
            events in prop::collection::vec((0usize..2, "[xy\n]{0,6}|\\(idle\\)|\\(quiet\\)"), 0..60),
        ) {
            let writes: Vec<_> = events.iter().map(|(vm, text)| (*vm, text.as_str())).collect();
            let out = shown(&["a", "b"], None, &writes);
            for (vm, name) in ["a| ", "b| "].iter().enumerate() {
                let wanted = lines_of(vm, &events);
                let (mut next, mut cut) = (0, "");
                for line in out.split('\n').filter_map(|l| l.strip_prefix(name)) {
                    let (whole, stood) = &wanted[next];
                    if let Some(part) = line.strip_suffix('\r') {
                        prop_assert!(*stood, "{out:?}: {part:?} of {whole:?} is cut");
                        prop_assert!(whole.starts_with(part), "{out:?}: {part:?} is no part of {whole:?}");
                        cut = part;
                    } else {
                        prop_assert_eq!(line, whole, "in {:?}", out);
                        (next, cut) = (next + 1, "");
                    }
                }
                // A last line that has no end may have been shown as a prompt only.
                let rest: Vec<_> = wanted[next..].iter().map(|(line, _)| line.as_str()).collect();
                prop_assert!(rest.is_empty() || rest == [cut], "{out:?} lacks {rest:?}");
            }
        }
    }
}
