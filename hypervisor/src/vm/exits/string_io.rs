//! INS and OUTS: one element for each exit, so that the work is bounded and the guest takes
//! its interrupts between the elements of a long one.
//!
//! Guarantees: a port sees each element as IN or OUT would move it, and where it is in the guest
//! is checked before the port is touched ([`super::element`]).

use crate::cpu::vendor::{PortAccess, VirtualCpu};
use crate::vm::Vcpu;
use crate::vm::stop::Stop;
use decode::Op;

impl<C: VirtualCpu> Vcpu<C> {
    /// Moves the next element between the port and memory.
    pub(in crate::vm) fn string_io(&mut self, access: PortAccess, next: u64) -> Result<(), Stop> {
        let PortAccess { port, size, input } = access;
        let address = self.cpu.rip();
        let mode = self.cpu.code_mode();
        let instruction = match self.decoded(address, Self::fetch) {
            Ok(instruction) => instruction,
            // Another thread has taken the code away since: the CPU looks anew.
            Err(_) if self.is_confined() => {
                self.execute_again();
                return Ok(());
            }
            Err(fault) => return Err(Stop::Fault(fault)),
        };
        if !matches!(instruction.op, Op::Ins { .. } | Op::Outs { .. }) {
            // IN or OUT with a repeat prefix, which means nothing there.
            return self.register_io(access, next);
        }
        if !instruction.has_element(&self.cpu) {
            self.cpu.advance(next);
            return Ok(());
        }
        let linear = instruction.linear_address(&self.cpu, mode).unwrap_or_default();
        match self.element(linear, size, input, mode) {
            Ok(element) if input => {
                let value = self.read_port(port, size);
                self.store_element(&element, value.into())?;
            }
            Ok(element) => {
                let value = self.load_element(&element);
                self.write_port(port, size, value as u32)?;
            }
            Err(exception) => {
                self.raise_instead(exception);
                return Ok(());
            }
        }
        let more = instruction.pass_element(&mut self.cpu);
        // Also when it isn't done: the shadow of STI covers one element.
        self.cpu.advance(if more { address } else { next });
        Ok(())
    }
}
