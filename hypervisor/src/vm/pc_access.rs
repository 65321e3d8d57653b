//! How a vCPU comes into the PC that it shares: the lock, and accesses to the devices on the bus.
//!
//! Guarantees: while a vCPU waits to come in it answers what the one inside asks of it.

use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::devices::bus_map::Target;
use crate::vm::ending::Cause;
use crate::vm::exit_context::ExitContext;
use crate::vm::pc::Pc;
use crate::vm::stop::{Incident, Stop};
use ledger::Reason;
use spin::MutexGuard;
use virtual_pc::pci::Actions;
use virtual_pc::ports;
use virtual_pc::unanswered::Place;

impl<C: VirtualCpu> Vcpu<C> {
    /// Does something with the PC.
    pub(super) fn with_pc<R>(&mut self, f: impl FnOnce(&mut Pc, &mut ExitContext) -> R) -> R {
        let mut cx = ExitContext::new(&self.vm.guest, self.id);
        let vm = self.vm;
        let mut pc = match vm.pc.try_lock() {
            Some(pc) => pc,
            None => self.await_pc(),
        };
        let result = f(&mut pc, &mut cx);
        drop(pc);
        if cx.flushes() || cx.leaves_eli() {
            self.do_rest(&cx);
        }
        result
    }

    /// What was left to do for this vCPU.
    #[cold]
    #[inline(never)]
    fn do_rest(&mut self, cx: &ExitContext) {
        if cx.flushes() {
            self.cpu.flush_translations();
        }
        if cx.leaves_eli() {
            self.leave_eli();
        }
    }

    /// Another vCPU is in the PC: lets those that share this core have their time slices, and
    /// answers what the one inside may wait for.
    #[cold]
    #[inline(never)]
    fn await_pc(&mut self) -> MutexGuard<'static, Pc> {
        loop {
            self.yield_to_lock_holder();
            self.answer();
            core::hint::spin_loop();
            if let Some(pc) = self.vm.pc.try_lock() {
                return pc;
            }
        }
    }

    /// The guest's read of a port.
    pub(super) fn read_port(&mut self, port: u16, size: u8) -> u32 {
        let nothing = ports::unclaimed(size);
        let Some(target) = self.vm.bus.port(port, size) else { return nothing };
        self.with_pc(|pc, cx| match pc.device(target.device) {
            Some((device, board)) => device.read_port(board, cx, port, size),
            None => nothing,
        })
    }

    /// The guest's write of a port.
    pub(super) fn write_port(&mut self, port: u16, size: u8, value: u32) -> Result<(), Stop> {
        let Some(target) = self.vm.bus.port(port, size) else { return Ok(()) };
        self.with_pc_and_resets(|pc, cx| match pc.device(target.device) {
            Some((device, board)) => device.write_port(board, cx, port, size, value),
            None => Ok(()),
        })
    }

    /// The guest's load of at most 8 bytes from where it has no memory.
    pub(super) fn load(&mut self, address: u64, size: u8) -> u64 {
        if self.serves
            && let Some(value) = self.load_inner_apic(address, size)
        {
            return value;
        }
        if let Some(register) = self.apic_register(address) {
            return self.load_apic(register, size);
        }
        let target = self.vm.bus.memory(address);
        let found = self.with_pc(|pc, cx| {
            let found = target.and_then(|target| {
                let (device, board) = pc.device(target.device)?;
                device.load(board, cx, address, size)
            });
            if found.is_none() {
                pc.board_mut().note(Incident::Memory(address));
            }
            found
        });
        found.unwrap_or_else(|| {
            self.note_unanswered(Place::Memory(address), false);
            u64::MAX
        })
    }

    /// The reason that an access at `address`, where the guest has no memory, counts as.
    pub(super) fn reason_at(&self, address: u64) -> Reason {
        match self.apic_register(address) {
            Some(_) => Reason::ApicPage,
            None => reason_of(self.vm.bus.memory(address)),
        }
    }

    /// The offset of an address in the page of the local APIC, which is the vCPU's own.
    fn apic_register(&self, address: u64) -> Option<u16> {
        (self.apic.page() == Some(address & !0xFFF)).then_some((address & 0xFFF) as u16)
    }

    /// The guest's store of at most 8 bytes to where it has no memory; gives what it counts as.
    pub(super) fn store(&mut self, address: u64, size: u8, value: u64) -> Result<Reason, Stop> {
        if self.serves && self.store_inner_apic(address, size, value) {
            return Ok(Reason::ApicPage);
        }
        if let Some(register) = self.apic_register(address) {
            return Ok(self.store_apic(register, size, value));
        }
        let target = self.vm.bus.memory(address);
        let mut answered = true;
        let done = self.with_pc_and_resets(|pc, cx| {
            let done = target.and_then(|target| {
                let (device, board) = pc.device(target.device)?;
                device.store(board, cx, address, size, value)
            });
            done.unwrap_or_else(|| {
                pc.board_mut().note(Incident::Memory(address));
                answered = false;
                Ok(())
            })
        });
        if !answered {
            self.note_unanswered(Place::Memory(address), true);
        }
        done.map(|()| reason_of(target))
    }

    /// Input for a device of the guest's has arrived.
    pub(super) fn device_input(&mut self) {
        if let Err(fault) = self.with_pc(|pc, cx| pc.input(cx)) {
            let stop = Stop::Fault(fault);
            self.vm.end(Cause { stop, vcpu: self.id, rip: self.cpu.rip() });
        }
    }

    /// Does something with the PC, and then the reset of a device that follows from it.
    fn with_pc_and_resets(
        &mut self,
        f: impl FnOnce(&mut Pc, &mut ExitContext) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let mut reset = None;
        self.with_pc(|pc, cx| {
            let done = f(pc, cx);
            reset = cx.take_reset();
            done
        })?;
        reset.map_or(Ok(()), |(index, actions)| self.reset_and_follow(index, actions))
    }

    #[cold]
    #[inline(never)]
    fn reset_and_follow(&mut self, index: usize, actions: Actions) -> Result<(), Stop> {
        self.reset_device(index);
        let follow = |pc: &mut Pc, cx: &mut ExitContext| pc.follow(cx, index, actions);
        self.with_pc(follow).map_err(Stop::Fault)
    }

    /// Resets a device. The VM's lock is free while that takes its time, and the core too if others
    /// share it.
    pub(super) fn reset_device(&mut self, index: usize) {
        let Some(mut reset) = self.with_pc(|pc, _| pc.pci_mut().begin_reset(index)) else { return };
        while let Some(us) = self.with_pc(|pc, _| pc.pci().step_reset(&mut reset)) {
            self.sleep(us);
        }
        self.with_pc(|pc, _| pc.pci_mut().end_reset(index));
    }
}

/// The reason that an access counts as, by the device that answers, or none.
fn reason_of(target: Option<Target>) -> Reason {
    target.map_or(Reason::NestedPageFault, |target| target.reason)
}
