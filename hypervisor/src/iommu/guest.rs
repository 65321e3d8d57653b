//! A guest's own IOMMU in the tables of the real one: what `viommu` decides is done here.
//!
//! Guarantees: the tables of a guest's domains are made at boot, one for each of its devices, and
//! have domain ids of the unit that nobody else has; later frames come from a pool of this guest's
//! alone. A call returns when the device's unit goes by what was changed. Whoever serves the
//! requests, a sidecore or a vCPU at its exit, holds the lock for some of them, and waits for the
//! unit; nobody who has the lock waits for a sidecore. What a unit with registers does besides
//! is said to the VM's vCPUs: they route interrupts, with the VM's lock.

use super::pool::Pool;
use super::{PageFormat, attach, caches_absence, detach, flush, largest_page, page_format, place};
use crate::cpu::rdtsc;
use crate::vm::guest::Guest;
use ::iommu::{Bdf, Domain, DomainId};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use paging::Format;
use paging::audit::Outline;
use spin::Once;
use spin::mutex::TicketMutex as Mutex;
use viommu::unit::{Fault, Model, Notice, Page, Registers, Remapping, Step, Unit};
use viommu::{Acting, Change, Domains, Hardware, MAX_ENDPOINTS, Region, Viommu};
use virtqueue::{Broken, Chain, Queue};
use virtual_pc::message::Message;
use window::Window;

/// Frames for tables: for all of the guest's memory in small pages once, if it isn't very large,
/// and some for each device. So many pages may be unmapped by one request.
const MOST_FRAMES: u64 = 512;
const FRAMES_EACH: u64 = 64;
const FRAME_COVERS: u64 = 2 << 20;

/// What a request costs, in bytes as a schedule charges them: the unit is waited for. And each
/// word of a table that is read or written.
const REQUEST_COST: u64 = 4096;
const WORD_COST: u64 = 64;

/// What was answered.
#[derive(Clone, Copy, Default)]
pub struct Answered {
    pub requests: u32,
    /// Bytes of mappings that came back before they were torn down.
    pub came_back: u64,
    /// In bytes, as a schedule charges them.
    pub cost: u64,
}

/// A guest's IOMMU.
pub struct GuestIommu {
    state: Mutex<State>,
    /// The tables, with their domains, and the frames that they can have.
    tables: Vec<(Domain, Outline<PageFormat>)>,
    frames: Vec<u64>,
    /// The last address that is translated.
    last: u64,
    /// By when an unmapping is to be carried out, or 0: as the state has it, without its lock.
    due: AtomicU64,
    /// Of a unit: its registers.
    page: Option<&'static Page>,
    /// Its interrupts are to be routed anew; nothing goes on before.
    reroutes: AtomicBool,
    owner: Once<&'static Guest>,
}

struct State {
    device: Viommu,
    domains: Domains,
    pool: Pool,
    units: Units,
    front: Front,
}

/// What the guest sees of it.
enum Front {
    /// A queue of requests, and room for one of them.
    Requests(Box<Chain>),
    /// Registers, and what they lead to in this memory.
    Registers(Box<Unit>, &'static Page, &'static Window),
}

/// What it is to be to the guest.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A virtio-iommu. What is unmapped may wait for so many ticks, if somebody looks by
    /// [`GuestIommu::tear_down`].
    Virtio(u64),
    /// A unit of this model with these registers, of a guest with this memory. What is unmapped by
    /// who looks by [`GuestIommu::tear_down`] may wait for so many ticks.
    Unit(Model, &'static Page, &'static Window, u64),
}

struct Units {
    devices: Vec<Bdf>,
    /// One of them of each unit that serves them, and whether that remembers that nothing is
    /// mapped.
    of_units: Vec<(Bdf, bool)>,
    /// How often they were waited for.
    waits: u32,
}

