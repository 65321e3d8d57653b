//! The guest's own IOMMU as a VT-d unit (VT-d 5.0): caching mode, tables of the second level, a
//! queue for invalidations, interrupts remapped with 32-bit destinations. What the guest's tables
//! map is mapped in the real unit's by [`Viommu`], which doesn't know whose requests they are.
//!
//! In caching mode a driver invalidates whatever it maps or unmaps. So the unit looks at the range
//! of an invalidation in the guest's tables, and has the real ones be the same there. Whoever runs
//! it ([`Vtd::step`]) sees in the page of registers that there is something to do: a sidecore that
//! polls it, or the exits of a guest that can only read it.
//!
//! Guarantees, whatever a guest writes, wherever:
//! - Those of [`Viommu`]. A device reaches nothing that the guest's tables don't map, once the
//!   invalidation is over that the guest waits for. A new domain is led to when its tables are
//!   complete.
//! - A step's work is bounded, and so is that of an invalidation. A domain of which that isn't
//!   enough, or for which there are no frames, is *blocked*: its devices reach nothing until all of
//!   it is invalidated, and fits.
//! - Nothing panics, nothing is allocated once it is made.
//!
//! Doesn't guarantee: that a guest is told of interrupts that were blocked, or interrupted by a
//! descriptor of its queue, which Linux polls for. What passes from `GCMD` to the tables that it
//! names isn't instantaneous, as it isn't on a unit of silicon.
//!
//! | file | is |
//! |---|---|
//! | `mod` | the unit: commands, the queue, what it does next |
//! | `registers` | the page |
//! | `descriptor` | what may be invalidated |
//! | `tables` | the format of the guest's tables |
//! | `remapping` | entries for interrupts |
//! | `faults` | what the guest is told of that went wrong |

mod descriptor;
mod faults;
mod registers;
mod remapping;
mod tables;
#[cfg(test)]
mod tests;

pub use registers::{BYTES, Page, Registers, WIDTH};
pub use remapping::{IOAPIC, Remapping};

use crate::follow::Following;
use crate::unit::{Fault, Step};
use crate::{Change, MESSAGES, Shape, Tables, Viommu};
use descriptor::Asked;
use faults::Faults;
use registers as at;
use tables::SecondLevel;
use window::Window;

/// Bytes of a descriptor, and descriptors of the smallest queue.
const DESCRIPTOR: u32 = 16;
const SMALLEST: u32 = 256;

/// What the guest is shown of such a shape: as many bits of addresses as keep it from those that
/// are reserved on some machines alone.
pub fn narrowed(shape: Shape) -> Shape {
    const NARROW: u64 = (1 << 39) - 1;
    let more = shape.reserved.iter().any(|range| *range != MESSAGES && range.first > NARROW);
    Shape { last: if more { shape.last.min(NARROW) } else { shape.last }, ..shape }
}

/// What the unit is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// A command, after which this is the status.
    Command(u32, u32),
    /// What a register asks for whose upper half is here, and what stands in it then.
    Register(usize, u32),
    /// The descriptor at the head of the queue.
    Descriptor,
}

/// The queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queue {
    base: u64,
    bytes: u32,
    /// The descriptor that is next, as an offset.
    head: u32,
}

/// The unit.
#[derive(Debug)]
pub struct Vtd {
    levels: u32,
    /// As the status register has it.
    status: u32,
    root: u64,
    queue: Queue,
    faults: Faults,
    remapping: Remapping,
    following: Following,
    job: Option<Job>,
    /// Routes are to follow before the job is over.
    reroutes: bool,
    /// Words of the guest's memory that were read.
    words: u64,
    /// Jobs that were done.
    finished: u32,
}

impl Vtd {
    /// As at power on, before these endpoints and domains. The page is to be reset, too.
    pub fn new(device: &Viommu) -> Vtd {
        Vtd {
            levels: (device.shape.last + 1).trailing_zeros() / 9 - 1,
            status: 0,
            root: 0,
            queue: Queue { base: 0, bytes: 0, head: 0 },
            faults: Faults::new(),
            remapping: Remapping::default(),
            following: Following::default(),
            job: None,
            reroutes: false,
            words: 0,
            finished: 0,
        }
    }

    /// The machine starts again: nothing is translated or remapped. The endpoints have left their
    /// domains ([`Viommu::change`]).
    pub fn reset(&mut self, device: &Viommu, page: Registers<'_>) {
        *self = Vtd::new(device);
        page.reset(self.levels);
    }

