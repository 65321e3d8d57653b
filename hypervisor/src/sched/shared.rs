//! A core that several vCPUs share: who runs, for how long, whose interrupt it is, and what the
//! core does when nobody has anything to do.
//!
//! Guarantees: a vCPU that gives way is out of its guest, with nothing of it left in the local APIC;
//! the interrupts of one that isn't at home reach the host, are noted for it, and wake it if it
//! sleeps. A vCPU is only left at points where it holds no lock. What decides is pure:
//! `schedule::Schedule` for time, `delivery::CoreVectors` for vectors. That the core comes back
//! from a guest that lets nothing in is [`SharedCore::watch`]'s: an NMI from core 0.

use crate::cpu::x2apic::{self, TimerMode};
use crate::cpu::{self, PerCpu, rdtsc};
use crate::interrupts::vectors::host_vectors;
use crate::iommu::fault_interrupt;
use crate::sched::fiber::{self, Suspended};
use crate::vm::interrupts::mailbox::{Link, request};
use crate::{interrupts, iommu};
use ::iommu::{Bdf, Delivery as Message, InterruptRoute};
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use delivery::{Arrived, CoreVectors, VectorSet};
use schedule::Schedule;
use spin::Once;
use spin::mutex::{TicketMutex as Mutex, TicketMutexGuard};

/// In [`SharedCore::current`]: no vCPU is, or is about to be, in its guest.
const NOBODY: usize = usize::MAX;
/// How often the core looks at all of its vCPUs at the least, however long it could sleep, by second.
/// Nothing is known to depend on it: it bounds what a lost wake-up would cost.
const LOOKS_PER_SECOND: u64 = 100;
/// A deadline that never comes.
pub const NEVER: u64 = u64::MAX;

/// Why a vCPU gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yield {
    /// It would go on.
    Ready,
    /// Until somebody asks something of it, or this time.
    Until(u64),
    /// Until this time, whatever is asked.
    Sleep(u64),
    /// For good.
    Gone,
}

/// A core with several vCPUs, as every core may see it.
pub struct SharedCore {
    /// Its place among the cores.
    pub index: usize,
    pub apic_id: u32,
    core: &'static PerCpu,
    /// The longest turn while another waits, in TSC ticks.
    slice: u64,
    /// It sleeps in the host, or is about to.
    idle: AtomicBool,
    /// Place of the vCPU that is, or is about to be, in its guest.
    current: AtomicUsize,
    /// When the core has something to do for others than who has it.
    due: AtomicU64,
    /// When [`SharedCore::watch`] last sent an NMI.
    nudged: AtomicU64,
    /// Taken after a VM's lock, if both are.
    interrupts: Mutex<Interrupts>,
    /// Interrupts that arrived, were nobody's, and weren't told of; there should be none.
    strays: AtomicU64,
    /// Places that are taken.
    places: AtomicUsize,
    turns: Once<Turns>,
}

/// Whose interrupt is whose.
struct Interrupts {
    vectors: CoreVectors,
    /// The entries of the remapping table that lead here.
    sources: Vec<Source>,
}

/// An entry of the remapping table that leads to a shared core.
#[derive(Clone, Copy)]
struct Source {
    place: usize,
    device: Bdf,
    entry: u16,
    guest: u8,
}

/// What belongs to the core alone.
struct Turns {
    schedule: RefCell<Schedule>,
    seats: ArrayVec<Turn, { schedule::MAX }>,
    /// Where the loop goes on that chooses who runs.
    main: Cell<Suspended>,
    /// What the core's timer is set for, or [`NEVER`].
    armed: Cell<u64>,
}

// SAFETY: after boot it is used by the core it is for alone, which `SharedCore::turns` checks.
unsafe impl Sync for Turns {}
// SAFETY: as above; it is made on core 0 and handed over before that core starts to use it.
unsafe impl Send for Turns {}

/// A vCPU's part in them.
struct Turn {
    link: &'static Link,
    suspended: Cell<Suspended>,
    state: Cell<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    /// Until this time, or until it is asked for something.
    Waits(u64),
    /// Until this time.
    Sleeps(u64),
    Gone,
}

