//! Calls: the interrupts of paravirtual functions, which a *sidecore* sends. It is a core of the
//! host that polls virtqueues, and for the routes it is one more source of interrupts.
//!
//! An MSI-X entry of a paravirtual function has no entry in a remapping table, but one word of ours
//! ([`Entry`]). The sidecore loads it right before it writes its ICR, and nobody else sends by it.
//! What a call does, by the state of the word, and what the vCPUs' side does to end the state:
//!
//! | state | a call | `pending` | ended by |
//! |---|---|---|---|
//! | *off*: MSI-X isn't enabled | is dropped | no | [`Entry::mask`], [`Entry::unmask`] |
//! | *masked*, routed or not | sets the pending bit | after a call | [`Entry::unmask`], `disable` |
//! | *open, routed* | is sent | no | [`Entry::mask`], [`Entry::disable`], [`Entry::route`] |
//! | *open, not routed* | is dropped: its message leads nowhere | no | the same |
//! | *open, a call waits* | is sent, with the one that waits | yes | its next look; the same |
//!
//! The rules:
//!
//! 1. **The sidecore's turn.** A call is a turn of the sidecore's: it announces the turn, a full
//!    fence, it loads the word, sends, and ends the turn. It takes no lock and waits for nobody.
//! 2. **A route that changes.** Write the word ([`Entry::route`]), then [`Turn::settle`]: a turn
//!    that goes on may still send by the old word, so wait until it is over. No later turn knows
//!    the old word. Only then is the old vector somebody else's. This is what invalidate-and-wait
//!    is for an IOMMU. As there, the local APIC may have the message a little later (`grace`).
//! 3. **Masking** is finished by [`Turn::settle`], too. After that nothing is sent.
//! 4. **Unmasking** with the pending bit set asks the sidecore to look ([`Turn::ask`]). The
//!    sidecore sends what waits; vCPUs never send for it.
//! 5. **The pending bit** is set by the sidecore alone, and cleared by it before it sends. Turning
//!    MSI-X off clears it. If the word changes in that moment, the call goes on to wait, and the
//!    sidecore looks again.
//!
//! Guarantees: after the last call of an entry that is open and routed at last, one interrupt is
//! sent by its route. Never more are sent than there were calls. By a word that was replaced
//! nothing is sent once the wait is over. The wait is as long as one turn: some instructions and an
//! ICR write. Not guaranteed: one interrupt for each call. Several that wait are one, as in any
//! PBA.
//!
//! One sidecore serves an entry at a time. It may go over to another one: then who changes a word
//! waits for the turns of both, and who unmasks asks both (`sidecore::handover`). All vCPUs may
//! change it at the same time: its route by whoever changes routes, its mask by who holds the VM's
//! lock. A write to it is retried when another's change came between, which is one exit of a
//! guest's, or one call.

use iommu::Bdf;
use sync::{AtomicBool, AtomicU64, Ordering, fence};

/// The segment of requester ids that stand for paravirtual functions. No machine has it: a segment
/// group of the firmware's with this number isn't used.
pub const PARAVIRTUAL_SEGMENT: u16 = 0xFFFF;

/// Is it a paravirtual function, whose interrupts a sidecore sends?
pub const fn is_paravirtual(function: Bdf) -> bool {
    function.segment() == PARAVIRTUAL_SEGMENT
}

/// The APIC id is in bits 31:0, the vector in 39:32.
const VECTOR_SHIFT: u32 = 32;
const ROUTED: u64 = 1 << 40;
const ENABLED: u64 = 1 << 41;
const MASKED: u64 = 1 << 42;
const PENDING: u64 = 1 << 43;
const ROUTE: u64 = ROUTED | 0xFF << VECTOR_SHIFT | 0xFFFF_FFFF;

/// Where a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// APIC id of the core.
    pub destination: u32,
    /// The physical vector.
    pub vector: u8,
}

/// One MSI-X entry of a paravirtual function, as its sidecore goes by it.
#[derive(Debug)]
pub struct Entry(AtomicU64);

impl Default for Entry {
    fn default() -> Self {
        Entry::new()
    }
}

