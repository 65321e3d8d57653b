//! Connections against a server of the test's own that says what it is told to say; `rings` in
//! front of them, what is `left` behind, and `tls`.

mod left;
mod rings;
mod tls;

use super::NbdStore;
use crate::config::Server;
use crate::storage::link::{Address, Link};
use blk::{Completion, Failure, Operation, Submitted, Token};
use daemon_os::Mapping;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use window::Span;

const PIECE: u64 = 64 << 10;
/// Looks of a millisecond at most, after which a test fails.
const LOOKS: u32 = 20_000;

/// All that a server says until requests come, of an export of 64 MiB that has a flush.
fn greeting(structured: bool) -> Vec<u8> {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let head = [&0x0003_e889_0455_65a9u64.to_be_bytes()[..], &option.to_be_bytes()].concat();
        [&head[..], &kind.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let export = [&[0, 0][..], &(64u64 << 20).to_be_bytes(), &5u16.to_be_bytes()].concat();
    [
        b"NBDMAGICIHAVEOPT\0\x03".to_vec(),
        reply(8, if structured { 1 } else { 1 << 31 | 1 }, &[]),
        reply(7, 3, &export),
        reply(7, 1, &[]),
    ]
    .concat()
}

/// A connection, hands shaken.
fn shake(socket: UnixStream, structured: bool) -> UnixStream {
    try_to_shake(socket, structured).expect("it shakes hands")
}

fn try_to_shake(mut socket: UnixStream, structured: bool) -> std::io::Result<UnixStream> {
    socket.write_all(&greeting(structured))?;
    // Flags, two options, and what the second one says.
    socket.read_exact(&mut [0; 4 + 16 + 16 + 9])?;
    Ok(socket)
}

/// The next request: its command and cookie. None: the client went.
fn request(socket: &mut UnixStream) -> Option<(u16, [u8; 8])> {
    let mut head = [0; 28];
    socket.read_exact(&mut head).ok()?;
    let command = u16::from_be_bytes([head[6], head[7]]);
    if command == 1 {
        let len = u32::from_be_bytes([head[24], head[25], head[26], head[27]]);
        socket.read_exact(&mut vec![0; len as usize]).ok()?;
    }
    Some((command, head[8..16].try_into().expect("eight")))
}

/// A simple reply of success.
fn done(cookie: [u8; 8]) -> Vec<u8> {
    [&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &cookie].concat()
}

/// A chunk of a structured reply.
fn chunk(flags: u16, kind: u16, cookie: [u8; 8], body: &[u8]) -> Vec<u8> {
    let head = [&0x668e_33efu32.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()];
    [&head.concat()[..], &cookie, &(body.len() as u32).to_be_bytes(), body].concat()
}

/// Such a server, and who connects to it.
fn serve(script: impl FnOnce(UnixListener) + Send + 'static) -> (TempDir, Address, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).expect("a socket");
    std::thread::spawn(move || script(listener));
    let uri = format!("nbd+unix:///x?socket={}", path.display());
    (folder, Address::Unix(path), uri)
}

fn server(uri: &str) -> Server {
    Server::new(uri, None, None).expect("an address")
}

fn open(uri: &str) -> anyhow::Result<NbdStore> {
    NbdStore::open(&server(uri), false, None)
}

fn next(listener: &UnixListener) -> UnixStream {
    listener.accept().expect("somebody connects").0
}

/// Answers all that comes at all connections, one after the other.
fn answer_all(listener: UnixListener) {
    loop {
        // One that was made anew meanwhile is gone.
        let Ok(mut socket) = try_to_shake(next(&listener), false) else { continue };
        while let Some((command, cookie)) = request(&mut socket) {
            let data = if command == 0 { &[0xaa; 512][..] } else { &[] };
            let _ = socket.write_all(&[&done(cookie)[..], data].concat());
        }
    }
}

/// Accepts, shakes hands, and says nothing more.
fn stay_silent(listener: UnixListener) {
    let mut all = Vec::new();
    while let Ok((socket, _)) = listener.accept() {
        all.extend(try_to_shake(socket, false));
    }
}

fn memory(len: u64) -> Span {
    let mapping = Box::leak(Box::new(Mapping::anonymous(len).expect("memory")));
    mapping.span().expect("all of it")
}

fn read(store: &mut NbdStore, number: u64, into: &Span) -> Submitted {
    let into = [into.sub(0, 512).expect("inside")];
    store.submit(Token::from_bits(number), Operation::Read { sector: 0, into: &into })
}

/// The next one that ends.
fn ended(store: &mut NbdStore) -> Completion {
    for _ in 0..LOOKS {
        store.push();
        if let Some(completion) = store.poll() {
            return completion;
        }
        let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let ended =
            rustix::event::PollFd::from_borrowed_fd(store.ended(), rustix::event::PollFlags::IN);
        let _ = rustix::event::poll(&mut [ended], Some(&limit));
    }
    panic!("nothing ends")
}

/// There is always something left to send.
#[test]
fn what_was_sent_isnt_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).expect("a socket");
    let mut link = Link::new(&Address::Unix(path), "x", None).expect("it is there");
    let mut socket = next(&listener);
    link.out().resize(1 << 20, 7);
    for _ in 0..200 {
        link.push().expect("it is sent");
        assert!(link.is_sending());
        socket.read_exact(&mut [0; PIECE as usize]).expect("it comes");
        let len = link.out().len() + PIECE as usize;
        link.out().resize(len, 7);
        assert!(link.out().len() <= 3 << 20, "{}", link.out().len());
    }
}