    /// How interrupts are remapped.
    pub fn remapping(&self) -> Remapping {
        self.remapping
    }

    /// The routes of all interrupts follow it.
    pub fn rerouted(&mut self) {
        self.reroutes = false;
    }

    /// How many words of the guest's memory were read since this was last asked.
    pub fn take_words(&mut self) -> u64 {
        core::mem::take(&mut self.words)
    }

    /// How many commands and descriptors were carried out since this was last asked.
    pub fn take_finished(&mut self) -> u32 {
        core::mem::take(&mut self.finished)
    }

    /// Tells the guest of what an endpoint tried, unless it translates nothing for it.
    pub fn record(&mut self, device: &Viommu, page: Registers<'_>, fault: Fault) {
        let id = device.shape.endpoints.get(fault.endpoint);
        let (Some(id), true) = (id, self.status & at::TRANSLATES != 0) else { return };
        let reason = match self.following.context(fault.endpoint) {
            Some(domain) if domain.bypass => return,
            Some(_) if fault.is_write => faults::NO_WRITE,
            Some(_) => faults::NO_READ,
            _ => faults::NO_CONTEXT,
        };
        self.faults.record(page, *id as u16, fault, reason);
    }

    /// The address and the data of the interrupt by which the guest is told of faults, if it is to
    /// be sent now. Entries of its own don't remap it.
    pub fn take_interrupt(&mut self, page: Registers<'_>) -> Option<(u64, u32)> {
        self.faults.take_interrupt(page)
    }

    /// Does a piece of work.
    #[inline(never)]
    pub fn step(
        &mut self,
        page: Registers<'_>,
        window: &Window,
        (device, tables): (&mut Viommu, &mut dyn Tables),
    ) -> Step {
        let Some(job) = self.job else { return self.begin(page, window, device, tables) };
        let on = (&mut *device, &mut *tables);
        if self.following.advance::<SecondLevel>(on, window, &mut self.words) {
            return Step::Worked;
        }
        if self.reroutes {
            return Step::Reroute;
        }
        self.finish(page, job);
        Step::Worked
    }

    /// The next job, if there is one.
    fn begin(
        &mut self,
        page: Registers<'_>,
        window: &Window,
        device: &mut Viommu,
        tables: &mut dyn Tables,
    ) -> Step {
        // Who writes there again and again pays for each look.
        if let Some(cleared) = page.cleared() {
            self.words += 1;
            self.faults.clear(page, cleared);
            return Step::Worked;
        }
        if page.may_unmask() {
            self.words += 1;
            self.faults.look_again(page);
            return Step::Worked;
        }
        let command = page.get(at::COMMAND);
        if command != at::TAKEN {
            self.command(page, command, (window, device, tables));
            return Step::Worked;
        }
        let context = page.get(at::CONTEXT_COMMAND + 4);
        if context & at::BUSY != 0 {
            // What was asked for is what was done (bits 62:61 and 60:59).
            let done = context & !(at::BUSY | 3 << 27) | (context >> 29 & 3) << 27;
            self.job = Some(Job::Register(at::CONTEXT_COMMAND + 4, done));
            self.look_at_contexts(window, device, tables);
            return Step::Worked;
        }
        let tlb = page.get(at::TLB + 4);
        if tlb & at::BUSY != 0 {
            // Bits 61:60 and 58:57; 0: nothing was done.
            let asked =
                descriptor::mappings((tlb >> 28 & 3).into(), tlb as u16, page.get64(at::ADDRESS));
            let granularity = if asked.is_some() { tlb >> 28 & 3 } else { 0 };
            let done = tlb & !(at::BUSY | 3 << 25) | granularity << 25;
            self.job = Some(Job::Register(at::TLB + 4, done));
            self.look_at(asked, device);
            return Step::Worked;
        }
        self.take(page, window, device, tables)
    }

