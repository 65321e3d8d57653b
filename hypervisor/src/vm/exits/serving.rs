//! What an inner guest does that the guest lets it do, and that exits for whoever does it: it is
//! done as the guest's own, with the inner guest's registers and memory.
//!
//! Guarantees: nothing that the inner guest executes, or has meanwhile put in the place of it, ends
//! the VM where the guest's own wouldn't at ring 3; each byte that is accessed for it is one that
//! its own tables and the guest's let it access.

use crate::cpu::vendor::{Exit, Inner, VirtualCpu};
use crate::vm::Vcpu;
use crate::vm::exits::physical::{Addresses, Physical};
use crate::vm::stop::{Fault, Stop};
use ledger::Reason;

impl<C: VirtualCpu> Vcpu<C> {
    /// The physical memory of what runs.
    #[inline]
    pub(in crate::vm) fn physical(&self) -> Physical<'_> {
        let inner = self.serves.then_some(&self.cpu as &dyn Addresses);
        Physical::within(&self.vm.guest.memory, inner)
    }

    /// Mustn't what it executes end the VM?
    #[inline]
    pub(super) fn is_confined(&self) -> bool {
        self.serves || self.cpu.privilege() == 3
    }

    /// The instruction that exited isn't there any more: the CPU executes what is.
    #[cold]
    #[inline(never)]
    pub(super) fn execute_again(&mut self) {
        if self.serves {
            self.cpu.inner_again();
        }
    }

    /// After [`Inner::Own`] and [`Inner::Elsewhere`]: does it. True: the guest goes on.
    #[cold]
    #[inline(never)]
    pub(super) fn serve_inner(&mut self, inner: &Inner) -> Result<(Reason, bool), (Reason, Stop)> {
        let reason = match *inner {
            Inner::Elsewhere(at) => self.inner_elsewhere(at)?,
            Inner::Own(exit) => self.serve_exit(exit)?,
            _ => Reason::Other,
        };
        if !self.cpu.runs_inner() {
            return Ok((Reason::NestedReflected, true));
        }
        Ok((reason, self.cpu.inner_injects() && self.interrupt_inner()))
    }

    /// The inner guest used an address of the guest's that isn't memory. What changes the guest's
    /// tables from here on has every vCPU flush before it goes on, this one before it enters.
    fn inner_elsewhere(&mut self, at: u64) -> Result<Reason, (Reason, Stop)> {
        let registers = self.with_pc(|pc, _| pc.registers_at(at));
        match self.cpu.inner_registers(at, registers) {
            Inner::Own(exit) => self.serve_exit(exit),
            _ => Ok(Reason::NestedFill),
        }
    }

    fn serve_exit(&mut self, exit: Exit) -> Result<Reason, (Reason, Stop)> {
        self.serves = true;
        let done = self.serve(exit);
        self.serves = false;
        self.cpu.served(&self.vm.guest.memory);
        done
    }

    fn serve(&mut self, exit: Exit) -> Result<Reason, (Reason, Stop)> {
        match exit {
            Exit::Io { access, string, next } => return self.port_io(access, string, next),
            Exit::MsrRead => return Ok(self.read_msr()),
            Exit::MsrWrite => return Ok(self.write_msr()),
            Exit::Cpuid => {
                self.cpuid();
                return Ok(Reason::Cpuid);
            }
            Exit::Xsetbv => {
                self.xsetbv();
                return Ok(Reason::Xsetbv);
            }
            Exit::FlushCaches => self.flush_caches(),
            Exit::ControlLoad => match self.load_control() {
                Err(Fault::Unreadable { .. } | Fault::Instruction { .. }) => self.execute_again(),
                done => done.map_err(|fault| (Reason::Other, Stop::Fault(fault)))?,
            },
            Exit::NestedFault { address, fetch, table, event } => {
                return self.nested_fault(address, fetch, table, event);
            }
            _ => return self.nesting(),
        }
        Ok(Reason::Other)
    }
}
