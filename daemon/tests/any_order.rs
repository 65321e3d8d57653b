//! Front ends that say anything in any order, with rings that are right, half right or nonsense,
//! while requests and frames are under way. The dice begin with the same number each time.

mod front_end {
    pub mod daemon;
    pub mod driver;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::driver::FrontEnd;
use front_end::wire::{words32, words64};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;

const ALL: &str = "
[disk.a]
ram = \"1M\"
socket = \"a\"
[disk.b]
file = \"disk\"
socket = \"b\"
queues = 2
packed = true
[disk.c]
ram = \"1M\"
socket = \"c\"
queues = 2
packed = true
[network.n]
socket = \"n\"
switch = \"lan\"
packed = true
[network.m]
socket = \"m\"
switch = \"lan\"
mac = \"02:00:00:00:00:02\"
[host]
control = \"control\"
";

/// Connections of each device, and what each says at most.
const TIMES: u32 = 100;
const STEPS: u64 = 80;

/// Memory, and where it is in the front end. Each ring has 0x8000 bytes of it.
const LEN: u64 = 0x4_0000;
const USER: u64 = 0x1000_0000;
const RING: u64 = 0x8000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// A good request's parts, and what others may be of.
const HEADER: u64 = 0x2_0000;
const DATA: u64 = 0x2_1000;
const STATUS: u64 = 0x2_f000;

const RING_PACKED: u64 = 1 << 34;
const CONFIG: u64 = 1 << 9;
const INFLIGHT: u64 = 1 << 12;

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20) % end
    }

    /// Once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn any<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// What there is to say.
#[derive(Clone, Copy)]
enum Step {
    Features,
    Table,
    Ring,
    Size,
    Base,
    Enable,
    Stop,
    Records,
    Log,
    Reset,
    Config,
    Shrink,
    Offer,
}

const STEPS_THERE_ARE: [Step; 20] = {
    use Step::*;
    [
        Features, Table, Ring, Size, Base, Enable, Stop, Records, Log, Reset, Config, Shrink,
        Offer, Offer, Offer, Offer, Offer, Offer, Offer, Offer,
    ]
};

struct Hostile<'a> {
    socket: UnixStream,
    dice: &'a mut Dice,
    memory: File,
    kick: OwnedFd,
    call: OwnedFd,
    features: u64,
    protocol: u64,
    packed: u64,
    offered: u16,
}

