//! The guest's own IOMMU as an AMD-Vi unit (AMD IOMMU spec 48882): page tables of version 1, a
//! command buffer, an event log, interrupts remapped with 32-bit destinations. What the guest's
//! tables map is mapped in the real unit's by [`Viommu`], which doesn't know whose requests they
//! are.
//!
//! The unit says that it caches what isn't there (NpCache), so that a driver invalidates whatever
//! it maps or unmaps: then the unit looks at that in the guest's tables, and has the real ones be
//! the same there. Whoever runs it ([`AmdVi::step`]) sees in the registers that there is something
//! to do: a sidecore that polls them, or the exits of a guest that can only read them.
//!
//! Guarantees, whatever a guest writes, wherever:
//! - Those of [`Viommu`]. A device reaches nothing that the guest's tables don't map, once the
//!   COMPLETION_WAIT is over behind the invalidation. A new domain is led to when its tables are
//!   complete. A device whose entry isn't valid (V = 0) reaches the guest's memory, as the manual
//!   says.
//! - A step's work is bounded, and so is that of an invalidation. A domain of which that isn't
//!   enough, or for which there are no frames, is *blocked*: its devices reach nothing until all of
//!   it is invalidated, and fits.
//! - Commands are done one by one, in their order. The control register counts from when the unit
//!   has seen it change, before the next command; the base registers whenever something is read or
//!   written there. So a driver that has the unit run a buffer or a log says first where it is.
//!   Messages go by the device table that was there at the last command about interrupts.
//! - Nothing panics, nothing is allocated once it is made.
//!
//! Doesn't guarantee: that a guest is told of interrupts that were blocked, or of tables that
//! aren't in its memory, or that SE and SA are obeyed. There is no exclusion range, no page of
//! which a part lies outside of the guest's memory, and no passing through by which reads alone
//! pass, or writes: that is blocked. While a domain's tables change to others, as where they grow
//! by a level, its devices reach nothing.
//!
//! | file | is |
//! |---|---|
//! | `mod` | the unit: what it does next |
//! | `registers` | the registers |
//! | `command` | what may be asked for |
//! | `device` | the device table, the format of page tables |
//! | `remapping` | entries for interrupts |
//! | `events` | what the guest is told of that went wrong |

mod command;
mod device;
mod events;
mod registers;
mod remapping;
#[cfg(test)]
mod tests;

pub use registers::{BYTES, CAPABILITY, Page, Registers, extended_features};
pub use remapping::{IOAPIC, Remapping};

use crate::follow::Following;
use crate::unit::{Fault, Notice, Step};
use crate::walk::{id, rights};
use crate::{Change, Domain, Shape, Tables, Viommu};
use command::Asked;
use device::{Dma, HostTables};
use events::{Event, Events};
use registers as at;
use window::Window;

/// Bits of an address that the guest is told of, virtual or in its memory.
pub const WIDTH: u8 = 48;
/// Bytes of a command.
const COMMAND: u32 = 16;

/// What the guest is shown of such a shape: all of it. A driver knows what AMD's units take for
/// HyperTransport's own.
pub fn narrowed(shape: Shape) -> Shape {
    shape
}

/// What the unit is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// The control register, as it stands there.
    Control(u64),
    /// The command at this place, with the one that is next.
    Command(u32, u32),
}

/// The unit.
#[derive(Debug)]
pub struct AmdVi {
    /// The control register, as far as the unit goes by it.
    control: u64,
    /// And the device table's, when entries for interrupts were last looked at.
    remapping: Remapping,
    events: Events,
    following: Following,
    job: Option<Job>,
    /// Routes are to follow before the job is over.
    reroutes: bool,
    /// Words of the guest's memory that were read.
    words: u64,
    /// Jobs that were done.
    finished: u32,
}