/// The place of a vCPU on a core that it shares.
pub struct Seat {
    pub core: &'static SharedCore,
    pub place: usize,
    /// It waits to be asked for something, and its core hasn't been told.
    waits: AtomicBool,
    /// Since when an interrupt waits for it to have the core; 0: none does.
    wait_began: AtomicU64,
}

impl Seat {
    /// The next place on `core`.
    pub fn new(core: &'static SharedCore) -> Self {
        let place = core.places.fetch_add(1, Ordering::Relaxed);
        Seat { core, place, waits: AtomicBool::new(true), wait_began: AtomicU64::new(0) }
    }

    /// On its core: an interrupt waits for the vCPU to have the core.
    pub fn left_waiting(&self) {
        if self.wait_began.load(Ordering::Relaxed) == 0 {
            self.wait_began.store(rdtsc().max(1), Ordering::Relaxed);
        }
    }

    /// The vCPU has the core: how long the first interrupt waited that had to.
    pub fn waited(&self) -> Option<u64> {
        let since = self.wait_began.swap(0, Ordering::Relaxed);
        (since != 0).then(|| rdtsc().wrapping_sub(since))
    }

    /// Is the vCPU in its guest, or about to be?
    pub fn is_current(&self) -> bool {
        self.core.is_current(self.place)
    }

    /// Something was asked of the vCPU: has its core look, unless it will anyway before it enters
    /// the guest. If that is nothing that it wakes up for, `stirring`, whoever else has the core isn't
    /// bothered; if it is, once until the core has looked, however often is asked.
    pub fn poke(&self, stirring: bool) {
        if self.is_current() || stirring && self.waits.swap(false, Ordering::SeqCst) {
            self.core.poke();
        }
    }

    /// What was asked long ago isn't done: has its core look, whether it was told or not.
    pub fn remind(&self, stirring: bool) {
        if self.is_current() || stirring {
            self.core.poke();
        }
    }
}

impl SharedCore {
    /// A core for `places` vCPUs, none there yet; `slice` in TSC ticks.
    pub fn new(core: &'static PerCpu, places: usize, slice: u64) -> Self {
        let mut host = host_vectors(proto::Policy::Eli);
        host.insert(interrupts::FAULTS);
        SharedCore {
            index: core.index,
            apic_id: core.apic_id,
            core,
            slice,
            idle: AtomicBool::new(false),
            current: AtomicUsize::new(NOBODY),
            due: AtomicU64::new(NEVER),
            nudged: AtomicU64::new(0),
            interrupts: Mutex::new(Interrupts {
                vectors: CoreVectors::new(host, places),
                sources: Vec::new(),
            }),
            strays: AtomicU64::new(0),
            places: AtomicUsize::new(0),
            turns: Once::new(),
        }
    }