/// The vCPUs' side.
impl Entry {
    /// Off, and not routed.
    pub fn new() -> Self {
        Entry(AtomicU64::new(0))
    }

    /// Sends its calls there, or nowhere. The sidecore may go by the old route until
    /// [`Turn::settle`].
    pub fn route(&self, to: Option<Target>) {
        let route = to.map_or(0, |to| {
            ROUTED | u64::from(to.vector) << VECTOR_SHIFT | u64::from(to.destination)
        });
        self.change(|word| word & !ROUTE | route);
    }

    /// MSI-X is enabled, and the entry or the function masked: calls wait in the pending bit. One
    /// may still be sent until [`Turn::settle`].
    pub fn mask(&self) {
        self.change(|word| word | ENABLED | MASKED);
    }

    /// MSI-X is enabled, and neither the entry nor the function masked. True: a call waits, and the
    /// sidecore is to look ([`Turn::ask`]).
    #[must_use = "a call that waits is sent when its sidecore looks"]
    pub fn unmask(&self) -> bool {
        self.change(|word| word & !MASKED | ENABLED) & PENDING != 0
    }

    /// MSI-X isn't enabled, as after reset: calls are dropped, and so is one that waits. One may
    /// still be sent until [`Turn::settle`]. The route stays.
    pub fn disable(&self) {
        self.change(|word| word & ROUTE);
    }

    /// Its bit in the PBA (PCIe 5.0, 7.7.2.7): a call waits.
    pub fn pending(&self) -> bool {
        self.load() & PENDING != 0
    }

    /// Where it is routed to, open or not.
    pub fn target(&self) -> Option<Target> {
        target(self.load())
    }

    fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Changes the word; gives what it was.
    fn change(&self, to: impl Fn(u64) -> u64) -> u64 {
        let changed =
            self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| Some(to(word)));
        // It is always `Ok`: the closure never refuses.
        changed.unwrap_or_else(|word| word)
    }
}

fn target(word: u64) -> Option<Target> {
    let to = Target { destination: word as u32, vector: (word >> VECTOR_SHIFT) as u8 };
    (word & ROUTED != 0).then_some(to)
}

/// A cache line of its own: one side writes it, the other reads it.
#[derive(Debug)]
#[repr(align(64))]
struct Line<T>(T);

/// What a sidecore and the vCPUs that it calls know of each other.
#[derive(Debug)]
pub struct Turn {
    /// Odd while a turn goes on. The sidecore's own.
    count: Line<AtomicU64>,
    /// Some entry was opened with a call that waits.
    asked: Line<AtomicBool>,
    /// The sidecore has its [`Caller`].
    taken: AtomicBool,
}

impl Default for Turn {
    fn default() -> Self {
        Turn::new()
    }
}

/// The vCPUs' side.
impl Turn {
    /// No turn yet.
    pub fn new() -> Self {
        Turn {
            count: Line(AtomicU64::new(0)),
            asked: Line(AtomicBool::new(false)),
            taken: AtomicBool::new(false),
        }
    }

    /// Every entry that was changed before this call is what the sidecore goes by, and what it sent
    /// by older words has left it. `wait` is asked each time that the turn isn't over yet; false:
    /// it has lasted too long, and so this gives false.
    #[must_use = "what was sent by the old word may come later"]
    pub fn settle(&self, mut wait: impl FnMut() -> bool) -> bool {
        // Pairs with the fence of a turn: that turn sees the new word, or this sees the turn.
        fence(Ordering::SeqCst);
        let seen = self.count.0.load(Ordering::Acquire);
        if seen & 1 == 0 {
            return true;
        }
        // Another turn than that one knows the new word.
        while self.count.0.load(Ordering::Acquire) == seen {
            if !wait() {
                return false;
            }
        }
        true
    }

    /// The sidecore is to look for calls that wait in open entries: after [`Entry::unmask`].
    pub fn ask(&self) {
        self.asked.0.store(true, Ordering::Release);
    }

