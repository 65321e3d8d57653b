//! An NBD server that holds writes back, loses what wasn't flushed, and hangs up, when the test
//! says so. Simple replies, one thread for each connection.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// FLUSH, FUA and MULTI_CONN, and that there are flags.
const FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | MULTI_CONN;
const MULTI_CONN: u16 = 1 << 8;
pub const SIZE: usize = 1 << 20;

/// What came: the command, and where.
pub type Came = (u16, u64);

#[derive(Default)]
struct State {
    data: Vec<u8>,
    durable: Vec<u8>,
    came: Vec<Came>,
    holds: bool,
    is_away: bool,
    crashes: u32,
    sockets: Vec<UnixStream>,
    /// All others are turned away.
    is_for_one: bool,
    connections: usize,
}

type Shared = Arc<(Mutex<State>, Condvar)>;

/// The server, until the test ends.
pub struct Server {
    shared: Shared,
}

impl Server {
    pub fn at(path: &Path) -> Server {
        let listener = UnixListener::bind(path).expect("a socket");
        let zeroes = vec![0; SIZE];
        let state = State { data: zeroes.clone(), durable: zeroes, ..State::default() };
        let shared = Arc::new((Mutex::new(state), Condvar::new()));
        let own = shared.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let shared = own.clone();
                let mut state = shared.0.lock().expect("nobody panicked");
                let is_taken = state.is_for_one && state.connections > 0;
                state.connections += 1;
                if !state.is_away && !is_taken {
                    state.sockets.push(socket.try_clone().expect("a copy"));
                    drop(state);
                    std::thread::spawn(move || serve(socket, &shared));
                }
            }
        });
        Server { shared }
    }

    /// A server that takes one client.
    pub fn for_one(path: &Path) -> Server {
        let server = Self::at(path);
        server.state().is_for_one = true;
        server
    }

    /// Those that came, also in vain.
    pub fn connections(&self) -> usize {
        self.state().connections
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().expect("nobody panicked")
    }

    /// Writes aren't carried out and not answered, or they are again.
    pub fn hold(&self, holds: bool) {
        self.state().holds = holds;
        self.shared.1.notify_all();
    }

    /// Waits until so many such requests have come.
    pub fn wait_for(&self, came: Came, count: usize) {
        let is_short =
            |state: &mut State| state.came.iter().filter(|c| **c == came).count() < count;
        let state = self.shared.1.wait_while(self.state(), is_short).expect("nobody panicked");
        drop(state);
    }

    pub fn count(&self, came: Came) -> usize {
        self.state().came.iter().filter(|c| **c == came).count()
    }

    /// Hangs up everywhere. What wasn't flushed is lost.
    pub fn crash(&self) {
        let mut state = self.state();
        state.is_away = true;
        state.crashes += 1;
        self.shared.1.notify_all();
        state.data = state.durable.clone();
        for socket in state.sockets.drain(..) {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }

    pub fn come_back(&self) {
        self.state().is_away = false;
    }
}

fn serve(mut socket: UnixStream, shared: &Shared) {
    // The client went, or this server did.
    let is_for_one = shared.0.lock().expect("nobody panicked").is_for_one;
    let flags = if is_for_one { FLAGS & !MULTI_CONN } else { FLAGS };
    let _ = shake(&mut socket, flags).and_then(|()| requests(&mut socket, shared));
}

/// The handshake, without structured replies.
fn shake(socket: &mut UnixStream, flags: u16) -> std::io::Result<()> {
    socket.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    socket.read_exact(&mut [0; 4])?;
    loop {
        let mut head = [0; 16];
        socket.read_exact(&mut head)?;
        let option = u32::from_be_bytes(head[8..12].try_into().expect("four"));
        let len = u32::from_be_bytes(head[12..].try_into().expect("four"));
        socket.read_exact(&mut vec![0; len as usize])?;
        let mut reply = |kind: u32, data: &[u8]| {
            let head =
                [&0x0003_e889_0455_65a9u64.to_be_bytes()[..], &option.to_be_bytes()].concat();
            let tail = [&kind.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat();
            socket.write_all(&[head, tail].concat())
        };
        if option == 7 {
            let size = (SIZE as u64).to_be_bytes();
            reply(3, &[&[0, 0][..], &size, &flags.to_be_bytes()].concat())?;
            return reply(1, &[]);
        }
        reply(1 << 31 | 1, &[])?;
    }
}

fn requests(socket: &mut UnixStream, shared: &Shared) -> std::io::Result<()> {
    loop {
        let mut head = [0; 28];
        socket.read_exact(&mut head)?;
        let command = u16::from_be_bytes(head[6..8].try_into().expect("two"));
        let offset = u64::from_be_bytes(head[16..24].try_into().expect("eight"));
        let len = u32::from_be_bytes(head[24..].try_into().expect("four")) as usize;
        let mut data = vec![0; if command == 1 { len } else { 0 }];
        socket.read_exact(&mut data)?;
        let mut state = shared.0.lock().expect("nobody panicked");
        state.came.push((command, offset));
        let generation = state.crashes;
        shared.1.notify_all();
        let mut reply = [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &head[8..16]].concat();
        let place = offset as usize..offset as usize + len;
        match command {
            0 => reply.extend(&state.data[place]),
            1 => {
                drop(state);
                let (mut socket, shared) = (socket.try_clone()?, shared.clone());
                let is_durable = head[5] & 1 != 0;
                std::thread::spawn(move || {
                    let state = shared.0.lock().expect("nobody panicked");
                    let waits = |state: &mut State| state.holds && state.crashes == generation;
                    let mut state = shared.1.wait_while(state, waits).expect("nobody panicked");
                    // One that is held back when the server crashes isn't carried out.
                    if state.crashes == generation {
                        state.data[place.clone()].copy_from_slice(&data);
                        if is_durable {
                            state.durable[place].copy_from_slice(&data);
                        }
                        let _ = socket.write_all(&reply);
                    }
                });
                continue;
            }
            3 => state.durable = state.data.clone(),
            _ => {}
        }
        drop(state);
        socket.write_all(&reply)?;
    }
}