/// A host has sent as much as the system takes, which is more than is read at a time.
#[test]
fn what_comes_is_read_in_parts() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = Address::Host(listener.local_addr().expect("it has one"));
    let mut link = Link::new(&address, "x", None).expect("it is there");
    let mut socket = listener.accept().expect("somebody connects").0;
    socket.set_nonblocking(true).expect("it may");
    while socket.write(&[7; PIECE as usize]).is_ok() {}
    link.read_some().expect("it sends");
    assert!((1..=1 << 20).contains(&link.came()), "{}", link.came());
}

/// Nobody answers: what is accepted is bounded, by operations and by what is copied.
#[test]
fn a_store_is_full() {
    let (_folder, _, uri) = serve(stay_silent);
    let mut store = open(&uri).expect("it is there");
    let memory = memory(PIECE);
    let mut counts = [0, 0];
    for (which, count) in counts.iter_mut().enumerate() {
        while *count < 4096 {
            let from = &[memory];
            let submitted = match which {
                0 => {
                    let write = Operation::Write { sector: 0, from, durable: false };
                    store.submit(Token::from_bits(*count), write)
                }
                _ => read(&mut store, *count, &memory),
            };
            match submitted {
                Submitted::Accepted => *count += 1,
                other => {
                    assert_eq!(other, Submitted::Full);
                    break;
                }
            }
            store.push();
        }
    }
    assert_eq!(counts, [256, 1024 - 256]);
    assert_eq!(store.outstanding(), 1024);
}

/// A read isn't good because its reply ended.
#[test]
fn a_read_without_all_of_its_data_fails() {
    let (_folder, _, uri) = serve(|listener| {
        let mut socket = shake(next(&listener), true);
        let place = |at: u64, rest: &[u8]| [&at.to_be_bytes()[..], rest].concat();
        for turn in 0.. {
            let Some((_, cookie)) = request(&mut socket) else { return };
            let parts = match turn {
                0 => [chunk(0, 1, cookie, &place(0, &[1; 500])), chunk(1, 0, cookie, &[])],
                1 => [Vec::new(), chunk(1, 0, cookie, &[])],
                _ => [
                    chunk(0, 2, cookie, &place(0, &500u32.to_be_bytes())),
                    chunk(1, 1, cookie, &place(500, &[1; 12])),
                ],
            };
            socket.write_all(&parts.concat()).expect("it listens");
        }
    });
    let mut store = open(&uri).expect("it is there");
    let memory = memory(PIECE);
    for expected in [Err(Failure::Io), Err(Failure::Io), Ok(())] {
        assert_eq!(read(&mut store, 7, &memory), Submitted::Accepted);
        assert_eq!(ended(&mut store).result, expected);
    }
}

/// Holes are told in a few bytes, and each is as much work as the read: a server that tells the
/// same ones again and again isn't heard to the end.
#[test]
fn a_read_isnt_answered_twice() {
    let (_folder, _, uri) = serve(|listener| {
        let mut socket = shake(next(&listener), true);
        let (_, cookie) = request(&mut socket).expect("a request");
        let hole = chunk(0, 2, cookie, &[&[0; 8][..], &512u32.to_be_bytes()].concat());
        let twice = [&hole[..], &hole, &chunk(1, 0, cookie, &[])].concat();
        socket.write_all(&twice).expect("it listens");
        let mut socket = shake(next(&listener), false);
        while let Some((_, cookie)) = request(&mut socket) {
            socket.write_all(&[&done(cookie)[..], &[2; 512]].concat()).expect("it listens");
        }
    });
    let mut store = open(&uri).expect("it is there");
    let memory = memory(PIECE);
    assert_eq!(read(&mut store, 7, &memory), Submitted::Accepted);
    assert_eq!(ended(&mut store).result, Ok(()));
    let mut bytes = [0; 512];
    memory.read(0, &mut bytes).expect("inside");
    assert_eq!(bytes, [2; 512], "it is asked anew");
}

