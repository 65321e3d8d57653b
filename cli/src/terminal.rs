//! The person's terminal as a VM's console: every key goes to the VM, except those
//! that leave it: Ctrl-], or Ctrl-A x.

use crate::session::Commands;
use anyhow::{Context, Result};
use rustix::termios::{OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcsetattr};
use std::{
    io::{self, Read, stdin},
    sync::{
        Arc,
        mpsc::{self, Receiver, TrySendError},
    },
    thread,
};

const CTRL_A: u8 = 0x01;
const CTRL_BRACKET: u8 = 0x1D;
/// How many reads of standard input wait for the guest.
const MAX_CHUNKS: usize = 64;

/// The terminal's settings while it is a console.
pub struct Terminal {
    /// Whether standard input is a terminal.
    pub interactive: bool,
    before: Option<Termios>,
}

impl Terminal {
    /// Takes standard input, until this is dropped: gives what comes from there. If it is a
    /// terminal, keys come one by one, and those that leave the console are commands.
    pub fn open(commands: Arc<Commands>) -> Result<(Terminal, Receiver<Vec<u8>>)> {
        let interactive = isatty(stdin());
        let mut before = None;
        if interactive {
            let settings = tcgetattr(stdin()).context("the terminal's settings can't be read")?;
            let mut raw = settings.clone();
            raw.make_raw();
            // Our own lines end in a plain newline.
            raw.output_modes |= OutputModes::OPOST | OutputModes::ONLCR;
            tcsetattr(stdin(), OptionalActions::Now, &raw)
                .context("the terminal can't be set up for a console")?;
            before = Some(settings);
        }
        let (send, typed) = mpsc::sync_channel(MAX_CHUNKS);
        // The thread ends with the process: a read of standard input can't be broken off.
        thread::spawn(move || {
            let mut keys = Keys { interactive, after_ctrl_a: false };
            let mut buffer = [0; 1024];
            loop {
                let (bytes, quit) = match stdin().read(&mut buffer) {
                    Ok(0) => return,
                    Ok(n) => keys.read(&buffer[..n]),
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Err(_) => return,
                };
                if quit {
                    commands.quit();
                }
                // Input from a file waits for the guest. A person's must not stand between them
                // and the way out: what a guest doesn't read is lost, as by any serial port.
                let gone = match interactive {
                    true => matches!(send.try_send(bytes), Err(TrySendError::Disconnected(_))),
                    false => send.send(bytes).is_err(),
                };
                if gone {
                    return;
                }
            }
        });
        Ok((Terminal { interactive, before }, typed))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Fails only when the terminal is gone.
            let _ = tcsetattr(stdin(), OptionalActions::Flush, before);
        }
    }
}

/// Finds the keys that leave the console among those typed.
struct Keys {
    interactive: bool,
    after_ctrl_a: bool,
}

impl Keys {
    /// The bytes for the VM among those typed, and whether a key said to leave.
    fn read(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        if !self.interactive {
            return (bytes.to_vec(), false);
        }
        let mut plain = Vec::new();
        for byte in bytes {
            match (std::mem::take(&mut self.after_ctrl_a), *byte) {
                (true, b'x' | b'X') | (_, CTRL_BRACKET) => return (plain, true),
                // Twice sends it once.
                (false, CTRL_A) => self.after_ctrl_a = true,
                (true, CTRL_A) => plain.push(CTRL_A),
                (true, other) => plain.extend([CTRL_A, other]),
                (false, other) => plain.push(other),
            }
        }
        (plain, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(interactive: bool, chunks: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut keys = Keys { interactive, after_ctrl_a: false };
        let (mut bytes, mut quit) = (vec![], false);
        for (read, leaves) in chunks.iter().map(|c| keys.read(c)) {
            bytes.extend(read);
            quit |= leaves;
        }
        (bytes, quit)
    }

    #[test]
    fn keys_that_leave_are_found_and_others_pass() {
        assert_eq!(typed(true, &[b"ls\x03\r"]), (b"ls\x03\r".to_vec(), false));
        assert_eq!(typed(true, &[b"a\x1db"]), (b"a".to_vec(), true));
        assert_eq!(typed(true, &[b"a\x01", b"x"]), (b"a".to_vec(), true));
        assert_eq!(typed(true, &[b"\x01\x01x"]), (b"\x01x".to_vec(), false));
        assert_eq!(typed(true, &[b"\x01", b"b"]), (b"\x01b".to_vec(), false));
    }

    #[test]
    fn input_from_a_file_passes_whole() {
        assert_eq!(typed(false, &[b"\x1d\x01x"]), (b"\x1d\x01x".to_vec(), false));
    }
}
