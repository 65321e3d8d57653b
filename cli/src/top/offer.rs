//! The run's side: offers the state of its VMs on a socket, for `exitless top`.
//!
//! Guarantees: the hypervisor is asked only when somebody asks here; a client that
//! reads nothing holds the run up for a tenth of a second, once, and is dropped; the
//! socket's name goes when this is dropped.

use super::{
    place::{self, Name},
    state::{Message, PROTOCOL, Snapshot},
};
use crate::session::Commands;
use anyhow::Result;
use proto::Record;
use std::{
    io::{BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// More than anybody watches one run with.
const MAX_CLIENTS: usize = 16;
/// How long a client may keep the run waiting.
const PATIENCE: Duration = Duration::from_millis(100);

/// The offer, while it stands.
pub struct Offer {
    shared: Arc<Shared>,
    _name: Name,
}

struct Shared {
    commands: Arc<Commands>,
    state: Mutex<State>,
}

struct State {
    snapshot: Snapshot,
    clients: Vec<Client>,
    next: u64,
}

struct Client {
    number: u64,
    stream: UnixStream,
    /// It asked and has no answer yet.
    waits: bool,
}

impl Drop for Client {
    fn drop(&mut self) {
        // So that neither side waits for the other. Fails when the client has gone.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl Offer {
    /// Offers the VMs of these names in `directory`, as process `pid`; questions for the
    /// hypervisor become `commands`.
    pub fn open(
        directory: &Path,
        pid: u32,
        names: impl IntoIterator<Item = String>,
        commands: Arc<Commands>,
    ) -> Result<Offer> {
        place::prepare(directory)?;
        let (listener, name) = place::listen(directory, pid)?;
        let state = State { snapshot: Snapshot::new(names), clients: Vec::new(), next: 0 };
        let shared = Arc::new(Shared { commands, state: Mutex::new(state) });
        let accepting = shared.clone();
        // The threads end with the process.
        thread::spawn(move || accepting.accept(&listener));
        Ok(Offer { shared, _name: name })
    }

    /// Takes a record in, and answers when it completes an answer.
    pub fn see(&self, record: &Record) {
        let mut state = self.shared.lock();
        if state.snapshot.see(record) {
            state.answer();
        }
    }

    /// Tells every client how the run ended.
    pub fn end(self, how: String) {
        let mut state = self.shared.lock();
        let line = line(&Message::End { how });
        state.clients.retain_mut(|c| c.stream.write_all(&line).is_ok());
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.shared.lock().clients.clear();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut state = self.lock();
            let vms = state.snapshot.vms.iter().map(|vm| vm.name.clone()).collect();
            let hello = line(&Message::Hello { protocol: PROTOCOL, vms });
            let Ok(reading) = stream.try_clone() else { continue };
            if state.clients.len() >= MAX_CLIENTS
                || stream.set_write_timeout(Some(PATIENCE)).is_err()
                || stream.write_all(&hello).is_err()
            {
                continue;
            }
            let number = state.next;
            state.next += 1;
            state.clients.push(Client { number, stream, waits: false });
            let shared = self.clone();
            thread::spawn(move || shared.listen(number, reading));
        }
    }

    /// Takes a client's questions until it goes.
    fn listen(&self, number: u64, reading: UnixStream) {
        for byte in BufReader::new(reading).bytes() {
            match byte {
                Ok(b'\n') => self.question(number),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        self.lock().clients.retain(|c| c.number != number);
    }

    fn question(&self, number: u64) {
        let mut state = self.lock();
        let Some(client) = state.clients.iter_mut().find(|c| c.number == number) else { return };
        client.waits = true;
        if state.snapshot.is_up() {
            self.commands.ask();
        } else {
            state.answer();
        }
    }
}

impl State {
    /// Answers those who wait; who can't be answered is dropped.
    fn answer(&mut self) {
        let line = line(&Message::State(self.snapshot.clone()));
        self.clients.retain_mut(|client| {
            !std::mem::take(&mut client.waits) || client.stream.write_all(&line).is_ok()
        });
    }
}

fn line(message: &Message) -> Vec<u8> {
    // Plain numbers, strings and lists always have a form in JSON.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}