/// An answer, and nonsense behind it: the answer counts, and only the other request is asked again.
#[test]
fn what_came_before_nonsense_counts() {
    let came = Arc::new(AtomicUsize::new(0));
    let count = came.clone();
    let (_folder, _, uri) = serve(move |listener| {
        let mut socket = shake(next(&listener), false);
        let (_, first) = request(&mut socket).expect("a request");
        request(&mut socket).expect("another one");
        let data = [&done(first)[..], &[1; 512], &[0xff; 16]].concat();
        socket.write_all(&data).expect("it listens");
        let mut socket = shake(next(&listener), false);
        while let Some((_, cookie)) = request(&mut socket) {
            count.fetch_add(1, Ordering::SeqCst);
            socket.write_all(&[&done(cookie)[..], &[2; 512]].concat()).expect("it listens");
        }
    });
    let mut store = open(&uri).expect("it is there");
    let memory = memory(PIECE);
    for number in 0..2 {
        assert_eq!(read(&mut store, number, &memory), Submitted::Accepted);
    }
    let both = [ended(&mut store), ended(&mut store)];
    let told = both.map(|one| (one.token.bits(), one.result));
    assert_eq!(told, [(0, Ok(())), (1, Ok(()))]);
    assert_eq!(came.load(Ordering::SeqCst), 1);
}

/// The kernel takes connections for a server that does nothing any more.
#[test]
fn a_server_that_never_shakes_hands_is_given_up() {
    let (folder, _, uri) = serve(|listener| {
        drop(shake(next(&listener), false));
        std::thread::park();
        drop(listener);
    });
    let mut store = open(&uri).expect("it is there");
    store.bounds.give_up = Duration::from_millis(300);
    let memory = memory(PIECE);
    let result = match read(&mut store, 7, &memory) {
        Submitted::Accepted => ended(&mut store).result,
        other => panic!("{other:?}"),
    };
    assert_eq!(result, Err(Failure::Io));
    assert!(Path::new(&folder.path().join("s")).exists());
}

/// One connection is never answered, and the next one is.
#[test]
fn a_connection_that_shakes_hands_for_too_long_is_made_anew() {
    let (_folder, _, uri) = serve(|listener| {
        drop(shake(next(&listener), false));
        let _silent = next(&listener);
        answer_all(listener);
    });
    let mut store = open(&uri).expect("it is there");
    store.bounds.shake = Duration::from_millis(300);
    let memory = memory(PIECE);
    assert_eq!(read(&mut store, 7, &memory), Submitted::Accepted);
    assert_eq!(ended(&mut store).result, Ok(()));
}

/// It shakes hands, is asked, and says nothing: another connection is asked.
#[test]
fn a_connection_that_is_silent_is_made_anew() {
    let (_folder, _, uri) = serve(|listener| {
        let _silent = shake(next(&listener), false);
        answer_all(listener);
    });
    let mut store = open(&uri).expect("it is there");
    store.bounds.silence = Duration::from_millis(300);
    let memory = memory(PIECE);
    assert_eq!(read(&mut store, 7, &memory), Submitted::Accepted);
    assert_eq!(ended(&mut store).result, Ok(()));
    assert_eq!(read(&mut store, 8, &memory), Submitted::Accepted);
    assert_eq!(ended(&mut store).result, Ok(()));
}

/// A server that is silent for good: what was asked for twice fails, and what comes later, too.
#[test]
fn what_is_never_answered_fails() {
    let (_folder, _, uri) = serve(stay_silent);
    let mut store = open(&uri).expect("it is there");
    store.bounds.silence = Duration::from_millis(200);
    let memory = memory(PIECE);
    for number in 0..2 {
        assert_eq!(read(&mut store, number, &memory), Submitted::Accepted);
        let completion = ended(&mut store);
        assert_eq!((completion.token.bits(), completion.result), (number, Err(Failure::Io)));
        assert_eq!(store.outstanding(), 0);
    }
}

/// One that is slow, but says something, isn't silent; nor is one that isn't asked.
#[test]
fn silence_begins_with_the_last_word_or_the_first_question() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).expect("a socket");
    let mut link = Link::new(&Address::Unix(path), "x", None).expect("it is there");
    let mut socket = next(&listener);
    assert_eq!(link.silent_at(Duration::ZERO), None);
    let before = Instant::now();
    link.count_asked();
    let asked = link.silent_at(Duration::ZERO).expect("it is asked");
    assert!(asked >= before);
    link.count_asked();
    assert_eq!(link.silent_at(Duration::ZERO), Some(asked), "it is silent since the first one");
    socket.write_all(&[7]).expect("it listens");
    let before = Instant::now();
    link.read_some().expect("it says something");
    assert!(link.silent_at(Duration::ZERO).is_some_and(|at| at >= before));
}
