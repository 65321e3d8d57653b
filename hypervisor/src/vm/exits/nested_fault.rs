//! Nested page faults: the IDT's page, emulated registers, and memory that isn't there.
//!
//! Loads from where nothing is give all ones and stores there vanish, as on a PC's bus;
//! code there ends the VM.

use crate::cpu::vectors::GuestVectors;
use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::stop::{Fault, Stop};
use decode::{Device, Op, emulate_mmio};
use delivery::Event;
use ledger::Reason;

/// A guest register of the largest size, the lowest bytes first.
type Wide = [u64; 4];

/// The accesses of an emulated instruction: at most one load, then at most one store.
struct Access {
    loaded: Wide,
    stored: Option<Wide>,
}

impl Device for Access {
    fn load(&mut self, _size: u8) -> u64 {
        self.loaded[0]
    }

    fn store(&mut self, _size: u8, value: u64) {
        self.stored = Some([value, 0, 0, 0]);
    }

    fn load_vector(&mut self, _size: u8) -> Wide {
        self.loaded
    }

    fn store_vector(&mut self, _size: u8, value: Wide) {
        self.stored = Some(value);
    }
}

/// The accesses of at most 8 bytes that one of `size` bytes at `address` is made of.
fn pieces(address: u64, size: u8) -> impl Iterator<Item = (u64, u8)> {
    (0..size).step_by(8).map(move |at| (address.wrapping_add(at.into()), size.min(8)))
}

impl<C: VirtualCpu> Vcpu<C> {
    pub(in crate::vm) fn nested_fault(
        &mut self,
        address: u64,
        fetch: bool,
        table: bool,
        event: Option<Event>,
    ) -> Result<Reason, (Reason, Stop)> {
        if self.vm.guest.memory.resolve(address & !0xFFF, 4096).is_some() {
            // Its own memory is refused to the guest for a shadow IDT alone. Another vCPU may have
            // taken that away by now: then the access is right as it is.
            let stop = |f| (Reason::IdtWrite, Stop::Fault(f));
            self.with_pc(|pc, cx| pc.board_mut().drop_shadow_at(cx, address & !0xFFF))
                .map_err(stop)?;
            self.cpu.flush_translations();
            self.redeliver(event);
            return Ok(Reason::IdtWrite);
        }
        let reason = self.reason_at(address);
        let fault = |f| Err((reason, Stop::Fault(f)));
        if let Some(Event { vector, .. }) = event {
            return fault(Fault::Delivery { address, vector });
        }
        if fetch || table {
            return fault(Fault::Fetch(address));
        }
        self.emulate(address, reason).map_err(|stop| (reason, stop))
    }

    /// Performs the instruction that used `address`, and gives what that was for. One that reaches
    /// over the end of a page uses what comes behind it in guest-physical memory.
    fn emulate(&mut self, address: u64, reason: Reason) -> Result<Reason, Stop> {
        let mut bytes = [0; 15];
        let length = self.fetch_faulted(&mut bytes).ok_or(Fault::Unreadable { address })?;
        let mode = self.cpu.code_mode();
        let refused = |why| Fault::Instruction { address, why };
        let instruction =
            decode::decode(bytes.get(..length).unwrap_or_default(), mode).map_err(refused)?;
        let next = self.cpu.rip().wrapping_add(instruction.len as u64);
        if matches!(instruction.op, Op::Movs { .. } | Op::Stos { .. } | Op::Lods { .. }) {
            return self.move_string(&instruction, next).map(|()| reason);
        }
        let mut access = Access { loaded: [0; 4], stored: None };
        if instruction.op.loads() {
            for (part, (at, size)) in
                access.loaded.iter_mut().zip(pieces(address, instruction.size))
            {
                *part = self.load(at, size);
            }
        }
        emulate_mmio(&instruction, &mut self.cpu, &mut GuestVectors, &mut access)
            .map_err(refused)?;
        self.cpu.advance(next);
        let Some(stored) = access.stored else { return Ok(reason) };
        let mut parts = stored.into_iter().zip(pieces(address, instruction.size));
        parts.try_fold(reason, |_, (part, (at, size))| self.store(at, size, part))
    }
}
