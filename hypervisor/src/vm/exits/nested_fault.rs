//! Nested page faults: the IDT's page, emulated registers, and memory that isn't there.
//!
//! Loads from where nothing is give all ones and stores there vanish, as on a PC's bus;
//! code there ends the VM. Nothing that a user of the guest's executes does: where a kernel's
//! instruction would end the VM, the user's raises #UD, or is executed again. An inner guest is such
//! a user, at each of its rings.

use crate::cpu::vectors::GuestVectors;
use crate::cpu::vendor::VirtualCpu;
use crate::vm::Vcpu;
use crate::vm::exceptions::UNDEFINED;
use crate::vm::exits::element::{Element, Exception};
use crate::vm::stop::{Fault, Stop};
use arrayvec::ArrayVec;
use decode::{Device, Instruction, Op, emulate_mmio};
use delivery::Event;
use ledger::Reason;

/// A guest register of the largest size, the lowest bytes first.
type Wide = [u64; 4];

/// The pieces of an access of the largest size.
type Elements = ArrayVec<Element, 4>;

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
        if fetch && self.is_confined() {
            // As the ones read that nothing answers with: FF FF is no instruction.
            self.cpu.inject(UNDEFINED, None);
            return Ok(reason);
        }
        if fetch || table {
            return fault(Fault::Fetch(address));
        }
        match self.decoded(address, Self::fetch_faulted) {
            Ok(instruction) => self.emulate(&instruction, address, reason),
            // What a user of the guest's executes ends no VM. The CPU executes it again, if it is
            // another instruction by now or can't be read; one that isn't emulated is undefined.
            Err(fault) if self.is_confined() => {
                match fault.is_unknown_instruction() {
                    true => self.cpu.inject(UNDEFINED, None),
                    false => self.execute_again(),
                }
                Ok(reason)
            }
            Err(fault) if fault.is_unknown_instruction() && self.cpu.exit_instead() => Ok(reason),
            Err(fault) => Err(Stop::Fault(fault)),
        }
        .map_err(|stop| (reason, stop))
    }

    /// Where a user's instruction reaches, piece by piece. The CPU has allowed the access that
    /// exited; another thread may have put a store in the place of a load since, or a wider
    /// instruction that reaches a page which isn't its own. None: it doesn't use `address`.
    fn user_elements(
        &self,
        instruction: &Instruction,
        address: u64,
    ) -> Result<Option<Elements>, Exception> {
        let mode = self.cpu.code_mode();
        let Some(linear) = instruction.linear_address(&self.cpu, mode) else { return Ok(None) };
        let write = instruction.op.stores();
        let mut elements = Elements::new();
        for (at, size) in pieces(0, instruction.size).take(elements.capacity()) {
            elements.push(self.element(linear.wrapping_add(at), size, write, mode)?);
        }
        let uses = elements.iter().any(|element| element.reaches(address));
        Ok(Some(elements).filter(|_| uses))
    }

    /// Performs the instruction that used `address`, and gives what that was for. One that reaches
    /// over the end of a page uses what comes behind it in guest-physical memory.
    fn emulate(
        &mut self,
        instruction: &Instruction,
        address: u64,
        reason: Reason,
    ) -> Result<Reason, Stop> {
        let next = self.cpu.rip().wrapping_add(instruction.len as u64);
        if matches!(instruction.op, Op::Movs { .. } | Op::Stos { .. } | Op::Lods { .. }) {
            return self.move_string(instruction, next).map(|()| reason);
        }
        let elements = match self.is_confined() {
            false => None,
            true => match self.user_elements(instruction, address) {
                Ok(Some(elements)) => Some(elements),
                Ok(None) => return Ok(reason),
                Err(exception) => {
                    self.raise_instead(exception);
                    return Ok(reason);
                }
            },
        };
        let mut access = Access { loaded: [0; 4], stored: None };
        if instruction.op.loads() {
            match &elements {
                None => access
                    .loaded
                    .iter_mut()
                    .zip(pieces(address, instruction.size))
                    .for_each(|(part, (at, size))| *part = self.load(at, size)),
                Some(elements) => access
                    .loaded
                    .iter_mut()
                    .zip(elements)
                    .for_each(|(part, element)| *part = self.load_element(element)),
            }
        }
        if self.tells_guest() {
            // The guest does it.
            return Ok(reason);
        }
        if let Err(why) = emulate_mmio(instruction, &mut self.cpu, &mut GuestVectors, &mut access) {
            // It has touched nothing. A guest's own can't be what exited; an inner guest's may be,
            // where its operand would have had another exit: LMSW.
            return if self.serves {
                self.cpu.inject(UNDEFINED, None);
                Ok(reason)
            } else if elements.is_some() {
                Ok(reason)
            } else {
                Err(Fault::Instruction { address, why }.into())
            };
        }
        self.cpu.advance(next);
        let Some(stored) = access.stored else { return Ok(reason) };
        if let Some(elements) = elements {
            let mut parts = stored.into_iter().zip(&elements);
            return parts
                .try_for_each(|(part, element)| self.store_element(element, part))
                .map(|()| reason);
        }
        let mut parts = stored.into_iter().zip(pieces(address, instruction.size));
        parts.try_fold(reason, |_, (part, (at, size))| self.store(at, size, part))
    }
}
