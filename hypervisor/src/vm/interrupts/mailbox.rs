//! What one core may ask of another's vCPU: interrupts, a look at something changed, a
//! start, an end.
//!
//! Guarantees: whatever is asked for is seen before the vCPU is next entered, since the
//! request is stored before the NMI is sent, and the entry looks at the requests behind the point from
//! which on an NMI ends it ([the last look](crate::cpu::vendor#the-last-look)). Nothing here
//! waits but [`Vm::settle`], which only the holder of the VM's lock calls, and whose
//! counterparts answer wherever they are: in the guest (by the NMI), before an entry, and
//! while they wait for that lock.

use crate::cpu::x2apic;
use crate::cpu::{self, PerCpu};
use crate::interrupts;
use crate::interrupts::vectors::host_vectors;
use crate::iommu;
use crate::sched::shared::{Look, Seat};
use crate::vm::Vm;
use ::iommu::{Bdf, Delivery as Message, InterruptRoute};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use delivery::{Arrived, Routes, STAND_IN_TOP, Signal, Startup, VectorSet};
use proto::Policy;
use spin::{Mutex, MutexGuard};

/// What can be asked, one bit each.
pub mod request {
    /// Forget cached translations of guest-physical addresses.
    pub const FLUSH: u32 = 1 << 0;
    /// Leave direct mode: the shadow IDT is taken away.
    pub const UNSHADOW: u32 = 1 << 1;
    /// Raise an NMI in the guest.
    pub const NMI: u32 = 1 << 2;
    /// Look into the inbox.
    pub const INBOX: u32 = 1 << 3;
    /// Look at the start-up state: INIT, or the end of the VM.
    pub const STARTUP: u32 = 1 << 4;
    /// Input for the console has arrived.
    pub const CONSOLE: u32 = 1 << 5;

    /// What a vCPU is to look at even if it has nothing to do.
    pub const STIRRING: u32 = NMI | INBOX | STARTUP | CONSOLE;
}

/// Whose physical vectors are whose on a core.
pub struct Vectors {
    /// Guest vector of each physical one.
    pub routes: Routes,
    /// Guest vectors of assigned devices.
    pub devices: VectorSet,
}

/// The part of a vCPU that other cores reach.
pub struct Link {
    /// Physical APIC id of its core.
    pub apic_id: u32,
    core: &'static PerCpu,
    /// Its place on its core, if it shares it.
    pub seat: Option<Seat>,
    startup: AtomicU32,
    requests: AtomicU32,
    /// Those that [`Link::remind`] has found whenever it looked, since when.
    reminded: AtomicU32,
    since: AtomicU64,
    /// Vectors to make pending, by 64.
    inbox: [AtomicU64; 4],
    /// Taken after the VM's lock, if both are.
    pub vectors: Mutex<Vectors>,
}

impl Link {
    /// The link of the vCPU on this core; the first vCPU runs at once.
    pub fn new(core: &'static PerCpu, seat: Option<Seat>, first: bool, policy: Policy) -> Self {
        let startup = if first { Startup::RUNNING } else { Startup::WAITING };
        let routes = Routes::new(host_vectors(policy));
        Link {
            apic_id: core.apic_id,
            core,
            seat,
            startup: AtomicU32::new(startup.bits()),
            requests: AtomicU32::new(0),
            reminded: AtomicU32::new(0),
            since: AtomicU64::new(0),
            inbox: Default::default(),
            vectors: Mutex::new(Vectors { routes, devices: VectorSet::EMPTY }),
        }
    }

    /// As [`Link::new`] makes it; the routes stay. Only while no vCPU of the VM runs.
    pub fn restart(&self, first: bool) {
        let startup = if first { Startup::RUNNING } else { Startup::WAITING };
        self.take_inbox();
        self.requests.store(0, Ordering::Release);
        self.startup.store(startup.bits(), Ordering::Release);
    }