    /// While booting: the vCPUs, by place, with their weights and what they run; and how many
    /// sources of interrupts there can be.
    pub fn seat(&self, members: Vec<(&'static Link, u32, Suspended)>, sources: usize) {
        self.interrupts.lock().sources.reserve_exact(sources);
        let mut schedule = Schedule::new(self.slice);
        let mut seats = ArrayVec::new();
        for (link, weight, suspended) in members {
            schedule.add(weight);
            let (suspended, state) = (Cell::new(suspended), Cell::new(State::Ready));
            seats.push(Turn { link, suspended, state });
        }
        let (schedule, main) = (RefCell::new(schedule), Cell::default());
        self.turns.call_once(|| Turns { schedule, seats, main, armed: Cell::new(NEVER) });
    }

    fn turns(&self) -> &Turns {
        assert!(self.is_here(), "the turns of core {} are its own matter", self.index);
        self.turns.get().expect("the core's vCPUs were seated at boot")
    }

    /// Is this the core that this runs on?
    pub fn is_here(&self) -> bool {
        self.apic_id == cpu::this().apic_id
    }

    fn poke(&self) {
        if self.is_here() {
            return;
        }
        if self.idle.load(Ordering::SeqCst) {
            x2apic::send_ipi(self.apic_id, interrupts::WAKE);
        } else {
            self.core.kick();
        }
    }

    /// Core 0: gets the core back from a guest that still has it when another's turn has come,
    /// whatever that guest lets in; after a slice from one that nobody waits for, too, since it may hold
    /// back what somebody would wait for. Once in a slice, however often it is called.
    /// Logs nothing: it comes in the middle of what core 0 sends.
    pub fn watch(&self, now: u64) {
        let inside = self.current.load(Ordering::SeqCst) != NOBODY;
        let since = now.wrapping_sub(self.nudged.load(Ordering::Relaxed)) as i64;
        if inside && now > self.due.load(Ordering::Relaxed) && since > self.slice as i64 {
            self.nudged.store(now, Ordering::Relaxed);
            self.core.kick();
        }
    }

    /// Core 0: tells of interrupts that were nobody's.
    pub fn tell_of_strays(&self) {
        let strays = self.strays.swap(0, Ordering::Relaxed);
        if strays > 0 {
            log::warn!("core {}: {strays} interrupts arrived that were nobody's", self.index);
        }
    }
}

/// Vectors and routes.
impl SharedCore {
    /// Routes an entry of the remapping table to the vCPU at `place` as its vector `guest`. False if
    /// that isn't possible; then the entry is as it was.
    pub fn connect(&self, place: usize, device: Bdf, entry: u16, guest: u8) -> bool {
        let mut i = self.interrupts.lock();
        let Some(_alias) = i.vectors.claim(place, guest) else { return false };
        let source = Source { place, device, entry, guest };
        let routed = i.sources.len() < i.sources.capacity()
            && i.route(self.apic_id, &source)
            && iommu::drain(device).is_ok();
        if routed {
            i.sources.retain(|s| s.entry != entry || s.device != device);
            i.sources.push(source);
        } else {
            i.vectors.release(place, guest);
        }
        routed
    }

    /// The entry is about to lead elsewhere: it isn't aimed again when its vCPU comes or goes. Until
    /// then it sends by its alias, since its vCPU may leave before that; what it sent by the guest's
    /// own vector has arrived when its vCPU has left.
    pub fn let_go(&self, device: Bdf, entry: u16) {
        let mut i = self.interrupts.lock();
        let Some(at) = i.sources.iter().position(|s| s.entry == entry && s.device == device) else {
            return;
        };
        let source = i.sources.swap_remove(at);
        let aimed = i.vectors.alias(source.place, source.guest).is_some_and(|alias| {
            let (source, delivery) = (device, Message::Fixed(alias));
            let route = InterruptRoute { source, destination: self.apic_id, delivery };
            iommu::update_irte(entry, route).is_ok()
        });
        assert!(aimed, "the IOMMU takes a route to an alias");
    }

    /// The vCPU at `place` has one source less for its vector `guest`.
    pub fn release(&self, place: usize, guest: u8) {
        self.interrupts.lock().vectors.release(place, guest);
    }

    /// Whose a physical interrupt is that arrived on this core.
    pub fn arrived(&self, physical: u8) -> Arrived {
        self.interrupts.lock().vectors.arrived(physical)
    }

    /// For who looks from outside: whose which vector is, as long as that is held; none while
    /// somebody changes it.
    pub fn look(&self) -> Option<Look<'_>> {
        self.interrupts.try_lock().map(Look)
    }

    /// An interrupt for another vCPU of this core is left in its inbox.
    pub fn hand_on(&self, place: usize, vectors: &VectorSet) {
        if let Some(turn) = self.turns().seats.get(place) {
            turn.seat().left_waiting();
            vectors.iter().for_each(|v| turn.link.post(v));
        }
    }

    /// An interrupt that is nobody's.
    pub fn note_stray(&self) {
        self.strays.fetch_add(1, Ordering::Relaxed);
    }

