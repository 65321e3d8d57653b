//! The run queue of a core that several vCPUs share: who runs, for how long, and what the core does when
//! nobody has anything to do.
//!
//! Guarantees: a vCPU that yields goes on where it yielded, when it is chosen again; a vCPU that is
//! blocked is chosen when it has a wake-up or its deadline comes. A vCPU yields only at points where it
//! holds no lock. `schedule::Schedule` decides, which is pure. That the core comes back from a guest that
//! lets no interrupt in is [`RunQueue::watch`]'s: an NMI from core 0. Whose an interrupt is, is `vm`'s.

use crate::cpu::x2apic::{self, TimerMode};
use crate::cpu::{self, PerCpu, rdtsc};
use crate::interrupts;
use crate::sched::fiber::{self, Suspended};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use mailbox::Mailbox;
use schedule::Schedule;
use spin::Once;

/// In [`RunQueue::current`]: no vCPU is, or is about to be, in its guest.
const NOBODY: usize = usize::MAX;
/// How often the core looks at all of its vCPUs at the least, however long it could sleep, by second.
/// Nothing is known to depend on it: it bounds what a lost wake-up would cost.
const LOOKS_PER_SECOND: u64 = 100;
/// A deadline that never comes.
pub const NEVER: u64 = u64::MAX;

/// Why a vCPU yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yield {
    /// It would go on.
    Ready,
    /// It blocks until it has a wake-up, or until this time.
    Block(u64),
    /// It sleeps until this time, whatever is asked.
    Sleep(u64),
    /// For good.
    Gone,
}

/// The run queue of one core, as every core may see it.
pub struct RunQueue {
    /// The core's place among the cores.
    pub index: usize,
    /// The core's APIC id.
    pub apic_id: u32,
    core: &'static PerCpu,
    /// The longest time slice while another waits, in TSC ticks.
    slice: u64,
    /// The core sleeps in the host, or is about to.
    idle: AtomicBool,
    /// Slot of the vCPU that is, or is about to be, in its guest.
    current: AtomicUsize,
    /// When the core has something to do for others than who has it.
    due: AtomicU64,
    /// When [`RunQueue::watch`] last sent an NMI.
    watched: AtomicU64,
    /// How many slots are taken.
    slots: AtomicUsize,
    entries: Once<Entries>,
}

/// What belongs to the core alone.
struct Entries {
    schedule: RefCell<Schedule>,
    /// By slot.
    all: ArrayVec<Entry, { schedule::MAX }>,
    /// Where the loop goes on that chooses who runs.
    main: Cell<Suspended>,
    /// What the core's timer is set for, or [`NEVER`].
    armed: Cell<u64>,
}

// SAFETY: after boot it is used by the core it is for alone, which `RunQueue::entries` checks.
unsafe impl Sync for Entries {}
// SAFETY: as above; it is made on core 0 and handed over before that core starts to use it.
unsafe impl Send for Entries {}

/// A vCPU in the queue.
struct Entry {
    slot: &'static Slot,
    mailbox: &'static Mailbox,
    suspended: Cell<Suspended>,
    state: Cell<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    /// Until this time, or until it has a wake-up.
    Blocked(u64),
    /// Until this time.
    Sleeps(u64),
    Gone,
}

/// What the queue needs to know of a vCPU, while booting.
pub struct Member {
    pub slot: &'static Slot,
    pub mailbox: &'static Mailbox,
    /// Its share of the core, beside the others'.
    pub weight: u32,
    /// What runs in its time slices.
    pub fiber: Suspended,
}

/// The run-queue slot of a vCPU.
pub struct Slot {
    pub queue: &'static RunQueue,
    /// Its place in the queue.
    pub index: usize,
    /// The vCPU is blocked, and its core hasn't been kicked for it.
    blocked: AtomicBool,
    /// Since when an interrupt waits for the vCPU to have the core; 0: none does.
    wait_began: AtomicU64,
}

impl Slot {
    /// The next slot of `queue`.
    pub fn new(queue: &'static RunQueue) -> Self {
        let index = queue.slots.fetch_add(1, Ordering::Relaxed);
        Slot { queue, index, blocked: AtomicBool::new(true), wait_began: AtomicU64::new(0) }
    }

    /// On its core: an interrupt waits for the vCPU to have the core.
    pub fn interrupt_waits(&self) {
        if self.wait_began.load(Ordering::Relaxed) == 0 {
            self.wait_began.store(rdtsc().max(1), Ordering::Relaxed);
        }
    }

    /// The vCPU has the core: how long the first interrupt waited that had to.
    pub fn take_wait(&self) -> Option<u64> {
        let since = self.wait_began.swap(0, Ordering::Relaxed);
        (since != 0).then(|| rdtsc().wrapping_sub(since))
    }

    /// Is the vCPU in its guest, or about to be?
    pub fn is_resident(&self) -> bool {
        self.queue.is_resident(self.index)
    }

