//! Control blocks of a guest that is a hypervisor, changed at any moment, also between two reads.
//!
//! What is run of them (02) is held against the manual's list of what VMRUN refuses (APM vol. 2,
//! 15.5.1), written out here a second time, and against what the host must have whatever the guest
//! wants. No word is read twice for a VMRUN; nothing but what #VMEXIT writes is written.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use nested_guests::{Block, Host, Nest, Offer, Owner, PermissionMaps, Told};
use std::cell::RefCell;
use svm::vmcb::{int_ctl, misc2};
use svm::{ALWAYS_EXCEPTIONS, ALWAYS_MISC1, ALWAYS_MISC2, EFER_SVME, Vmcb};
use zerocopy::FromZeros as _;

const HOST: Host = Host { asid: 2, msrpm_base: 0x8000, iopm_base: 0xA000 };
const NESTED_ROOT: u64 = 0xC000;
const NPF: u32 = 0x400;
const NMI: u32 = 0x61;
const MACHINE_CHECK: u32 = 0x52;

#[derive(Arbitrary, Debug)]
struct Input {
    cr4: u64,
    efer: u64,
    physical_bits: u8,
    own: Own,
    rounds: Vec<Round>,
}

/// What is the host's for the guest itself.
#[derive(Arbitrary, Debug)]
struct Own {
    intercepts: [u64; 3],
    int_ctl: u64,
    tsc_offset: u64,
    pat: u64,
}

/// A VMRUN, and the exit behind it.
#[derive(Arbitrary, Debug)]
struct Round {
    block: bool,
    /// Before VMRUN: a word, and what is in it then.
    edits: Vec<(u8, Edit)>,
    /// Another CPU's: once a word was read, it is another.
    racing: bool,
    /// What the inner guest does to its state.
    state: Vec<(u8, u64)>,
    code: u16,
    msr: u32,
    information: u64,
    closed: bool,
}

#[derive(Arbitrary, Debug)]
enum Edit {
    Value(u64),
    Flip(u8),
}

struct Memory {
    words: RefCell<[u64; 512]>,
    reads: RefCell<[u8; 512]>,
    written: Vec<usize>,
    racing: bool,
}

impl Block for Memory {
    fn read(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8));
        self.reads.borrow_mut()[at / 8] += 1;
        let word = &mut self.words.borrow_mut()[at / 8];
        let value = *word;
        if self.racing {
            *word = !value;
        }
        value
    }

    fn write(&mut self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8));
        self.written.push(at);
        self.words.get_mut()[at / 8] = value;
    }
}

struct Maps(bool);

impl PermissionMaps for Maps {
    fn ports(&self, at: u32) -> u16 {
        assert!(at < 12 << 10);
        if self.0 { u16::MAX } else { 0 }
    }

    fn msrs(&self, at: u32) -> u8 {
        assert!(at < 8 << 10);
        if self.0 { u8::MAX } else { 0 }
    }
}

/// The words of state and control that matter, by a number.
fn word(number: u8) -> usize {
    match number as usize % 104 {
        n @ 0..26 => n * 8,
        n => 0x400 + (n - 26) * 8,
    }
}

/// A block that VMRUN takes: 64-bit code with nested paging.
fn taken() -> Box<Vmcb> {
    let mut v = Box::new(Vmcb::new_zeroed());
    (v.intercept_misc2, v.asid) = (misc2::VMRUN, 1);
    v.efer = EFER_SVME | 0x500;
    (v.cr0, v.cr4, v.cr3) = (0x8000_0011, 0x20, 0x1000);
    v.cs.attributes = 0x29B;
    (v.dr6, v.dr7, v.rflags) = (0xFFFF_0FF0, 0x400, 2);
    (v.nested_control, v.nested_cr3) = (1, 0x7000);
    v.g_pat = 0x0007_0406_0007_0406;
    v
}

/// Would the CPU run it, with these bits of CR4 and EFER?
fn cpu_takes(v: &Vmcb, cr4: u64, efer: u64) -> bool {
    let long = v.efer >> 8 & 1 != 0 && v.cr0 >> 31 & 1 != 0;
    let event = v.event_inj;
    let vector = event & 0xFF;
    let event_is_right = event >> 31 & 1 == 0
        || match event >> 8 & 7 {
            0 | 2 | 4 => true,
            3 => vector < 32 && vector != 2,
            _ => false,
        };
    v.efer & EFER_SVME != 0
        && v.efer & !(efer | EFER_SVME | 1 << 10) == 0
        && !(v.cr0 >> 29 & 1 != 0 && v.cr0 >> 30 & 1 == 0)
        && (v.cr0 | v.dr6 | v.dr7) >> 32 == 0
        && v.cr4 & !cr4 == 0
        && !(long && (v.cr4 >> 5 & 1 == 0 || v.cr0 & 1 == 0 || v.cs.attributes >> 9 & 3 == 3))
        && v.asid != 0
        && v.intercept_misc2 & misc2::VMRUN != 0
        && event_is_right
}