impl GuestIommu {
    /// Of a guest with these devices, which have these ids on the guest's bus, and are confined to
    /// the guest's memory by the domain `memory`. Domain ids from `first` on are its own, as many
    /// as devices. Boot only; the error is the end of a sentence.
    #[cold]
    #[inline(never)]
    pub fn new(
        ids: &[u32],
        (devices, kind): (&[Bdf], Kind),
        memory: (u16, u64),
        regions: &[Region],
        first: u16,
    ) -> Result<&'static Self, String> {
        if devices.len() > MAX_ENDPOINTS {
            return Err(format!("it can have at most {MAX_ENDPOINTS} devices behind it"));
        }
        let mut pool = Pool::new();
        let how = (page_format(), largest_page());
        let domains = Domains::new(&mut pool, how, devices.len(), memory, first);
        let domains = domains.map_err(|e| e.to_string())?;
        let bytes: u64 = regions.iter().map(|region| region.len).sum();
        let frames = (bytes / FRAME_COVERS).min(MOST_FRAMES) + FRAMES_EACH * devices.len() as u64;
        pool.close(frames as usize);
        let shape = domains.shape(ids, regions, frames);
        let (device, front, page) = match kind {
            Kind::Virtio(longest) => {
                (Viommu::new(shape, longest), Front::Requests(Box::new(Chain::new())), None)
            }
            Kind::Unit(model, page, window, longest) => {
                let device = Viommu::new(model.narrowed(shape), longest);
                let mut unit = Box::new(Unit::new(model, &device));
                unit.reset(&device, Registers::new(page));
                (device, Front::Registers(unit, page, window), Some(page))
            }
        };
        let last = device.shape().last;
        let levels = how.0.levels() as u8;
        let mut tables = Vec::new();
        let mut units = Units { devices: Vec::new(), of_units: Vec::new(), waits: 0 };
        for (index, device) in devices.iter().enumerate() {
            if let Some((id, root, outline)) = domains.outline(index) {
                tables.push((Domain { id: DomainId(id), root, levels }, outline));
            }
            units.devices.push(*device);
            if !units.of_units.iter().any(|(known, _)| place(*known) == place(*device)) {
                units.of_units.push((*device, caches_absence(*device)));
            }
        }
        let frames = pool.all();
        let state = Mutex::new(State { device, domains, pool, units, front });
        let (due, reroutes, owner) = (AtomicU64::new(0), AtomicBool::new(false), Once::new());
        let iommu = GuestIommu { state, tables, frames, last, due, page, reroutes, owner };
        Ok(Box::leak(Box::new(iommu)))
    }

    /// The last address that is translated.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Serves up to so many requests of a queue in the guest's memory, and none after those that
    /// cost `enough`; `served` counts them. None is published.
    #[inline(never)]
    pub fn serve(
        &self,
        queue: &mut Queue,
        window: &Window,
        accepted: u64,
        (most, enough): (u32, u64),
        served: &mut Answered,
    ) -> Result<(), Broken> {
        let mut state = self.state.lock();
        state.device.set_time(rdtsc());
        let before = state.device.teardowns().came_back;
        let done = state.serve(queue, window, accepted, (most, enough), served);
        served.came_back += state.device.teardowns().came_back - before;
        self.keep_due(&state);
        done
    }

    /// By when [`GuestIommu::tear_down`] is to be called.
    #[inline]
    pub fn due(&self) -> Option<u64> {
        match self.due.load(Relaxed) {
            0 => None,
            due => Some(due),
        }
    }

    /// Carries out the unmappings whose time is over.
    #[inline(never)]
    pub fn tear_down(&self, now: u64) {
        let mut state = self.state.lock();
        let State { device, domains, pool, units, .. } = &mut *state;
        device.set_time(now);
        device.tear_down(&mut Acting { domains, memory: pool, hardware: units });
        // Nobody is charged for it: those that can wait are few.
        domains.take_words();
        units.waits = 0;
        self.keep_due(&state);
    }

    fn keep_due(&self, state: &State) {
        self.due.store(state.device.due().map_or(0, |due| due.max(1)), Relaxed);
    }

    /// Has something happen to it.
    #[cold]
    #[inline(never)]
    pub fn change(&self, what: Change) {
        let mut state = self.state.lock();
        let State { device, domains, pool, units, front } = &mut *state;
        device.change(&mut Acting { domains, memory: pool, hardware: units }, what);
        if let (Change::Restart, Front::Registers(unit, page, _)) = (what, &mut *front) {
            unit.reset(device, Registers::new(page));
            self.reroutes.store(false, Release);
        }
        self.keep_due(&state);
    }

    /// It is this guest's. Once, at boot.
    pub fn belongs_to(&self, guest: &'static Guest) {
        self.owner.call_once(|| guest);
    }

    /// Its registers, if it is a unit with some.
    pub fn registers(&self) -> Option<Registers<'static>> {
        self.page.map(Registers::new)
    }

    /// Does it say that it translates DMA, as a unit?
    pub fn translates(&self) -> bool {
        self.registers().is_some_and(|page| page.translates())
    }

    /// Is there something to do by its registers that needn't wait for a vCPU?
    #[inline]
    pub fn is_news(&self) -> bool {
        self.registers().is_some_and(|page| page.is_news()) && !self.reroutes.load(Acquire)
    }

    /// Does what its registers ask for: up to so many commands and descriptors, and none after
    /// those that cost `enough`; `served` counts them. It stops where interrupts are to be routed
    /// anew ([`GuestIommu::reroutes`]). `waits`: who calls looks by when it is due what was
    /// unmapped.
    #[inline(never)]
    pub fn run(&self, (most, enough): (u32, u64), waits: bool, served: &mut Answered) {
        let mut state = self.state.lock();
        let State { device, domains, pool, units, front } = &mut *state;
        let Front::Registers(unit, page, window) = front else { return };
        device.set_time(rdtsc());
        device.set_strict(!waits);
        let before = device.teardowns().came_back;
        while served.requests < most && served.cost < enough {
            let mut tables =
                Acting { domains: &mut *domains, memory: &mut *pool, hardware: &mut *units };
            let step = unit.step(Registers::new(page), window, (&mut *device, &mut tables));
            let requests = unit.take_finished();
            let words = domains.take_words().saturating_add(unit.take_words());
            served.requests += requests;
            served.cost += units.cost(requests) + words.saturating_mul(WORD_COST);
            match step {
                Step::Worked => {}
                Step::Idle => break,
                Step::Reroute => {
                    self.reroutes.store(true, Release);
                    break;
                }
            }
        }
        let interrupt = unit.take_interrupt(Registers::new(page));
        // Whoever wrote for nothing had it looked at.
        served.cost = served.cost.max(REQUEST_COST);
        served.came_back += device.teardowns().came_back - before;
        self.keep_due(&state);
        drop(state);
        self.interrupt(interrupt);
    }

    /// Tells the guest of what its devices tried, by its unit's registers, unless somebody has the
    /// lock, which core 0 mustn't wait for.
    pub(super) fn tell(&self, faults: impl Iterator<Item = Fault>) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        let State { device, front: Front::Registers(unit, page, window), .. } = &mut *state else {
            return true;
        };
        let page = Registers::new(page);
        faults.for_each(|fault| unit.record(device, page, window, fault));
        let interrupt = unit.take_interrupt(page);
        drop(state);
        self.interrupt(interrupt);
        true
    }

    /// One was posted to a guest of its that is at no CPU.
    pub fn log_posted(&self, tag: u32) {
        let mut state = self.state.lock();
        let State { front: Front::Registers(unit, page, window), .. } = &mut *state else { return };
        let page = Registers::new(page);
        unit.log_posted(page, window, tag);
        let interrupt = unit.take_interrupt(page);
        drop(state);
        self.interrupt(interrupt);
    }

    /// Sends the guest this interrupt of its unit's. One that is no interrupt of a vCPU's is none.
    fn interrupt(&self, interrupt: Option<Notice>) {
        let message = match interrupt {
            Some(Notice::Message(address, data)) => Message::from_msi(address, data),
            Some(Notice::Wide(m)) => Message::remapped(m.data, m.destination, m.logical, m.hint),
            // Its function has no message.
            Some(Notice::Function) | None => return,
        };
        if let (Ok(message), Some(guest)) = (message, self.owner.get()) {
            guest.deliver(&message);
        }
    }

    /// Has a vCPU look at what is to be done: the first that runs, since one that waits for its
    /// start looks when it has started.
    #[cold]
    pub fn ask(&self) {
        let Some(guest) = self.owner.get() else { return };
        let runs = guest.remotes.iter().find(|vcpu| vcpu.mailbox.running());
        if let Some(vcpu) = runs.or(guest.remotes.first()) {
            vcpu.attend();
        }
    }

    /// Are its guest's interrupts to be routed anew?
    pub fn reroutes(&self) -> bool {
        self.reroutes.load(Acquire)
    }

    /// They are.
    pub fn rerouted(&self) {
        if let Front::Registers(unit, ..) = &mut self.state.lock().front {
            unit.rerouted();
        }
        self.reroutes.store(false, Release);
    }

    /// How it remaps interrupts by tables in this memory, if it does.
    pub fn remapping(&self) -> Option<(Remapping, Window)> {
        match &self.state.lock().front {
            Front::Registers(unit, _, window) if unit.remapping().is_on() => {
                Some((unit.remapping(), **window))
            }
            _ => None,
        }
    }

    /// The domains that its devices may be led to, besides the guest's memory, and their tables.
    pub fn tables(&self) -> &[(Domain, Outline<PageFormat>)] {
        &self.tables
    }

    /// The frames that those can lie in, ascending.
    pub fn frames(&self) -> &[u64] {
        &self.frames
    }

    /// Held: nobody changes them.
    pub fn hold(&self) -> Option<impl Sized> {
        self.state.try_lock()
    }
}