    /// From here on the interrupts of who is at home come by aliases, and what came by its own
    /// vectors is in the local APIC. `drain` takes that out.
    pub fn send_away(&self, place: usize, drain: impl FnOnce()) {
        self.aim(place, CoreVectors::leave);
        // A unit that doesn't answer leaves interrupts of this vCPU's to the next one.
        iommu::drain_all().expect("the IOMMU forgets a route that changed");
        drain();
        self.interrupts.lock().vectors.left();
    }

    /// From here on the interrupts of the vCPU at `place` come by its own vectors; some may still
    /// come by their aliases.
    pub fn bring_home(&self, place: usize) {
        self.aim(place, |vectors| vectors.enter(place));
    }

    fn aim(&self, place: usize, change: impl FnOnce(&mut CoreVectors)) {
        let mut i = self.interrupts.lock();
        change(&mut i.vectors);
        for source in i.sources.iter().filter(|s| s.place == place) {
            let aimed = i.route(self.apic_id, source);
            assert!(aimed, "the IOMMU takes a route that it had");
        }
    }
}

/// What [`SharedCore::look`] gives.
pub struct Look<'a>(TicketMutexGuard<'a, Interrupts>);

impl Look<'_> {
    /// As [`CoreVectors::is_for`].
    pub fn is_for(&self, physical: u8, place: usize, guest: u8) -> bool {
        self.0.vectors.is_for(physical, place, guest)
    }
}

impl Interrupts {
    /// Writes the entry as the source is to be routed now; the unit may still know the old one.
    fn route(&self, apic_id: u32, s: &Source) -> bool {
        self.vectors.physical(s.place, s.guest).is_some_and(|physical| {
            let (source, delivery) = (s.device, Message::Fixed(physical));
            iommu::update_irte(s.entry, InterruptRoute { source, destination: apic_id, delivery })
                .is_ok()
        })
    }
}

/// Turns.
impl SharedCore {
    /// The vCPU at `place` leaves its core to others; it holds no lock. Back when it is chosen again.
    pub fn give_way(&self, place: usize, why: Yield) {
        let turns = self.turns();
        let Some(turn) = turns.seats.get(place) else { return };
        let now = rdtsc();
        match why {
            Yield::Ready => turn.state.set(State::Ready),
            Yield::Until(at) => {
                turn.state.set(State::Waits(at));
                turn.seat().waits.store(true, Ordering::SeqCst);
                turns.schedule.borrow_mut().block(place, now);
            }
            Yield::Sleep(at) => {
                turn.state.set(State::Sleeps(at));
                turns.schedule.borrow_mut().block(place, now);
            }
            Yield::Gone => {
                turn.state.set(State::Gone);
                turns.schedule.borrow_mut().remove(place, now);
            }
        }
        let main = turns.main.get();
        // SAFETY: the loop on the core's own stack switched here and waits in `switch`.
        unsafe { fiber::switch(&turn.suspended, main) };
        turn.seat().waits.store(false, Ordering::SeqCst);
    }

    /// Looks who else could run; true if the core is to be given to another.
    pub fn turn_is_over(&self, now: u64) -> bool {
        let turns = self.turns();
        let mut schedule = turns.schedule.borrow_mut();
        turns.wake(&mut schedule, now);
        schedule.should_switch(now)
    }

    /// Could another run?
    pub fn contested(&self) -> bool {
        self.turns().schedule.borrow().contested()
    }

    /// Before the guest is entered: sets the timer for whatever comes first, the vCPU's own
    /// `deadline` or what the core has to do for others.
    pub fn arm(&self, now: u64, deadline: u64) {
        let turns = self.turns();
        let slice = turns.schedule.borrow().deadline().unwrap_or(NEVER);
        let others = slice.min(turns.next());
        self.due.store(others.min(now.wrapping_add(self.slice)), Ordering::Relaxed);
        turns.arm(now, deadline.min(others));
    }

    /// The timer's interrupt arrived: it isn't set any more.
    pub fn fired(&self) {
        self.turns().armed.set(NEVER);
    }

    /// The vCPU at `place` is about to use its guest.
    pub fn set_current(&self, place: usize) {
        self.current.store(place, Ordering::SeqCst);
    }