fn check(v: &Vmcb, own: &Vmcb) {
    assert_eq!(ALWAYS_EXCEPTIONS & !v.intercept_exceptions, 0);
    assert_eq!(ALWAYS_MISC1 & !v.intercept_misc1, 0);
    let (kept, loads) = (v.int_ctl >> 25 & 1 != 0, v.other_virtualization != 0);
    let open = if kept { 3 << 4 } else { 0 } | if loads { 3 << 2 } else { 0 };
    assert_eq!(ALWAYS_MISC2 & !open & !v.intercept_misc2, 0);
    // INTR isn't the host's where the CPU keeps L1's flag.
    let intr = (own.int_ctl >> 25 & 1) << 32;
    for (at, others) in [(0, 0), (8, intr)] {
        assert_eq!(own.word(at) & !others & !v.word(at), 0, "an intercept of the host's");
    }
    assert_eq!((v.asid, v.msrpm_base, v.iopm_base), (2, HOST.msrpm_base, HOST.iopm_base));
    assert_eq!((v.nested_control, v.other_virtualization & !2, v.clean), (1, 0, 0));
    assert_eq!(v.nested_cr3, NESTED_ROOT);
    assert_eq!(v.int_ctl & int_ctl::VIRTUALIZED & !(1 << 25), 0, "AVIC, virtual NMI");
}

fuzz_target!(|input: Input| {
    let offer = Offer::new(input.cr4, input.efer, u32::from(input.physical_bits) % 53);
    let offer = offer.on(u32::MAX);
    let mut v01 = Box::new(Vmcb::new_zeroed());
    for (n, word) in input.own.intercepts.into_iter().enumerate() {
        v01.set_word(n * 8, word);
    }
    (v01.int_ctl, v01.tsc_offset) = (input.own.int_ctl, input.own.tsc_offset);
    v01.g_pat = input.own.pat;
    let mut v02 = Box::new(Vmcb::new_zeroed());
    Nest::set_up(&mut v02, &HOST);
    v02.nested_cr3 = NESTED_ROOT;
    let mut nest = Nest::new();
    let blocks = [0x5000_u64, 0x6000].map(|address| (address, taken()));
    let mut words = blocks.map(|(address, v)| (address, core::array::from_fn(|n| v.word(n * 8))));
    for round in input.rounds {
        let (address, words) = &mut words[usize::from(round.block)];
        for (number, edit) in round.edits {
            let word: &mut u64 = &mut words[word(number) / 8];
            match edit {
                Edit::Value(value) => *word = value,
                Edit::Flip(bit) => *word ^= 1 << (bit % 64),
            }
        }
        let mut memory = Memory {
            words: RefCell::new(*words),
            reads: RefCell::new([0; 512]),
            written: Vec::new(),
            racing: round.racing,
        };
        let entry = nest.enter(&mut v02, &v01, &offer, (*address, &memory));
        assert!(memory.reads.get_mut().iter().all(|reads| *reads <= 1), "a word was read twice");
        assert!(memory.written.is_empty(), "VMRUN writes nothing into the block");
        match entry {
            Err(_) => nest.refuse(&mut memory),
            Ok(entry) => {
                assert!(cpu_takes(&v02, input.cr4, input.efer), "{:x?}", (v02.efer, v02.cr0));
                check(&v02, &v01);
                assert_eq!(entry.nested_cr3.is_some(), nest.control().nested_paging());
                for (number, value) in round.state {
                    let at = word(number);
                    if at >= 0x400 {
                        let before = v02.word(at);
                        v02.set_word(at, value);
                        // The CPU leaves no state that it wouldn't run.
                        if !cpu_takes(&v02, input.cr4, input.efer) {
                            v02.set_word(at, before);
                        }
                    }
                }
                v02.exit_code = round.code.into();
                v02.exit_info1 = round.information;
                nest.left(&mut v02, &mut v01);
                let (maps, code) = (Maps(round.closed), u32::from(round.code));
                let owner = nest.control().owner(&v02, round.msr, &maps, || round.closed);
                assert!(!matches!(code, NMI | MACHINE_CHECK) || owner == Owner::Host);
                assert!(code != NPF || !matches!(owner, Owner::L1(_)));
                if let Owner::L1(code) = owner {
                    nest.leave(&v02, &Told::of(&v02, code, 0), &mut memory);
                }
            }
        }
        // Neither what VMRUN alone looks at, nor what VMLOAD and VMSAVE move.
        let kept = |at: &usize| *at < 0x60 || *at == 0x90 || (0xB0..0xC8).contains(at);
        let moved = |at: &usize| (0x440..0x460).contains(at) || (0x600..0x640).contains(at);
        assert!(!memory.written.iter().any(|at| kept(at) || moved(at)), "{:x?}", memory.written);
        *words = *memory.words.get_mut();
    }
});
