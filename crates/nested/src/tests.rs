//! What is merged, refused, shared out and written back, for random blocks and one rule at a time.

mod leaving;
mod merging;
mod owning;
mod refusing;

use crate::{Block, Host, Illegal, Nest, Offer};
use proptest::prelude::*;
use std::cell::RefCell;
use svm::vmcb::misc2;
use svm::{ALWAYS_EXCEPTIONS, ALWAYS_MISC1, ALWAYS_MISC2, EFER_SVME, Vmcb};
use zerocopy::{FromZeros as _, IntoBytes as _};

pub const CR4: u64 = 0x3_06F8;
pub const EFER: u64 = 0xD01;
pub const BITS: u32 = 40;
pub const AT: u64 = 0x5000;
pub const HOST: Host = Host { asid: 7, msrpm_base: 0x8000, iopm_base: 0xA000 };

pub fn offer() -> Offer {
    Offer::new(CR4, EFER, BITS).on(u32::MAX)
}

/// A block in memory, and how often each word of it was read.
pub struct InMemory {
    pub words: [u64; 512],
    pub reads: RefCell<[u32; 512]>,
}

impl InMemory {
    pub fn of(v: &Vmcb) -> Self {
        let mut words = [0; 512];
        words.as_mut_bytes().copy_from_slice(v.as_bytes());
        InMemory { words, reads: RefCell::new([0; 512]) }
    }

    /// What it is now.
    pub fn block(&self) -> Box<Vmcb> {
        let mut v = zeroed();
        v.as_mut_bytes().copy_from_slice(self.words.as_bytes());
        v
    }
}

impl Block for InMemory {
    fn read(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8));
        self.reads.borrow_mut()[at / 8] += 1;
        self.words[at / 8]
    }

    fn write(&mut self, at: usize, value: u64) {
        assert!(at.is_multiple_of(8));
        self.words[at / 8] = value;
    }
}

pub fn zeroed() -> Box<Vmcb> {
    Box::new(Vmcb::new_zeroed())
}

/// 02 before the first VMRUN.
pub fn fresh() -> Box<Vmcb> {
    let mut v = zeroed();
    Nest::set_up(&mut v, &HOST);
    v
}

/// A block of the host's for L1, as simple as it can be.
pub fn hosts() -> Box<Vmcb> {
    let mut v = zeroed();
    v.intercept_exceptions = ALWAYS_EXCEPTIONS;
    (v.intercept_misc1, v.intercept_misc2) = (ALWAYS_MISC1, ALWAYS_MISC2);
    (v.tsc_offset, v.g_pat) = (1_000, 0x0007_0406_0007_0406);
    v
}

/// A block that VMRUN takes: 64-bit code with nested paging.
pub fn taken() -> Box<Vmcb> {
    let mut v = zeroed();
    v.intercept_misc2 = misc2::VMRUN;
    v.asid = 1;
    v.efer = EFER_SVME | 0x500;
    (v.cr0, v.cr4, v.cr3) = (0x8000_0011, 0x20, 0x1000);
    v.cs.attributes = 0x29B;
    (v.dr6, v.dr7, v.rflags) = (0xFFFF_0FF0, 0x400, 2);
    (v.nested_control, v.nested_cr3) = (1, 0x7000);
    v.g_pat = 0x0007_0406_0007_0406;
    v
}

/// VMRUN of this block, by an L1 that runs its first.
pub fn run(block: &Vmcb) -> (Result<crate::Entry, Illegal>, Box<Vmcb>) {
    let mut v02 = fresh();
    let entry = Nest::new().enter(&mut v02, &hosts(), &offer(), (AT, &InMemory::of(block)));
    (entry, v02)
}

/// A random block, which shows its bytes if something fails.
pub struct Random(pub Box<Vmcb>);

impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x?}", self.0.as_bytes())
    }
}

impl std::ops::Deref for Random {
    type Target = Vmcb;
    fn deref(&self) -> &Vmcb {
        &self.0
    }
}

prop_compose! {
    /// Any block at all.
    pub fn any_block()(words in proptest::collection::vec(any::<u64>(), 512)) -> Random {
        let mut v = zeroed();
        v.as_mut_bytes().copy_from_slice(words.as_bytes());
        Random(v)
    }
}

prop_compose! {
    /// A block that VMRUN takes, with all that it doesn't look at as it likes.
    pub fn any_taken()(random in any_block()) -> Random {
        let mut v = random.0;
        let right = taken();
        v.intercept_misc2 |= misc2::VMRUN;
        v.asid = v.asid.max(1);
        v.efer = v.efer & EFER | EFER_SVME;
        v.cr0 = v.cr0 & 0x9FFF_FFFF | 1;
        v.cr4 = v.cr4 & CR4 | 0x20;
        v.cr3 &= (1 << BITS) - 1;
        v.cs.attributes &= !0x400;
        (v.dr6, v.dr7) = (v.dr6 & 0xFFFF_FFFF, v.dr7 & 0xFFFF_FFFF);
        v.g_pat = right.g_pat;
        v.nested_cr3 &= (1 << BITS) - 1;
        (v.iopm_base, v.msrpm_base) = (v.iopm_base & 0xFFFF_FFFF, v.msrpm_base & 0xFFFF_FFFF);
        v.event_inj &= !(1 << 31);
        // AVIC.
        v.int_ctl &= !(1 << 31);
        Random(v)
    }
}
