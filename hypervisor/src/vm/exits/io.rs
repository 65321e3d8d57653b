//! Port exits.

use crate::cpu::vendor::{PortAccess, VirtualCpu};
use crate::vm::Vcpu;
use crate::vm::stop::Stop;
use ledger::Reason;
use virtual_pc::ports;
use virtual_pc::unanswered::Place;

const RAX: u8 = 0;

impl<C: VirtualCpu> Vcpu<C> {
    pub(in crate::vm) fn port_io(
        &mut self,
        access: PortAccess,
        string: bool,
        next: u64,
    ) -> Result<Reason, (Reason, Stop)> {
        let reason = self.port_reason(access);
        let done = match string {
            true => self.string_io(access, next),
            false => self.register_io(access, next),
        };
        done.map(|()| reason).map_err(|stop| (reason, stop))
    }

    /// What an access is counted as. One that nothing answers is told of.
    fn port_reason(&mut self, access: PortAccess) -> Reason {
        let target = self.vm.bus.port(access.port, access.size);
        if !target.is_some_and(|target| target.answers.to(access.input)) {
            self.note_unanswered(Place::Port(access.port), !access.input);
        }
        target.map_or(Reason::PortIo, |target| target.reason)
    }

    /// IN or OUT.
    pub(in crate::vm) fn register_io(&mut self, access: PortAccess, next: u64) -> Result<(), Stop> {
        let PortAccess { port, size, input } = access;
        let old = self.cpu.gpr(RAX);
        if input {
            let new = access.loaded(old, self.read_port(port, size));
            self.cpu.set_gpr(RAX, new);
        } else {
            self.write_port(port, size, old as u32 & ports::unclaimed(size))?;
        }
        self.cpu.advance(next);
        Ok(())
    }
}