impl<'a> Hostile<'a> {
    fn at(path: &str, dice: &'a mut Dice) -> Hostile<'a> {
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd"));
        memory.set_len(LEN).expect("it grows");
        let event = || eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        let socket = UnixStream::connect(path).expect("it listens");
        let (kick, call, packed) = (event(), event(), dice.below(2) * RING_PACKED);
        Hostile { socket, dice, memory, kick, call, features: 0, protocol: 0, packed, offered: 0 }
    }

    /// None: the daemon has ended the connection.
    fn say(&self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> Option<()> {
        let bytes = [words32([request, 1, payload.len() as u32]), payload.to_vec()].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let all = [IoSlice::new(&bytes)];
        sendmsg(&self.socket, &all, &mut control, SendFlags::NOSIGNAL).ok().map(|_| ())
    }

    fn ask(&self, request: u32, payload: &[u8]) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        self.say(request, payload, &[])?;
        let mut bytes = [0; 600];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let got = recvmsg(&self.socket, into, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?.bytes;
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        Some((bytes.get(12..got)?.to_vec(), file))
    }

    /// Says all of it, until the daemon has heard enough.
    fn play(&mut self) -> Option<()> {
        let word = |reply: Vec<u8>| reply.try_into().ok().map(u64::from_le_bytes);
        self.features = word(self.ask(1, &[])?.0)?;
        let protocol = self.ask(15, &[])?.0;
        self.say(16, &protocol, &[])?;
        self.protocol = word(protocol)?;
        for step in [Step::Features, Step::Table, Step::Ring, Step::Ring] {
            self.step(step)?;
        }
        for _ in 0..self.dice.below(STEPS) {
            let step = self.dice.any(&STEPS_THERE_ARE);
            self.step(step)?;
        }
        Some(())
    }

    fn step(&mut self, step: Step) -> Option<()> {
        let ring = self.dice.below(2) as u32;
        match step {
            Step::Features => {
                let all = self.features & !RING_PACKED | self.features & self.packed;
                let part = if self.dice.once_in(9) { self.dice.below(u64::MAX) } else { u64::MAX };
                self.say(2, &words64([all & part | 1 << 32]), &[])
            }
            Step::Table => {
                let count = 1 + self.dice.below(2);
                let len = LEN / count;
                let mut payload = words32([count as u32, 0]);
                for at in (0..count).map(|at| at * len) {
                    let hole = if self.dice.once_in(8) { at } else { 0 };
                    payload.extend(words64([at + hole, len, USER + at, at]));
                }
                let files = [self.memory.as_fd(); 2];
                self.say(5, &payload, &files[..count as usize])
            }
            Step::Ring => {
                let size = self.dice.any(&[1, 2, 7, 8, 8, 16, 128, 256]);
                self.say(8, &words32([ring, size]), &[])?;
                let at = USER + RING * u64::from(ring);
                let logs = self.dice.below(2) as u32;
                let places = words64([at, at + USED, at + AVAILABLE, DATA]);
                self.say(9, &[words32([ring, logs]), places].concat(), &[])?;
                self.say(12, &words64([ring.into()]), &[self.kick.as_fd()])?;
                self.say(13, &words64([ring.into()]), &[self.call.as_fd()])?;
                self.say(18, &words32([ring, 1]), &[])
            }
            Step::Size => {
                let size = 1 + self.dice.below(256) as u32;
                self.say(8, &words32([ring, size]), &[])
            }
            Step::Base => {
                let base = self.dice.any(&[0, 0, 5, 0xffff, 0x8000_8000, 0x8005_0005]);
                self.say(10, &words32([ring, base]), &[])
            }
            Step::Enable => {
                let enabled = self.dice.below(2) as u32;
                self.say(18, &words32([ring, enabled]), &[])
            }
            Step::Stop => self.ask(11, &words32([ring, 0])).map(|_| ()),
            // Networks have neither.
            Step::Records if self.protocol & INFLIGHT == 0 => Some(()),
            Step::Config if self.protocol & CONFIG == 0 => Some(()),
            Step::Records => self.records(),
            Step::Log => {
                // In the memory itself, among the rings.
                let area = words64([0x1000, 0x1000 * self.dice.below(8)]);
                self.say(6, &area, &[self.memory.as_fd()])
            }
            Step::Reset => {
                let request = self.dice.any(&[4, 34]);
                self.say(request, &[], &[])
            }
            Step::Config => {
                let part = words32([self.dice.below(60) as u32, 1 + self.dice.below(60) as u32, 0]);
                self.ask(24, &[part, vec![0; 64]].concat()).map(|_| ())
            }
            Step::Shrink => {
                if self.dice.once_in(9) {
                    let _ = self.memory.set_len(0x1000 * self.dice.below(0x40));
                }
                Some(())
            }
            Step::Offer => self.offer(ring),
        }
    }

    /// New records, in which something else may be.
    fn records(&mut self) -> Option<()> {
        let size = self.dice.any(&[0, 8, 128, 255]);
        let (described, file) =
            self.ask(31, &[&[0; 16][..], &[2, 0, size, 0, 0, 0, 0, 0]].concat())?;
        let file = File::from(file?);
        let changes = if self.dice.once_in(2) { self.dice.below(20) } else { 0 };
        for _ in 0..changes {
            let word = self.dice.below(0x1_0000) as u16 & self.dice.any(&[1, 0xff, 0xffff]);
            file.write_all_at(&word.to_le_bytes(), 2 * self.dice.below(0x400)).expect("it is ours");
        }
        self.say(32, &described, &[file.as_fd()])
    }

    /// Puts something into a ring's table and into the ring, and kicks.
    fn offer(&mut self, ring: u32) -> Option<()> {
        let at = RING * u64::from(ring);
        let packed = self.dice.any(&[0, 0x80]);
        let mut chain = [(0, 0, 0_u16); 3];
        if self.dice.once_in(4) {
            for part in &mut chain {
                let address = HEADER + 0x1000 * self.dice.below(16) + self.dice.any(&[0, 0xff0]);
                let len = self.dice.any(&[0, 1, 12, 16, 512, 4096, 65536]);
                *part = (address, len, self.dice.any(&[0, 1, 2, 3, 4, 5, 0x8000]));
            }
        } else {
            let kind = self.dice.any(&[0, 0, 1, 1, 4, 8, 11, 13]);
            let header = [words32([kind, 0]), words64([self.dice.below(3000)])].concat();
            self.put(HEADER, &header);
            let len = 512 * (1 + self.dice.below(8) as u32);
            let data = (DATA, len, if kind == 0 { 3 } else { 1 });
            chain = [(HEADER, 16, 1), data, (STATUS, 1, 2)];
        }
        for (place, (address, len, flags)) in (0_u16..).zip(chain) {
            let tail = [(flags | packed).to_le_bytes(), (place + 1).to_le_bytes()].concat();
            let descriptor = [words64([address]), words32([len]), tail].concat();
            self.put(at + 16 * u64::from(place), &descriptor);
        }
        let head = if self.dice.once_in(9) { self.dice.below(12) as u16 } else { 0 };
        let place = AVAILABLE + 4 + 2 * self.dice.below(8);
        self.put(at + place, &head.to_le_bytes());
        self.offered = self.offered.wrapping_add(self.dice.below(2) as u16);
        self.put(at + AVAILABLE + 2, &self.offered.to_le_bytes());
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).ok().map(|_| ())
    }

    /// It may be longer than the memory was made.
    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).expect("it is ours");
    }
}

/// How many heard all that was to be said.
fn plays(path: &str, seed: u64) -> u32 {
    let mut dice = Dice(seed);
    (0..TIMES).map(|_| u32::from(Hostile::at(path, &mut dice).play().is_some())).sum()
}

#[test]
fn whatever_front_ends_say_others_are_served() {
    let daemon = Daemon::run(ALL);
    let mut good = FrontEnd::at(&daemon, "a");
    let hostile = ["b", "c", "n", "m"].map(|name| {
        let path = daemon.path(name);
        std::thread::spawn(move || {
            plays(&path, 0x9e37_79b9_7f4a_7c15 ^ u64::from(name.as_bytes()[0]))
        })
    });
    while !hostile.iter().all(|one| one.is_finished()) {
        good.works();
    }
    for one in hostile {
        assert!(one.join().expect("it is let in each time") > 0, "some are heard to the end");
    }
    good.works();
}
