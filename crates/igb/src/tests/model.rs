//! What the datasheet says of the parts of the controller that are used.

use super::{BASE, DMA};
use crate::QUEUES;
use crate::registers::*;
use crate::ring::ENTRIES;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use window::{Span, Window};

/// A controller.
pub struct Model {
    registers: HashMap<u32, u32>,
    memory: Window,
    /// How many reads of CTRL show RST.
    reset_takes: u32,
    /// How many reads of RXDCTL of queue 0 don't show ENABLE.
    enable_takes: u32,
    pub gone: bool,
    /// Transmit queues that do nothing any more: a bit for each. A reset doesn't change that.
    pub hung: u32,
    /// The other end of the wire wants a pause.
    pub paused: bool,
    /// The cable is out.
    pub pulled: bool,
    pub resets: u32,
    /// By queues: where the next frame goes, and the next to be sent is.
    rx: [u32; QUEUES],
    tx: [u32; QUEUES],
    /// The last context descriptor.
    context: [[u64; 2]; QUEUES],
    pub wire: Vec<Vec<u8>>,
    /// Queues of those.
    pub by: Vec<usize>,
    /// Context descriptors that were read.
    pub contexts: u32,
}

#[derive(Clone)]
pub struct Device(pub Rc<RefCell<Model>>);

impl Registers for Device {
    fn read32(&mut self, offset: u32) -> u32 {
        let mut model = self.0.borrow_mut();
        assert!(u64::from(offset) < BYTES && offset.is_multiple_of(4));
        if model.gone {
            return GONE;
        }
        let value = model.get(offset);
        let late = |left: &mut u32| core::mem::replace(left, left.saturating_sub(1)) > 0;
        match offset {
            CTRL if value & RESET != 0 && !late(&mut model.reset_takes) => {
                model.registers.clear();
                model.resets += 1;
                (model.rx, model.tx) = Default::default();
                model.context = Default::default();
                0
            }
            0xC028 if late(&mut model.enable_takes) => value & !ENABLE,
            // The link is there only when it was negotiated.
            STATUS if model.get(MDIC) == NEGOTIATE && !model.pulled => {
                LINK | if model.paused { PAUSED } else { 0 }
            }
            _ => value,
        }
    }

    fn write32(&mut self, offset: u32, value: u32) {
        let mut model = self.0.borrow_mut();
        assert!(u64::from(offset) < BYTES && offset.is_multiple_of(4));
        model.registers.insert(offset, value);
        if let Some(queue) = (0..QUEUES).find(|n| tx(*n as u32).tail() == offset) {
            model.transmit(queue, value);
        }
    }
}

impl Device {
    pub fn new(memory: Window, reset_takes: u32, enable_takes: u32) -> Device {
        Device(Rc::new(RefCell::new(Model {
            registers: HashMap::new(),
            memory,
            reset_takes,
            enable_takes,
            gone: false,
            hung: 0,
            paused: false,
            pulled: false,
            resets: 0,
            rx: Default::default(),
            tx: Default::default(),
            context: Default::default(),
            wire: Vec::new(),
            by: Vec::new(),
            contexts: 0,
        })))
    }
}

impl Model {
    pub fn get(&self, offset: u32) -> u32 {
        self.registers.get(&offset).copied().unwrap_or(0)
    }

    /// A descriptor of the queue, and its two words.
    fn descriptor(&self, queue: QueueRegisters, entry: u32) -> (Span, u64, u64) {
        let base = u64::from(self.get(queue.base())) | u64::from(self.get(queue.base() + 4)) << 32;
        assert_eq!(self.get(queue.len()), ENTRIES * 16);
        assert_eq!(base % 128, 0);
        assert_ne!(self.get(queue.control()) & ENABLE, 0);
        let at = self.memory.span(base - DMA + u64::from(entry) * 16, 16).unwrap();
        let (first, second) = (at.load_u64(0).unwrap(), at.load_u64(8).unwrap());
        (at, first, second)
    }

    fn transmit(&mut self, queue: usize, tail: u32) {
        if self.hung >> queue & 1 == 0 {
            self.send(queue, tail, usize::MAX);
        }
    }

    /// Sends one frame of a queue that else hangs.
    pub fn finish_one(&mut self, queue: usize) {
        self.send(queue, self.get(crate::registers::tx(queue as u32).tail()), 1);
    }

