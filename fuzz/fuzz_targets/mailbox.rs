//! Mailboxes of a network controller's virtual functions: guests write what they like, hold their
//! mailboxes and reset their functions. The addresses stay, a function is open exactly when its
//! guest's last reset was answered, the multicast filter is what the open ones asked for, and a
//! pass over the mailboxes ends.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sriov::i82576::{Controller, Registers};
use std::{cell::RefCell, collections::HashMap, rc::Rc};

const FUNCTIONS: usize = 4;
const P2V: u32 = 0x0C00;
const MBVFICR: u32 = 0x0C80;
const VFLRE: u32 = 0x0C88;
const VFRE: u32 = 0x0C8C;
const MTA: u32 = 0x5200;
const RA: u32 = 0x5400;

#[derive(Arbitrary, Debug)]
struct Step {
    function: u8,
    reset: bool,
    held: bool,
    words: [u32; 16],
}

#[derive(Default)]
struct Model {
    memory: HashMap<u32, u32>,
    held: bool,
    accesses: usize,
}

#[derive(Clone, Default)]
struct Handle(Rc<RefCell<Model>>);

impl Handle {
    fn get(&self, offset: u32) -> u32 {
        *self.0.borrow().memory.get(&offset).unwrap_or(&0)
    }

    fn set(&self, offset: u32, value: u32) {
        self.0.borrow_mut().memory.insert(offset, value);
    }
}

impl Registers for Handle {
    fn read(&mut self, offset: u32) -> u32 {
        self.0.borrow_mut().accesses += 1;
        self.get(offset)
    }

    fn write(&mut self, offset: u32, value: u32) {
        assert!(offset.is_multiple_of(4) && offset < 128 << 10);
        self.0.borrow_mut().accesses += 1;
        let held = self.0.borrow().held;
        let value = match offset {
            0 => value & !(1 << 26),
            0x20 => value | 1 << 28,
            MBVFICR | VFLRE => self.get(offset) & !value,
            P2V..MBVFICR if held => 0,
            P2V..MBVFICR => value & 8,
            _ => value,
        };
        self.set(offset, value);
    }
}

/// What a function's guest is owed.
#[derive(Clone, Default)]
struct Owed {
    open: bool,
    hashes: Vec<u16>,
    /// The message that waits.
    waiting: Option<[u32; 16]>,
}

fuzz_target!(|steps: Vec<Step>| {
    let handle = Handle::default();
    let mut controller = Controller::start(handle.clone(), |_| {}).unwrap();
    let macs: Vec<_> = (0..FUNCTIONS as u8).map(|i| [2, 0, 0, 0, 0, i]).collect();
    controller.share(&macs);
    let addresses = || (0..192).step_by(4).map(|at| handle.get(RA + at)).collect::<Vec<_>>();
    let before = addresses();
    let mut owed = vec![Owed::default(); FUNCTIONS];
    for step in steps {
        let index = usize::from(step.function) % FUNCTIONS;
        if step.reset {
            handle.set(VFLRE, 1 << index);
            handle.set(VFRE, handle.get(VFRE) & !(1 << index));
            owed[index].open = false;
        }
        for (i, word) in step.words.iter().enumerate() {
            handle.set(0x0800 + 64 * index as u32 + 4 * i as u32, *word);
        }
        owed[index].waiting = Some(step.words);
        handle.set(MBVFICR, 1 << index);
        handle.0.borrow_mut().held = step.held;
        handle.0.borrow_mut().accesses = 0;
        controller.serve();
        assert!(handle.0.borrow().accesses < 200 * FUNCTIONS);
        for one in owed.iter_mut().filter(|_| !step.held) {
            let Some([first, words @ ..]) = one.waiting.take() else { continue };
            match first & 0xFFFF {
                1 => *one = Owed { open: true, ..Owed::default() },
                3 if one.open => {
                    let halves = words.iter().flat_map(|w| [*w as u16, (*w >> 16) as u16]);
                    let count = (first >> 16 & 0xFF) as usize;
                    one.hashes = halves.take(count.min(30)).map(|h| h & 0xFFF).collect();
                }
                _ => {}
            }
        }
        let open = (0..FUNCTIONS).filter(|i| owed[*i].open).fold(0, |mask, i| mask | 1 << i);
        assert_eq!(handle.get(VFRE), open);
        let mut filter = [0u32; 128];
        for hash in owed.iter().flat_map(|one| &one.hashes) {
            filter[usize::from(hash >> 5)] |= 1 << (hash & 31);
        }
        for (i, word) in filter.into_iter().enumerate() {
            assert_eq!(handle.get(MTA + 4 * i as u32), word);
        }
        assert_eq!(addresses(), before);
    }
});
