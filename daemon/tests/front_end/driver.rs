//! The program, and a front end with one ring of one request at a time.

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};
use std::fs::File;
use std::io::{BufRead as _, BufReader, IoSlice, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Types of requests.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;

/// The memory: its length, and its address in this front end, as it says.
const LEN: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000_0000;
/// What is where in it.
const DESCRIPTORS: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADER: u64 = 0x3000;
const DATA: u64 = 0x4000;
const STATUS: u64 = 0x5000;
const ELEMENTS: u16 = 8;

const NEED_REPLY: u32 = 1 | 1 << 3;
const LIMIT: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// What is where, for others that set up this ring.
pub struct Ring {
    pub len: u64,
    pub user: u64,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub elements: u16,
}

pub const RING: Ring = Ring {
    len: LEN,
    user: USER,
    descriptors: DESCRIPTORS,
    available: AVAILABLE,
    used: USED,
    elements: ELEMENTS,
};

/// The program, in a folder of its own.
pub struct Daemon {
    folder: tempfile::TempDir,
    kept: Vec<String>,
    child: Child,
}

impl Daemon {
    pub fn ram() -> Daemon {
        Self::start(tempfile::tempdir().expect("a folder"), vec!["--ram".into(), "1M".into()])
    }

    pub fn file() -> Daemon {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("disk");
        std::fs::write(&disk, vec![0; 1 << 20]).expect("it is written");
        Self::start(folder, vec!["--file".into(), disk.display().to_string()])
    }

    fn start(folder: tempfile::TempDir, kept: Vec<String>) -> Daemon {
        let child = run(&folder, &kept);
        Daemon { folder, kept, child }
    }

    pub fn socket(&self) -> String {
        self.folder.path().join("socket").display().to_string()
    }

    /// As `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Waits until its only thread sleeps in the kernel.
    pub fn wait_until_asleep(&self) {
        let path = format!("/proc/{}/stat", self.child.id());
        let state = || std::fs::read_to_string(&path).expect("it runs");
        while !state().contains(") S ") {
            std::thread::yield_now();
        }
    }

    pub fn start_again(&mut self) {
        self.child = run(&self.folder, &self.kept);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts it, and waits until it says that it serves.
fn run(folder: &tempfile::TempDir, kept: &[String]) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_exitless-io"))
        .arg("disk")
        .args(kept)
        .arg("--socket")
        .arg(folder.path().join("socket"))
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("it was asked for")).lines();
    let first = lines.next().expect("it says something").expect("it is text");
    assert!(first.contains("serves"), "{first}");
    // What it says later is read, so that it never waits for room.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("{line}")));
    child
}

/// A front end, with its guest's memory.
pub struct FrontEnd {
    socket: UnixStream,
    memory: File,
    kick: OwnedFd,
    call: OwnedFd,
    records: Option<(Vec<u8>, OwnedFd)>,
    offered: u16,
}

impl FrontEnd {
    pub fn connect(daemon: &Daemon) -> FrontEnd {
        Self::at(socket(daemon))
    }

    /// The guest's side alone: others talk to the daemon.
    pub fn apart() -> FrontEnd {
        Self::at(UnixStream::pair().expect("a pair").0)
    }

    fn at(socket: UnixStream) -> FrontEnd {
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd"));
        memory.set_len(LEN).expect("it grows");
        let event = || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        let (kick, call) = (event(), event());
        FrontEnd { socket, memory, kick, call, records: None, offered: 0 }
    }

    pub fn connect_again(&mut self, daemon: &Daemon) {
        self.socket = socket(daemon);
    }

    /// All that a ring needs. With `records`, memory for them is made the first time and handed
    /// over.
    pub fn set_up(&mut self, base: u32, records: bool) {
        let offered = self.ask(1, &[]);
        let word = u64::from_le_bytes(offered.try_into().expect("a word"));
        assert!(word & (1 << 32 | 1 << 30) == 1 << 32 | 1 << 30);
        let protocol = self.ask(15, &[]);
        self.send(16, 1, &protocol, &[]);
        self.tell(2, &(1u64 << 32 | 1 << 30 | 1 << 9).to_le_bytes(), &[]);
        let config = [words32([0, 57, 0]), vec![0; 57]].concat();
        assert_eq!(self.ask(24, &config)[12..20], 2048u64.to_le_bytes());
        if records {
            let (described, file) = self.records.take().unwrap_or_else(|| {
                self.send(31, 1, &[&[0; 16][..], &[1, 0, 8, 0, 0, 0, 0, 0]].concat(), &[]);
                let (reply, file) = self.receive();
                (reply, file.expect("memory for records"))
            });
            self.tell(32, &described, &[file.as_fd()]);
            self.records = Some((described, file));
        }
        let region = [words32([1, 0]), words64([0, LEN, USER, 0])].concat();
        let memory = self.memory.try_clone().expect("a copy");
        self.tell(5, &region, &[memory.as_fd()]);
        self.start(base);
    }

    /// Starts the ring; the base comes before the addresses.
    pub fn start(&mut self, base: u32) {
        self.tell(8, &words32([0, ELEMENTS.into()]), &[]);
        self.tell(10, &words32([0, base]), &[]);
        let places = [DESCRIPTORS, USED, AVAILABLE].map(|at| USER + at);
        self.tell(9, &[words32([0, 0]), words64(places), words64([0])].concat(), &[]);
        let kick = self.kick.try_clone().expect("a copy");
        let call = self.call.try_clone().expect("a copy");
        self.tell(12, &words64([0]), &[kick.as_fd()]);
        self.tell(13, &words64([0]), &[call.as_fd()]);
        self.tell(18, &words32([0, 1]), &[]);
    }

    /// Stops the ring: the available index.
    pub fn stop(&mut self) -> u32 {
        let reply = self.ask(11, &words32([0, 0]));
        u32::from_le_bytes(reply[4..8].try_into().expect("a word"))
    }

    /// Resets the device, and begins with an empty ring.
    pub fn reset(&mut self) {
        self.tell(34, &[], &[]);
        self.begin_anew();
    }

    /// The ring is empty, and begins at 0.
    pub fn begin_anew(&mut self) {
        self.memory.write_all_at(&[0; 0x3000], 0).expect("it is written");
        self.offered = 0;
    }

    pub fn memory(&self) -> &File {
        &self.memory
    }

    /// Whether all that was offered is answered.
    pub fn is_answered(&self) -> bool {
        let mut used = [0; 2];
        self.memory.read_exact_at(&mut used, USED + 2).expect("in memory");
        u16::from_le_bytes(used) == self.offered
    }

    /// Offers a request of 512 bytes and kicks.
    pub fn offer(&mut self, kind: u32, sector: u64, data: &[u8; 512]) {
        let put = |at: u64, bytes: &[u8]| self.memory.write_all_at(bytes, at).expect("in memory");
        put(HEADER, &[words32([kind, 0]), words64([sector])].concat());
        put(DATA, data);
        put(STATUS, &[0xff]);
        let descriptor = |address: u64, len: u32, flags: u16, next: u16| {
            let tail = [flags.to_le_bytes(), next.to_le_bytes()].concat();
            [words64([address]), words32([len]), tail].concat()
        };
        let data_flags = if kind == IN { 3 } else { 1 };
        let chain = [
            descriptor(HEADER, 16, 1, 1),
            descriptor(DATA, 512, data_flags, 2),
            descriptor(STATUS, 1, 2, 0),
        ];
        put(DESCRIPTORS, &chain.concat());
        put(AVAILABLE + 4 + 2 * u64::from(self.offered % ELEMENTS), &[0, 0]);
        self.offered = self.offered.wrapping_add(1);
        put(AVAILABLE + 2, &self.offered.to_le_bytes());
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("the kick is told");
    }

    /// Waits by calls until all that was offered is answered: the status.
    pub fn answer(&mut self) -> u8 {
        while !self.is_answered() {
            let mut waits = [PollFd::from_borrowed_fd(self.call.as_fd(), PollFlags::IN)];
            assert_eq!(poll(&mut waits, Some(&LIMIT)), Ok(1), "no call came");
            rustix::io::read(&self.call, &mut [0; 8]).expect("there is one");
        }
        let mut status = [0];
        self.memory.read_exact_at(&mut status, STATUS).expect("in memory");
        status[0]
    }

    pub fn data(&self) -> [u8; 512] {
        let mut bytes = [0; 512];
        self.memory.read_exact_at(&mut bytes, DATA).expect("in memory");
        bytes
    }

    /// Takes the memory away, and kicks.
    pub fn shrink(&mut self) {
        self.memory.set_len(0).expect("it shrinks");
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).expect("the kick is told");
    }

    pub fn send_nonsense(&mut self) {
        self.send(999, 1, &[1, 2, 3], &[]);
    }

    /// The daemon closes the connection.
    pub fn expect_end(&mut self) {
        assert!(matches!(self.socket.read(&mut [0; 64]), Ok(0) | Err(_)));
    }

    /// A request with a reply.
    fn ask(&mut self, request: u32, payload: &[u8]) -> Vec<u8> {
        self.send(request, 1, payload, &[]);
        self.receive().0
    }

    /// A request that goes well.
    fn tell(&mut self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        self.send(request, NEED_REPLY, payload, files);
        assert_eq!(self.receive().0, [0; 8], "request {request}");
    }

    fn send(&mut self, request: u32, flags: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        let header = words32([request, flags, payload.len() as u32]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let bytes = [header, payload.to_vec()].concat();
        let all = [IoSlice::new(&bytes)];
        sendmsg(&self.socket, &all, &mut control, SendFlags::NOSIGNAL).expect("it is sent");
    }

    fn receive(&mut self) -> (Vec<u8>, Option<OwnedFd>) {
        let mut header = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut header)];
        let got = recvmsg(&self.socket, into, &mut control, RecvFlags::CMSG_CLOEXEC);
        assert_eq!(got.expect("a reply").bytes, 12);
        let file = control.drain().find_map(|message| match message {
            rustix::net::RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let size = u32::from_le_bytes(header[8..].try_into().expect("a word"));
        let mut payload = vec![0; size as usize];
        self.socket.read_exact(&mut payload).expect("a whole reply");
        (payload, file)
    }
}

fn socket(daemon: &Daemon) -> UnixStream {
    let socket = UnixStream::connect(daemon.socket()).expect("it listens");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("it has one");
    socket
}

fn words32<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words64<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
