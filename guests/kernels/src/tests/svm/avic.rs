//! The inner guest's local APIC by AVIC and x2AVIC (APM vol. 2, 15.29), which the host offers on a
//! CPU that has none.
//!
//! | file | is about |
//! |---|---|
//! | `hostile` | anything in its fields and its page |
//! | `inside` | the inner guest |
//! | `interrupts` | what is taken, and when |
//! | `page` | the registers in memory |
//! | `registers` | the registers as MSRs |
//! | `smp` | the doorbell |

mod hostile;
mod inside;
mod interrupts;
mod page;
mod registers;
mod smp;

use super::block::exit;
use super::{begin, end};
use crate::{boot::Boot, console::check, cpu};
use inside::{AVIC, BACKING, Came, Inner, Op, X2AVIC};

pub use hostile::avic as hostile;
pub use smp::doorbell;

/// EDX of CPUID 8000_000A: AVIC, x2AVIC.
const OFFERED: u32 = 1 << 13 | 1 << 18;
/// Exits: an interrupt command that isn't delivered; an access that isn't accelerated.
const INCOMPLETE: u64 = 0x401;
const UNACCELERATED: u64 = 0x402;
/// Of EXITINFO1 of the latter.
const WRITE: u64 = 1 << 32;
/// MSRs, 16 times which is the offset.
const TPR: u32 = 0x808;
const EOI: u32 = 0x80B;
const ICR: u32 = 0x830;
const SELF_IPI: u32 = 0x83F;

/// Turns SVM on, if AVIC is offered.
fn offered(test: &str) -> bool {
    if !begin(test) {
        return false;
    }
    let features = cpu::cpuid(0x8000_000A).edx;
    check!(test, features & OFFERED == OFFERED, "AVIC and x2AVIC are offered: {features:#x}");
    features & OFFERED == OFFERED
}

/// With one CPU.
pub fn avic(test: &str, _: &Boot) {
    if !offered(test) {
        return;
    }
    let mut inner = Inner::new();
    interrupts::all(test, &mut inner);
    registers::all(test, &mut inner);
    page::all(test, &mut inner);
    refused(test, &mut inner);
    end();
}

/// Blocks that VMRUN refuses.
fn refused(test: &str, inner: &mut Inner) {
    const NOWHERE: u64 = 0x9000_0000;
    const BEYOND: u64 = 0x000F_FFFF_FFFF_F000;
    let runs = |inner: &mut Inner| inner.start(&[Op::Read(0x802)]);
    inner.control(AVIC | X2AVIC);
    for page in [NOWHERE, BEYOND] {
        inner.guest.block().put(BACKING, page);
        let came = runs(inner);
        let right = matches!(came, Came::Exit(exit::INVALID, ..)) || is_invalid(inner);
        check!(test, right, "a backing page that is no memory, at {page:#x}: {came:x?}");
    }
    inner.guest.block().put(BACKING, inside::PAGE.address());
    inner.guest.block().put(super::block::NESTED, 0);
    let came = runs(inner);
    check!(test, is_invalid(inner), "without nested paging: {came:x?}");
    inner.guest.block().put(super::block::NESTED, 1);
    inner.fresh();
    let (came, id) = (runs(inner), inner.read(0));
    check!(test, came == Came::Ended && id == 0x77, "and as it was: {came:x?}, {id:#x}");
}

fn is_invalid(inner: &Inner) -> bool {
    inner.guest.code() == exit::INVALID
}