    /// Something was asked of the vCPU: has its core look, unless it will anyway before it enters
    /// the guest. If it is no wake-up, whoever else has the core isn't bothered; if it is, once until the
    /// core has looked, however often is asked.
    pub fn kick(&self, wakeup: bool) {
        if self.is_resident() || wakeup && self.blocked.swap(false, Ordering::SeqCst) {
            self.queue.kick();
        }
    }

    /// What was asked long ago isn't done: has its core look, whether it was kicked or not.
    pub fn resend_kick(&self, wakeup: bool) {
        if self.is_resident() || wakeup {
            self.queue.kick();
        }
    }
}

impl RunQueue {
    /// An empty one; `slice` in TSC ticks.
    pub fn new(core: &'static PerCpu, slice: u64) -> Self {
        RunQueue {
            index: core.index,
            apic_id: core.apic_id,
            core,
            slice,
            idle: AtomicBool::new(false),
            current: AtomicUsize::new(NOBODY),
            due: AtomicU64::new(NEVER),
            watched: AtomicU64::new(0),
            slots: AtomicUsize::new(0),
            entries: Once::new(),
        }
    }

    /// While booting: the vCPUs, by slot.
    pub fn fill(&self, members: Vec<Member>) {
        let mut schedule = Schedule::new(self.slice);
        let mut all = ArrayVec::new();
        for Member { slot, mailbox, weight, fiber } in members {
            schedule.add(weight);
            let (suspended, state) = (Cell::new(fiber), Cell::new(State::Ready));
            all.push(Entry { slot, mailbox, suspended, state });
        }
        let (schedule, main) = (RefCell::new(schedule), Cell::default());
        self.entries.call_once(|| Entries { schedule, all, main, armed: Cell::new(NEVER) });
    }

    fn entries(&self) -> &Entries {
        assert!(self.is_here(), "the run queue of core {} is its own matter", self.index);
        self.entries.get().expect("the core's vCPUs were put into its queue at boot")
    }

    /// Is this the core that this runs on?
    fn is_here(&self) -> bool {
        self.apic_id == cpu::this().apic_id
    }

    fn kick(&self) {
        if self.is_here() {
            return;
        }
        if self.idle.load(Ordering::SeqCst) {
            x2apic::send_ipi(self.apic_id, interrupts::WAKE);
        } else {
            self.core.kick();
        }
    }

    /// Core 0: gets the core back from a guest that still has it when something is due for another,
    /// whatever that guest lets in; after a slice from one that nobody waits for, too, since it may hold
    /// back what somebody would wait for. Once in a slice, however often it is called.
    /// Logs nothing: it comes in the middle of what core 0 sends.
    pub fn watch(&self, now: u64) {
        let inside = self.current.load(Ordering::SeqCst) != NOBODY;
        let since = now.wrapping_sub(self.watched.load(Ordering::Relaxed)) as i64;
        if inside && now > self.due.load(Ordering::Relaxed) && since > self.slice as i64 {
            self.watched.store(now, Ordering::Relaxed);
            self.core.kick();
        }
    }

    /// On this core: leaves interrupts in the inbox of the vCPU at `slot`, which hasn't the core now.
    pub fn post(&self, slot: usize, vectors: impl Iterator<Item = u8>) {
        if let Some(entry) = self.entries().all.get(slot) {
            entry.slot.interrupt_waits();
            vectors.for_each(|vector| entry.mailbox.post(vector));
        }
    }

    /// The vCPU at `slot` leaves its core to others; it holds no lock. Back when it is chosen again.
    pub fn yield_core(&self, slot: usize, why: Yield) {
        let entries = self.entries();
        let Some(entry) = entries.all.get(slot) else { return };
        let now = rdtsc();
        match why {
            Yield::Ready => entry.state.set(State::Ready),
            Yield::Block(at) => {
                entry.state.set(State::Blocked(at));
                entry.slot.blocked.store(true, Ordering::SeqCst);
                entries.schedule.borrow_mut().block(slot, now);
            }
            Yield::Sleep(at) => {
                entry.state.set(State::Sleeps(at));
                entries.schedule.borrow_mut().block(slot, now);
            }
            Yield::Gone => {
                entry.state.set(State::Gone);
                entries.schedule.borrow_mut().remove(slot, now);
            }
        }
        let main = entries.main.get();
        // SAFETY: the loop on the core's own stack switched here and waits in `switch`.
        unsafe { fiber::switch(&entry.suspended, main) };
        entry.slot.blocked.store(false, Ordering::SeqCst);
    }

    /// Looks who else could run; true if the core is to be given to another.
    pub fn slice_is_over(&self, now: u64) -> bool {
        let entries = self.entries();
        let mut schedule = entries.schedule.borrow_mut();
        entries.wake(&mut schedule, now);
        schedule.should_switch(now)
    }

    /// Could another run?
    pub fn contested(&self) -> bool {
        self.entries().schedule.borrow().contested()
    }

