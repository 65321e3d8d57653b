//! The watcher's side: finds the run, and asks it for its state again and again.
//!
//! Guarantees: a question is asked when the one before is answered, so that a run that
//! is slow is asked less often; a run that ends is heard of, however it ends.

use super::{
    place,
    state::{Message, PROTOCOL, Snapshot},
};
use anyhow::{Context, Result, bail};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

/// How long a run may take to say hello: it needs nothing for that but a moment.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longer than any message.
const MAX_LINE: u64 = 4 << 20;

/// A run that can be watched.
#[derive(Debug)]
pub struct Session {
    /// Its process.
    pub pid: u32,
    /// Its VMs' names.
    pub vms: Vec<String>,
    stream: BufReader<UnixStream>,
}

/// What a run says.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// Where its VMs are.
    State(Snapshot),
    /// That it has ended, and how.
    Ended(String),
}

/// Finds the run that is meant: process `wanted`, or the only one there is.
pub fn find(directory: &Path, wanted: Option<u32>) -> Result<Session> {
    let mut found = place::sessions(directory);
    if let Some(wanted) = wanted {
        found.retain(|(pid, _)| *pid == wanted);
    }
    // One that can't be connected to has just ended, or was killed before it could tidy up.
    let streams = found.into_iter().filter_map(|(pid, path)| {
        UnixStream::connect(path).ok().map(|stream| (pid, Session::new(pid, stream)))
    });
    let mut sessions: Vec<_> = streams.collect();
    if sessions.len() > 1 {
        let each: Vec<_> = sessions
            .iter()
            .map(|(pid, session)| match session {
                Ok(session) => format!("{pid} ({})", session.vms.join(", ")),
                Err(_) => format!("{pid} (doesn't answer)"),
            })
            .collect();
        bail!("{} runs can be watched: {}; choose one with --session", each.len(), each.join(", "));
    }
    match (sessions.pop(), wanted) {
        (Some((_, session)), _) => session,
        (None, Some(pid)) => bail!("process {pid} is no `exitless run` of yours that is running"),
        (None, None) => {
            bail!("no `exitless run` of yours is running, so there is nothing to watch")
        }
    }
}

impl Session {
    fn new(pid: u32, stream: UnixStream) -> Result<Session> {
        let silent = || format!("the run of process {pid} doesn't answer");
        stream.set_read_timeout(Some(PATIENCE)).with_context(silent)?;
        let mut stream = BufReader::new(stream);
        match read(&mut stream).with_context(silent)? {
            Some(Message::Hello { protocol: PROTOCOL, vms }) => {
                stream.get_ref().set_read_timeout(None).with_context(silent)?;
                Ok(Session { pid, vms, stream })
            }
            _ => bail!("the run of process {pid} is of another version of exitless than this one"),
        }
    }

    /// Asks once per `interval` from now on, for as long as the receiver lives.
    pub fn watch(self, interval: Duration) -> Receiver<Heard> {
        let (say, hear) = mpsc::channel();
        let mut stream = self.stream;
        thread::spawn(move || {
            let mut due = Instant::now();
            loop {
                let heard = ask(&mut stream);
                let ended = matches!(heard, Heard::Ended(_));
                if say.send(heard).is_err() || ended {
                    return;
                }
                due = (due + interval).max(Instant::now());
                // A run that ends meanwhile is heard of at once.
                let rest = due.saturating_duration_since(Instant::now());
                if let Some(how) = wait(&mut stream, rest) {
                    // Fails when nobody listens any more.
                    let _ = say.send(Heard::Ended(how));
                    return;
                }
            }
        });
        hear
    }
}

/// A question and its answer.
fn ask(stream: &mut BufReader<UnixStream>) -> Heard {
    // If the run has ended, what it said last can still be read.
    let _ = stream.get_mut().write_all(b"\n");
    match read(stream) {
        Ok(Some(Message::State(snapshot))) => Heard::State(snapshot),
        Ok(Some(Message::End { how })) => Heard::Ended(how),
        Ok(Some(Message::Hello { .. })) => Heard::Ended("it said what makes no sense".to_owned()),
        Ok(None) | Err(_) => Heard::Ended("it is gone without a word".to_owned()),
    }
}

/// Waits, unless the run ends: then how.
fn wait(stream: &mut BufReader<UnixStream>, rest: Duration) -> Option<String> {
    if rest.is_zero() || stream.get_ref().set_read_timeout(Some(rest)).is_err() {
        return None;
    }
    let heard = read(stream);
    // Fails only where it failed above.
    let _ = stream.get_ref().set_read_timeout(None);
    match heard {
        Ok(Some(Message::End { how })) => Some(how),
        // Nothing is said unasked but the end.
        Ok(Some(_)) => None,
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => None,
        Ok(None) | Err(_) => Some("it is gone without a word".to_owned()),
    }
}

/// The next message; none at the end.
fn read(stream: &mut BufReader<UnixStream>) -> io::Result<Option<Message>> {
    let mut line = Vec::new();
    stream.take(MAX_LINE).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&line).map(Some).map_err(io::Error::from)
}