    /// What is asked for and not done yet.
    #[inline]
    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }

    /// What is looked at last before the guest is entered.
    pub fn last_look(&self) -> &AtomicU32 {
        &self.requests
    }

    /// These requests are done; only the vCPU's own core says so.
    pub fn done(&self, requests: u32) {
        self.requests.fetch_and(!requests, Ordering::AcqRel);
    }

    /// The vectors left for it since the last call.
    pub fn take_inbox(&self) -> VectorSet {
        let words = self.inbox.each_ref().map(|w| w.swap(0, Ordering::AcqRel));
        VectorSet::from_registers(|i| (words[(i as usize / 2) & 3] >> (32 * (i & 1))) as u32)
    }

    /// Does it run, so that interrupts mean something to it?
    #[inline]
    pub fn running(&self) -> bool {
        Startup::from_bits(self.startup.load(Ordering::Acquire)).running()
    }

    /// Changes the start-up state; gives what `f` gives besides.
    pub fn change<R>(&self, f: impl Fn(Startup) -> (Startup, R)) -> R {
        let mut old = self.startup.load(Ordering::Acquire);
        loop {
            let (new, result) = f(Startup::from_bits(old));
            match self.startup.compare_exchange_weak(
                old,
                new.bits(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return result,
                Err(seen) => old = seen,
            }
        }
    }

    fn is_here(&self) -> bool {
        self.apic_id == cpu::this().apic_id
    }

    fn ask(&self, requests: u32) {
        self.requests.fetch_or(requests, Ordering::SeqCst);
    }

    /// Asks, and gets the core out of its guest.
    fn kick(&self, requests: u32) {
        self.ask(requests);
        match &self.seat {
            Some(seat) => seat.poke(requests & request::STIRRING != 0),
            None if !self.is_here() => self.core.kick(),
            None => {}
        }
    }

    /// Core 0, by the clock: announces again what was asked for half a second ago and isn't done. A
    /// CPU doesn't lose an NMI; QEMU before 10.2 does, rarely, when it comes to a core that enters or leaves its
    /// guest (VMRUN and #VMEXIT change `interrupt_request` without the lock under which others set it).
    pub fn remind(&self, now: u64) {
        let asked = self.requests();
        let still = asked & self.reminded.load(Ordering::Relaxed);
        if still == 0 {
            self.reminded.store(asked, Ordering::Relaxed);
            self.since.store(now, Ordering::Relaxed);
            return;
        }
        self.reminded.store(still, Ordering::Relaxed);
        let waited = now.wrapping_sub(self.since.load(Ordering::Relaxed));
        if waited > cpu::tsc_hz() / 2 && self.running() {
            self.since.store(now, Ordering::Relaxed);
            // Not asked again: it may be done by now, and a guest's NMI would come twice.
            match &self.seat {
                Some(seat) => seat.remind(still & request::STIRRING != 0),
                None => self.core.kick(),
            }
        }
    }

    /// Input for the console has arrived.
    pub fn console(&self) {
        self.kick(request::CONSOLE);
    }

    /// Leaves a fixed interrupt in the inbox.
    pub fn post(&self, vector: u8) {
        if let Some(word) = self.inbox.get(usize::from(vector >> 6)) {
            word.fetch_or(1 << (vector & 63), Ordering::AcqRel);
            self.ask(request::INBOX);
        }
    }

    /// Raises an NMI in the guest.
    pub fn nmi(&self) {
        if self.running() {
            self.kick(request::NMI);
        }
    }

    /// INIT, start-up or stop, as `f` has it.
    pub fn signal(&self, f: impl Fn(Startup) -> (Startup, Signal)) {
        // Stored first: whoever sees the new state has the request, too.
        self.ask(request::STARTUP);
        match self.change(f) {
            Signal::None => {}
            Signal::Kick => self.kick(request::STARTUP),
            Signal::Wake => match &self.seat {
                // Asked again: it may have looked between the question and the new state.
                Some(_) => self.kick(request::STARTUP),
                None => x2apic::send_ipi(self.apic_id, interrupts::WAKE),
            },
        }
    }
}

/// Routes.
impl Link {
    /// Routes an entry of the remapping table to this vCPU as its vector `guest`, gives the
    /// physical vector that stands for it where the core has one vCPU; `None`: it can't be.
    pub fn connect(&self, device: Bdf, entry: u16, guest: u8) -> Option<u8> {
        if let Some(seat) = &self.seat {
            return seat.core.connect(seat.place, device, entry, guest).then_some(guest);
        }
        let physical = self.vectors.lock().routes.claim(guest)?;
        let (destination, delivery) = (self.apic_id, Message::Fixed(physical));
        let route = InterruptRoute { source: device, destination, delivery };
        if iommu::set_irte(entry, route).is_err() {
            self.vectors.lock().routes.release(physical);
            return None;
        }
        Some(physical)
    }