impl AmdVi {
    /// As at power on, before these endpoints and domains. The page is to be reset, too.
    pub fn new(_: &Viommu) -> AmdVi {
        AmdVi {
            control: 0,
            remapping: Remapping::default(),
            events: Events::default(),
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
        *self = AmdVi::new(device);
        page.reset();
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

    /// How many commands were carried out since this was last asked, and changes of the control
    /// register.
    pub fn take_finished(&mut self) -> u32 {
        core::mem::take(&mut self.finished)
    }

    /// Tells the guest of what an endpoint tried, unless it translates nothing for it.
    pub fn record(&mut self, device: &Viommu, page: Registers<'_>, window: &Window, fault: Fault) {
        let source = device.shape.endpoints.get(fault.endpoint);
        let (Some(source), true) = (source, self.control & at::ENABLE != 0) else { return };
        let (source, address) = (*source as u16, fault.address & !0xFFF);
        let (writes, needs) = if fault.is_write { (events::WRITES, 2) } else { (0, 1) };
        let event = match self.following.context(fault.endpoint) {
            Some(domain) if domain.bypass => return,
            Some(Domain { number, .. }) => {
                let may = rights::<HostTables>(window, number, device.shape.last, address);
                let lacks = may != 0 && may & needs == 0;
                let why = if lacks { events::PRESENT | events::FORBIDDEN } else { 0 };
                Event::PageFault(source, id(number), writes | why, address)
            }
            None => match device::dma(window, page.get64(at::DEVICE_TABLE), source) {
                Dma::Illegal => Event::IllegalDevice(source, writes, address),
                Dma::Blocked(id) => Event::PageFault(source, id, writes, address),
                Dma::In(domain) => Event::PageFault(source, id(domain.number), writes, address),
            },
        };
        self.events.log(page, window, self.control, event);
    }

    /// The interrupt by which the guest is told of events, if it is to be sent now. Entries of its
    /// own don't remap it.
    pub fn take_interrupt(&mut self, page: Registers<'_>) -> Option<Notice> {
        self.events.take_interrupt(page, self.control)
    }

    /// One was posted to a guest of the guest's that isn't at a CPU, which is logged by this tag.
    pub fn log_posted(&mut self, page: Registers<'_>, window: &Window, tag: u32) {
        self.events.log_posted(page, window, self.control, tag);
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
        if self.following.advance::<HostTables>(on, window, &mut self.words) {
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
        if self.events.follow_clears(page, self.control) {
            self.words += 1;
            return Step::Worked;
        }
        if let Some(control) = page.changed() {
            self.words += 1;
            self.switch(page, control, (window, device, tables));
            return Step::Worked;
        }
        if self.events.commands_run() {
            return self.take(page, window, device, tables);
        }
        if page.fetches(self.control) {
            // The guest has written another head, where there was an error.
            self.words += 1;
            self.events.set_fetching(page, true);
            return Step::Worked;
        }
        Step::Idle
    }

    /// Goes by another control register.
    fn switch(
        &mut self,
        page: Registers<'_>,
        control: u64,
        (window, device, tables): (&Window, &mut Viommu, &mut dyn Tables),
    ) {
        const REMAPS: u64 = at::ENABLE | at::WIDE_ENTRIES | at::X2APIC;
        let changed = self.control ^ control;
        self.job = Some(Job::Control(control));
        page.set_busy(true);
        if changed & at::FETCHES & control != 0 {
            // It begins where the guest says.
            let head = page.get(at::COMMAND_HEAD);
            page.move_head(head, head & !at::STOPPED);
        }
        let devices = page.get64(at::DEVICE_TABLE);
        let remapping = Remapping { control, devices, posts: page.posts() };
        if changed & REMAPS != 0 && (self.control | control) & at::ENABLE != 0 {
            self.remapping = remapping;
            self.reroutes = true;
        }
        if changed & at::ENABLE != 0 {
            let on = control & at::ENABLE != 0;
            device.change(tables, Change::Bypass(!on));
            self.look_at_devices(page, on, None, (window, device, tables));
        }
    }

    /// Takes the next command.
    fn take(
        &mut self,
        page: Registers<'_>,
        window: &Window,
        device: &mut Viommu,
        tables: &mut dyn Tables,
    ) -> Step {
        let (head, tail) = (page.get(at::COMMAND_HEAD), page.get(at::COMMAND_TAIL));
        if head == tail {
            return Step::Idle;
        }
        self.words += 2;
        let register = page.get64(at::COMMANDS);
        let Some((base, bytes)) = at::ring(register) else {
            return self.stop(page, window, head, Event::CommandError(register & !0xFFF));
        };
        let place = base.saturating_add(head.into());
        let fits = |offset: u32| offset < bytes && offset.is_multiple_of(COMMAND);
        let span = window.span(place, COMMAND.into()).filter(|_| fits(head) && fits(tail));
        let Some(words) = span.and_then(|span| span.load_u64_pair(0).ok()) else {
            return self.stop(page, window, head, Event::CommandError(place));
        };
        let all = (window, &mut *device, &mut *tables);
        match command::read(words) {
            Some(Asked::Wait { store, interrupts }) => {
                if let Some((to, word)) = store {
                    // All before it is done: each job ends before the next begins.
                    let stored = window.span(to, 8).map(|span| span.store_u64_release(0, word));
                    if !matches!(stored, Some(Ok(()))) {
                        return self.stop(page, window, head, Event::CommandError(to));
                    }
                }
                if interrupts {
                    self.events.waited(page, self.control);
                }
            }
            Some(Asked::Device(id)) => {
                self.look_at_devices(page, true, Some(id), all);
                self.reroute(page);
            }
            Some(Asked::Mappings { domain, first, last }) => {
                self.following.look_at(device, Some(domain), (first, last));
            }
            Some(Asked::Interrupts) => self.reroute(page),
            Some(Asked::All) => {
                self.look_at_devices(page, true, None, all);
                self.following.look_at(device, None, (0, u64::MAX));
                self.reroute(page);
            }
            Some(Asked::Nothing) => {}
            None => return self.stop(page, window, head, Event::IllegalCommand(place)),
        }
        let job = Job::Command(head, (head + COMMAND) & (bytes - 1));
        self.job = Some(job);
        // The frequent ones are over.
        match self.following.is_idle() && !self.reroutes {
            true => self.finish(page, job),
            false => page.set_busy(true),
        }
        Step::Worked
    }

    /// Commands aren't fetched any more: the guest is told of it, and may say where to go on.
    fn stop(&mut self, page: Registers<'_>, window: &Window, head: u32, event: Event) -> Step {
        page.move_head(head, head | at::STOPPED);
        self.events.set_fetching(page, false);
        self.events.log(page, window, self.control, event);
        self.finished += 1;
        Step::Worked
    }

    /// The job is done.
    fn finish(&mut self, page: Registers<'_>, job: Job) {
        self.job = None;
        self.finished += 1;
        page.put_right();
        page.set_busy(false);
        match job {
            Job::Control(wanted) => {
                let control = page.take_control(wanted);
                self.events.follow_control(page, self.control, control);
                self.control = control;
            }
            Job::Command(head, next) => page.move_head(head, next),
        }
    }

    /// Entries for interrupts may have changed.
    fn reroute(&mut self, page: Registers<'_>) {
        self.remapping.devices = page.get64(at::DEVICE_TABLE);
        self.reroutes = true;
    }

    /// Has each endpoint, or that of this id, be in the domain that the device table says.
    fn look_at_devices(
        &mut self,
        page: Registers<'_>,
        on: bool,
        only: Option<u16>,
        (window, device, tables): (&Window, &mut Viommu, &mut dyn Tables),
    ) {
        self.words += 2 * device.shape.endpoints.len() as u64;
        let table = page.get64(at::DEVICE_TABLE);
        self.following.look_at_contexts(device, tables, &mut |id, now| match only {
            Some(only) if u32::from(only) != id => now,
            _ => on.then(|| device::dma(window, table, id as u16).domain()).flatten(),
        });
    }
}
