//! Text for a person at a terminal: how wide it may be, and what stands below a command's options.

use std::io::stdout;

/// The widest text, however wide the terminal is: longer lines are hard to read.
const WIDEST: u16 = 100;
/// Narrower terminals break lines themselves.
const NARROWEST: u16 = 40;

/// How many columns a line of text may have on standard output.
pub fn columns() -> usize {
    let terminal = rustix::termios::tcgetwinsize(stdout()).ok().map(|size| size.ws_col);
    terminal.filter(|n| *n > 0).map_or(WIDEST, |n| n.clamp(NARROWEST, WIDEST)).into()
}

/// Breaks a text into lines of at most so many columns, where it has spaces.
pub fn wrap(text: &str, columns: usize) -> String {
    let (mut wrapped, mut length) = (String::new(), 0);
    for word in text.split(' ') {
        let word_length = word.chars().count();
        if length > 0 && length + 1 + word_length > columns {
            wrapped.push('\n');
            length = 0;
        } else if length > 0 {
            wrapped.push(' ');
            length += 1;
        }
        wrapped.push_str(word);
        length += word_length;
    }
    wrapped
}

/// Text as it stands in the source, for clap: the lines of a paragraph become one, which is broken
/// where the terminal ends. Indented lines stay as they are.
pub fn flow(text: &str) -> String {
    let mut flowing = String::new();
    let mut before = "";
    for line in text.lines() {
        let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
        let joins = is_prose(before) && is_prose(line);
        if !flowing.is_empty() {
            flowing.push(if joins { ' ' } else { '\n' });
        }
        flowing += line;
        before = line;
    }
    flowing
}

/// Lines below a command's options, or a subcommand's, that break on a terminal of 80 columns where
/// they shouldn't: examples, not prose. For tests.
pub fn too_wide(command: &clap::Command) -> Vec<String> {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let wide = |line: &&str| line.starts_with(' ') && line.chars().count() > 80;
    let own = after.lines().filter(wide).map(str::to_owned);
    own.chain(command.get_subcommands().flat_map(too_wide)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_flow_and_examples_stay() {
        let text =
            "Examples:\n  exitless run \\\n      --name x\n\nThe first\nparagraph.\n\nThe second.";
        let flowing =
            "Examples:\n  exitless run \\\n      --name x\n\nThe first paragraph.\n\nThe second.";
        assert_eq!(flow(text), flowing);
    }
}
