//! The split ring against rust-vmm's crate `virtio-queue`, on the same memory.
//!
//! It takes more than this crate does, so a chain is compared if this crate takes it; that right ones
//! are taken is said in `properties`. Without the event index it asks for every call.
mod driver;

use driver::{Buffer, Driver, Heap, SplitDriver};
use proptest::prelude::*;
use virtio_queue::QueueT;
use virtqueue::{Chain, Features, Position, Queue, State};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use window::{Memory, Window};

const START: u64 = 0x1000;
const LEN: u64 = 0x10000;

struct Both {
    window: Window,
    ours: Queue,
    theirs: virtio_queue::Queue,
    /// Their copy of the guest's memory.
    memory: GuestMemoryMmap,
}

impl Both {
    fn new(window: Window, driver: &SplitDriver, features: Features, start: u16) -> Both {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(START), LEN as usize)]).unwrap();
        let layout = driver.layout();
        let position = Position { index: start, wrap: true };
        let state = State { available: position, used: position, ..State::at_reset(features) };
        let ours = Queue::new(&window, layout, features, state).unwrap();
        let mut theirs = virtio_queue::Queue::new(layout.size).unwrap();
        theirs.set_size(layout.size);
        theirs.set_desc_table_address(Some(layout.descriptors as u32), None);
        theirs.set_avail_ring_address(Some(layout.driver as u32), None);
        theirs.set_used_ring_address(Some(layout.device as u32), None);
        theirs.set_event_idx(features.event_index);
        theirs.set_next_avail(start);
        theirs.set_next_used(start);
        theirs.set_ready(true);
        let both = Both { window, ours, theirs, memory };
        both.copy();
        assert!(both.theirs.is_valid(&both.memory));
        both
    }

    fn copy(&self) {
        let mut bytes = vec![0; LEN as usize];
        self.window.read(START, &mut bytes).unwrap();
        self.memory.write_slice(&bytes, GuestAddress(START)).unwrap();
    }

    /// The next chain, if this crate takes it, as both see it.
    fn take(&mut self) -> Option<Chain> {
        self.copy();
        let mut chain = Chain::new();
        if self.ours.take(&self.window, &mut chain) != Ok(true) {
            return None;
        }
        let theirs = self.theirs.pop_descriptor_chain(&self.memory).expect("it waits there, too");
        assert_eq!(theirs.head_index(), chain.head().index());
        let theirs: Vec<Buffer> = theirs
            .map(|descriptor| Buffer {
                address: descriptor.addr().0,
                len: descriptor.len(),
                writable: descriptor.is_write_only(),
            })
            .filter(|buffer| buffer.len != 0)
            .collect();
        let buffer = |span: &window::Span, writable| Buffer {
            address: span.dma(),
            len: span.len() as u32,
            writable,
        };
        let readable = chain.readable().iter().map(|span| buffer(span, false));
        let writable = chain.writable().iter().map(|span| buffer(span, true));
        assert_eq!(readable.chain(writable).collect::<Vec<_>>(), theirs);
        Some(chain)
    }

    fn complete(&mut self, chain: &Chain, written: u32) {
        self.ours.complete(chain.head(), written);
        self.theirs.add_used(&self.memory, chain.head().index(), written).unwrap();
    }

    fn publish(&mut self, layout: virtqueue::Layout, event_index: bool) -> bool {
        self.ours.publish();
        let len = 4 + 8 * usize::from(layout.size);
        let (mut ours, mut theirs) = (vec![0; len], vec![0; len]);
        self.window.read(layout.device, &mut ours).unwrap();
        self.memory.read_slice(&mut theirs, GuestAddress(layout.device)).unwrap();
        assert_eq!(ours, theirs, "the used rings differ");
        let due = self.ours.call_due();
        let wants = self.ours.wants_call();
        if due && event_index {
            assert_eq!(wants, self.theirs.needs_notification(&self.memory).unwrap());
        }
        wants
    }
}

type Added = (Vec<(u8, bool)>, bool, u32);

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_chains_used_elements_and_calls(
        event_index: bool,
        power in 0u32..6,
        start: u16,
        rounds in prop::collection::vec(
            (
                prop::collection::vec(
                    (prop::collection::vec((1u8..60, any::<bool>()), 1..6), any::<bool>(), any::<u32>()),
                    0..6,
                ),
                any::<[bool; 2]>(),
            ),
            1..20,
        ),
    ) {
        let rounds: Vec<(Vec<Added>, [bool; 2])> = rounds;
        let features = Features { indirect: true, event_index, packed: false };
        let memory = Memory::new(&[(START, LEN)], 0);
        let mut heap = Heap::new(memory.window(), START, START + LEN);
        let mut driver = SplitDriver::new(&mut heap, 1 << power, features, start);
        let layout = driver.layout();
        let mut both = Both::new(memory.window(), &driver, features, start);
        for (chains, [wait, disable]) in rounds {
            let mut written = Vec::new();
            for (mut buffers, indirect, len) in chains {
                buffers.sort_by_key(|(_, writable)| *writable);
                let buffers: Vec<Buffer> = buffers
                    .iter()
                    .map(|(len, writable)| {
                        Buffer { writable: *writable, ..heap.room((*len).into()) }
                    })
                    .collect();
                let table = heap.take(16 * buffers.len() as u64, 16);
                let added = if indirect {
                    driver.add_indirect(table, &buffers)
                } else {
                    driver.add(&buffers)
                };
                if added.is_some() {
                    written.push(len);
                }
            }
            if disable {
                driver.disable_calls();
            }
            if wait {
                driver.enable_calls();
            }
            let taken: Vec<Chain> = std::iter::from_fn(|| both.take()).collect();
            prop_assert_eq!(taken.len(), written.len());
            for (chain, written) in taken.iter().zip(&written).rev() {
                both.complete(chain, *written);
            }
            both.publish(layout, event_index);
            while driver.used().is_some() {}
        }
    }

    /// Descriptors and heads that are nearly right.
    #[test]
    fn what_is_taken_is_what_the_other_one_takes(
        descriptors in prop::collection::vec((0u64..0x1_2000, 0u32..300, 0u16..8, 0u16..9), 8),
        heads: [u8; 8],
    ) {
        let features = Features { indirect: true, event_index: true, packed: false };
        let memory = Memory::new(&[(START, LEN)], 0);
        let window = memory.window();
        let mut heap = Heap::new(window, START, START + LEN);
        let driver = SplitDriver::new(&mut heap, 8, features, 0);
        let layout = driver.layout();
        for (index, (address, len, flags, next)) in descriptors.iter().enumerate() {
            // Tables lie over the table itself, so that there is something in them.
            let table = flags & 4 != 0;
            let address = if table { layout.descriptors + address % 128 / 16 * 16 } else { *address };
            let len = if table { 16 * (len % 8) } else { *len };
            let at = layout.descriptors + 16 * index as u64;
            window.write(at, &address.to_le_bytes()).unwrap();
            let last = u64::from(len) | u64::from(*flags) << 32 | u64::from(*next) << 48;
            window.write(at + 8, &last.to_le_bytes()).unwrap();
        }
        for (place, head) in heads.iter().enumerate() {
            window.write(layout.driver + 4 + 2 * place as u64, &[head % 8, 0]).unwrap();
        }
        window.write(layout.driver + 2, &[8, 0]).unwrap();
        let mut both = Both::new(window, &driver, features, 0);
        while let Some(chain) = both.take() {
            both.complete(&chain, 7);
            both.publish(layout, true);
        }
    }
}
