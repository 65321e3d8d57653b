//! What an inner guest does that the guest lets it do, and that exits for whoever does it: it is
//! done as the guest's own, with the inner guest's registers and memory.
//!
//! Guarantees: nothing that the inner guest executes, or has meanwhile put in the place of it, ends
//! the VM where the guest's own wouldn't at ring 3; each byte that is accessed for it is one that
//! its own tables and the guest's let it access.

use crate::cpu::vendor::{ApicAnswer, Exit, Inner, VirtualCpu};
use crate::vm::Vcpu;
use crate::vm::exits::physical::{Addresses, Physical};
use crate::vm::stop::{Fault, Stop};
use ledger::Reason;

/// Where an inner guest's local APIC has its registers in memory, as they are served.
const APIC_PAGE: u64 = 0xFEE0_0000;
/// A register that is always there.
const ID: u8 = 2;

/// The register that an address is of, and the byte in its sixteen.
fn place(address: u64) -> Option<(u8, u64)> {
    let offset = address.wrapping_sub(APIC_PAGE);
    (offset < 4096).then_some(((offset >> 4) as u8, offset & 0xF))
}

fn ones(size: u8) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))
}

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

    /// Is the guest told of an access of the inner guest's to its local APIC?
    #[inline]
    pub(super) fn tells_guest(&self) -> bool {
        self.serves && self.cpu.inner_is_told()
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

    /// The inner guest's load of its local APIC's registers, if it has them in memory.
    pub(in crate::vm) fn load_inner_apic(&mut self, address: u64, size: u8) -> Option<u64> {
        let (register, within) = place(address)?;
        match self.cpu.inner_apic(register, None, true)? {
            ApicAnswer::Value(value) if within < 4 => Some(value >> (8 * within) & ones(size)),
            // The instruction isn't carried out, if it isn't done.
            _ => Some(0),
        }
    }

    /// The same of a store. Those count that are of a whole register.
    pub(in crate::vm) fn store_inner_apic(&mut self, address: u64, size: u8, value: u64) -> bool {
        let Some((register, within)) = place(address) else { return false };
        if size != 4 || within != 0 {
            // There is one: nothing else is there.
            return self.cpu.inner_apic(ID, None, true).is_some();
        }
        self.cpu.inner_apic(register, Some(value & ones(4)), true).is_some()
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
            Exit::Emulator(quirk) => {
                if self.work_around(quirk).is_err() {
                    self.execute_again();
                }
            }
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
