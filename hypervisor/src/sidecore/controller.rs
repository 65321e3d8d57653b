//! An NVMe controller that a sidecore drives for the disks that are cut from it.
//!
//! Guarantees: it reaches the memory of the VMs that have such disks and its driver's own, by a
//! domain of its own, and sends no interrupt. One that doesn't stop when it is told to is taken out
//! of that domain before anything else is said to have failed.

use crate::cpu::{self, rdtsc};
use crate::iommu::{self, domain::HostDomain};
use crate::log_limit::OnceASecond;
use crate::pci::Pci;
use crate::sidecore::shutdown;
use crate::sidecore::taken::{Registers, Taken};
use crate::watchdog;
use ::iommu::Bdf;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nvme::{Abilities, Capabilities, Controller, MEMORY, Part, State, Times};
use plan::DeviceName;
use window::Span;

/// A controller, its domain and its disks.
pub struct Driven {
    /// As the plan names it.
    pub name: DeviceName,
    device: Bdf,
    pub controller: Controller<Registers>,
    domain: HostDomain,
    /// The places of its disks among the sidecore's devices.
    pub disks: Vec<usize>,
    told: OnceASecond,
    /// Its memory couldn't be taken from it.
    lost: bool,
    /// The machine's end needn't wait for it any more.
    is_over: bool,
}

impl Driven {
    /// Starts this one, with memory that `span` makes a view of. `domain`: a number that no other
    /// domain has. Boot only; the error is the end of a sentence.
    pub fn new(
        pci: &Pci,
        (name, device): (DeviceName, Bdf),
        domain: u16,
        span: impl FnOnce(u64, u64) -> Result<Span, String>,
    ) -> Result<Self, String> {
        let Taken { mut registers, size, memory, domain } =
            Taken::new(pci, device, domain, MEMORY)?;
        let capabilities = Capabilities(nvme::Registers::read64(&mut registers, 0));
        if u64::from(capabilities.bytes()) > size {
            return Err("its doorbells lie outside of its registers".into());
        }
        Taken::enable(pci, device);
        let times = Times::usual(cpu::tsc_hz());
        let controller = Controller::new(registers, span(memory, MEMORY)?, times, rdtsc());
        let controller = controller.ok_or("its memory isn't whole")?;
        let told = OnceASecond::default();
        let disks = Vec::new();
        let mut driven =
            Driven { name, device, controller, domain, disks, told, lost: false, is_over: false };
        driven.start()?;
        shutdown::expect_one();
        Ok(driven)
    }

    /// Until it runs. The driver bounds how long that may take.
    fn start(&mut self) -> Result<(), String> {
        while self.controller.state() == State::Starting {
            watchdog::feed();
            self.controller.step(rdtsc());
            self.controller.poll();
            core::hint::spin_loop();
        }
        match self.controller.state() {
            State::Dead(fault) | State::Unstopped(fault) => Err(fault.to_string()),
            State::Starting | State::Running | State::ShutDown => {
                if let Some(namespace) = self.controller.namespace() {
                    let (bytes, block) = (namespace.bytes(), namespace.block());
                    log::info!(
                        "{} ({}) is a sidecore's: {} MiB in blocks of {block} bytes",
                        self.name,
                        self.device,
                        bytes >> 20
                    );
                }
                Ok(())
            }
        }
    }

    /// What its disks can do.
    pub fn abilities(&self) -> Result<Abilities, String> {
        self.controller.abilities().ok_or_else(|| "its controller isn't ready".to_string())
    }

    /// Cuts a disk from it, for a VM with this memory: physical address, bytes. `device`: the
    /// disk's place among the sidecore's devices. Gives its number.
    pub fn cut(
        &mut self,
        part: Part,
        memory: impl Iterator<Item = (u64, u64)>,
        device: usize,
    ) -> Result<u16, String> {
        let name = self.name;
        let number = self.controller.add_disk(part).map_err(|e| format!("on {name}, {e}"))?;
        for (at, len) in memory {
            self.domain.map(at, len)?;
        }
        self.disks.push(device);
        Ok(number)
    }

    /// All disks are there: it may reach the memory of their VMs.
    pub fn finish(&self) -> Result<(), String> {
        self.domain.attach().map_err(|e| format!("{}: {e}", self.name))
    }

    /// What is due, in each round of the sidecore.
    #[inline]
    pub fn step(&mut self, now: u64) {
        self.controller.step(now);
        if shutdown::is_asked() && !self.is_over {
            self.shut_down();
        }
        if self.controller.state() != State::Running {
            self.not_running();
        }
    }

    #[cold]
    fn shut_down(&mut self) {
        self.is_over = self.controller.shut_down();
        if self.is_over {
            if let State::ShutDown = self.controller.state() {
                log::info!("{} ({}) is shut down", self.name, self.device);
            }
            shutdown::one_done();
        }
    }

    #[cold]
    fn not_running(&mut self) {
        if let State::Unstopped(_) = self.controller.state()
            && !self.lost
        {
            match iommu::detach(self.device) {
                Ok(()) => self.controller.cut_off(),
                Err(error) => {
                    // What its requests lead to stays theirs for good: their VMs can't restart.
                    self.lost = true;
                    log::error!("{} can't be cut off from memory: {error}", self.name);
                }
            }
        }
        if let Some(fault) = self.controller.take_fault()
            && self.told.claim(rdtsc())
        {
            let then = match self.controller.state() {
                State::Dead(_) => "given up",
                State::ShutDown => "left as it is",
                _ => "reset",
            };
            log::warn!("{} ({}) is {then}: {fault}", self.name, self.device);
        }
    }
}
