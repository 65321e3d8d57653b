//! The consoles of the VMs: a ring out and a ring in for each.
//!
//! Guarantees: a VM's core never waits here, whatever core 0 does; bytes that
//! find no room are dropped and counted, and the log says so, once a second while
//! more is to be sent. One core at a time may act for a VM.

use super::{
    names,
    output::send,
    ring::{Pushed, Ring},
    wake::wake,
};
use crate::cpu::{rdtsc, tsc_hz};
use core::sync::atomic::{AtomicU64, Ordering};
use proto::frame::{MAX_PAYLOAD, MAX_VMS, console};
use spin::Once;

const OUTPUT: usize = 64 << 10;
const INPUT: usize = 1 << 10;

struct Guest {
    output: Ring,
    input: Ring,
    dropped: AtomicU64,
    /// When the log told of that last, by the TSC.
    told: AtomicU64,
}

static GUESTS: [Once<Guest>; MAX_VMS] = [const { Once::new() }; MAX_VMS];

fn guest(vm: usize) -> Option<&'static Guest> {
    GUESTS.get(vm)?.get()
}

/// While booting: makes the console of the VM of this name.
pub fn attach(vm: usize, name: &str) {
    names::set(vm, name);
    if let Some(slot) = GUESTS.get(vm) {
        slot.call_once(|| Guest {
            output: Ring::new(OUTPUT),
            input: Ring::new(INPUT),
            dropped: AtomicU64::new(0),
            told: AtomicU64::new(0),
        });
    }
}

/// The VM's core: bytes that the guest sent. Those of a VM without a console go nowhere.
pub fn guest_output(vm: usize, bytes: &[u8]) {
    let Some(guest) = guest(vm) else { return };
    match guest.output.push(&[bytes]) {
        Pushed::Queued => {}
        Pushed::Wake => wake(),
        Pushed::Full => {
            guest.dropped.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    }
}

/// The VM's core: the next byte for the guest.
pub fn guest_input(vm: usize) -> Option<u8> {
    let input = &guest(vm)?.input;
    let mut byte = [0];
    let count = input.peek(0, &mut byte);
    input.consume(count);
    (count == 1).then_some(byte[0])
}

/// Whether everything the guest sent is on the wire.
pub(super) fn is_drained(vm: usize) -> bool {
    guest(vm).is_none_or(|guest| guest.output.is_drained())
}

/// Core 0: whether every guest's output is on the wire.
pub(super) fn all_drained() -> bool {
    (0..MAX_VMS).all(is_drained)
}

/// Core 0: sends up to a frame of each VM's output.
pub(super) fn pump(meanwhile: &mut impl FnMut()) {
    for vm in 0..MAX_VMS {
        let Some(guest) = guest(vm) else { continue };
        let mut buffer = [0; MAX_PAYLOAD];
        let count = guest.output.peek(0, &mut buffer);
        send(console(vm), &buffer[..count], &mut *meanwhile);
        guest.output.consume(count);
        guest.tell_of_loss(vm, count == 0);
    }
}

impl Guest {
    /// At once when nothing is left to be sent.
    fn tell_of_loss(&self, vm: usize, drained: bool) {
        let now = rdtsc();
        let due = drained || now.wrapping_sub(self.told.load(Ordering::Relaxed)) > tsc_hz();
        if due && self.dropped.load(Ordering::Relaxed) > 0 {
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            self.told.store(now, Ordering::Relaxed);
            log::warn!(
                "VM {vm} wrote to its console faster than it is sent: {dropped} bytes are lost"
            );
        }
    }
}

/// Core 0: a byte for a VM's guest; true if its core should be kicked.
pub(super) fn input(vm: usize, byte: u8) -> bool {
    // A full ring drops the byte, as a UART's FIFO would.
    guest(vm).is_some_and(|guest| guest.input.push(&[&[byte]]) != Pushed::Full)
}