    /// Does what the command register says.
    fn command(
        &mut self,
        page: Registers<'_>,
        command: u32,
        (window, device, tables): (&Window, &mut Viommu, &mut dyn Tables),
    ) {
        const KEPT: u32 = at::TRANSLATES | at::QUEUED | at::REMAPS | at::COMPATIBLE;
        let shots = command & (at::SET_ROOT | at::SET_REMAPPING);
        // Of a pointer that was set until the next command: a guest that sets another waits for
        // that one.
        let status = command & KEPT | shots;
        let changed = self.status ^ status;
        if command & at::SET_ROOT != 0 {
            self.root = page.get64(at::ROOT);
        }
        if command & at::SET_REMAPPING != 0 {
            self.remapping.table = page.get64(at::REMAPPING);
        }
        if changed & at::QUEUED != 0 {
            let queue = page.get64(at::QUEUE);
            let bytes = (SMALLEST * DESCRIPTOR) << (queue & 7);
            self.queue = Queue { base: queue & !0xFFF, bytes, head: 0 };
        }
        self.remapping.status = status;
        let remaps = at::REMAPS | at::COMPATIBLE;
        self.reroutes =
            changed & remaps != 0 || status & at::REMAPS != 0 && command & at::SET_REMAPPING != 0;
        self.status = self.status & !at::TRANSLATES | status & at::TRANSLATES;
        self.job = Some(Job::Command(command, status));
        if changed & at::TRANSLATES != 0 {
            let on = status & at::TRANSLATES != 0;
            device.change(tables, Change::Bypass(!on));
            self.look_at_contexts(window, device, tables);
        }
    }

    /// Takes the next descriptor of the queue.
    fn take(
        &mut self,
        page: Registers<'_>,
        window: &Window,
        device: &mut Viommu,
        tables: &mut dyn Tables,
    ) -> Step {
        let tail = page.get(at::QUEUE_TAIL);
        let Queue { base, bytes, head } = self.queue;
        let stands = self.status & at::QUEUED == 0 || self.faults.stops_queue();
        if stands || tail == head {
            // The guest may have written what it can't.
            page.put_right(self.levels, self.status, head);
            self.faults.show(page);
            return Step::Idle;
        }
        let place = base.checked_add(head.into());
        let span = place.and_then(|place| window.span(place, DESCRIPTOR.into()));
        let words = span.and_then(|span| span.load_u64_pair(0).ok());
        let fits = tail < bytes && tail.is_multiple_of(DESCRIPTOR);
        let asked = words.filter(|_| fits).and_then(descriptor::read);
        self.words += 2;
        match asked {
            Some(Asked::Contexts) => self.look_at_contexts(window, device, tables),
            Some(Asked::Mappings { .. }) => self.look_at(asked, device),
            Some(Asked::Interrupts) => self.reroutes = self.remapping.is_on(),
            Some(Asked::Wait(Some((to, word)))) => {
                let status = window.span(to, 4);
                // All before it is done: each job ends before the next begins.
                let _ = status.map(|status| status.store_u32_release(0, word));
            }
            Some(Asked::Wait(None)) => {}
            None => {
                self.faults.set_queue_error(page);
                return Step::Worked;
            }
        }
        self.job = Some(Job::Descriptor);
        // The frequent ones are over.
        if self.following.is_idle() && !self.reroutes {
            self.finish(page, Job::Descriptor);
        }
        Step::Worked
    }

    /// The job is done.
    fn finish(&mut self, page: Registers<'_>, job: Job) {
        self.job = None;
        match job {
            Job::Command(_, status) => self.status = status,
            Job::Register(..) => {}
            Job::Descriptor => {
                let next = self.queue.head + DESCRIPTOR;
                self.queue.head = if next < self.queue.bytes { next } else { 0 };
            }
        }
        self.finished += 1;
        if let Job::Command(command, _) = job {
            // Before the status: the guest goes on by that, and what it writes then is another.
            page.replace(at::COMMAND, command, at::TAKEN);
        }
        page.put_right(self.levels, self.status, self.queue.head);
        if let Job::Register(register, done) = job {
            page.set(register, done);
        }
    }

    /// Has each endpoint be in the domain that the guest's tables say, and walks through those that
    /// are new.
    fn look_at_contexts(&mut self, window: &Window, device: &mut Viommu, tables: &mut dyn Tables) {
        let on = self.status & at::TRANSLATES != 0;
        self.words += 3 * device.shape.endpoints.len() as u64;
        let (root, levels) = (self.root, self.levels);
        self.following.look_at_contexts(device, tables, &mut |id, _| {
            on.then(|| tables::context(window, root, id, levels)).flatten()
        });
    }

    /// Walks through what is asked for.
    fn look_at(&mut self, asked: Option<Asked>, device: &Viommu) {
        if let Some(Asked::Mappings { domain: id, first, last }) = asked {
            self.following.look_at(device, id, (first, last));
        }
    }
}