    /// Before the guest is entered: sets the timer for whatever comes first, the vCPU's own
    /// `deadline` or what the core has to do for others.
    pub fn arm(&self, now: u64, deadline: u64) {
        let entries = self.entries();
        let slice = entries.schedule.borrow().deadline().unwrap_or(NEVER);
        let others = slice.min(entries.next());
        self.due.store(others.min(now.wrapping_add(self.slice)), Ordering::Relaxed);
        entries.arm(now, deadline.min(others));
    }

    /// The timer's interrupt arrived: it isn't set any more.
    pub fn fired(&self) {
        self.entries().armed.set(NEVER);
    }

    /// The vCPU at `slot` is about to use its guest.
    pub fn set_resident(&self, slot: usize) {
        self.current.store(slot, Ordering::SeqCst);
    }

    /// Is the vCPU at `slot` in its guest, or about to be?
    pub fn is_resident(&self, slot: usize) -> bool {
        self.current.load(Ordering::SeqCst) == slot
    }

    /// No vCPU is in its guest, or about to be.
    pub fn clear_resident(&self) {
        self.current.store(NOBODY, Ordering::SeqCst);
    }

    /// The core's life: gives it to its vCPUs in turn until the last is gone. Interrupts are
    /// held, as between `prepare_core` and `release_core`. `receive` takes the interrupts that arrive
    /// while nobody runs.
    pub fn serve(&self, receive: impl Fn(u8)) {
        let entries = self.entries();
        x2apic::timer_divide_shift(0);
        x2apic::timer_lvt(interrupts::TIMER, TimerMode::OneShot, false);
        entries.arm(0, NEVER);
        while entries.all.iter().any(|entry| entry.state.get() != State::Gone) {
            let now = rdtsc();
            let next = {
                let mut schedule = entries.schedule.borrow_mut();
                entries.wake(&mut schedule, now);
                schedule.pick(now)
            };
            match next.and_then(|slot| entries.all.get(slot)) {
                Some(entry) => {
                    let to = entry.suspended.get();
                    // SAFETY: it was made at boot or left in `yield_core`, and isn't gone: the schedule
                    // names none that is.
                    unsafe { fiber::switch(&entries.main, to) };
                }
                None => self.idle(entries, &receive),
            }
        }
        x2apic::timer_lvt(interrupts::TIMER, TimerMode::OneShot, true);
    }

    /// Sleeps until something arrives.
    fn idle(&self, entries: &Entries, receive: &impl Fn(u8)) {
        self.idle.store(true, Ordering::SeqCst);
        // What an NMI before this announced is found by the look below; one behind it keeps the core awake.
        cpu::this().forget_nmi();
        let now = rdtsc();
        if !entries.all.iter().any(|entry| entry.has_wakeup(now)) {
            let look = now.wrapping_add(cpu::tsc_hz() / LOOKS_PER_SECOND);
            entries.arm(now, entries.next().min(look));
            interrupts::enable_and_halt();
            interrupts::disable();
        }
        self.idle.store(false, Ordering::SeqCst);
        interrupts::take().for_each(receive);
    }
}

impl Entries {
    /// Whoever has something to do may run.
    fn wake(&self, schedule: &mut Schedule, now: u64) {
        for (slot, entry) in self.all.iter().enumerate() {
            if entry.has_wakeup(now) {
                entry.state.set(State::Ready);
                // Whoever asks for more finds it on its way: no NMI for whom it waits for.
                entry.slot.blocked.store(false, Ordering::SeqCst);
                schedule.wake(slot, now);
            } else if entry.state.get() == State::Ready && !schedule.is_runnable(slot) {
                // At its very first.
                schedule.wake(slot, now);
            }
        }
    }

    /// When the first of those that wait is due.
    fn next(&self) -> u64 {
        let due = |entry: &Entry| match entry.state.get() {
            State::Blocked(at) | State::Sleeps(at) => at,
            State::Ready | State::Gone => NEVER,
        };
        self.all.iter().map(due).min().unwrap_or(NEVER)
    }

    /// Sets the core's timer for this time, unless it is set so already.
    fn arm(&self, now: u64, at: u64) {
        if at == self.armed.get() && at != NEVER {
            return;
        }
        self.armed.set(at);
        let ticks = match at {
            NEVER => 0,
            _ => {
                // A product that is too large makes it early, never late.
                let product = at.saturating_sub(now).saturating_mul(cpu::timer_hz());
                u32::try_from(product / cpu::tsc_hz().max(1)).unwrap_or(u32::MAX).max(1)
            }
        };
        x2apic::timer_start(ticks);
    }
}

impl Entry {
    /// It waits, and what it waits for is there.
    fn has_wakeup(&self, now: u64) -> bool {
        match self.state.get() {
            State::Blocked(at) => {
                // Before the look: who asks after it is to kick again.
                self.slot.blocked.store(true, Ordering::SeqCst);
                at <= now || self.mailbox.has_wakeup()
            }
            State::Sleeps(at) => at <= now,
            State::Ready | State::Gone => false,
        }
    }
}
