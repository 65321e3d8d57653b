//! The sockets for people and programs that look and change: requests, and who makes them.
//!
//! A request is a line of JSON, and so is its answer. They are read as bytes everywhere: reading
//! some as text would have all of it twice in the program. The socket of metrics takes a request of
//! HTTP and answers it whatever it asks for. Nobody is waited for: what doesn't fit into a socket
//! is kept until there is room.

use crate::letter::{Asked, Letter};
use crate::report::Report;
use anyhow::{Context as _, Result, bail};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};
use serde::{Deserialize, Serialize};

/// Who may be connected at a time, to either socket.
pub const MAX_CLIENTS: usize = 16;
/// Those of them that may wait for a change.
pub const MAX_WAITING: usize = MAX_CLIENTS / 2;
/// The longest request.
const MAX_REQUEST: usize = 64 << 10;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// What there is and what it did.
    List,
    /// These tables of `io.toml`, too, from a file of this name.
    Add { file: String, text: String },
    /// This device no more.
    Remove(String),
    /// `io.toml` is to be read again.
    Reload,
    /// All of it is for this program to serve from now on.
    Upgrade(Asked),
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Done,
    /// It is done, and this is to be known.
    Noted(Vec<String>),
    /// What failed: sentences.
    Failed(Vec<String>),
    Report(Report),
    /// What is served; descriptors follow.
    Letter(Box<Letter>),
}

/// One of them.
pub struct Client {
    socket: OwnedFd,
    /// It wants metrics.
    pub metrics: bool,
    heard: Vec<u8>,
    /// What it didn't take yet.
    left: Vec<u8>,
    /// It said all that it will, and leaves when it has taken its answer.
    over: bool,
    /// What it asked for takes a while: nothing more is heard of it before it is answered.
    pub is_waiting: bool,
}

impl Client {
    pub fn new(socket: OwnedFd, metrics: bool) -> Client {
        Client {
            socket,
            metrics,
            heard: Vec::new(),
            left: Vec::new(),
            over: false,
            is_waiting: false,
        }
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Has it an answer that it didn't take yet?
    pub fn is_behind(&self) -> bool {
        !self.left.is_empty()
    }

    /// Is there nothing more to do for it?
    pub fn is_over(&self) -> bool {
        self.over && self.left.is_empty()
    }

    /// A whole request that it made, as text.
    pub fn hear(&mut self) -> Result<Option<String>> {
        let mut bytes = [0; 4096];
        // By `read` and `write`, which every sandbox allows; the socket doesn't wait.
        match read(&self.socket, &mut bytes) {
            Ok(0) => self.over = true,
            Ok(count) => self.heard.extend(&bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error).context("the socket can't be read"),
        }
        if self.heard.len() > MAX_REQUEST {
            bail!("the request is longer than {MAX_REQUEST} bytes");
        }
        let end: &[u8] = if self.metrics { b"\r\n\r\n" } else { b"\n" };
        let Some(at) = self.heard.windows(end.len()).position(|part| part == end) else {
            return Ok(None);
        };
        let rest = self.heard.split_off(at + end.len());
        let request = std::mem::replace(&mut self.heard, rest);
        Ok(Some(String::from_utf8_lossy(&request).into_owned()))
    }

    /// Gives it this answer.
    pub fn answer(&mut self, text: &str) -> Result<()> {
        self.is_waiting = false;
        self.left.extend(text.as_bytes());
        self.over |= self.metrics;
        self.go_on()
    }

    /// Gives it as much as it takes.
    pub fn go_on(&mut self) -> Result<()> {
        while !self.left.is_empty() {
            match write(&self.socket, &self.left) {
                Ok(count) => drop(self.left.drain(..count)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("the answer isn't taken"),
            }
        }
        Ok(())
    }
}
