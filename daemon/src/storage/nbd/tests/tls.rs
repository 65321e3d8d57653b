//! TLS against a server of the test's own: more than the socket takes at a time, and what comes in
//! the clear when nothing should.

use super::{PIECE, done, ended, greeting, memory, read, serve};
use crate::config::{Server, Tls};
use crate::storage::link::Address;
use crate::storage::{NbdStore, Reached};
use blk::{Failure, Operation, Submitted, Token};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::fd::OwnedFd;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use window::Span;

const NAME: &str = "storage.example";
/// Writes of [`PIECE`]: more than a socket takes, and less than makes a store full.
const WRITES: u64 = 200;

/// Who serves, and the folder of the CA's file.
fn identity() -> (Arc<ServerConfig>, TempDir) {
    let mut asked = CertificateParams::new(Vec::new()).expect("no names");
    asked.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let ca = asked.self_signed(&key).expect("a certificate").pem();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("ca.pem"), ca).expect("it is written");
    let issuer = Issuer::new(asked, key);
    let key = KeyPair::generate().expect("a key");
    let asked = CertificateParams::new(vec![NAME.to_owned()]).expect("a name");
    let signed = asked.signed_by(&key, &issuer).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("there are some")
        .with_no_client_auth()
        .with_single_cert(
            vec![signed.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        );
    (Arc::new(config.expect("it fits")), folder)
}

fn server(uri: &str, folder: &TempDir) -> Server {
    let (ca, name) = (folder.path().join("ca.pem"), Some(NAME.to_owned()));
    let tls = Some(Tls { ca, own: None, name });
    let uri = uri.replace("nbd+", "nbds+");
    Server::new(&uri, tls, None).expect("an address")
}

fn open(uri: &str, folder: &TempDir) -> anyhow::Result<NbdStore> {
    NbdStore::open(&server(uri, folder), false, None)
}

/// A server that so many come to, one after the other.
fn serve_over_tls(config: Arc<ServerConfig>, clients: usize) -> (TempDir, Address, String) {
    serve(move |listener| {
        for _ in 0..clients {
            let socket = start_tls(&listener, &[]);
            let connection = ServerConnection::new(config.clone()).expect("it is one");
            keep(&mut StreamOwned::new(connection, socket));
        }
    })
}

/// As another process reaches it, for one that can't open files.
fn reached(server: &Server) -> (Reached, Vec<OwnedFd>) {
    let store = NbdStore::open(server, false, None).expect("it is there");
    store.for_another(Some(server)).expect("it can be given")
}

/// Until TLS begins, and so many bytes more.
fn start_tls(listener: &UnixListener, more: &[u8]) -> UnixStream {
    let mut socket = listener.accept().expect("somebody connects").0;
    socket.write_all(&greeting(false)[..18]).expect("it listens");
    socket.read_exact(&mut [0; 4 + 16]).expect("it asks for TLS");
    let reply = 0x0003_e889_0455_65a9u64.to_be_bytes();
    let reply = [&reply[..], &[0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0], more].concat();
    socket.write_all(&reply).expect("it listens");
    socket
}