    /// Is the vCPU at `place` in its guest, or about to be?
    pub fn is_current(&self, place: usize) -> bool {
        self.current.load(Ordering::SeqCst) == place
    }

    /// It doesn't any more.
    pub fn clear_current(&self) {
        self.current.store(NOBODY, Ordering::SeqCst);
    }

    /// The core's life: gives it to its vCPUs in turn until the last is gone. Interrupts are
    /// held, as between `prepare_core` and `release_core`.
    pub fn serve(&self) {
        let turns = self.turns();
        x2apic::timer_divide_shift(0);
        x2apic::timer_lvt(interrupts::TIMER, TimerMode::OneShot, false);
        turns.arm(0, NEVER);
        while turns.seats.iter().any(|t| t.state.get() != State::Gone) {
            let now = rdtsc();
            let next = {
                let mut schedule = turns.schedule.borrow_mut();
                turns.wake(&mut schedule, now);
                schedule.pick(now)
            };
            match next.and_then(|place| turns.seats.get(place)) {
                Some(turn) => {
                    let to = turn.suspended.get();
                    // SAFETY: it was made at boot or left in `give_way`, and isn't gone: the schedule
                    // names none that is.
                    unsafe { fiber::switch(&turns.main, to) };
                }
                None => self.idle(turns),
            }
        }
        x2apic::timer_lvt(interrupts::TIMER, TimerMode::OneShot, true);
    }

    /// Sleeps until something arrives.
    fn idle(&self, turns: &Turns) {
        self.idle.store(true, Ordering::SeqCst);
        // What an NMI before this announced is found by the look below; one behind it keeps the core awake.
        cpu::this().forget_nmi();
        let now = rdtsc();
        if !turns.seats.iter().any(|turn| turn.stirs(now)) {
            let look = now.wrapping_add(cpu::tsc_hz() / LOOKS_PER_SECOND);
            turns.arm(now, turns.next().min(look));
            interrupts::enable_and_halt();
            interrupts::disable();
        }
        self.idle.store(false, Ordering::SeqCst);
        for vector in interrupts::take() {
            match self.arrived(vector) {
                Arrived::Host if vector == interrupts::TIMER => self.fired(),
                Arrived::Host if vector == interrupts::FAULTS => fault_interrupt::arrived(),
                Arrived::Host => {}
                Arrived::Of { place, vectors } => self.hand_on(place, &vectors),
                Arrived::Nobody => self.note_stray(),
            }
        }
    }
}

impl Turns {
    /// Whoever has something to do may run.
    fn wake(&self, schedule: &mut Schedule, now: u64) {
        for (place, turn) in self.seats.iter().enumerate() {
            if turn.stirs(now) {
                turn.state.set(State::Ready);
                // Whoever asks for more finds it on its way: no NMI for whom it waits for.
                turn.seat().waits.store(false, Ordering::SeqCst);
                schedule.wake(place, now);
            } else if turn.state.get() == State::Ready && !schedule.is_runnable(place) {
                // At its very first.
                schedule.wake(place, now);
            }
        }
    }

    /// When the first of those that wait is due.
    fn next(&self) -> u64 {
        let due = |turn: &Turn| match turn.state.get() {
            State::Waits(at) | State::Sleeps(at) => at,
            State::Ready | State::Gone => NEVER,
        };
        self.seats.iter().map(due).min().unwrap_or(NEVER)
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

impl Turn {
    fn seat(&self) -> &'static Seat {
        self.link.seat.as_ref().expect("who has turns has a seat")
    }

    /// It waits, and what it waits for is there.
    fn stirs(&self, now: u64) -> bool {
        match self.state.get() {
            State::Waits(at) => {
                // Before the look: who asks after it is to tell again.
                self.seat().waits.store(true, Ordering::SeqCst);
                at <= now || self.link.requests() & request::STIRRING != 0
            }
            State::Sleeps(at) => at <= now,
            State::Ready | State::Gone => false,
        }
    }
}