    /// The entry is about to lead elsewhere, or to nobody.
    pub fn let_go(&self, device: Bdf, entry: u16) {
        if let Some(seat) = &self.seat {
            seat.core.let_go(device, entry);
        }
    }

    /// What [`Link::connect`] gave stands for one entry less, which leads elsewhere by now.
    pub fn disconnect(&self, connected: u8) {
        match &self.seat {
            Some(seat) => seat.core.release(seat.place, connected),
            None => self.vectors.lock().routes.release(connected),
        }
    }

    /// The guest's vector for a physical interrupt that is in service on its core while it has it.
    pub fn guest_vector(&self, physical: u8) -> Option<u8> {
        match &self.seat {
            Some(seat) => match seat.core.arrived(physical) {
                Arrived::Of { place, vectors } if place == seat.place => vectors.highest(),
                _ => None,
            },
            None => self.vectors.lock().routes.guest_vector(physical),
        }
    }

    /// For who looks from outside: what its core takes vectors for, as long as that is held; none
    /// while somebody changes it.
    pub fn books(&self) -> Option<Books<'_>> {
        Some(match &self.seat {
            Some(seat) => Books::Shared(seat.core.look()?, seat.place),
            None => Books::Own(self.vectors.try_lock()?),
        })
    }

    /// What has to be hidden from guests that take their interrupts on its core.
    pub fn hidden(&self) -> VectorSet {
        match self.seat {
            // They are kept from it by the limit of its IDT.
            Some(_) => VectorSet::EMPTY,
            None => self.vectors.lock().routes.hidden(),
        }
    }
}

/// What [`Link::books`] gives.
pub enum Books<'a> {
    /// The vCPU has its core to itself.
    Own(MutexGuard<'a, Vectors>),
    /// The vCPU at this place has it in turn.
    Shared(Look<'a>, usize),
}

impl Books<'_> {
    /// Is a physical interrupt that arrives there taken for the guest's `guest`, and for no other's?
    pub fn is_for(&self, physical: u8, guest: u8) -> bool {
        match self {
            Books::Own(vectors) => vectors.routes.guest_vector(physical) == Some(guest),
            Books::Shared(look, place) => look.is_for(physical, *place, guest),
        }
    }
}

/// Can a physical interrupt with the guest's own vector carry a guest's interrupt to a core
/// where the host has vectors too? Whatever mode the receiver is in, this vector means there what
/// the guest means by it: it is above the stand-ins and not the host's.
fn carries_itself(policy: Policy, vector: u8) -> bool {
    vector > STAND_IN_TOP
        && vector != interrupts::SPURIOUS
        && !host_vectors(policy).contains(vector)
}

impl Vm {
    /// Gives vCPU `target` a fixed interrupt, from any core. One that doesn't run gets none.
    pub fn interrupt(&self, target: usize, vector: u8) {
        let Some(link) = self.links.get(target).filter(|l| l.running()) else { return };
        let alone = link.seat.is_none();
        if alone && (self.policy == Policy::Direct || carries_itself(self.policy, vector)) {
            x2apic::send_ipi(link.apic_id, vector);
        } else {
            link.post(vector);
            link.kick(request::INBOX);
        }
    }

    /// Has the vCPUs of the set `who` do `requests`, and waits until they have, or don't run.
    /// `me`, the holder of the lock, is neither asked nor waited for; one that shares its core and
    /// doesn't have it now is only asked, since it looks before it enters its guest.
    pub fn settle(&self, me: usize, who: u64, requests: u32) {
        let others = || {
            let of = |(i, _): &(usize, &Link)| who >> i & 1 != 0 && *i != me;
            self.links.iter().enumerate().filter(of).map(|(_, l)| l)
        };
        for link in others().filter(|l| l.running()) {
            link.kick(requests);
        }
        let inside = |link: &Link| match &link.seat {
            Some(seat) => seat.is_current(),
            None => true,
        };
        for link in others() {
            while link.running() && inside(link) && link.requests() & requests != 0 {
                core::hint::spin_loop();
            }
        }
    }
}
