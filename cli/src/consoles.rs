//! Shows the VMs' consoles on one terminal: as they come when there is one VM, line
//! by line with `name| ` before each when there are several.

use std::io::{self, Write};

/// The consoles of a plan's VMs.
pub struct Consoles {
    names: Vec<String>,
    width: usize,
    /// What each VM wrote since its last complete line.
    partial: Vec<Vec<u8>>,
    /// Whose unfinished line the terminal's last line is.
    open: Option<usize>,
}

/// Where a line is shown that doesn't end.
const MAX_LINE: usize = 1024;

impl Consoles {
    /// For the VMs of these names, in the plan's order.
    pub fn new(names: Vec<String>) -> Self {
        let width = names.iter().map(String::len).max().unwrap_or(0);
        Consoles { width, partial: vec![Vec::new(); names.len()], names, open: None }
    }

    /// Shows what a VM wrote.
    pub fn write(&mut self, vm: usize, bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
        if self.names.len() < 2 {
            self.open = (!bytes.ends_with(b"\n")).then_some(vm);
            out.write_all(bytes)?;
            return out.flush();
        }
        let Some(partial) = self.partial.get_mut(vm) else { return Ok(()) };
        partial.extend(bytes.iter().filter(|b| **b != b'\r'));
        while let Some(end) = self.partial[vm].iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.partial[vm].drain(..=end).collect();
            self.show(vm, &line, out)?;
        }
        if self.partial[vm].len() > MAX_LINE {
            self.idle(out)?;
        }
        out.flush()
    }

    /// Nothing came for a moment: shows lines that aren't complete, such as prompts.
    pub fn idle(&mut self, out: &mut impl Write) -> io::Result<()> {
        for vm in 0..self.partial.len() {
            let partial = std::mem::take(&mut self.partial[vm]);
            if !partial.is_empty() {
                self.show(vm, &partial, out)?;
            }
        }
        out.flush()
    }

    /// Makes the terminal start a new line, for output that isn't a console's.
    pub fn close_line(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.open.take().is_some() { out.write_all(b"\r\n") } else { Ok(()) }
    }

    fn show(&mut self, vm: usize, text: &[u8], out: &mut impl Write) -> io::Result<()> {
        if self.open != Some(vm) {
            self.close_line(out)?;
            write!(out, "{:width$}| ", self.names[vm], width = self.width)?;
        }
        self.open = (!text.ends_with(b"\n")).then_some(vm);
        out.write_all(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(names: &[&str], writes: &[(usize, &str)]) -> String {
        let mut consoles = Consoles::new(names.iter().map(|n| n.to_string()).collect());
        let mut out = Vec::new();
        for (vm, text) in writes {
            match *text {
                "(idle)" => consoles.idle(&mut out).unwrap(),
                text => consoles.write(*vm, text.as_bytes(), &mut out).unwrap(),
            }
        }
        consoles.close_line(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn one_vm_is_shown_as_it_writes() {
        assert_eq!(shown(&["a"], &[(0, "x\r"), (0, "y\n\x1b[m$ ")]), "x\ry\n\x1b[m$ \r\n");
    }

    #[test]
    fn several_are_told_apart_by_line() {
        let writes = [(0, "bo"), (1, "hi\r\nyo"), (0, "ot\r\n"), (1, "\n")];
        assert_eq!(shown(&["a", "db"], &writes), "db| hi\na | boot\ndb| yo\n");
    }

    #[test]
    fn a_prompt_shows_when_nothing_follows_and_its_line_goes_on() {
        let writes = [(0, "$ "), (0, "(idle)"), (0, "ls\n"), (0, "% "), (0, "(idle)"), (1, "x\n")];
        assert_eq!(shown(&["a", "b"], &writes), "a| $ ls\na| % \r\nb| x\n");
    }

    #[test]
    fn a_vm_that_is_not_in_the_plan_is_not_shown() {
        assert_eq!(shown(&["a", "b"], &[(7, "x\n")]), "");
    }
}
