//! The doorbell: another CPU puts an interrupt into the backing page while the inner guest runs,
//! and rings.

use super::super::block;
use super::inside::{Came, IRR, ISR, Inner, Op, TAKEN, is, set};
use super::{EOI, end, offered};
use crate::counters::Window;
use crate::{boot::Boot, console::check, cpu, smp, wait};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use ledger::Reason;

const DOORBELL: u32 = 0xC001_011B;
const VECTORS: [u8; 3] = [0x51, 0x62, 0xF3];
const ROUNDS: u64 = 60;
/// Of nobody, or not of the first CPU.
const WRONG: [u64; 7] = [1, 2, 7, 0xFF, 1 << 32, 1 << 63, u64::MAX];

/// The inner guest is inside, and is to come out.
static INSIDE: AtomicU64 = AtomicU64::new(0);
static OVER: AtomicU64 = AtomicU64::new(0);
static CAME: AtomicU64 = AtomicU64::new(0);
static KICKS: AtomicU64 = AtomicU64::new(u64::MAX);
static EARLY: AtomicU64 = AtomicU64::new(u64::MAX);

fn ring() {
    cpu::wrmsr(DOORBELL, 0);
}

/// The second CPU's part: each interrupt once.
fn post(_: usize) {
    wait::patiently(|| INSIDE.load(SeqCst) as u32 == 1);
    wait::settle();
    let window = Window::of(0);
    set(IRR, VECTORS[0]);
    WRONG.iter().for_each(|id| cpu::wrmsr(DOORBELL, *id));
    wait::settle();
    KICKS.store(window.close().of(Reason::Kick), SeqCst);
    EARLY.store(TAKEN.load(SeqCst), SeqCst);
    ring();
    for round in 1..=ROUNDS {
        if !wait::patiently(|| TAKEN.load(SeqCst) == round) {
            break;
        }
        CAME.fetch_add(1, SeqCst);
        if round == ROUNDS {
            break;
        }
        set(IRR, VECTORS[round as usize % VECTORS.len()]);
        ring();
    }
    OVER.store(1, SeqCst);
}

/// Two CPUs.
pub fn doorbell(test: &str, boot: &Boot) {
    if super::super::super::cpus(test, boot).is_none() || !offered(test) {
        return;
    }
    let fault = cpu::try_rdmsr(DOORBELL).err();
    check!(test, fault.is_some(), "the doorbell can't be read: {fault:?}");
    let mut inner = Inner::new();
    inner.fresh();
    let (inside, over) = (INSIDE.as_ptr() as u64, OVER.as_ptr() as u64);
    let script = [Op::Store(inside, 1), Op::Open, Op::Until(over, 1), Op::Close];
    let mut came = None;
    let done = smp::others(2, post, || {
        came = Some(inner.start_with(&script, &[Op::Write(EOI, 0)]));
        came == Some(Came::Ended)
    });
    let (kicks, early) = (KICKS.load(SeqCst), EARLY.load(SeqCst));
    check!(test, done, "the inner guest came out: {came:x?}");
    check!(test, kicks == 0 && early == 0, "wrong ids: {kicks} kicks, {early} taken");
    let (each, all) = (CAME.load(SeqCst), TAKEN.load(SeqCst));
    check!(test, each == ROUNDS && all == ROUNDS, "{each} were taken, each once: {all}");
    check!(test, is(IRR, &[]) && is(ISR, &[]), "nothing is left");
    nobody(test, &mut inner);
    end();
}

/// Rings where no inner guest is.
fn nobody(test: &str, inner: &mut Inner) {
    inner.fresh();
    set(IRR, VECTORS[0]);
    ring();
    cpu::wrmsr(DOORBELL, 1);
    let waits = is(IRR, &[VECTORS[0]]);
    let came = inner.start(&[Op::Open]);
    let right = waits && came == Came::Taken(VECTORS[0].into());
    check!(test, right, "without an inner guest it waits for one: {waits}, {came:x?}");
    // With this closed, L2's is told.
    let came = inner.start(&[Op::Write(DOORBELL, 0)]);
    let told = matches!(came, Came::Exit(block::exit::MSR, 1, ..));
    check!(test, told, "the inner guest's own: {came:x?}");
}