impl State {
    /// As [`GuestIommu::serve`].
    fn serve(
        &mut self,
        queue: &mut Queue,
        window: &Window,
        accepted: u64,
        (most, enough): (u32, u64),
        served: &mut Answered,
    ) -> Result<(), Broken> {
        let State { device, domains, pool, units, front } = self;
        let Front::Requests(chain) = front else { return Ok(()) };
        while served.requests < most && served.cost < enough {
            let before = served.requests;
            let mut tables = Acting { domains, memory: &mut *pool, hardware: &mut *units };
            let requests = &mut served.requests;
            let (parts, next) = ((&mut *queue, window, &mut **chain), before + 1);
            let done = viommu::serve(device, &mut tables, parts, accepted, next, requests);
            let words = domains.take_words().saturating_mul(WORD_COST);
            served.cost += units.cost(served.requests - before) + words;
            done?;
            if served.requests == before {
                break;
            }
        }
        Ok(())
    }
}

impl Units {
    /// What so many requests cost, or the waits since this was last asked, if there were more.
    fn cost(&mut self, requests: u32) -> u64 {
        u64::from(core::mem::take(&mut self.waits).max(requests)) * REQUEST_COST
    }
}

impl Hardware for Units {
    fn lead(&mut self, endpoint: usize, to: Option<(u16, u64)>) -> bool {
        self.waits += 1;
        let Some(&device) = self.devices.get(endpoint) else { return false };
        // One that isn't attached has nothing to lose.
        match detach(device) {
            Ok(()) | Err(::iommu::Error::NotAttached { .. }) => {}
            Err(_) => return false,
        }
        to.is_none_or(|(id, root)| attach(device, id, root, page_format()).is_ok())
    }

    fn flush(&mut self, id: u16, (at, bytes): (u64, u64), added: bool) -> bool {
        let waits = &mut self.waits;
        let mut units = self.of_units.iter().filter(|(_, caches)| !added || *caches);
        units.all(|(device, _)| {
            *waits += 1;
            flush(*device, id, at, bytes).is_ok()
        })
    }
}
