//! The driver library of libblkio, which programs use that have no guest, against the daemon: all
//! its kinds of requests, on several queues at a time, split and packed.
//!
//! Not tried here: memory that is unmapped while requests are under way, which it doesn't do.

#[allow(dead_code, reason = "the other tests have the rest")]
mod front_end {
    pub mod daemon;
    pub mod wire;
}

use front_end::daemon::Daemon;
use front_end::wire::LIMIT;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags as Blk, VirtioBlkQueue, VirtioBlkTransport,
    VirtioFeatureFlags as Features,
};

const QUEUES: usize = 4;
/// A ring's entries. A request needs three.
const ENTRIES: u16 = 64;
/// Requests of a queue at a time.
const DEPTH: usize = 16;
const BLOCK: usize = 4096;
/// Blocks of the disk, and those of each queue.
const BLOCKS: usize = 256;
const SHARE: usize = BLOCKS / QUEUES;

/// A program with all queues of the disk, and memory that both sides have.
struct Program {
    transport: Box<VirtioBlkTransport>,
    queues: Vec<VirtioBlkQueue<'static, usize>>,
    memory: File,
    /// The addresses that the memory is said to have here. The library never looks what is there,
    /// so the memory is read and written through its file.
    addresses: Vec<u8>,
    /// Those of the first page.
    start: usize,
}

/// What a block of the disk holds in a round.
fn pattern(block: usize, round: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (at / 8) as u8 ^ block as u8 ^ (at as u8) << 5 ^ round).collect()
}

impl Program {
    fn connect(daemon: &Daemon, features: Features) -> Program {
        let disk = Blk::MQ | Blk::FLUSH | Blk::DISCARD | Blk::WRITE_ZEROES;
        let wanted = (features | Features::VERSION_1).bits() | disk.bits();
        let transport = VhostUser::new(&daemon.socket(), wanted).expect("it serves");
        let mut transport: Box<VirtioBlkTransport> = Box::new(transport);
        assert_eq!(transport.get_features() & wanted, wanted);
        assert_eq!(transport.max_queues(), Some(QUEUES));
        let config = transport.get_config().expect("it has one");
        assert_eq!(u64::from(config.capacity), (BLOCKS * BLOCK / 512) as u64);
        let queues = VirtioBlkQueue::setup_queues(&mut *transport, QUEUES, ENTRIES);
        let mut queues = queues.expect("it takes them");
        queues.iter_mut().for_each(|queue| queue.set_used_notif_enabled(true));
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).expect("a memfd"));
        memory.set_len((BLOCKS * BLOCK) as u64).expect("it grows");
        let addresses = vec![0; (BLOCKS + 1) * BLOCK];
        let start = addresses.as_ptr().align_offset(BLOCK);
        let (at, len) = (addresses[start..].as_ptr() as usize, BLOCKS * BLOCK);
        transport.map_mem_region(at, len, memory.as_raw_fd(), 0).expect("there is room");
        Program { transport, queues, memory, addresses, start }
    }

    /// Each queue asks this of its blocks, so many at a time, and waits for calls.
    fn each(&mut self, mut ask: impl FnMut(&mut VirtioBlkQueue<'static, usize>, usize, &mut [u8])) {
        for first in (0..SHARE).step_by(DEPTH) {
            for (number, queue) in self.queues.iter_mut().enumerate() {
                for block in (0..DEPTH).map(|at| number * SHARE + first + at) {
                    let at = self.start + block * BLOCK;
                    ask(queue, block, &mut self.addresses[at..at + BLOCK]);
                }
                if queue.avail_notif_needed() {
                    let notifier = self.transport.get_submission_notifier(number);
                    notifier.notify().expect("it is told");
                }
            }
            (0..QUEUES).for_each(|number| self.await_all(number, first));
        }
    }

    /// All that the queue asked for is done, each once.
    fn await_all(&mut self, number: usize, first: usize) {
        let call = self.transport.get_completion_fd(number);
        let mut done: Vec<_> = Vec::new();
        while done.len() < DEPTH {
            let called = poll(&mut [PollFd::new(&call, PollFlags::IN)], Some(&LIMIT));
            assert_eq!(called, Ok(1), "no call came");
            call.read().expect("it was called");
            for completion in self.queues[number].completions() {
                assert_eq!(completion.ret, 0);
                done.push(completion.context);
            }
        }
        done.sort_unstable();
        let asked = (0..DEPTH).map(|at| number * SHARE + first + at);
        assert!(done.into_iter().eq(asked));
    }

    fn write(&mut self, round: u8) {
        for block in 0..BLOCKS {
            let at = (block * BLOCK) as u64;
            self.memory.write_all_at(&pattern(block, round), at).expect("it is there");
        }
        self.each(|queue, block, bytes| {
            queue.write((block * BLOCK) as u64, bytes, block).expect("there is room");
        });
    }

    /// Reads all; what each block is said to hold is there.
    fn expect(&mut self, held: impl Fn(usize) -> Vec<u8>) {
        self.memory.write_all_at(&vec![0xee; BLOCKS * BLOCK], 0).expect("it is there");
        self.each(|queue, block, bytes| {
            queue.read((block * BLOCK) as u64, bytes, block).expect("there is room");
        });
        for block in 0..BLOCKS {
            let mut read = vec![0; BLOCK];
            self.memory.read_exact_at(&mut read, (block * BLOCK) as u64).expect("it is there");
            assert!(read == held(block), "block {block} holds something else");
        }
    }
}

/// Whatever was written by one way is read by the next one.
#[test]
fn libblkios_driver_reads_and_writes_on_several_queues() {
    let daemon = Daemon::file_with(&["--queues", "4", "--packed"]);
    let ways = [
        Features::empty(),
        Features::RING_EVENT_IDX,
        Features::RING_PACKED,
        Features::RING_PACKED | Features::RING_EVENT_IDX,
    ];
    let mut last = None;
    for (way, round) in ways.into_iter().zip(1..) {
        let mut program = Program::connect(&daemon, way);
        match last {
            None => program.expect(|_| vec![0; BLOCK]),
            Some(last) => program.expect(|block| pattern(block, last)),
        }
        program.write(round);
        program.each(|queue, block, _| queue.flush(block).expect("there is room"));
        program.expect(|block| pattern(block, round));
        let kept = std::fs::read(daemon.path("disk")).expect("it is there");
        let kept = kept.chunks(BLOCK).enumerate();
        assert!(kept.into_iter().all(|(block, held)| held == pattern(block, round)));
        program.each(|queue, block, _| {
            let at = (block * BLOCK) as u64;
            let asked = match block % 4 {
                0 => queue.write_zeroes(at, BLOCK as u64, false, block),
                1 => queue.write_zeroes(at, BLOCK as u64, true, block),
                // The content is anything then, so it is zeroed behind that.
                2 => queue.discard(at, BLOCK as u64, block),
                _ => queue.flush(block),
            };
            asked.expect("there is room");
        });
        let kept = std::fs::read(daemon.path("disk")).expect("it is there");
        for (block, held) in kept.chunks(BLOCK).enumerate() {
            match block % 4 {
                0 | 1 => assert!(held == vec![0; BLOCK], "block {block} isn't zeroed"),
                2 => {}
                _ => assert!(held == pattern(block, round), "block {block} has changed"),
            }
        }
        program.write(round);
        last = Some(round);
    }
}
