//! The run queue of a core that several vCPUs share: its stacks, its timer, and what the core does
//! when nobody has anything to do.
//!
//! Guarantees: a vCPU that yields goes on where it yielded, when it is chosen again; a vCPU that is
//! blocked is chosen when it has a wake-up or its deadline comes. A vCPU yields only at points
//! where it holds no lock. Who runs, who is looked at and how other cores get this one to look is
//! `mailbox::{Queue, Residency}`, which runs under loom. Whose an interrupt is, is `vm`'s.

use crate::cpu::x2apic::{self, TimerMode};
use crate::cpu::{self, PerCpu, rdtsc};
use crate::interrupts;
use crate::sched::clock::{self, Alarmed};
use crate::sched::fiber::{self, Suspended};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use mailbox::{Mailbox, NEVER, Queue, Reach, Residency, Yield};
use spin::Once;

/// How often the core looks at all of its vCPUs at the least, however long it could sleep, by
/// second. Nothing is known to depend on it: it bounds what a lost wake-up would cost.
const LOOKS_PER_SECOND: u64 = 100;

/// How often core 0 takes the core back while the NMI seems to be lost.
const RINGS_PER_SLICE: u64 = 4;

/// The run queue of one core, as every core may see it.
pub struct RunQueue {
    /// The core's place among the cores.
    pub index: usize,
    /// The core's APIC id.
    pub apic_id: u32,
    core: &'static PerCpu,
    /// The longest time slice while another waits, in TSC ticks.
    slice: u64,
    residency: Residency,
    /// By slot: since when an interrupt waits for the vCPU to have the core; 0: none does.
    wait_began: [AtomicU64; schedule::MAX],
    /// How many slots are taken.
    slots: AtomicUsize,
    /// By slot.
    mailboxes: Once<ArrayVec<&'static Mailbox, { schedule::MAX }>>,
    entries: Once<Entries>,
}

/// The core's own part, which no other core uses.
struct Entries {
    queue: RefCell<Queue>,
    /// Where each vCPU goes on, by slot.
    suspended: ArrayVec<Cell<Suspended>, { schedule::MAX }>,
    /// Where the loop goes on that chooses who runs.
    main: Cell<Suspended>,
    /// The time that the core's timer is set for, or [`NEVER`].
    armed: Cell<u64>,
    /// When a timer has the core looked at for others; [`NEVER`]: none, or the CPU does it.
    others: Cell<u64>,
}

// SAFETY: after boot it is used by the core it is for alone, which `RunQueue::entries` checks.
unsafe impl Sync for Entries {}
// SAFETY: as above; it is made on core 0 and handed over before that core starts to use it.
unsafe impl Send for Entries {}

/// A vCPU as the queue is given it while booting.
pub struct Member {
    pub mailbox: &'static Mailbox,
    /// Its share of the core, beside the others'.
    pub weight: u32,
    /// The stack that runs in its time slices.
    pub fiber: Suspended,
}

impl Reach for RunQueue {
    fn residency(&self) -> &Residency {
        &self.residency
    }

    fn mailboxes(&self) -> &[&Mailbox] {
        self.mailboxes.get().map_or(&[], ArrayVec::as_slice)
    }

    #[inline]
    fn is_here(&self) -> bool {
        core::ptr::eq(self.core, cpu::this())
    }

    fn send_nmi(&self) {
        self.core.kick();
    }

    fn send_wake(&self) {
        x2apic::send_ipi(self.apic_id, interrupts::WAKE);
    }
}

impl Alarmed for RunQueue {
    fn alarm(&self) -> u64 {
        self.residency.alarm()
    }