/// Keeps what is written, and gives it back.
fn keep(socket: &mut impl ReadWrite) {
    socket.write_all(&greeting(false)[18..]).expect("it listens");
    socket.read_exact(&mut [0; 16 + 16 + 9]).expect("it asks");
    let mut data = vec![0; (WRITES * PIECE) as usize];
    let mut head = [0; 28];
    while socket.read_exact(&mut head).is_ok() {
        let cookie = head[8..16].try_into().expect("eight");
        let at = u64::from_be_bytes(head[16..24].try_into().expect("eight")) as usize;
        let len = u32::from_be_bytes(head[24..].try_into().expect("four")) as usize;
        let piece = &mut data[at..at + len];
        socket.write_all(&done(cookie)).expect("it listens");
        match head[7] {
            0 => socket.write_all(piece).expect("it listens"),
            _ => socket.read_exact(piece).expect("it sends"),
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

fn all_end(store: &mut NbdStore) {
    for _ in 0..WRITES {
        assert_eq!(ended(store).result, Ok(()));
    }
}

/// Each piece has bytes of its own.
fn byte(number: u64, at: u64) -> u8 {
    (number * 31 + at / 3) as u8
}

#[test]
fn more_than_a_socket_takes_goes_both_ways() {
    let (config, ca) = identity();
    let (_folder, _, uri) = serve_over_tls(config, 1);
    let mut store = open(&uri, &ca).expect("it is there");
    assert_eq!(store.how(), "over NBD and TLS");
    let all = memory(WRITES * PIECE);
    let piece = |number| -> Span { all.sub(number * PIECE, PIECE).expect("inside") };
    let sector = |number| number * PIECE / 512;
    for number in 0..WRITES {
        let bytes: Vec<u8> = (0..PIECE).map(|at| byte(number, at)).collect();
        piece(number).write(0, &bytes).expect("inside");
        let from = &[piece(number)];
        let write = Operation::Write { sector: sector(number), from, durable: false };
        assert_eq!(store.submit(Token::from_bits(number), write), Submitted::Accepted);
    }
    all_end(&mut store);
    all.fill(0);
    for number in 0..WRITES {
        let into = &[piece(number)];
        let read = Operation::Read { sector: sector(number), into };
        assert_eq!(store.submit(Token::from_bits(number), read), Submitted::Accepted);
    }
    all_end(&mut store);
    for number in 0..WRITES {
        let mut bytes = vec![0; PIECE as usize];
        piece(number).read(0, &mut bytes).expect("inside");
        assert!((0..).zip(bytes).all(|(at, found)| found == byte(number, at)), "{number}");
    }
}

/// Somebody between the two could have put it there.
#[test]
fn nothing_counts_that_came_in_the_clear() {
    let (_, ca) = identity();
    let (_folder, _, uri) = serve(|listener| {
        let mut socket = start_tls(&listener, &greeting(false)[18..]);
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let refused = open(&uri, &ca).err().map(|error| format!("{error:#}")).unwrap_or_default();
    assert!(refused.contains("the server says more than that TLS begins"), "{refused}");
}

/// It makes a connection of its own, and reads no file: that could make those wait whom it serves.
/// The server never was gone, so nothing of that is said.
#[test]
fn one_that_another_process_reached_is_gone_on_with() {
    let (config, ca) = identity();
    let (_folder, _, uri) = serve_over_tls(config, 2);
    let server = server(&uri, &ca);
    let reached = reached(&server);
    // The same file, without its text.
    std::fs::write(ca.path().join("ca.pem"), "").expect("it is written");
    let mut store = NbdStore::open(&server, false, Some(reached)).expect("it is there");
    assert!(store.gone_since.is_some() && !store.is_gone_said);
    let memory = memory(PIECE);
    assert_eq!(read(&mut store, 7, &memory), Submitted::Accepted);
    assert_eq!(ended(&mut store).result, Ok(()));
    assert!(store.gone_since.is_none() && !store.is_gone_said);
}

/// A server that goes away between the two is said to be gone, and given up in time.
#[test]
fn one_that_another_process_reached_may_be_gone() {
    let (config, ca) = identity();
    let (_folder, _, uri) = serve_over_tls(config, 1);
    let server = server(&uri, &ca);
    let reached = reached(&server);
    let mut store = NbdStore::open(&server, false, Some(reached)).expect("it was there");
    store.bounds.give_up = Duration::from_millis(300);
    let memory = memory(PIECE);
    let result = match read(&mut store, 7, &memory) {
        Submitted::Accepted => ended(&mut store).result,
        done => panic!("{done:?}"),
    };
    assert_eq!(result, Err(Failure::Io));
    assert!(store.is_gone_said);
}

/// What doesn't come along is a sentence.
#[test]
fn a_letter_that_lacks_something_is_refused() {
    let (config, ca) = identity();
    let (_folder, _, uri) = serve_over_tls(config, 1);
    let server = server(&uri, &ca);
    let (told, files) = reached(&server);
    let refused = |told: Reached, count: usize| {
        let copies = files[..count].iter().map(|file| file.try_clone().expect("a copy"));
        let opened = NbdStore::open(&server, false, Some((told, copies.collect())));
        opened.err().map(|error| format!("{error:#}")).unwrap_or_default()
    };
    for (count, part) in [(0, "a timer"), (1, "an epoll instance"), (2, "files")] {
        let said = refused(told.clone(), count);
        assert_eq!(said, format!("{part} didn't come along"));
    }
    let nowhere = Reached { addresses: Vec::new(), ..told.clone() };
    assert!(refused(nowhere, files.len()).ends_with("has no address"));
    let endless = Reached { prepared: Some(usize::MAX), ..told };
    assert_eq!(refused(endless, files.len()), "files didn't come along");
}