    fn send(&mut self, queue: usize, tail: u32, mut most: usize) {
        assert_ne!(self.get(TCTL) & 2, 0);
        let mut frame: Option<(u64, Vec<u8>)> = None;
        while most > 0 && self.tx[queue] != tail {
            let (at, first, what) = self.descriptor(tx(queue as u32), self.tx[queue]);
            self.tx[queue] = (self.tx[queue] + 1) % ENTRIES;
            assert_eq!(what >> 29 & 1, 1, "DEXT");
            if what >> 20 & 15 == 2 {
                assert!(frame.is_none(), "a context within a frame");
                self.context[queue] = [first, what];
                self.contexts += 1;
                continue;
            }
            assert_eq!((what >> 20 & 15, what >> 25 & 1), (3, 1), "DTYP, IFCS");
            let (start, bytes) = frame.get_or_insert((what, Vec::new()));
            let mut data = vec![0; (what & 0xFFFF) as usize];
            assert!(!data.is_empty() && data.len() <= 2048);
            self.memory.read(first - DMA, &mut data).unwrap();
            bytes.extend(data);
            if what >> 24 & 1 == 0 {
                continue;
            }
            assert_eq!(what >> 27 & 1, 1, "RS");
            let sent = finished(*start, self.context[queue], bytes);
            self.by.extend(sent.iter().map(|_| queue));
            self.wire.extend(sent);
            (frame, most) = (None, most - 1);
            // The address is written over, too (7.2.2.4).
            at.store_u64(0, 0).unwrap();
            at.store_u64(8, 1 << 32).unwrap();
        }
        assert!(frame.is_none(), "a frame without an end");
    }

    /// A frame arrives in this queue. False: there was no buffer.
    pub fn arrive(&mut self, queue: usize, frame: &[u8]) -> bool {
        let registers = rx(queue as u32);
        if self.get(RCTL) & 2 == 0 || self.rx[queue] == self.get(registers.tail()) {
            return false;
        }
        assert_eq!(self.get(registers.split()) & 0xE00_007F, 1 << 25 | 2);
        let (at, address, what) = self.descriptor(registers, self.rx[queue]);
        assert_eq!(what, 0);
        self.memory.write(address - DMA, frame).unwrap();
        at.store_u64(0, 0).unwrap();
        at.store_u64(8, (frame.len() as u64) << 32 | 3).unwrap();
        self.rx[queue] = (self.rx[queue] + 1) % ENTRIES;
        true
    }

    /// Its memory has all of its rings.
    pub fn is_within(&self, queue: QueueRegisters) -> bool {
        let (at, ..) = self.descriptor(queue, 0);
        at.dma() >= DMA + BASE
    }
}

/// The sum of the words, as a checksum adds them up.
pub fn sum(bytes: &[u8]) -> u16 {
    let word = |word: &[u8]| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

/// What goes out of a frame with this first descriptor (7.2.4, 7.2.5).
fn finished(what: u64, [lengths, kind]: [u64; 2], frame: &[u8]) -> Vec<Vec<u8>> {
    let payload = what >> 46;
    let (cut, insert) = (what >> 31 & 1 != 0, what >> 41 & 1 != 0);
    if !insert {
        assert!(!cut && payload == frame.len() as u64);
        return vec![frame.to_vec()];
    }
    let (ip, ethernet) = ((lengths & 0x1FF) as usize, (lengths >> 9 & 0x7F) as usize);
    let (start, is_tcp) = (ethernet + ip, kind >> 11 & 3 == 1);
    let place = start + if is_tcp { 16 } else { 6 };
    let complete = |frame: &mut Vec<u8>| {
        let made = !sum(&frame[start..]);
        let made = if made == 0 { 0xFFFF } else { made };
        frame[place..place + 2].copy_from_slice(&made.to_be_bytes());
    };
    if !cut {
        assert_eq!(payload, frame.len() as u64);
        let mut frame = frame.to_vec();
        complete(&mut frame);
        return vec![frame];
    }
    let (l4, size) = ((kind >> 40 & 0xFF) as usize, (kind >> 48) as usize);
    let (headers, is_four) = (start + l4, kind >> 10 & 1 != 0);
    assert!(is_tcp && payload == (frame.len() - headers) as u64);
    assert_eq!(what >> 40 & 1 != 0, is_four, "the checksum of IPv4 is its own");
    let length = ethernet + if is_four { 2 } else { 4 };
    assert_eq!(frame[length..length + 2], [0, 0]);
    let segments = frame[headers..].chunks(size).enumerate().map(|(number, data)| {
        let mut segment = [&frame[..headers], data].concat();
        let bytes = segment.len() - ethernet - if is_four { 0 } else { 40 };
        segment[length..length + 2].copy_from_slice(&(bytes as u16).to_be_bytes());
        if is_four {
            assert_eq!(frame[ethernet + 10..ethernet + 12], [0, 0]);
            let made = !sum(&segment[ethernet..start]);
            segment[ethernet + 10..ethernet + 12].copy_from_slice(&made.to_be_bytes());
        }
        let sequence: [u8; 4] = segment[start + 4..start + 8].try_into().unwrap();
        let sequence = u32::from_be_bytes(sequence).wrapping_add((number * size) as u32);
        segment[start + 4..start + 8].copy_from_slice(&sequence.to_be_bytes());
        // The length is added to the sum of the pseudo header.
        let pseudo = [segment[place], segment[place + 1]];
        let length = ((l4 + data.len()) as u16).to_be_bytes();
        segment[place..place + 2].copy_from_slice(&sum(&[pseudo, length].concat()).to_be_bytes());
        complete(&mut segment);
        segment
    });
    segments.collect()
}
