//! A network controller that a sidecore drives as a switch's uplink.
//!
//! Guarantees: it reaches its driver's buffers and rings, by a domain of its own, no memory of any
//! VM, and sends no interrupt. In one look it brings a bounded number of frames. One that fails is
//! cut off from that memory, too, and its switch goes on without it.

use crate::cpu::{self, rdtsc};
use crate::iommu;
use crate::log_limit::OnceASecond;
use crate::memory::{PAGE, allocate};
use crate::pci::Pci;
use crate::sidecore::shutdown;
use crate::sidecore::taken::{Registers, Taken};
use crate::watchdog;
use ::iommu::Bdf;
use alloc::string::{String, ToString};
use core::fmt::Display;
use igb::{Controller, HANG, MEMORY, QUEUES, REGISTERS, State, Task};
use net::{Finish, Leaving, PortNumber, Switch, UPLINK_MEMORY};
use plan::DeviceName;
use window::Span;

/// Frames that are taken from it in one look.
const FRAMES: u32 = 32;
/// What they may cost in a pass, in bytes as a switch charges them: one to many ports costs much.
const COST: u64 = 64 << 10;

/// A controller at its port.
pub struct Uplink {
    /// As the plan names it.
    name: DeviceName,
    device: Bdf,
    controller: Controller<Registers>,
    port: PortNumber,
    /// What the switch knows of the link.
    link: bool,
    given_up: bool,
    /// Resets that were told of.
    hung: u64,
    /// At the machine's end what it did was told.
    is_over: bool,
    told: OnceASecond,
}

impl Uplink {
    /// Starts this one at a port of the switch's, with memory that `span` makes views of. `domain`:
    /// a number that no other domain has. Boot only; the error is the end of a sentence.
    pub fn new(
        pci: &Pci,
        (name, device): (DeviceName, Bdf),
        domain: u16,
        switch: &mut Switch,
        span: impl Fn(u64, u64) -> Result<Span, String>,
    ) -> Result<Self, String> {
        let taken = Taken::new(pci, device, domain, MEMORY)?;
        if taken.size < REGISTERS {
            return Err("it has too few registers".into());
        }
        Taken::enable(pci, device);
        let memory = span(taken.memory, MEMORY)?;
        let millisecond = cpu::tsc_hz() / 1000;
        let controller = Controller::new(taken.registers, memory, millisecond, rdtsc());
        let mut controller = controller.ok_or("its memory isn't whole")?;
        while controller.state() == State::Starting {
            watchdog::feed();
            controller.step(rdtsc());
            core::hint::spin_loop();
        }
        if let State::Dead(fault) = controller.state() {
            return Err(fault.to_string());
        }
        // On their way to it: the switch's memory, not the controller's.
        let frames = allocate(UPLINK_MEMORY, PAGE);
        let frames = span(frames.ok_or("no memory is left for its frames")?, UPLINK_MEMORY)?;
        let port =
            switch.add_uplink(frames, Finish::ByController).map_err(|error| error.to_string())?;
        let (link, given_up, told) = (false, false, OnceASecond::default());
        shutdown::expect_one();
        let (hung, is_over) = (0, false);
        Ok(Uplink { name, device, controller, port, link, given_up, hung, is_over, told })
    }

    /// What is due in each round of the sidecore: frames that arrived go to their receivers. True:
    /// there were some. `ticks` and `now` are one moment, by the TSC and by the switch's clock.
    #[inline]
    pub fn look(&mut self, switch: &mut Switch, ticks: u64, now: u64) -> bool {
        self.controller.step(ticks);
        if self.controller.link() != self.link || self.is_dead() {
            self.changed(switch);
        }
        if shutdown::is_asked() && !self.is_over {
            self.report();
        }
        let Some(inbox) = switch.inbox(self.port) else { return false };
        let (mut some, mut cost) = (false, 0);
        for _ in 0..FRAMES {
            let Some(bytes) = self.controller.receive(&inbox) else { break };
            cost += switch.arrived(self.port, bytes, now).charge;
            some = true;
            if cost >= COST {
                break;
            }
        }
        // Also if all that came was bad: its buffers are given back.
        self.controller.flush();
        some
    }

    /// Sends what the switch has for the wire.
    #[inline]
    pub fn send(&mut self, switch: &mut Switch) {
        let mut some = false;
        while let Some(frame) = switch.leaving(self.port) {
            // Each sender has a queue, as far as they last: none takes all of another's room.
            some |= self.controller.send(frame.sender, &frame.parts, task(&frame));
        }
        if some {
            self.controller.flush();
        }
    }

    #[cold]
    fn report(&mut self) {
        self.is_over = true;
        let (name, device, counts) = (self.name, self.device, self.controller.statistics());
        let queues = |used: u32| (used & 0xFFFF).count_ones();
        log::info!(
            "{name} ({device}) has sent {} frames by {} of {QUEUES} queues, made the checksums of {} and cut {}; has received {} by {} of {QUEUES}, {} bad; was reset {} times",
            counts.sent,
            queues(counts.used >> 16),
            counts.summed,
            counts.cut,
            counts.received,
            queues(counts.used),
            counts.bad,
            counts.hung
        );
        shutdown::one_done();
    }

    fn is_dead(&self) -> bool {
        matches!(self.controller.state(), State::Dead(_)) && !self.given_up
    }

    #[cold]
    fn changed(&mut self, switch: &mut Switch) {
        self.link = self.controller.link();
        switch.set_link(self.port, self.link);
        let (name, device) = (self.name, self.device);
        if self.is_dead() {
            self.given_up = true;
            if let Err(error) = iommu::detach(device) {
                log::error!("{name} can't be cut off from memory: {error}");
            }
        }
        let counts = self.controller.statistics();
        if counts.hung != core::mem::replace(&mut self.hung, counts.hung) && !self.given_up {
            log::warn!("{name} ({device}) had frames and sent none for {HANG} ms: it is reset");
        }
        let state = self.controller.state();
        let state: &dyn Display = match &state {
            State::Dead(fault) => fault,
            _ if self.link => &"its link is up",
            _ => &"its link is down",
        };
        if self.given_up || self.told.claim(rdtsc()) {
            log::info!(
                "{name} ({device}): {state}; received {} frames, {} bad; sent {}, dropped {}",
                counts.received,
                counts.bad,
                counts.sent,
                counts.unsent
            );
        }
    }
}

/// What the controller is to do for a frame.
fn task(&Leaving { ethernet, task, .. }: &Leaving) -> Task {
    match task {
        net::Task::Nothing => Task::Nothing,
        net::Task::Checksum { start, tcp } => Task::Checksum { ethernet, start, tcp },
        net::Task::Segments { start, six, headers, size } => {
            Task::Segments { ethernet, start, six, headers, size }
        }
    }
}
