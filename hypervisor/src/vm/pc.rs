//! What the vCPUs of a VM share of their PC: the emulated devices, the assigned ones, and the
//! tables that say what is where in guest-physical memory.
//!
//! Guarantees: one vCPU at a time is in here, and while another waits to come in it answers what
//! the one inside asks of it, so that the one inside may wait for the others' translations to be
//! flushed. No other VM ever waits for this lock, nor does core 0, which takes it if it is free to look
//! at one entry (`audit`).

use crate::console;
use crate::cpu::rdtsc;
use crate::cpu::vendor::VirtualCpu;
use crate::pci::Pci;
use crate::sched::shared::Yield;
use crate::vm::Vcpu;
use crate::vm::Vm;
use crate::vm::devices::assigned::Device;
use crate::vm::interrupts::shadow::Shadows;
use crate::vm::memory::Tables;
use crate::vm::stop::Fault;
use crate::vm::stop::Incident;
use alloc::vec::Vec;
use platform::ioapic::Ioapic;
use platform::message::Message;
use platform::pci::{Actions, Bus};
use platform::rtc::Rtc;
use platform::uart::Uart;
use proto::Policy;

/// IOAPIC pin of the console.
const CONSOLE_PIN: usize = 4;

/// The shared parts of the PC.
pub struct Pc {
    pub tables: Tables,
    pub shadows: Shadows,
    pub uart: Uart,
    /// A byte for the console that it had no room for yet.
    pub console_input: Option<u8>,
    pub ioapic: Ioapic,
    pub rtc: Rtc,
    pub bus: Bus,
    pub devices: Vec<Device>,
    pub pci: Pci,
    /// The last thing refused to the guest while it went on.
    pub incident: Option<Incident>,
}

/// The vCPU that is in the PC, and what that leaves for it to do when it is out.
pub struct Here {
    pub vm: &'static Vm,
    pub me: usize,
    /// To drop its own cached translations.
    pub flush: bool,
    /// To leave direct mode.
    pub unshadow: bool,
    /// To reset this device, and then to follow what else was written.
    pub reset: Option<(usize, Actions)>,
}

impl Here {
    /// Has every vCPU drop its cached translations before it uses one again.
    pub fn flush_all(&mut self) {
        self.flush = true;
        self.vm.settle(self.me, u64::MAX, crate::vm::interrupts::mailbox::request::FLUSH);
    }
}

impl<C: VirtualCpu> Vcpu<C> {
    /// Does something with the PC.
    pub(super) fn with_pc<R>(&mut self, f: impl FnOnce(&mut Pc, &mut Here) -> R) -> R {
        let mut here =
            Here { vm: self.vm, me: self.id, flush: false, unshadow: false, reset: None };
        let vm = self.vm;
        let mut pc = loop {
            match vm.pc.try_lock() {
                Some(pc) => break pc,
                None => self.await_pc(),
            }
        };
        let result = f(&mut pc, &mut here);
        drop(pc);
        if here.flush {
            self.cpu.flush_translations();
        }
        if here.unshadow {
            self.leave_shadow();
        }
        result
    }

    /// Another vCPU is in the PC: lets those that share this core have their turn, and answers what
    /// the one inside may wait for.
    fn await_pc(&mut self) {
        if let Some((core, place)) = self.seat()
            && core.is_current(place)
            && core.turn_is_over(rdtsc())
        {
            self.give_way(core, place, Yield::Ready);
        }
        self.answer();
        core::hint::spin_loop();
    }

    /// Follows a write to a configuration register of the PC's.
    pub(super) fn configure(
        &mut self,
        f: impl FnOnce(&mut Pc, &mut Here) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut reset = None;
        self.with_pc(|pc, here| {
            let done = f(pc, here);
            reset = here.reset.take();
            done
        })?;
        let Some((index, actions)) = reset else { return Ok(()) };
        self.reset_device(index);
        self.with_pc(|pc, here| pc.follow_on(here, index, actions))
    }

    /// Resets a device. The VM's lock is free while that takes its time, and the core too if others
    /// share it.
    pub(super) fn reset_device(&mut self, index: usize) {
        let Some(mut reset) = self.with_pc(|pc, _| pc.begin_reset(index)) else { return };
        while let Some(us) = self.with_pc(|pc, _| reset.step(&pc.pci)) {
            self.linger(us);
        }
        self.with_pc(|pc, _| pc.end_reset(index));
    }

    pub(super) fn note_incident(&mut self, incident: Incident) {
        self.with_pc(|pc, _| pc.incident = Some(incident));
    }
}

impl Vm {
    /// The vCPU an interrupt message is for: the first of those it names.
    pub fn receiver(&self, message: &Message) -> Option<usize> {
        let count = self.links.len();
        match message.destination {
            // An IOAPIC or MSI destination has eight bits, of which all ones is everybody; in
            // logical mode they are the members of cluster 0.
            0xFF => Some(0),
            set if message.logical => (0..count.min(8)).find(|id| set >> id & 1 != 0),
            id => Some(id as usize).filter(|id| *id < count),
        }
    }

    /// Delivers a message of an emulated device.
    pub fn deliver(&self, message: &Message) {
        if let Some(target) = self.receiver(message) {
            self.interrupt(target, message.vector);
        }
    }
}

impl Pc {
    /// Turns an edge of the console's interrupt line into an interrupt. To be called after
    /// whatever may have moved the line.
    pub fn raise_console(&mut self, vm: &Vm) {
        if self.uart.take_edge()
            && let Some(message) = self.ioapic.raise(CONSOLE_PIN)
        {
            vm.deliver(&message);
            if vm.policy == Policy::Direct {
                // The guest's EOI isn't seen there. The line is a pulse: nothing is lost.
                self.ioapic.eoi(message.vector);
            }
        }
    }

    /// Gives the console what has arrived for it, as far as it has room.
    pub fn feed_console(&mut self, vm: &Vm) {
        while let Some(byte) = self.console_input.take().or_else(|| console::guest_input(vm.index))
        {
            if !self.uart.push_input(byte) {
                self.console_input = Some(byte);
                break;
            }
        }
        self.raise_console(vm);
    }

    /// A guest store to the IOAPIC.
    pub fn write_ioapic(&mut self, vm: &Vm, offset: u32, value: u32) {
        for message in self.ioapic.write(offset, value) {
            vm.deliver(&message);
        }
    }
}