    /// The sidecore's side; `None` while there is one.
    pub fn caller(&self) -> Option<Caller<'_>> {
        let free = !self.taken.swap(true, Ordering::AcqRel);
        free.then(|| Caller { turn: self, count: self.count.0.load(Ordering::Relaxed) })
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// It is sent.
    Sent,
    /// It waits in the pending bit.
    Waits,
    /// It goes nowhere: the entry is off, or not routed.
    Dropped,
    /// There was none: [`Caller::call_waiting`] alone.
    None,
}

/// The sidecore's side: who sends.
#[derive(Debug)]
pub struct Caller<'a> {
    turn: &'a Turn,
    /// The turn's count, which nobody else writes.
    count: u64,
}

impl Caller<'_> {
    /// An interrupt by this entry. `send` writes the ICR, and does nothing else. All that was
    /// stored before (the used ring) is visible before the word is loaded, and so before `send`.
    /// A WRMSR to the ICR of an x2APIC may begin before that (SDM vol. 3, 11.12.3): `send` begins
    /// with an LFENCE.
    pub fn call(&mut self, entry: &Entry, send: impl FnOnce(Target)) -> Called {
        self.take_turn(|turn| {
            let mut word = entry.load();
            if word & MASKED != 0 {
                word = entry.0.fetch_or(PENDING, Ordering::AcqRel) | PENDING;
            }
            deliver(turn, entry, word, send)
        })
    }

    /// Sends the call that waits in this entry, if one does and the entry is open. For every entry,
    /// when [`Caller::asked`].
    pub fn call_waiting(&mut self, entry: &Entry, send: impl FnOnce(Target)) -> Called {
        if !entry.pending() {
            return Called::None;
        }
        self.take_turn(|turn| match entry.load() {
            word if word & PENDING == 0 => Called::None,
            word => deliver(turn, entry, word, send),
        })
    }

    /// The call that waits in this entry, if one does, is forgotten: its device was reset, and
    /// sends nothing until it is set up anew (virtio 1.2, 2.4.1).
    pub fn forget(&mut self, entry: &Entry) {
        entry.0.fetch_and(!PENDING, Ordering::AcqRel);
    }

    /// Is there an open entry with a call that waits? True once for each time that somebody asked.
    /// One load of a line that is rarely written, else.
    pub fn asked(&mut self) -> bool {
        let asked = &self.turn.asked.0;
        asked.load(Ordering::Relaxed) && asked.swap(false, Ordering::AcqRel)
    }

    /// Would [`Caller::asked`] be true?
    pub fn is_asked(&self) -> bool {
        self.turn.asked.0.load(Ordering::Relaxed)
    }

    fn take_turn(&mut self, call: impl FnOnce(&Turn) -> Called) -> Called {
        let Turn { count, .. } = self.turn;
        // Release: who waits for the turn before may see this one's count instead of its end's.
        count.0.store(self.count.wrapping_add(1), Ordering::Release);
        // The turn is announced before the word is loaded.
        fence(Ordering::SeqCst);
        let called = call(self.turn);
        self.count = self.count.wrapping_add(2);
        count.0.store(self.count, Ordering::Release);
        called
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.turn.taken.store(false, Ordering::Release);
    }
}

/// Sends by `word`, which was loaded in this turn; with its pending bit only if that can be
/// cleared.
fn deliver(turn: &Turn, entry: &Entry, word: u64, send: impl FnOnce(Target)) -> Called {
    if word & MASKED != 0 {
        return Called::Waits;
    }
    if word & PENDING != 0 {
        let (clear, ordering) = (word & !PENDING, Ordering::AcqRel);
        if entry.0.compare_exchange(word, clear, ordering, Ordering::Relaxed).is_err() {
            // Somebody changed it: to what, is seen at the next look.
            turn.ask();
            return Called::Waits;
        }
    }
    match target(word).filter(|_| word & ENABLED != 0) {
        Some(to) => {
            send(to);
            Called::Sent
        }
        None => Called::Dropped,
    }
}

#[cfg(test)]
#[cfg(loom)]
#[path = "calls_model.rs"]
mod model;
#[cfg(test)]
#[cfg(not(loom))]
#[path = "calls_tests.rs"]
mod tests;