    fn ring(&self, now: u64) {
        self.residency.ring(self, now, self.slice / RINGS_PER_SLICE);
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
            residency: Residency::new(),
            wait_began: Default::default(),
            slots: AtomicUsize::new(0),
            mailboxes: Once::new(),
            entries: Once::new(),
        }
    }

    /// While booting: the vCPUs, by slot.
    pub fn fill(&self, members: Vec<Member>) {
        let mut queue = Queue::new(self.slice);
        let (mut suspended, mut mailboxes) = (ArrayVec::new(), ArrayVec::new());
        for Member { mailbox, weight, fiber } in members {
            queue.add(weight);
            suspended.push(Cell::new(fiber));
            mailboxes.push(mailbox);
        }
        let (queue, main) = (RefCell::new(queue), Cell::default());
        self.mailboxes.call_once(|| mailboxes);
        let [armed, others] = [const { Cell::new(NEVER) }; 2];
        self.entries.call_once(|| Entries { queue, suspended, main, armed, others });
    }

    #[inline]
    fn entries(&self) -> &Entries {
        assert!(self.is_here(), "the run queue of core {} is its own matter", self.index);
        self.entries.get().expect("the core's vCPUs were put into its queue at boot")
    }

    /// Core 0: as [`Residency::watch`]. Logs nothing: it comes in the middle of what core 0 sends.
    pub fn watch(&self, now: u64) {
        self.residency.watch(self, now, self.slice);
    }

    /// The next slot.
    pub fn take_slot(&self) -> usize {
        self.slots.fetch_add(1, Ordering::Relaxed)
    }

    /// As [`Residency::kick`]; on the core itself it needs no request, since the queue is at hand.
    pub fn kick(&self, slot: usize, wakeup: bool) {
        if !self.is_here() {
            self.residency.kick(self, slot, wakeup);
        } else if wakeup {
            self.entries().queue.borrow_mut().wake_here(self, slot, rdtsc);
        }
    }

    /// As [`Residency::resend_kick`].
    pub fn resend_kick(&self, slot: usize, wakeup: bool) {
        self.residency.resend_kick(self, slot, wakeup);
    }

    /// On this core: how long the first interrupt waited that had to wait for the vCPU at `slot`,
    /// which has the core now.
    pub fn take_wait(&self, slot: usize) -> Option<u64> {
        let since = self.wait_began.get(slot)?.swap(0, Ordering::Relaxed);
        (since != 0).then(|| rdtsc().wrapping_sub(since))
    }

    /// On this core: an interrupt waits for the vCPU at `slot` to have the core.
    pub fn interrupt_waits(&self, slot: usize) {
        if let Some(began) = self.wait_began.get(slot)
            && began.load(Ordering::Relaxed) == 0
        {
            began.store(rdtsc().max(1), Ordering::Relaxed);
        }
    }

    /// The vCPU at `slot` leaves its core to others; it holds no lock. Back when it is chosen
    /// again, which may be at once. The one that is chosen goes on from here: the loop on the
    /// core's own stack is gone through only where nobody is.
    pub fn yield_core(&self, slot: usize, why: Yield) {
        let entries = self.entries();
        let Some(suspended) = entries.suspended.get(slot) else { return };
        let next = {
            let (mut queue, now) = (entries.queue.borrow_mut(), rdtsc());
            queue.leave(slot, why, now);
            queue.pick(self, now)
        };
        if next == Some(slot) {
            return;
        }
        let to = next.and_then(|next| entries.suspended.get(next)).unwrap_or(&entries.main);
        // SAFETY: that one was made at boot or left here, on this core, and isn't gone, for the
        // schedule names none that is; or the loop on the core's own stack has waited in `switch`
        // since it first gave the core to one of them.
        unsafe { fiber::switch(suspended, to.get()) };
    }

    /// Looks who else could run; true if the core is to be given to another than its vCPU
    /// `resident`.
    pub fn slice_is_over(&self, resident: &Mailbox, now: u64) -> bool {
        self.entries().queue.borrow_mut().slice_is_over(self, resident, now)
    }

    /// Before the guest is entered: `None`, if the core is to be given to another than its vCPU
    /// `resident`. Else it sets the timer for whatever comes first, the vCPU's own `deadline` or
    /// what the core has to do for others. While the timer is `lent`, that is core 0's alarm for
    /// what it has to do for others. Where the CPU itself ends the guest's run at that time
    /// (`leave_at`), the timers have nothing to do for others. Says whether another could run, and
    /// until when nothing is to be done anew, if nobody asks for anything.
    #[inline]
    pub fn arm(
        &self,
        resident: &Mailbox,
        now: u64,
        (deadline, lent): (u64, bool),
        leave_at: impl FnOnce(u64) -> bool,
    ) -> Option<(bool, u64)> {
        let entries = self.entries();
        let (contested, others, stands) = {
            let mut queue = entries.queue.borrow_mut();
            if queue.slice_is_over(self, resident, now) {
                return None;
            }
            let (contested, others) = queue.due();
            (contested, others, queue.stands())
        };
        self.residency.set_due(others.min(now.wrapping_add(self.slice)));
        let others = if leave_at(others) { NEVER } else { others };
        entries.others.set(others);
        if lent {
            clock::set_alarm(&self.residency, others);
        } else {
            entries.arm(now, deadline.min(others));
        }
        Some((contested, stands.min(deadline)))
    }

    /// Before the guest is entered: the core's timer is its from here on, with `vector`, started
    /// from `count` with this divider. Core 0 takes the core back, where the CPU itself doesn't.
    pub fn lend_timer(&self, vector: u8, divide: u32, count: u32) {
        let entries = self.entries();
        x2apic::timer_start(0);
        x2apic::timer_divide(divide);
        x2apic::timer_lvt(vector, TimerMode::OneShot, false);
        x2apic::timer_start(count);
        clock::set_alarm(&self.residency, entries.others.get());
    }

    /// The timer is the host's again, and isn't set.
    pub fn take_timer(&self) {
        clock::set_alarm(&self.residency, NEVER);
        set_up_timer();
        self.entries().armed.set(NEVER);
    }

    /// The timer's interrupt arrived: it isn't set any more.
    pub fn fired(&self) {
        self.entries().armed.set(NEVER);
    }

    /// Is the vCPU at `slot` in its guest, or about to be?
    pub fn is_resident(&self, slot: usize) -> bool {
        self.residency.is_resident(slot)
    }

    /// On this core: the vCPU at `slot` is about to use its guest.
    pub fn set_resident(&self, slot: usize) {
        self.residency.set_resident(slot);
        self.entries().queue.borrow_mut().resident(self);
    }

    /// No vCPU is in its guest, or about to be.
    pub fn clear_resident(&self) {
        self.residency.clear_resident();
    }

    /// The core's life: gives it to its vCPUs in turn until the last is gone. Interrupts are held,
    /// as between `prepare_core` and `release_core`. `receive` takes the interrupts that arrive
    /// while nobody runs.
    pub fn serve(&self, receive: impl Fn(u8)) {
        let entries = self.entries();
        set_up_timer();
        entries.armed.set(NEVER);
        while entries.queue.borrow().serves() {
            let next = entries.queue.borrow_mut().pick(self, rdtsc());
            match next.and_then(|slot| entries.suspended.get(slot)) {
                Some(suspended) => {
                    let to = suspended.get();
                    // SAFETY: as in `yield_core`.
                    unsafe { fiber::switch(&entries.main, to) };
                }
                None => self.sleep(entries, &receive),
            }
        }
        x2apic::timer_lvt(interrupts::TIMER, TimerMode::OneShot, true);
    }

    /// Sleeps until something arrives.
    fn sleep(&self, entries: &Entries, receive: &impl Fn(u8)) {
        let now = rdtsc();
        let sleep = || {
            let look = now.wrapping_add(cpu::tsc_hz() / LOOKS_PER_SECOND);
            entries.arm(now, entries.queue.borrow().next().min(look));
            interrupts::enable_and_halt();
            interrupts::disable();
        };
        let wanted = || entries.queue.borrow().wanted(self, now);
        self.residency.sleep(|| cpu::this().forget_nmi(), wanted, sleep);
        interrupts::take().for_each(receive);
    }
}

/// The core's timer as the host uses it, and not running.
fn set_up_timer() {
    x2apic::timer_start(0);
    x2apic::timer_divide_shift(0);
    x2apic::timer_lvt(interrupts::TIMER, TimerMode::OneShot, false);
}

impl Entries {
    /// Sets the core's timer for this time, unless it is set so already.
    #[inline]
    fn arm(&self, now: u64, at: u64) {
        if at != self.armed.get() {
            self.set_timer(now, at);
        }
    }

    #[inline(never)]
    fn set_timer(&self, now: u64, at: u64) {
        self.armed.set(at);
        let ticks = match at {
            NEVER => 0,
            _ => cpu::timer_ticks(at.saturating_sub(now)),
        };
        x2apic::timer_start(ticks);
    }
}
