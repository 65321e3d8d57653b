//! The local APIC of a guest's guest, in a page that others write at any moment, also between two
//! reads.
//!
//! Nothing is read more often than it decides something, nothing but registers is touched, what is
//! told is a register's, and what is offered was there, is above what holds it back, and is one
//! afterwards: in service, or waiting again.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use nested_guests::avic::{self, Access, ApicPage, Told, Waiting};
use std::cell::{Cell, RefCell};

const TPR: u16 = 0x80;
const ISR: u16 = 0x100;
const IRR: u16 = 0x200;
const INCOMPLETE_IPI: u32 = 0x401;
const UNACCELERATED: u32 = 0x402;
const WRITE: u64 = 1 << 32;
/// All eight words of pending and of those in service, a few more.
const READS: u32 = 32;

#[derive(Arbitrary, Debug)]
struct Input {
    words: Vec<(u8, u32)>,
    /// What others make of the page, from read to read.
    others: Vec<(u8, u32)>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Read(u8, bool),
    Write(u8, u64, bool),
    Run { takes: bool },
    Priority(u8),
}

struct Page {
    words: RefCell<[u32; 256]>,
    others: RefCell<Vec<(u8, u32)>>,
    reads: Cell<u32>,
}

impl Page {
    fn word(&self, at: u16) -> u32 {
        self.words.borrow()[usize::from(at / 16)]
    }

    fn change(&self, at: u16, change: impl FnOnce(u32) -> u32) {
        assert!(at.is_multiple_of(16) && at < 4096, "{at:#x}");
        let word = &mut self.words.borrow_mut()[usize::from(at / 16)];
        *word = change(*word);
    }

    fn has(&self, bank: u16, vector: u8) -> bool {
        self.word(bank + u16::from(vector / 32) * 16) >> (vector % 32) & 1 != 0
    }

    fn is_racing(&self) -> bool {
        !self.others.borrow().is_empty()
    }
}

impl ApicPage for Page {
    fn read(&self, at: u16) -> u32 {
        assert!(at.is_multiple_of(16) && at < 4096, "{at:#x}");
        self.reads.set(self.reads.get() + 1);
        let value = self.word(at);
        if let Some((register, value)) = self.others.borrow_mut().pop() {
            self.words.borrow_mut()[usize::from(register)] = value;
        }
        value
    }

    fn write(&self, at: u16, value: u32) {
        self.change(at, |_| value);
    }

    fn set(&self, at: u16, bits: u32) {
        self.change(at, |word| word | bits);
    }

    fn clear(&self, at: u16, bits: u32) {
        self.change(at, |word| word & !bits);
    }
}

/// What the guest is told is of this register.
fn check(told: Told, register: u8, write: bool, by_page: bool) {
    let (code, info1, info2) = told;
    match code {
        INCOMPLETE_IPI => assert!(register == 0x30 && write && info2 == 0),
        UNACCELERATED => {
            let at = u64::from(register) << 4;
            assert_eq!(info1, at | if write { WRITE } else { 0 });
            assert!(info2 == 0 || register == 0x0B && info2 < 256);
        }
        _ => panic!("{code:#x}"),
    }
    assert!(by_page || register < 0x40);
}

fn run(page: &Page, takes: bool) {
    let alone = !page.is_racing();
    let before = *page.words.borrow();
    let Waiting::Offered(vector) = avic::offer(page) else {
        assert!(!alone || *page.words.borrow() == before, "nothing was offered");
        return;
    };
    assert!(vector >= 16);
    if alone {
        assert!(!page.has(IRR, vector) && vector >> 4 > page.word(TPR) as u8 >> 4);
        let above = (vector & 0xF0..=255).any(|other| page.has(ISR, other));
        assert!(!above, "a lower class than what is in service");
        assert!((vector..=255).all(|other| other == vector || !page.has(IRR, other)));
    }
    page.reads.set(0);
    if takes {
        avic::accept(page, vector);
    } else {
        avic::withdraw(page, vector);
        let same = *page.words.borrow() == before;
        assert!(!alone || same, "it waits as before");
    }
    if alone {
        assert_ne!(page.has(ISR, vector), page.has(IRR, vector), "it is one");
        assert_eq!(page.has(ISR, vector), takes);
    }
}

fuzz_target!(|input: Input| {
    let mut words = [0; 256];
    for (register, word) in input.words {
        words[usize::from(register)] = word;
    }
    let page = Page {
        words: RefCell::new(words),
        others: RefCell::new(input.others),
        reads: Cell::new(0),
    };
    for step in input.steps {
        page.reads.set(0);
        match step {
            Step::Read(register, by_page) => match avic::read(&page, register, by_page) {
                Access::Value(value) => assert!(value >> 32 == 0 || register == 0x30),
                Access::Refused => assert!(!by_page, "in memory nothing is refused"),
                Access::Fault(told) => check(told, register, false, by_page),
                access => panic!("{access:?}"),
            },
            Step::Write(register, value, by_page) => {
                let before = *page.words.borrow();
                let alone = !page.is_racing();
                match avic::write(&page, register, value, by_page) {
                    Access::Done => {}
                    Access::Refused => {
                        assert!(!by_page, "in memory nothing is refused");
                        assert!(!alone || *page.words.borrow() == before);
                    }
                    Access::Trap(told) => check(told, register, true, by_page),
                    access => panic!("{access:?}"),
                }
            }
            Step::Run { takes } => run(&page, takes),
            Step::Priority(cr8) => {
                let racing = page.is_racing();
                avic::set_task_priority(&page, cr8);
                let kept = racing || avic::task_priority(&page) == cr8 & 0xF;
                assert!(kept, "CR8 {cr8:#x}");
            }
        }
        assert!(page.reads.get() <= READS, "{} reads", page.reads.get());
    }
});
